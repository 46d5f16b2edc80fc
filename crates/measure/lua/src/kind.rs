//! The kind `app_lua`.

use std::sync::{Mutex, PoisonError};

use fathom_engine::{Consent, Error, NamedTarget, Test, TestKind, TrialContext};
use fathom_http::users::{OPTIONS, UserArrivals, VirtualUsers, WorkerShare, concat_options};
use fathom_model::{
    Endpoints, Failure, Histogram, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, ValueKind,
    units::{Nanos, counted},
};
use fathom_sys::policy::Policy;

use super::{
    ALLOW, BATCH_TIME, facts,
    fault::ScriptFaultCounts,
    metrics,
    output::OutputPart,
    script,
    states::ScriptStates,
    users::{LuaResults, LuaThread, LuaUsers},
};

/// Users that follow a script of wrk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppLua;

const NAME: &str = "app_lua";
/// The key under which the responder reports its address.
const ADDRESS: &str = "address";
/// The same as for the other kinds of requests.
const TIMEOUT: Nanos = Nanos::from_secs(5);

const OWN: [OptionDoc; 8] = [
    OptionDoc { name: "script", value: ValueKind::File, default: None, help: "the script, in Lua as for wrk" },
    OptionDoc {
        name: "args",
        value: ValueKind::Text,
        default: None,
        help: "words for the script's init, as a shell reads them",
    },
    OptionDoc {
        name: "connections",
        value: ValueKind::Count(1, 100_000),
        default: Some("10"),
        help: "number of connections kept busy, shared by the threads",
    },
    OptionDoc {
        name: "header",
        value: ValueKind::Fields,
        default: None,
        help: "an initial header field of the script, `Name: value`; repeatable",
    },
    OptionDoc {
        name: ALLOW,
        value: ValueKind::Destination,
        default: None,
        help: "addresses and networks that the script may use in addition to the URL",
    },
    OptionDoc {
        name: "script-memory",
        value: ValueKind::Size,
        // Scripts that hold their data stay well below it, and a state per core fits in memory.
        default: Some("1GiB"),
        help: "memory limit of each Lua state",
    },
    OptionDoc {
        name: "script-patience",
        value: ValueKind::Span,
        default: Some("10s"),
        help: "time limit for one call of a script function; the process ends after it",
    },
    OptionDoc {
        name: "lenient",
        value: ValueKind::Flag,
        default: None,
        help: "if the script does not load, continue without it, as wrk does",
    },
];

const ALL: [OptionDoc; OWN.len() + OPTIONS.len() + 1] =
    concat_options(&[&OWN, &OPTIONS, &[fathom_http::responder::PORT]]);

impl TestKind for AppLua {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "HTTP/1.1 requests of a script for wrk, in a closed loop"
    }

    fn layer(&self) -> Layer {
        Layer::Http
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        // A script chooses among these while it runs, so all of them are targets.
        let chosen = settings.text(ALLOW).unwrap_or_default();
        let networks = chosen.split([',', ' ', '\n']).filter(|word| !word.is_empty());
        let network = |word: &str| NamedTarget { host: word.to_owned(), port: None, consent: Consent::WholeNetwork };
        Ok(networks.map(network).chain(fathom_http::target::destinations(settings)?).collect())
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text("url").is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        let connections = settings.count("connections").unwrap_or(1);
        let path = settings.text("script").unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        format!("{file}, {}", counted(connections, "connection"))
    }

    fn options(&self) -> &'static [OptionDoc] {
        &ALL
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::ALL
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            return fathom_http::HttpClosed.prepare(role, policy);
        }
        if role.settings.text("script").is_none() {
            return Err(Error::Unsupported { what: format!("{NAME} needs the option `script`"), hint: None });
        }
        let mut role = role.clone();
        if role.settings.text("url").is_none() {
            let address = role.peer.get(ADDRESS).ok_or(Error::Endpoint { kind: NAME, what: ADDRESS })?;
            role.settings.set("url", format!("http://{address}/"));
        }
        Ok(Box::new(LuaTest::prepare(&role, policy)?))
    }
}

