//! The outcome of numbered datagrams: received once, duplicated, reordered, late, or lost.
//!
//! Numbers have 64 bits and begin at 0. A bitmap of the last [`WINDOW`] numbers distinguishes late first copies from duplicates.
//! When it has passed over numbers, it shows which were lost in a row. Memory use is constant. This module knows neither sockets
//! nor clocks.

use std::collections::VecDeque;

use fathom_model::Histogram;

/// The size of the bitmap in numbers; all but the oldest 64 of them can be distinguished from duplicates.
///
/// 1,048,576 numbers are 128 KiB, of which an in-order stream touches one cache line after another, and 350 ms at 3 million
/// datagrams per second: longer than a queue on the path delays a datagram.
pub(super) const WINDOW: u64 = 1 << 20;
const WORDS: usize = 1 << 14;
/// The number of recent gaps that are remembered with the arrival that opened them: 96 KiB.
const GAPS: usize = 4096;

/// The accounting of one flow.
#[derive(Debug, Clone)]
pub(super) struct SequenceTracker {
    seen: Box<[u64]>,
    /// The highest number so far plus one.
    next: u64,
    /// The outcome of all lower numbers is settled; a multiple of 64.
    settled: u64,
    counts: SequenceCounts,
    gaps: VecDeque<Gap>,
    /// The length of the run of lost numbers that ends at `settled`.
    run: u64,
    /// The number of arrived ones between that run and the run before it.
    n_since_loss: u64,
    bursts: Histogram,
    spacings: Histogram,
    extents: Histogram,
}

/// A range of skipped numbers, and the count of datagrams that had arrived by then.
#[derive(Debug, Clone, Copy)]
struct Gap {
    first: u64,
    end: u64,
    n_arrived: u64,
}

/// The counts of arrivals; losses follow from the number sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceCounts {
    /// Distinct numbers that arrived within the window.
    pub received: u64,
    /// Further copies of a number that had arrived.
    pub duplicates: u64,
    /// First copies that arrived after a higher number (RFC 4737 section 3.3).
    pub reordered: u64,
    /// Arrivals behind the window. They count as lost, because first copies cannot be distinguished from duplicates there.
    pub late: u64,
}

impl std::ops::Sub for SequenceCounts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            duplicates: self.duplicates - before.duplicates,
            reordered: self.reordered - before.reordered,
            late: self.late - before.late,
        }
    }
}

/// The classification of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArrivalKind {
    /// A new number, greater than all before.
    InOrder,
    /// A new number after a greater one.
    Reordered,
    /// A number that had arrived.
    Duplicate,
    /// A number behind the window.
    Late,
}

/// The results of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceSummary {
    pub counts: SequenceCounts,
    /// The lengths of runs of lost datagrams, below the greatest number that arrived.
    pub bursts: Histogram,
    /// The numbers of datagrams that arrived between one such run and the next. Equal spacings are the mark of a rate limit, geometric ones
    /// of independent losses.
    pub spacings: Histogram,
    /// The reordering extents (RFC 4737 section 4.2.1) of the datagrams whose gap was remembered.
    pub extents: Histogram,
}

impl Default for SequenceTracker {
    fn default() -> Self {
        Self {
            seen: vec![0; WORDS].into(),
            next: 0,
            settled: 0,
            counts: SequenceCounts::default(),
            gaps: VecDeque::with_capacity(GAPS),
            run: 0,
            n_since_loss: 0,
            bursts: Histogram::new(),
            spacings: Histogram::new(),
            extents: Histogram::new(),
        }
    }
}

/// The word and the bit of a number.
fn place(number: u64) -> (usize, u64) {
    let word = usize::try_from((number % WINDOW) / 64).expect("below 16384");
    (word, 1 << (number % 64))
}

