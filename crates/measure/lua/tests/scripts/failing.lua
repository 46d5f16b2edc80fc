-- The third line fails.
local t = nil
t.x = 1
