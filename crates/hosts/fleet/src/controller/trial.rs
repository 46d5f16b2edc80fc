//! One trial: prepares the responders, then the initiators, starts all together, and collects their records.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use fathom_engine::LiveProgress;
use fathom_model::{
    Endpoints, HostRecord, MergedRecord, OnLoss, PeerAddresses, PeerClock, Role, Settings, Side, Trial, units::Nanos,
};
use fathom_sys::clock;
use ring::rand::{SecureRandom, SystemRandom};

use super::{ExpectedReply, Fleet, FleetEvent, HostIndex};
use crate::{
    Disconnected, Error,
    agent::observer_role,
    protocol::{FromAgent, RoleId, RoleOutcome, ToAgent},
};

/// The maximum time to prepare a role: a hundred thousand connections, or a program for the kernel.
const PREPARE_TIMEOUT: Nanos = Nanos::from_secs(90);
/// The maximum time of a role beyond its phases, to drain and to send its record.
const FINISH_TIMEOUT: Nanos = Nanos::from_secs(15);
/// Results that arrive within this time after an abort are kept.
const ABORT_TIMEOUT: Nanos = Nanos::from_secs(2);
/// The minimum lead before a start: enough to wake a sleeping thread on a busy core.
const START_LEAD_MIN: Nanos = Nanos::from_millis(50);
/// The minimum lead with the roles of several pairs of hosts: the orders are sent one after the other, and threads of all roles wake up.
const START_LEAD_MANY: Nanos = Nanos::from_millis(200);
/// Up to so many pairs of a test, every record arrives whole, so that each pair has its own percentiles. Above that, records that share a
/// stream arrive merged, with a row for each pair.
pub const EXACT_PAIRS_MAX: usize = 64;
/// Merging takes a millisecond for each record.
const MERGE: ExpectedReply = ExpectedReply { verb: "merge its records", timeout: FINISH_TIMEOUT };
/// A test and its other direction: the record of each contains the counters of all hosts. More tests are pairs of hosts of one test, and
/// the counters of each host are in the record of the first pair that has it.
const PAIRED_TESTS: usize = 2;
/// The orders of hundreds of roles take longer: writing one, reading it and waking the threads of its role on a busy core.
const START_LEAD_PER_ROLE: Nanos = Nanos::from_millis(1);
/// The roles of two hosts and a device between them.
const FEW_ROLES: usize = 5;
/// The lead if there is only one role to start: enough for its workers to be ready.
const START_LEAD_SINGLE: Nanos = Nanos::from_millis(5);
/// The lead in round trips: the order must have arrived everywhere, even if a segment is retransmitted.
const START_LEAD_ROUND_TRIPS: u64 = 5;

/// The role of one host in a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The name of the connected host.
    pub host: String,
    /// The role; the responder's endpoints are added for an initiator.
    pub role: Role,
}

/// The assignments of one test.
#[derive(Debug, Clone, PartialEq)]
pub struct TestRoles {
    /// The initiators.
    pub initiators: Vec<Assignment>,
    /// The responder, if the test needs a fathom responder.
    pub responder: Option<Assignment>,
    /// The address by which the initiators reach the responder, if a device between them translates it into that of its role.
    pub translated: Option<IpAddr>,
}

/// The tests and observers of one trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialPlan {
    /// The round, from 0.
    pub round: u32,
    /// The tests, which start at the same instant; all of them run until the initiators of all have finished.
    pub tests: Vec<TestRoles>,
    /// The observers: devices between the two ends, whose counters are read, and hosts whose counters are read for the whole trial even
    /// if one of their tests ends early. They record nothing else.
    pub observers: Vec<Assignment>,
    /// Whether the tests of the other hosts go on when a host is lost. The loss of a host that only observes ends the trial, unless it is spared.
    pub on_loss: OnLoss,
    /// The hosts of observers whose loss ends no trial.
    pub spared: BTreeSet<String>,
    /// The hosts whose counters are not read, because enough others of the same machine have theirs read.
    pub unwatched: BTreeSet<String>,
}

