//! One TCP connection with at most one request in flight, as pure code: no clock, no packets, no maps.
//!
//! [`Connection::on_segment`] answers the server's segments, [`Connection::on_silence`] acts when none came, [`Connection::open`] and
//! [`Connection::start_request`] begin something new. Each returns a [`Step`]: what to send, and what happened. The XDP program is made
//! of the same rules, and is tested against this.

mod connection;
mod segments;
mod silence;
mod step;

pub use connection::{Connection, HEAD_DUE, ROW_WORDS, STATE_WORD, State, TAKEN, TAKEN_MASK, TAKEN_WORD, offset};
pub use segments::WINDOW;
pub use silence::Timers;
pub use step::{Conditions, Event, Events, Head, Rules, Segment, Send, Step, flag};

#[cfg(test)]
mod stories;
#[cfg(test)]
mod tests;

/// Whether sequence number `a` is behind `b` (RFC 9293 section 3.4).
#[must_use]
pub const fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}
