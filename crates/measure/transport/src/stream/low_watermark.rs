//! The amount of data that must have arrived before a receiver is woken.
//!
//! A receiver that is faster than its sender sleeps after every few segments, and each time the sender's core wakes it: at tens
//! of Gbit/s this costs both more than the bytes do. `docs/methods/tcp_stream.md` has the numbers.

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    Result,
    socket::{Socket, socket_options},
};

/// The batch of data for one wake-up: the arrivals of a time, up to a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeBatch {
    time: Nanos,
    n_bytes: u64,
}

impl WakeBatch {
    /// For a receiver that copies. The time is a hundredth of the shortest counting interval. More bytes would save few further
    /// wake-ups, but leave the cache before they are copied.
    pub const COPIED: Self = Self { time: Nanos::from_micros(100), n_bytes: 256 << 10 };
    /// For a receiver that discards the data: wake-ups are nearly its only cost.
    pub const TRUNCATED: Self = Self { time: Nanos::from_micros(250), n_bytes: 1 << 20 };
}

/// How long arrivals are counted before the low watermark changes.
const RATE_WINDOW: Nanos = Nanos::from_millis(10);

/// The data that a receiver waits for.
#[derive(Debug, Clone, Copy)]
pub enum LowWatermark {
    /// A fixed amount.
    Fixed(Bytes),
    /// A batch, by the rate of the last 10 ms.
    Adaptive(ArrivalRate),
}

/// The arrivals since a time.
#[derive(Debug, Clone, Copy)]
pub struct ArrivalRate {
    since: Nanos,
    n_bytes: u64,
    low_watermark: u64,
    batch: WakeBatch,
}

impl LowWatermark {
    pub fn adaptive(batch: WakeBatch, now: Nanos) -> Self {
        Self::Adaptive(ArrivalRate { since: now, n_bytes: 0, low_watermark: 1, batch })
    }

    /// Sets the low watermark of a socket.
    ///
    /// # Errors
    /// `setsockopt(SO_RCVLOWAT)`.
    pub fn apply(self, socket: &Socket) -> Result<()> {
        match self {
            Self::Fixed(bytes) => socket_options::set_wake(socket, bytes),
            Self::Adaptive(arrivals) => socket_options::set_wake(socket, Bytes(arrivals.low_watermark)),
        }
    }

    /// Counts arrivals, and adjusts the socket if the rate has changed much.
    ///
    /// # Errors
    /// `setsockopt(SO_RCVLOWAT)`.
    pub fn update(&mut self, socket: &Socket, n_bytes: u64, now: Nanos) -> Result<()> {
        let Self::Adaptive(arrivals) = self else { return Ok(()) };
        match arrivals.next(n_bytes, now) {
            Some(wake) => socket_options::set_wake(socket, Bytes(wake)),
            None => Ok(()),
        }
    }
}

impl ArrivalRate {
    /// The new low watermark, if it is at least twice or at most half of the old one.
    fn next(&mut self, n_bytes: u64, now: Nanos) -> Option<u64> {
        self.n_bytes += n_bytes;
        let span = now.since(self.since);
        if span < RATE_WINDOW {
            return None;
        }
        let in_time = u128::from(self.n_bytes) * u128::from(self.batch.time.0) / u128::from(span.0);
        let wanted = u64::try_from(in_time).unwrap_or(u64::MAX).clamp(1, self.batch.n_bytes);
        (self.since, self.n_bytes) = (now, 0);
        let differs = wanted >= self.low_watermark * 2 || wanted * 2 <= self.low_watermark;
        differs.then(|| {
            self.low_watermark = wanted;
            wanted
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals() -> ArrivalRate {
        let LowWatermark::Adaptive(arrivals) = LowWatermark::adaptive(WakeBatch::COPIED, Nanos::ZERO) else {
            panic!("it goes by the rate")
        };
        arrivals
    }

    /// The low watermark after 30 ms with this many bytes in every millisecond, from `from` on.
    fn after(arrivals: &mut ArrivalRate, per_millisecond: u64, from: u64) -> u64 {
        for millisecond in from..from + 30 {
            arrivals.next(per_millisecond, Nanos::from_millis(millisecond));
        }
        arrivals.low_watermark
    }

    #[test]
    fn a_receiver_waits_for_what_arrives_in_a_tenth_of_a_millisecond() {
        let mut arrivals = arrivals();
        assert_eq!(after(&mut arrivals, 125_000, 1), 12_500, "1 Gbit/s");
        assert_eq!(after(&mut arrivals, 5_000_000, 31), 256 << 10, "40 Gbit/s");
        assert_eq!(after(&mut arrivals, 10, 61), 1, "80 kbit/s");
    }

    #[test]
    fn a_rate_that_varies_a_little_changes_nothing() {
        let mut arrivals = arrivals();
        after(&mut arrivals, 125_000, 1);
        assert_eq!(after(&mut arrivals, 150_000, 31), 12_500);
    }

    #[test]
    fn a_receive_that_timed_out_with_little_is_enough_to_see_that_the_rate_fell() {
        let mut arrivals = arrivals();
        after(&mut arrivals, 5_000_000, 1);
        assert_eq!(arrivals.next(1_000, Nanos::from_millis(30) + Nanos::from_millis(50)), Some(2));
    }
}
