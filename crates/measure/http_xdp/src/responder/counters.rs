//! What the program counts, for each processor.

/// A counter of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counter {
    Syn,
    Request,
    Sent,
    NoRoom,
    Unanswered,
    Stranger,
}

impl Counter {
    /// The number of words of a row.
    pub(super) const WORDS: usize = 6;

    /// Its offset in bytes.
    pub(super) const fn offset(self) -> i16 {
        8 * self as i16
    }
}

/// What a responder has done since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XdpResponderCounts {
    /// SYNs received. One that a client sends again counts again.
    pub syns: u64,
    /// Segments with a request received. One that a client sends again counts again.
    pub requests: u64,
    /// Frames sent.
    pub sent: u64,
    /// Segments without an answer, because it is longer than their frames can grow.
    pub no_room: u64,
    /// Segments that need no answer, such as acknowledgements and resets, that are not whole, or whose hop limit leaves none for
    /// an answer.
    pub unanswered: u64,
    /// Segments dropped because of their source address.
    pub strangers: u64,
}

impl XdpResponderCounts {
    pub(super) const fn from_words(
        [syns, requests, sent, no_room, unanswered, strangers]: [u64; Counter::WORDS],
    ) -> Self {
        Self { syns, requests, sent, no_room, unanswered, strangers }
    }
}