impl SequenceTracker {
    /// Counts an arrival and classifies it.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64) -> ArrivalKind {
        if number >= self.next {
            self.advance(number);
            self.counts.received += 1;
            return ArrivalKind::InOrder;
        }
        if number < self.settled {
            self.counts.late += 1;
            return ArrivalKind::Late;
        }
        let (word, bit) = place(number);
        if self.seen[word] & bit != 0 {
            self.counts.duplicates += 1;
            return ArrivalKind::Duplicate;
        }
        self.seen[word] |= bit;
        self.overtaken(number);
        ArrivalKind::Reordered
    }

    /// The counts so far.
    #[must_use]
    pub(super) fn counts(&self) -> SequenceCounts {
        self.counts
    }

    /// The highest number so far plus one: at least this many datagrams were sent.
    #[must_use]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Settles the outcome of all numbers up to the greatest.
    #[must_use]
    pub(super) fn finish(mut self) -> SequenceSummary {
        while self.next - self.settled >= 64 {
            self.settle_word();
        }
        let (word, _) = place(self.settled);
        self.settle(self.seen[word], self.next - self.settled);
        if self.run > 0 {
            self.bursts.record(self.run);
        }
        SequenceSummary { counts: self.counts, bursts: self.bursts, spacings: self.spacings, extents: self.extents }
    }

    /// Moves the window to include a number, and marks it.
    #[inline]
    fn advance(&mut self, number: u64) {
        while number - self.settled >= WINDOW {
            if self.settled >= self.next {
                // Nothing of the whole window has arrived: everything before the new window is lost in one run.
                let skipped = (number - self.settled - WINDOW + 64) / 64 * 64;
                self.lose(skipped);
                self.settled += skipped;
            } else {
                self.settle_word();
            }
        }
        if number > self.next {
            if self.gaps.len() == GAPS {
                self.gaps.pop_front();
            }
            self.gaps.push_back(Gap { first: self.next, end: number, n_arrived: self.counts.received });
        }
        let (word, bit) = place(number);
        self.seen[word] |= bit;
        self.next = number.saturating_add(1);
    }

    /// Counts a reordered datagram, and its extent: the arrivals since the first greater number.
    #[cold]
    fn overtaken(&mut self, number: u64) {
        let after = self.gaps.partition_point(|gap| gap.end <= number);
        if let Some(gap) = self.gaps.get(after).filter(|gap| gap.first <= number) {
            self.extents.record(self.counts.received - gap.n_arrived);
        }
        self.counts.received += 1;
        self.counts.reordered += 1;
    }

    /// Settles the 64 oldest numbers and frees their bits.
    #[inline]
    fn settle_word(&mut self) {
        let (word, _) = place(self.settled);
        let seen = std::mem::take(&mut self.seen[word]);
        // A complete word after a complete word is by far the most frequent case.
        if seen != u64::MAX || self.run > 0 {
            self.settle(seen, 64);
        } else {
            self.n_since_loss += 64;
        }
        self.settled += 64;
    }

    /// Adds to the run of lost numbers, or begins one.
    fn lose(&mut self, n: u64) {
        if n > 0 && self.run == 0 {
            self.spacings.record(self.n_since_loss);
            self.n_since_loss = 0;
        }
        self.run += n;
    }

    /// Records the runs of lost numbers among the lowest `n` bits.
    fn settle(&mut self, mut seen: u64, mut n: u64) {
        while n > 0 {
            let lost = u64::from(seen.trailing_zeros()).min(n);
            self.lose(lost);
            (n, seen) = (n - lost, seen.checked_shr(u32::try_from(lost).unwrap_or(64)).unwrap_or(0));
            if n == 0 {
                return;
            }
            if self.run > 0 {
                self.bursts.record(self.run);
                self.run = 0;
            }
            let arrived = u64::from(seen.trailing_ones()).min(n);
            self.n_since_loss += arrived;
            (n, seen) = (n - arrived, seen.checked_shr(u32::try_from(arrived).unwrap_or(64)).unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fathom_model::units::{approximate, rounded};

    use super::*;

    fn account_of(numbers: impl IntoIterator<Item = u64>) -> SequenceSummary {
        let mut sequence = SequenceTracker::default();
        numbers.into_iter().for_each(|number| {
            sequence.arrived(number);
        });
        sequence.finish()
    }

    fn counts_of(numbers: impl IntoIterator<Item = u64>) -> SequenceCounts {
        account_of(numbers).counts
    }

    /// The exact recorded values: all values here are below 512, where each has its own bucket.
    fn values(histogram: &Histogram) -> Vec<(u64, u64)> {
        histogram.buckets().map(|(low, _, count)| (low, count)).collect()
    }

    #[test]
    fn arrivals_are_told_apart() {
        let cases: [(&str, &[u64], [u64; 4]); 7] = [
            ("in order", &[0, 1, 2, 3], [4, 0, 0, 0]),
            ("a gap", &[0, 3], [2, 0, 0, 0]),
            ("a duplicate at once", &[0, 0, 1], [2, 1, 0, 0]),
            ("a duplicate later", &[0, 1, 2, 0], [3, 1, 0, 0]),
            ("one overtaken", &[0, 2, 1, 3], [4, 0, 1, 0]),
            ("one overtaken, twice", &[0, 2, 1, 1], [3, 1, 1, 0]),
            ("the first ones missing", &[5, 4], [2, 0, 1, 0]),
        ];
        for (name, numbers, [received, duplicates, reordered, late]) in cases {
            assert_eq!(counts_of(numbers.to_vec()), SequenceCounts { received, duplicates, reordered, late }, "{name}");
        }
    }

    #[test]
    fn losses_in_a_row_are_one_burst() {
        let bursts = |numbers: &[u64]| values(&account_of(numbers.to_vec()).bursts);
        assert_eq!(values(&account_of(0..300).bursts), []);
        assert_eq!(bursts(&[0, 2, 6]), [(1, 1), (3, 1)]);
        assert_eq!(bursts(&[2]), [(2, 1)], "the first ones");
        assert_eq!(bursts(&[0, 4, 2]), [(1, 2)], "a gap that was filled in its middle");
        assert_eq!(bursts(&[10, 300]), [(10, 1), (289, 1)], "over several words");
        assert_eq!(values(&account_of((0..64).chain([70])).bursts), [(6, 1)], "behind a whole word");
    }

    #[test]
    fn the_spacing_of_losses_is_what_arrived_between_them() {
        let spacings = |numbers: Vec<u64>| values(&account_of(numbers).spacings);
        assert_eq!(spacings((0..300).collect()), []);
        assert_eq!(spacings(vec![0, 1, 4, 5, 6, 9]), [(2, 1), (3, 1)]);
        let every_tenth = (0..WINDOW + 1000).filter(|number| number % 10 != 9).collect();
        let found = spacings(every_tenth);
        assert_eq!((found.len(), found[0].0), (1, 9), "the same over words and windows: {found:?}");
        assert_eq!(spacings((0..64).chain(64..192).chain([200]).collect()), [(192, 1)], "behind whole words");
    }

    #[test]
    fn the_extent_is_counted_from_the_first_arrival_that_overtook() {
        // The example of RFC 4737 section 4.2.3 in numbers from 0: 4, 5 and 6 come after 7 and 8.
        let extents = |numbers: &[u64]| values(&account_of(numbers.to_vec()).extents);
        assert_eq!(extents(&[0, 1, 2, 3, 7, 8, 4, 5, 6, 9]), [(2, 1), (3, 1), (4, 1)]);
        assert_eq!(extents(&[0, 2, 1]), [(1, 1)]);
        assert_eq!(extents(&[3, 2, 1, 0]), [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(extents(&[0, 3, 3, 3, 1]), [(1, 1)], "duplicates do not count");
        assert_eq!(extents(&[0, 2, 4, 1, 3]), [(2, 2)], "each from the arrival that opened its own gap");
    }

    #[test]
    fn the_window_moves_on_without_remembering_too_much() {
        assert_eq!(
            counts_of(0..WINDOW * 2 + 7).received,
            WINDOW * 2 + 7,
            "the same places in the bitmap, not duplicates"
        );
        assert_eq!(counts_of([0, WINDOW - 1, 1]).reordered, 1, "the oldest number inside");
        assert_eq!(counts_of([0, WINDOW, 0]).late, 1, "just outside: it was received, but that is forgotten");
        assert_eq!(counts_of([5, 5 + WINDOW * 10, 70 + WINDOW * 9]).reordered, 1, "a jump clears the whole bitmap");
        let account = account_of([0, u64::MAX]);
        assert_eq!((account.counts.received, account.bursts.max()), (2, Some(u64::MAX - 1)), "even over all numbers");
    }

    #[test]
    fn numbers_beyond_32_bits_are_ordinary() {
        let begin = (1 << 32) - 2;
        assert_eq!(counts_of(begin..begin + 10), SequenceCounts { received: 10, ..SequenceCounts::default() });
    }

    /// The same accounting in its simplest form: it remembers every arrival.
    #[derive(Default)]
    struct Naive {
        arrivals: Vec<u64>,
        counts: SequenceCounts,
        extents: BTreeMap<u64, u64>,
    }

    impl Naive {
        fn arrived(&mut self, number: u64) {
            if self.arrivals.contains(&number) {
                self.counts.duplicates += 1;
                return;
            }
            if let Some(first) = self.arrivals.iter().position(|other| *other > number) {
                self.counts.reordered += 1;
                let extent = u64::try_from(self.arrivals.len() - first).unwrap();
                *self.extents.entry(extent).or_default() += 1;
            }
            self.arrivals.push(number);
            self.counts.received += 1;
        }

        fn bursts(&self) -> BTreeMap<u64, u64> {
            let mut sorted = self.arrivals.clone();
            sorted.sort_unstable();
            let before = std::iter::once(None).chain(sorted.iter().copied().map(Some));
            let lost = before.zip(&sorted).map(|(before, number)| number - before.map_or(0, |before| before + 1));
            let mut bursts = BTreeMap::new();
            lost.filter(|n| *n > 0).for_each(|n| *bursts.entry(n).or_default() += 1);
            bursts
        }
    }

    #[test]
    fn the_account_agrees_with_one_that_remembers_every_arrival() {
        for seed in 0..60 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (spread, loss, copies) = (random.u64(1..200), random.f64() * 0.5, random.f64() * 0.3);
            let (mut sequence, mut naive) = (SequenceTracker::default(), Naive::default());
            // Far from zero as well, where numbers share bits with others in the bitmap.
            let base = if seed % 2 == 0 { 0 } else { WINDOW - 700 };
            for step in 0..1500_u64 {
                let number = base + (step + spread).saturating_sub(random.u64(0..=spread));
                if random.f64() < loss {
                    continue;
                }
                for _ in 0..=u32::from(random.f64() < copies) {
                    sequence.arrived(number);
                    naive.arrived(number);
                }
            }
            assert_eq!(sequence.next(), naive.arrivals.iter().max().unwrap() + 1);
            let account = sequence.finish();
            assert_eq!(account.counts, naive.counts, "seed {seed}");
            assert_eq!(values(&account.extents), naive.extents.clone().into_iter().collect::<Vec<_>>(), "seed {seed}");
            let bursts: Vec<(u64, u64)> = naive.bursts().into_iter().filter(|(n, _)| *n < 512).collect();
            let ours: Vec<_> = values(&account.bursts).into_iter().filter(|(n, _)| *n < 512).collect();
            assert_eq!(ours, bursts, "seed {seed}");
        }
    }

    #[test]
    fn all_that_is_lost_is_in_a_burst() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut sequence, mut number) = (SequenceTracker::default(), 0_u64);
        for _ in 0..5_000 {
            // Occasionally a jump over more than the window.
            number += if random.u32(0..1000) == 0 { WINDOW * 3 + 5 } else { random.u64(1..40) };
            sequence.arrived(number);
        }
        let n_sent = sequence.next();
        let account = sequence.finish();
        let n_lost = account.bursts.mean().unwrap() * approximate(account.bursts.count());
        assert_eq!(rounded(n_lost), n_sent - account.counts.received);
    }
}
