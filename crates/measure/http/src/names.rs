//! Names of counters that only requests have; the others are those of `fathom_model::names`.

/// Requests that ended, one way or the other: answered, or failed; connects that failed are among them.
pub const ATTEMPTS: &str = "attempts";
/// What failed, by cause in the errors of the record.
pub const ERRORS: &str = "errors";
/// Connections that the server ended after an answer, as it may.
pub const CLOSED_BY_SERVER: &str = "closed_by_server";
/// Requests that were over once they were sent, as nobody wanted their answers; only with `leave`.
pub const NOT_AWAITED: &str = "left";
/// Requests whose answer was still on its way when the trial ended.
pub const UNFINISHED: &str = "unfinished";
/// Requests that were due and never sent, because no connection became free before the end.
pub const NOT_STARTED: &str = "not_started";
/// Requests that were sent behind one whose answer was the last of its connection, and were sent again on another.
pub const RESENT: &str = "asked_again";
/// Answers by the class of their status; `other` is 600 and above.
pub const STATUS: [&str; 5] = ["status_2xx", "status_3xx", "status_4xx", "status_5xx", "status_other"];
/// Requests that a responder refused with an error status.
pub const REJECTED: &str = "rejected";
/// Connections that a responder ended because the other side was too slow.
pub const TIMED_OUT: &str = "timed_out";
/// The distribution of the rate of each worker, in requests per second over each tenth of a second.
pub const WORKER_RATE: &str = "worker_requests_per_sec";
/// Bytes of the bodies of answers that came to their end.
pub const BODY_BYTES: &str = "body_bytes";
/// The body of the first answer of a trial, in bytes.
pub const FIRST_BODY_BYTES: &str = "first_body_bytes";
/// Answers whose body is not as long as that of the first one.
pub const LENGTH_MISMATCHES: &str = "length_mismatches";
/// The distribution of service times, each with the connect before it where the request was the first of its connection.
pub const TOTAL_TIME: &str = "total_time_ns";

/// TLS sessions that were resumed instead of agreed on anew; only where there is TLS.
pub const TLS_RESUMED: &str = "tls_resumed";
/// Answers that ended with a connection on which TLS was not closed, so that they may be cut short; only where there is TLS.
pub const TLS_UNCLOSED: &str = "tls_left_open";

/// Names of what a server says of itself.
pub mod facts {
    /// The head of an answer, as it was received.
    pub const HEAD: &str = "head";
    /// The first answer as it began to come in: its head, and what came of its body with it.
    pub const ANSWER: &str = "first_answer";
    /// The version of TLS: `TLSv1.3`.
    pub const TLS_VERSION: &str = "tls_version";
    /// The cipher suite of TLS.
    pub const TLS_CIPHER: &str = "tls_cipher";
    /// The group in which TLS agreed on keys: `X25519`.
    pub const TLS_GROUP: &str = "tls_group";
    /// The size of the public key in the server's certificate, in bits.
    pub const TLS_SERVER_KEY: &str = "tls_server_key_bits";
}
