-- A path and a field of its own for each request.
local count = 0

function request()
   count = count + 1
   return wrk.format("GET", "/612?item=" .. count, { ["X-Request"] = tostring(count) })
end
