-- Another path and another field for each request.
local n, seen = 0, 0
function request()
   n = n + 1
   wrk.headers["X-Token"] = n
   return wrk.format(nil, "/echo/" .. n)
end
function response(status, headers, body)
   seen = seen + 1
   if seen <= 4 then
      print(status, body)
   end
end
