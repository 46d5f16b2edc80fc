//! The messages of the control connection: cookies, states, and JSON with a length prefix.
//!
//! Bytes in, values out: there are no sockets and no clock here, so all external bytes are checked in one place.

use serde_json::Value;

use super::Error;

/// The length of a cookie: 36 characters and a NUL.
pub(crate) const COOKIE: usize = 37;
/// The characters of cookies (RFC 4648 base32, lower case).
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// The longest parameters that are read, as in iperf3 since 3.18.
pub(crate) const PARAMETERS_MAX: usize = 8192;
/// The longest results that are read: 256 streams in JSON are 40 KiB, and the whole output of a server may be included.
pub(crate) const RESULTS_MAX: usize = 16 << 20;
/// The deepest nesting of JSON. iperf3 uses five levels, including a server's output.
const DEPTH_MAX: usize = 32;

/// Identifies the connections of one test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie([u8; COOKIE]);

impl Cookie {
    /// Creates a cookie from 36 random bytes.
    #[must_use]
    pub fn from_random(random: [u8; COOKIE - 1]) -> Self {
        let mut cookie = [0; COOKIE];
        for (letter, random) in cookie.iter_mut().zip(random) {
            *letter = ALPHABET[usize::from(random) % ALPHABET.len()];
        }
        Self(cookie)
    }

    /// Parses the cookie at the start of a connection: any bytes of this length, except that the first is not NUL.
    #[must_use]
    pub fn read(bytes: [u8; COOKIE]) -> Option<Self> {
        (bytes[0] != 0).then_some(Self(bytes))
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn bytes(&self) -> &[u8; COOKIE] {
        &self.0
    }

    /// The part before the NUL, for display.
    #[must_use]
    pub fn text(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(COOKIE);
        self.0[..end].iter().map(|&byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' }).collect()
    }
}

/// The state of a test, as one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub enum TestState {
    /// Timers start.
    TestStart = 1,
    /// Data flows.
    TestRunning = 2,
    /// The client ends the test.
    TestEnd = 4,
    /// The server waits for parameters.
    ParamExchange = 9,
    /// The server waits for the streams.
    CreateStreams = 10,
    /// The server's user has ended it.
    ServerTerminate = 11,
    /// The client's user has ended it.
    ClientTerminate = 12,
    /// Both sides send their results.
    ExchangeResults = 13,
    /// The results have been exchanged.
    DisplayResults = 14,
    /// The client closes.
    Done = 16,
    /// The server is running another test.
    AccessDenied = -1,
    /// The server reports an error by two numbers.
    ServerError = -2,
}

impl TestState {
    const ALL: [Self; 12] = [
        Self::TestStart,
        Self::TestRunning,
        Self::TestEnd,
        Self::ParamExchange,
        Self::CreateStreams,
        Self::ServerTerminate,
        Self::ClientTerminate,
        Self::ExchangeResults,
        Self::DisplayResults,
        Self::Done,
        Self::AccessDenied,
        Self::ServerError,
    ];

    /// Returns the state of a byte; `None` for an unknown byte.
    #[must_use]
    pub fn read(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.byte() == byte)
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        (self as i8).cast_unsigned()
    }
}

/// Parses the numbers after [`TestState::ServerError`].
#[must_use]
pub(crate) fn read_refusal(bytes: [u8; 8]) -> Error {
    let numbers = u64::from_be_bytes(bytes);
    let half = |number: u64| u32::try_from(number & 0xffff_ffff).expect("32 bits").cast_signed();
    Error::Refused { code: half(numbers >> 32), errno: half(numbers) }
}

/// Returns a refusal as the server sends it, including the state.
#[must_use]
pub(crate) fn write_refusal(code: i32, errno: i32) -> [u8; 9] {
    let mut bytes = [TestState::ServerError.byte(); 9];
    bytes[1..5].copy_from_slice(&code.to_be_bytes());
    bytes[5..].copy_from_slice(&errno.to_be_bytes());
    bytes
}

/// Returns a JSON document with its length as a prefix.
///
/// # Panics
/// If it is larger than 4 GiB.
#[must_use]
pub(crate) fn write_json(value: &Value) -> Vec<u8> {
    let text = value.to_string();
    let length = u32::try_from(text.len()).expect("results of at most 256 streams");
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

/// Parses the length of the JSON that follows.
///
/// # Errors
/// If it is zero or above `most`. This is checked before anything is allocated.
pub(crate) fn read_length(bytes: [u8; 4], what: &'static str, most: usize) -> Result<usize, Error> {
    let length = usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX);
    match length {
        0 => Err(Error::Malformed { what, why: "they are empty".to_owned() }),
        1.. if length <= most => Ok(length),
        _ => Err(Error::Malformed { what, why: format!("{length} bytes are more than {most}") }),
    }
}

