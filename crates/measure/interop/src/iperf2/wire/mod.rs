//! The messages of iperf 2, as `include/payloads.h` of 2.0.5 to 2.2.1 describes them: all numbers are big-endian.
//!
//! A client's header says what it wants, an acknowledgement is the server's answer to it over TCP, and a report is its answer to the
//! end of a UDP flow. This module is pure: bytes in, values out.

mod ack;
mod burst;
mod header;
mod report;

use fathom_model::units::Nanos;

pub use ack::{ACK_LEN, ACK_TIMES_LEN, AckTimes, ServerAck};
pub use burst::{BURST_LEN, BurstHeader, BurstReader};
pub use header::{
    ClientHeader, HEADER_MAX, HeaderLen, TestAmount, TestMode, UDP_HEADER_LEN, header_len, read_datagram,
};
pub use report::{REPORT_LEN, REPORT_SHORT_LEN, ServerReport, TransitTimes};

/// The length of the number and the time at the beginning of each datagram.
pub const DATAGRAM_LEN: usize = 16;

/// Reads the 32-bit word at an offset; `None` behind the end.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Writes a 32-bit word at an offset.
fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// The lower and the upper half of a 64-bit number.
fn halves(value: u64) -> (u32, u32) {
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).expect("32 bits");
    (half(value), half(value >> 32))
}

/// Seconds and microseconds of a time or a span. Seconds beyond 32 bits count as the longest time.
fn secs_and_micros(time: Nanos) -> (u32, u32) {
    let secs = u32::try_from(time.0 / 1_000_000_000).unwrap_or(u32::MAX);
    (secs, u32::try_from(time.0 % 1_000_000_000 / 1000).expect("below a million"))
}

/// Writes seconds and microseconds at an offset.
fn put_time(bytes: &mut [u8], at: usize, time: Nanos) {
    let (secs, micros) = secs_and_micros(time);
    put(bytes, at, secs);
    put(bytes, at + 4, micros);
}

/// Reads seconds and microseconds at an offset.
fn time(bytes: &[u8], at: usize) -> Option<Nanos> {
    Some(Nanos::from_secs(word(bytes, at)?.into()) + Nanos::from_micros(word(bytes, at + 4)?.into()))
}

/// The number of a datagram. The sign marks the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramNumber {
    /// Its place in the flow, from 1 (versions before 2.0.10: from 0).
    pub number: u64,
    /// Whether the flow ends with it; repeated end marks have higher numbers.
    pub is_end: bool,
}

impl DatagramNumber {
    /// Reads the number; `None` if the datagram is too short.
    ///
    /// `is_wide` says whether the client's numbers have 64 bits.
    #[must_use]
    pub fn read(datagram: &[u8], is_wide: bool) -> Option<Self> {
        let low = word(datagram, 0)?;
        let signed = if is_wide {
            ((u64::from(word(datagram, 12)?) << 32) | u64::from(low)).cast_signed()
        } else {
            i64::from(low.cast_signed())
        };
        Some(Self { number: signed.unsigned_abs(), is_end: signed < 0 })
    }

    /// Writes the number with 64 bits.
    pub fn write(self, datagram: &mut [u8]) {
        let signed = if self.is_end { self.number.wrapping_neg() } else { self.number };
        let (low, high) = halves(signed);
        put(datagram, 0, low);
        put(datagram, 12, high);
    }
}

/// Reads the time at which a datagram was sent, on the wall clock.
#[must_use]
pub fn sent_time(datagram: &[u8]) -> Option<Nanos> {
    time(datagram, 4)
}

/// Writes the time at which a datagram is sent, on the wall clock.
pub fn put_sent_time(datagram: &mut [u8], wall: Nanos) {
    put_time(datagram, 4, wall);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_datagram_has_a_negative_number() {
        for (number, is_end) in [(1, false), (1, true), (0x1_0000_0001, false), (0x1_0000_0001, true)] {
            let mut datagram = [0xee; DATAGRAM_LEN];
            DatagramNumber { number, is_end }.write(&mut datagram);
            assert_eq!(DatagramNumber::read(&datagram, true), Some(DatagramNumber { number, is_end }));
            assert_eq!(DatagramNumber::read(&datagram[..15], true), None);
            if number < 1 << 31 {
                assert_eq!(DatagramNumber::read(&datagram, false), Some(DatagramNumber { number, is_end }));
            }
        }
    }

    #[test]
    fn a_send_time_has_seconds_and_microseconds() {
        let mut datagram = [0; DATAGRAM_LEN];
        put_sent_time(&mut datagram, Nanos(5_000_123_999));
        assert_eq!(datagram[4..12], [0, 0, 0, 5, 0, 0, 0, 123]);
        assert_eq!(sent_time(&datagram), Some(Nanos(5_000_123_000)));
    }
}
