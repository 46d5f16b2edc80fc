-- What goes from state to state, and what does not.
local function shown(value)
   if type(value) ~= "table" then
      return type(value) .. " " .. tostring(value)
   end
   local words = {}
   for k, v in pairs(value) do
      words[#words + 1] = tostring(k) .. "=" .. tostring(v)
   end
   table.sort(words)
   return "{" .. table.concat(words, " ") .. "}"
end
local values = { 1, 2.5, -1e300, "text", "\194\181s\r\n", "", true, false }
function setup(thread)
   for i, value in ipairs(values) do
      thread:set("v" .. i, value)
      print(i, shown(thread:get("v" .. i)))
   end
   thread:set("v1", nil)
   print(thread:get("v1"))
   -- wrk takes one value too many from its stack with a table, so it is called in a way that bears that.
   local own = { 1, "two", three = true }
   print(pcall(thread.set, thread, "own", own))
   own[1] = 2
   for _, value in ipairs({ print, thread, coroutine.create(print), io.stdout }) do
      print(type(value), select(2, pcall(thread.set, thread, "x", value)) == "cannot transfer '" .. type(value) .. "' to thread")
   end
   print((pcall(function()
      thread.other = 1
   end)))
end
function init()
   for i = 1, #values do
      print(i, shown(_G["v" .. i]))
   end
   print("copied", shown(own))
end
