//! Several agents, their clocks, and trials that start on all of them together.
//!
//! One channel gathers what all agents say; a thread pair per host keeps saying and hearing signs of life whether or not anyone
//! waits, so hosts stay prepared between trials. What a kind of test does, and what its record means, is not known here.

mod host;
mod trial;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};

use fathom_model::{Environment, PeerClock, units::Nanos};
use fathom_sys::clock;

use self::host::Host;
pub use self::trial::{Cast, Part, Supervision, TrialOutcome, TrialPlan};
use crate::{
    Error, Failure, Link, Loss,
    connection::{Heard, Wakefulness},
    protocol::{
        Facts, FromAgent, Ticket, ToAgent,
        offset::{Offset, Probe},
    },
};

/// Something that an agent is waited for.
#[derive(Clone, Copy)]
struct Step {
    /// As a sentence needs it: it did not … in time.
    verb: &'static str,
    patience: Nanos,
}

/// A busy machine starts a process in well under a second, ssh takes a few.
const GREET: Step = Step { verb: "greet", patience: Nanos::from_secs(15) };
/// Hundreds of files are read, and drivers are asked.
const DESCRIBE: Step = Step { verb: "describe its host", patience: Nanos::from_secs(20) };
/// An agent that is silent for 3 s is lost before.
const TELL_TIME: Step = Step { verb: "tell its time", patience: Nanos::from_secs(5) };
/// Enough probes that one of them meets no delay, few enough to be done in a blink: 16 round trips.
const PROBES: u16 = 16;
/// In this time two clocks that differ by 50 ppm drift apart by 3 ms, within the 10 ms that a start may be spread over.
const CLOCK_AGE_MAX: Nanos = Nanos::from_secs(60);
/// What a comparison may take before every trial: a twentieth of the shortest one.
const CHEAP: Nanos = Nanos::from_millis(10);
/// How often the silence of hosts is looked at, whatever else is waited for.
const TURN_MAX: Nanos = Nanos::from_millis(100);

/// Hosts by number, in the order of their connection.
type HostId = usize;

/// What one agent said or what became of it.
struct Event {
    host: HostId,
    at: Nanos,
    heard: Heard<FromAgent>,
}

/// What happened while the fleet was waited for.
enum Turn {
    Said(HostId, Nanos, FromAgent),
    Lost(HostId),
    /// Nothing, until the deadline or for a tenth of a second.
    Quiet,
}

/// The hosts of a run, connected; dropped, it says goodbye to all.
pub struct Fleet {
    tool: String,
    /// Names the clock of this process, as agents name theirs.
    clock: Option<String>,
    hosts: Vec<Host>,
    events: Receiver<Event>,
    tell: Sender<Event>,
    next_ticket: u64,
    wakefulness: Wakefulness,
}

impl Fleet {
    /// No hosts yet; `tool` is this program as it greets: `fathom 0.1.0`.
    #[must_use]
    pub fn new(tool: impl Into<String>) -> Self {
        let (tell, events) = mpsc::channel();
        let wakefulness = Wakefulness::new(clock::now(), TURN_MAX);
        Self {
            tool: tool.into(),
            clock: Facts::here().clock,
            hosts: Vec::new(),
            events,
            tell,
            next_ticket: 1,
            wakefulness,
        }
    }

    /// Greets the agent at the end of a link, and compares its clock with ours.
    ///
    /// # Errors
    /// [`Error::NoAgent`] when something else answers or nothing, [`Error::Version`] when it is too old or too new.
    ///
    /// # Panics
    /// If a host of this name is connected already.
    pub fn connect(&mut self, name: &str, link: Link) -> Result<(), Error> {
        assert!(
            self.hosts.iter().all(|host| host.name != name || host.is_lost()),
            "host `{name}` is connected already"
        );
        let id = self.hosts.len();
        let tell = self.tell.clone();
        let host = Host::begin(name, link, &self.tool, move |at, heard| {
            // The fleet may be gone while its hosts' threads still end.
            let _ = tell.send(Event { host: id, at, heard });
        })?;
        self.hosts.push(host);
        let greeting = self.wait(id, GREET, |_, message| match message {
            FromAgent::Hello(greeting) => Some(greeting),
            _ => None,
        });
        let greeting = greeting.map_err(|error| Host::not_greeted(error, &self.tool))?;
        self.hosts[id].facts = greeting.facts;
        self.compare_clock(id)
    }

    /// What the agent said of its host when it greeted.
    ///
    /// # Errors
    /// [`Error::UnknownHost`].
    pub fn facts(&self, name: &str) -> Result<&Facts, Error> {
        Ok(&self.hosts[self.find(name)?].facts)
    }

    /// Asks what the host is; `interfaces` are those on paths under test.
    ///
    /// # Errors
    /// When the host is unknown or lost, or its agent cannot tell.
    pub fn environment(&mut self, name: &str, interfaces: &[String]) -> Result<Environment, Error> {
        let id = self.find(name)?;
        self.hosts[id].say(&ToAgent::Environment { interfaces: interfaces.to_vec() })?;
        let answer = self.wait(id, DESCRIBE, |_, message| match message {
            FromAgent::Environment(environment) => Some(Ok(environment)),
            FromAgent::Failed { ticket: None, failure } => Some(Err(failure)),
            _ => None,
        })?;
        answer.map_err(|failure: Failure| Error::Role { host: name.to_owned(), failure })
    }

