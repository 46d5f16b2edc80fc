//! Recorded traffic: the requests of HTTP in a capture or in the access log of a server, and what became of each; and the same requests,
//! sent again. `raw` does so with the bytes of any other protocol.
//!
//! What reads a recording knows no socket and no clock. `sending` is the kind of test that sends it.
//!
//! # Words
//!
//! - exchange: a recorded request with its answer.
//! - fate: what became of a request, an answer, a conversation or a line of a log; each has one.
//! - `LogFormat`, `Pattern`, `Field`: the format of the lines of an access log; one that is text with variables; what a value of a line says.
//! - lane: streams of a connection of HTTP/2 that followed each other: as much as one connection of HTTP/1.1 can carry.
//! - `Recording`: the requests that are sent: when each is due, and which follows it.
//! - session: the requests of one recorded connection, over HTTP/2 of one lane.
//! - `Spool`: requests and recorded answers on disk, in a file without a name; its `Schedule` says when each is due, and which follows it.
//! - turn: what a client of TCP sends before it waits for the server; a message is a turn or a datagram.

mod conversation;
mod counts;
mod digest;
mod exchange;
mod http1;
mod http2;
mod keys;
mod log;
mod observer;
mod options;
mod raw;
mod schedule;
mod sending;
mod servers;
mod session_share;
mod shared;
mod spool;
mod timing;

pub use counts::{AnswerFate, ConversationFate, ExchangeCounts, RequestFate};
pub use exchange::{ExchangeSink, LoggedAnswer, RecordedAnswer, RecordedExchange};
pub use log::{
    BodiesNotLogged, LineFate, LogContents, LogCounts, LogError, LogFormat, LogFormatError, LogOptions, read_log,
};
pub use observer::HttpObserver;
pub use raw::{RawContents, RawReplay, TCP_REPLAY, Transport, UDP_REPLAY, raw_contents};
pub use sending::{HttpReplay, LiveReplay};
pub use timing::Timing;

/// All kinds of this crate.
pub const KINDS: &[&dyn fathom_engine::TestKind] = &[&HttpReplay, &LiveReplay, &TCP_REPLAY, &UDP_REPLAY];
