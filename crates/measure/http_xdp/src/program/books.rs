//! What the program keeps for each processor: counters and memory of its own in one row, which is at hand for every frame, and histograms.
//!
//! These have a map of their own, since user space reads the counters hundreds of times a second, and a row is only read as a whole.

use fathom_model::Histogram;
use fathom_sys::bpf::histogram;

use super::Counter;

/// The number of words of the row of counters and memory.
pub(crate) const BOOK_WORDS: usize = Counter::WORDS + SCRATCH_WORDS;
const _: () =
    assert!(BOOK_WORDS < histogram::BUCKETS / 8, "to read the counters takes far less than to read a histogram");
/// Where the memory of the program's own is, in bytes, and its words.
pub(super) const SCRATCH: i16 = Counter::BYTES;
pub(super) const SCRATCH_WORDS: usize = 37;
/// The number of histograms.
pub(crate) const N_HISTOGRAMS: u32 = 4;
/// The buckets of one, which is a row of its own.
pub(crate) type Buckets = [u64; histogram::BUCKETS];

/// A histogram. An answer of a closed load is counted once, or twice if it has several segments; one of an open load in [`Kept::First`]
/// and [`Kept::Last`], whose times have different starts there, if it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// To an answer of one segment, which is its first and its last one.
    Whole,
    /// To the last segment of a longer answer; in an open load, of any answer.
    Last,
    /// To the first segment of a longer answer; in an open load, of any answer.
    First,
    /// To the SYN-ACK.
    Opened,
}

impl Kept {
    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; N_HISTOGRAMS as usize] = [Self::Whole, Self::Last, Self::First, Self::Opened];

    /// Its row.
    pub(super) const fn row(self) -> i32 {
        self as i32
    }

    /// What it holds.
    pub(crate) fn histogram(self, rows: &[Buckets]) -> Histogram {
        histogram::histogram(&rows[self as usize])
    }
}

/// How long things took, in nanoseconds, each exact to 1.6 %; 67.6 s ([`histogram::LAST_FROM`]) and more count as 68.2 s.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// From the start of a request, or of its connection if each has its own, to the first bytes of its answer; in an open load from the
    /// send.
    pub first_byte: Histogram,
    /// From the start, which is when it was due in an open load, to the last bytes of its answer.
    pub last_byte: Histogram,
    /// From a SYN to its SYN-ACK.
    pub connect: Histogram,
}

impl Times {
    /// Answers that may have taken longer than is told: those of the last bucket.
    pub(crate) fn n_longest(&self) -> u64 {
        self.last_byte.count_above(histogram::LAST_FROM - 1)
    }

    /// Adds those of another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.first_byte.merge(&other.first_byte);
        self.last_byte.merge(&other.last_byte);
        self.connect.merge(&other.connect);
    }

    pub(super) fn from_rows(rows: &[Buckets]) -> Self {
        let [mut first_byte, mut last_byte] = [Kept::First, Kept::Last].map(|kept| kept.histogram(rows));
        let whole = Kept::Whole.histogram(rows);
        first_byte.merge(&whole);
        last_byte.merge(&whole);
        Self { first_byte, last_byte, connect: Kept::Opened.histogram(rows) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_the_last_bucket_are_told() {
        let mut rows: Vec<Buckets> = Kept::ALL.map(|_| std::array::from_fn(|_| 0)).into();
        for (kept, n) in [(Kept::Whole, 1), (Kept::Last, 2), (Kept::First, 4), (Kept::Opened, 8)] {
            let [.., before, last] = &mut rows[kept as usize];
            (*before, *last) = (16, n);
        }
        let times = Times::from_rows(&rows);
        assert_eq!((times.n_longest(), times.last_byte.count()), (3, 35));
        assert_eq!(times.last_byte.max(), Some(histogram::last_middle()));
    }
}
