//! The counters of a load, as its worker shows them while it runs.

use fathom_engine::WorkerHandle;
use fathom_http::names;
use fathom_model::names::count;

use super::scan::OwnCounts;
use crate::{machine::Event, program::Counts};

/// The indices of the counters of a schedule. Those of every load stand before them, in the order of [`sums`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Tally {
    Intended = 6,
    Sent,
    LateNoConnection,
    LateOwnCpu,
}

/// Answers that user space followed.
pub(crate) const BY_SLOW_PATH: &str = "answered_by_slow_path";

const N_OF_EVERY_LOAD: usize = Tally::Intended as usize;

/// Their names.
const COUNTERS: &[&str] = &[
    count::REQUESTS,
    count::CONNECTIONS,
    names::ATTEMPTS,
    names::ERRORS,
    names::STATUS[0],
    BY_SLOW_PATH,
    count::INTENDED,
    count::SENT,
    count::LATE_NO_CONNECTION,
    count::LATE_OWN_CPU,
];

/// The counters of a load; those of starts only of one with a schedule.
pub(super) fn counters(has_schedule: bool) -> &'static [&'static str] {
    if has_schedule { COUNTERS } else { &COUNTERS[..N_OF_EVERY_LOAD] }
}

/// The events by which a request fails without a time-out.
pub(crate) const FAILURES: [Event; 4] = [Event::Reset, Event::ClosedEarly, Event::UnknownAnswer, Event::Excess];

/// What has been shown already.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shown([u64; N_OF_EVERY_LOAD]);

impl Shown {
    /// Leaves out what was counted before the load.
    pub(super) fn after(counts: &Counts, n_slow: u64) -> Self {
        Self(sums(counts, &OwnCounts::default(), n_slow))
    }

    /// Shows what was counted since the last time.
    pub(super) fn update(&mut self, counts: &Counts, own: &OwnCounts, n_slow: u64, worker: &WorkerHandle<'_>) {
        for (counter, (now, before)) in sums(counts, own, n_slow).into_iter().zip(&mut self.0).enumerate() {
            worker.add(counter, now.saturating_sub(*before));
            *before = now.max(*before);
        }
    }
}

/// The counters of every load, in the order of their names.
fn sums(counts: &Counts, own: &OwnCounts, n_slow: u64) -> [u64; N_OF_EVERY_LOAD] {
    let answered = counts.n(Event::Answered);
    let ended: u64 = FAILURES.iter().map(|event| counts.n(*event)).sum();
    let failed = ended + own.n_connects_timed_out + own.n_requests_timed_out;
    let success = answered.saturating_sub(counts.n(Event::NotSuccess));
    [answered, counts.n(Event::Opened), answered + failed, failed, success, n_slow]
}
