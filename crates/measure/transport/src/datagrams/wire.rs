//! The header of fathom's datagrams, and the messages that the receiver sends back.
//!
//! Token, number and send time, big-endian: 18 bytes, the room that the smallest Ethernet frame has above UDP and IPv4. Two bytes
//! of the token keep other senders' datagrams out of the counts. Messages carry all 64 bits of it, which cannot be guessed; this
//! does not protect against an eavesdropper.

use fathom_model::units::Nanos;

use super::{DatagramHeader, HeaderCodec, StreamPhase};

/// The length of the header; shorter datagrams carry no number.
pub const HEADER_LEN: usize = 18;

/// The length of a control message: token, kind and number.
///
/// All are equally long, so that an answer is never longer than its question; an end mark is longer than any.
pub const MESSAGE_LEN: usize = 17;

/// The upper bits of the send time, which a monotonic clock reaches after 146 years.
const END: u64 = 1 << 63;
const WARM_UP: u64 = 1 << 62;

/// Separates the datagrams of one flow of one trial from others.
///
/// Datagrams of the stream begin with two bytes of it; control messages carry the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowToken {
    short: [u8; 2],
    whole: [u8; 8],
}

/// The control messages; the receiver sends all but the challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlMessage {
    /// Asks the sender to send to the source of this message.
    Hello,
    /// Confirms that an end mark was received.
    EndAck,
    /// Asks the sender to end the stream.
    Stop,
    /// Asks for this number to be returned from the address where it arrives.
    Challenge(u64),
    /// The number of a challenge.
    ChallengeResponse(u64),
}

impl ControlMessage {
    /// The kind as it is sent, and the number.
    const fn parts(self) -> (u8, u64) {
        match self {
            Self::Hello => (1, 0),
            Self::EndAck => (2, 0),
            Self::Stop => (3, 0),
            Self::Challenge(number) => (4, number),
            Self::ChallengeResponse(number) => (5, number),
        }
    }

    const fn of(parts: (u8, u64)) -> Option<Self> {
        match parts {
            (1, 0) => Some(Self::Hello),
            (2, 0) => Some(Self::EndAck),
            (3, 0) => Some(Self::Stop),
            (4, number) => Some(Self::Challenge(number)),
            (5, number) => Some(Self::ChallengeResponse(number)),
            _ => None,
        }
    }
}

impl FlowToken {
    /// Creates the token; both sides have the same secret and get the same token.
    #[must_use]
    pub fn new(secret: u64, flow: u16) -> Self {
        let [low, high, ..] = secret.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).to_le_bytes();
        let short = (u16::from_le_bytes([low, high]) ^ flow).to_be_bytes();
        Self { short, whole: (secret ^ u64::from(flow)).to_be_bytes() }
    }

    /// The bytes of a message.
    #[must_use]
    pub fn message(self, message: ControlMessage) -> [u8; MESSAGE_LEN] {
        let (kind, number) = message.parts();
        let mut bytes = [kind; MESSAGE_LEN];
        bytes[..8].copy_from_slice(&self.whole);
        bytes[9..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Parses a message of the other end of this flow; `None` if it is from another sender.
    #[must_use]
    pub fn read_message(self, datagram: &[u8]) -> Option<ControlMessage> {
        let (kind, number) = datagram.strip_prefix(&self.whole)?.split_first()?;
        ControlMessage::of((*kind, u64::from_be_bytes(number.try_into().ok()?)))
    }
}

/// Fathom's header in the datagrams of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FathomCodec {
    token: FlowToken,
    /// The number of arrivals so far, for datagrams that carry no number and are assumed to be in order.
    n_unnumbered: Option<u64>,
}

impl FathomCodec {
    /// For datagrams that each carry a number.
    #[must_use]
    pub fn numbered(token: FlowToken) -> Self {
        Self { token, n_unnumbered: None }
    }

    /// For datagrams that are too short for a number.
    #[must_use]
    pub fn unnumbered(token: FlowToken) -> Self {
        Self { token, n_unnumbered: Some(0) }
    }
}

impl HeaderCodec for FathomCodec {
    /// Writes as much of the token as fits if the datagram is too short for a header.
    fn write(&self, header: DatagramHeader, datagram: &mut [u8]) {
        let bits = match header.phase {
            StreamPhase::WarmUp => WARM_UP,
            StreamPhase::Measured => 0,
            StreamPhase::End => END,
        };
        let Some((head, _)) = datagram.split_first_chunk_mut::<HEADER_LEN>() else {
            let n = datagram.len().min(self.token.short.len());
            datagram[..n].copy_from_slice(&self.token.short[..n]);
            return;
        };
        head[..2].copy_from_slice(&self.token.short);
        head[2..10].copy_from_slice(&header.number.to_be_bytes());
        head[10..].copy_from_slice(&(header.sent.0 & (WARM_UP - 1) | bits).to_be_bytes());
    }

