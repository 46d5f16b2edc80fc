//! The numbers of ab's tables: whole milliseconds, and ab's own definition of a median. Pure functions.

use fathom_model::{
    Histogram,
    units::{Nanos, approximate, rounded},
};

/// Returns whole milliseconds, rounded half up from whole microseconds, like ab.
pub(super) fn millis(time: Nanos) -> u64 {
    (time.0 / 1_000 + 500) / 1_000
}

/// Returns the value at an index of all sorted values. Beyond the end, returns the largest.
fn at(values: &Histogram, place: u64) -> Nanos {
    Nanos(values.value_at_rank((place + 1).min(values.count())).unwrap_or(0))
}

/// One row of the connection times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct TimesRow {
    pub(super) min: u64,
    pub(super) mean: u64,
    pub(super) deviation: f64,
    pub(super) median: u64,
    pub(super) max: u64,
}

impl TimesRow {
    pub(super) fn of(values: &Histogram) -> Self {
        let n = values.count();
        // ab averages two neighbors if the number of values is odd, and takes one if it is even.
        let median = if n > 1 && n % 2 == 1 {
            Nanos(u64::midpoint(at(values, n / 2).0, at(values, n / 2 + 1).0))
        } else {
            at(values, n / 2)
        };
        Self {
            min: millis(Nanos(values.min().unwrap_or(0))),
            mean: millis(Nanos(rounded(values.mean().unwrap_or(0.0)))),
            deviation: values.stdev().unwrap_or(0.0) / 1e6,
            median: millis(median),
            max: millis(Nanos(values.max().unwrap_or(0))),
        }
    }

    /// Returns ab's warning about a mean and a median that are far apart.
    pub(super) fn skew_warning(&self, what: &str) -> Option<String> {
        let apart = approximate(self.mean.abs_diff(self.median));
        if apart > 2.0 * self.deviation {
            return Some(format!(
                "ERROR: The median and mean for {what} are more than twice the standard\n       deviation apart. These results are NOT reliable.\n"
            ));
        }
        (apart > self.deviation).then(|| {
            format!(
                "WARNING: The median and mean for {what} are not within a normal deviation\n        These results are probably not that reliable.\n"
            )
        })
    }
}

/// The times of all requests, each as a distribution.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestTimes {
    pub(super) connect: Histogram,
    pub(super) processing: Histogram,
    pub(super) waiting: Histogram,
    pub(super) total: Histogram,
}

/// The percentages of ab's table. 100 has a row of its own.
const PERCENTAGES: [u64; 8] = [50, 66, 75, 80, 90, 95, 98, 99];

impl RequestTimes {
    pub(super) fn rows(&self) -> [TimesRow; 4] {
        [&self.connect, &self.processing, &self.waiting, &self.total].map(TimesRow::of)
    }

    /// Returns percentages with milliseconds.
    pub(super) fn percentages(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let n = self.total.count();
        PERCENTAGES.into_iter().map(move |percent| (percent, millis(at(&self.total, n * percent / 100))))
    }

    /// Returns the content of the file of `-e`: a row per percent.
    pub(super) fn csv(&self) -> String {
        let n = approximate(self.total.count());
        let row = |percent: u64| {
            let place = rounded((0.5 + n * approximate(percent) / 100.0).trunc());
            // ab reads past the last value here, which is undefined. The last value is used instead.
            let time = at(&self.total, if percent == 0 { 0 } else { place });
            format!("{percent},{:.3}\n", approximate(time.0 / 1_000) / 1e3)
        };
        std::iter::once("Percentage served,Time in ms\n".to_owned()).chain((0..=100).map(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(micros: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        for us in micros {
            histogram.record(us * 1_000);
        }
        histogram
    }

    #[test]
    fn the_median_of_an_odd_number_lies_between_two_as_ab_has_it() {
        // An output of ab for three requests: `Connect:        0    5   9.3      8      16`.
        let row = TimesRow::of(&histogram(&[50, 60, 16_200]));
        assert_eq!((row.min, row.mean, row.median, row.max), (0, 5, 8, 16));
        assert!((row.deviation - 9.3).abs() < 0.05, "{}", row.deviation);
        // For an even number, the upper one of the two middle values.
        assert_eq!(TimesRow::of(&histogram(&[1_000, 2_000, 3_000, 4_000])).median, 3);
    }

    #[test]
    fn percentages_are_places_and_not_ranks() {
        // An output of ab for three requests: 50 % and 66 % at 0, 75 % and all above at 16.
        let times = RequestTimes { total: histogram(&[50, 60, 16_200]), ..RequestTimes::default() };
        let found: Vec<_> = times.percentages().collect();
        assert_eq!(found, [(50, 0), (66, 0), (75, 16), (80, 16), (90, 16), (95, 16), (98, 16), (99, 16)]);
    }

    #[test]
    fn the_rows_of_the_csv_are_those_of_ab() {
        // Six requests of ab and its output file: the percentages at which the value changes.
        let times = RequestTimes { total: histogram(&[98, 232, 267, 3_221, 3_774, 3_848]), ..RequestTimes::default() };
        let csv = times.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!((lines.len(), lines[0]), (102, "Percentage served,Time in ms"));
        for (percent, ms) in
            [(0, 0.098), (8, 0.098), (9, 0.232), (25, 0.267), (42, 3.221), (59, 3.774), (75, 3.848), (100, 3.848)]
        {
            let (shown, value) = lines[percent + 1].split_once(',').unwrap();
            let value: f64 = value.parse().unwrap();
            assert!(shown == percent.to_string() && (value / ms - 1.0).abs() < 0.005, "{shown}: {value} is not {ms}");
        }
    }

    #[test]
    fn a_mean_far_from_its_median_is_doubted() {
        let row = |mean, deviation, median| TimesRow { mean, deviation, median, ..TimesRow::default() };
        assert_eq!(row(6, 1.5, 7).skew_warning("the total time"), None);
        assert!(
            row(6, 0.6, 7)
                .skew_warning("the total time")
                .unwrap()
                .starts_with("WARNING: The median and mean for the total")
        );
        assert!(row(6, 0.4, 7).skew_warning("the total time").unwrap().starts_with("ERROR: "));
    }

    #[test]
    fn times_become_milliseconds_by_way_of_microseconds() {
        assert_eq!([0, 499_999, 500_000, 1_499_999, 1_500_000].map(|ns| millis(Nanos(ns))), [0, 0, 1, 1, 2]);
    }
}
