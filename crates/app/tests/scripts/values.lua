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
local values = { 1, 2.5, -1e300, "text", "\0\255bytes", "", true, false, { 1, 2, "three" }, { a = 1, b = true }, {} }
function setup(thread)
   for i, value in ipairs(values) do
      thread:set("v" .. i, value)
      print(i, shown(thread:get("v" .. i)))
   end
   thread:set("v1", nil)
   print(thread:get("v1"))
   local own = { 1 }
   thread:set("own", own)
   own[1] = 2
   print("copied", thread:get("own")[1], thread:get("own") ~= own)
   for _, value in ipairs({ print, thread, coroutine.create(print), io.stdout }) do
      print(type(value), select(2, pcall(thread.set, thread, "x", value)) == "cannot transfer '" .. type(value) .. "' to thread")
   end
   print(pcall(thread.get, thread, "init"))
   print((pcall(function()
      thread.other = 1
   end)))
end
function init()
   for i = 1, #values do
      print(i, shown(_G["v" .. i]))
   end
   print(own[1])
end
