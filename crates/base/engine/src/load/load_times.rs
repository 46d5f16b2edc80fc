//! The recorded times of a load.

use fathom_model::Histogram;

/// The times of the requests of a load that count, and the number of those without an answer.
#[derive(Debug, Default)]
pub struct LoadTimes {
    /// From the send to the whole answer.
    pub service: Histogram,
    /// From the intended start to the whole answer; only in an open load.
    pub response: Histogram,
    /// From the intended start to the send; only on a schedule.
    pub lag: Histogram,
    /// Requests that had no answer when the trial ended, whether they count or not.
    pub n_unfinished: u64,
    /// Connections whose request had waited far longer than others take when the trial ended.
    pub n_stuck: u64,
    /// Those of them that had no answer at all.
    pub n_stuck_unserved: u64,
    /// Requests that were due and never started, whether they count or not.
    pub n_not_started: u64,
    /// Requests whose recorded times are lower bounds.
    pub n_lower_bounds: u64,
}

impl LoadTimes {
    /// Adds the times of another worker.
    pub fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.response.merge(&other.response);
        self.lag.merge(&other.lag);
        self.n_unfinished += other.n_unfinished;
        self.n_stuck += other.n_stuck;
        self.n_stuck_unserved += other.n_stuck_unserved;
        self.n_not_started += other.n_not_started;
        self.n_lower_bounds += other.n_lower_bounds;
    }
}
