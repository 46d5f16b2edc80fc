//! Layer 7, recorded traffic: the requests in a capture or in the access log of a server, and what became of each; and the same requests, sent again.
//!
//! What reads a recording knows no socket and no clock. `sending` is the kind of test that sends it.

mod answers;
mod conversation;
mod counts;
mod digest;
mod exchange;
mod log;
mod observer;
mod requests;
mod sending;

pub use counts::{AnswerFate, ConversationFate, ExchangeCounts, RequestFate};
pub use exchange::{ExchangeSink, LoggedAnswer, RecordedAnswer, RecordedExchange};
pub use log::{
    BodiesNotLogged, LineFate, LogContents, LogCounts, LogError, LogFormat, LogFormatError, LogOptions, read_log,
};
pub use observer::HttpObserver;
pub use sending::{HttpReplay, LiveReplay, Timing};

/// All kinds of this crate.
pub const KINDS: &[&dyn fathom_engine::TestKind] = &[&HttpReplay, &LiveReplay];
