//! What the records of replays say: the sums of all trials, and how the times of answers differ from those of the recording.

use fathom_model::{
    PairedTimes, ReplayRecord, ReplaySummary,
    replay::ComparedAnswers,
    run::TestRun,
    units::{approximate, ratio},
};
use fathom_statistics::quantile_ranks;

/// Returns what became of the requests of a recording; `None` if the test sent none.
pub(crate) fn summary(test: &TestRun) -> Option<ReplaySummary> {
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    let mut records = records.filter_map(|record| record.replay.as_ref());
    let mut all: ReplayRecord = records.next()?.clone();
    records.for_each(|record| all.merge(record));
    let paired = all.compared.as_ref().and_then(paired);
    Some(ReplaySummary { all, paired })
}

/// Returns the median of the differences with its interval; `None` without a pair.
fn paired(compared: &ComparedAnswers) -> Option<PairedTimes> {
    let (n_faster, n_slower) = (compared.faster.count(), compared.slower.count());
    let n = n_faster + n_slower;
    // In order, the answers that came sooner by most are first.
    let at_rank = |rank: u64| match rank.checked_sub(n_faster) {
        Some(of_slower @ 1..) => compared.slower.value_at_rank(of_slower).map(approximate),
        _ => compared.faster.value_at_rank(n_faster + 1 - rank).map(|sooner| -approximate(sooner)),
    };
    let (low, high) = quantile_ranks(n, 0.5)?;
    Some(PairedTimes {
        n,
        slower_ratio: ratio(n_slower, n)?,
        median_ns: at_rank(n.div_ceil(2))?,
        interval_ns: if low < 1 || high > n { None } else { at_rank(low).zip(at_rank(high)) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(faster: &[u64], slower: &[u64]) -> Option<PairedTimes> {
        let mut compared = ComparedAnswers::default();
        for value in faster {
            compared.faster.record(*value);
        }
        for value in slower {
            compared.slower.record(*value);
        }
        paired(&compared)
    }

    #[test]
    fn the_median_lies_where_half_of_the_answers_came_sooner() {
        assert_eq!(of(&[], &[]), None);
        let all_slower: Vec<u64> = (1..=101).collect();
        let found = of(&[], &all_slower).unwrap();
        assert_eq!((found.n, found.median_ns, found.slower_ratio), (101, 51.0, 1.0));
        assert!(found.interval_ns.is_some_and(|(low, high)| low < 45.0 && high > 57.0), "{found:?}");
        let found = of(&[0, 10, 20], &[30, 40]).unwrap();
        assert_eq!(
            (found.median_ns, found.interval_ns),
            (0.0, None),
            "the range of five has the median in 94 % of cases"
        );
        let found = of(&[10, 20], &[30, 40, 50, 60]).unwrap();
        assert_eq!(found.interval_ns, Some((-20.0, 60.0)));
        let found = of(&[5, 7, 9, 100], &[3]).unwrap();
        assert_eq!((found.median_ns, found.n), (-7.0, 5));
    }
}
