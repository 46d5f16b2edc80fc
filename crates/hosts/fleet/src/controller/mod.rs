//! Several agents with their clocks, and trials that start on all of them together.
//!
//! One channel collects the messages of all agents. Each host has two threads that keep exchanging signs of life even while nobody waits,
//! so hosts stay prepared between trials. This module does not know what a test kind does or what its record means.

mod connected_host;
mod trial;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
};

use fathom_model::{Environment, PeerClock, record::CounterChanges, units::Nanos};
use fathom_sys::clock;

use self::connected_host::ConnectedHost;
pub use self::trial::{Assignment, EXACT_PAIRS_MAX, LostHost, TestRoles, TrialCallbacks, TrialOutcome, TrialPlan};
use crate::{
    AgentFailure, AgentStream, Disconnected, Error,
    connection::{ReaderEvent, SuspendDetector},
    protocol::{
        FromAgent, HostFacts, Member, MemberIndex, RoleId, ToAgent,
        clock_offset::{ClockOffset, ClockProbe},
    },
};

/// A reply expected from an agent.
#[derive(Clone, Copy)]
struct ExpectedReply {
    /// The verb for the sentence "it did not … in time".
    verb: &'static str,
    timeout: Nanos,
}

/// A busy machine starts a process in well under a second; ssh takes a few seconds.
const GREET: ExpectedReply = ExpectedReply { verb: "greet", timeout: Nanos::from_secs(15) };
/// The agent reads hundreds of files and queries drivers for this.
const DESCRIBE: ExpectedReply = ExpectedReply { verb: "describe its host", timeout: Nanos::from_secs(20) };
/// Longer than the 3 s of silence after which an agent counts as disconnected.
const REPLY_TO_CLOCK_PROBE: ExpectedReply = ExpectedReply { verb: "tell its time", timeout: Nanos::from_secs(5) };
/// The agent reads some hundred files of the kernel, on a machine that may be busy.
const READ_COUNTERS: ExpectedReply = ExpectedReply { verb: "read its counters", timeout: Nanos::from_secs(5) };
/// A head compares the clocks of all its members.
const COMPARE_CLOCKS: ExpectedReply =
    ExpectedReply { verb: "compare its clock with that of its head", timeout: Nanos::from_secs(15) };
/// A head starts the agents of its members, which takes as long as a controller waits for each, and a second hop.
const GREET_BEHIND: ExpectedReply = ExpectedReply { verb: "greet", timeout: Nanos::from_secs(40) };
/// Enough probes that one of them meets no delay, few enough to be quick: 16 round trips.
const CLOCK_PROBES: u16 = 16;
/// In this time, two clocks that differ by 50 ppm drift apart by 3 ms, within the 10 ms over which the starts may be spread.
const CLOCK_AGE_MAX: Nanos = Nanos::from_secs(60);
/// The maximum cost of a comparison before every trial: a twentieth of the shortest one.
const CLOCK_COMPARE_CHEAP_MAX: Nanos = Nanos::from_millis(10);
/// The interval for checking whether hosts have gone silent, during any wait.
const LIVENESS_CHECK_EVERY: Nanos = Nanos::from_millis(100);

/// The index of a host, in the order of connection.
pub(crate) type HostIndex = usize;

/// What a fleet waits for.
enum FleetInput {
    FromHost(HostEvent),
    /// Something else wants the attention of the thread that waits, since this time.
    Wake(Nanos),
}

impl FleetInput {
    /// The time at which it came, on our clock.
    const fn at(&self) -> Nanos {
        match self {
            Self::FromHost(HostEvent { at, .. }) | Self::Wake(at) => *at,
        }
    }
}

/// A message from an agent, or its disconnect.
struct HostEvent {
    host: HostIndex,
    at: Nanos,
    event: ReaderEvent<FromAgent>,
}

/// Ends the wait of a fleet.
pub(crate) struct Waker(Sender<FleetInput>);

impl Waker {
    pub(crate) fn wake(&self) {
        // A fleet that is gone waits for nothing.
        let _ = self.0.send(FleetInput::Wake(clock::now()));
    }
}

/// An event while waiting for the fleet.
pub(crate) enum FleetEvent {
    Message(HostIndex, Nanos, FromAgent),
    Disconnected(HostIndex),
    /// No event until the deadline or for a tenth of a second.
    Idle,
}

/// A stream to the agent of a host, before it has greeted.
#[derive(Debug)]
pub struct HostLink {
    /// The name of the host in this fleet.
    pub name: String,
    /// The stream.
    pub stream: AgentStream,
    /// The run that wants the host for itself, in words for people; absent to share the host with other runs.
    pub run: Option<String>,
}