impl Assignment {
    /// Creates the role of a host that observes while another role runs.
    #[must_use]
    pub fn observer(host: &str, role: &Role) -> Self {
        let role = Role {
            kind: observer_role::NAME.to_owned(),
            side: Side::Responder,
            settings: Settings::default(),
            address: None,
            interface: None,
            cores: Vec::new(),
            ..role.clone()
        };
        Self { host: host.to_owned(), role }
    }

    fn is_observer(&self) -> bool {
        self.role.kind == observer_role::NAME
    }
}

/// Callbacks during a trial.
pub struct TrialCallbacks<'a> {
    /// Receives the progress of a host's role in the test at this place of the plan, at most twice a second each.
    pub live: &'a mut dyn FnMut(usize, &str, Side, LiveProgress),
    /// Polled ten times a second for a request to stop at once.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Told the start, on this host's monotonic clock, when all roles have the order to start then.
    pub on_start: &'a dyn Fn(Nanos),
}

/// A host that was lost in a trial of which the rest went on.
#[derive(Debug)]
pub struct LostHost {
    /// The name of the host.
    pub host: String,
    /// The error that tells how.
    pub error: Error,
}

/// The results of a trial, complete or not.
#[derive(Debug)]
pub struct TrialOutcome {
    /// The records of each test, in the order of the plan; each also contains the counters of its hosts and of the observers. With more
    /// than two tests, the first one of a host has its counters.
    pub trials: Vec<Trial>,
    /// The latest start of all roles minus the earliest, to the accuracy of the clock comparison.
    pub start_skew: Nanos,
    /// The hosts that were lost while the others went on. The tests that they took part in have no complete records.
    pub lost: Vec<LostHost>,
    /// The data that could not be collected, by host.
    pub unavailable: BTreeMap<String, Vec<String>>,
    /// The records that were merged on the way, with their distributions, in a test of more than 64 pairs. What the trials have of them are
    /// rows without distributions.
    pub merged: Vec<MergedRecord>,
    /// The error that ended it early.
    pub error: Option<Error>,
}

impl Fleet {
    /// Runs one trial; hosts stay connected for the next one.
    pub fn run_trial(&mut self, plan: &TrialPlan, supervision: &mut TrialCallbacks<'_>) -> TrialOutcome {
        let mut trial_run = match TrialRun::new(self, plan, supervision) {
            Ok(trial_run) => trial_run,
            Err(error) => {
                return TrialOutcome {
                    trials: empty_trials(plan),
                    start_skew: Nanos::ZERO,
                    lost: Vec::new(),
                    unavailable: BTreeMap::new(),
                    merged: Vec::new(),
                    error: Some(error),
                };
            }
        };
        let error = trial_run.run().err();
        if error.is_some() {
            trial_run.abort();
        }
        let (merged, not_merged) = trial_run.collect_merged();
        TrialOutcome { merged, ..trial_run.outcome(plan, error.or(not_merged)) }
    }
}

/// The state of a role.
enum RoleState {
    Idle,
    Preparing,
    Ready(Endpoints),
    /// There are no more messages about it; contains its outcome, if any.
    Over(Option<Box<RoleOutcome>>),
}

struct RunningRole<'a> {
    assignment: &'a Assignment,
    /// The index of its test; `None` for an observer.
    test: Option<usize>,
    /// The name of its record in the trial.
    record_name: String,
    id: HostIndex,
    role_id: RoleId,
    state: RoleState,
    /// The counters of its host while it waited for its start, if it failed after a long wait.
    waited: Option<Box<HostRecord>>,
    /// Whether a host of its test was lost, so that nothing is expected of it any more.
    is_given_up: bool,
}

/// The state to wait for.
#[derive(Debug, Clone, Copy)]
enum RoleMilestone {
    Ready,
    Over,
}

impl RoleMilestone {
    /// The verb for the sentence "it did not … in time".
    const fn verb(self) -> &'static str {
        match self {
            Self::Ready => "get ready",
            Self::Over => "finish",
        }
    }
}

impl RunningRole<'_> {
    fn has_reached(&self, milestone: RoleMilestone) -> bool {
        match milestone {
            RoleMilestone::Ready => self.is_given_up || matches!(self.state, RoleState::Ready(_)),
            RoleMilestone::Over => self.is_over(),
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state, RoleState::Over(_))
    }

    /// Marks it as over without a result, unless it is over.
    fn end_without_result(&mut self) {
        if !self.is_over() {
            self.state = RoleState::Over(None);
        }
    }
}

