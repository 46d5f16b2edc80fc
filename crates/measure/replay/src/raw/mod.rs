//! Layer 4, recorded traffic: what the clients of a capture sent over TCP or UDP, sent again as it was, whatever its protocol.
//!
//! [`turns`] and [`datagrams`] find the messages in a capture and know no socket; [`recording`] keeps them; the others send them.

mod compare;
mod counters;
mod datagrams;
mod flow;
mod flow_loop;
mod kind;
mod message;
mod metrics;
mod recording;
mod results;
mod source;
mod target;
mod turns;

pub use self::{
    kind::{RawReplay, TCP_REPLAY, UDP_REPLAY},
    source::{RawContents, raw_contents},
    target::Transport,
};
