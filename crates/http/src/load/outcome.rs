//! What a worker counts and brings home.

use fathom_model::{Histogram, names::count};

use super::fault::Faults;
use crate::names;

/// The places of the counters.
#[derive(Debug, Clone, Copy)]
pub(super) enum Counter {
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
pub(super) const COUNTERS: &[&str] = &[
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
pub(super) const CLOSED_COUNTERS: usize = Counter::Intended as usize;

/// What a worker brings home beside its counters.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) service: Histogram,
    pub(super) response: Histogram,
    pub(super) lag: Histogram,
    pub(super) resolve: Histogram,
    pub(super) connect: Histogram,
    pub(super) proxy: Histogram,
    pub(super) tls: Histogram,
    pub(super) first_byte: Histogram,
    pub(super) download: Histogram,
    pub(super) faults: Faults,
    /// Requests whose answer was still on its way at the end.
    pub(super) n_unfinished: u64,
    /// Requests that were due and never sent.
    pub(super) n_not_started: u64,
    /// Values among the times of requests that are lower bounds: the wait was given up.
    pub(super) n_bounds: u64,
    /// Whether bodies were discarded without being copied.
    pub(super) has_discarded: bool,
}

impl Outcome {
    pub(super) fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.response.merge(&other.response);
        self.lag.merge(&other.lag);
        self.resolve.merge(&other.resolve);
        self.connect.merge(&other.connect);
        self.proxy.merge(&other.proxy);
        self.tls.merge(&other.tls);
        self.first_byte.merge(&other.first_byte);
        self.download.merge(&other.download);
        for (fault, n) in &other.faults {
            *self.faults.entry(*fault).or_default() += n;
        }
        self.n_unfinished += other.n_unfinished;
        self.n_not_started += other.n_not_started;
        self.n_bounds += other.n_bounds;
        self.has_discarded |= other.has_discarded;
    }
}
