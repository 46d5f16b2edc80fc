-- A token of the first answer goes into all requests after it.
local token, path, n = nil, "/login", 0
function request()
   return wrk.format("GET", path)
end
function response(status, headers, body)
   n = n + 1
   if not token and status == 200 then
      token = headers["X-Token"]
      path = "/echo"
      wrk.headers["X-Token"] = token
   end
   if n <= 3 then
      print(n, status, token, body)
   end
end
