//! The offset between another host's monotonic clock and ours.

use fathom_model::units::Nanos;
use serde::{Deserialize, Serialize};

/// The four times of one request and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockProbe {
    /// Our clock when the request was sent.
    pub t0: Nanos,
    /// Their clock when the request arrived.
    pub t1: Nanos,
    /// Their clock when the reply was sent.
    pub t2: Nanos,
    /// Our clock when the reply arrived.
    pub t3: Nanos,
}

impl ClockProbe {
    /// The time on the path in both directions, without the processing time of the other side.
    #[must_use]
    pub fn round_trip(&self) -> Nanos {
        (self.t3 - self.t0) - (self.t2 - self.t1)
    }
}

/// The difference between their clock and ours, with its maximum error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// Theirs minus ours, in nanoseconds.
    pub ns: i64,
    /// The maximum error, provided that neither clock jumped.
    pub error: Nanos,
    /// The shortest round trip.
    pub round_trip: Nanos,
}

impl ClockOffset {
    /// Estimates the offset from the probe with the shortest round trip (RFC 5905 section 8, minimum filter of section 10).
    ///
    /// The forward path took between zero and the whole round trip, so half of it bounds the error, however asymmetric the delays are.
    /// Returns `None` without probes.
    #[must_use]
    pub fn estimate(probes: &[ClockProbe]) -> Option<Self> {
        let best = probes.iter().min_by_key(|probe| probe.round_trip())?;
        let difference = |theirs: Nanos, ours: Nanos| i128::from(theirs.0) - i128::from(ours.0);
        let ns = i128::midpoint(difference(best.t1, best.t0), difference(best.t2, best.t3));
        let round_trip = best.round_trip();
        Some(Self {
            ns: i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX }),
            // One more, because both halves are rounded down.
            error: round_trip / 2 + Nanos(1),
            round_trip,
        })
    }

    /// Returns the offset of a clock that was compared with theirs, from ours: offsets and errors add up.
    #[must_use]
    pub fn then(self, further: Self) -> Self {
        Self {
            ns: self.ns.saturating_add(further.ns),
            error: self.error + further.error,
            round_trip: self.round_trip + further.round_trip,
        }
    }

    /// Returns whether the two clocks may be equal.
    #[must_use]
    pub const fn may_be_zero(self) -> bool {
        self.ns.unsigned_abs() <= self.error.0
    }

    /// Converts a time on our clock to their clock.
    #[must_use]
    pub const fn to_theirs(self, ours: Nanos) -> Nanos {
        Nanos(ours.0.saturating_add_signed(self.ns))
    }

    /// Converts a time on their clock to our clock.
    #[must_use]
    pub const fn to_ours(self, theirs: Nanos) -> Nanos {
        Nanos(theirs.0.saturating_add_signed(self.ns.saturating_neg()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A probe over a path with these delays to a clock that is `true_offset` ahead.
    fn probe(true_offset: i64, there: u64, back: u64) -> ClockProbe {
        let (asked, took) = (10_000_000_000_u64, 3_000);
        let theirs = |ours: u64| Nanos(ours.checked_add_signed(true_offset).unwrap());
        ClockProbe {
            t0: Nanos(asked),
            t1: theirs(asked + there),
            t2: theirs(asked + there + took),
            t3: Nanos(asked + there + took + back),
        }
    }

    #[test]
    fn the_true_offset_lies_within_the_error_however_asymmetric_the_delays_are() {
        for true_offset in [-7_000_000_000, -1, 0, 1, 12_345, 9_000_000_000_000] {
            for (there, back) in [(0, 0), (100_000, 100_000), (0, 5_000_001), (5_000_001, 0), (70_000, 80_000_000)] {
                let offset = ClockOffset::estimate(&[probe(true_offset, there, back)]).unwrap();
                let wrong = offset.ns.abs_diff(true_offset);
                assert!(wrong <= offset.error.0, "{true_offset} over {there}/{back}: wrong by {wrong}, {offset:?}");
            }
        }
    }

    #[test]
    fn one_quick_probe_among_slow_ones_decides() {
        let mut probes = vec![probe(500, 9_000_000, 200_000); 15];
        probes.push(probe(500, 20_000, 24_000));
        let offset = ClockOffset::estimate(&probes).unwrap();
        assert_eq!((offset.ns, offset.round_trip), (500 - 2_000, Nanos(44_000)));
        assert_eq!(ClockOffset::estimate(&[]), None);
    }

    #[test]
    fn over_two_hops_offsets_and_errors_add_up() {
        let offset = |there, back| ClockOffset::estimate(&[probe(1_000, there, back)]).unwrap();
        let (near, far) = (offset(70_000, 80_000), offset(0, 5_001));
        let both = near.then(far);
        assert!(both.ns.abs_diff(2_000) <= both.error.0, "{both:?}");
        assert_eq!(both.error, near.error + far.error);
    }

    #[test]
    fn an_instant_goes_to_the_other_clock_and_back() {
        let offset = ClockOffset { ns: -4_000, ..ClockOffset::default() };
        assert_eq!(offset.to_theirs(Nanos(10_000)), Nanos(6_000));
        assert_eq!(offset.to_ours(offset.to_theirs(Nanos(10_000))), Nanos(10_000));
    }
}
