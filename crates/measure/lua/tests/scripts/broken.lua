-- The third line is wrong.

local x = = 1