/// A host behind a head, before the head has been asked for it.
#[derive(Debug)]
pub struct MemberLink {
    /// The name of the head, a host of this fleet.
    pub head: String,
    /// The host, and how the head reaches it.
    pub member: Member,
    /// How the host is reached, for reports.
    pub reached: String,
}

/// Whether the runs of [`HostLink`]s ask for their hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostClaims {
    /// Each run gets its hosts, or an error.
    Made,
    /// The hosts are only looked at.
    Left,
}

/// The connected hosts of a run; dropping it says goodbye to all.
pub struct Fleet {
    tool: String,
    /// The name of this process's clock, in the same form as agents report theirs.
    clock: Option<String>,
    hosts: Vec<ConnectedHost>,
    /// The hosts behind heads, by head and place.
    members: BTreeMap<(HostIndex, MemberIndex), HostIndex>,
    /// The losses that follow from the loss of a head, not told yet.
    losses_to_tell: VecDeque<HostIndex>,
    events: Receiver<FleetInput>,
    event_sender: Sender<FleetInput>,
    /// An event that came after the silence of a host, which is told before it.
    held: Option<FleetInput>,
    /// Everything that came before this time has been told.
    told_until: Nanos,
    /// The time up to which silence is looked for next.
    silence_check_due: Nanos,
    next_role_id: u64,
    suspend_detector: SuspendDetector,
}

impl Fleet {
    /// Creates a fleet without hosts; `tool` is the name of this program in the greeting, such as `fathom 0.1.0`.
    #[must_use]
    pub fn new(tool: impl Into<String>) -> Self {
        let (tell, events) = mpsc::channel();
        let now = clock::now();
        Self {
            tool: tool.into(),
            clock: HostFacts::here().clock,
            hosts: Vec::new(),
            members: BTreeMap::new(),
            losses_to_tell: VecDeque::new(),
            events,
            event_sender: tell,
            held: None,
            told_until: now,
            silence_check_due: now + LIVENESS_CHECK_EVERY,
            next_role_id: 1,
            suspend_detector: SuspendDetector::new(now, LIVENESS_CHECK_EVERY),
        }
    }

    /// Greets the agent at the end of a link, and compares its clock with ours.
    ///
    /// # Errors
    /// As [`Self::connect_all`].
    ///
    /// # Panics
    /// If a host with this name is already connected.
    pub fn connect(&mut self, name: &str, link: AgentStream) -> Result<(), Error> {
        let link = HostLink { name: name.to_owned(), stream: link, run: None };
        self.connect_all(vec![link]).pop().expect("each link has an outcome")
    }

    /// Greets the agents at the ends of several links at once, and compares their clocks with ours. The outcomes are in the order of the
    /// links.
    ///
    /// # Errors
    /// [`Error::NoAgent`] if there is no reply or it comes from something else, [`Error::Version`] and [`Error::OtherProgram`] if the agent is too old or too new,
    /// [`Error::RoleFailed`] if another run holds the host.
    ///
    /// # Panics
    /// If a host with one of the names is already connected.
    pub fn connect_all(&mut self, links: Vec<HostLink>) -> Vec<Result<(), Error>> {
        self.connect_all_unless(links, &|| false)
    }

