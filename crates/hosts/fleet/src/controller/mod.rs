//! Several agents, their clocks, and trials that start on all of them together.
//!
//! One channel gathers what all agents say; a thread pair per host keeps saying and hearing signs of life whether or not anyone
//! waits, so hosts stay prepared between trials. What a kind of test does, and what its record means, is not known here.

mod connected_host;
mod trial;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};

use fathom_model::{Environment, PeerClock, units::Nanos};
use fathom_sys::clock;

use self::connected_host::ConnectedHost;
pub use self::trial::{Assignment, TestRoles, TrialCallbacks, TrialOutcome, TrialPlan};
use crate::{
    AgentFailure, AgentStream, Disconnected, Error,
    connection::{ReaderEvent, SuspendDetector},
    protocol::{
        FromAgent, HostFacts, RoleId, ToAgent,
        clock_offset::{ClockOffset, ClockProbe},
    },
};

/// Something that an agent is waited for.
#[derive(Clone, Copy)]
struct ExpectedReply {
    /// As a sentence needs it: it did not … in time.
    verb: &'static str,
    timeout: Nanos,
}

/// A busy machine starts a process in well under a second, ssh takes a few.
const GREET: ExpectedReply = ExpectedReply { verb: "greet", timeout: Nanos::from_secs(15) };
/// Hundreds of files are read, and drivers are asked.
const DESCRIBE: ExpectedReply = ExpectedReply { verb: "describe its host", timeout: Nanos::from_secs(20) };
/// An agent that is silent for 3 s is lost before.
const REPLY_TO_CLOCK_PROBE: ExpectedReply = ExpectedReply { verb: "tell its time", timeout: Nanos::from_secs(5) };
/// Enough probes that one of them meets no delay, few enough to be done in a blink: 16 round trips.
const CLOCK_PROBES: u16 = 16;
/// In this time two clocks that differ by 50 ppm drift apart by 3 ms, within the 10 ms that a start may be spread over.
const CLOCK_AGE_MAX: Nanos = Nanos::from_secs(60);
/// What a comparison may take before every trial: a twentieth of the shortest one.
const CLOCK_COMPARE_CHEAP_MAX: Nanos = Nanos::from_millis(10);
/// How often the silence of hosts is looked at, whatever else is waited for.
const LIVENESS_CHECK_EVERY: Nanos = Nanos::from_millis(100);

/// Hosts by number, in the order of their connection.
type HostIndex = usize;

/// What one agent said or what became of it.
struct HostEvent {
    host: HostIndex,
    at: Nanos,
    event: ReaderEvent<FromAgent>,
}

/// What happened while the fleet was waited for.
enum FleetEvent {
    Message(HostIndex, Nanos, FromAgent),
    Disconnected(HostIndex),
    /// Nothing, until the deadline or for a tenth of a second.
    Idle,
}

/// The hosts of a run, connected; dropped, it says goodbye to all.
pub struct Fleet {
    tool: String,
    /// Names the clock of this process, as agents name theirs.
    clock: Option<String>,
    hosts: Vec<ConnectedHost>,
    events: Receiver<HostEvent>,
    event_sender: Sender<HostEvent>,
    next_role_id: u64,
    suspend_detector: SuspendDetector,
}

impl Fleet {
    /// No hosts yet; `tool` is this program as it greets: `fathom 0.1.0`.
    #[must_use]
    pub fn new(tool: impl Into<String>) -> Self {
        let (tell, events) = mpsc::channel();
        let wakefulness = SuspendDetector::new(clock::now(), LIVENESS_CHECK_EVERY);
        Self {
            tool: tool.into(),
            clock: HostFacts::here().clock,
            hosts: Vec::new(),
            events,
            event_sender: tell,
            next_role_id: 1,
            suspend_detector: wakefulness,
        }
    }

