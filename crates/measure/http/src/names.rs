//! Names of counters that only requests have; the others are in `fathom_model::names`.

use fathom_model::names::{count, distribution};

/// Requests that ended, whether answered or failed; failed connects are included.
pub const ATTEMPTS: &str = count::ATTEMPTS;
/// Failures; the errors of the record list them by cause.
pub const ERRORS: &str = "errors";
/// Connections that the server closed after an answer, which it may do.
pub const CLOSED_BY_SERVER: &str = count::CLOSED_BY_SERVER;
/// Requests that were complete once they were sent, because their answers were not awaited; only with `leave`.
pub const NOT_AWAITED: &str = "left";
/// Requests still waiting for their answer when the trial ended.
pub const UNFINISHED: &str = count::UNFINISHED;
/// Connections that got no answer: their requests had waited far longer than others take when the trial ended.
pub const STUCK: &str = count::STUCK;
/// Requests that were due and never sent, because no connection became free before the end.
pub const NOT_STARTED: &str = count::NOT_STARTED;
/// Requests sent after the last one that a connection answered, and sent again on another connection.
pub const RESENT: &str = "asked_again";
/// Answers by status class; `other` is 600 and above.
pub const STATUS: [&str; 5] =
    ["status_2xx", count::REDIRECTS, count::REFUSED_REQUESTS, count::SERVER_FAILURES, "status_other"];
/// Requests that a responder refused with an error status.
pub const REJECTED: &str = "rejected";
/// Connections that a responder closed because the client was too slow.
pub const TIMED_OUT: &str = "timed_out";
/// The distribution of each worker's request rate per second, over intervals of 100 ms.
pub const WORKER_RATE: &str = "worker_requests_per_sec";
/// Bytes of the bodies of complete answers.
pub const BODY_BYTES: &str = "body_bytes";
/// The length of the first body of a trial, in bytes.
pub const FIRST_BODY_BYTES: &str = "first_body_bytes";
/// Answers whose body length differs from that of the first one.
pub const LENGTH_MISMATCHES: &str = "length_mismatches";
/// The distribution of service times; the first request of a connection includes its connect.
pub const TOTAL_TIME: &str = distribution::TOTAL_TIME;

/// TLS handshakes that resumed a session; only with TLS.
pub const TLS_RESUMED: &str = "tls_resumed";
/// Answers that ended with a connection on which TLS was not closed, so they may be truncated; only with TLS.
pub const TLS_UNCLOSED: &str = "tls_left_open";

/// Names of facts about a server.
pub mod facts {
    /// The head of an answer, as received.
    pub const HEAD: &str = "head";
    /// The beginning of the first answer as received: its head and the first bytes of its body.
    pub const ANSWER: &str = "first_answer";
    /// The version of TLS: `TLSv1.3`.
    pub const TLS_VERSION: &str = "tls_version";
    /// The cipher suite of TLS.
    pub const TLS_CIPHER: &str = "tls_cipher";
    /// The key exchange group of TLS: `X25519`.
    pub const TLS_GROUP: &str = "tls_group";
    /// The size of the public key in the server's certificate, in bits.
    pub const TLS_SERVER_KEY: &str = "tls_server_key_bits";
}
