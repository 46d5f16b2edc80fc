//! The number of completions to wait for: enough to share the cost of a wait, but too few to affect a measured time.

use fathom_model::units::Nanos;

use super::Batch;

/// Larger batches save nothing measurable, and each completion would wait longer for its turn.
const MOST: u32 = 32;
/// Wait for one in this many outstanding requests, so that the peer still has the rest to work on.
const PART: u32 = 4;
/// The divisor of a typical response time that gives the allowed wait: 5 % is within the spread of every service.
const SHARE: u64 = 20;
/// The weight of each response time in the typical one is one in this many, so that it follows within a few dozen of them.
const WEIGHT: u64 = 16;

/// An adaptive batch rule that follows the number of outstanding requests and the response times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adaptive {
    longest: Nanos,
    typical: Option<Nanos>,
}

impl Adaptive {
    /// Creates a rule that never waits longer than `longest` for more than one completion.
    #[must_use]
    pub const fn new(longest: Nanos) -> Self {
        Self { longest, typical: None }
    }

    /// Learns from a response time.
    pub fn observe(&mut self, response_time: Nanos) {
        let typical = self.typical.unwrap_or(response_time).0;
        // This order of operations keeps small times from being rounded away.
        self.typical = Some(Nanos(typical - typical / WEIGHT + response_time.0 / WEIGHT));
    }

    /// The batch to wait for with this many outstanding requests; `None` takes the first completion.
    #[must_use]
    pub fn batch(&self, n_outstanding: u32) -> Option<Batch> {
        let within = self.longest.min(Nanos(self.typical?.0 / SHARE));
        let n = (n_outstanding / PART).min(MOST);
        // The kernel's resolution is one microsecond.
        (n > 1 && within >= Nanos::from_micros(1)).then_some(Batch { n, within })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Nanos = Nanos::from_micros(100);

    fn after(response_times: &[Nanos]) -> Adaptive {
        let mut rule = Adaptive::new(LONGEST);
        for &time in response_times {
            rule.observe(time);
        }
        rule
    }

    #[test]
    fn a_batch_is_a_part_of_what_is_outstanding_up_to_a_bound() {
        let rule = after(&[Nanos::from_millis(10)]);
        for (n_outstanding, n) in
            [(0, None), (7, None), (8, Some(2)), (100, Some(25)), (128, Some(32)), (60_000, Some(32))]
        {
            assert_eq!(rule.batch(n_outstanding), n.map(|n| Batch { n, within: LONGEST }), "{n_outstanding}");
        }
    }

    #[test]
    fn the_wait_is_a_small_part_of_a_fast_answer() {
        assert_eq!(after(&[Nanos::from_micros(400)]).batch(100).unwrap().within, Nanos::from_micros(20));
        assert_eq!(after(&[Nanos::from_micros(19)]).batch(100), None);
        assert_eq!(after(&[]).batch(100), None, "nothing is known yet");
    }

    #[test]
    fn one_slow_answer_does_not_lengthen_the_waits_much() {
        let mut times = vec![Nanos::from_micros(200); 100];
        times.push(Nanos::from_millis(1));
        assert!(after(&times).batch(100).unwrap().within < Nanos::from_micros(13));
        // The rule follows a lasting change.
        times.extend([Nanos::from_millis(4); 100]);
        assert_eq!(after(&times).batch(100).unwrap().within, LONGEST);
    }
}
