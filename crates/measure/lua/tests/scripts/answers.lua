-- What an answer looks like.
local paths = { "/echo/1", "/missing", "/double", "/chunks", "/empty", "/error" }
local sent, seen = 0, 0
function request()
   sent = sent + 1
   -- The first request is asked for on trial.
   return wrk.format("GET", paths[(sent - 2) % #paths + 1])
end
function response(status, headers, body, ...)
   seen = seen + 1
   if seen > #paths then
      return
   end
   local lines = {}
   for name, value in pairs(headers) do
      if name ~= "Date" and name ~= "Server" and name ~= "ETag" and name ~= "Last-Modified" then
         lines[#lines + 1] = name .. "=" .. value
      end
   end
   table.sort(lines)
   print(seen, status, type(status), table.concat(lines, ","), #body, body:sub(1, 40):gsub("%s+", " "), select("#", ...))
end
function done(summary)
   local share = summary.errors.status / summary.requests
   print("refused", share > 0.3 and share < 0.36, summary.errors.read, summary.errors.timeout)
end
