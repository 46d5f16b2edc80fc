-- What a script for wrk finds in its state: the table `wrk`, and the ways in and out that the program calls.
-- Knows nothing of sockets: looking up and connecting are functions of the program.

local lookup, connect, collect, ask_to_exit = ...

local find, sub, byte, len = string.find, string.sub, string.byte, string.len
local next, type, tostring, select, rawget = next, type, tostring, select, rawget
local getinfo = debug.getinfo

local wrk = { method = "GET", headers = {} }
_G.wrk = wrk
package.loaded.wrk = wrk

-- A function of the program returns its value, or nothing and what was wrong.
local function checked(value, fault)
   if fault then
      error(fault, 0)
   end
   return value
end

-- An object that scripts cannot look into; the program knows an address by its text.
local texts = setmetatable({}, { __mode = "k" })

local function address(text)
   local object = newproxy(true)
   texts[object] = text
   getmetatable(object).__tostring = function()
      return text
   end
   return object
end

local function text_of(object)
   return texts[object] or error(("`wrk.addr' expected, got %s"):format(type(object)), 3)
end

function wrk.lookup(host, service)
   local found = checked(lookup(tostring(host), tostring(service)))
   for i = 1, #found do
      found[i] = address(found[i])
   end
   return found
end

function wrk.connect(object)
   return checked(connect(text_of(object)))
end

-- The process is the program's: ended by a script, it would take the result with it.
function os.exit(code)
   ask_to_exit((code == false and 1 or tonumber(code) or 0) % 256)
   error(("os.exit(%s) cannot end the run: use wrk.thread:stop() to end a thread"):format(tostring(code or "")), 2)
end

-- One buffer for all requests: what it holds is copied out before anybody else writes into it.
local text = require("string.buffer").new()

-- What is behind the fields that stand in a row below.
local function more_fields(headers, name, value)
   while name ~= nil do
      text:put(tostring(name), ": ", tostring(value), "\r\n")
      name, value = next(headers, name)
   end
end

-- The fields of most requests, one behind the other instead of in a loop: LuaJIT begins no trace in front of a loop that it goes
-- through, so a request with one in its middle would be compiled for those few rounds and interpreted otherwise.
local put_fields = loadstring(([[
   local text, next, tostring, more_fields = ...
   return function(headers)
      local name, value = next(headers)
      %s
      return more_fields(headers, name, value)
   end
]]):format(([[
      if name == nil then
         return
      end
      text:put(tostring(name), ": ", tostring(value), "\r\n")
      name, value = next(headers, name)
]]):rep(12)), "=wrk")(text, next, tostring, more_fields)

function wrk.format(method, path, headers, body)
   headers, body = headers or wrk.headers, body or wrk.body
   if not headers["Host"] then
      headers["Host"] = wrk.headers["Host"]
   end
   local length = body and len(body)
   -- A place for a field that is not there makes the table larger, which costs more than all the rest.
   if length or headers["Content-Length"] then
      headers["Content-Length"] = length
   end
   text:reset():put(tostring(method or wrk.method), " ", tostring(path or wrk.path), " HTTP/1.1\r\n")
   put_fields(headers)
   text:put("\r\n")
   if body then
      text:put(body)
   end
   return text:tostring()
end

