//! The message that comes back with the identity of the target.
//!
//! | bytes | field |
//! |---|---|
//! | 0–63 | the name of the target, then zeros; zeros in a question |
//! | 64–67 | `FWHO` |
//! | 68–71 | the length of the message, with everything |
//! | 72–79 | the number of the message |
//! | 80–87 | the token of the target; in a question 0, or 1 if these 96 bytes alone shall come back |
//! | 88–95 | the number of the flow, so that a stray answer is none |
//!
//! Numbers are in network byte order. The name is where a ctraffic server writes its own, so that one message suits both. A server answers
//! questions alone: if it answered answers, a forged datagram would make two servers send to each other without end.

use crate::identity::{Identity, NAME_MAX};

/// The bytes of a message without padding.
pub(crate) const HEADER: usize = 96;
/// The longest message: it fits into the smallest default buffers of sockets.
pub(crate) const LENGTH_MAX: usize = 16 * 1024;
const MAGIC: [u8; 4] = *b"FWHO";
/// In the place of the token: the answer shall have no padding, so that it arrives in one packet where its question came in fragments.
const SHORT: u64 = 1;

/// A question of an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) number: u64,
    pub(crate) flow: u64,
}

/// An answer of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) flow: u64,
    /// Absent in later messages of a connection to a server that tells its name once.
    pub(crate) identity: Option<Identity>,
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotAMessage;

impl Question {
    /// Writes the question into a message of this length, which keeps its padding.
    pub(crate) fn write(self, message: &mut [u8]) {
        let length = u32::try_from(message.len()).expect("a message is short");
        message[..NAME_MAX].fill(0);
        message[64..68].copy_from_slice(&MAGIC);
        message[68..72].copy_from_slice(&length.to_be_bytes());
        message[72..80].copy_from_slice(&self.number.to_be_bytes());
        message[80..88].fill(0);
        message[88..96].copy_from_slice(&self.flow.to_be_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("the length was checked"))
}

/// Returns the length of the message that begins here; `None` while that is not known.
///
/// # Errors
/// If no message begins so.
pub(crate) fn length_of(bytes: &[u8]) -> Result<Option<usize>, NotAMessage> {
    let Some(head) = bytes.get(64..72) else { return Ok(None) };
    let length = u32::from_be_bytes(*head[4..].first_chunk().expect("four bytes remain"));
    let length = usize::try_from(length).ok().filter(|length| (HEADER..=LENGTH_MAX).contains(length));
    if head[..4] == MAGIC { length.map(Some).ok_or(NotAMessage) } else { Err(NotAMessage) }
}

/// Writes who answers over a whole question. Returns the length of the answer.
///
/// # Errors
/// If it is no question, such as the answer of another target.
pub(crate) fn sign(message: &mut [u8], identity: &Identity) -> Result<usize, NotAMessage> {
    let wish = number(message, 80);
    if wish > SHORT || message[..NAME_MAX].iter().any(|byte| *byte != 0) {
        return Err(NotAMessage);
    }
    let name = identity.name().as_bytes();
    message[..name.len()].copy_from_slice(name);
    message[80..88].copy_from_slice(&identity.token().to_be_bytes());
    if wish != SHORT {
        return Ok(message.len());
    }
    let length = u32::try_from(HEADER).expect("a header is short");
    message[68..72].copy_from_slice(&length.to_be_bytes());
    Ok(HEADER)
}

/// Reads a whole answer.
///
/// # Errors
/// If it is none.
pub(crate) fn read(message: &[u8]) -> Result<Answer, NotAMessage> {
    if length_of(message)? != Some(message.len()) {
        return Err(NotAMessage);
    }
    let identity = Identity::from_bytes(&message[..NAME_MAX], number(message, 80));
    Ok(Answer { number: number(message, 72), flow: number(message, 88), identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_question_with_the_identity() {
        let mut message = [7; 128];
        Question { number: 5, flow: 9 }.write(&mut message);
        assert_eq!(read(&message), Ok(Answer { number: 5, flow: 9, identity: None }));
        let identity = Identity::new("t1", 77);
        assert_eq!(sign(&mut message, &identity), Ok(128));
        assert_eq!(read(&message), Ok(Answer { number: 5, flow: 9, identity: Some(identity) }));
        assert_eq!(message[127], 7, "padding stays");
        assert_eq!(sign(&mut message, &Identity::new("t2", 78)), Err(NotAMessage), "an answer is no question");
    }

    #[test]
    fn a_question_of_the_test_of_fragments_gets_a_short_answer() {
        let mut message = [7; 128];
        Question { number: 5, flow: 9 }.write(&mut message);
        message[87] = 1;
        let identity = Identity::new("t1", 77);
        assert_eq!(sign(&mut message, &identity), Ok(HEADER));
        assert_eq!(read(&message[..HEADER]), Ok(Answer { number: 5, flow: 9, identity: Some(identity) }));
        message[87] = 2;
        message[..NAME_MAX].fill(0);
        assert_eq!(sign(&mut message, &Identity::new("t2", 78)), Err(NotAMessage), "it has the token of a target");
    }

    #[test]
    fn other_bytes_are_no_message() {
        let mut message = [0; HEADER];
        assert_eq!(length_of(&message), Err(NotAMessage));
        Question { number: 0, flow: 0 }.write(&mut message);
        assert_eq!((length_of(&message), length_of(&message[..71])), (Ok(Some(HEADER)), Ok(None)));
        assert_eq!(read(&message[..90]), Err(NotAMessage));
        message[70] = 0xff;
        assert_eq!(length_of(&message), Err(NotAMessage), "longer than any");
    }
}
