//! Runs the roles that a controller assigns, and watches the host meanwhile.
//!
//! The main loop only passes messages: every role has its own thread, so a slow or stuck test cannot prevent the agent from receiving a
//! stop request. An agent that hears nothing for 3 s over a network aborts everything and exits; an agent on the controller's machine exits
//! when its stream ends.

mod counter_reader;
mod host_hold;
mod host_sampler;
pub(crate) mod kept_outcomes;
pub(crate) mod observer_role;
mod role;
mod role_log;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
};

pub use kept_outcomes::MergeRecords;
pub use role_log::RoleLog;

use counter_reader::CounterReader;
use host_hold::HostHold;
use kept_outcomes::KeptOutcomes;

use fathom_engine::{CounterFeed, Observer, StopFlag, TestKind};
use fathom_model::{PeerClock, Role, units::Nanos};
use fathom_sys::{clock, netlink::Netlink, policy::Policy};

use crate::{
    AgentFailure, Disconnected, ErrorClass,
    connection::{self, PeerActivity, ReaderEvent, SendQueue, SuspendDetector},
    head::{Head, HeadOrder},
    launcher::{Liveness, Opening},
    protocol::{FromAgent, Hello, HostFacts, Member, RoleId, ToAgent},
    threads,
};

/// The time that tests get to end after an abort: they check their stop flag every 20 ms.
const ABORT_TIMEOUT: Nanos = Nanos::from_secs(2);
/// The maximum number of simultaneous roles: the tested host of a star has one for each companion, and each role has a few threads.
const ROLES_MAX: usize = 4096;
/// The same for the controllers of a served host, whose owner did not choose their tests.
const GUEST_ROLES_MAX: usize = 512;
/// The interval for checking whether the controller has gone silent.
const LIVENESS_CHECK_EVERY: Nanos = Nanos::from_millis(200);

/// The maximum trial length for an agent started by the controller itself: a day.
pub const LOCAL_TRIAL_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// The configuration of an agent, supplied by the binary.
#[derive(Clone)]
pub struct AgentConfig {
    /// The test kinds that it can run.
    pub kinds: &'static [&'static dyn TestKind],
    /// Creates the observer of the host.
    pub observer: fn() -> Box<dyn Observer>,
    /// Creates the reader of the host's counters for a controller that watches it.
    pub counters: fn() -> Box<dyn CounterFeed>,
    /// The resources that roles may use.
    pub policy: Policy,
    /// The maximum trial length, including the warm-up.
    pub trial_max: Nanos,
    /// The program, such as `fathom 0.1.0`.
    pub tool: String,
    /// How the disconnect of its controller is detected.
    pub liveness: Liveness,
    /// The log shared with agents of other controllers on this host, if it serves several.
    pub role_log: Option<RoleLog>,
    /// Merges the records of many roles to one.
    pub merge: MergeRecords,
    /// Whether it starts the agents of other hosts for its controller.
    pub leading: Leading,
}

/// Whether an agent may be the head of others, whose agents it starts by any launcher, commands among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leading {
    /// Its controller is the user who started it: by ssh, by a command, or as a child of this program.
    Allowed,
    /// Its controller only has the key of a server, and must not start anything here.
    Refused,
}

enum Event {
    FromReader(Nanos, ReaderEvent<ToAgent>),
    /// A role's thread has sent its last message.
    Ended(RoleId),
}

/// The start time, and the peer's clock.
struct StartTime {
    at: Nanos,
    peer_clock: Option<PeerClock>,
}

/// A role from its preparation to its outcome.
struct RoleHandle {
    /// Sends the start time; dropped if there is no start.
    start: Option<Sender<StartTime>>,
    stop: StopFlag,
}

impl RoleHandle {
    fn abort(&mut self) {
        self.stop.abort();
        self.start = None;
    }
}

struct Agent {
    config: Arc<AgentConfig>,
    send_queue: SendQueue<FromAgent>,
    events: Sender<Event>,
    roles: BTreeMap<RoleId, RoleHandle>,
    /// Started by the first request for counters.
    counters: Option<CounterReader>,
    /// Kept until the agent ends, if its controller wants the host for itself.
    hold: Option<HostHold>,
    /// Its members, if it is the head of a group.
    head: Option<Head>,
    /// The records of its own roles and of those of its members that leave it as one.
    kept: KeptOutcomes,
}

