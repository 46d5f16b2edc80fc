//! The client engine: connections kept busy in a closed loop, or requests that come by a schedule.
//!
//! Each worker has a reactor, connections and histograms of its own; nothing is shared while it runs. What an answer is, [`h1`]
//! knows; how bytes move, the reactor. Knows no kind of test and no metric.
//!
//! [`h1`]: crate::h1

mod clients;
mod connection;
mod share;

use std::{mem, sync::Arc};

use clients::{Clients, Duty};
use fathom_engine::{
    Conducted, Crew, Error, Model, Session, Stop, Until, Way, Which, Worker,
    pace::{Arrivals, Pacing, Process, Profile, Share},
};
use fathom_model::{
    Record, Role,
    names::{count, distribution},
};
use fathom_sys::policy::Policy;
use fathom_sys::reactor::{Epoll, Reactor, StampedEpoll, Uring};

use crate::{
    books::{CLOSED_COUNTERS, COUNTERS, Outcome, pacing_note, record},
    lines::{Target, allow_connections, unreached, way},
    names,
};

/// A schedule of requests, all workers together.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) profile: Profile,
    pub(crate) process: Process,
    pub(crate) pacing: Pacing,
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

impl Load {
    /// Reads a role; without a schedule the loop is closed.
    ///
    /// # Errors
    /// Says what of the role cannot be done.
    pub(crate) fn prepare(
        kind: &'static str,
        (role, policy): (&Role, &Policy),
        schedule: Option<Schedule>,
    ) -> Result<Self, Error> {
        let settings = &role.settings;
        let mut target = Target::of((role, policy), kind)?;
        // A profile is gone through once, from the start to its end, as a number of requests is.
        target.is_counted |= schedule.as_ref().is_some_and(|schedule| schedule.profile.length().is_some());
        let way = way(settings, model(schedule.as_ref()))?;
        let n_connections = settings.count("connections").unwrap_or(1);
        allow_connections(n_connections)?;
        let n_cores = u64::try_from(role.cores.len().max(1)).unwrap_or(1);
        Ok(Self {
            target: Arc::new(target),
            way,
            schedule,
            n_connections,
            n_workers: settings.count("threads").unwrap_or(n_cores).min(n_connections),
            requests: settings.count("count"),
            cores: role.cores.clone(),
        })
    }

    /// Runs the load through the phases of a session.
    ///
    /// # Errors
    /// When nothing could be recorded.
    pub(crate) fn run(&self, session: &Session) -> Result<Record, Error> {
        match self.way.which {
            Which::Uring => self.run_over::<Uring>(session),
            Which::Epoll => self.run_over::<Epoll>(session),
            Which::Stamped => self.run_over::<StampedEpoll>(session),
        }
    }

    fn run_over<R: Reactor>(&self, session: &Session) -> Result<Record, Error> {
        let counters = if self.schedule.is_some() { COUNTERS } else { &COUNTERS[..CLOSED_COUNTERS] };
        let states = self.duties(session);
        let crew = Crew { states, counters, cores: &self.cores, until: Until::PhasesOver };
        let work = |worker: Worker<'_>, equipment| Clients::new(equipment, &worker).run();
        let conducted = crew.conduct_equipped(session, &mut (), (Duty::equip::<R>, work))?;
        self.record(&conducted, session)
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
                pacing: self.schedule.as_ref().map(|all| all.pacing).unwrap_or_default(),
                batching: self.way.batching,
                stop: session.stop.clone(),
            }
        };
        (0..).zip(connections).map(duty).collect()
    }

    fn record(&self, conducted: &Conducted<Outcome>, session: &Session) -> Result<Record, Error> {
        let mut all = Outcome::merged(&conducted.workers);
        let (response, lag) = (mem::take(&mut all.response), mem::take(&mut all.lag));
        let n_not_started = all.n_not_started;
        let unreached = unreached(&self.target.name, &all.faults);
        let mut record = record(conducted, all, (&self.target, &self.way));
        if record.totals[count::CONNECTIONS] == 0 && session.stop.told() != Stop::Abort {
            return Err(unreached);
        }
        if let Some(schedule) = &self.schedule {
            record.totals.insert(names::NOT_STARTED.to_owned(), n_not_started);
            record.notes.extend(pacing_note(schedule.pacing, &lag));
            let times = [(distribution::RESPONSE_TIME, response), (distribution::SCHEDULE_LAG, lag)];
            record.distributions.extend(times.map(|(name, times)| (name.to_owned(), times)));
        }
        Ok(record)
    }
}

/// Whether answers may be waited for together: not where the next start would be late by it.
fn model(schedule: Option<&Schedule>) -> Model {
    match schedule.map(|schedule| schedule.pacing) {
        Some(Pacing::Precise) => Model::Open,
        Some(Pacing::Cheap) | None => Model::Closed,
    }
}
