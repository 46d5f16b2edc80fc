//! The header that our datagrams begin with, and the messages that the receiver sends back.
//!
//! Token, number and time of sending, big-endian: 18 bytes, which is what the smallest Ethernet frame has room for above UDP and
//! IPv4. Two bytes of the token keep strangers' datagrams out of the counts. Messages show all 64 bits of it, which
//! nobody guesses; it is no protection against someone who listens.

use fathom_model::units::Nanos;

use super::{Codec, Header, Part};

/// The length of the header; shorter datagrams carry no number.
pub(crate) const LENGTH: usize = 18;

/// The length of what the two ends say to each other beside the stream: token, kind and number.
///
/// All are equally long, so that an answer is never longer than its question; a mark of the end is longer than any.
pub(crate) const MESSAGE: usize = 17;

/// The upper bits of the time of sending, which a monotonic clock reaches after 146 years.
const END: u64 = 1 << 63;
const WARM_UP: u64 = 1 << 62;

/// What keeps the datagrams of one flow of one trial from those of others.
///
/// Datagrams of the stream begin with two bytes of it; who says where it is shows the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    short: [u8; 2],
    whole: [u8; 8],
}

/// What is said beside the stream; all but the challenge by the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// Here I am: send to where this comes from.
    Here,
    /// I have seen a mark of the end.
    Seen,
    /// Enough: come to the end.
    Enough,
    /// Whoever you are, return this number from where it arrives.
    Challenge(u64),
    /// The number of a challenge.
    Return(u64),
}

impl Message {
    /// The kind as it is sent, and the number.
    const fn parts(self) -> (u8, u64) {
        match self {
            Self::Here => (1, 0),
            Self::Seen => (2, 0),
            Self::Enough => (3, 0),
            Self::Challenge(number) => (4, number),
            Self::Return(number) => (5, number),
        }
    }

    const fn of(parts: (u8, u64)) -> Option<Self> {
        match parts {
            (1, 0) => Some(Self::Here),
            (2, 0) => Some(Self::Seen),
            (3, 0) => Some(Self::Enough),
            (4, number) => Some(Self::Challenge(number)),
            (5, number) => Some(Self::Return(number)),
            _ => None,
        }
    }
}

impl Token {
    /// The same on both sides, which have the same secret.
    #[must_use]
    pub(crate) fn new(secret: u64, flow: u16) -> Self {
        let [low, high, ..] = secret.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).to_le_bytes();
        let short = (u16::from_le_bytes([low, high]) ^ flow).to_be_bytes();
        Self { short, whole: (secret ^ u64::from(flow)).to_be_bytes() }
    }

    /// A message as it is sent.
    #[must_use]
    pub(crate) fn message(self, message: Message) -> [u8; MESSAGE] {
        let (kind, number) = message.parts();
        let mut bytes = [kind; MESSAGE];
        bytes[..8].copy_from_slice(&self.whole);
        bytes[9..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// What the other end of this flow said; nothing when it was somebody else.
    #[must_use]
    pub(crate) fn heard(self, datagram: &[u8]) -> Option<Message> {
        let (kind, number) = datagram.strip_prefix(&self.whole)?.split_first()?;
        Message::of((*kind, u64::from_be_bytes(number.try_into().ok()?)))
    }
}

/// Our own header in datagrams of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Own {
    token: Token,
    /// How many came so far, where they carry no number and are taken to be in order.
    n_bare: Option<u64>,
}

impl Own {
    /// For datagrams that each carry a number.
    #[must_use]
    pub(crate) fn numbered(token: Token) -> Self {
        Self { token, n_bare: None }
    }

    /// For datagrams that are too short for one.
    #[must_use]
    pub(crate) fn bare(token: Token) -> Self {
        Self { token, n_bare: Some(0) }
    }
}

impl Codec for Own {
    /// Writes as much of the token as fits to a datagram that is too short for a header.
    fn write(&self, header: Header, datagram: &mut [u8]) {
        let bits = match header.part {
            Part::WarmUp => WARM_UP,
            Part::Measured => 0,
            Part::End => END,
        };
        let Some((head, _)) = datagram.split_first_chunk_mut::<LENGTH>() else {
            let n = datagram.len().min(self.token.short.len());
            datagram[..n].copy_from_slice(&self.token.short[..n]);
            return;
        };
        head[..2].copy_from_slice(&self.token.short);
        head[2..10].copy_from_slice(&header.number.to_be_bytes());
        head[10..].copy_from_slice(&(header.sent.0 & (WARM_UP - 1) | bits).to_be_bytes());
    }

