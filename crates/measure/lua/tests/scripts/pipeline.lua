-- As many requests at once as the first word behind the URL says.
local all, n = nil, 0
local threads = {}
function setup(thread)
   threads[#threads + 1] = thread
end
function init(args)
   local depth = tonumber(args[1]) or 3
   print("depth", depth)
   local each = {}
   for i = 1, depth do
      each[i] = wrk.format(nil, "/echo/" .. i)
   end
   all = table.concat(each)
end
function request()
   return all
end
answers = 0
order = true
function response(status, headers, body)
   answers = answers + 1
   local place = tonumber(body:match("/echo/(%d+)"))
   if answers > 1 and place ~= 1 and place ~= last + 1 then
      order = false
   end
   last = place
end
function done(summary, latency, requests)
   print("answers", threads[1]:get("answers") >= summary.requests, threads[1]:get("order"), summary.requests > 100)
   local n = 0
   for i = 1, #latency do
      local _, count = latency(i)
      n = n + count
   end
   -- One time for all that was sent together; the last of them may not have come back, and wrk adds some that never were.
   print("times", n * 16 >= summary.requests - 16)
end
