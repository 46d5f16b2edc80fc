-- Each thread goes to an address that setup has looked up and tried.
local taken = 0
function setup(thread)
   local found = wrk.lookup(wrk.host, wrk.port)
   local port = tostring(found[1]):match(":(%d+)$")
   taken = taken + 1
   local other = wrk.lookup("127.0.0.1", port)[1]
   print("found", #found, tostring(found[1]) == tostring(thread.addr), type(found[1]), wrk.connect(found[1]))
   -- A port below those that anybody listens on here.
   print("nobody", wrk.connect(wrk.lookup("127.0.0.1", "9")[1]))
   thread.addr = other
   print("set", tostring(thread.addr) == tostring(other), #wrk.addrs)
end
function init()
   print("init", tostring(wrk.thread.addr):match("^127%.0%.0%.1:%d+$") ~= nil, wrk.addrs)
end
function done(summary)
   print("done", summary.requests > 0, summary.errors.connect)
end
