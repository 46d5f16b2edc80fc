//! Workers whose threads are there while a trial is prepared, so that what they open stays on the thread that uses it.
//!
//! A ring belongs to one thread, and so may a table of descriptors. Connections that are opened while the trial is prepared
//! are then opened, used and closed by their worker alone.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread::{self, JoinHandle},
};

use fathom_model::units::Nanos;
use fathom_sys::threads;

use super::{
    Conducted, Course, Employed, Phase, Running, Shared, Until, Watcher, Worker, first_phase, no_thread, settle,
    work_from_start,
};
use crate::{
    Error, Session, Slot, StopFlag,
    slot::{COUNTERS_MAX, Glance},
};

/// What each worker does, from its preparation to the end, all on its own thread.
pub trait Shift: Send + Sync + 'static {
    /// What it is given to begin with.
    type Given: Send + 'static;
    /// What it makes of that.
    type Equipment;
    /// What it comes back with.
    type Outcome: Send + 'static;

    /// Makes ready; must come to an end by itself.
    ///
    /// # Errors
    /// Says what is missing; the trial is not begun then.
    fn equip(&self, given: Self::Given) -> Result<Self::Equipment, Error>;

    /// One step of at most a few milliseconds of what is done until the start, such as to accept connections.
    ///
    /// # Errors
    /// What keeps the trial from being begun.
    fn stand_by(&self, equipment: &mut Self::Equipment) -> Result<(), Error>;

    /// Does the work of the trial, as a worker of a [`super::Crew`] does.
    ///
    /// # Errors
    /// When nothing can be recorded.
    fn work(&self, worker: Worker<'_>, equipment: Self::Equipment, stop: &StopFlag) -> Result<Self::Outcome, Error>;
}

/// What all workers of a trial and its conductor see.
struct Board {
    slots: Vec<Slot>,
    glances: Vec<Glance>,
    shared: Shared,
}

/// The order to begin.
struct Order {
    board: Arc<Board>,
    start: Nanos,
    stop: StopFlag,
}

struct Hand<W> {
    /// Closed when there will be no trial.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<Result<Option<Employed<W>>, Error>>>,
}

