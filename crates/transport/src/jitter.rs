//! Interarrival jitter as RFC 3550 defines it.
//!
//! It knows the time of a datagram at the sender and at the receiver; the two clocks need not agree.

use fathom_model::units::{Nanos, approximate, rounded};

/// The running estimate of RFC 3550 section 6.4.1 and appendix A.8, in order of arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Jitter {
    transit: Option<i128>,
    estimate_ns: f64,
    pairs: u64,
}

impl Jitter {
    /// Counts a datagram that was sent and received at these times, each on its own clock.
    pub(crate) fn arrived(&mut self, sent: Nanos, received: Nanos) {
        let transit = i128::from(received.0) - i128::from(sent.0);
        if let Some(before) = self.transit.replace(transit) {
            let difference = u64::try_from((transit - before).unsigned_abs()).unwrap_or(u64::MAX);
            self.estimate_ns += (approximate(difference) - self.estimate_ns) / 16.0;
            self.pairs += 1;
        }
    }

    /// The estimate now; nothing before the second datagram.
    #[must_use]
    pub(crate) fn estimate(&self) -> Option<Nanos> {
        (self.pairs > 0).then(|| Nanos(rounded(self.estimate_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(transits: &[u64]) -> Option<Nanos> {
        let mut jitter = Jitter::default();
        for (step, transit) in transits.iter().enumerate() {
            let sent = Nanos::from_secs(step.try_into().unwrap());
            jitter.arrived(sent, sent + Nanos(*transit));
        }
        jitter.estimate()
    }

    #[test]
    fn one_datagram_has_no_jitter_and_equal_transits_have_none() {
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[500]), None);
        assert_eq!(after(&[500, 500, 500]), Some(Nanos::ZERO));
    }

    #[test]
    fn the_estimate_moves_by_a_sixteenth_of_each_difference() {
        assert_eq!(after(&[0, 1600]), Some(Nanos(100)));
        assert_eq!(after(&[1600, 0]), Some(Nanos(100)), "a datagram that gains counts as one that falls behind");
        assert_eq!(after(&[0, 1600, 0]), Some(Nanos(194)), "100 + (1600 - 100) / 16, rounded");
    }

    #[test]
    fn clocks_that_differ_by_years_do_not_matter() {
        let mut jitter = Jitter::default();
        let years = Nanos::from_secs(1_800_000_000);
        jitter.arrived(years, Nanos(5));
        jitter.arrived(years + Nanos(1000), Nanos(1005));
        assert_eq!(jitter.estimate(), Some(Nanos::ZERO));
    }
}