/// Serves one controller to the end; returns when all tests have ended or are given up.
///
/// Threads may be left behind if a test or the stream is stuck; they end with the process, which should exit after this.
///
/// # Errors
/// How the controller was disconnected, if it did not say goodbye.
pub fn serve(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    config: AgentConfig,
) -> Result<(), Disconnected> {
    let (outbox, speaker) = connection::start_writer(output).map_err(Disconnected::Io)?;
    let (events, inbox) = mpsc::channel();
    // Greet before reading anything, so that a controller of another version learns which program it reached.
    let greeting = FromAgent::Hello(Hello {
        tool: config.tool.clone(),
        facts: HostFacts { held_by: holder(&config.policy), ..HostFacts::here() },
        run: None,
    });
    outbox.send(&greeting).map_err(Disconnected::Protocol)?;
    let pulse = PeerActivity::new(config.liveness, Opening::Frame);
    let heard = events.clone();
    connection::start_reader(input, pulse.clone(), Opening::Frame, move |at, what| {
        drop(heard.send(Event::FromReader(at, what)));
    })
    .map_err(Disconnected::Io)?;

    let mut agent = Agent {
        config: Arc::new(config),
        send_queue: outbox,
        events,
        roles: BTreeMap::new(),
        counters: None,
        hold: None,
        head: None,
        kept: KeptOutcomes::default(),
    };
    let ending = agent.handle_events(&inbox, &pulse);
    agent.abort_all(&inbox);
    // Says goodbye to the members, and waits for the agents among them that are children of this process.
    drop(agent.head.take());
    if ending.is_ok() {
        agent.send(&FromAgent::Bye);
        // Wait until everything is sent before the process exits; a panic of the thread does not matter.
        let _ = speaker.join();
    }
    ending
}

/// As [`serve`], but says nothing before the controller does: one that attaches to a running container misses what was written before.
///
/// # Errors
/// As [`serve`], and if the controller says nothing within `patience`.
pub fn serve_once_called(
    mut input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    config: AgentConfig,
    patience: Nanos,
) -> Result<(), Disconnected> {
    let (calling, called) = mpsc::channel();
    threads::start("first-byte", move || {
        let mut first = [0];
        let outcome = input.read_exact(&mut first).map(|()| io::Cursor::new(first).chain(input));
        // Who waits may have given up.
        drop(calling.send(outcome));
    })
    .map_err(Disconnected::Io)?;
    match called.recv_timeout(patience.as_duration()) {
        Ok(Ok(input)) => serve(input, output, config),
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Disconnected::Closed),
        Ok(Err(error)) => Err(Disconnected::Io(error)),
        Err(_) => Err(Disconnected::StepTimeout("begin to speak")),
    }
}

/// Returns the run that has this host. A guest does not learn whose it is.
fn holder(policy: &Policy) -> Option<String> {
    let holder = host_hold::holder()?;
    Some(if policy.is_for_others() { "another run".to_owned() } else { holder })
}

/// Returns the addresses of the interfaces of this host, as far as the kernel tells them.
fn own_addresses() -> Option<Vec<IpAddr>> {
    let addresses = Netlink::open().and_then(|mut netlink| netlink.addresses()).ok()?;
    Some(addresses.into_iter().map(|(_, address)| address).collect())
}

impl HostFacts {
    /// Collects the facts about this host that need no privilege.
    pub(crate) fn here() -> Self {
        let line = |path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let boot_id = line("/proc/sys/kernel/random/boot_id");
        // A time namespace shifts the monotonic clock for its processes; a kernel without time namespaces has a single clock.
        let namespace = fs::read_link("/proc/self/ns/time").unwrap_or_default();
        Self {
            hostname: line("/proc/sys/kernel/hostname"),
            clock: boot_id.as_ref().map(|boot_id| format!("{boot_id} {}", namespace.display())),
            boot_id,
            cores: thread::available_parallelism().ok().map(std::num::NonZero::get),
            held_by: None,
            addresses: own_addresses(),
        }
    }
}