    fn read(&mut self, datagram: &[u8]) -> Option<DatagramHeader> {
        let n_token = datagram.len().min(self.token.short.len());
        let is_ours = n_token > 0 && self.token.short.starts_with(&datagram[..n_token]);
        is_ours.then_some(())?;
        let numbered = numbered(datagram);
        let Some(n_bare) = &mut self.n_unnumbered else { return numbered };
        *n_bare += 1;
        // An end mark is long enough for a number, but is numbered by arrival like the others.
        let bare = DatagramHeader { number: 0, sent: Nanos::ZERO, phase: StreamPhase::WarmUp };
        Some(DatagramHeader { number: *n_bare - 1, ..numbered.unwrap_or(bare) })
    }
}

/// Reads the fields after the token.
fn numbered(datagram: &[u8]) -> Option<DatagramHeader> {
    let (_, rest) = datagram.split_first_chunk::<2>()?;
    let (number, rest) = rest.split_first_chunk()?;
    let sent = u64::from_be_bytes(*rest.first_chunk()?);
    let part = match (sent & END > 0, sent & WARM_UP > 0) {
        (true, _) => StreamPhase::End,
        (false, true) => StreamPhase::WarmUp,
        (false, false) => StreamPhase::Measured,
    };
    Some(DatagramHeader { number: u64::from_be_bytes(*number), sent: Nanos(sent & (WARM_UP - 1)), phase: part })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_by_the_same_flow_only() {
        let own = |seed, flow| FathomCodec::numbered(FlowToken::new(seed, flow));
        for part in [StreamPhase::WarmUp, StreamPhase::Measured, StreamPhase::End] {
            let header = DatagramHeader { number: 1 << 40, sent: Nanos(77), phase: part };
            let mut datagram = [0xee; 20];
            own(42, 3).write(header, &mut datagram);
            assert_eq!(own(42, 3).read(&datagram), Some(header));
            assert_eq!(own(42, 3).read(&datagram[..HEADER_LEN]), Some(header));
            assert_eq!(own(42, 3).read(&datagram[..HEADER_LEN - 1]), None);
            assert_eq!(own(42, 3).read(&[]), None);
            assert_eq!(own(42, 4).read(&datagram), None);
            assert_eq!(own(43, 3).read(&datagram), None);
            assert_eq!(datagram[HEADER_LEN..], [0xee; 2]);
        }
    }

    #[test]
    fn datagrams_too_short_for_a_number_are_counted_in_the_order_they_come() {
        let mut own = FathomCodec::unnumbered(FlowToken::new(42, 3));
        for (size, number) in [(1, 0), (2, 1), (17, 2)] {
            let mut datagram = vec![0xee; size];
            own.write(DatagramHeader { number: 9, sent: Nanos(5), phase: StreamPhase::Measured }, &mut datagram);
            assert_eq!(own.read(&datagram).unwrap().number, number);
            datagram[0] ^= 1;
            assert_eq!(own.read(&datagram), None);
        }
        assert_eq!(own.read(&[]), None);
        let mut mark = [0; HEADER_LEN];
        own.write(DatagramHeader { number: 9, sent: Nanos(5), phase: StreamPhase::End }, &mut mark);
        assert_eq!(own.read(&mark), Some(DatagramHeader { number: 3, sent: Nanos(5), phase: StreamPhase::End }));
    }

    #[test]
    fn a_message_is_heard_by_the_sender_of_its_flow_only() {
        let token = FlowToken::new(42, 3);
        let numbered = [ControlMessage::Challenge(1 << 63), ControlMessage::ChallengeResponse(7)];
        for message in [ControlMessage::Hello, ControlMessage::EndAck, ControlMessage::Stop].into_iter().chain(numbered)
        {
            let datagram = token.message(message);
            assert_eq!(token.read_message(&datagram), Some(message));
            assert_eq!(FlowToken::new(42, 4).read_message(&datagram), None);
            assert_eq!(token.read_message(&datagram[1..]), None);
            assert_eq!(token.read_message(&datagram[..MESSAGE_LEN - 1]), None);
        }
        assert_eq!(token.read_message(&[0]), None);
        const { assert!(MESSAGE_LEN <= HEADER_LEN, "a mark is answered with a message") };
    }
}
