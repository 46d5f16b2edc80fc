-- Requests from their parts.
local function shown(text)
   local head, body = text:match("^(.-)\r\n\r\n(.*)$")
   local lines = {}
   for line in head:gmatch("[^\r\n]+") do
      lines[#lines + 1] = line
   end
   local first = table.remove(lines, 1)
   table.sort(lines)
   return first .. " | " .. table.concat(lines, " | "):gsub("127.0.0.1:%d+", "HOST") .. " | " .. body
end
function init()
   print(shown(wrk.format()))
   print(shown(wrk.format("PUT", "/p?q", { A = "b" }, "body")))
   print(shown(wrk.format("GET", nil, { Host = "other", N = 1.5 }, nil)))
   print(shown(wrk.format(nil, "/x", {}, 12345)))
   print(shown(wrk.format("A", "", { ["Content-Length"] = 99 })))
   local fields = { Z = "z" }
   wrk.format("POST", "/", fields, "four")
   print(fields.Host ~= nil, fields["Content-Length"])
   wrk.format("GET", "/", fields)
   print(fields["Content-Length"])
   wrk.headers["X-Own"], wrk.method, wrk.path, wrk.body = "own", "PATCH", "/own", "own"
   print(shown(wrk.format()))
   wrk.body = nil
   print(shown(wrk.format()), wrk.headers["Content-Length"])
   print(pcall(wrk.format, "GET", "/", 5) == false)
   wrk.method, wrk.path = nil, nil
   wrk.method, wrk.path = "GET", "/echo"
end
function done()
   print(wrk.request, wrk.headers.Host, wrk.thread)
   print(pcall(wrk.format))
end
