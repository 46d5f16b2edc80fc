//! The client engine: connections kept busy in a closed loop, or requests that come by a schedule.
//!
//! Each worker has a reactor, connections and histograms of its own; nothing is shared while it runs. What an answer is, [`h1`]
//! knows; how bytes move, the reactor. Knows no kind of test and no metric.
//!
//! [`h1`]: crate::h1

mod clients;
mod connection;
mod fault;
mod ledger;
mod outcome;
mod queue;
mod target;
mod waking;
mod way;

use std::sync::Arc;

use clients::{Clients, Duty};
use fathom_engine::{
    Conducted, Crew, Error, Session, Stop, Until, Worker,
    pace::{Arrivals, Process, Profile, Share},
};
use fathom_model::{
    Note, Record, Role, Side,
    names::{count, distribution},
    units::Nanos,
};
use fathom_sys::{
    limits,
    reactor::{Epoll, Reactor, StampedEpoll, Uring},
};
use ledger::Books;
use outcome::{CLOSED_COUNTERS, COUNTERS, Outcome};
use target::Target;
use way::{Way, Which};

pub(crate) use self::target::ADDRESS;
use crate::{dial::Security, names};

/// Descriptors beside those of connections: rings, epolls and bells of the workers, files, standard streams.
const DESCRIPTORS_MORE: u64 = 256;

/// A schedule of requests, all workers together.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) profile: Profile,
    pub(crate) process: Process,
}

/// A load, ready to start.
#[derive(Debug)]
pub(crate) struct Load {
    target: Arc<Target>,
    way: Way,
    schedule: Option<Schedule>,
    n_connections: u64,
    n_workers: u64,
    requests: Option<u64>,
    cores: Vec<usize>,
}

/// Lets this process have so many connections.
///
/// # Errors
/// The limit of open descriptors is lower and must not be raised.
pub(crate) fn allow_connections(count: u64) -> Result<(), Error> {
    let n_descriptors = count + DESCRIPTORS_MORE;
    limits::allow_descriptors(n_descriptors).map_err(|cause| Error::Unsupported {
        what: format!("{count} connections are more than this process may have open: {cause}: {}", cause.source),
        hint: Some(format!("raise the limit (ulimit -n {n_descriptors}, with CAP_SYS_RESOURCE), or ask for fewer")),
    })
}

impl Load {
    /// Reads a role; without a schedule the loop is closed.
    ///
    /// # Errors
    /// Says what of the role cannot be done.
    pub(crate) fn prepare(kind: &'static str, role: &Role, schedule: Option<Schedule>) -> Result<Self, Error> {
        let settings = &role.settings;
        let mut target = Target::of(role, kind)?;
        // A profile is gone through once, from the start to its end, as a number of requests is.
        target.is_counted |= schedule.as_ref().is_some_and(|schedule| schedule.profile.length().is_some());
        let way = Way::of(settings, schedule.is_none())?;
        let n_connections = settings.count("connections").unwrap_or(1);
        allow_connections(n_connections)?;
        let n_cores = u64::try_from(role.cores.len().max(1)).unwrap_or(1);
        Ok(Self {
            target: Arc::new(target),
            way,
            schedule,
            n_connections,
            n_workers: settings.count("threads").unwrap_or(n_cores).min(n_connections),
            requests: settings.count("requests"),
            cores: role.cores.clone(),
        })
    }

    /// Runs the load through the phases of a session.
    ///
    /// # Errors
    /// When nothing could be recorded.
    pub(crate) fn run(&self, session: &Session) -> Result<Record, Error> {
        let record = match self.way.which {
            Which::Uring => self.run_over::<Uring>(session),
            Which::Epoll => self.run_over::<Epoll>(session),
            Which::Stamped => self.run_over::<StampedEpoll>(session),
        }?;
        if record.totals[count::CONNECTIONS] == 0 && session.stop.told() != Stop::Abort {
            let what = format!("took no connection at {} within the whole trial", self.target.name);
            return Err(Error::Peer { what });
        }
        Ok(record)
    }

    fn run_over<R: Reactor>(&self, session: &Session) -> Result<Record, Error> {
        let counters = if self.schedule.is_some() { COUNTERS } else { &COUNTERS[..CLOSED_COUNTERS] };
        let states = self.duties(session);
        let crew = Crew { states, counters, cores: &self.cores, until: Until::PhasesOver };
        let work = |worker: Worker<'_>, equipment| Clients::new(equipment, &worker).run();
        let conducted = crew.conduct_equipped(session, &mut (), (Duty::equip::<R>, work))?;
        Ok(self.record(&conducted))
    }

    /// What each worker does.
    fn duties(&self, session: &Session) -> Vec<Duty> {
        let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let n_workers = place(self.n_workers);
        let share = |whole: u64, idx: u64| whole / self.n_workers + u64::from(idx < whole % self.n_workers);
        let connections = self.target.deal(self.n_connections, self.n_workers);
        let duty = |(number, connections): (u64, Vec<u16>)| {
            let idx = place(number);
            let schedule = self.schedule.clone();
            let arrivals = schedule.map(|all| Arrivals::new(all.profile, all.process, Share { idx, of: n_workers }));
            Duty {
                target: Arc::clone(&self.target),
                idx,
                n_workers,
                connections,
                left: self.requests.map(|requests| share(requests, number)),
                arrivals,
                batching: self.way.batching,
                stop: session.stop.clone(),
            }
        };
        (0..).zip(connections).map(duty).collect()
    }

