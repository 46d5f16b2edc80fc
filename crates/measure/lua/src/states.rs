//! A script before and after the run: its states, created in the order of wrk, and the call of `done`.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use fathom_engine::Error;
use fathom_http::names::WORKER_RATE;
use fathom_model::{Histogram, Record, Settings, names::distribution, units::Nanos};
use mlua::{Function, Table, Value};

use super::{
    fault::ScriptFault,
    heartbeat::{Callback, StateOwner, Watchdog},
    output::{OutputPart, ScriptOutput},
    request_count,
    script::LuaScript,
    state::{LuaState, ThreadFacts},
    statistics::WrkStatistics,
    summary,
    users::{LuaThread, ScriptFeatures},
};

/// The most characters of an invalid request that a message shows.
const SHOWN_MAX: usize = 80;
const NANOS_PER_MICRO: u64 = 1000;

/// All states of a trial.
#[derive(Debug)]
pub(super) struct ScriptStates {
    pub(super) script: Arc<LuaScript>,
    pub(super) main: LuaState,
    pub(super) output: ScriptOutput,
    pub(super) features: ScriptFeatures,
    /// The errors of a script that was skipped, each once.
    pub(super) load_errors: Vec<String>,
    /// The destinations of connections, if the script has chosen other addresses than the target's.
    pub(super) addresses: Vec<SocketAddr>,
    _watchdog: Watchdog,
}

/// Ends a process whose script does not return.
fn exit_when_stuck(path: &str, patience: Nanos) -> impl Fn(StateOwner, Callback) + Send + use<> {
    let path = path.to_owned();
    move |owner, callback| {
        let bound = format!("{patience}, the most that `script-patience` allows");
        fathom_engine::abandon(&format!("the script {path} hangs: {callback} in {owner} has not returned for {bound}"));
    }
}

fn refused(fault: &ScriptFault) -> Error {
    Error::Unsupported { what: format!("the script does not start: {fault}"), hint: None }
}

impl ScriptStates {
    /// Loads the script into all states and sets it up: everything before the first request.
    ///
    /// # Errors
    /// The first error of the script.
    pub(super) fn prepare(script: LuaScript, n_threads: usize) -> Result<(Self, Vec<LuaThread>), Error> {
        let (script, output) = (Arc::new(script), ScriptOutput::default());
        let main = LuaState::new(&script, StateOwner::Main, &output)?;
        let states = (1..=n_threads).map(|number| LuaState::new(&script, StateOwner::Thread(number), &output));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let vitals = std::iter::once(&main).chain(&states).map(|state| Arc::clone(&state.heartbeat)).collect();
        let watchdog =
            Watchdog::start(vitals, script.callback_timeout, exit_when_stuck(&script.path, script.callback_timeout))?;
        let findings = ScriptFeatures { is_dynamic: false, has_delay: false, reads_answers: false, depth: 1 };
        let (complaints, addresses) = (Vec::new(), Vec::new());
        let mut world =
            Self { script, main, output, features: findings, load_errors: complaints, addresses, _watchdog: watchdog };
        let threads = world.set_up(states)?;
        world.output.begin_part(OutputPart::During);
        Ok((world, threads))
    }

    fn set_up(&mut self, states: Vec<LuaState>) -> Result<Vec<LuaThread>, Error> {
        load(&self.main, &self.output, &mut self.load_errors)?;
        self.resolve()?;
        let mut threads = Vec::new();
        for state in states {
            load(&state, &self.output, &mut self.load_errors)?;
            let facts = Arc::new(ThreadFacts::default());
            self.init_thread(&state, &facts).map_err(|fault| refused(&fault))?;
            let fixed = if threads.is_empty() { self.probe_script(&state)? } else { self.fixed(&state)? };
            threads.push(LuaThread { state, facts, fixed, server: 0 });
        }
        self.assign_addresses(&mut threads);
        for thread in &threads {
            // A thread that has not begun cannot be stopped, as in wrk.
            thread.facts.stop.store(false, Ordering::Relaxed);
        }
        Ok(threads)
    }

    fn resolve(&self) -> Result<(), Error> {
        if !self.script.is_resolved_here {
            let wrk = self.main.lua.globals().get::<Table>("wrk");
            let none = wrk.and_then(|wrk| wrk.set("addrs", self.main.lua.create_table()?));
            return none.map_err(|error| refused(&self.main.fault(Callback::Load, &error)));
        }
        if self.main.resolve().map_err(|fault| refused(&fault))? == 0 {
            let (host, service) = (&self.script.target.host, self.script.service());
            return Err(Error::Unsupported { what: format!("{host}:{service} takes no connection"), hint: None });
        }
        Ok(())
    }

