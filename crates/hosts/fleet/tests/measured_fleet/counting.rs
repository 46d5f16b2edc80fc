//! A test kind that sends nothing, and agents that can run it.

use std::{os::unix::net::UnixStream, thread};

use fathom_engine::{CounterFeed, EndCondition, Error, Observer, Test, TestKind, TrialContext, WorkerPool};
use fathom_fleet::{
    AgentStream, Assignment, Disconnected, Fleet, Liveness, Opening, TestRoles, TrialCallbacks, TrialOutcome,
    TrialPlan, agent,
};
use fathom_model::{
    Endpoints, Environment, HostRecord, Layer, Metric, OptionDoc, Phases, Record, Role, Settings, Side, ValueKind,
    record::CounterChanges, units::Nanos,
};
use fathom_sys::{clock, policy::Policy};

struct CountKind;

pub(crate) static KINDS: &[&dyn TestKind] = &[&CountKind];

impl TestKind for CountKind {
    fn name(&self) -> &'static str {
        "count"
    }
    fn about(&self) -> &'static str {
        "counts steps of a millisecond"
    }
    fn layer(&self) -> Layer {
        Layer::Tcp
    }
    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }
    fn title(&self, _settings: &Settings) -> String {
        "count".to_owned()
    }
    fn options(&self) -> &'static [OptionDoc] {
        &[
            OptionDoc { name: "fault", value: ValueKind::Text, default: None, help: "what goes wrong" },
            OptionDoc { name: "target", value: ValueKind::Text, default: None, help: "where to" },
        ]
    }
    fn metrics(&self) -> &'static [Metric] {
        &[]
    }
    fn prepare(&self, role: &Role, _: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Initiator && !role.peer.contains_key("address") {
            return Err(Error::Endpoint { kind: "count", what: "address" });
        }
        Ok(Box::new(CountTest { side: role.side, fault: role.settings.text("fault") }))
    }
}

struct CountTest {
    side: Side,
    fault: Option<String>,
}

impl Test for CountTest {
    fn endpoints(&self) -> Endpoints {
        let address = ("address".to_owned(), "198.18.0.2:7".to_owned());
        if self.side == Side::Responder { [address].into() } else { Endpoints::new() }
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        assert_ne!(self.fault.as_deref(), Some("panic"), "told to");
        let pool =
            WorkerPool { states: vec![()], counters: &["steps"], cores: &[], until: EndCondition::from(self.side) };
        let results = pool.run(context, &mut (), |worker, ()| {
            while !worker.is_over() {
                worker.add(0, 1);
                clock::sleep_until(clock::now() + Nanos::from_millis(1));
            }
            Ok(())
        })?;
        Ok(results.record(self.side))
    }
}

/// Records when it was called.
#[derive(Default)]
struct FakeObserver(HostRecord);

impl Observer for FakeObserver {
    fn environment(&mut self) -> Environment {
        let mut environment = Environment::default();
        environment.note("kernel", "release", "6.18");
        environment
    }
    fn sample(&mut self, now: Nanos) {
        self.0.at_ns.push(now);
    }
    fn finish(&mut self) -> (HostRecord, Vec<String>) {
        (std::mem::take(&mut self.0), vec!["the driver tells no queues".to_owned()])
    }
}

/// A host with one counter, which grows by one with each reading; the tenth reading fails.
#[derive(Default)]
struct FakeFeed(u64);

impl CounterFeed for FakeFeed {
    fn changes(&mut self, now: Nanos) -> CounterChanges {
        self.0 += 1;
        assert!(self.0 < 10, "told to");
        let keys = if self.0 == 1 { vec![("readings".to_owned(), String::new())] } else { Vec::new() };
        CounterChanges {
            at_ns: now,
            keys,
            values: vec![(0, Some(self.0))],
            losses: Vec::new(),
            is_carried: false,
            beside: None,
        }
    }
}

pub(crate) fn agent_config(policy: Policy) -> agent::AgentConfig {
    agent::AgentConfig {
        kinds: KINDS,
        observer: || Box::<FakeObserver>::default(),
        counters: || Box::<FakeFeed>::default(),
        policy,
        trial_max: agent::LOCAL_TRIAL_MAX,
        tool: "fathom 0.1.0".to_owned(),
        liveness: Liveness::Heartbeats,
        role_log: None,
        merge: |records| records.first().map(|(record, _)| record.clone()),
        leading: agent::Leading::Allowed,
    }
}

/// Serves an agent on a stream until it ends.
pub(crate) fn serve(stream: UnixStream, policy: Policy) -> Result<(), Disconnected> {
    agent::serve(stream.try_clone().unwrap(), stream, agent_config(policy))
}

/// An agent in a thread of this process.
pub(crate) fn agent_in_thread(policy: Policy) -> AgentStream {
    let (near, far) = UnixStream::pair().unwrap();
    thread::spawn(|| serve(far, policy));
    AgentStream {
        stream: near,
        reached: "a thread".to_owned(),
        process: None,
        liveness: Liveness::Heartbeats,
        opening: Opening::Frame,
    }
}

pub(crate) fn fleet(hosts: &[&str]) -> Fleet {
    let mut fleet = Fleet::new("fathom 0.1.0");
    for host in hosts {
        fleet.connect(host, agent_in_thread(Policy::anything())).unwrap();
    }
    fleet
}

pub(crate) fn role(side: Side, measure: Nanos) -> Role {
    Role {
        test: "counting".to_owned(),
        kind: "count".to_owned(),
        side,
        settings: Settings::default(),
        phases: Phases {
            warmup_max_ns: Nanos::from_millis(100),
            is_warmup_whole: false,
            measure_ns: measure,
            interval_ns: Nanos::from_millis(20),
        },
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    }
}

pub(crate) fn part(host: &str, side: Side, measure: Nanos) -> Assignment {
    Assignment { host: host.to_owned(), role: role(side, measure) }
}

pub(crate) fn cast(from: &str, to: &str, measure: Nanos) -> TestRoles {
    TestRoles {
        translated: None,
        initiators: vec![part(from, Side::Initiator, measure)],
        responder: Some(part(to, Side::Responder, measure)),
    }
}

pub(crate) fn plan(from: &str, to: &str, measure: Nanos) -> TrialPlan {
    TrialPlan {
        round: 3,
        tests: vec![cast(from, to, measure)],
        observers: Vec::new(),
        on_loss: fathom_model::OnLoss::Fail,
        spared: std::collections::BTreeSet::new(),
        unwatched: std::collections::BTreeSet::new(),
    }
}

/// Runs a trial without callbacks.
pub(crate) fn play(fleet: &mut Fleet, plan: &TrialPlan) -> TrialOutcome {
    fleet.run_trial(plan, &mut TrialCallbacks { live: &mut |_, _, _, _| {}, is_stopped: &|| false, on_start: &|_| {} })
}