    fn record(&self, conducted: &Conducted<Outcome>) -> Record {
        let mut record = conducted.record(Side::Initiator);
        let mut all = Outcome::default();
        for outcome in &conducted.workers {
            all.merge(outcome);
        }
        if self.target.is_counted {
            // The number ends the trial, not the time: everything counts from the start on.
            record.measured_ns = (Nanos::ZERO, conducted.ended());
        }
        record.totals.insert(names::UNFINISHED.to_owned(), all.n_unfinished);
        record.errors = all.faults.iter().map(|(fault, n)| (fault.to_string(), *n)).collect();
        let mut notes = vec![status_note(&record), bounds_note(&all), discard_note(&all)];
        let keeping = &self.target.keeping;
        record.totals.extend(
            [
                (count::BYTES_SENT, all.books.n_bytes_sent),
                (names::BODY_BYTES, all.books.n_bytes_of_bodies),
                (names::FIRST_BODY_BYTES, keeping.first_body()),
                (names::LENGTH_MISMATCHES, all.books.n_mismatches),
            ]
            .map(|(name, n)| (name.to_owned(), n)),
        );
        if all.tls.count() > 0 {
            record.totals.insert(names::TLS_RESUMED.to_owned(), all.books.n_resumed);
            notes.push(resumed_note(&all));
        }
        let Books { head, answer, security, total, .. } = all.books;
        let texts = [(names::facts::HEAD, head), (names::facts::ANSWER, answer)];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text?)));
        let facts = security.iter().flat_map(security_facts).chain(texts);
        record.facts.extend(facts.map(|(name, text)| (name.to_owned(), text)));
        let mut distributions = vec![
            (names::TOTAL_TIME, total),
            (names::WORKER_RATE, conducted.worker_rates().clone()),
            (distribution::SERVICE_TIME, all.service),
            (distribution::CONNECT_TIME, all.connect),
            (distribution::FIRST_BYTE, all.first_byte),
            (distribution::DOWNLOAD_TIME, all.download),
        ];
        let seldom = [
            (distribution::DNS_TIME, all.resolve),
            (distribution::PROXY_TIME, all.proxy),
            (distribution::TLS_TIME, all.tls),
        ];
        distributions.extend(seldom.into_iter().filter(|(_, times)| times.count() > 0));
        if self.schedule.is_some() {
            record.totals.insert(names::NOT_STARTED.to_owned(), all.n_not_started);
            distributions.extend([(distribution::RESPONSE_TIME, all.response), (distribution::SCHEDULE_LAG, all.lag)]);
        }
        record.distributions = distributions.into_iter().map(|(name, all)| (name.to_owned(), all)).collect();
        record.notes.extend(notes.drain(..).flatten().chain(self.target.dialing.notes.iter().cloned()));
        record.notes.push(self.way.note.clone());
        record
    }
}

/// What TLS agreed on, by the names of facts.
fn security_facts(security: &Security) -> impl Iterator<Item = (&'static str, String)> {
    let Security { version, cipher, group, server_key_bits } = *security;
    let usual = [(names::facts::TLS_VERSION, version.to_owned()), (names::facts::TLS_CIPHER, cipher.to_owned())];
    let group = group.map(|group| (names::facts::TLS_GROUP, group.to_owned()));
    let bits = server_key_bits.map(|bits| (names::facts::TLS_SERVER_KEY, bits.to_string()));
    usual.into_iter().chain(group).chain(bits)
}

/// Says so when handshakes were spared, which is less work for both ends.
fn resumed_note(all: &Outcome) -> Option<Note> {
    let (n_resumed, n) = (all.books.n_resumed, all.tls.count());
    (n_resumed > 0).then(|| Note {
        id: "tls-resumed".to_owned(),
        text: format!(
            "of {n} TLS sessions {n_resumed} were resumed, which is less work for both ends than a full handshake; \
             `resumption off` resumes none"
        ),
    })
}

/// Says so when a server answered fast, but not with what was asked for.
fn status_note(record: &Record) -> Option<Note> {
    let others = names::STATUS[1..].iter().map(|name| (name, record.totals[*name])).filter(|(_, n)| *n > 0);
    let others: Vec<String> = others.map(|(name, n)| format!("{n} × {}", name.trim_start_matches("status_"))).collect();
    (!others.is_empty()).then(|| Note {
        id: "http-status".to_owned(),
        text: format!(
            "of {} answers not all were 2xx: {}; they count as answered, and may be cheaper than what was asked for",
            record.totals[count::REQUESTS],
            others.join(", ")
        ),
    })
}

/// Says so when times are lower bounds, because nobody waited for the answer.
fn bounds_note(all: &Outcome) -> Option<Note> {
    (all.n_bounds > 0).then(|| Note {
        id: "waited-in-vain".to_owned(),
        text: "requests without an answer in time are among the latencies with the time that they were waited for: \
               their true latency is longer"
            .to_owned(),
    })
}

/// Says so when bodies were not copied, which is less work than a client does that looks at them.
fn discard_note(all: &Outcome) -> Option<Note> {
    all.has_discarded.then(|| Note {
        id: "bodies-discarded".to_owned(),
        text:
            "large bodies were thrown away in the kernel without being copied: a client that reads them does more work"
                .to_owned(),
    })
}