impl Agent {
    fn handle_events(&mut self, inbox: &Receiver<Event>, pulse: &PeerActivity) -> Result<(), Disconnected> {
        let mut wakefulness = SuspendDetector::new(clock::now(), LIVENESS_CHECK_EVERY);
        while !self.send_queue.is_full() {
            let event = inbox.recv_timeout(LIVENESS_CHECK_EVERY.as_duration());
            let now = clock::now();
            if wakefulness.was_suspended(now, LIVENESS_CHECK_EVERY) {
                pulse.record_activity(now);
            }
            match event {
                Ok(Event::FromReader(_, ReaderEvent::Message(ToAgent::Bye))) => return Ok(()),
                Ok(Event::FromReader(at, ReaderEvent::Message(message))) => self.handle_message(at, message),
                Ok(Event::FromReader(_, ReaderEvent::Disconnected(loss))) => return Err(loss),
                Ok(Event::Ended(role_id)) => drop(self.roles.remove(&role_id)),
                Err(RecvTimeoutError::Timeout) if pulse.has_timed_out(now) => {
                    return Err(Disconnected::HeartbeatTimeout);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the agent holds a sender itself"),
            }
        }
        Err(Disconnected::SendQueueFull)
    }

    fn handle_message(&mut self, at: Nanos, message: ToAgent) {
        match message {
            // A guest must not keep the owner's runs from the host; a served host limits its controllers instead.
            ToAgent::Hello(Hello { run: Some(run), .. }) if !self.config.policy.is_for_others() => self.hold_host(run),
            ToAgent::Hello(_) | ToAgent::Heartbeat | ToAgent::Bye => {}
            ToAgent::Clock { t0 } => self.send(&FromAgent::Clock { t0, t1: at, t2: clock::now() }),
            ToAgent::Environment => self.send_environment(),
            ToAgent::Counters => self.send_counters(),
            ToAgent::Prepare { role_id, role, watch, keep } => self.prepare(role_id, *role, watch, keep),
            ToAgent::Lead { members } => self.lead(members),
            ToAgent::Member { member, message } => self.tell_head(HeadOrder::Member(member, *message)),
            ToAgent::Clocks => self.tell_head(HeadOrder::Clocks),
            ToAgent::Merge { parts } => self.send_merged(parts),
            ToAgent::Start { role_id, at, peer_clock } => {
                if let Some(start) = self.roles.get_mut(&role_id).and_then(|role| role.start.take()) {
                    // The role's thread may have failed; it has then reported that itself.
                    let _ = start.send(StartTime { at, peer_clock });
                }
            }
            ToAgent::Finish { role_id } => {
                if let Some(role) = self.roles.get(&role_id) {
                    role.stop.finish();
                }
            }
            ToAgent::Abort { role_id } => {
                if let Some(role) = self.roles.get_mut(&role_id) {
                    role.abort();
                }
            }
        }
    }

    /// Takes the host for a run. The refusal is sent before the reply to any later request.
    fn hold_host(&mut self, run: String) {
        match HostHold::take(run) {
            Ok(hold) => self.hold = Some(hold),
            Err(failure) => self.send(&FromAgent::Failed { role_id: None, failure }),
        }
    }

    fn send(&self, message: &FromAgent) {
        send_or_report_size(&self.send_queue, message);
    }

    /// Runs the observer in a thread, because some facts take a while.
    fn send_environment(&self) {
        let observer = self.config.observer;
        self.answer_in_thread("describe the host", move || FromAgent::Environment(observer().environment()));
    }

    /// Answers in a separate thread. What the work is, is told if it fails.
    fn answer_in_thread(&self, what: &'static str, work: impl FnOnce() -> FromAgent + Send + 'static) {
        let outbox = self.send_queue.clone();
        let working = threads::start("request", move || {
            let answer = threads::catch_panic(work).unwrap_or_else(|text| {
                let failure = AgentFailure::new(ErrorClass::Failed, format!("cannot {what}: {text}"));
                FromAgent::Failed { role_id: None, failure }
            });
            send_or_report_size(&outbox, &answer);
        });
        if let Err(cause) = working {
            self.send(&FromAgent::Failed { role_id: None, failure: thread_failure(what, &cause) });
        }
    }

    fn send_counters(&mut self) {
        let reader = match self.counters.take() {
            Some(reader) => Ok(reader),
            None => CounterReader::start(self.config.counters, self.send_queue.clone()),
        };
        match reader {
            Ok(reader) => {
                if !reader.read() {
                    let failure = AgentFailure::new(ErrorClass::Failed, "the counters are being read already");
                    self.send(&FromAgent::Failed { role_id: None, failure });
                }
                self.counters = Some(reader);
            }
            Err(cause) => {
                self.send(&FromAgent::Failed { role_id: None, failure: thread_failure("read the counters", &cause) });
            }
        }
    }

    /// Becomes the head of other hosts.
    fn lead(&mut self, members: Vec<Member>) {
        let refusal = match (self.config.leading, &self.head) {
            (Leading::Refused, _) => "a served host does not connect to others for its controller",
            (Leading::Allowed, Some(_)) => "it is the head of other hosts already",
            (Leading::Allowed, None) => {
                match Head::start(members, &self.config.tool, self.kept.clone(), self.send_queue.clone()) {
                    Ok(head) => self.head = Some(head),
                    Err(cause) => {
                        let failure = thread_failure("connect to the hosts behind it", &cause);
                        self.send(&FromAgent::Failed { role_id: None, failure });
                    }
                }
                return;
            }
        };
        let failure = AgentFailure {
            hint: Some("choose a head that ssh or a command starts, or connect to its hosts directly".to_owned()),
            ..AgentFailure::new(ErrorClass::Preflight, refusal)
        };
        self.send(&FromAgent::Failed { role_id: None, failure });
    }

    fn tell_head(&self, order: HeadOrder) {
        if let Some(head) = &self.head {
            head.tell(order);
        } else {
            let failure = AgentFailure::new(ErrorClass::Failed, "it is not the head of other hosts");
            self.send(&FromAgent::Failed { role_id: None, failure });
        }
    }

    /// Merges in a thread, because thousands of distributions take a while.
    fn send_merged(&self, parts: Vec<Vec<RoleId>>) {
        let (kept, merge) = (self.kept.clone(), self.config.merge);
        self.answer_in_thread("merge the records", move || FromAgent::Merged(kept.merge(&parts, merge)));
    }

    fn prepare(&mut self, role_id: RoleId, role: Role, watch: bool, keep: bool) {
        let roles_max = if self.config.policy.is_for_others() { GUEST_ROLES_MAX } else { ROLES_MAX };
        if self.roles.len() >= roles_max || self.roles.contains_key(&role_id) {
            let failure = AgentFailure::new(ErrorClass::Failed, format!("{} roles run already", self.roles.len()));
            return self.send(&FromAgent::Failed { role_id: Some(role_id), failure });
        }
        let (start, started) = mpsc::channel();
        let stop = StopFlag::default();
        self.roles.insert(role_id, RoleHandle { start: Some(start), stop: stop.clone() });
        let kept = keep.then(|| self.kept.clone());
        let part = role::RoleTask { role_id, role, watch, kept, start: started, stop };
        let (config, outbox, events) = (Arc::clone(&self.config), self.send_queue.clone(), self.events.clone());
        let playing = threads::start("role", move || {
            let message = part.run(&config, &outbox);
            send_or_report_size(&outbox, &message);
            // The agent may have ended without waiting.
            let _ = events.send(Event::Ended(role_id));
        });
        if let Err(cause) = playing {
            self.roles.remove(&role_id);
            self.send(&FromAgent::Failed { role_id: Some(role_id), failure: thread_failure("play the role", &cause) });
        }
    }

    /// Stops all roles, and waits briefly for them to end.
    fn abort_all(&mut self, inbox: &Receiver<Event>) {
        self.roles.values_mut().for_each(RoleHandle::abort);
        let deadline = clock::now() + ABORT_TIMEOUT;
        while !self.roles.is_empty() {
            match inbox.recv_timeout(deadline.since(clock::now()).as_duration()) {
                Ok(Event::Ended(role_id)) => drop(self.roles.remove(&role_id)),
                Ok(Event::FromReader(..)) => {}
                Err(_) => return,
            }
        }
    }
}

/// Returns the failure of a host that cannot start another thread.
fn thread_failure(what: &str, cause: &io::Error) -> AgentFailure {
    let failure = AgentFailure::new(ErrorClass::Preflight, format!("cannot {what}"));
    AgentFailure { hint: Some(threads::TASK_LIMIT_HINT.to_owned()), causes: vec![cause.to_string()], ..failure }
}

/// Sends a message; if it is too long for the controller, sends a failure instead.
fn send_or_report_size(outbox: &SendQueue<FromAgent>, message: &FromAgent) {
    let Err(error) = outbox.send(message) else { return };
    let role_id = match message {
        FromAgent::Ready { role_id, .. } | FromAgent::Waited { role_id, .. } | FromAgent::Outcome { role_id, .. } => {
            Some(*role_id)
        }
        _ => None,
    };
    let failure = AgentFailure::new(ErrorClass::Failed, format!("cannot send the result to the controller: {error}"));
    // A failure is only a few lines, so it fits.
    let _ = outbox.send(&FromAgent::Failed { role_id, failure });
}
