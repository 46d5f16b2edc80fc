-- Numbers and names for threads, counters of each, and their sum.
local threads = {}
function setup(thread)
   table.insert(threads, thread)
   thread:set("id", #threads)
   thread:set("name", "thread-" .. #threads)
end
function init(args)
   requests, responses = 0, 0
   print("thread " .. id .. " is " .. name)
end
function request()
   requests = requests + 1
   return wrk.request()
end
function response()
   responses = responses + 1
end
function done(summary)
   local sent, answered = 0, 0
   for i, thread in ipairs(threads) do
      sent, answered = sent + thread:get("requests"), answered + thread:get("responses")
      print(i, thread:get("id"), thread:get("name"), thread:get("nothing"), thread:get("responses") > 0)
   end
   -- The one on trial, and one under way on each of four connections.
   print("sum", sent - answered >= 1, sent - answered <= 5, answered >= summary.requests, answered - summary.requests <= 4)
end