    /// As [`Self::connect_all`], and gives all up with [`Error::Interrupted`] once `is_stopped` says so.
    pub(crate) fn connect_all_unless(
        &mut self,
        links: Vec<HostLink>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Vec<Result<(), Error>> {
        let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
        let begun: Vec<Result<(), Error>> = links.into_iter().map(|link| self.begin(link)).collect();
        let open: Vec<String> =
            names.into_iter().zip(&begun).filter(|(_, begun)| begun.is_ok()).map(|(name, _)| name).collect();
        let mut greeted = self.finish(&open, HostClaims::Made, is_stopped).into_iter();
        begun.into_iter().map(|begun| begun.and_then(|()| greeted.next().expect("each host has an outcome"))).collect()
    }

    /// Waits for the greetings of hosts that were begun, and compares their clocks with ours. The outcomes are in the order of the names.
    ///
    /// # Errors
    /// As [`Self::connect_all`], and [`Error::Interrupted`] once `is_stopped` says so, and [`Error::UnknownHost`].
    pub fn finish(
        &mut self,
        names: &[String],
        claims: HostClaims,
        is_stopped: &dyn Fn() -> bool,
    ) -> Vec<Result<(), Error>> {
        let begun: Vec<Result<HostIndex, Error>> = names.iter().map(|name| self.find(name)).collect();
        let ids: Vec<HostIndex> = begun.iter().flatten().copied().collect();
        let greetings = self.wait_each_unless(&ids, GREET, is_stopped, |_, _, message| match message {
            FromAgent::Hello(greeting) => Some(greeting),
            _ => None,
        });
        let mut refused: BTreeMap<HostIndex, Error> = BTreeMap::new();
        for (&id, greeting) in ids.iter().zip(greetings) {
            let met = match greeting {
                Ok(greeting) => self.hosts[id].meet(greeting, &self.tool),
                Err(error) => Err(self.hosts[id].error_before_start(error, &self.tool)),
            };
            refused.extend(met.err().map(|error| (id, error)));
        }
        let greeted: Vec<HostIndex> = ids.into_iter().filter(|id| !refused.contains_key(id)).collect();
        for &id in greeted.iter().filter(|_| claims == HostClaims::Made) {
            // After the greetings, so that no refusal is taken for a message of a host that has greeted already. A stream that breaks is
            // reported below.
            let _ = self.hosts[id].claim(&self.tool);
        }
        let compared = self.compare_clocks(&greeted);
        for (id, outcome) in greeted.into_iter().zip(compared) {
            if let Err(error) = outcome {
                self.disconnect(id, Disconnected::Closed);
                refused.insert(id, self.hosts[id].error_before_start(error, &self.tool));
            }
        }
        let outcome = |begun: Result<HostIndex, Error>| begun.and_then(|id| refused.remove(&id).map_or(Ok(()), Err));
        begun.into_iter().map(outcome).collect()
    }

    /// Adds a host, whose agent has not greeted yet, and keeps it alive from now on: an agent that hears nothing for 3 s ends.
    ///
    /// # Errors
    /// If the stream cannot be used, or a thread is missing.
    ///
    /// # Panics
    /// If a host with this name is already connected.
    pub fn begin(&mut self, link: HostLink) -> Result<(), Error> {
        self.check_new(&link.name);
        let id = self.hosts.len();
        let tell = self.event_sender.clone();
        let host = ConnectedHost::greet(link, &self.tool, move |at, heard| {
            // The fleet may be gone while its hosts' threads are still ending.
            let _ = tell.send(FleetInput::FromHost(HostEvent { host: id, at, event: heard }));
        })?;
        self.hosts.push(host);
        Ok(())
    }

    /// The program on a host, from its agent's greeting, such as `fathom 0.1.0`.
    ///
    /// # Errors
    /// [`Error::UnknownHost`].
    pub fn program(&self, name: &str) -> Result<&str, Error> {
        Ok(&self.hosts[self.find(name)?].tool)
    }

    /// The facts about a host from its agent's greeting.
    ///
    /// # Errors
    /// [`Error::UnknownHost`].
    pub fn facts(&self, name: &str) -> Result<&HostFacts, Error> {
        Ok(&self.hosts[self.find(name)?].facts)
    }

    /// Queries the environment of a host.
    ///
    /// # Errors
    /// As [`Self::environments`].
    ///
    /// # Panics
    /// Never: each question has an answer.
    pub fn environment(&mut self, name: &str) -> Result<Environment, Error> {
        self.environments(&[name.to_owned()]).pop().expect("each host has an answer")
    }

    /// Queries the environments of several hosts at once. The answers are in the order of the names.
    ///
    /// # Errors
    /// If a host is unknown or disconnected, or if its agent fails.
    ///
    /// # Panics
    /// Never: each question has an answer.
    pub fn environments(&mut self, names: &[String]) -> Vec<Result<Environment, Error>> {
        let found: Vec<Result<HostIndex, Error>> = names.iter().map(|name| self.find(name)).collect();
        for id in found.iter().flatten() {
            // A stream that is broken is reported below.
            let _ = self.hosts[*id].send(&ToAgent::Environment);
        }
        let ids: Vec<HostIndex> = found.iter().flatten().copied().collect();
        let answers = self.wait_each(&ids, DESCRIBE, |_, _, message| match message {
            FromAgent::Environment(environment) => Some(Ok(environment)),
            FromAgent::Failed { role_id: None, failure } => Some(Err(failure)),
            _ => None,
        });
        let mut answers = answers.into_iter();
        let answer = |(found, name): (Result<HostIndex, Error>, &String)| {
            found
                .and_then(|_| answers.next().expect("each host has an answer"))?
                .map_err(|failure: AgentFailure| Error::RoleFailed { host: name.clone(), failure })
        };
        found.into_iter().zip(names).map(answer).collect()
    }

    /// Queries the counters of a host, as changes to the last reply.
    ///
    /// # Errors
    /// If the host is unknown or disconnected, or if its agent fails.
    pub fn counters(&mut self, name: &str) -> Result<CounterChanges, Error> {
        let id = self.find(name)?;
        self.hosts[id].send(&ToAgent::Counters)?;
        let answer = self.wait(id, READ_COUNTERS, |_, message| match message {
            FromAgent::Counters(changes) => Some(Ok(changes)),
            FromAgent::Failed { role_id: None, failure } => Some(Err(failure)),
            _ => None,
        })?;
        answer.map_err(|failure: AgentFailure| Error::RoleFailed { host: name.to_owned(), failure })
    }

    /// Compares the host's clock with ours now; trials do this on their own once a minute.
    ///
    /// # Errors
    /// If the host is unknown or disconnected.
    pub fn synchronise(&mut self, name: &str) -> Result<ClockOffset, Error> {
        let id = self.find(name)?;
        self.compare_clock(id)?;
        Ok(self.hosts[id].clock)
    }

    /// Describes the host for the run document; the caller adds address, interface and environment.
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

    /// Returns whether the host is connected.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_ok_and(|id| !self.hosts[id].is_disconnected())
    }

