//! A crowd of users, from the settings to the record.

use std::sync::Arc;

use fathom_engine::{
    Batching, Conducted, Crew, Error, Model, Session, Stop, StopFlag, Until, Way, Which, Worker,
    pace::{Pacing, Queue, Share},
};
use fathom_model::{
    Record, Role,
    names::{count, distribution},
    units::Nanos,
};
use fathom_sys::policy::Policy;
use fathom_sys::reactor::{Epoll, Reactor, StampedEpoll, Uring};

use super::{
    Coming, Users,
    gathering::Gathering,
    hall::{Furniture, Hall},
};
use crate::{
    books::{Accounts, CLOSED_COUNTERS, COUNTERS, Ledger, Outcome, pacing_note, record},
    dial::Route,
    kinds::options::pacing,
    lines::{Switchboard, Target, allow_connections, unreached, way},
    names,
};

/// Users who are ready to come, and where their connections go.
#[derive(Debug)]
pub struct Crowd {
    target: Arc<Target>,
    way: Way,
    coming: Coming,
    pacing: Pacing,
    n_workers: u64,
    cores: Vec<usize>,
}

/// The seats of one worker: what those who make its [`Users`] have to know.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The number of the worker, from 0.
    pub idx: usize,
    /// How many workers there are.
    pub n_workers: usize,
    /// Seats are numbered from 0 to one less than this.
    pub n_seats: u32,
    /// When the trial starts, on the monotonic clock.
    pub start: Nanos,
}

/// What a worker is given.
struct Duty {
    row: Row,
    target: Arc<Target>,
    coming: Coming,
    pacing: Pacing,
    batching: Batching,
    stop: StopFlag,
}

/// What a worker has before the start, made on its own thread.
struct Equipment<R, U> {
    users: U,
    ledger: Ledger,
    furniture: Furniture<R>,
}

impl Crowd {
    /// Reads what a role says of servers, connections and threads; the servers are those of its `url`, several on a line each.
    ///
    /// A kind of scripted users has the rows of [`OPTIONS`](super::OPTIONS) among its options.
    ///
    /// # Errors
    /// Says what of the role cannot be done.
    pub fn prepare(kind: &'static str, (role, policy): (&Role, &Policy), coming: Coming) -> Result<Self, Error> {
        let settings = &role.settings;
        let mut target = Target::of((role, policy), kind)?;
        target.is_counted = coming.has_end();
        if settings.text("proxy").is_some() && target.dialing.routes.iter().any(Route::is_plain) {
            return Err(Error::Unsupported {
                what: "requests of scripted users name no server, so a proxy would not know where http:// requests go"
                    .to_owned(),
                hint: Some("leave out proxy, or ask over https:// through its tunnels".to_owned()),
            });
        }
        let pacing = pacing(settings);
        let is_precise = coming.is_scheduled() && pacing == Pacing::Precise;
        let way = way(settings, if is_precise { Model::Open } else { Model::Closed })?;
        let n_seats = coming.n_seats();
        allow_connections(n_seats)?;
        let n_cores = u64::try_from(role.cores.len().max(1)).unwrap_or(1);
        Ok(Self {
            target: Arc::new(target),
            way,
            n_workers: settings.count("threads").unwrap_or(n_cores).min(n_seats).max(1),
            coming,
            pacing,
            cores: role.cores.clone(),
        })
    }

    /// Counts everything from the start to the end, whatever the phases: for users who come to an end by themselves.
    #[must_use]
    pub fn counted(mut self) -> Self {
        // Nobody else has it: it is shared only while the crowd runs.
        if let Some(target) = Arc::get_mut(&mut self.target) {
            target.is_counted = true;
        }
        self
    }

    /// How many threads the users are dealt out to.
    #[must_use]
    pub fn n_workers(&self) -> usize {
        usize::try_from(self.n_workers).unwrap_or(usize::MAX)
    }

