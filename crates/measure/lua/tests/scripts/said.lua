-- All ways to print.
print("a", 1, 1.5, nil, true, "tab\tand\0zero")
print()
io.write("b", 2, "\n")
print(io.stdout:write("c", 3, "\n"))
io.output():write("d\n")
print(io.type(io.stdout), io.output() == io.stdout, io.write(""))
print(select("#", print()))
print(pcall(io.write, {}) == false, setmetatable({}, { __tostring = function() return "own" end }))
io.stdout:setvbuf("no")
io.stdout:flush()
io.flush()
function init()
   local name = os.tmpname()
   local file = io.open(name, "w")
   file:write("kept")
   file:close()
   for line in io.lines(name) do
      print(line)
   end
   os.remove(name)
end
function done()
   io.write("last, without a line end")
end
