//! Frames: a version byte, the length of the payload as 32 bits in network order, the payload.
//!
//! This layout stays the same in all versions, so that two versions can tell each other apart.

/// The bytes before the payload.
pub const HEADER_LEN: usize = 5;
/// Versions are below the printable characters, so that a shell's greeting is not taken for a version.
const VERSION_MAX: u8 = 31;

/// The data is not a frame of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte is not a version.
    #[error("something that is not the protocol of an agent (it begins with {})", text(*.0))]
    Foreign(u8),
    /// The length exceeds the limit for reading or writing.
    #[error("a message of {len} bytes, and {limit} are the most")]
    TooLong {
        /// The claimed length.
        len: usize,
        /// The maximum accepted length.
        limit: usize,
    },
    /// The frame has a different protocol version.
    #[error("a message of protocol {theirs} of {tool}")]
    Version {
        /// The version of the other side.
        theirs: u8,
        /// The program of the other side.
        tool: String,
    },
    /// The payload is not a valid message; contains the reason.
    #[error("a message that cannot be read: {0}")]
    Message(String),
}

/// The most text before the first frame: a long message of the day, and a log in of several shells.
const PREAMBLE_MAX: usize = 64 << 10;
/// The beginning of the payload of a greeting, in every version.
const GREETING: &[u8] = br#"{"hello":"#;

/// Text before the first frame, such as the greeting of a login shell that starts the agent.
///
/// The first frame of an agent is its greeting. Text cannot be taken for one: a greeting is shorter than 16 MiB, so the first byte of
/// its length is zero, and text has no zero bytes.
#[derive(Debug, Default)]
pub struct Preamble {
    text: Vec<u8>,
}

impl Preamble {
    /// Adds received bytes; returns those from the first frame on as soon as they are recognized.
    ///
    /// # Errors
    /// [`FrameError::Foreign`] after 64 KiB without a frame.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
        // A greeting can be cut anywhere, so the last bytes of the text so far are searched again.
        let from = self.text.len().saturating_sub(HEADER_LEN + GREETING.len() - 1);
        self.text.extend_from_slice(bytes);
        let is_greeting = |window: &[u8]| {
            (1..=VERSION_MAX).contains(&window[0]) && window[1] == 0 && &window[HEADER_LEN..] == GREETING
        };
        let found = self.text[from..].windows(HEADER_LEN + GREETING.len()).position(is_greeting);
        match found {
            Some(at) => Ok(Some(self.text.split_off(from + at))),
            None if self.text.len() > PREAMBLE_MAX => Err(FrameError::Foreign(self.text[0])),
            None => Ok(None),
        }
    }

    /// Returns the text so far: its first lines, without control characters.
    #[must_use]
    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.text[..self.text.len().min(400)]);
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
    }
}

fn text(byte: u8) -> String {
    if byte.is_ascii_graphic() { format!("`{}`", char::from(byte)) } else { format!("byte {byte}") }
}

/// One received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The sender's major version.
    pub version: u8,
    /// The content.
    pub payload: Vec<u8>,
}

/// Encodes a frame.
///
/// # Errors
/// If the payload is longer than `limit`.
pub fn encode(version: u8, payload: &[u8], limit: usize) -> Result<Vec<u8>, FrameError> {
    let too_long = || FrameError::TooLong { len: payload.len(), limit };
    let len = u32::try_from(payload.len()).map_err(|_| too_long())?;
    if payload.len() > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    bytes.push(version);
    bytes.extend(len.to_be_bytes());
    bytes.extend(payload);
    Ok(bytes)
}

/// Decodes frames from bytes in chunks of any size.
///
/// It buffers only bytes that have arrived, never a claimed length. A length beyond the limit is an error as soon as the header is
/// complete; after an error nothing more can be decoded, because the frame boundaries are unknown.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// The number of bytes at the front of the buffer that have already been consumed.
    taken: usize,
    limit: usize,
}

impl Decoder {
    /// Creates a decoder for payloads of at most `limit` bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), taken: 0, limit }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns whether there is no partial frame left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.taken == self.buffer.len()
    }

    /// Returns the next frame; `None` until more bytes arrive.
    ///
    /// # Errors
    /// [`FrameError::Foreign`] and [`FrameError::TooLong`].
    pub fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.buffer[self.taken..];
        let Some(version) = rest.first().copied() else { return Ok(None) };
        if !(1..=VERSION_MAX).contains(&version) {
            return Err(FrameError::Foreign(version));
        }
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let [_, len @ ..] = *header;
        let len = usize::try_from(u32::from_be_bytes(len)).unwrap_or(usize::MAX);
        if len > self.limit {
            return Err(FrameError::TooLong { len, limit: self.limit });
        }
        let Some(payload) = rest.get(..len) else { return Ok(None) };
        let frame = Frame { version, payload: payload.to_vec() };
        self.taken += HEADER_LEN + len;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let payloads: [&[u8]; 3] = [b"first", b"", b"the third one"];
        let bytes: Vec<u8> = payloads.iter().flat_map(|payload| encode(1, payload, 100).unwrap()).collect();
        for cut in 1..bytes.len() {
            let mut decoder = Decoder::new(100);
            let mut found = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.frame().unwrap() {
                    found.push(frame.payload);
                }
            }
            assert_eq!(found, payloads, "cut every {cut} bytes");
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_the_payload_arrives() {
        let mut decoder = Decoder::new(1000);
        decoder.push(&[1, 0, 0, 3, 233]);
        assert_eq!(decoder.frame(), Err(FrameError::TooLong { len: 1001, limit: 1000 }));
    }

    #[test]
    fn a_claimed_length_reserves_no_memory() {
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&[1, 255, 255, 255, 255, b'x']);
        assert_eq!(decoder.frame(), Ok(None));
        assert!(decoder.buffer.capacity() < 1000, "{} bytes", decoder.buffer.capacity());
    }

    #[test]
    fn text_before_the_first_frame_is_skipped_wherever_it_is_cut() {
        let frame = encode(7, br#"{"hello":{"tool":"fathom 9.1"}}"#, 100).unwrap();
        for text in ["", "Welcome to Linux\r\n\x1b[1mnews\x1b[0m\n", "{\"hello\": no\n\x03\x01{\"hello\":", "\u{1}\n"] {
            let bytes = [text.as_bytes(), &frame, b"rest"].concat();
            for cut in 1..bytes.len() {
                let mut preamble = Preamble::default();
                let mut rest = Vec::new();
                for piece in bytes.chunks(cut) {
                    if rest.is_empty() {
                        rest = preamble.push(piece).unwrap().unwrap_or_default();
                    } else {
                        rest.extend_from_slice(piece);
                    }
                }
                assert_eq!(rest, bytes[text.len()..], "{text:?} cut every {cut} bytes");
            }
        }
    }

    #[test]
    fn text_without_a_frame_ends_and_is_shown_without_control_characters() {
        let mut preamble = Preamble::default();
        assert_eq!(preamble.push(b"\x1b[2JPlease choose:\n"), Ok(None));
        assert_eq!(preamble.text(), "[2JPlease choose:");
        assert_eq!(preamble.push(&vec![b'x'; PREAMBLE_MAX]), Err(FrameError::Foreign(0x1b)));
    }

    #[test]
    fn the_greeting_of_a_shell_is_not_taken_for_a_version() {
        let mut decoder = Decoder::new(1000);
        decoder.push(b"Welcome to Linux");
        assert_eq!(decoder.frame(), Err(FrameError::Foreign(b'W')));
    }
}