    /// Compares the host's clock with ours now; trials do so by themselves once a minute.
    ///
    /// # Errors
    /// When the host is unknown or lost.
    pub fn synchronise(&mut self, name: &str) -> Result<Offset, Error> {
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
        self.find(name).is_ok_and(|id| !self.hosts[id].is_lost())
    }

    /// A clock that has the name of ours is ours if one probe does not contradict.
    fn compare_clock(&mut self, id: HostId) -> Result<(), Error> {
        let mut probes = vec![self.probe_clock(id)?];
        let one = Offset::estimate(&probes).expect("there is a probe");
        let is_ours = self.clock.is_some() && self.clock == self.hosts[id].facts.clock;
        self.hosts[id].clock = if is_ours && one.may_be_none() {
            Offset { round_trip: one.round_trip, ..Offset::default() }
        } else {
            for _ in 1..PROBES {
                probes.push(self.probe_clock(id)?);
            }
            Offset::estimate(&probes).expect("there are probes")
        };
        self.hosts[id].compared = clock::now();
        Ok(())
    }

    fn probe_clock(&mut self, id: HostId) -> Result<Probe, Error> {
        let asked = clock::now();
        self.hosts[id].say(&ToAgent::Clock { t0: asked })?;
        self.wait(id, TELL_TIME, |t3, message| match message {
            FromAgent::Clock { t0, t1, t2 } if t0 == asked => Some(Probe { t0, t1, t2, t3 }),
            _ => None,
        })
    }

    /// Compares the clock once more if that is long ago, or costs nearly nothing.
    fn refresh_clock(&mut self, id: HostId) -> Result<(), Error> {
        let host = &self.hosts[id];
        let age = clock::now() - host.compared;
        let takes = host.clock.round_trip * u64::from(PROBES);
        if age > CLOCK_AGE_MAX || takes < CHEAP { self.compare_clock(id) } else { Ok(()) }
    }

    /// The clock of one host as another one's shows it: both were compared with ours.
    fn peer_clock(&self, of: HostId, peer: HostId) -> PeerClock {
        let (own, theirs) = (&self.hosts[of], &self.hosts[peer]);
        if of == peer || own.facts.clock.is_some() && own.facts.clock == theirs.facts.clock {
            return PeerClock::default();
        }
        PeerClock {
            ahead_ns: theirs.clock.ns.saturating_sub(own.clock.ns),
            error_ns: Some(theirs.clock.error + own.clock.error),
            compared_ns: own.clock.theirs(own.compared.min(theirs.compared)),
        }
    }

    fn find(&self, name: &str) -> Result<HostId, Error> {
        // The last one of a name: a lost host may have been connected again.
        self.hosts.iter().rposition(|host| host.name == name).ok_or_else(|| Error::UnknownHost {
            name: name.to_owned(),
            known: self.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Waits until one host says what `pick` accepts; what others say meanwhile is about trials that are over.
    fn wait<T>(
        &mut self,
        id: HostId,
        step: Step,
        mut pick: impl FnMut(Nanos, FromAgent) -> Option<T>,
    ) -> Result<T, Error> {
        let deadline = clock::now() + step.patience;
        loop {
            if self.hosts[id].is_lost() {
                return Err(self.hosts[id].lost());
            }
            match self.turn(deadline) {
                Turn::Said(host, at, message) if host == id => {
                    if let Some(picked) = pick(at, message) {
                        return Ok(picked);
                    }
                }
                Turn::Quiet if clock::now() >= deadline => {
                    self.hosts[id].lose(Loss::Late(step.verb));
                }
                Turn::Said(..) | Turn::Lost(_) | Turn::Quiet => {}
            }
        }
    }

    /// Waits for one thing to happen, at most until the deadline or for a tenth of a second.
    fn turn(&mut self, deadline: Nanos) -> Turn {
        let now = clock::now();
        let left = deadline.since(now).min(TURN_MAX);
        let event = self.events.recv_timeout(left.as_duration());
        let now = clock::now();
        if self.wakefulness.has_slept(now, TURN_MAX) {
            self.hosts.iter().for_each(|host| host.pulse.beat(now));
        }
        match event {
            Ok(Event { host, at, heard: Heard::Message(message) }) => Turn::Said(host, at, message),
            Ok(Event { host, heard: Heard::Lost(loss), .. }) => {
                self.hosts[host].lose(loss);
                Turn::Lost(host)
            }
            // Silence is judged only when everything that was said has been heard.
            Err(RecvTimeoutError::Timeout) => {
                let silent = self.hosts.iter().position(|host| !host.is_lost() && host.pulse.is_silent(now));
                silent.map_or(Turn::Quiet, |host| {
                    self.hosts[host].lose(Loss::Silent);
                    Turn::Lost(host)
                })
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the fleet holds a sender itself"),
        }
    }
}

impl Drop for Fleet {
    /// Says goodbye to all before any is waited for.
    fn drop(&mut self) {
        self.hosts.iter().for_each(Host::part);
    }
}