    fn compare_clock(&mut self, id: HostIndex) -> Result<(), Error> {
        self.compare_clocks(&[id]).pop().expect("each host has an outcome")
    }

    /// Compares the clocks of hosts with ours. A clock with the same name as ours counts as ours unless one probe contradicts that.
    ///
    /// The clock of a host behind a head is compared with that of the head, by the head: offsets and errors add up.
    fn compare_clocks(&mut self, ids: &[HostIndex]) -> Vec<Result<(), Error>> {
        let (direct, behind): (Vec<HostIndex>, Vec<HostIndex>) =
            ids.iter().copied().partition(|id| self.hosts[*id].head().is_none());
        let mut failed = self.compare_direct_clocks(&direct);
        failed.extend(self.compare_clocks_behind(&behind));
        ids.iter().map(|id| failed.remove(id).map_or(Ok(()), Err)).collect()
    }

    /// Asks heads for the clocks of their members. Returns the errors.
    fn compare_clocks_behind(&mut self, ids: &[HostIndex]) -> BTreeMap<HostIndex, Error> {
        let heads: Vec<HostIndex> =
            ids.iter().filter_map(|id| self.hosts[*id].head()).collect::<BTreeSet<_>>().into_iter().collect();
        for head in &heads {
            // A stream that is broken is reported below.
            let _ = self.hosts[*head].send(&ToAgent::Clocks);
        }
        let answers = self.wait_each(&heads, COMPARE_CLOCKS, |_, _, message| match message {
            FromAgent::Clocks(offsets) => Some(offsets),
            _ => None,
        });
        // The loss of a head is the loss of its members, which have their own errors.
        let told: BTreeMap<HostIndex, Vec<Option<ClockOffset>>> =
            heads.into_iter().zip(answers).filter_map(|(head, answer)| Some((head, answer.ok()?))).collect();
        let now = clock::now();
        let mut failed = BTreeMap::new();
        for &id in ids {
            let (head, member) = (self.hosts[id].head(), self.hosts[id].member());
            let offsets = head.and_then(|head| told.get(&head));
            let place = member.and_then(|member| usize::try_from(member).ok());
            let offset = offsets.zip(place).and_then(|(offsets, place)| offsets.get(place).copied().flatten());
            if let (Some(offset), Some(head)) = (offset, head) {
                self.hosts[id].clock = self.hosts[head].clock.then(offset);
                self.hosts[id].clock_compared_at = now;
            } else {
                self.disconnect(id, Disconnected::StepTimeout(COMPARE_CLOCKS.verb));
                failed.insert(id, self.hosts[id].disconnect_error());
            }
        }
        failed
    }

    /// Compares the clocks of hosts that have a stream of their own. Returns the errors.
    fn compare_direct_clocks(&mut self, ids: &[HostIndex]) -> BTreeMap<HostIndex, Error> {
        let mut probes: BTreeMap<HostIndex, Vec<ClockProbe>> = BTreeMap::new();
        let mut failed: BTreeMap<HostIndex, Error> = BTreeMap::new();
        let mut open = ids.to_vec();
        for n_probes in 1..=CLOCK_PROBES {
            for (&id, probe) in open.iter().zip(self.probe_clocks(&open)) {
                match probe {
                    Ok(probe) => probes.entry(id).or_default().push(probe),
                    Err(error) => drop(failed.insert(id, error)),
                }
            }
            open.retain(|id| !failed.contains_key(id));
            if n_probes == 1 {
                open.retain(|&id| !self.is_our_clock(id, &probes[&id]));
            }
        }
        let now = clock::now();
        for (id, probes) in probes {
            let estimate = ClockOffset::estimate(&probes).expect("a host in the table has a probe");
            let host = &mut self.hosts[id];
            host.clock_compared_at = now;
            // A host that was not asked again has our clock.
            host.clock = if probes.len() == 1 {
                ClockOffset { round_trip: estimate.round_trip, ..ClockOffset::default() }
            } else {
                estimate
            };
        }
        failed
    }

