//! What a worker counts and brings home.

use fathom_model::{Histogram, names::count};

use super::ledger::Books;
use crate::{
    lines::{Faults, OpeningTimes},
    names,
};

/// The places of the counters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counter {
    Requests,
    BytesReceived,
    Connections,
    Attempts,
    Errors,
    ClosedByServer,
    Status2xx,
    // Four more classes follow.
    AskedAgain = 11,
    Intended,
    Sent,
    LateNoConnection,
    LateOwnCpu,
}

/// The names of the counters, in the order of [`Counter`]; a closed load has the first [`CLOSED_COUNTERS`] of them.
pub(crate) const COUNTERS: &[&str] = &[
    count::REQUESTS,
    count::BYTES_RECEIVED,
    count::CONNECTIONS,
    names::ATTEMPTS,
    names::ERRORS,
    names::CLOSED_BY_SERVER,
    names::STATUS[0],
    names::STATUS[1],
    names::STATUS[2],
    names::STATUS[3],
    names::STATUS[4],
    names::ASKED_AGAIN,
    count::INTENDED,
    count::SENT,
    count::LATE_NO_CONNECTION,
    count::LATE_OWN_CPU,
];

/// How many counters a load without a schedule has.
pub(crate) const CLOSED_COUNTERS: usize = Counter::Intended as usize;

/// What a worker brings home beside its counters.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) service: Histogram,
    pub(crate) response: Histogram,
    pub(crate) lag: Histogram,
    pub(crate) opening: OpeningTimes,
    pub(crate) first_byte: Histogram,
    pub(crate) download: Histogram,
    pub(crate) faults: Faults,
    /// Requests whose answer was still on its way at the end.
    pub(crate) n_unfinished: u64,
    /// Requests that were due and never sent.
    pub(crate) n_not_started: u64,
    /// Values among the times of requests that are lower bounds: the wait was given up.
    pub(crate) n_bounds: u64,
    /// Requests that were over once they were sent.
    pub(crate) n_left: u64,
    /// Answers that ended with their connection, which TLS did not close.
    pub(crate) n_left_open: u64,
    /// Whether bodies were discarded without being copied.
    pub(crate) has_discarded: bool,
    pub(crate) books: Books,
}

impl Outcome {
    /// All workers' together.
    pub(crate) fn merged<'a>(outcomes: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        outcomes.into_iter().for_each(|outcome| all.merge(outcome));
        all
    }

    fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.response.merge(&other.response);
        self.lag.merge(&other.lag);
        self.opening.merge(&other.opening);
        self.first_byte.merge(&other.first_byte);
        self.download.merge(&other.download);
        for (fault, n) in &other.faults {
            *self.faults.entry(*fault).or_default() += n;
        }
        self.n_unfinished += other.n_unfinished;
        self.n_not_started += other.n_not_started;
        self.n_bounds += other.n_bounds;
        self.n_left += other.n_left;
        self.n_left_open += other.n_left_open;
        self.has_discarded |= other.has_discarded;
        self.books.merge(&other.books);
    }
}