    /// Makes a thread known to both states, and calls `setup` in one and `init` in the other.
    fn init_thread(&self, state: &LuaState, facts: &Arc<ThreadFacts>) -> Result<(), ScriptFault> {
        let own = || {
            let object = state.thread_object(&state.lua, facts)?;
            state.lua.globals().get::<Table>("wrk")?.set("thread", object)
        };
        own().map_err(|error| state.fault(Callback::Load, &error))?;
        let object = self.main.thread_object(&state.lua, facts);
        let object = object.map_err(|error| self.main.fault(Callback::Setup, &error))?;
        self.main.call(Callback::Setup, "setup", object)?;
        let args = || {
            let args = state.lua.create_table()?;
            for (i, word) in self.script.args.iter().enumerate() {
                args.raw_set(i, word.as_str())?;
            }
            Ok(Value::Table(args))
        };
        let args = args().map_err(|error| state.fault(Callback::Init, &error))?;
        state.call(Callback::Init, "init", args)
    }

    /// Asks the first thread for a trial request and determines the script's features. Returns the request if it is always the same.
    fn probe_script(&mut self, state: &LuaState) -> Result<Vec<u8>, Error> {
        let is_dynamic = state.has("request");
        let request = || {
            let (bytes, other): (Value, Value) = state.entry_point("request").call(0)?;
            Ok(if bytes.is_nil() { other } else { bytes })
        };
        let bytes = if is_dynamic { self.trial_request(state, request) } else { self.fixed(state) }?;
        let depth = request_count::count(&bytes).map_err(|wrong| {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]).into_owned();
            let message = format!("{}: {wrong}", self.script.path);
            let what = refused(&ScriptFault::new(message, Callback::Request, state.heartbeat.owner)).to_string();
            Error::Unsupported { what, hint: Some(format!("request() returned {shown:?}")) }
        })?;
        let (has_delay, wants_answers) = (state.has("delay"), state.has("response"));
        self.features = ScriptFeatures { is_dynamic, has_delay, reads_answers: wants_answers, depth };
        Ok(if is_dynamic { Vec::new() } else { bytes })
    }

    /// The request that a thread sends if the script makes none.
    fn fixed(&self, state: &LuaState) -> Result<Vec<u8>, Error> {
        if self.features.is_dynamic {
            return Ok(Vec::new());
        }
        let request = || state.lua.globals().get::<Table>("wrk")?.get::<Function>("request")?.call(());
        self.trial_request(state, request)
    }

    fn trial_request(&self, state: &LuaState, request: impl FnOnce() -> mlua::Result<Value>) -> Result<Vec<u8>, Error> {
        let value = state.heartbeat.within(Callback::Request, request);
        match value.map_err(|error| refused(&state.fault(Callback::Request, &error)))? {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
            Value::Integer(number) => Ok(number.to_string().into_bytes()),
            other => {
                let message = format!("{}: returned a {} value, not a request", self.script.path, other.type_name());
                Err(refused(&ScriptFault::new(message, Callback::Request, state.heartbeat.owner)))
            }
        }
    }

    /// Assigns each thread its server: that of the URL, unless the script has chosen addresses.
    fn assign_addresses(&mut self, threads: &mut [LuaThread]) {
        let chosen: Vec<Option<SocketAddr>> = threads.iter().map(|thread| thread.facts.address()).collect();
        let usual = self.main.first_address();
        if chosen.iter().all(|address| *address == usual) {
            return;
        }
        for (thread, address) in threads.iter_mut().zip(chosen) {
            let Some(address) = address.or(usual) else { continue };
            let known = self.addresses.iter().position(|known| *known == address);
            let place = known.unwrap_or_else(|| {
                self.addresses.push(address);
                self.addresses.len() - 1
            });
            thread.server = u16::try_from(place).unwrap_or(0);
        }
    }

    /// Writes the addresses chosen by the script into the settings, each as a separate server.
    pub(super) fn set_target_urls(&self, settings: &mut Settings) {
        if self.addresses.is_empty() {
            return;
        }
        let scheme = self.script.target.scheme.name();
        let urls: Vec<String> = self.addresses.iter().map(|address| format!("{scheme}://{address}/")).collect();
        settings.set("url", urls.join("\n"));
        if self.script.is_secure() && settings.text("sni").is_none() {
            settings.set("sni", self.script.target.host.clone());
        }
    }

    /// Calls `done` with the results of all threads together, if the script has one.
    pub(super) fn call_done(&self, record: &Record, batches: &Histogram) -> Option<ScriptFault> {
        self.output.begin_part(OutputPart::After);
        if !self.main.has("done") {
            return None;
        }
        let call = || {
            let lua = &self.main.lua;
            let latency = record.distributions.get(distribution::SERVICE_TIME);
            let latency = if self.features.depth > 1 { Some(batches) } else { latency };
            let rates = record.distributions.get(WORKER_RATE);
            let none = Histogram::new();
            let object = |histogram: Option<&Histogram>, per_unit| {
                let statistics = WrkStatistics::of(histogram.unwrap_or(&none), per_unit);
                let ask =
                    lua.create_function(move |_, (what, number): (String, f64)| Ok(statistics.field(&what, number)))?;
                self.main.entry_point("statistics").call::<Value>(ask)
            };
            let (latency, rates) = (object(latency, NANOS_PER_MICRO)?, object(rates, 1)?);
            let done: Function = lua.globals().get("done")?;
            done.call::<()>((summary::table(lua, record)?, latency, rates))
        };
        let called: mlua::Result<()> = self.main.heartbeat.within(Callback::Done, call);
        called.err().map(|error| self.main.fault(Callback::Done, &error))
    }
}

