-- Asks for pages by number, with a token that came with an answer as soon as there was one: what wrk runs, fathom runs unchanged.
-- The first argument says how many pages there are.
local pages, page, token = 10, 0, nil

function init(args)
   pages = tonumber(args[1]) or pages
end

function request()
   page = page % pages + 1
   return wrk.format("GET", "/page/" .. page, { ["Authorization"] = token })
end

function response(status, headers)
   if status == 200 and not token then
      token = "Bearer " .. (headers["ETag"] or "none")
   end
end

function done(summary, latency)
   io.write(("%d pages, half of them within %d us\n"):format(summary.requests, latency:percentile(50)))
end