/// Returns addresses with or without ports, with commas between them, at another address than that of the host itself.
fn translated(endpoints: &str, own: IpAddr, by: IpAddr) -> String {
    let one = |text: &str| match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(at), _) if at.ip() == own => SocketAddr::new(by, at.port()).to_string(),
        (_, Ok(address)) if address == own => by.to_string(),
        _ => text.to_owned(),
    };
    endpoints.split(',').map(one).collect::<Vec<_>>().join(",")
}

/// A trial in progress.
struct TrialRun<'a, 'b> {
    fleet: &'a mut Fleet,
    /// The responders come first, then the observers, then the initiators.
    roles: Vec<RunningRole<'a>>,
    /// The number of roles at the front that run until they are told to finish.
    n_until_finish: usize,
    /// The places of the roles of each host, of each test, and of each id: a host may have one for each of a thousand others.
    by_host: BTreeMap<HostIndex, Vec<usize>>,
    by_test: BTreeMap<usize, Vec<usize>>,
    by_role_id: BTreeMap<RoleId, usize>,
    /// The number of roles of each side that share a stream, in a test of many pairs.
    n_on_stream: BTreeMap<(HostIndex, Side), usize>,
    /// The tokens by which the two sides of each test recognize each other.
    tokens: Vec<u64>,
    /// The address by which the initiators of each test reach its responder, if a device translates it.
    translated: Vec<Option<IpAddr>>,
    callbacks: &'a mut TrialCallbacks<'b>,
    on_loss: OnLoss,
    spared: &'a BTreeSet<String>,
    unwatched: &'a BTreeSet<String>,
    /// The hosts that were lost while the others went on.
    lost: Vec<LostHost>,
}

impl<'a, 'b> TrialRun<'a, 'b> {
    fn new(fleet: &'a mut Fleet, plan: &'a TrialPlan, supervision: &'a mut TrialCallbacks<'b>) -> Result<Self, Error> {
        let tests = || plan.tests.iter().enumerate();
        let responders = tests().filter_map(|(n, test)| Some((Some(n), test.responder.as_ref()?, None)));
        let observers = plan.observers.iter().map(|assignment| (None, assignment, None));
        let told: Vec<_> = responders.chain(observers).collect();
        let of_test = |(n, test): (usize, &'a TestRoles)| {
            test.initiators.iter().enumerate().map(move |(idx, assignment)| (Some(n), assignment, Some(idx)))
        };
        let n_told = told.len();
        let mut roles = Vec::new();
        for (test, assignment, initiator) in told.into_iter().chain(tests().flat_map(of_test)) {
            let id = fleet.find(&assignment.host)?;
            let entry = test
                .map_or_else(|| assignment.host.clone(), |test| record_name(&plan.tests[test], assignment, initiator));
            roles.push(RunningRole {
                assignment,
                test,
                record_name: entry,
                id,
                role_id: fleet.new_role_id(),
                state: RoleState::Idle,
                waited: None,
                is_given_up: false,
            });
        }
        let tokens = plan.tests.iter().map(|_| random()).collect::<Result<_, _>>()?;
        let (on_loss, lost) = (plan.on_loss, Vec::new());
        let (mut by_host, mut by_test): (BTreeMap<_, Vec<usize>>, BTreeMap<_, Vec<usize>>) = Default::default();
        for (n, running) in roles.iter().enumerate() {
            by_host.entry(running.id).or_default().push(n);
            if let Some(test) = running.test {
                by_test.entry(test).or_default().push(n);
            }
        }
        let mut n_on_stream = BTreeMap::new();
        for running in roles.iter().filter(|running| plan.tests.len() > EXACT_PAIRS_MAX && running.test.is_some()) {
            let stream = fleet.hosts[running.id].head().unwrap_or(running.id);
            *n_on_stream.entry((stream, running.assignment.role.side)).or_default() += 1;
        }
        let mut trial_run = Self {
            n_on_stream,
            by_role_id: roles.iter().enumerate().map(|(n, running)| (running.role_id, n)).collect(),
            fleet,
            roles,
            n_until_finish: n_told,
            by_host,
            by_test,
            tokens,
            translated: plan.tests.iter().map(|test| test.translated).collect(),
            callbacks: supervision,
            on_loss,
            spared: &plan.spared,
            unwatched: &plan.unwatched,
            lost,
        };
        trial_run.greet_hosts()?;
        Ok(trial_run)
    }