    /// Greets the agent at the end of a link, and compares its clock with ours.
    ///
    /// # Errors
    /// [`Error::NoAgent`] when something else answers or nothing, [`Error::Version`] when it is too old or too new.
    ///
    /// # Panics
    /// If a host of this name is connected already.
    pub fn connect(&mut self, name: &str, link: AgentStream) -> Result<(), Error> {
        assert!(
            self.hosts.iter().all(|host| host.name != name || host.is_disconnected()),
            "host `{name}` is connected already"
        );
        let id = self.hosts.len();
        let tell = self.event_sender.clone();
        let host = ConnectedHost::greet(name, link, &self.tool, move |at, heard| {
            // The fleet may be gone while its hosts' threads still end.
            let _ = tell.send(HostEvent { host: id, at, event: heard });
        })?;
        self.hosts.push(host);
        let greeting = self.wait(id, GREET, |_, message| match message {
            FromAgent::Hello(greeting) => Some(greeting),
            _ => None,
        });
        let greeting = greeting.map_err(|error| ConnectedHost::error_before_greeting(error, &self.tool))?;
        self.hosts[id].facts = greeting.facts;
        self.compare_clock(id)
    }

    /// What the agent said of its host when it greeted.
    ///
    /// # Errors
    /// [`Error::UnknownHost`].
    pub fn facts(&self, name: &str) -> Result<&HostFacts, Error> {
        Ok(&self.hosts[self.find(name)?].facts)
    }

    /// Asks what the host is; `interfaces` are those on paths under test.
    ///
    /// # Errors
    /// When the host is unknown or lost, or its agent cannot tell.
    pub fn environment(&mut self, name: &str, interfaces: &[String]) -> Result<Environment, Error> {
        let id = self.find(name)?;
        self.hosts[id].send(&ToAgent::Environment { interfaces: interfaces.to_vec() })?;
        let answer = self.wait(id, DESCRIBE, |_, message| match message {
            FromAgent::Environment(environment) => Some(Ok(environment)),
            FromAgent::Failed { ticket: None, failure } => Some(Err(failure)),
            _ => None,
        })?;
        answer.map_err(|failure: AgentFailure| Error::RoleFailed { host: name.to_owned(), failure })
    }

    /// Compares the host's clock with ours now; trials do so by themselves once a minute.
    ///
    /// # Errors
    /// When the host is unknown or lost.
    pub fn synchronise(&mut self, name: &str) -> Result<ClockOffset, Error> {
        let id = self.find(name)?;
        self.compare_clock(id)?;
        Ok(self.hosts[id].clock)
    }

    /// The host as a run writes it down; address, interface and environment are the caller's to add.
    ///
    /// # Errors
    /// [`Error::UnknownHost`].
    pub fn describe(&self, name: &str) -> Result<fathom_model::run::Host, Error> {
        let host = &self.hosts[self.find(name)?];
        Ok(fathom_model::run::Host {
            reached: host.reached.clone(),
            clock_offset_ns: host.clock.ns,
            clock_error_ns: host.clock.error,
            ..Default::default()
        })
    }

