//! What a worker counts while it sends messages.

use fathom_engine::load::LoadCounters;
use fathom_model::names::count;

/// The indices of the counters.
pub(super) mod counter {
    /// Sockets that were opened.
    pub(in crate::raw) const CONNECTIONS: usize = 5;
    /// Messages that were sent.
    pub(in crate::raw) const SENT: usize = 6;
    pub(in crate::raw) const BYTES_SENT: usize = 7;
    pub(in crate::raw) const BYTES_RECEIVED: usize = 8;
}

/// What a worker counts; the first five are of the load.
pub(super) const COUNTERS: &[&str] = &[
    count::TRANSACTIONS,
    "sessions_due",
    "sessions_begun",
    "sessions_late_no_connection",
    "sessions_late_own_cpu",
    count::CONNECTIONS,
    count::SENT,
    count::BYTES_SENT,
    count::BYTES_RECEIVED,
];
pub(super) const OF_LOAD: LoadCounters =
    LoadCounters { answers: 0, intended: 1, sent: 2, late_no_connection: 3, late_own_cpu: 4 };
