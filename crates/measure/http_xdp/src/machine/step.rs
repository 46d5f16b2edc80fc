//! What goes into a connection, and what comes out of it.

/// Flags of the TCP header (RFC 9293 section 3.1).
pub mod flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// A segment of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its flags, as in [`flag`].
    pub flags: u8,
    /// The number of its first byte.
    pub sequence: u32,
    /// What it acknowledges.
    pub acknowledgement: u32,
    /// The bytes of its payload.
    pub length: u32,
}

/// What the first bytes of an answer say. It is asked for only when a segment begins an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// The whole answer has so many bytes, head included, at least one.
    Answer {
        /// Its bytes.
        length: u32,
        /// Whether its status is 2xx.
        is_success: bool,
        /// Whether it says `Connection: close`.
        closes: bool,
    },
    /// It is no answer whose end can be told from its first segment: user space follows it.
    Unknown,
    /// It is no answer.
    Malformed,
}

/// What does not change while a load runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The bytes of a request.
    pub request_length: u32,
    /// Each request has a connection of its own, which the server closes.
    pub closes: bool,
    /// A connection whose request was answered waits until user space starts the next one.
    pub is_open_load: bool,
    /// How many ports a slot has, minus one: a power of two minus one.
    pub port_mask: u16,
}

/// What holds when a segment arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditions {
    /// The time, in nanoseconds.
    pub now: u64,
    /// The load ends: nothing new begins.
    pub stops: bool,
    /// The rules of the load.
    pub rules: Rules,
}

/// What to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Send {
    /// Nothing.
    #[default]
    Nothing = 0,
    /// A SYN.
    Syn = 1,
    /// An acknowledgement, with one SACK block if [`Step::sack`] is a range.
    Ack = 2,
    /// The request.
    Request = 3,
    /// A FIN with an acknowledgement.
    Fin = 4,
    /// A reset.
    Reset = 5,
}

/// Something that happened, which is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A whole answer arrived.
    Answered,
    /// That answer's status is not 2xx.
    NotSuccess,
    /// The server accepted a connection.
    Opened,
    /// Both sides have closed.
    Closed,
    /// The server reset the connection.
    Reset,
    /// The server closed the connection before the answer had ended.
    ClosedEarly,
    /// Bytes that are no answer; the connection was reset.
    UnknownAnswer,
    /// More bytes than the answer has; the connection was reset.
    Excess,
    /// The segment belongs to an earlier connection.
    Stray,
    /// Bytes were missing before this segment.
    Gap,
    /// A segment without anything new.
    Duplicate,
    /// Something was sent again, since no answer came.
    Resent,
    /// The request or the connection took longer than the timeout; it was given up.
    TimedOut,
    /// The first bytes of an answer arrived.
    Begun,
    /// An answer whose end its first segment does not tell; user space follows it.
    HandedOver,
}

impl Event {
    /// All events, by their numbers.
    pub const ALL: [Self; 15] = [
        Self::Answered,
        Self::NotSuccess,
        Self::Opened,
        Self::Closed,
        Self::Reset,
        Self::ClosedEarly,
        Self::UnknownAnswer,
        Self::Excess,
        Self::Stray,
        Self::Gap,
        Self::Duplicate,
        Self::Resent,
        Self::TimedOut,
        Self::Begun,
        Self::HandedOver,
    ];

    /// Its bit in [`Events`].
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A set of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events(pub u32);

impl Events {
    /// Adds one.
    pub const fn add(&mut self, event: Event) {
        self.0 |= event.bit();
    }

    /// Whether it is among them.
    #[must_use]
    pub const fn has(self, event: Event) -> bool {
        self.0 & event.bit() != 0
    }
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// What to send.
    pub send: Send,
    /// The sequence number of what is sent.
    pub sequence: u32,
    /// The acknowledgement of what is sent; zero in a SYN and in a reset.
    pub acknowledgement: u32,
    /// The range that came early; equal ends if there is none.
    pub sack: (u32, u32),
    /// What happened.
    pub events: Events,
    /// The segment is for user space.
    pub is_for_user_space: bool,
    /// Nanoseconds to the first bytes of an answer, with [`Event::Begun`]: from the start, and in an open load from when the request was sent.
    pub to_first: u64,
    /// Nanoseconds from the start to the last byte of an answer, with [`Event::Answered`]; to the SYN-ACK, with [`Event::Opened`].
    pub elapsed: u64,
}
