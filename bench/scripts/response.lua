-- The next request carries what the last answer said, and every answer is checked.
local count, tag, n_wrong = 0, "none", 0

function request()
   count = count + 1
   return wrk.format("GET", "/612?item=" .. count, { ["X-Last"] = tag })
end

function response(status, headers, body)
   if status ~= 200 or #body ~= 612 then
      n_wrong = n_wrong + 1
   end
   tag = headers["ETag"] or tag
end