/// A prepared script and its connections.
#[derive(Debug)]
struct LuaTest {
    states: ScriptStates,
    threads: Mutex<Vec<Option<LuaThread>>>,
    virtual_users: VirtualUsers,
    timeout: Nanos,
}

impl LuaTest {
    fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let settings = &role.settings;
        let n_connections = settings.count("connections").unwrap_or(10);
        let n_cores = u64::try_from(role.cores.len().max(1)).unwrap_or(1);
        let n_threads = settings.count("threads").unwrap_or(n_cores).min(n_connections);
        let script = script::LuaScript::of(settings, policy)?;
        let (world, threads) = ScriptStates::prepare(script, usize::try_from(n_threads).unwrap_or(1))?;
        let mut role = role.clone();
        role.settings.set("threads", n_threads.to_string());
        world.set_target_urls(&mut role.settings);
        let crowd = VirtualUsers::prepare(
            NAME,
            &role,
            policy,
            UserArrivals::Population { n: n_connections, ramp_up: Nanos::ZERO },
        )?;
        assert_eq!(crowd.n_workers(), threads.len(), "each thread of a script is a worker");
        let threads = Mutex::new(threads.into_iter().map(Some).collect());
        Ok(Self { states: world, threads, virtual_users: crowd, timeout: settings.span("timeout").unwrap_or(TIMEOUT) })
    }

    /// The users of a worker, which take over its thread.
    fn users(&self, row: &WorkerShare) -> LuaUsers {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = threads[row.idx].take().expect("each worker makes its users once");
        LuaUsers::new(thread, self.states.features, self.timeout, row.n_slots)
    }
}

impl Test for LuaTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let (mut record, outcomes) = self.virtual_users.run(context, |row| Ok(self.users(row)))?;
        let mut batches = Histogram::new();
        // The states of the threads are kept until `done` has read them.
        let (mut faults, mut states) = (ScriptFaultCounts::default(), Vec::new());
        for LuaResults { state, faults: of_thread, batches: sent_together } in outcomes {
            batches.merge(&sent_together);
            faults.merge(of_thread);
            states.push(state);
        }
        faults.extend(self.states.call_done(&record, &batches));
        drop(states);
        self.record_output(&mut record, &faults, batches);
        Ok(record)
    }
}

impl LuaTest {
    /// Records the output and the errors of the script.
    fn record_output(&self, record: &mut Record, faults: &ScriptFaultCounts, batches: Histogram) {
        let parts = [
            (facts::BEFORE, OutputPart::Before),
            (facts::DURING, OutputPart::During),
            (facts::AFTER, OutputPart::After),
            (facts::ERRORS, OutputPart::Errors),
        ];
        let said = parts.map(|(name, part)| (name, self.states.output.text(part)));
        let complaints = (facts::COMPLAINTS, self.states.load_errors.join("\n"));
        let code = self.states.output.exit_code().map_or_else(String::new, |code| code.to_string());
        for (name, text) in
            said.into_iter().chain([complaints, (facts::EXIT_CODE, code)]).filter(|(_, text)| !text.is_empty())
        {
            record.facts.insert(name.to_owned(), text);
        }
        if self.states.features.depth > 1 {
            record.distributions.insert(BATCH_TIME.to_owned(), batches);
        }
        let errors: Vec<(Failure, u64)> = faults.errors().collect();
        let n_errors: u64 = errors.iter().map(|(_, n)| n).sum();
        if let Some((first, _)) = errors.iter().max_by_key(|(_, n)| n) {
            let times = if n_errors == 1 { "time" } else { "times" };
            let text = format!("the script failed {n_errors} {times} and continued; most often: {first}");
            record.notes.push(Note::new("script-errors", text));
        }
        record.errors.extend(errors);
    }
}
