//! Distributions in constant memory.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::units::{approximate, rounded};

/// Each octave is divided into this many (2⁸) buckets, so the middle of a bucket is within 0.2 % of every value in it.
const PRECISION: u32 = 8;
const PER_OCTAVE: u64 = 1 << PRECISION;
/// Values of 2⁴² ns (73 minutes) and more share the last bucket; their maximum is kept exactly.
const OCTAVES: u32 = 42;
const BUCKETS: usize = ((OCTAVES - PRECISION + 1) as usize) << PRECISION;

/// Counts of whole numbers (usually nanoseconds) in buckets of 0.39 % width.
///
/// The memory is the same for ten values and for ten billion: 70 KiB. Two histograms can be added, so percentiles over several workers,
/// trials and hosts come from merged counts and are never averaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

fn index_of(value: u64) -> usize {
    let octave = (u64::BITS - value.leading_zeros()).saturating_sub(PRECISION + 1);
    let index = (u64::from(octave) << PRECISION) + (value >> octave);
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The smallest value of a bucket and the number of distinct values in it.
fn bucket(index: usize) -> (u64, u64) {
    let index = index as u64;
    let octave = (index >> PRECISION).saturating_sub(1);
    let low = (index - (octave << PRECISION)) << octave;
    (low, 1 << octave)
}

impl Histogram {
    /// Creates an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts one value several times.
    #[inline]
    pub fn record_n(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        self.counts[index_of(value)] += times;
        self.total += times;
        self.sum += u128::from(value) * u128::from(times);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Clears all counts, as at the end of a warm-up; allocates nothing.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.total, self.sum, self.min, self.max) = (0, 0, u64::MAX, 0);
    }

    /// The number of counted values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.total
    }

    /// The smallest value, exactly.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.total > 0).then_some(self.min)
    }

    /// The largest value, exactly.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.total > 0).then_some(self.max)
    }

    /// The arithmetic mean, exactly.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean is an approximation")]
    pub fn mean(&self) -> Option<f64> {
        (self.total > 0).then(|| self.sum as f64 / approximate(self.total))
    }

    /// Returns the smallest recorded value that at least a share `q` of all values does not exceed, within 0.2 %.
    ///
    /// # Panics
    /// If `q` is outside 0 to 1.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        assert!((0.0..=1.0).contains(&q), "a quantile is between 0 and 1, not {q}");
        let rank = rounded((q * approximate(self.total)).ceil()).max(1);
        self.value_at_rank(rank)
    }

    /// Returns the value of a rank, counted from 1 for the smallest; `None` beyond the number of values.
    #[must_use]
    pub fn value_at_rank(&self, rank: u64) -> Option<u64> {
        if rank == 0 || rank > self.total {
            return None;
        }
        if rank == self.total {
            return Some(self.max);
        }
        let mut seen = 0;
        let index = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        let (low, width) = bucket(index);
        Some((low + (width - 1) / 2).clamp(self.min, self.max))
    }

    /// The sample standard deviation (over n − 1), from the middles of the buckets; `None` for fewer than two values.
    #[must_use]
    pub fn stdev(&self) -> Option<f64> {
        let mean = self.mean().filter(|_| self.total > 1)?;
        let squares = self.middles().map(|(middle, count)| approximate(count) * (approximate(middle) - mean).powi(2));
        Some((squares.sum::<f64>() / approximate(self.total - 1)).sqrt())
    }

    /// The share of values from `low` to `high`, both included, based on the middles of the buckets.
    #[must_use]
    pub fn share_within(&self, low: f64, high: f64) -> Option<f64> {
        let inside = self.middles().filter(|(middle, _)| (low..=high).contains(&approximate(*middle)));
        let n_inside: u64 = inside.map(|(_, count)| count).sum();
        (self.total > 0).then(|| approximate(n_inside) / approximate(self.total))
    }

    /// The middle value and the count of each bucket in use.
    fn middles(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets().map(|(low, high, count)| ((low + (high - low) / 2).clamp(self.min, self.max), count))
    }

    /// The number of values above the given one, to the precision of its bucket.
    #[must_use]
    pub fn count_above(&self, value: u64) -> u64 {
        self.counts[index_of(value) + 1..].iter().sum()
    }

    /// The non-empty buckets: smallest value, largest value, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(index, count)| {
            let (low, width) = bucket(index);
            (low, low + (width - 1), *count)
        })
    }
}