    /// Returns whether a host's clock has the name of ours, and a probe does not contradict that.
    fn is_our_clock(&self, id: HostIndex, probes: &[ClockProbe]) -> bool {
        let has_our_name = self.clock.is_some() && self.clock == self.hosts[id].facts.clock;
        has_our_name && ClockOffset::estimate(probes).is_some_and(ClockOffset::may_be_zero)
    }

    /// Asks several hosts for their time at once.
    fn probe_clocks(&mut self, ids: &[HostIndex]) -> Vec<Result<ClockProbe, Error>> {
        let mut asked: BTreeMap<HostIndex, Nanos> = BTreeMap::new();
        for &id in ids {
            let t0 = clock::now();
            asked.insert(id, t0);
            // A clock probe is short, and a stream that is broken is reported below.
            let _ = self.hosts[id].send(&ToAgent::Clock { t0 });
        }
        let answers = self.wait_each(ids, REPLY_TO_CLOCK_PROBE, |id, t3, message| match message {
            FromAgent::Clock { t0, t1, t2 } if t0 == asked[&id] => Some(Ok(ClockProbe { t0, t1, t2, t3 })),
            FromAgent::Failed { role_id: None, failure } => Some(Err(failure)),
            _ => None,
        });
        let named = |(answer, &id): (Result<Result<ClockProbe, AgentFailure>, Error>, &HostIndex)| {
            answer?.map_err(|failure| Error::RoleFailed { host: self.hosts[id].name.clone(), failure })
        };
        answers.into_iter().zip(ids).map(named).collect()
    }

    /// Compares the clocks of hosts again for which the last comparison is old, or a comparison is cheap.
    fn refresh_clocks(&mut self, ids: &[HostIndex]) -> Vec<(HostIndex, Result<(), Error>)> {
        let is_due = |id: &HostIndex| {
            let host = &self.hosts[*id];
            let age = clock::now() - host.clock_compared_at;
            let takes = host.clock.round_trip * u64::from(CLOCK_PROBES);
            age > CLOCK_AGE_MAX || takes < CLOCK_COMPARE_CHEAP_MAX
        };
        let due: Vec<HostIndex> = ids.iter().copied().filter(is_due).collect();
        let compared = self.compare_clocks(&due);
        due.into_iter().zip(compared).collect()
    }

