//! The counters and results of a worker.

use std::collections::BTreeMap;

use fathom_engine::{
    Reception,
    load::{LoadCounters, LoadTimes},
};
use fathom_model::{Histogram, Part, SampledUnit, names::count};

use super::request_totals::RequestTotals;
use crate::{
    conn::{ConnectTimes, FaultCounts},
    names,
};

/// The indices of the counters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadCounter {
    Requests,
    BytesReceived,
    Connections,
    Attempts,
    Errors,
    ClosedByServer,
    Status2xx,
    // Four more status classes follow.
    Resent = 11,
    Intended,
    Sent,
    LateNoConnection,
    LateOwnCpu,
}

/// The names of the counters, in the order of [`LoadCounter`]; a closed load has the first [`CLOSED_COUNTERS`] of them.
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
    names::RESENT,
    count::INTENDED,
    count::SENT,
    count::LATE_NO_CONNECTION,
    count::LATE_OWN_CPU,
];

/// The number of counters of a closed load.
pub(crate) const CLOSED_COUNTERS: usize = LoadCounter::Intended as usize;

/// The indices of those that a load counts itself.
pub(crate) const LOAD_COUNTERS: LoadCounters = LoadCounters {
    answers: LoadCounter::Requests as usize,
    intended: LoadCounter::Intended as usize,
    sent: LoadCounter::Sent as usize,
    late_no_connection: LoadCounter::LateNoConnection as usize,
    late_own_cpu: LoadCounter::LateOwnCpu as usize,
};

/// The parts of the time of a request.
pub(crate) const REQUEST_PARTS: [Part; 5] =
    [Part::Late, Part::Connect, Part::BaselineRtt, Part::Server, Part::Download];

/// The results of a worker besides its counters.
#[derive(Debug, Default)]
pub(crate) struct LoadResults {
    pub(crate) times: LoadTimes,
    pub(crate) opening: ConnectTimes,
    pub(crate) first_byte: Histogram,
    pub(crate) download: Histogram,
    pub(crate) faults: FaultCounts,
    /// Answers by status, without those of class 2.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests that were complete once they were sent.
    pub(crate) n_not_awaited: u64,
    /// Answers that ended with a connection that TLS had not closed.
    pub(crate) n_tls_unclosed: u64,
    /// Whether bodies were discarded without being copied.
    pub(crate) has_discarded: bool,
    /// Some of the requests, with the parts [`REQUEST_PARTS`].
    pub(crate) sampled: Vec<SampledUnit>,
    pub(crate) totals: RequestTotals,
    /// How the answers arrived.
    pub(crate) reception: Reception,
}

impl LoadResults {
    /// Merges the results of all workers.
    pub(crate) fn merged<'a>(outcomes: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        outcomes.into_iter().for_each(|outcome| all.merge(outcome));
        all
    }

    fn merge(&mut self, other: &Self) {
        self.times.merge(&other.times);
        self.opening.merge(&other.opening);
        self.first_byte.merge(&other.first_byte);
        self.download.merge(&other.download);
        for (fault, n) in &other.faults {
            *self.faults.entry(*fault).or_default() += n;
        }
        for (status, n) in &other.statuses {
            *self.statuses.entry(*status).or_default() += n;
        }
        self.n_not_awaited += other.n_not_awaited;
        self.n_tls_unclosed += other.n_tls_unclosed;
        self.has_discarded |= other.has_discarded;
        self.sampled.extend_from_slice(&other.sampled);
        self.totals.merge(&other.totals);
        self.reception.merge(&other.reception);
    }
}
