//! Layer 7, recorded traffic: the requests in a capture or in the access log of a server, and what became of each.
//!
//! This crate knows no socket and no clock.

mod answers;
mod conversation;
mod counts;
mod digest;
mod exchange;
mod log;
mod observer;
mod requests;

pub use counts::{AnswerFate, ConversationFate, ExchangeCounts, RequestFate};
pub use exchange::{LoggedAnswer, RecordedAnswer, RecordedExchange};
pub use log::{
    BodiesNotLogged, LineFate, LogContents, LogCounts, LogError, LogFormat, LogFormatError, LogOptions, read_log,
};
pub use observer::HttpObserver;
