//! Lua states with all `LuaJIT` features.

use mlua::Lua;

/// Creates a state with all libraries, including `debug` and `ffi`, and with C modules.
///
/// A script can use these to crash the process or worse, so it must belong to the user and run in a process of its own.
#[must_use]
pub fn state() -> Lua {
    // SAFETY: mlua marks this unsafe because a script can corrupt memory through `ffi`, `debug` and C modules. Scripts here are programs
    // that the user starts, like those that wrk runs; agents that serve others run no scripts.
    unsafe { Lua::unsafe_new() }
}