function wrk.resolve(host, service)
   local usable = {}
   for _, address in ipairs(wrk.lookup(host, service)) do
      if wrk.connect(address) then
         usable[#usable + 1] = address
      end
   end
   wrk.addrs = usable
end

function wrk.setup(thread)
   thread.addr = wrk.addrs[1]
   if type(setup) == "function" then
      setup(thread)
   end
end

function wrk.init(args)
   if not wrk.headers["Host"] then
      local host = wrk.host
      if find(host, ":", 1, true) then
         host = "[" .. host .. "]"
      end
      wrk.headers["Host"] = wrk.port and host .. ":" .. wrk.port or host
   end
   if type(init) == "function" then
      init(args)
   end
   local fixed = wrk.format()
   wrk.request = function()
      return fixed
   end
end

-- What a script says goes back with the result: the standard output of this process speaks another language.
local function say(to, ...)
   for i = 1, select("#", ...) do
      local word = select(i, ...)
      if type(word) ~= "string" and type(word) ~= "number" then
         error(("bad argument #%d to 'write' (string expected, got %s)"):format(i, type(word)), 3)
      end
      collect(tostring(word), to)
   end
end

function print(...)
   local words = {}
   for i = 1, select("#", ...) do
      words[i] = _G.tostring((select(i, ...)))
   end
   collect(table.concat(words, "\t") .. "\n")
end

local function stream(to)
   local object = newproxy(true)
   local methods = {}
   function methods:write(...)
      say(to, ...)
      return true
   end
   function methods:flush()
      return true
   end
   function methods:setvbuf()
      return true
   end
   function methods:close()
      return true
   end
   function methods:seek()
      return nil, "Illegal seek", 29
   end
   local meta = getmetatable(object)
   meta.__index = methods
   function meta.__tostring()
      return "file (kept)"
   end
   return object
end
local screen, errors = stream(), stream("errors")
local output, kind = screen, io.type
io.stdout, io.stderr = screen, errors
function io.type(file)
   if file == screen or file == errors then
      return "file"
   end
   return kind(file)
end
function io.output(file)
   if type(file) == "string" then
      file = assert(io.open(file, "w"))
   end
   output = file or output
   return output
end
function io.write(...)
   if output == screen then
      say(nil, ...)
      return true
   end
   return output:write(...)
end

-- The fields of a head without its first line. Answers of the same second are alike, so the last one is kept apart.
local names, values, n_fields = {}, {}, 0
local function read(head)
   local at = 1
   n_fields = 0
   while true do
      local colon = find(head, ":", at, true)
      if not colon then
         return
      end
      local stop = find(head, "\n", colon, true) or len(head) + 1
      local first, last = colon + 1, stop - 1
      while byte(head, first) == 32 or byte(head, first) == 9 do
         first = first + 1
      end
      if byte(head, last) == 13 then
         last = last - 1
      end
      n_fields = n_fields + 1
      names[n_fields], values[n_fields] = sub(head, at, colon - 1), sub(head, first, last)
      at = stop + 1
   end
end

local function fields()
   local all = {}
   for i = 1, n_fields do
      all[names[i]] = values[i]
   end
   return all
end

local tags, body, known, wanted = {}, "", nil, 0
local ways = {}

-- How many of its arguments a function of the script looks at.
local function looks_at(f)
   local of = getinfo(f, "u")
   return of.isvararg and of.nparams < 3 and 3 or of.nparams
end

-- The bytes, or nothing and what the script has returned instead.
function ways.request(slot)
   local f = request
   if type(f) ~= "function" then
      f = wrk.request
   end
   local bytes, tag = f()
   if tag ~= tags[slot] then
      tags[slot] = tag
   end
   if type(bytes) == "string" then
      return bytes
   end
   return nil, bytes
end

function ways.delay()
   return delay()
end

-- How many of the arguments of an answer the script takes at the moment.
function ways.looks()
   known = response
   wanted = type(known) == "function" and looks_at(known) or 0
   return wanted > 4 and 4 or wanted
end

-- Returns how much more must be brought, when the script has taken another function that looks at more of an answer.
function ways.response(status, head, content, brought, slot, connection, sent, first, latency)
   if head then
      read(head)
   end
   body = content or body
   local f = response
   if f ~= known then
      known, wanted = f, type(f) == "function" and looks_at(f) or 0
   end
   if type(f) ~= "function" then
      return
   end
   if wanted > brought and brought < 4 then
      return wanted > 4 and 4 or wanted
   end
   if wanted < 2 then
      f(status)
   elseif wanted < 3 then
      f(status, fields())
   elseif wanted < 4 then
      f(status, fields(), body)
   else
      local of = { connection = connection, tag = tags[slot] }
      of.sent_us, of.first_byte_us, of.latency_us = sent, first, latency
      f(status, fields(), body, of)
   end
end

-- A thread as scripts see it; each of its four functions belongs to the program.
function ways.thread(get, set, stop, place)
   local object = newproxy(true)
   local methods = {
      get = function(_, name)
         return checked(get(tostring(name)))
      end,
      set = function(_, name, value)
         checked(set(tostring(name), value))
      end,
      stop = function()
         stop()
      end,
   }
   local meta = getmetatable(object)
   function meta.__index(_, key)
      if key ~= "addr" then
         return methods[key]
      end
      local text = place()
      return text and address(text)
   end
   function meta.__newindex(_, key, value)
      if key ~= "addr" then
         error(("cannot set '%s' on thread"):format(type(value)), 2)
      end
      -- Where the target could not be looked up here, as behind a proxy, there is no address to be set.
      if value ~= nil then
         checked(place(text_of(value)))
      end
   end
   return object
end

-- What was measured as scripts see it.
function ways.statistics(ask)
   local object = newproxy(true)
   local meta = getmetatable(object)
   local function percentile(_, share)
      local number = tonumber(share)
      if not number then
         error(("bad argument #2 to 'percentile' (number expected, got %s)"):format(type(share)), 2)
      end
      return (ask("percentile", number))
   end
   function meta.__index(_, key)
      if key == "percentile" then
         return percentile
      end
      return (ask(tostring(key), 0))
   end
   function meta.__len()
      return (ask("count", 0))
   end
   function meta.__call(_, i)
      return ask("at", tonumber(i) or 0)
   end
   return object
end

function ways.text(object)
   return texts[object]
end

function ways.has(name)
   return type(rawget(_G, name)) == "function"
end

return ways
