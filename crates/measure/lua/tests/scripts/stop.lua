-- A thread that has seen enough stops; it is the only one.
local n = 0
function response()
   n = n + 1
   if n == 100 then
      wrk.thread:stop()
   end
end
function done(summary)
   print("answers", summary.requests)
end