    /// The clock of one host relative to another one's: both were compared with ours.
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
        // The last host with the name: a disconnected host may have been connected again.
        self.hosts.iter().rposition(|host| host.name == name).ok_or_else(|| Error::UnknownHost {
            name: name.to_owned(),
            known: self.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    fn new_role_id(&mut self) -> RoleId {
        self.next_role_id += 1;
        RoleId(self.next_role_id)
    }

    /// Waits until one host sends a message that `pick` accepts; messages from others are about finished trials.
    fn wait<T>(
        &mut self,
        id: HostIndex,
        step: ExpectedReply,
        mut pick: impl FnMut(Nanos, FromAgent) -> Option<T>,
    ) -> Result<T, Error> {
        let answers = self.wait_each(&[id], step, |_, at, message| pick(at, message));
        answers.into_iter().next().expect("each host has an answer")
    }

    /// Waits until each of several hosts has sent a message that `pick` accepts, or is disconnected. The answers are in the order of
    /// `ids`.
    fn wait_each<T>(
        &mut self,
        ids: &[HostIndex],
        step: ExpectedReply,
        pick: impl FnMut(HostIndex, Nanos, FromAgent) -> Option<T>,
    ) -> Vec<Result<T, Error>> {
        self.wait_each_unless(ids, step, &|| false, pick)
    }

    /// As [`Self::wait_each`]; once `is_stopped`, the hosts that have not answered are given up.
    fn wait_each_unless<T>(
        &mut self,
        ids: &[HostIndex],
        step: ExpectedReply,
        is_stopped: &dyn Fn() -> bool,
        mut pick: impl FnMut(HostIndex, Nanos, FromAgent) -> Option<T>,
    ) -> Vec<Result<T, Error>> {
        let deadline = clock::now() + step.timeout;
        let mut answers: BTreeMap<HostIndex, T> = BTreeMap::new();
        loop {
            let is_open = |id: &HostIndex| !answers.contains_key(id) && !self.hosts[*id].is_disconnected();
            let open: Vec<HostIndex> = ids.iter().copied().filter(is_open).collect();
            if open.is_empty() {
                break;
            }
            if is_stopped() {
                for id in open {
                    self.hosts[id].give_up();
                }
                break;
            }
            match self.next_event(deadline) {
                FleetEvent::Message(host, at, message) if open.contains(&host) => {
                    answers.extend(pick(host, at, message).map(|answer| (host, answer)));
                }
                FleetEvent::Message(..) | FleetEvent::Disconnected(_) | FleetEvent::Idle => {}
            }
            if self.is_past(deadline) {
                for id in ids.iter().filter(|id| !answers.contains_key(id)) {
                    self.disconnect(*id, Disconnected::StepTimeout(step.verb));
                }
            }
        }
        let answer = |&id: &HostIndex| answers.remove(&id).ok_or_else(|| self.hosts[id].disconnect_error());
        ids.iter().map(answer).collect()
    }

    /// Returns whether a deadline is over for a host of which nothing was told yet: what came before it has been told, however much others
    /// send.
    fn is_past(&self, deadline: Nanos) -> bool {
        self.told_until >= deadline
    }

    /// Waits for one event, at most until the deadline or for a tenth of a second.
    pub(crate) fn next_event(&mut self, deadline: Nanos) -> FleetEvent {
        if let Some(host) = self.losses_to_tell.pop_front() {
            return FleetEvent::Disconnected(host);
        }
        let left = deadline.since(clock::now()).min(LIVENESS_CHECK_EVERY);
        let event = self.held.take().map_or_else(|| self.events.recv_timeout(left.as_duration()), Ok);
        let now = clock::now();
        if self.suspend_detector.was_suspended(now, LIVENESS_CHECK_EVERY) {
            self.hosts.iter().for_each(|host| host.activity.record_activity(now));
        }
        self.told_until = self.told_until.max(event.as_ref().map_or(now, FleetInput::at));
        if let Some(host) = self.silent_host() {
            self.held = event.ok();
            self.disconnect(host, Disconnected::HeartbeatTimeout);
            return FleetEvent::Disconnected(host);
        }
        match event {
            Ok(FleetInput::FromHost(HostEvent { host, at, event: ReaderEvent::Message(message) })) => {
                self.resolve(host, at, message)
            }
            Ok(FleetInput::FromHost(HostEvent { host, event: ReaderEvent::Disconnected(loss), .. })) => {
                self.disconnect(host, loss);
                FleetEvent::Disconnected(host)
            }
            Ok(FleetInput::Wake(_)) | Err(RecvTimeoutError::Timeout) => FleetEvent::Idle,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the fleet holds a sender itself"),
        }
    }

    /// Returns a host that was silent for too long at the time up to which all has been told: what waits behind that may be from it.
    fn silent_host(&mut self) -> Option<HostIndex> {
        if self.told_until < self.silence_check_due {
            return None;
        }
        let is_silent = |host: &ConnectedHost| !host.is_disconnected() && host.activity.has_timed_out(self.told_until);
        let silent = self.hosts.iter().position(is_silent);
        if silent.is_none() {
            self.silence_check_due = self.told_until + LIVENESS_CHECK_EVERY;
        }
        silent
    }
}

/// Hosts behind heads.
impl Fleet {
    /// Asks heads for the agents of the hosts behind them, and compares the clocks. The outcomes are in the order of the links.
    ///
    /// # Errors
    /// [`Error::BehindHead`] with the reason of the head, [`Error::UnknownHost`], the errors of a head that is lost, and
    /// [`Error::Interrupted`] once `is_stopped` says so.
    ///
    /// # Panics
    /// If a host with one of the names is already connected.
    pub fn connect_behind(&mut self, links: Vec<MemberLink>, is_stopped: &dyn Fn() -> bool) -> Vec<Result<(), Error>> {
        let mut of_heads: BTreeMap<HostIndex, Vec<Member>> = BTreeMap::new();
        let begun: Vec<Result<HostIndex, Error>> = links
            .into_iter()
            .map(|MemberLink { head, member, reached }| {
                let head = self.find(&head)?;
                self.check_new(&member.name);
                let members = of_heads.entry(head).or_default();
                let place = MemberIndex::try_from(members.len()).expect("a group is smaller than a message");
                let host = self.hosts[head].behind((head, place), member.name.clone(), reached);
                members.push(member);
                let id = self.hosts.len();
                self.hosts.push(host);
                self.members.insert((head, place), id);
                Ok(id)
            })
            .collect();
        for (head, members) in of_heads {
            // A stream that is broken is reported below.
            let _ = self.hosts[head].send(&ToAgent::Lead { members });
        }
        let ids: Vec<HostIndex> = begun.iter().flatten().copied().collect();
        let greetings = self.wait_each_unless(&ids, GREET_BEHIND, is_stopped, |_, _, message| match message {
            FromAgent::Hello(greeting) => Some(greeting),
            _ => None,
        });
        let mut refused: BTreeMap<HostIndex, Error> = BTreeMap::new();
        for (&id, greeting) in ids.iter().zip(greetings) {
            let met = match greeting {
                Ok(greeting) => self.hosts[id].meet(greeting, &self.tool),
                Err(error) => Err(self.error_behind(id, error)),
            };
            refused.extend(met.err().map(|error| (id, error)));
        }
        let greeted: Vec<HostIndex> = ids.into_iter().filter(|id| !refused.contains_key(id)).collect();
        let compared = self.compare_clocks(&greeted);
        refused.extend(greeted.into_iter().zip(compared).filter_map(|(id, outcome)| Some((id, outcome.err()?))));
        let outcome = |begun: Result<HostIndex, Error>| begun.and_then(|id| refused.remove(&id).map_or(Ok(()), Err));
        begun.into_iter().map(outcome).collect()
    }

    /// Returns the error of a host that its head could not connect to.
    fn error_behind(&self, id: HostIndex, error: Error) -> Error {
        let head = self.hosts[id].head().map(|head| self.hosts[head].name.clone()).unwrap_or_default();
        match error {
            Error::Disconnected { host, loss: Disconnected::ToldByHead { failure, .. }, .. } => {
                Error::BehindHead { host, head, failure }
            }
            other => other,
        }
    }

    /// Finds the host that a message is from: the one at the end of the stream, or one behind it.
    fn resolve(&mut self, host: HostIndex, at: Nanos, message: FromAgent) -> FleetEvent {
        match message {
            FromAgent::Member { member, message } => match self.members.get(&(host, member)) {
                Some(id) => FleetEvent::Message(*id, at, *message),
                None => FleetEvent::Idle,
            },
            FromAgent::Lost { member, failure } => match self.members.get(&(host, member)).copied() {
                Some(id) if !self.hosts[id].is_disconnected() => {
                    let head = self.hosts[host].name.clone();
                    self.disconnect(id, Disconnected::ToldByHead { head, failure: Box::new(failure) });
                    FleetEvent::Disconnected(id)
                }
                _ => FleetEvent::Idle,
            },
            // The head refuses to be one, so none of its members can be reached.
            FromAgent::Failed { role_id: None, failure } if self.has_members_that_wait(host) => {
                let head = self.hosts[host].name.clone();
                let failure = Box::new(failure);
                for id in self.members_of(host) {
                    self.disconnect(id, Disconnected::ToldByHead { head: head.clone(), failure: failure.clone() });
                }
                FleetEvent::Idle
            }
            message => FleetEvent::Message(host, at, message),
        }
    }

    fn members_of(&self, head: HostIndex) -> Vec<HostIndex> {
        self.members.range((head, 0)..=(head, MemberIndex::MAX)).map(|(_, id)| *id).collect()
    }

    fn has_members_that_wait(&self, head: HostIndex) -> bool {
        self.members_of(head).into_iter().any(|id| self.hosts[id].tool.is_empty() && !self.hosts[id].is_disconnected())
    }

    /// Gives a host up, and with a head all hosts behind it, whose losses are told after its own.
    fn disconnect(&mut self, id: HostIndex, loss: Disconnected) {
        if self.hosts[id].is_disconnected() {
            return;
        }
        let behind: Vec<HostIndex> =
            self.members_of(id).into_iter().filter(|member| !self.hosts[*member].is_disconnected()).collect();
        if behind.is_empty() {
            return self.hosts[id].disconnect(loss);
        }
        let members = behind.iter().map(|member| self.hosts[*member].name.clone()).collect();
        self.hosts[id].disconnect(Disconnected::Head { loss: Box::new(loss), members });
        let head = self.hosts[id].name.clone();
        for member in behind {
            self.hosts[member].disconnect(Disconnected::WithHead { head: head.clone() });
            self.losses_to_tell.push_back(member);
        }
    }

    fn check_new(&self, name: &str) {
        assert!(
            self.hosts.iter().all(|host| host.name != name || host.is_disconnected()),
            "host `{name}` is connected already"
        );
    }
}

/// What a head needs of the fleet of its members.
impl Fleet {
    pub(crate) fn waker(&self) -> Waker {
        Waker(self.event_sender.clone())
    }

    pub(crate) fn greeting(&self, name: &str) -> Result<(HostIndex, String, HostFacts), Error> {
        let id = self.find(name)?;
        Ok((id, self.hosts[id].tool.clone(), self.hosts[id].facts.clone()))
    }

    pub(crate) fn send(&self, host: HostIndex, message: &ToAgent) -> Result<(), Error> {
        self.hosts[host].send(message)
    }

    pub(crate) fn clock_of(&self, host: HostIndex) -> ClockOffset {
        self.hosts[host].clock
    }

    /// Compares clocks; the loss of a host is told by the next event about it.
    pub(crate) fn compare_clocks_of(&mut self, hosts: &[HostIndex]) {
        let outcomes = self.compare_clocks(hosts);
        let lost = hosts.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_err()).map(|(host, _)| *host);
        self.losses_to_tell.extend(lost.collect::<Vec<_>>());
    }

    pub(crate) fn loss_of(&mut self, host: HostIndex) -> Error {
        self.hosts[host].disconnect_error()
    }

    /// Gives a host up because the controller does. That is no news for the controller.
    pub(crate) fn give_up(&mut self, host: HostIndex) {
        self.hosts[host].disconnect(Disconnected::StepTimeout("do what its controller wants"));
    }
}

impl Drop for Fleet {
    /// Says goodbye to all hosts before waiting for any of them.
    fn drop(&mut self) {
        self.hosts.iter().for_each(ConnectedHost::send_bye);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{
        launcher::{Liveness, Opening},
        protocol::SILENCE_MAX,
    };

    const EVENT_EVERY: Nanos = Nanos::from_millis(10);

    /// A fleet of two hosts, and the far ends of their streams, which send nothing.
    fn fleet(liveness: Liveness) -> (Fleet, [UnixStream; 2]) {
        let mut fleet = Fleet::new("fathom test");
        let far_ends = ["busy", "mute"].map(|name| {
            let (stream, far) = UnixStream::pair().unwrap();
            let reached = name.to_owned();
            let stream = AgentStream { stream, reached, process: None, liveness, opening: Opening::Frame };
            fleet.begin(HostLink { name: name.to_owned(), stream, run: None }).unwrap();
            far
        });
        (fleet, far_ends)
    }

    /// Lets the busy host send without a pause for a time to come, all of which waits for the fleet.
    fn keep_busy(fleet: &Fleet, begin: Nanos, time: Nanos) {
        let busy = fleet.find("busy").unwrap();
        for n in 0..time.0 / EVENT_EVERY.0 {
            let at = begin + EVENT_EVERY * n;
            let event = ReaderEvent::Message(FromAgent::Heartbeat);
            fleet.event_sender.send(FleetInput::FromHost(HostEvent { host: busy, at, event })).unwrap();
        }
        fleet.hosts[busy].activity.record_activity(begin + time);
    }

    #[test]
    fn a_silent_host_is_noticed_while_another_one_sends_all_the_time() {
        let (mut fleet, _far_ends) = fleet(Liveness::Heartbeats);
        let (begin, mute) = (clock::now(), fleet.find("mute").unwrap());
        fleet.hosts[mute].activity.record_activity(begin);
        keep_busy(&fleet, begin, SILENCE_MAX * 2);
        let deadline = begin + SILENCE_MAX * 2;
        let mut told = Vec::new();
        let lost = loop {
            match fleet.next_event(deadline) {
                FleetEvent::Message(_, at, _) => told.push(at - begin),
                FleetEvent::Disconnected(host) => break host,
                FleetEvent::Idle => panic!("nothing waits after {} events", told.len()),
            }
        };
        let heard = *told.last().unwrap();
        assert_eq!(lost, mute);
        assert!((SILENCE_MAX - EVENT_EVERY..SILENCE_MAX + LIVENESS_CHECK_EVERY).contains(&heard), "{heard}");
        let next = fleet.next_event(deadline);
        assert!(matches!(next, FleetEvent::Message(_, at, _) if at - begin == heard + EVENT_EVERY), "none is left out");
    }

    #[test]
    fn a_host_that_sent_something_that_still_waits_is_not_silent() {
        let (mut fleet, _far_ends) = fleet(Liveness::Heartbeats);
        let (begin, mute) = (clock::now(), fleet.find("mute").unwrap());
        fleet.hosts[mute].activity.record_activity(begin);
        keep_busy(&fleet, begin, SILENCE_MAX - EVENT_EVERY);
        let end = HostEvent { host: mute, at: begin, event: ReaderEvent::Disconnected(Disconnected::Closed) };
        fleet.event_sender.send(FleetInput::FromHost(end)).unwrap();
        keep_busy(&fleet, begin + SILENCE_MAX, SILENCE_MAX);
        while !matches!(fleet.next_event(begin + SILENCE_MAX), FleetEvent::Disconnected(_)) {}
        let error = fleet.hosts[mute].disconnect_error();
        assert!(matches!(error, Error::Disconnected { loss: Disconnected::Closed, .. }), "{error}");
    }

    #[test]
    fn a_host_that_does_not_answer_is_given_up_in_time_while_another_one_sends_all_the_time() {
        let (mut fleet, _far_ends) = fleet(Liveness::EndOfStream);
        let (begin, mute) = (clock::now(), fleet.find("mute").unwrap());
        let step = REPLY_TO_CLOCK_PROBE;
        keep_busy(&fleet, begin, step.timeout * 2);
        let answer = fleet.wait(mute, step, |_, _| Some(()));
        assert!(matches!(&answer, Err(Error::Disconnected { loss: Disconnected::StepTimeout(_), .. })));
        let FleetEvent::Message(_, next, _) = fleet.next_event(begin + step.timeout * 2) else {
            panic!("it waited until nothing more came")
        };
        assert!(next >= begin + step.timeout);
    }
}
