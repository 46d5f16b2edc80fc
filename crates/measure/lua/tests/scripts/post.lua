-- What the script sets at its top shapes the one request there is.
wrk.method = "POST"
wrk.body = "a=1&b=two"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
wrk.headers["X-Token"] = "fixed"
function init()
   wrk.path = "/echo/form"
end
local n = 0
function response(status, headers, body)
   n = n + 1
   if n == 1 then
      print(status, body)
   end
end
