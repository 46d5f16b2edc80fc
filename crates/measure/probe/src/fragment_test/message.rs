//! The message of a datagram, and the answer of a target that tells who it is.
//!
//! | bytes | field |
//! |---|---|
//! | 0–63 | the name of the target, then zeros; zeros in a question |
//! | 64–67 | `FWHO` |
//! | 68–71 | the length of the message |
//! | 72–79 | the number of the datagram |
//! | 80–87 | the token of the target; 1 in a question whose answer shall be these 96 bytes alone |
//! | 88–95 | the flow, with the secret of the trial |
//!
//! Numbers are in network byte order. An answer is short so that its own fragments do not get lost on the way back.

/// The bytes of a message without padding.
pub(crate) const HEADER: usize = 96;
/// The longest message that a target answers.
pub(crate) const LENGTH_MAX: usize = 16 * 1024;
const NAME: usize = 64;
const MAGIC: [u8; 4] = *b"FWHO";
/// In the place of the token: a short answer is enough.
const SHORT: u64 = 1;

/// Which datagram a question or an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageKey {
    pub(crate) number: u64,
    pub(crate) flow: u64,
}

/// Writes a question of this length.
pub(crate) fn question(key: MessageKey, length: usize) -> Vec<u8> {
    let padding = (HEADER..length).map(|n| u8::try_from(n % 251).unwrap_or(0));
    let size = u32::try_from(length).expect("a message is short");
    let mut message = vec![0; NAME];
    message.extend(MAGIC);
    message.extend(size.to_be_bytes());
    message.extend(key.number.to_be_bytes());
    message.extend(SHORT.to_be_bytes());
    message.extend(key.flow.to_be_bytes());
    message.extend(padding);
    message
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the answer of a target to a question; `None` if it is no whole question.
pub(crate) fn answer(question: &[u8], (name, token): (&str, u64)) -> Option<Vec<u8>> {
    let head = question.get(..HEADER)?;
    let length = u32::from_be_bytes(*head[NAME + 4..].first_chunk()?);
    if head[NAME..NAME + 4] != MAGIC || usize::try_from(length).ok() != Some(question.len()) {
        return None;
    }
    let mut answer = head.to_vec();
    let n = name.len().min(NAME);
    answer[..n].copy_from_slice(&name.as_bytes()[..n]);
    answer[68..72].copy_from_slice(&[0, 0, 0, 96]);
    answer[80..88].copy_from_slice(&token.to_be_bytes());
    Some(answer)
}

/// Reads an answer, or the first bytes of a longer one: its datagram, and the identity of the target as `name#token`.
pub(crate) fn read(bytes: &[u8]) -> Option<(MessageKey, String)> {
    let head = bytes.get(..HEADER)?;
    if head[NAME..NAME + 4] != MAGIC {
        return None;
    }
    let key = MessageKey { number: number(head, 72)?, flow: number(head, 88)? };
    let end = head[..NAME].iter().position(|byte| *byte == 0).unwrap_or(NAME);
    let is_kept = |c: &u8| c.is_ascii_graphic() && *c != b'#';
    let name: String = head[..end].iter().map(|c| if is_kept(c) { char::from(*c) } else { '?' }).collect();
    (!name.is_empty()).then(|| (key, format!("{name}#{:016x}", number(head, 80).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_target_and_its_datagram_and_is_short() {
        let key = MessageKey { number: 7, flow: 0xfeed_0003 };
        let question = question(key, 3_972);
        assert_eq!((question.len(), read(&question)), (3_972, None), "a question names nobody");
        let answer = answer(&question, ("t1", 255)).unwrap();
        assert_eq!((answer.len(), read(&answer)), (HEADER, Some((key, "t1#00000000000000ff".to_owned()))));
    }

    #[test]
    fn what_is_cut_off_or_strange_is_not_answered_and_is_no_answer() {
        let question = question(MessageKey { number: 7, flow: 3 }, 200);
        let identity = ("t\u{1b} 1", 1);
        assert_eq!(answer(&question[..199], identity), None);
        assert_eq!(answer(&question[..95], identity), None);
        let good = answer(&question, identity).unwrap();
        assert_eq!(read(&good).unwrap().1, "t??1#0000000000000001", "names come from outside");
        assert_eq!((read(&good[..95]), read(&[b'x'; 96])), (None, None));
    }
}
