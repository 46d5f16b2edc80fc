//! The starts of an open load on one worker.

use fathom_model::units::Nanos;

use crate::pace::{Arrivals, ConnectionAvailability, DueStart, Pacer, Pacing, StartQueue};

/// The starts of one worker for each of its targets, and its wake-up times. All times are clock times.
#[derive(Debug)]
pub struct OpenSchedule<I: Iterator<Item = Nanos> = Arrivals> {
    start: Nanos,
    queues: Vec<StartQueue<I>>,
    pacer: Pacer,
}

impl<I: Iterator<Item = Nanos> + Clone> OpenSchedule<I> {
    /// Creates the schedule of a trial that starts at `start`, with the arrivals for each target.
    pub fn new(start: Nanos, arrivals: impl IntoIterator<Item = I>, pacing: Pacing) -> Self {
        let queues = arrivals.into_iter().map(|arrivals| StartQueue::new(arrivals).paced(pacing)).collect();
        Self { start, queues, pacer: Pacer::new(pacing) }
    }

    /// Returns the number of targets.
    #[must_use]
    pub(super) fn n_targets(&self) -> usize {
        self.queues.len()
    }

    /// Returns true if it is time to check for due starts.
    #[must_use]
    pub(super) fn looks(&self, now: Nanos) -> bool {
        self.pacer.looks(now)
    }

    /// Queues the starts that have become due for a target. Returns their number.
    pub fn notice(&mut self, target: usize, now: Nanos, free: ConnectionAvailability) -> u64 {
        let n_due = self.queues[target].notice(now - self.start, free);
        if n_due > 0 {
            self.pacer.started(now);
        }
        n_due
    }

    /// Returns the number of due starts for a target that wait for a connection.
    #[must_use]
    pub fn waiting(&self, target: usize) -> u64 {
        self.queues[target].waiting()
    }

    /// Takes the start that has been due longest for a target. Its intended time is a clock time.
    pub fn take(&mut self, target: usize, now: Nanos) -> Option<DueStart> {
        let due = self.queues[target].start(now - self.start)?;
        Some(DueStart { intended: self.start + due.intended, ..due })
    }

    /// Returns true if any start waits or will become due.
    pub(super) fn has_more(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| queue.waiting() > 0 || queue.next_due().is_some())
    }

    /// Returns the time at which the next start becomes due, or none if there are no more.
    pub fn next_due(&mut self) -> Option<Nanos> {
        let start = self.start;
        self.queues.iter_mut().filter_map(StartQueue::next_due).min().map(|due| start + due)
    }

    /// Returns the wake-up time for an event that is due at `due`.
    #[must_use]
    pub fn wake_at(&self, due: Nanos, now: Nanos) -> Nanos {
        self.pacer.until(due).max(now)
    }

    /// Notes that another event became due at `now`. It shares the wake-ups of the schedule.
    pub(super) fn started(&mut self, now: Nanos) {
        self.pacer.started(now);
    }

    /// Learns how late a wait until `until` ended.
    pub fn learn(&mut self, until: Nanos, woke: Nanos) {
        self.pacer.learn(until, woke);
    }

    /// Returns the intended times of the waiting starts that will never be taken.
    pub fn rest(self) -> impl Iterator<Item = Nanos> {
        let start = self.start;
        self.queues.into_iter().flat_map(StartQueue::rest).map(move |intended| start + intended)
    }
}
