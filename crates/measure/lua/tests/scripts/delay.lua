-- A pause before each request.
local n = 0
function delay()
   n = n + 1
   return 20
end
function request()
   if n == 0 then
      print("on trial, before any delay")
   end
   return wrk.request()
end
function done(summary, latency)
   print("no more than fifty a second, and some", summary.requests > 5 and summary.requests < 56, latency.max < 1000000)
end
