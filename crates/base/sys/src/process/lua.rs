//! Lua states with everything that `LuaJIT` has.

use mlua::Lua;

/// A state with all libraries, `debug` and `ffi` among them, and with modules that are written in C.
///
/// What a script does with these can end the process or worse: it must be its user's own, run in a process of its own.
#[must_use]
pub fn state() -> Lua {
    // SAFETY: mlua calls this unsafe because a script can break memory through `ffi`, `debug` and modules in C. Scripts here are
    // programs that the user starts, as those that wrk runs, and whoever serves agents to others has no script run there.
    unsafe { Lua::unsafe_new() }
}
