//! Which units of work of a worker are sampled.

use fathom_model::units::Nanos;

/// The least time between two samples of a trial. A sample costs at most a few microseconds.
const SPACING_MIN: Nanos = Nanos::from_millis(2);

/// Which units of work of a worker are sampled, such as transactions or requests.
///
/// It counts units, at a distance that follows from their mean rate so far. A distance in time would prefer slow ones.
#[derive(Debug)]
pub struct SampleSchedule {
    spacing: Nanos,
    begin: Option<Nanos>,
    n: u64,
    next: u64,
}

impl SampleSchedule {
    /// The most samples of a trial: forty of them are its slowest hundredth.
    pub const UNITS_MAX: u64 = 4096;

    /// The share of one of `n_workers` workers, for a trial that measures for this long.
    #[must_use]
    pub fn new(measure: Nanos, n_workers: usize) -> Self {
        let spacing = SPACING_MIN.max(measure / Self::UNITS_MAX) * u64::try_from(n_workers).unwrap_or(1);
        Self { spacing, begin: None, n: 0, next: 0 }
    }

    /// Counts a unit, and returns whether it is sampled.
    #[inline]
    pub fn is_due(&mut self, now: Nanos) -> bool {
        self.n += 1;
        let is_due = self.n >= self.next;
        if is_due {
            let took = now.since(*self.begin.get_or_insert(now));
            let distance = (u128::from(self.n) * u128::from(self.spacing.0)).checked_div(u128::from(took.0));
            self.next = self.n + u64::try_from(distance.unwrap_or(1)).unwrap_or(1).clamp(1, 2 * self.n);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of samples in a second of units of this length.
    fn n_sampled(length: Nanos, n_workers: usize) -> u64 {
        let second = Nanos::from_secs(1);
        let mut schedule = SampleSchedule::new(second, n_workers);
        let times = (0..second.0 / length.0).map(|n| Nanos::from_secs(5) + length * n);
        times.map(|now| u64::from(schedule.is_due(now))).sum()
    }

    #[test]
    fn about_one_unit_per_two_milliseconds_is_sampled_and_each_of_slow_ones() {
        for length in [Nanos::from_micros(5), Nanos::from_micros(50), Nanos::from_micros(333)] {
            let n = n_sampled(length, 1);
            assert!((450..=550).contains(&n), "{length} {n}");
        }
        assert_eq!(n_sampled(Nanos::from_millis(20), 1), 50);
        assert!((112..=138).contains(&n_sampled(Nanos::from_micros(50), 4)));
    }
}
