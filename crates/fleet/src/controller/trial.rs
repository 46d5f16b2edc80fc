//! One trial: prepare the responders, then the initiators, start all together, gather what they recorded.

use std::{collections::BTreeMap, io, net::IpAddr, ops::Range};

use fathom_engine::Live;
use fathom_model::{Endpoints, Meeting, PeerClock, Role, Settings, Side, Trial, units::Nanos};
use fathom_sys::clock;
use ring::rand::{SecureRandom, SystemRandom};

use super::{Fleet, HostId, Turn};
use crate::{
    Error, Loss,
    agent::bystander,
    protocol::{FromAgent, Outcome, Ticket, ToAgent},
};

/// How long a role may take to be made ready: a hundred thousand connections, or a program for the kernel.
const PREPARE_PATIENCE: Nanos = Nanos::from_secs(90);
/// How long a role may take beyond its phases, to drain and to write its record.
const FINISH_PATIENCE: Nanos = Nanos::from_secs(15);
/// What comes within this time after an abort is kept.
const ABORT_PATIENCE: Nanos = Nanos::from_secs(2);
/// The shortest lead before a start: enough for a sleeping thread to be awake on a busy core.
const LEAD_MIN: Nanos = Nanos::from_millis(50);
/// The lead where no other part has to begin at the same moment: enough for the workers of one to be there.
const LEAD_ALONE: Nanos = Nanos::from_millis(5);
/// The lead in round trips: the order must have arrived everywhere, also when a segment is sent twice.
const LEAD_ROUND_TRIPS: u64 = 5;

/// What one host plays in a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The name that the host was connected by.
    pub host: String,
    /// What it plays; the responder's endpoints are added to those of an initiator.
    pub role: Role,
    /// The interfaces whose counters are watched.
    pub interfaces: Vec<String>,
}

/// Who plays one test.
#[derive(Debug, Clone, PartialEq)]
pub struct Cast {
    /// Who begins.
    pub initiators: Vec<Part>,
    /// Who answers, if the test needs one of ours.
    pub responder: Option<Part>,
}

/// What is to be played.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialPlan {
    /// The round, from 0.
    pub round: u32,
    /// The tests, which begin at the same instant; all go on until the initiators of all are over.
    pub casts: Vec<Cast>,
    /// Who looks on: devices between the two, whose counters are read; they record nothing.
    pub bystanders: Vec<Part>,
}

impl Part {
    /// The part of a host that looks on for as long as another one plays.
    #[must_use]
    pub fn bystander(host: &str, role: &Role, interfaces: Vec<String>) -> Self {
        let role = Role {
            kind: bystander::NAME.to_owned(),
            side: Side::Responder,
            settings: Settings::default(),
            address: None,
            interface: None,
            cores: Vec::new(),
            ..role.clone()
        };
        Self { host: host.to_owned(), role, interfaces }
    }

    fn is_bystander(&self) -> bool {
        self.role.kind == bystander::NAME
    }
}

/// Who looks on while a trial runs.
pub struct Supervision<'a> {
    /// Told how a host's role in the first test fares, at most twice a second each.
    pub live: &'a mut dyn FnMut(&str, Side, Live),
    /// Asked ten times a second whether to stop at once.
    pub is_stopped: &'a dyn Fn() -> bool,
}

/// What a trial left behind, whether or not it came to its end.
#[derive(Debug)]
pub struct TrialOutcome {
    /// What was recorded of each test, in the order of the casts; the counters of hosts stand beside each of them.
    pub trials: Vec<Trial>,
    /// What could not be observed, by host.
    pub losses: BTreeMap<String, Vec<String>>,
    /// Why it did not come to its end.
    pub error: Option<Error>,
}

impl Fleet {
    /// Plays one trial; hosts stay connected for the next one.
    pub fn run_trial(&mut self, plan: &TrialPlan, supervision: &mut Supervision<'_>) -> TrialOutcome {
        let mut course = match Course::new(self, plan, supervision) {
            Ok(course) => course,
            Err(error) => {
                let trials = vec![Trial { round: plan.round, ..Trial::default() }; plan.casts.len()];
                return TrialOutcome { trials, losses: BTreeMap::new(), error: Some(error) };
            }
        };
        let error = course.run().err();
        if error.is_some() {
            course.abort();
        }
        course.outcome(plan, error)
    }
}

/// How far a part has come.
enum State {
    Idle,
    Preparing,
    Ready(Endpoints),
    /// Nothing more will be heard of it; what it left behind, if anything.
    Over(Option<Box<Outcome>>),
}

struct Playing<'a> {
    part: &'a Part,
    /// The number of its test; nothing for who looks on.
    cast: Option<usize>,
    /// The name of its record in the trial.
    entry: String,
    id: HostId,
    ticket: Ticket,
    state: State,
}

