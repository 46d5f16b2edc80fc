//! A world in virtual time: a client, a server with Linux's manners, and a channel that loses, doubles and reorders.
//!
//! The client is [`machine::Connection`](crate::machine::Connection) or the program; both are told of the same segments.

mod channel;
mod frames;
mod garbage;
mod interpreted;
mod play;
mod segments;
mod server;
mod slot;
mod tests;

use crate::machine::{Segment, Send, Step, flag};

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// A TCP segment under way, in either direction. The payload is not there: its place in the answer says what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packet {
    /// Which port of the slot it comes from, or goes to.
    port_idx: u16,
    /// Its header.
    segment: Segment,
    /// Its SACK block; equal ends if there is none.
    sack: (u32, u32),
    /// How many bytes of the answer are before it.
    answer_offset: u32,
    /// That answer says that the server closes after it.
    is_last_answer: bool,
    /// That answer is one that the program cannot follow.
    is_unusual_answer: bool,
}

impl Packet {
    /// What a step of the client sends.
    fn of_step(step: &Step, port_idx: u16, request_length: u32) -> Option<Self> {
        let (flags, length) = match step.send {
            Send::Nothing => return None,
            Send::Syn => (flag::SYN, 0),
            Send::Ack => (flag::ACK, 0),
            Send::Request => (flag::ACK | flag::PSH, request_length),
            Send::Fin => (flag::FIN | flag::ACK, 0),
            Send::Reset => (flag::RST, 0),
        };
        let segment = Segment { flags, sequence: step.sequence, acknowledgement: step.acknowledgement, length };
        Some(Self {
            port_idx,
            segment,
            sack: step.sack,
            answer_offset: 0,
            is_last_answer: false,
            is_unusual_answer: false,
        })
    }

    fn has(&self, flag: u8) -> bool {
        self.segment.flags & flag != 0
    }
}
