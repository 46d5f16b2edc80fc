//! Names of counters that only requests have; the others are those of `fathom_model::names`.

/// Requests that ended, one way or the other: answered, or failed; connects that failed are among them.
pub const ATTEMPTS: &str = "attempts";
/// What failed, by cause in the errors of the record.
pub const ERRORS: &str = "errors";
/// Connections that the server ended after an answer, as it may.
pub const CLOSED_BY_SERVER: &str = "closed_by_server";
/// Requests whose answer was still on its way when the trial ended.
pub const UNFINISHED: &str = "unfinished";
/// Requests that were due and never sent, because no connection became free before the end.
pub const NOT_STARTED: &str = "not_started";
/// Requests that were sent behind one whose answer was the last of its connection, and were sent again on another.
pub const ASKED_AGAIN: &str = "asked_again";
/// Answers by the class of their status; `other` is 600 and above.
pub const STATUS: [&str; 5] = ["status_2xx", "status_3xx", "status_4xx", "status_5xx", "status_other"];
/// Requests that a responder refused with an error status.
pub const REJECTED: &str = "rejected";
/// Connections that a responder ended because the other side was too slow.
pub const TIMED_OUT: &str = "timed_out";
