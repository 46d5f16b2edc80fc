//! Layer 7, recorded traffic: the requests in a capture with their answers, and what became of each.
//!
//! This crate knows no socket and no clock.

mod answers;
mod conversation;
mod counts;
mod digest;
mod exchange;
mod observer;
mod requests;

pub use counts::{AnswerFate, ConversationFate, ExchangeCounts, RequestFate};
pub use exchange::{RecordedAnswer, RecordedExchange};
pub use observer::HttpObserver;
