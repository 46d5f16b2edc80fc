//! One Lua state: the environment of a script on one thread, and its entry points.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fathom_engine::Error;
use fathom_model::units::Bytes;
use mlua::{Function, Lua, LuaString, Table, Value, WeakLua};

use super::{
    fault::{self, ScriptFault},
    heartbeat::{Callback, Heartbeat, StateOwner},
    output::ScriptOutput,
    script::LuaScript,
    transfer,
};

/// The environment of a script, loaded before it runs.
const PRELUDE: &str = include_str!("prelude.lua");

/// The data about a thread that states share.
#[derive(Debug, Default)]
pub(super) struct ThreadFacts {
    /// Whether `thread:stop()` was called.
    pub(super) stop: AtomicBool,
    /// The destination of its connections; `None` if it is not known here.
    pub(super) address: Mutex<Option<SocketAddr>>,
}

impl ThreadFacts {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A state and the functions of the prelude that call its script.
#[derive(Debug)]
pub(super) struct LuaState {
    pub(super) lua: Lua,
    pub(super) entry_points: Table,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) script: Arc<LuaScript>,
}

impl LuaState {
    /// Creates a state in which the script has not run yet.
    pub(super) fn new(script: &Arc<LuaScript>, owner: StateOwner, output: &ScriptOutput) -> Result<Self, Error> {
        let lua = fathom_sys::process::lua::state();
        let made = Self::load_prelude(&lua, script, output);
        let ways = made.map_err(|error| Error::Unsupported {
            what: format!("cannot make a Lua state for {owner}: {error}"),
            hint: None,
        })?;
        Ok(Self { lua, entry_points: ways, heartbeat: Heartbeat::new(owner), script: Arc::clone(script) })
    }

    fn load_prelude(lua: &Lua, script: &Arc<LuaScript>, output: &ScriptOutput) -> mlua::Result<Table> {
        let reach = Arc::clone(script);
        let look_up = lua.create_function(move |lua, (host, service): (String, String)| {
            Ok(match reach.connect_policy.look_up(&host, &service) {
                Ok(found) => {
                    let found = found.iter().map(SocketAddr::to_string);
                    (Some(lua.create_sequence_from(found)?), None)
                }
                Err(why) => (None, Some(why)),
            })
        })?;
        let reach = Arc::clone(script);
        let connect = lua.create_function(move |_, address: String| {
            Ok(result_pair(with_address(&address, |at| reach.connect_policy.takes_connection(at))))
        })?;
        let prints = output.clone();
        let collect = lua.create_function(move |_, (text, to): (LuaString, Option<LuaString>)| {
            if to.is_some() {
                prints.collect_error(&text.as_bytes());
            } else {
                prints.collect(&text.as_bytes());
            }
            Ok(())
        })?;
        let exits = output.clone();
        let ask_to_exit = lua.create_function(move |_, code: u8| {
            exits.set_exit_code(code);
            Ok(())
        })?;
        let ways: Table = lua.load(PRELUDE).set_name("=wrk").call((look_up, connect, collect, ask_to_exit))?;
        let wrk: Table = lua.globals().get("wrk")?;
        wrk.set("scheme", script.target.scheme.name())?;
        wrk.set("host", script.target.host.as_str())?;
        wrk.set("port", script.port.as_deref())?;
        wrk.set("path", script.whole_path.as_str())?;
        let headers: Table = wrk.get("headers")?;
        for (name, value) in &script.headers {
            headers.set(name.as_str(), value.as_str())?;
        }
        lua.set_memory_limit(script.memory_max)?;
        Ok(ways)
    }

    /// Runs the file.
    pub(super) fn load(&self) -> Result<(), ScriptFault> {
        let name = format!("@{}", self.script.path);
        let run = || self.lua.load(&self.script.text[..]).set_name(name).exec();
        self.heartbeat.within(Callback::Load, run).map_err(|error| self.fault(Callback::Load, &error))
    }

    pub(super) fn fault(&self, callback: Callback, error: &mlua::Error) -> ScriptFault {
        let owner = self.heartbeat.owner;
        if fault::is_memory(error) {
            // The data of the callback is garbage now, and the next one needs room.
            let _ = self.lua.gc_collect();
            let (path, most) = (&self.script.path, self.script.memory_max);
            let most = Bytes(u64::try_from(most).unwrap_or(u64::MAX));
            let message = format!("{path}: not enough memory: a state may have {most} (option script-memory)");
            return ScriptFault::new(message, callback, owner);
        }
        ScriptFault::of(error, callback, owner)
    }

