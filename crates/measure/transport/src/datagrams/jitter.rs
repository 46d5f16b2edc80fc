//! Interarrival jitter as RFC 3550 defines it, and the difference between the delays of consecutive datagrams.
//!
//! It takes the time of a datagram at the sender and at the receiver; the two clocks need not agree.

use fathom_model::units::{Nanos, approximate, rounded};

/// The running estimate of RFC 3550 section 6.4.1 and appendix A.8, over consecutive datagrams that both arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Jitter {
    before: Option<(u64, i128)>,
    estimate_ns: f64,
    pairs: u64,
}

impl Jitter {
    /// Adds a datagram by its number and its times of sending and receiving, each on its own clock.
    ///
    /// Returns the difference between its delay and that of its predecessor (IPDV of RFC 5481 section 4.1). After a gap or
    /// reordering there is no such difference, and the estimate does not change.
    pub(super) fn arrived(&mut self, number: u64, (sent, received): (Nanos, Nanos)) -> Option<Nanos> {
        let transit = i128::from(received.0) - i128::from(sent.0);
        let (before, transit_before) = self.before.replace((number, transit))?;
        if before.checked_add(1) != Some(number) {
            return None;
        }
        let difference = u64::try_from((transit - transit_before).unsigned_abs()).unwrap_or(u64::MAX);
        self.estimate_ns += (approximate(difference) - self.estimate_ns) / 16.0;
        self.pairs += 1;
        Some(Nanos(difference))
    }

    /// The current estimate; `None` before two consecutive datagrams have arrived.
    #[must_use]
    pub(super) fn estimate(&self) -> Option<Nanos> {
        (self.pairs > 0).then(|| Nanos(rounded(self.estimate_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate after datagrams with these numbers and transit times.
    fn after(datagrams: &[(u64, u64)]) -> Option<Nanos> {
        let mut jitter = Jitter::default();
        for (number, transit) in datagrams {
            let sent = Nanos::from_secs(*number);
            jitter.arrived(*number, (sent, sent + Nanos(*transit)));
        }
        jitter.estimate()
    }

    #[test]
    fn one_datagram_has_no_jitter_and_equal_transits_have_none() {
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[(0, 500)]), None);
        assert_eq!(after(&[(0, 500), (1, 500), (2, 500)]), Some(Nanos::ZERO));
    }

    #[test]
    fn the_estimate_moves_by_a_sixteenth_of_each_difference() {
        assert_eq!(after(&[(0, 0), (1, 1600)]), Some(Nanos(100)));
        assert_eq!(after(&[(0, 1600), (1, 0)]), Some(Nanos(100)), "one that gains counts as one that falls behind");
        assert_eq!(after(&[(0, 0), (1, 1600), (2, 0)]), Some(Nanos(194)), "100 + (1600 - 100) / 16, rounded");
    }

    #[test]
    fn it_starts_again_behind_a_gap_and_behind_one_that_was_overtaken() {
        assert_eq!(after(&[(0, 0), (5, 1_000_000)]), None, "what lies between may have been as late");
        assert_eq!(after(&[(0, 0), (1, 1600), (9, 1_000_000), (10, 1_000_000)]), Some(Nanos(94)), "100 - 100 / 16");
        assert_eq!(after(&[(0, 0), (2, 900), (1, 50), (3, 7)]), None);
    }

    #[test]
    fn clocks_that_differ_by_years_do_not_matter() {
        let mut jitter = Jitter::default();
        let years = Nanos::from_secs(1_800_000_000);
        jitter.arrived(0, (years, Nanos(5)));
        assert_eq!(jitter.arrived(1, (years + Nanos(1000), Nanos(1005))), Some(Nanos::ZERO));
        assert_eq!(jitter.estimate(), Some(Nanos::ZERO));
    }
}
