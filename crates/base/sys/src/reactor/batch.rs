//! How many completions are worth waiting for: enough to share the price of a wait, too few to be seen in a time.

use fathom_model::units::Nanos;

use super::Batch;

/// More in one go saves nothing that can be measured, and each would wait longer for its turn.
const MOST: u32 = 32;
/// This part of what is outstanding is waited for: the peer still has the rest to work on meanwhile.
const PART: u32 = 4;
/// The part of a typical response time that may pass in waiting for others: 5 % is within the spread of every service.
const SHARE: u64 = 20;
/// Each response time changes the typical one by this part, so that it follows within a few dozen of them.
const WEIGHT: u64 = 16;

/// A rule for batches that follows how much is outstanding and how fast the answers are.
///
/// ```
/// use fathom_sys::reactor::Adaptive;
/// use fathom_model::units::Nanos;
///
/// let mut rule = Adaptive::new(Nanos::from_micros(100));
/// assert_eq!(rule.batch(100), None, "nothing is known yet");
/// rule.observe(Nanos::from_millis(2));
/// assert_eq!(rule.batch(100).map(|batch| batch.n), Some(25));
/// assert_eq!(rule.batch(1), None, "one request has nobody to share a wait with");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adaptive {
    longest: Nanos,
    typical: Option<Nanos>,
}

impl Adaptive {
    /// A rule that never waits for more than one completion longer than `longest`.
    #[must_use]
    pub const fn new(longest: Nanos) -> Self {
        Self { longest, typical: None }
    }

    /// Learns from the time that one response took.
    pub fn observe(&mut self, response_time: Nanos) {
        let typical = self.typical.unwrap_or(response_time).0;
        // The order of the operations keeps small times from being rounded away.
        self.typical = Some(Nanos(typical - typical / WEIGHT + response_time.0 / WEIGHT));
    }

    /// The batch to wait for while that many requests are outstanding; `None` takes the first that comes.
    #[must_use]
    pub fn batch(&self, n_outstanding: u32) -> Option<Batch> {
        let within = self.longest.min(Nanos(self.typical?.0 / SHARE));
        let n = (n_outstanding / PART).min(MOST);
        // The kernel counts in microseconds.
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
        assert_eq!(after(&[]).batch(100), None);
    }

    #[test]
    fn one_slow_answer_does_not_lengthen_the_waits_much() {
        let mut times = vec![Nanos::from_micros(200); 100];
        times.push(Nanos::from_millis(1));
        assert!(after(&times).batch(100).unwrap().within < Nanos::from_micros(13));
        // A lasting change is followed.
        times.extend([Nanos::from_millis(4); 100]);
        assert_eq!(after(&times).batch(100).unwrap().within, LONGEST);
    }
}