/// How far parts are waited for.
#[derive(Debug, Clone, Copy)]
enum Milestone {
    Ready,
    Over,
}

impl Milestone {
    /// As a sentence needs it: it did not … in time.
    const fn verb(self) -> &'static str {
        match self {
            Self::Ready => "get ready",
            Self::Over => "finish",
        }
    }
}

impl Playing<'_> {
    fn has_reached(&self, milestone: Milestone) -> bool {
        match milestone {
            Milestone::Ready => matches!(self.state, State::Ready(_)),
            Milestone::Over => self.is_over(),
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }
}

/// A trial under way.
struct Course<'a, 'b> {
    fleet: &'a mut Fleet,
    /// The responders come first, then those who look on.
    parts: Vec<Playing<'a>>,
    /// So many of them go on until they are told that the initiators have finished.
    n_told: usize,
    /// By which the two sides of each test know each other.
    tokens: Vec<u64>,
    supervision: &'a mut Supervision<'b>,
}

impl<'a, 'b> Course<'a, 'b> {
    fn new(fleet: &'a mut Fleet, plan: &'a TrialPlan, supervision: &'a mut Supervision<'b>) -> Result<Self, Error> {
        let casts = || plan.casts.iter().enumerate();
        let responders = casts().filter_map(|(n, cast)| Some((Some(n), cast.responder.as_ref()?, None)));
        let bystanders = plan.bystanders.iter().map(|part| (None, part, None));
        let told: Vec<_> = responders.chain(bystanders).collect();
        let of_cast = |(n, cast): (usize, &'a Cast)| {
            cast.initiators.iter().enumerate().map(move |(idx, part)| (Some(n), part, Some(idx)))
        };
        let n_told = told.len();
        let mut parts = Vec::new();
        for (cast, part, initiator) in told.into_iter().chain(casts().flat_map(of_cast)) {
            let id = fleet.find(&part.host)?;
            if fleet.hosts[id].is_lost() {
                return Err(fleet.hosts[id].lost());
            }
            fleet.refresh_clock(id)?;
            let entry = cast.map_or_else(|| part.host.clone(), |cast| entry(&plan.casts[cast], part, initiator));
            parts.push(Playing { part, cast, entry, id, ticket: fleet.ticket(), state: State::Idle });
        }
        let tokens = plan.casts.iter().map(|_| random()).collect::<Result<_, _>>()?;
        Ok(Self { fleet, parts, n_told, tokens, supervision })
    }

    fn run(&mut self) -> Result<(), Error> {
        let (told, initiators) = (0..self.n_told, self.n_told..self.parts.len());
        let deadline = clock::now() + PREPARE_PATIENCE;
        for n in told.clone() {
            self.prepare(n, Endpoints::new())?;
        }
        self.gather(deadline, Milestone::Ready, &told)?;
        let deadline = clock::now() + PREPARE_PATIENCE;
        for n in initiators.clone() {
            self.prepare(n, self.told_to(n))?;
        }
        self.gather(deadline, Milestone::Ready, &initiators)?;

        let start = self.start()?;
        let longest = self.parts.iter().map(|playing| playing.part.role.phases.longest()).max().unwrap_or_default();
        self.gather(start + longest + FINISH_PATIENCE, Milestone::Over, &initiators)?;
        // A device is watched until the responder has taken what was still under way.
        let is_bystander = |n: &usize| self.parts[*n].part.is_bystander();
        let (bystanders, responder): (Vec<usize>, Vec<usize>) = told.clone().partition(is_bystander);
        for parts in [responder, bystanders] {
            for n in &parts {
                self.tell(*n, |ticket| ToAgent::Finish { ticket })?;
            }
            if let (Some(first), Some(last)) = (parts.first(), parts.last()) {
                self.gather(clock::now() + FINISH_PATIENCE, Milestone::Over, &(*first..last + 1))?;
            }
        }
        Ok(())
    }

    /// What the responder of an initiator's test has told.
    fn told_to(&self, n: usize) -> Endpoints {
        let of_same = |playing: &&Playing<'_>| playing.cast == self.parts[n].cast;
        match self.parts[..self.n_told].iter().find(of_same).map(|responder| &responder.state) {
            Some(State::Ready(endpoints)) => endpoints.clone(),
            _ => Endpoints::new(),
        }
    }

