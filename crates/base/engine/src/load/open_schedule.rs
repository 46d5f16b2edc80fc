//! The starts of an open load on one worker.

use fathom_model::units::Nanos;

use crate::pace::{Arrivals, ConnectionAvailability, DueStart, Pacer, Pacing, StartQueue};

/// The starts that one worker owes to each of its targets, and when it wakes for them. Times are of the clock.
#[derive(Debug)]
pub struct OpenSchedule<I: Iterator<Item = Nanos> = Arrivals> {
    start: Nanos,
    queues: Vec<StartQueue<I>>,
    pacer: Pacer,
}

impl<I: Iterator<Item = Nanos> + Clone> OpenSchedule<I> {
    /// The schedule of a trial that starts at `start`, with the arrivals for each target.
    pub fn new(start: Nanos, arrivals: impl IntoIterator<Item = I>, pacing: Pacing) -> Self {
        let queues = arrivals.into_iter().map(|arrivals| StartQueue::new(arrivals).paced(pacing)).collect();
        Self { start, queues, pacer: Pacer::new(pacing) }
    }

    /// Whether it is time to look for what is due.
    #[must_use]
    pub fn looks(&self, now: Nanos) -> bool {
        self.pacer.looks(now)
    }

    /// Notices what has become due for a target. Returns how many starts that is.
    pub fn notice(&mut self, target: usize, now: Nanos, free: ConnectionAvailability) -> u64 {
        let n_due = self.queues[target].notice(now - self.start, free);
        if n_due > 0 {
            self.pacer.started(now);
        }
        n_due
    }

    /// How many starts for a target are due and wait for a connection.
    #[must_use]
    pub fn waiting(&self, target: usize) -> u64 {
        self.queues[target].waiting()
    }

    /// Takes the start for a target that has been due for longest. Its intended time is one of the clock.
    pub fn take(&mut self, target: usize, now: Nanos) -> Option<DueStart> {
        let due = self.queues[target].start(now - self.start)?;
        Some(DueStart { intended: self.start + due.intended, ..due })
    }

    /// Whether anything waits or will become due.
    pub fn has_more(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| queue.waiting() > 0 || queue.next_due().is_some())
    }

    /// When the next start becomes due; none when none will.
    pub fn next_due(&mut self) -> Option<Nanos> {
        let start = self.start;
        self.queues.iter_mut().filter_map(StartQueue::next_due).min().map(|due| start + due)
    }

    /// When to wake for something that is due at `due`.
    #[must_use]
    pub fn wake_at(&self, due: Nanos, now: Nanos) -> Nanos {
        self.pacer.until(due).max(now)
    }

    /// Something else than a start of the schedule became due at `now`, and shares its wake-ups.
    pub fn started(&mut self, now: Nanos) {
        self.pacer.started(now);
    }

    /// The wake-ups.
    pub fn pacer(&mut self) -> &mut Pacer {
        &mut self.pacer
    }

    /// The intended times of the starts that wait and will never be taken.
    pub fn rest(self) -> impl Iterator<Item = Nanos> {
        let start = self.start;
        self.queues.into_iter().flat_map(StartQueue::rest).map(move |intended| start + intended)
    }
}
