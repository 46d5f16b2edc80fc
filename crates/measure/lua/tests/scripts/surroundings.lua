-- What there is, where, of which type.
local function look(where)
   local names = {}
   for name, value in pairs(wrk) do
      names[#names + 1] = name .. ":" .. type(value)
   end
   table.sort(names)
   print(where, table.concat(names, " "))
end
print("file", wrk == require("wrk"), wrk.scheme, wrk.host, wrk.path, wrk.method, wrk.body, wrk.thread, type(wrk.port))
look("file")
function setup(thread)
   look("setup")
   print(type(thread), type(thread.addr), type(thread.get), type(thread.set), type(thread.stop))
end
function init(args)
   look("init")
   print(#args, args[0]:match("^http://127.0.0.1:%d+/echo%?x=y#z$") ~= nil, args[1], args[2], args[3], args[-1])
   print(wrk.headers["X-Line"], wrk.headers["X-Other"], type(wrk.headers.Host))
   print(type(bit), type(jit), type(require("ffi")), type(debug.getinfo), type(os.time()), type(newproxy), jit.version:match("^%w+ 2%.1"))
end
function done()
   look("done")
   print(wrk.path, wrk.thread)
end