    fn read(&mut self, datagram: &[u8]) -> Option<Header> {
        let n_token = datagram.len().min(self.token.short.len());
        let is_ours = n_token > 0 && self.token.short.starts_with(&datagram[..n_token]);
        is_ours.then_some(())?;
        let numbered = numbered(datagram);
        let Some(n_bare) = &mut self.n_bare else { return numbered };
        *n_bare += 1;
        // A mark of the end is long enough for a number, but is the next of those that are not.
        let bare = Header { number: 0, sent: Nanos::ZERO, part: Part::WarmUp };
        Some(Header { number: *n_bare - 1, ..numbered.unwrap_or(bare) })
    }
}

/// Reads what is behind the token.
fn numbered(datagram: &[u8]) -> Option<Header> {
    let (_, rest) = datagram.split_first_chunk::<2>()?;
    let (number, rest) = rest.split_first_chunk()?;
    let sent = u64::from_be_bytes(*rest.first_chunk()?);
    let part = match (sent & END > 0, sent & WARM_UP > 0) {
        (true, _) => Part::End,
        (false, true) => Part::WarmUp,
        (false, false) => Part::Measured,
    };
    Some(Header { number: u64::from_be_bytes(*number), sent: Nanos(sent & (WARM_UP - 1)), part })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_by_the_same_flow_only() {
        let own = |seed, flow| Own::numbered(Token::new(seed, flow));
        for part in [Part::WarmUp, Part::Measured, Part::End] {
            let header = Header { number: 1 << 40, sent: Nanos(77), part };
            let mut datagram = [0xee; 20];
            own(42, 3).write(header, &mut datagram);
            assert_eq!(own(42, 3).read(&datagram), Some(header));
            assert_eq!(own(42, 3).read(&datagram[..LENGTH]), Some(header));
            assert_eq!(own(42, 3).read(&datagram[..LENGTH - 1]), None);
            assert_eq!(own(42, 3).read(&[]), None);
            assert_eq!(own(42, 4).read(&datagram), None);
            assert_eq!(own(43, 3).read(&datagram), None);
            assert_eq!(datagram[LENGTH..], [0xee; 2]);
        }
    }

    #[test]
    fn datagrams_too_short_for_a_number_are_counted_in_the_order_they_come() {
        let mut own = Own::bare(Token::new(42, 3));
        for (size, number) in [(1, 0), (2, 1), (17, 2)] {
            let mut datagram = vec![0xee; size];
            own.write(Header { number: 9, sent: Nanos(5), part: Part::Measured }, &mut datagram);
            assert_eq!(own.read(&datagram).unwrap().number, number);
            datagram[0] ^= 1;
            assert_eq!(own.read(&datagram), None);
        }
        assert_eq!(own.read(&[]), None);
        let mut mark = [0; LENGTH];
        own.write(Header { number: 9, sent: Nanos(5), part: Part::End }, &mut mark);
        assert_eq!(own.read(&mark), Some(Header { number: 3, sent: Nanos(5), part: Part::End }));
    }

    #[test]
    fn a_message_is_heard_by_the_sender_of_its_flow_only() {
        let token = Token::new(42, 3);
        let numbered = [Message::Challenge(1 << 63), Message::Return(7)];
        for message in [Message::Here, Message::Seen, Message::Enough].into_iter().chain(numbered) {
            let datagram = token.message(message);
            assert_eq!(token.heard(&datagram), Some(message));
            assert_eq!(Token::new(42, 4).heard(&datagram), None);
            assert_eq!(token.heard(&datagram[1..]), None);
            assert_eq!(token.heard(&datagram[..MESSAGE - 1]), None);
        }
        assert_eq!(token.heard(&[0]), None);
        const { assert!(MESSAGE <= LENGTH, "a mark is answered with a message") };
    }
}