impl<W> Hand<W> {
    fn join(&mut self) -> Result<Option<Employed<W>>, Error> {
        self.orders = None;
        let ended = self.thread.take().map_or(Ok(Ok(None)), JoinHandle::join);
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Workers that are equipped and wait for a trial; when it is dropped they go home.
pub struct Enlisted<S: Shift> {
    hands: Vec<Hand<S::Outcome>>,
}

impl<S: Shift> Enlisted<S> {
    /// Starts a thread for each of `given`, pinned to the cores in turn, and waits until all of them are equipped.
    ///
    /// # Errors
    /// The first error of a worker; all of them have ended then.
    ///
    /// # Panics
    /// If a worker panicked, with its message.
    pub fn enlist(shift: S, given: Vec<S::Given>, cores: &[usize]) -> Result<Self, Error> {
        let shift = Arc::new(shift);
        let (ready, readiness) = mpsc::channel();
        let start_worker = |(idx, given): (usize, S::Given)| {
            let (orders, ordered) = mpsc::channel();
            let core = cores.get(idx % cores.len().max(1)).copied();
            let (shift, ready) = (Arc::clone(&shift), ready.clone());
            let thread = threads::start(move || serve(&*shift, given, (idx, core), (ready, &ordered)));
            thread.map(|thread| Hand { orders: Some(orders), thread: Some(thread) }).map_err(no_thread)
        };
        // Those that have started end when their orders close.
        let hands = given.into_iter().enumerate().map(start_worker).collect::<Result<Vec<_>, _>>()?;
        drop(ready);
        let mut enlisted = Self { hands };
        let n_ready = readiness.iter().take(enlisted.hands.len()).count();
        if n_ready == enlisted.hands.len() {
            return Ok(enlisted);
        }
        enlisted.hands.iter_mut().for_each(|hand| hand.orders = None);
        let ended: Vec<_> = enlisted.hands.iter_mut().map(Hand::join).collect();
        let refused = ended.into_iter().find_map(Result::err);
        Err(refused.expect("a worker that did not become ready said why"))
    }

    /// Runs the workers from the agreed start to the end, as [`super::Crew::conduct`] does.
    ///
    /// # Errors
    /// The first error that a worker returned, while it waited or afterwards.
    ///
    /// # Panics
    /// If a worker panicked, with its message; or if there are more counters than a slot holds.
    pub fn conduct(
        mut self,
        session: &Session,
        watcher: &mut dyn Watcher,
        (counters, until): (&'static [&'static str], Until),
    ) -> Result<Conducted<S::Outcome>, Error> {
        assert!(counters.len() <= COUNTERS_MAX, "{} counters do not fit", counters.len());
        let board = Arc::new(Board {
            slots: self.hands.iter().map(|_| Slot::default()).collect(),
            glances: self.hands.iter().map(|_| Glance::default()).collect(),
            shared: Shared {
                phase: AtomicU8::new(first_phase(session, until) as u8),
                running: AtomicUsize::new(self.hands.len()),
                conductor: thread::current(),
            },
        });
        for hand in &self.hands {
            let order = Order { board: Arc::clone(&board), start: session.start, stop: session.stop.clone() };
            if hand.orders.as_ref().is_none_or(|orders| orders.send(order).is_err()) {
                board.shared.running.fetch_sub(1, Ordering::Relaxed);
                board.shared.set(Phase::Over);
            }
        }
        let mut course = Course::new(session, (counters, until), (&board.slots, &board.glances));
        course.go(&board.shared, watcher);
        board.shared.set(Phase::Over);
        watcher.over();
        let ended: Vec<_> = self.hands.iter_mut().map(Hand::join).collect();
        course.last_interval();
        let employed = |ended: Option<_>| ended.expect("a worker that was given its order has worked");
        let outcomes = ended.into_iter().map(|ended| ended.map(employed)).collect::<Result<_, _>>()?;
        let concluded = course.conclude(outcomes);
        let board = Arc::into_inner(board).expect("the workers have returned, and nobody else has it");
        Ok(Conducted { slots: board.slots, ..concluded })
    }
}

impl<S: Shift> Drop for Enlisted<S> {
    fn drop(&mut self) {
        self.hands.iter_mut().for_each(|hand| hand.orders = None);
        for hand in &mut self.hands {
            // What kept a worker from a trial that nobody begins is of no interest any more.
            let _ = hand.thread.take().map(JoinHandle::join);
        }
    }
}

/// A worker's thread: nothing comes back when there was no trial.
fn serve<S: Shift>(
    shift: &S,
    given: S::Given,
    (idx, core): (usize, Option<usize>),
    (ready, ordered): (Sender<()>, &Receiver<Order>),
) -> Result<Option<Employed<S::Outcome>>, Error> {
    settle(core)?;
    let mut equipment = shift.equip(given)?;
    // Nobody listens when another worker has failed already, which the closed orders tell.
    let _ = ready.send(());
    // Whoever waits for all to be ready learns of one that ended before that by the last of these being gone.
    drop(ready);
    let order = loop {
        match ordered.try_recv() {
            Ok(order) => break order,
            Err(TryRecvError::Empty) => shift.stand_by(&mut equipment)?,
            Err(TryRecvError::Disconnected) => return Ok(None),
        }
    };
    let Order { board, start, stop } = order;
    let _running = Running(&board.shared);
    let (slot, glance, shared) = (&board.slots[idx], &board.glances[idx], &board.shared);
    let worker = Worker { idx, start, slot, glance, shared };
    work_from_start(worker, || shift.work(worker, equipment, &stop)).map(Some)
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use fathom_model::{Phases, Side};
    use fathom_sys::clock;

    use super::*;

    /// Each worker counts how often it stood by, and then up to what it was given.
    struct Counting {
        refuses: Option<u64>,
    }

    impl Shift for Counting {
        type Given = u64;
        type Equipment = (ThreadId, u64, u64);
        type Outcome = (bool, u64);

        fn equip(&self, given: u64) -> Result<Self::Equipment, Error> {
            if self.refuses == Some(given) {
                return Err(Error::Peer { what: "gave nothing".to_owned() });
            }
            Ok((thread::current().id(), given, 0))
        }

        fn stand_by(&self, equipment: &mut Self::Equipment) -> Result<(), Error> {
            equipment.2 += 1;
            thread::yield_now();
            Ok(())
        }

        fn work(
            &self,
            worker: Worker<'_>,
            (thread, given, stood_by): Self::Equipment,
            _: &StopFlag,
        ) -> Result<(bool, u64), Error> {
            worker.add(0, given);
            while !worker.is_over() {
                thread::yield_now();
            }
            Ok((thread == thread::current().id() && clock::now() >= worker.start, stood_by))
        }
    }

    fn session() -> Session {
        let phases = Phases {
            warmup_max_ns: Nanos::from_millis(20),
            is_warmup_whole: false,
            measure_ns: Nanos::from_millis(40),
            interval_ns: Nanos::from_millis(10),
        };
        Session::new(clock::now() + Nanos::from_millis(10), phases)
    }

    #[test]
    fn a_worker_works_on_the_thread_that_equipped_it_and_stands_by_until_then() {
        let enlisted = Enlisted::enlist(Counting { refuses: None }, vec![3, 4], &[]).unwrap();
        thread::sleep(Nanos::from_millis(5).as_duration());
        let conducted = enlisted.conduct(&session(), &mut (), (&["steps"], Until::PhasesOver)).unwrap();
        assert!(conducted.workers.iter().all(|(is_same, stood_by)| *is_same && *stood_by > 0));
        let record = conducted.record(Side::Initiator);
        assert!(record.complete && record.totals["steps"] == 7, "{record:?}");
    }

    #[test]
    fn a_worker_that_cannot_be_equipped_sends_all_home_with_its_reason() {
        let refused = Enlisted::enlist(Counting { refuses: Some(2) }, vec![1, 2, 3], &[]).err().unwrap();
        assert!(matches!(refused, Error::Peer { .. }), "{refused}");
    }

    #[test]
    fn workers_without_a_trial_go_home() {
        let shift = Counting { refuses: None };
        let enlisted = Enlisted::enlist(shift, vec![1, 2], &[]).unwrap();
        drop(enlisted);
    }
}
