//! Two groups of times, apart from each other: their median is that of one of them, or of none.

use fathom_model::{
    Histogram,
    units::{Nanos, approximate, rounded},
};

/// Each group has at least this share of all: a smaller one is a tail.
const SHARE_MIN: f64 = 0.1;
/// The slow ones take at least so many times as long as the fast ones. Between neighboring quantiles of one group, even of a heavy tail
/// (Pareto, α = 1), the factor is about two.
const APART: f64 = 4.0;
/// The part of each group that may lie between them and still leave two.
const BETWEEN: f64 = 0.1;
/// Fewer answers show no groups.
const ANSWERS_MIN: u64 = 100;

/// Two groups of times, apart from each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Groups {
    /// The median of each.
    pub(crate) fast: Nanos,
    pub(crate) slow: Nanos,
    /// The share of the slow ones.
    pub(crate) share_slow: f64,
}

impl Groups {
    /// Divides times at their widest gap, if it is wide enough.
    pub(crate) fn of(times: &Histogram) -> Option<Self> {
        let n = approximate(times.count());
        (times.count() >= ANSWERS_MIN).then_some(())?;
        let mut below = 0;
        let edges = times.buckets().map(|(.., count)| {
            below += count;
            below
        });
        let edges = edges.filter(|below| (SHARE_MIN..=1.0 - SHARE_MIN).contains(&(approximate(*below) / n)));
        let at = |rank: f64| times.value_at_rank(rounded(rank).max(1)).map(approximate);
        let factor = |below: f64, margins: (f64, f64)| Some(at(below + margins.1)? / at(below - margins.0)?.max(1.0));
        let is_gap = |below: &u64| {
            let below = approximate(*below);
            factor(below, (BETWEEN * below, BETWEEN * (n - below))).is_some_and(|factor| factor >= APART)
        };
        let jump = |below: u64| Some((below, factor(approximate(below), (0.0, 1.0))?));
        let (below, _) = edges.filter(is_gap).filter_map(jump).max_by(|a, b| a.1.total_cmp(&b.1))?;
        let median_of = |from: u64, to: u64| times.value_at_rank(from + (to - from).div_ceil(2)).map(Nanos);
        Some(Self {
            fast: median_of(0, below)?,
            slow: median_of(below, times.count())?,
            share_slow: 1.0 - approximate(below) / n,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(groups: &[(u64, u64)]) -> Histogram {
        let mut all = Histogram::new();
        for (micros, n) in groups {
            // Each group is as wide as a quarter of its time.
            (0..*n).for_each(|idx| all.record(micros * 1_000 * (1_000 + 250 * idx / n) / 1_000));
        }
        all
    }

    #[test]
    fn two_groups_are_told_apart_by_the_gap_between_them() {
        for (n_fast, n_slow, share) in [(500, 500, 0.5), (150, 850, 0.85), (880, 120, 0.12)] {
            let groups = Groups::of(&times(&[(200, n_fast), (20_000, n_slow)])).unwrap();
            assert!((groups.share_slow - share).abs() < 0.01, "{groups:?}");
            assert!(groups.fast < Nanos::from_micros(260) && groups.slow > Nanos::from_millis(20), "{groups:?}");
        }
    }

    #[test]
    fn one_group_a_tail_and_a_heavy_tail_are_not_two_groups() {
        assert_eq!(Groups::of(&times(&[(200, 1_000)])), None);
        assert_eq!(Groups::of(&times(&[(200, 960), (20_000, 40)])), None, "a tail");
        assert_eq!(Groups::of(&times(&[(200, 500), (600, 500)])), None, "near");
        let mut pareto = Histogram::new();
        (1..=1_000).for_each(|rank: u64| pareto.record(100_000_000 / rank));
        assert_eq!(Groups::of(&pareto), None);
    }
}
