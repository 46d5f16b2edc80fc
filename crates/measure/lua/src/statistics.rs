//! The objects `latency` and `requests` of `done`: fathom's histograms in the form that scripts of wrk expect.

use fathom_model::{
    Histogram,
    units::{approximate, rounded},
};

/// Distinct values with their counts, in whole units like those of wrk.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct WrkStatistics {
    values: Vec<(u64, u64)>,
    total: u64,
    mean: f64,
}

impl WrkStatistics {
    /// Converts a histogram with `per_unit` values per unit: 1000 for nanoseconds shown as microseconds.
    pub(super) fn of(histogram: &Histogram, per_unit: u64) -> Self {
        let (min, max) = (histogram.min().unwrap_or(0), histogram.max().unwrap_or(0));
        let last = histogram.buckets().count().saturating_sub(1);
        let mut values: Vec<(u64, u64)> = Vec::new();
        for (i, (low, high, count)) in histogram.buckets().enumerate() {
            // The minimum and maximum are known exactly.
            let middle = low + (high - low) / 2;
            let value = if i == last {
                max
            } else if i == 0 {
                min
            } else {
                middle
            } / per_unit;
            match values.last_mut() {
                Some((same, n)) if *same == value => *n += count,
                _ => values.push((value, count)),
            }
        }
        let mean = histogram.mean().unwrap_or(0.0) / approximate(per_unit);
        Self { values, total: histogram.count(), mean }
    }

    /// The value of a field, or the two values of a call; `None` if there is none.
    pub(super) fn field(&self, what: &str, number: f64) -> (Option<f64>, Option<f64>) {
        let one = |value| (Some(value), None);
        match what {
            "min" => one(self.values.first().map_or(0.0, |(value, _)| approximate(*value))),
            "max" => one(self.values.last().map_or(0.0, |(value, _)| approximate(*value))),
            "mean" => one(self.mean),
            "stdev" => one(self.stdev()),
            "count" => one(approximate(self.values.len() as u64)),
            "percentile" => one(approximate(self.percentile(number))),
            "at" => {
                let place = if number >= 1.0 { self.values.get(usize_of(number) - 1) } else { None };
                let (value, count) = place.copied().unwrap_or_default();
                (Some(approximate(value)), Some(approximate(count)))
            }
            _ => (None, None),
        }
    }

    fn stdev(&self) -> f64 {
        if self.total < 2 {
            return 0.0;
        }
        let square = |(value, count): &(u64, u64)| approximate(*count) * (approximate(*value) - self.mean).powi(2);
        (self.values.iter().map(square).sum::<f64>() / approximate(self.total - 1)).sqrt()
    }

    /// The value at wrk's rank of a percentile; the largest one beyond the last rank, where wrk has none.
    fn percentile(&self, percent: f64) -> u64 {
        let rank = rounded((percent.clamp(0.0, 100.0) / 100.0 * approximate(self.total) + 0.5).round());
        let mut seen = 0;
        let mut found = self.values.iter().filter(|(_, count)| {
            seen += count;
            seen >= rank
        });
        found.next().or(self.values.last()).map_or(0, |(value, _)| *value)
    }
}

fn usize_of(number: f64) -> usize {
    usize::try_from(rounded(number.floor())).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_seen_in_whole_units_with_exact_ends() {
        let mut histogram = Histogram::new();
        for (ns, n) in [(15_400, 1), (16_000, 3), (16_900, 2), (2_000_000, 1)] {
            histogram.record_n(ns, n);
        }
        let statistics = WrkStatistics::of(&histogram, 1000);
        let one = |what: &str, number: f64| statistics.field(what, number).0.unwrap();
        assert_eq!((one("min", 0.0), one("max", 0.0), one("count", 0.0)), (15.0, 2000.0, 3.0));
        assert!((one("mean", 0.0) - (15.4 + 48.0 + 33.8 + 2000.0) / 7.0).abs() < 1e-9);
        assert_eq!(statistics.field("at", 2.0), (Some(16.0), Some(5.0)));
        assert_eq!(statistics.field("at", 4.0), (Some(0.0), Some(0.0)));
        assert_eq!(statistics.field("at", f64::NAN), (Some(0.0), Some(0.0)));
        let percentiles = [0.0, 50.0, 99.0, 100.0, 1e9].map(|percent| statistics.percentile(percent));
        assert_eq!(percentiles, [15, 16, 2000, 2000, 2000]);
        assert_eq!(statistics.field("nothing", 0.0), (None, None));
        assert!((one("stdev", 0.0) - 742.0).abs() < 10.0, "{}", one("stdev", 0.0));
    }

    #[test]
    fn nothing_at_all_is_all_zero() {
        let statistics = WrkStatistics::of(&Histogram::new(), 1);
        for what in ["min", "max", "mean", "stdev", "count", "percentile"] {
            assert_eq!(statistics.field(what, 50.0).0, Some(0.0), "{what}");
        }
    }
}