    fn prepare(&mut self, n: usize, endpoints: Endpoints) -> Result<(), Error> {
        let playing = &self.parts[n];
        let mut role = Box::new(playing.part.role.clone());
        role.peer.extend(endpoints);
        role.meeting = Meeting { within: role.meeting.within.take(), ..self.meeting(n) };
        // One observer per host: the first of its parts brings it, and sees the interfaces of all of them.
        let is_first = self.parts.iter().position(|other| other.id == playing.id) == Some(n);
        let watch = is_first.then(|| self.interfaces(playing.id));
        self.parts[n].state = State::Preparing;
        self.tell(n, |ticket| ToAgent::Prepare { ticket, role, watch })
    }

    /// Who the other side of a part's test is, where it is known by its addresses.
    fn meeting(&self, n: usize) -> Meeting {
        let Some(cast) = self.parts[n].cast else { return Meeting::default() };
        let is_initiator = |n: usize| n >= self.n_told;
        let others = (0..self.parts.len())
            .filter(|other| is_initiator(*other) != is_initiator(n) && self.parts[*other].cast == Some(cast));
        let with: Option<Vec<IpAddr>> = others.map(|other| self.parts[other].part.role.address).collect();
        Meeting { with: with.unwrap_or_default(), token: self.tokens[cast], within: None }
    }

    fn interfaces(&self, id: HostId) -> Vec<String> {
        let parts = self.parts.iter().filter(|playing| playing.id == id);
        let mut interfaces: Vec<String> = parts.flat_map(|playing| playing.part.interfaces.clone()).collect();
        interfaces.sort();
        interfaces.dedup();
        interfaces
    }

    /// Tells all parts when to start, each on its own clock; when that is on ours.
    fn start(&mut self) -> Result<Nanos, Error> {
        let round_trip = self.parts.iter().map(|playing| self.fleet.hosts[playing.id].clock.round_trip).max();
        let start = clock::now() + lead(self.parts.len(), round_trip.unwrap_or_default());
        for n in 0..self.parts.len() {
            let at = self.fleet.hosts[self.parts[n].id].clock.theirs(start);
            let peer_clock = self.peer_clock(n);
            self.tell(n, |ticket| ToAgent::Start { ticket, at, peer_clock })?;
        }
        Ok(start)
    }

    /// The clock of the host at the other end of a part, if that is one host.
    fn peer_clock(&self, n: usize) -> Option<PeerClock> {
        let is_initiator = |n: usize| n >= self.n_told;
        let mut peers = (0..self.parts.len())
            .filter(|other| is_initiator(*other) != is_initiator(n) && self.parts[*other].cast == self.parts[n].cast);
        let peer = self.parts[peers.next()?].id;
        let is_one = peers.all(|other| self.parts[other].id == peer);
        is_one.then(|| self.fleet.peer_clock(self.parts[n].id, peer))
    }

    fn tell(&self, n: usize, message: impl FnOnce(Ticket) -> ToAgent) -> Result<(), Error> {
        let playing = &self.parts[n];
        self.fleet.hosts[playing.id].say(&message(playing.ticket))
    }

    /// Takes what comes until these parts have all come that far, or something keeps the trial from going on.
    fn gather(&mut self, deadline: Nanos, milestone: Milestone, parts: &Range<usize>) -> Result<(), Error> {
        while let Some(behind) = parts.clone().find(|n| !self.parts[*n].has_reached(milestone)) {
            if (self.supervision.is_stopped)() {
                return Err(Error::Interrupted);
            }
            let host = self.parts[behind].id;
            let deadline = self.fleet.hosts[host].pulse.deadline(deadline);
            match self.fleet.turn(deadline) {
                Turn::Said(host, _, message) => self.take(host, message)?,
                Turn::Lost(host) if self.plays(host) => return Err(self.lost(host)),
                Turn::Quiet if clock::now() >= deadline => {
                    self.fleet.hosts[host].lose(Loss::Late(milestone.verb()));
                    return Err(self.lost(host));
                }
                Turn::Lost(_) | Turn::Quiet => {}
            }
        }
        Ok(())
    }

    fn plays(&self, host: HostId) -> bool {
        self.parts.iter().any(|playing| playing.id == host)
    }

    /// Nothing more will be heard of the parts of a lost host.
    fn lost(&mut self, host: HostId) -> Error {
        for playing in self.parts.iter_mut().filter(|playing| playing.id == host && !playing.is_over()) {
            playing.state = State::Over(None);
        }
        self.fleet.hosts[host].lost()
    }