/// Runs the file in a state. If the settings allow it, continues without a script that does not load, unless the script asked to exit.
fn load(state: &LuaState, output: &ScriptOutput, complaints: &mut Vec<String>) -> Result<(), Error> {
    let Err(fault) = state.load() else { return Ok(()) };
    if !state.script.is_lenient || output.exit_code().is_some() {
        return Err(refused(&fault));
    }
    complaints.push(format!("{}: {}", state.script.path, fault.message));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use fathom_http::users::{BatchPosition, MeasurePhase, UserAction, UserAnswer, UserSlot, Users};

    use super::*;
    use crate::users::LuaUsers;

    /// A script with a target that accepts connections.
    struct Stage {
        listener: TcpListener,
        file: tempfile::NamedTempFile,
    }

    impl Stage {
        fn new(text: &str) -> Self {
            let file = tempfile::Builder::new().suffix(".lua").tempfile().unwrap();
            std::fs::write(file.path(), text).unwrap();
            Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), file }
        }

        fn settings(&self) -> Settings {
            let url = format!("http://{}/a?b", self.listener.local_addr().unwrap());
            Settings::default()
                .with("url", url)
                .with("script", self.file.path().to_str().unwrap())
                .with("script-memory", "64MiB")
        }

        fn make(&self, n_threads: usize) -> Result<(ScriptStates, Vec<LuaThread>), Error> {
            ScriptStates::prepare(
                LuaScript::of(&self.settings(), &fathom_sys::policy::Policy::anything()).unwrap(),
                n_threads,
            )
        }

        fn refused(&self, settings: &Settings) -> String {
            let error =
                ScriptStates::prepare(LuaScript::of(settings, &fathom_sys::policy::Policy::anything()).unwrap(), 1)
                    .unwrap_err()
                    .to_string();
            error.replace(self.file.path().to_str().unwrap(), "x.lua")
        }
    }

    fn before(text: &str) -> String {
        Stage::new(text).make(2).unwrap().0.output.text(OutputPart::Before)
    }

    fn users(text: &str) -> (Stage, ScriptStates, LuaUsers) {
        let place = Stage::new(text);
        let (world, mut threads) = place.make(1).unwrap();
        let mut users = LuaUsers::new(threads.remove(0), world.features, Nanos::from_secs(1), 4);
        users.on_phase(MeasurePhase::Measured, Nanos::ZERO);
        (place, world, users)
    }

    fn asked(users: &mut LuaUsers, slot: u32) -> String {
        match users.next_action(UserSlot(slot), Nanos::ZERO) {
            UserAction::Send(ask) => String::from_utf8(ask.bytes.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn answer(users: &mut LuaUsers, slot: u32, (head, body): (&str, &str)) {
        let message = format!("{head}\r\n\r\n{body}");
        let answer = UserAnswer {
            status: head[9..12].parse().unwrap(),
            message: message.as_bytes(),
            body_bytes: body.len() as u64,
            sent_at: Nanos(5_000),
            first_byte_at: Nanos(9_000),
            ended_at: Nanos(12_000),
            position: BatchPosition::Last,
            connection_number: 1,
        };
        users.answered(UserSlot(slot), &answer);
    }

    fn faults(users: LuaUsers) -> Vec<(String, u64)> {
        let path = users.finish(Nanos::ZERO);
        let script = path.state.script.path.clone();
        path.faults.errors().map(|(failure, n)| (failure.to_string().replace(&script, "x.lua"), n)).collect()
    }

    #[test]
    fn states_are_made_in_wrk_s_order_and_share_nothing_but_what_is_handed_over() {
        let said = before(
            r#"
            n = (n or 0) + 1
            print("file", wrk.thread ~= nil)
            function setup(thread) n = n + 1; thread:set("mine", {n, deep = {n}}); print("setup", n, thread:get("n")) end
            function init(args) print("init", n, mine[1], mine.deep[1], #args, wrk.addrs) end
            "#,
        );
        let expected = "file\tfalse\nfile\tfalse\nsetup\t2\t1\ninit\t1\t2\t2\t0\tnil\n\
                        file\tfalse\nsetup\t3\t1\ninit\t1\t3\t3\t0\tnil\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn a_request_has_all_its_fields_however_many_they_are() {
        let text = "n = 0 function request() n = n + 1 local all = {} for i = 1, n do all['f' .. i] = i end \
                    return wrk.format(nil, nil, all, n % 2 == 0 and 'body' or nil) end";
        let (_stage, _world, mut users) = users(text);
        // One trial request was made.
        for n in 2..40 {
            let request = asked(&mut users, 0);
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            let mut fields: Vec<&str> = head.lines().skip(1).collect();
            fields.sort_unstable();
            let has_body = n % 2 == 0;
            let mut expected: Vec<String> = (1..=n).map(|i| format!("f{i}: {i}")).collect();
            expected.extend(has_body.then(|| "Content-Length: 4".to_owned()));
            expected.extend(fields.iter().find(|field| field.starts_with("Host: 127.0.0.1:")).map(ToString::to_string));
            expected.sort_unstable();
            assert_eq!(
                (fields, body),
                (expected.iter().map(String::as_str).collect(), if has_body { "body" } else { "" })
            );
            assert_eq!(expected.len(), n + 1 + usize::from(has_body));
        }
    }

    #[test]
    fn a_script_that_does_not_start_is_refused_with_its_line() {
        let cases = [
            (
                "x = = 1",
                "the script does not start: x.lua:1: unexpected symbol near '=' (the script itself, the main state)",
            ),
            (
                "\n\nos.exit(7)",
                "the script does not start: x.lua:3: os.exit(7) cannot end the run: use wrk.thread:stop() to end a thread (the script itself, the main state)",
            ),
            ("\nerror('boom')", "the script does not start: x.lua:2: boom (the script itself, the main state)"),
            (
                "function setup() error('boom') end",
                "the script does not start: x.lua:1: boom (setup(), the main state)",
            ),
            (
                "function init() local x; x() end",
                "the script does not start: x.lua:1: attempt to call local 'x' (a nil value) (init(), thread 1)",
            ),
            (
                "function request() return nil end",
                "the script does not start: x.lua: returned a nil value, not a request (request(), thread 1)",
            ),
            (
                "function request() return 'GET' end",
                "the script does not start: x.lua: incomplete request at 1:1 (request(), thread 1)",
            ),
            (
                "wrk.thread:stop()",
                "the script does not start: x.lua:1: attempt to index field 'thread' (a nil value) (the script itself, the main state)",
            ),
        ];
        for (text, said) in cases {
            let place = Stage::new(text);
            assert_eq!(place.refused(&place.settings()), said);
        }
    }

    #[test]
    fn memory_that_runs_out_is_an_error_of_the_script() {
        let place = Stage::new("local t = {} for i = 1, 1e9 do t[i] = {i} end");
        let said = place.refused(&place.settings().with("script-memory", "32MiB"));
        assert!(
            said.starts_with("the script does not start: x.lua: not enough memory: a state may have 32 MiB"),
            "{said}"
        );
        let (_place, _world, mut users) = users(
            "local n, s = 0, ('x'):rep(1000)
            function request() n = n + 1; if n == 2 then local t = {} while true do s = s .. s; t[#t + 1] = s end end return wrk.request() end",
        );
        assert!(matches!(users.next_action(UserSlot(0), Nanos::ZERO), UserAction::Sleep { .. }));
        assert!(asked(&mut users, 0).starts_with("GET /a?b HTTP/1.1\r\n"), "the next one has room again");
        let faults = faults(users);
        assert!(
            faults[0].0.starts_with("script: x.lua: not enough memory")
                && faults[0].0.ends_with("(request(), thread 1)"),
            "{faults:?}"
        );
    }

    #[test]
    fn a_script_without_request_sends_what_init_has_shaped_and_asks_lua_for_nothing() {
        let (_place, world, mut users) = users(
            r#"wrk.method = "POST"; wrk.body = "a=1"; wrk.headers["X-A"] = "b"; function init() wrk.path = "/form" end"#,
        );
        assert_eq!(
            world.features,
            ScriptFeatures { is_dynamic: false, has_delay: false, reads_answers: false, depth: 1 }
        );
        let text = asked(&mut users, 0);
        assert!(text.starts_with("POST /form HTTP/1.1\r\n") && text.ends_with("\r\n\r\na=1"), "{text}");
        for line in ["X-A: b\r\n", "Content-Length: 3\r\n", "Host: 127.0.0.1:"] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_token_of_an_answer_goes_into_the_requests_after_it() {
        let (_place, world, mut users) = users(
            r#"local path, n = "/auth", 0
            function request() n = n + 1; return wrk.format("GET", path .. n) end
            function response(status, headers, body)
                if status == 200 then path = "/next"; wrk.headers["X-Token"] = headers["X-Token"] .. body; print(headers["Content-Length"]) end
            end"#,
        );
        assert!(asked(&mut users, 3).starts_with("GET /auth2 "), "the first was asked for on trial");
        answer(&mut users, 3, ("HTTP/1.1 200 OK\r\nX-Token:  abc\r\nContent-Length: 3", "def"));
        let text = asked(&mut users, 3);
        assert!(text.starts_with("GET /next3 ") && text.contains("\r\nX-Token: abcdef\r\n"), "{text}");
        assert_eq!(world.output.text(OutputPart::During), "3\n");
        assert_eq!(faults(users), []);
    }

    #[test]
    fn the_fourth_argument_tells_connection_tag_and_times() {
        let (_place, world, mut users) = users(
            r#"local n = 0
            function request() n = n + 1; return wrk.request(), "tag" .. n end
            function response(status, _, _, of)
                print(status, of.connection, of.tag, of.sent_us, of.first_byte_us, of.latency_us)
            end"#,
        );
        for slot in [0, 2] {
            asked(&mut users, slot);
        }
        for slot in [2, 0] {
            answer(&mut users, slot, ("HTTP/1.1 404 No\r\nA: b", ""));
        }
        assert_eq!(world.output.text(OutputPart::During), "404\t7\ttag3\t5\t4\t7\n404\t5\ttag2\t5\t4\t7\n");
    }

    #[test]
    fn a_response_that_is_replaced_gets_what_the_new_one_looks_at() {
        let (_place, world, mut users) = users(
            r"function response(status)
                print(status)
                response = function(...) print(select('#', ...), (select(2, ...)).A, (select(3, ...))) end
            end",
        );
        for _ in 0..3 {
            answer(&mut users, 0, ("HTTP/1.1 200 OK\r\nA: b", "body"));
        }
        assert_eq!(world.output.text(OutputPart::During), "200\n3\tb\tbody\n3\tb\tbody\n");
    }

    #[test]
    fn what_a_script_gets_wrong_in_the_run_is_counted_and_the_run_goes_on() {
        let (_place, _world, mut users) = users(
            r#"local n, nonsense = 0, {false, "", {}, 4}
            function request() n = n + 1; if n == 1 then return wrk.request() end
                if n < 6 then return nonsense[n - 1] end
                if n < 8 then error("boom") end
                return wrk.request() end
            function delay() return ({[0] = 3.9, "7", -1, "soon", 0/0, nil, 0, 0, 0})[n] end
            function response() local x = nil + 1 end"#,
        );
        let UserAction::Sleep { until } = users.next_action(UserSlot(1), Nanos::ZERO) else { panic!() };
        assert_eq!(until, Nanos::from_millis(7), "the delay is asked for before the first request");
        for _ in 0..6 {
            let turn = users.next_action(UserSlot(1), Nanos::ZERO);
            assert!(matches!(turn, UserAction::Sleep { until: Nanos(10_000_000) }), "{turn:?}");
        }
        assert!(asked(&mut users, 1).starts_with("GET "));
        answer(&mut users, 1, ("HTTP/1.1 200 OK\r\nA: b", ""));
        let faults = faults(users);
        let found = |text: &str| faults.iter().find(|(fault, _)| fault == text).map(|(_, n)| *n);
        for (text, n) in [
            ("script: x.lua: returned a boolean value, not a request (request(), thread 1)", 1),
            ("script: x.lua: returned an empty string, not a request (request(), thread 1)", 1),
            ("script: x.lua: returned a table value, not a request (request(), thread 1)", 1),
            ("script: x.lua:4: boom (request(), thread 1)", 2),
            ("script: x.lua:7: attempt to perform arithmetic on a nil value (response(), thread 1)", 1),
        ] {
            assert_eq!(found(text), Some(n), "{text}: {faults:?}");
        }
    }

    #[test]
    fn a_thread_that_stops_itself_is_over_and_the_others_are_not() {
        let place = Stage::new("function setup(t) t:stop() end function response() wrk.thread:stop() end");
        let (world, threads) = place.make(2).unwrap();
        let made = |thread| LuaUsers::new(thread, world.features, Nanos::from_secs(1), 1);
        let mut users: Vec<LuaUsers> = threads.into_iter().map(made).collect();
        assert!(users.iter().all(|thread| !thread.is_over()), "what has not begun cannot be stopped");
        answer(&mut users[1], 0, ("HTTP/1.1 200 OK\r\nA: b", ""));
        assert_eq!((users[0].is_over(), users[1].is_over()), (false, true));
        assert!(matches!(users[1].next_action(UserSlot(0), Nanos::ZERO), UserAction::Wait), "it sends no more");
    }

    #[test]
    fn threads_go_to_the_addresses_that_setup_gives_them() {
        let place = Stage::new(
            r#"function setup(thread)
                local port = tostring(thread.addr):match(":(%d+)$")
                k = (k or 0) + 1
                if k > 1 then thread.addr = wrk.lookup("127.0.0." .. k, port)[1] end
                print(thread.addr, pcall(function() thread.addr = wrk.lookup("192.0.2.1", port)[1] end))
            end
            function init() print(wrk.thread.addr) end"#,
        );
        let (world, threads) = place.make(3).unwrap();
        let servers: Vec<u16> = threads.iter().map(|thread| thread.server).collect();
        assert_eq!(servers, [0, 1, 2]);
        let port = place.listener.local_addr().unwrap().port();
        let mut settings = place.settings();
        world.set_target_urls(&mut settings);
        let urls = settings.text("url").unwrap();
        assert_eq!(urls, format!("http://127.0.0.1:{port}/\nhttp://127.0.0.2:{port}/\nhttp://127.0.0.3:{port}/"));
        let said = world.output.text(OutputPart::Before);
        assert!(
            said.starts_with(&format!(
                "127.0.0.1:{port}\tfalse\t192.0.2.1:{port} is not a target you have allowed\n127.0.0.1:{port}\n"
            )),
            "{said}"
        );
    }

    #[test]
    fn done_sees_the_whole_and_asks_the_threads() {
        let place = Stage::new(
            r#"local threads = {}
            function setup(thread) threads[#threads + 1] = thread; thread:set("id", #threads) end
            function done(summary, latency, requests)
                io.write(summary.requests, " ", summary.errors.status, " ", latency.max, " ", latency:percentile(50), "\n")
                print(threads[1]:get("id"), threads[2]:get("id"), #requests, latency(1))
                error("late")
            end"#,
        );
        let (world, threads) = place.make(2).unwrap();
        let mut record = fathom_record();
        let mut latency = Histogram::new();
        latency.record_n(1_500_000, 3);
        record.distributions.insert(distribution::SERVICE_TIME.to_owned(), latency);
        record.totals.extend([("requests", 42), ("status_4xx", 2)].map(|(name, n)| (name.to_owned(), n)));
        let fault = world.call_done(&record, &Histogram::new()).unwrap();
        assert!(fault.to_string().ends_with(":6: late (done(), the main state)"), "{fault}");
        assert_eq!(world.output.text(OutputPart::After), "42 2 1500 1500\n1\t2\t0\t1500\t3\n");
        drop(threads);
    }

    fn fathom_record() -> Record {
        serde_json::from_value(serde_json::json!({
            "side": "initiator", "start_ns": 0, "start_late_ns": 0, "measured_ns": [0, 1_000_000_000], "steady": true,
            "complete": true, "cpu_ns": 0, "timeline": {"end_ns": [], "counters": {}}, "totals": {}, "distributions": {},
        }))
        .unwrap()
    }
}