/// Parses a JSON object.
///
/// # Errors
/// If the bytes are not JSON, are nested too deeply, or are not an object.
pub(crate) fn read_json(bytes: &[u8], what: &'static str) -> Result<Value, Error> {
    let malformed = |why: String| Error::Malformed { what, why };
    // iperf3 before 3.1 includes the NUL at the end.
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if depth(bytes) > DEPTH_MAX {
        return Err(malformed(format!("it is nested more than {DEPTH_MAX} deep")));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    if value.is_object() { Ok(value) } else { Err(malformed("it is not a JSON object".to_owned())) }
}

/// Parses a whole JSON message: its length and the JSON.
///
/// # Errors
/// If the length is out of bounds or exceeds the rest, or if the rest is not a JSON object.
pub fn read_message(bytes: &[u8]) -> Result<Value, Error> {
    const WHAT: &str = "message";
    let short = || Error::Malformed { what: WHAT, why: "it is shorter than its length says".to_owned() };
    let (length, rest) = bytes.split_first_chunk().ok_or_else(short)?;
    let length = read_length(*length, WHAT, RESULTS_MAX)?;
    read_json(rest.get(..length).ok_or_else(short)?, WHAT)
}

/// Returns the nesting depth of brackets, including those in strings. It may be too high, but never too low.
fn depth(bytes: &[u8]) -> usize {
    let mut depths = (0_usize, 0);
    for byte in bytes {
        match byte {
            b'{' | b'[' => depths.0 += 1,
            b'}' | b']' => depths.0 = depths.0.saturating_sub(1),
            _ => {}
        }
        depths.1 = depths.1.max(depths.0);
    }
    depths.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_36_letters_and_a_nul() {
        let cookie = Cookie::from_random(std::array::from_fn(|at| u8::try_from(at * 7).unwrap()));
        assert_eq!(cookie.bytes()[COOKIE - 1], 0);
        assert!(cookie.text().len() == 36 && cookie.text().bytes().all(|byte| ALPHABET.contains(&byte)));
        assert_eq!(Cookie::read(*cookie.bytes()), Some(cookie));
        assert_eq!(Cookie::read([0; COOKIE]), None);
        assert_eq!(Cookie::read([0xff; COOKIE]).unwrap().text(), "?".repeat(COOKIE));
    }

    #[test]
    fn a_state_is_one_signed_byte() {
        assert_eq!(TestState::AccessDenied.byte(), 0xff);
        assert_eq!(TestState::ServerError.byte(), 0xfe);
        let known: Vec<u8> = (0..=255).filter(|byte| TestState::read(*byte).is_some()).collect();
        assert_eq!(known, [1, 2, 4, 9, 10, 11, 12, 13, 14, 16, 0xfe, 0xff]);
    }

    #[test]
    fn a_refusal_is_two_numbers_in_network_order() {
        let bytes = write_refusal(142, 2);
        assert_eq!(bytes, [0xfe, 0, 0, 0, 142, 0, 0, 0, 2]);
        let read = read_refusal(bytes[1..].try_into().unwrap());
        assert!(matches!(read, Error::Refused { code: 142, errno: 2 }));
        assert_eq!(read.to_string(), "test authorization failed");
        let with_errno = Error::Refused { code: 203, errno: 111 };
        assert_eq!(with_errno.to_string(), "unable to connect stream: Connection refused");
        assert_eq!(Error::Refused { code: 999, errno: 1 }.to_string(), "int_errno=999");
    }

    #[test]
    fn a_length_is_judged_before_anything_is_read() {
        assert_eq!(read_length([0, 0, 1, 0], "parameters", 8192).unwrap(), 256);
        for wrong in [[0; 4], [0, 0, 0x20, 1], [0xff; 4]] {
            assert!(read_length(wrong, "parameters", 8192).is_err(), "{wrong:?}");
        }
        let error = read_length(*b"HTTP", "parameters", PARAMETERS_MAX).unwrap_err();
        assert_eq!(error.to_string(), "unable to receive parameters: 1213486160 bytes are more than 8192");
    }

    #[test]
    fn only_an_object_of_modest_depth_is_a_message() {
        assert!(read_json(b"{\"tcp\":true}", "parameters").is_ok());
        assert!(read_json(b"{\"tcp\":true}\0", "parameters").is_ok(), "as versions before 3.1 send it");
        let deep = [vec![b'['; 40], vec![b']'; 40]].concat();
        for wrong in [&b"[]"[..], b"7", b"", b"{", b"\xff\xfe", &deep] {
            assert!(read_json(wrong, "parameters").is_err(), "{wrong:?}");
        }
    }
}