    /// Whether the host is connected and was not lost.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_ok_and(|id| !self.hosts[id].is_disconnected())
    }

    /// A clock that has the name of ours is ours if one probe does not contradict.
    fn compare_clock(&mut self, id: HostIndex) -> Result<(), Error> {
        let mut probes = vec![self.probe_clock(id)?];
        let one = ClockOffset::estimate(&probes).expect("there is a probe");
        let is_ours = self.clock.is_some() && self.clock == self.hosts[id].facts.clock;
        self.hosts[id].clock = if is_ours && one.may_be_zero() {
            ClockOffset { round_trip: one.round_trip, ..ClockOffset::default() }
        } else {
            for _ in 1..CLOCK_PROBES {
                probes.push(self.probe_clock(id)?);
            }
            ClockOffset::estimate(&probes).expect("there are probes")
        };
        self.hosts[id].clock_compared_at = clock::now();
        Ok(())
    }

    fn probe_clock(&mut self, id: HostIndex) -> Result<ClockProbe, Error> {
        let asked = clock::now();
        self.hosts[id].send(&ToAgent::Clock { t0: asked })?;
        self.wait(id, REPLY_TO_CLOCK_PROBE, |t3, message| match message {
            FromAgent::Clock { t0, t1, t2 } if t0 == asked => Some(ClockProbe { t0, t1, t2, t3 }),
            _ => None,
        })
    }

    /// Compares the clock once more if that is long ago, or costs nearly nothing.
    fn refresh_clock(&mut self, id: HostIndex) -> Result<(), Error> {
        let host = &self.hosts[id];
        let age = clock::now() - host.clock_compared_at;
        let takes = host.clock.round_trip * u64::from(CLOCK_PROBES);
        if age > CLOCK_AGE_MAX || takes < CLOCK_COMPARE_CHEAP_MAX { self.compare_clock(id) } else { Ok(()) }
    }

    /// The clock of one host as another one's shows it: both were compared with ours.
    fn peer_clock(&self, of: HostIndex, peer: HostIndex) -> PeerClock {
        let (own, theirs) = (&self.hosts[of], &self.hosts[peer]);
        if of == peer || own.facts.clock.is_some() && own.facts.clock == theirs.facts.clock {
            return PeerClock::default();
        }
        PeerClock {
            ahead_ns: theirs.clock.ns.saturating_sub(own.clock.ns),
            error_ns: Some(theirs.clock.error + own.clock.error),
            compared_ns: own.clock.to_theirs(own.clock_compared_at.min(theirs.clock_compared_at)),
        }
    }

    fn find(&self, name: &str) -> Result<HostIndex, Error> {
        // The last one of a name: a lost host may have been connected again.
        self.hosts.iter().rposition(|host| host.name == name).ok_or_else(|| Error::UnknownHost {
            name: name.to_owned(),
            known: self.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    fn new_role_id(&mut self) -> RoleId {
        self.next_role_id += 1;
        RoleId(self.next_role_id)
    }

    /// Waits until one host says what `pick` accepts; what others say meanwhile is about trials that are over.
    fn wait<T>(
        &mut self,
        id: HostIndex,
        step: ExpectedReply,
        mut pick: impl FnMut(Nanos, FromAgent) -> Option<T>,
    ) -> Result<T, Error> {
        let deadline = clock::now() + step.timeout;
        loop {
            if self.hosts[id].is_disconnected() {
                return Err(self.hosts[id].disconnect_error());
            }
            match self.next_event(deadline) {
                FleetEvent::Message(host, at, message) if host == id => {
                    if let Some(picked) = pick(at, message) {
                        return Ok(picked);
                    }
                }
                FleetEvent::Idle if clock::now() >= deadline => {
                    self.hosts[id].disconnect(Disconnected::StepTimeout(step.verb));
                }
                FleetEvent::Message(..) | FleetEvent::Disconnected(_) | FleetEvent::Idle => {}
            }
        }
    }

    /// Waits for one thing to happen, at most until the deadline or for a tenth of a second.
    fn next_event(&mut self, deadline: Nanos) -> FleetEvent {
        let now = clock::now();
        let left = deadline.since(now).min(LIVENESS_CHECK_EVERY);
        let event = self.events.recv_timeout(left.as_duration());
        let now = clock::now();
        if self.suspend_detector.was_suspended(now, LIVENESS_CHECK_EVERY) {
            self.hosts.iter().for_each(|host| host.activity.record_activity(now));
        }
        match event {
            Ok(HostEvent { host, at, event: ReaderEvent::Message(message) }) => FleetEvent::Message(host, at, message),
            Ok(HostEvent { host, event: ReaderEvent::Disconnected(loss), .. }) => {
                self.hosts[host].disconnect(loss);
                FleetEvent::Disconnected(host)
            }
            // Silence is judged only when everything that was said has been heard.
            Err(RecvTimeoutError::Timeout) => {
                let silent =
                    self.hosts.iter().position(|host| !host.is_disconnected() && host.activity.has_timed_out(now));
                silent.map_or(FleetEvent::Idle, |host| {
                    self.hosts[host].disconnect(Disconnected::HeartbeatTimeout);
                    FleetEvent::Disconnected(host)
                })
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the fleet holds a sender itself"),
        }
    }
}

impl Drop for Fleet {
    /// Says goodbye to all before any is waited for.
    fn drop(&mut self) {
        self.hosts.iter().for_each(ConnectedHost::send_bye);
    }
}