/// The serialized form: only the non-empty buckets, as pairs of index and count.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Histogram")]
struct Sparse {
    /// Buckets per octave; other values are rejected.
    per_octave: u64,
    /// The smallest value; absent if nothing was counted.
    min: Option<u64>,
    /// The largest value; absent if nothing was counted.
    max: Option<u64>,
    /// The sum of all values, as text because it may exceed 64 bits.
    sum: String,
    /// Index and count of each bucket in use. Bucket i begins at i below 512, else at (i mod 256 + 256) · 2^(i / 256 − 1).
    buckets: Vec<(usize, u64)>,
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Sparse {
            per_octave: PER_OCTAVE,
            min: self.min(),
            max: self.max(),
            sum: self.sum.to_string(),
            buckets: used.map(|(index, count)| (index, *count)).collect(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sparse = Sparse::deserialize(deserializer)?;
        if sparse.per_octave != PER_OCTAVE {
            return Err(D::Error::custom(format!("a histogram with {} buckets per octave", sparse.per_octave)));
        }
        let mut histogram = Self::new();
        for (index, count) in sparse.buckets {
            let slot = histogram.counts.get_mut(index).ok_or_else(|| D::Error::custom("a bucket beyond the last"))?;
            *slot = count;
            histogram.total = histogram.total.checked_add(count).ok_or_else(|| D::Error::custom("counts overflow"))?;
        }
        histogram.sum = sparse.sum.parse().map_err(D::Error::custom)?;
        histogram.min = sparse.min.unwrap_or(u64::MAX);
        histogram.max = sparse.max.unwrap_or(0);
        if histogram.total > 0 && histogram.min > histogram.max {
            return Err(D::Error::custom("the smallest value exceeds the largest"));
        }
        Ok(histogram)
    }
}

impl schemars::JsonSchema for Histogram {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Histogram".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Sparse::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_kept_within_a_fifth_of_a_percent() {
        for shift in 0..41 {
            for step in [0_u64, 1, 77, 200, 255] {
                let value = (1_u64 << shift) + (step << shift >> 8);
                let (low, width) = bucket(index_of(value));
                assert!((low..low + width).contains(&value), "{value} is not in {low}+{width}");
                let middle = low + (width - 1) / 2;
                assert!(middle.abs_diff(value) * 500 <= value, "{middle} stands for {value}");
            }
        }
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        for index in 0..BUCKETS - 1 {
            let (low, width) = bucket(index);
            assert_eq!(low + width, bucket(index + 1).0, "bucket {index}");
        }
    }

    #[test]
    fn merged_counts_give_the_quantiles_of_the_whole() {
        let (mut odd, mut even, mut all) = (Histogram::new(), Histogram::new(), Histogram::new());
        for value in 1..=100_000 {
            if value % 2 == 0 {
                even.record(value);
            } else {
                odd.record(value);
            }
            all.record(value);
        }
        odd.merge(&even);
        assert_eq!(odd, all);
        assert!(all.quantile(0.5).unwrap().abs_diff(50_000) <= 100);
        assert_eq!((all.quantile(1.0), all.quantile(0.0)), (Some(100_000), Some(1)));
        assert_eq!(all.mean(), Some(50_000.5));
    }

    #[test]
    fn an_empty_histogram_has_no_quantile() {
        let empty = Histogram::new();
        assert_eq!((empty.quantile(0.5), empty.mean()), (None, None));
        assert_eq!((empty.stdev(), empty.share_within(0.0, 1.0)), (None, None));
    }

    #[test]
    fn the_spread_is_that_of_a_sample() {
        let mut histogram = Histogram::new();
        histogram.record(10);
        assert_eq!(histogram.stdev(), None, "one value has no spread");
        for value in [12, 14, 16, 18] {
            histogram.record(value);
        }
        let stdev = histogram.stdev().unwrap();
        assert!((stdev - 10_f64.sqrt()).abs() < 1e-9, "{stdev}");
        assert_eq!(histogram.share_within(14.0 - stdev, 14.0 + stdev), Some(0.6));
        histogram.clear();
        for value in (1..=1_000).map(|i| i * 1_000_000) {
            histogram.record(value);
        }
        let exact = 1_000_000.0 * (1_000.0_f64 * 1_001.0 / 12.0).sqrt();
        assert!((histogram.stdev().unwrap() / exact - 1.0).abs() < 0.002);
    }

    #[test]
    fn values_beyond_the_last_bucket_keep_their_maximum() {
        let mut histogram = Histogram::new();
        histogram.record(u64::MAX);
        assert_eq!(histogram.quantile(0.5), Some(u64::MAX));
    }

    #[test]
    fn the_serialised_form_is_read_back_and_checked() {
        let mut histogram = Histogram::new();
        for value in [3, 500, 48_200, 9_999_999] {
            histogram.record(value);
        }
        let text = serde_json::to_string(&histogram).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
        let broken = text.replace("\"per_octave\":256", "\"per_octave\":128");
        assert!(serde_json::from_str::<Histogram>(&broken).is_err());
    }
}
