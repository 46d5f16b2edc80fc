//! The acknowledgement of a client's header over TCP: it shows that an iperf server (2.0.10 or later) listens.

use fathom_model::units::Nanos;

use super::{put, put_time, time, word};

/// The length of an acknowledgement.
pub const ACK_LEN: usize = 28;
/// Its length with the times for `--trip-times`.
pub const ACK_TIMES_LEN: usize = ACK_LEN + 24;
/// The type of the message (`CLIENTHDRACK`).
const TYPE: u32 = 2;
/// 2.1.8, as in our headers.
const VERSION: (u32, u32) = (0x0002_0001, 0x0008_0003);

/// The times in an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AckTimes {
    /// When the client sent its header, on its clock.
    pub sent: Nanos,
    /// When the server accepted, on its clock.
    pub accepted: Nanos,
    /// When the server acknowledged, on its clock.
    pub acknowledged: Nanos,
}

/// The answer of a server to a client's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerAck {
    /// The version of the server as two words.
    pub version: (u32, u32),
    /// Present with `--trip-times`.
    pub times: Option<AckTimes>,
}

impl ServerAck {
    /// Creates our answer.
    #[must_use]
    pub const fn of(times: Option<AckTimes>) -> Self {
        Self { version: VERSION, times }
    }

    /// Reads an acknowledgement; `None` if it is something else.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let length = usize::try_from(word(bytes, 4)?).ok()?;
        if word(bytes, 0)? != TYPE || length != bytes.len() || ![ACK_LEN, ACK_TIMES_LEN].contains(&length) {
            return None;
        }
        let times =
            || Some(AckTimes { sent: time(bytes, 28)?, accepted: time(bytes, 36)?, acknowledged: time(bytes, 44)? });
        Some(Self { version: (word(bytes, 12)?, word(bytes, 16)?), times: times() })
    }

    /// Returns the length that the first eight bytes announce; `None` if they begin something else.
    #[must_use]
    pub fn announced_len(first: [u8; 8]) -> Option<usize> {
        let length = usize::try_from(word(&first, 4)?).ok()?;
        (word(&first, 0)? == TYPE && [ACK_LEN, ACK_TIMES_LEN].contains(&length)).then_some(length)
    }

    /// Writes the acknowledgement.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let length = if self.times.is_some() { ACK_TIMES_LEN } else { ACK_LEN };
        let mut bytes = vec![0; length];
        put(&mut bytes, 0, TYPE);
        put(&mut bytes, 4, u32::try_from(length).expect("52 at most"));
        put(&mut bytes, 12, self.version.0);
        put(&mut bytes, 16, self.version.1);
        if let Some(times) = self.times {
            put_time(&mut bytes, 28, times.sent);
            put_time(&mut bytes, 36, times.accepted);
            put_time(&mut bytes, 44, times.acknowledged);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    /// The answers of `iperf -s` 2.1.8.
    const REAL: &str = "000000020000001c0000000000020001000800030000000000000000";
    const REAL_TIMES: &str =
        "000000020000003400000000000200010008000300000000000000006b06d8c7000d82476b06d8c7000d82746b06d8c7000d82e2";

    #[test]
    fn an_acknowledgement_is_that_of_the_real_iperf() {
        let at = |micros: u64| Nanos::from_secs(0x6b06_d8c7) + Nanos::from_micros(micros);
        let times = AckTimes { sent: at(0xd8247), accepted: at(0xd8274), acknowledged: at(0xd82e2) };
        for (hex, times) in [(REAL, None), (REAL_TIMES, Some(times))] {
            let bytes = HEXLOWER.decode(hex.as_bytes()).unwrap();
            assert_eq!(ServerAck::announced_len(*bytes.first_chunk().unwrap()), Some(bytes.len()));
            let ack = ServerAck::read(&bytes).unwrap();
            assert_eq!(ack, ServerAck::of(times));
            assert_eq!(HEXLOWER.encode(&ack.write()), hex);
            assert_eq!(ServerAck::read(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(ServerAck::announced_len(*b"HTTP/1.1"), None);
    }
}