    /// Calls a function of the table `wrk`, which a script may have replaced.
    pub(super) fn call(&self, callback: Callback, name: &str, argument: Value) -> Result<(), ScriptFault> {
        let call = || {
            let wrk: Table = self.lua.globals().get("wrk")?;
            wrk.get::<Function>(name)?.call::<()>(argument)
        };
        self.heartbeat.within(callback, call).map_err(|error| self.fault(callback, &error))
    }

    /// Looks the target up and keeps the addresses that accept a connection. Returns their number.
    pub(super) fn resolve(&self) -> Result<usize, ScriptFault> {
        let (host, service) = (self.script.target.host.as_str(), self.script.service());
        let resolve = || {
            let wrk: Table = self.lua.globals().get("wrk")?;
            wrk.get::<Function>("resolve")?.call::<()>((host, service))?;
            wrk.get::<Table>("addrs")?.len()
        };
        let count = self.heartbeat.within(Callback::Load, resolve);
        count.map(|n| usize::try_from(n).unwrap_or(0)).map_err(|error| self.fault(Callback::Load, &error))
    }

    /// The address of threads that do not choose another one.
    pub(super) fn first_address(&self) -> Option<SocketAddr> {
        let first = || {
            let wrk: Table = self.lua.globals().get("wrk")?;
            let object: Value = wrk.get::<Table>("addrs")?.get(1)?;
            self.entry_point("text").call::<Option<String>>(object)
        };
        first().ok().flatten()?.parse().ok()
    }

    pub(super) fn entry_point(&self, name: &str) -> Function {
        self.entry_points.raw_get(name).expect("the prelude has these functions")
    }

    /// Whether the script has a global function of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entry_point("has").call(name).unwrap_or(false)
    }

    /// The object that represents a thread and its state in this state.
    pub(super) fn thread_object(&self, of: &Lua, facts: &Arc<ThreadFacts>) -> mlua::Result<Value> {
        let target = of.weak();
        let get = self.lua.create_function(move |lua, name: String| {
            let Some(of) = target.try_upgrade() else { return Ok(failure_pair()) };
            let value: Value = of.globals().get(&*name)?;
            Ok(result_pair(transfer::copy(&value, lua)))
        })?;
        let target: WeakLua = of.weak();
        let set = self.lua.create_function(move |_, (name, value): (String, Value)| {
            let Some(of) = target.try_upgrade() else { return Ok(failure_pair()) };
            let copied = transfer::copy(&value, &of);
            let set = |value| of.globals().set(&*name, value).map_err(|error| error.to_string());
            Ok(result_pair(copied.and_then(set).map(|()| Value::Nil)))
        })?;
        let own = Arc::clone(facts);
        let stop = self.lua.create_function(move |_, ()| {
            own.stop.store(true, Ordering::Relaxed);
            Ok(())
        })?;
        let (own, script) = (Arc::clone(facts), Arc::clone(&self.script));
        let place = self.lua.create_function(move |_, address: Option<String>| {
            let Some(address) = address else {
                return Ok((own.address().map(|address| address.to_string()), None));
            };
            let set = with_address(&address, |at| {
                script.connect_policy.check(at)?;
                *own.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
                Ok(None)
            });
            Ok(set.map_or_else(|why| (None, Some(why)), |value| (value, None)))
        })?;
        self.entry_point("thread").call((get, set, stop, place))
    }
}

/// No value, and the reason.
fn failure_pair() -> (Option<Value>, Option<String>) {
    (None, Some("the thread has ended".to_owned()))
}

/// A value, or `nil` and the error, the form that the prelude expects.
fn result_pair<T>(outcome: Result<T, String>) -> (Option<T>, Option<String>) {
    match outcome {
        Ok(value) => (Some(value), None),
        Err(why) => (None, Some(why)),
    }
}

fn with_address<T>(address: &str, work: impl FnOnce(SocketAddr) -> Result<T, String>) -> Result<T, String> {
    address.parse().map_err(|_| format!("`{address}` is not an address")).and_then(work)
}