    /// Takes in what a host said of one of the parts; whatever is about another trial is late, and dropped.
    fn take(&mut self, host: HostId, message: FromAgent) -> Result<(), Error> {
        let of = |ticket: Ticket| move |playing: &&mut Playing<'_>| playing.id == host && playing.ticket == ticket;
        match message {
            FromAgent::Ready { ticket, endpoints } => {
                if let Some(playing) = self.parts.iter_mut().find(of(ticket)) {
                    playing.state = State::Ready(endpoints);
                }
            }
            FromAgent::Interval { ticket, progress } => {
                let is_first = |playing: &&mut Playing<'_>| playing.cast == Some(0);
                if let Some(playing) = self.parts.iter_mut().find(of(ticket)).filter(is_first) {
                    (self.supervision.live)(&playing.part.host, playing.part.role.side, progress.into());
                }
            }
            FromAgent::Outcome { ticket, outcome } => {
                if let Some(playing) = self.parts.iter_mut().find(of(ticket)) {
                    playing.state = State::Over(Some(outcome));
                }
            }
            FromAgent::Failed { ticket: Some(ticket), failure } => {
                if let Some(playing) = self.parts.iter_mut().find(of(ticket)) {
                    playing.state = State::Over(None);
                    return Err(Error::Role { host: playing.part.host.clone(), failure });
                }
            }
            FromAgent::Hello(_)
            | FromAgent::Clock { .. }
            | FromAgent::Environment(_)
            | FromAgent::Failed { ticket: None, .. }
            | FromAgent::Heartbeat
            | FromAgent::Bye => {}
        }
        Ok(())
    }

    /// Stops all parts that still play, and keeps what they tell within two seconds.
    fn abort(&mut self) {
        let n_parts = self.parts.len();
        for n in 0..n_parts {
            let playing = &mut self.parts[n];
            if matches!(playing.state, State::Idle) || self.fleet.hosts[playing.id].is_lost() {
                if !playing.is_over() {
                    playing.state = State::Over(None);
                }
            } else if !playing.is_over() {
                // The error that led here is the one to tell.
                let _ = self.tell(n, |ticket| ToAgent::Abort { ticket });
            }
        }
        let deadline = clock::now() + ABORT_PATIENCE;
        while !self.parts.iter().all(Playing::is_over) && clock::now() < deadline {
            match self.fleet.turn(deadline) {
                Turn::Said(host, _, message) => drop(self.take(host, message)),
                Turn::Lost(host) if self.plays(host) => drop(self.lost(host)),
                Turn::Lost(_) | Turn::Quiet => {}
            }
        }
    }

    fn outcome(self, plan: &TrialPlan, error: Option<Error>) -> TrialOutcome {
        let mut trials = vec![Trial { round: plan.round, ..Trial::default() }; plan.casts.len()];
        let mut starts = vec![Vec::new(); plan.casts.len()];
        let mut losses: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for playing in self.parts {
            let State::Over(Some(outcome)) = playing.state else { continue };
            let Outcome { record, host, losses: lost } = *outcome;
            if let Some(cast) = playing.cast {
                starts[cast].push(self.fleet.hosts[playing.id].clock.ours(record.start_ns + record.start_late_ns));
                trials[cast].records.insert(playing.entry, record);
            }
            let name = &playing.part.host;
            if let Some(host) = host {
                for trial in &mut trials {
                    trial.hosts.insert(name.clone(), host.clone());
                }
            }
            losses.entry(name.clone()).or_default().extend(lost);
        }
        for (trial, starts) in trials.iter_mut().zip(starts) {
            trial.start_skew_ns = match (starts.iter().max(), starts.iter().min()) {
                (Some(latest), Some(earliest)) => *latest - *earliest,
                _ => Nanos::ZERO,
            };
        }
        TrialOutcome { trials, losses, error }
    }
}

/// A number that nobody can guess.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    let none = |_| Error::System {
        what: "draw the token of a trial".to_owned(),
        cause: io::Error::other("no random numbers"),
    };
    SystemRandom::new().fill(&mut bytes).map_err(none)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// How long before the start parts are told of it.
fn lead(n_parts: usize, round_trip: Nanos) -> Nanos {
    let least = if n_parts == 1 { LEAD_ALONE } else { LEAD_MIN };
    least.max(round_trip * LEAD_ROUND_TRIPS)
}

/// The name of a part's record: its host's, with an addition where that is taken by an initiator before it.
fn entry(cast: &Cast, part: &Part, initiator: Option<usize>) -> String {
    let before = initiator.unwrap_or(cast.initiators.len());
    let n_before = cast.initiators[..before].iter().filter(|other| other.host == part.host).count();
    match (n_before, initiator) {
        (0, _) => part.host.clone(),
        (_, None) => format!("{}/responder", part.host),
        (n, Some(_)) => format!("{}/{}", part.host, n + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_plays_alone_waits_for_nobody_and_the_order_arrives_everywhere_in_time() {
        let millis = Nanos::from_millis;
        assert_eq!((lead(1, Nanos::ZERO), lead(2, Nanos::ZERO)), (LEAD_ALONE, LEAD_MIN));
        assert_eq!((lead(1, millis(20)), lead(2, millis(20))), (millis(100), millis(100)));
    }
}