    /// Runs the users through the phases of a session: the record of their requests, and what each worker's users bring home.
    ///
    /// `make` is called on each worker's own thread, before the start.
    ///
    /// # Errors
    /// When nothing could be recorded, or users could not be made.
    pub fn run<U: Users>(
        &self,
        session: &Session,
        make: impl Fn(&Row) -> Result<U, Error> + Sync,
    ) -> Result<(Record, Vec<U::Outcome>), Error> {
        let conducted = match self.way.which {
            Which::Uring => self.run_over::<Uring, U>(session, &make),
            Which::Epoll => self.run_over::<Epoll, U>(session, &make),
            Which::Stamped => self.run_over::<StampedEpoll, U>(session, &make),
        }?;
        let record = self.record(&conducted, session)?;
        Ok((record, conducted.workers.into_iter().map(|(_, users)| users).collect()))
    }

    fn run_over<R: Reactor, U: Users>(
        &self,
        session: &Session,
        make: &(impl Fn(&Row) -> Result<U, Error> + Sync),
    ) -> Result<Conducted<(Outcome, U::Outcome)>, Error> {
        let counters = if self.coming.is_scheduled() { COUNTERS } else { &COUNTERS[..CLOSED_COUNTERS] };
        let states = (0..self.n_workers).map(|idx| self.duty(idx, session)).collect();
        let crew = Crew { states, counters, cores: &self.cores, until: Until::PhasesOver };
        let equip = |duty: Duty| duty.equip::<R, U>(make);
        let work = |worker: Worker<'_>, equipment: Equipment<R, U>| {
            let Equipment { users, ledger, furniture } = equipment;
            Gathering::new(users, Hall::new(Accounts::new(&worker, ledger), furniture)).run()
        };
        crew.conduct_equipped(session, &mut (), (equip, work))
    }

    /// What a worker is given; seats are dealt out evenly.
    fn duty(&self, idx: u64, session: &Session) -> Duty {
        let n_seats = self.coming.n_seats();
        let share = n_seats / self.n_workers + u64::from(idx < n_seats % self.n_workers);
        Duty {
            row: Row {
                idx: usize::try_from(idx).unwrap_or(usize::MAX),
                n_workers: self.n_workers(),
                n_seats: u32::try_from(share).unwrap_or(u32::MAX),
                start: session.start,
            },
            target: Arc::clone(&self.target),
            coming: self.coming.clone(),
            pacing: self.pacing,
            batching: self.way.batching,
            stop: session.stop.clone(),
        }
    }

    fn record<W>(&self, conducted: &Conducted<(Outcome, W)>, session: &Session) -> Result<Record, Error> {
        let mut all = Outcome::merged(conducted.workers.iter().map(|(outcome, _)| outcome));
        let (lag, n_not_started) = (std::mem::take(&mut all.lag), all.n_not_started);
        let unreached = unreached(&self.target.name, &all.faults);
        let mut record = record(conducted, all, (&self.target, &self.way));
        if record.totals[count::CONNECTIONS] == 0 && session.stop.told() != Stop::Abort {
            return Err(unreached);
        }
        if self.coming.is_scheduled() {
            record.totals.insert(names::NOT_STARTED.to_owned(), n_not_started);
            record.notes.extend(pacing_note(self.pacing, &lag));
            record.distributions.insert(distribution::SCHEDULE_LAG.to_owned(), lag);
        }
        Ok(record)
    }
}

impl Duty {
    /// Makes the users, the reactor and all that there is one of for each seat.
    fn equip<R: Reactor, U>(self, make: impl Fn(&Row) -> Result<U, Error>) -> Result<Equipment<R, U>, Error> {
        let Self { row, target, coming, pacing, batching, stop } = self;
        let share = Share { idx: row.idx, of: row.n_workers };
        Ok(Equipment {
            users: make(&row)?,
            ledger: Ledger::open(&target.keeping, row.idx)?,
            furniture: Furniture {
                board: Switchboard::new(&target, (row.idx, row.n_workers), row.n_seats as usize)?,
                n_seats: row.n_seats,
                queue: Queue::new(coming.of(share)).paced(pacing),
                pacing,
                is_shared: coming.is_scheduled(),
                target,
                batching,
                stop,
            },
        })
    }
}
