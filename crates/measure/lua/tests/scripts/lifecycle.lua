-- Who is called when, and who sees what.
n = (n or 0) + 1
print("file", n, type(init), type(setup), wrk.thread)
function setup(thread)
   n = n + 1
   thread:set("given", n)
   print("setup", n, thread:get("n"))
end
function init()
   print("init", n, given, wrk.request)
   n = n + 10
end
function done()
   print("done", n, given)
end
