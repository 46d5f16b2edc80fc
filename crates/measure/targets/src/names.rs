//! The counters and distributions of the tests of targets.

/// The counters of these tests.
pub(crate) mod counter {
    /// Connections or datagrams that were begun, and those without an answer.
    pub(crate) const ATTEMPTS: &str = "attempts";
    pub(crate) const FAILED: &str = "failed";
    /// Messages that were due, and what became of them; the answered ones include the late ones.
    pub(crate) const DUE: &str = "messages_due";
    pub(crate) const ANSWERED: &str = "messages_answered";
    pub(crate) const LATE: &str = "messages_late";
    pub(crate) const LOST: &str = "messages_lost";
    /// Flows, and those that lost a message, or that another target answered on the same connection; how often that was.
    pub(crate) const FLOWS: &str = "flows";
    pub(crate) const FLOWS_WITH_OUTAGE: &str = "flows_with_outage";
    pub(crate) const MOVED_FLOWS: &str = "flows_moved";
    pub(crate) const MOVES: &str = "moves";
    /// Connections that ended before the test.
    pub(crate) const BROKEN: &str = "connections_broken";
}

/// The distributions of these tests.
pub(crate) mod distribution {
    /// From when the first lost message of a flow was due to when the next answered one was.
    pub(crate) const OUTAGE: &str = "outage_ns";
}
