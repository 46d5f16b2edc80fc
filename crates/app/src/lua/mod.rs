//! wrk's Lua scripts.