    /// Compares the clock of each host, and finds the hosts that are gone.
    fn greet_hosts(&mut self) -> Result<(), Error> {
        let ids: Vec<HostIndex> = self.by_host.keys().copied().collect();
        let (gone, there): (Vec<HostIndex>, Vec<HostIndex>) =
            ids.into_iter().partition(|id| self.fleet.hosts[*id].is_disconnected());
        for id in gone {
            let error = self.fleet.hosts[id].disconnect_error();
            self.go_on_without(id, error)?;
        }
        for (id, compared) in self.fleet.refresh_clocks(&there) {
            if let Err(error) = compared {
                self.go_on_without(id, error)?;
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Error> {
        let (told, initiators) = (0..self.n_until_finish, self.n_until_finish..self.roles.len());
        let deadline = clock::now() + PREPARE_TIMEOUT;
        for n in told.clone().filter(|n| !self.roles[*n].is_given_up).collect::<Vec<_>>() {
            self.prepare(n, Endpoints::new())?;
        }
        self.wait_for(deadline, RoleMilestone::Ready, &told)?;
        let deadline = clock::now() + PREPARE_TIMEOUT;
        for n in initiators.clone().filter(|n| !self.roles[*n].is_given_up).collect::<Vec<_>>() {
            self.prepare(n, self.responder_endpoints(n))?;
        }
        self.wait_for(deadline, RoleMilestone::Ready, &initiators)?;

        let start = self.start()?;
        (self.callbacks.on_start)(start);
        let longest =
            self.roles.iter().map(|running| running.assignment.role.phases.longest()).max().unwrap_or_default();
        self.wait_for(start + longest + FINISH_TIMEOUT, RoleMilestone::Over, &initiators)?;
        // A device is observed until the responder has received everything still in flight.
        let is_observer = |n: &usize| self.roles[*n].assignment.is_observer();
        let (observers, responder): (Vec<usize>, Vec<usize>) = told.clone().partition(is_observer);
        for roles in [responder, observers] {
            for n in roles.iter().filter(|n| !self.roles[**n].is_given_up) {
                self.send(*n, |role_id| ToAgent::Finish { role_id })?;
            }
            if let (Some(first), Some(last)) = (roles.first(), roles.last()) {
                self.wait_for(clock::now() + FINISH_TIMEOUT, RoleMilestone::Over, &(*first..last + 1))?;
            }
        }
        Ok(())
    }

    /// The endpoints reported by the responder of an initiator's test, at the addresses by which the initiator reaches them.
    fn responder_endpoints(&self, n: usize) -> Endpoints {
        let responder = self.of_test(self.roles[n].test).find(|other| *other < self.n_until_finish);
        let Some(running) = responder.map(|responder| &self.roles[responder]) else { return Endpoints::new() };
        let RoleState::Ready(endpoints) = &running.state else { return Endpoints::new() };
        match self.translated_of(n).zip(running.assignment.role.address) {
            Some((by, own)) => endpoints.iter().map(|(name, text)| (name.clone(), translated(text, own, by))).collect(),
            None => endpoints.clone(),
        }
    }

    /// The address by which an initiator reaches the responder of its test, if a device translates it.
    fn translated_of(&self, n: usize) -> Option<IpAddr> {
        self.roles[n].test.filter(|_| n >= self.n_until_finish).and_then(|test| self.translated[test])
    }

    /// The places of the roles of a test.
    fn of_test(&self, test: Option<usize>) -> impl Iterator<Item = usize> {
        test.and_then(|test| self.by_test.get(&test)).into_iter().flatten().copied()
    }

    /// The places of the roles at the other end of a role's test.
    fn others_of(&self, n: usize) -> impl Iterator<Item = usize> {
        let is_initiator = |n: usize| n >= self.n_until_finish;
        self.of_test(self.roles[n].test).filter(move |other| is_initiator(*other) != is_initiator(n))
    }

    fn of_host(&self, host: HostIndex) -> impl Iterator<Item = usize> {
        self.by_host.get(&host).into_iter().flatten().copied()
    }

    fn prepare(&mut self, n: usize, endpoints: Endpoints) -> Result<(), Error> {
        let running = &self.roles[n];
        let mut role = Box::new(running.assignment.role.clone());
        role.peer.extend(endpoints);
        role.meeting = self.meeting(n, role.meeting);
        // There is one observer per host: the observing role or else the first one starts it.
        let observes = |other: &usize| self.roles[*other].assignment.is_observer();
        let watching = self.of_host(running.id).find(observes).or_else(|| self.of_host(running.id).next());
        let watch = watching == Some(n) && !self.unwatched.contains(&running.assignment.host);
        self.roles[n].state = RoleState::Preparing;
        let keep = self.is_kept(n);
        self.send(n, |role_id| ToAgent::Prepare { role_id, role, watch, keep })
    }

    /// The host at the end of the stream of a role's host: the host itself, or its head.
    fn stream_of(&self, n: usize) -> HostIndex {
        let host = self.roles[n].id;
        self.fleet.hosts[host].head().unwrap_or(host)
    }

    /// Returns whether the record of a role is merged with others at the far end of its stream: in a test of many pairs, if several roles
    /// of its side are there.
    fn is_kept(&self, n: usize) -> bool {
        let key = (self.stream_of(n), self.roles[n].assignment.role.side);
        self.roles[n].test.is_some() && self.n_on_stream.get(&key).is_some_and(|n_roles| *n_roles > 1)
    }

    /// Collects the merged records of all roles whose tests are complete. Without one of them, a trial has no sums.
    fn collect_merged(&mut self) -> (Vec<MergedRecord>, Option<Error>) {
        for n in 0..self.roles.len() {
            // The row of a role whose record is lost with its head says less than nothing.
            if self.is_kept(n) && self.fleet.hosts[self.stream_of(n)].is_disconnected() {
                self.roles[n].state = RoleState::Over(None);
            }
        }
        let has_record = |running: &RunningRole<'_>| matches!(running.state, RoleState::Over(Some(_)));
        let mut roles: BTreeMap<HostIndex, BTreeMap<Side, Vec<usize>>> = BTreeMap::new();
        for n in (0..self.roles.len()).filter(|n| self.is_kept(*n)) {
            let running = &self.roles[n];
            if self.of_test(running.test).all(|other| has_record(&self.roles[other])) {
                let of_stream = roles.entry(self.stream_of(n)).or_default();
                of_stream.entry(running.assignment.role.side).or_default().push(n);
            }
        }
        for (host, of_sides) in &roles {
            let role_ids = |roles: &Vec<usize>| roles.iter().map(|n| self.roles[*n].role_id).collect();
            // A stream that is broken is reported below.
            let _ = self.fleet.hosts[*host].send(&ToAgent::Merge { parts: of_sides.values().map(role_ids).collect() });
        }
        let hosts: Vec<HostIndex> = roles.keys().copied().collect();
        let answers = self.fleet.wait_each(&hosts, MERGE, |_, _, message| match message {
            FromAgent::Merged(records) => Some(Ok(records)),
            FromAgent::Failed { role_id: None, failure } => Some(Err(failure)),
            _ => None,
        });
        let (mut merged, mut failed) = (Vec::new(), None);
        for ((host, of_sides), answer) in roles.into_iter().zip(answers) {
            let name = &self.fleet.hosts[host].name;
            let answer =
                answer.and_then(|answer| answer.map_err(|failure| Error::RoleFailed { host: name.clone(), failure }));
            match answer {
                Ok(records) => merged.extend(of_sides.into_values().zip(records).filter_map(|(roles, record)| {
                    let hosts = roles.into_iter().map(|n| self.roles[n].assignment.host.clone()).collect();
                    Some(MergedRecord { clock_of: name.clone(), hosts, record: record? })
                })),
                Err(error) => failed = Some(error),
            }
        }
        (merged, failed)
    }

    /// Adds the token of a role's test, and the addresses of the other side if all of them are known.
    fn meeting(&self, n: usize, known: PeerAddresses) -> PeerAddresses {
        let Some(test) = self.roles[n].test else { return known };
        let with: Option<Vec<IpAddr>> =
            self.others_of(n).map(|other| self.roles[other].assignment.role.address).collect();
        let with = self.translated_of(n).map_or_else(|| with.unwrap_or_default(), |by| vec![by]);
        PeerAddresses { with, token: self.tokens[test], ..known }
    }

    /// Sends the start time to all roles, each on its host's clock; returns the time on our clock.
    fn start(&mut self) -> Result<Nanos, Error> {
        let round_trip = self.roles.iter().map(|running| self.fleet.hosts[running.id].clock.round_trip).max();
        let start = clock::now() + start_lead(self.roles.len(), round_trip.unwrap_or_default());
        for n in (0..self.roles.len()).filter(|n| !self.roles[*n].is_given_up).collect::<Vec<_>>() {
            let at = self.fleet.hosts[self.roles[n].id].clock.to_theirs(start);
            let peer_clock = self.peer_clock(n);
            self.send(n, |role_id| ToAgent::Start { role_id, at, peer_clock })?;
        }
        Ok(start)
    }

    /// The clock of the host at the other end of a role, if that is a single host.
    fn peer_clock(&self, n: usize) -> Option<PeerClock> {
        let mut peers = self.others_of(n);
        let peer = self.roles[peers.next()?].id;
        let is_one = peers.all(|other| self.roles[other].id == peer);
        is_one.then(|| self.fleet.peer_clock(self.roles[n].id, peer))
    }

    fn send(&self, n: usize, message: impl FnOnce(RoleId) -> ToAgent) -> Result<(), Error> {
        let running = &self.roles[n];
        self.fleet.hosts[running.id].send(&message(running.role_id))
    }

    /// Processes events until all these roles have reached the milestone, or until an error prevents that.
    fn wait_for(&mut self, deadline: Nanos, milestone: RoleMilestone, roles: &Range<usize>) -> Result<(), Error> {
        // A role that has reached a milestone stays there, so none of those before this one is looked at again.
        let mut left = roles.clone();
        while let Some(behind) = left.clone().find(|n| !self.roles[*n].has_reached(milestone)) {
            left.start = behind;
            if (self.callbacks.is_stopped)() {
                return Err(Error::Interrupted);
            }
            let host = self.roles[behind].id;
            let deadline = self.fleet.hosts[host].activity.deadline(deadline);
            match self.fleet.next_event(deadline) {
                FleetEvent::Message(host, _, message) => self.handle_message(host, message)?,
                FleetEvent::Disconnected(host) if self.has_role(host) => {
                    let error = self.disconnected(host);
                    self.go_on_without(host, error)?;
                }
                FleetEvent::Disconnected(_) | FleetEvent::Idle => {}
            }
            if self.fleet.is_past(deadline) && !self.roles[behind].has_reached(milestone) {
                self.fleet.disconnect(host, Disconnected::StepTimeout(milestone.verb()));
                let error = self.disconnected(host);
                self.go_on_without(host, error)?;
            }
        }
        Ok(())
    }

    fn has_role(&self, host: HostIndex) -> bool {
        self.by_host.contains_key(&host)
    }

    /// Marks the roles of a disconnected host as over.
    fn disconnected(&mut self, host: HostIndex) -> Error {
        for n in self.of_host(host).collect::<Vec<_>>() {
            self.roles[n].end_without_result();
        }
        self.fleet.hosts[host].disconnect_error()
    }

    /// Gives up the tests of a lost host and lets the others go on, if that is wanted and there are others, or if it only looked and is spared. Else
    /// returns the error.
    fn go_on_without(&mut self, host: HostIndex, error: Error) -> Result<(), Error> {
        let of_host = self.roles.iter().filter(|running| running.id == host);
        let tests: BTreeSet<usize> = of_host.filter_map(|running| running.test).collect();
        let goes_on =
            |running: &RunningRole<'_>| !running.is_given_up && running.test.is_some_and(|test| !tests.contains(&test));
        let is_spared = tests.is_empty() && self.spared.contains(&self.fleet.hosts[host].name);
        let ends_all = self.on_loss == OnLoss::Fail || tests.is_empty() || !self.roles.iter().any(goes_on);
        if ends_all && !is_spared {
            return Err(error);
        }
        for n in 0..self.roles.len() {
            let running = &mut self.roles[n];
            let is_affected = running.id == host || running.test.is_some_and(|test| tests.contains(&test));
            if running.is_given_up || !is_affected {
                continue;
            }
            running.is_given_up = true;
            if running.id == host || matches!(running.state, RoleState::Idle) {
                running.end_without_result();
            } else if !running.is_over() {
                self.send(n, |role_id| ToAgent::Abort { role_id })?;
            }
        }
        self.lost.push(LostHost { host: self.fleet.hosts[host].name.clone(), error });
        Ok(())
    }

    /// The role of a host with an id.
    fn role(&mut self, host: HostIndex, role_id: RoleId) -> Option<&mut RunningRole<'a>> {
        let n = self.by_role_id.get(&role_id)?;
        self.roles.get_mut(*n).filter(|running| running.id == host)
    }

    /// Processes a message from a host about one of the roles; late messages about other trials are dropped.
    fn handle_message(&mut self, host: HostIndex, message: FromAgent) -> Result<(), Error> {
        match message {
            FromAgent::Ready { role_id, endpoints } => {
                if let Some(running) = self.role(host, role_id) {
                    running.state = RoleState::Ready(endpoints);
                }
            }
            FromAgent::Interval { role_id, progress } => {
                let running = self.role(host, role_id).map(|running| (running.assignment, running.test));
                if let Some((Assignment { host, role, .. }, Some(test))) = running {
                    (self.callbacks.live)(test, host, role.side, progress.into());
                }
            }
            FromAgent::Outcome { role_id, outcome } => {
                if let Some(running) = self.role(host, role_id) {
                    running.state = RoleState::Over(Some(outcome));
                }
            }
            FromAgent::Waited { role_id, host: waited } => {
                if let Some(running) = self.role(host, role_id) {
                    running.waited = Some(waited);
                }
            }
            FromAgent::Failed { role_id: Some(role_id), failure } => {
                if let Some(running) = self.role(host, role_id) {
                    running.state = RoleState::Over(None);
                    if running.is_given_up {
                        return Ok(());
                    }
                    return Err(Error::RoleFailed { host: running.assignment.host.clone(), failure });
                }
            }
            FromAgent::Hello(_)
            | FromAgent::Clock { .. }
            | FromAgent::Environment(_)
            | FromAgent::Counters(_)
            | FromAgent::Failed { role_id: None, .. }
            | FromAgent::Member { .. }
            | FromAgent::Lost { .. }
            | FromAgent::Clocks(_)
            | FromAgent::Merged(_)
            | FromAgent::Heartbeat
            | FromAgent::Bye => {}
        }
        Ok(())
    }

    /// Stops all running roles, and keeps their results that arrive within two seconds.
    fn abort(&mut self) {
        let n_parts = self.roles.len();
        for n in 0..n_parts {
            let running = &mut self.roles[n];
            if matches!(running.state, RoleState::Idle) || self.fleet.hosts[running.id].is_disconnected() {
                running.end_without_result();
            } else if !running.is_over() {
                // The error that led here is the one to report.
                let _ = self.send(n, |role_id| ToAgent::Abort { role_id });
            }
        }
        let deadline = clock::now() + ABORT_TIMEOUT;
        while !self.roles.iter().all(RunningRole::is_over) && clock::now() < deadline {
            match self.fleet.next_event(deadline) {
                FleetEvent::Message(host, _, message) => drop(self.handle_message(host, message)),
                FleetEvent::Disconnected(host) if self.has_role(host) => drop(self.disconnected(host)),
                FleetEvent::Disconnected(_) | FleetEvent::Idle => {}
            }
        }
    }

    fn outcome(self, plan: &TrialPlan, error: Option<Error>) -> TrialOutcome {
        let mut trials = empty_trials(plan);
        let mut starts = vec![Vec::new(); plan.tests.len()];
        let mut losses: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut hosts: BTreeMap<String, HostRecord> = BTreeMap::new();
        let is_many = plan.tests.len() > PAIRED_TESTS;
        for running in self.roles {
            if let Some(waited) = running.waited {
                hosts.insert(running.assignment.host.clone(), *waited);
            }
            let RoleState::Over(Some(outcome)) = running.state else { continue };
            let RoleOutcome { record, host, unavailable: lost } = *outcome;
            if let Some(test) = running.test {
                starts[test].push(self.fleet.hosts[running.id].clock.to_ours(record.start_ns + record.start_late_ns));
                trials[test].records.insert(running.record_name, record);
            }
            let name = &running.assignment.host;
            if let Some(host) = host {
                hosts.insert(name.clone(), host);
            }
            losses.entry(name.clone()).or_default().extend(lost);
        }
        for (trial, (test, starts)) in trials.iter_mut().zip(plan.tests.iter().zip(&starts)) {
            trial.start_skew_ns = skew(starts);
            let of_test = plan.observers.iter().chain(&test.initiators).chain(&test.responder);
            for assignment in of_test {
                // The counters of a host of hundreds of pairs are kept once.
                let record =
                    if is_many { hosts.remove(&assignment.host) } else { hosts.get(&assignment.host).cloned() };
                trial.hosts.extend(record.map(|record| (assignment.host.clone(), record)));
            }
        }
        let start_skew = skew(&starts.concat());
        TrialOutcome { trials, start_skew, lost: self.lost, unavailable: losses, merged: Vec::new(), error }
    }
}

fn empty_trials(plan: &TrialPlan) -> Vec<Trial> {
    vec![Trial { round: plan.round, ..Trial::default() }; plan.tests.len()]
}

/// The latest of some starts minus the earliest.
fn skew(starts: &[Nanos]) -> Nanos {
    match (starts.iter().max(), starts.iter().min()) {
        (Some(latest), Some(earliest)) => *latest - *earliest,
        _ => Nanos::ZERO,
    }
}

/// Returns an unpredictable number.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    let none = |_| Error::System {
        what: "draw the token of a trial".to_owned(),
        cause: io::Error::other("no random numbers"),
    };
    SystemRandom::new().fill(&mut bytes).map_err(none)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The time between sending the start order and the start.
fn start_lead(n_parts: usize, round_trip: Nanos) -> Nanos {
    let least = match n_parts {
        0 | 1 => START_LEAD_SINGLE,
        2..=FEW_ROLES => START_LEAD_MIN,
        _ => START_LEAD_MANY + START_LEAD_PER_ROLE * u64::try_from(n_parts).unwrap_or_default(),
    };
    least.max(round_trip * START_LEAD_ROUND_TRIPS)
}

/// Returns the name of a role's record: its host's name, with a suffix if an earlier initiator has that name.
fn record_name(test: &TestRoles, assignment: &Assignment, initiator: Option<usize>) -> String {
    let before = initiator.unwrap_or(test.initiators.len());
    let n_before = test.initiators[..before].iter().filter(|other| other.host == assignment.host).count();
    match (n_before, initiator) {
        (0, _) => assignment.host.clone(),
        (_, None) => format!("{}/responder", assignment.host),
        (n, Some(_)) => format!("{}/{}", assignment.host, n + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_translated_host_is_told_by_the_address_at_which_it_is_reached() {
        let [own, by] = ["10.0.0.7", "192.0.2.1"].map(|text| text.parse().unwrap());
        for (told, reached) in [
            ("10.0.0.7:81", "192.0.2.1:81"),
            ("10.0.0.7:81,10.0.0.8:82,10.0.0.7:83", "192.0.2.1:81,10.0.0.8:82,192.0.2.1:83"),
            ("10.0.0.7", "192.0.2.1"),
            ("02:00:00:00:00:01", "02:00:00:00:00:01"),
        ] {
            assert_eq!(translated(told, own, by), reached);
        }
    }

    #[test]
    fn who_runs_alone_waits_for_nobody_and_the_order_arrives_everywhere_in_time() {
        let millis = Nanos::from_millis;
        assert_eq!((start_lead(1, Nanos::ZERO), start_lead(2, Nanos::ZERO)), (START_LEAD_SINGLE, START_LEAD_MIN));
        assert_eq!((start_lead(1, millis(20)), start_lead(2, millis(20))), (millis(100), millis(100)));
        assert_eq!((start_lead(25, millis(20)), start_lead(25, millis(60))), (millis(225), millis(300)));
    }
}
