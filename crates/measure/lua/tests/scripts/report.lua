-- Percentiles as rows.
function done(summary, latency, requests)
   io.write("percentile,value\n")
   local before, grows = 0, true
   for _, p in pairs({ 50, 90, 99, 99.9 }) do
      local value = latency:percentile(p)
      io.write(p, ",", value > 0 and "some" or "none", "\n")
      grows = grows and value >= before and value % 1 == 0
      before = value
   end
   print("grows", grows, latency.min <= latency:percentile(50), latency.max >= before)
   print("mean", latency.mean > latency.min and latency.mean < latency.max, latency.stdev > 0)
   local total = 0
   for i = 1, #latency do
      local value, count = latency(i)
      total = total + count
      if i == 1 then
         print("first", value == latency.min, count >= 1)
      elseif i == #latency then
         print("last", value == latency.max)
      end
   end
   -- wrk adds times that never were; we have no time for what came behind the end.
   print("all", total >= summary.requests - 8, #latency > 1)
   print("rates", #requests > 1, requests.min <= requests.mean, requests.max >= requests.mean, requests:percentile(50) > 0)
   print("types", type(latency), type(#latency), type(latency.mean), type(latency.percentile), latency == requests)
   print("summary", type(summary.duration), summary.duration > 900000, summary.bytes > summary.requests)
   local names = {}
   for name, value in pairs(summary.errors) do
      names[#names + 1] = name .. "=" .. value
   end
   table.sort(names)
   print(table.concat(names, " "))
end
