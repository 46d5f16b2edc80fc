//! What became of numbered datagrams: received once, again, out of order, too late, or not at all.
//!
//! Numbers have 64 bits and begin at 0. A bitmap of the last [`WINDOW`] numbers tells a late first copy from a duplicate; memory
//! is constant. It knows neither sockets nor clocks, and learns only from the sender how many were sent.

/// How many numbers behind the newest a datagram may arrive and still be told from a duplicate.
///
/// 65,536 are 8 KiB, which stay in the first-level cache, and 22 ms at 3 million datagrams per second.
pub(crate) const WINDOW: u64 = 1 << 16;
const WORDS: usize = 1 << 10;

/// The account of one flow.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    seen: Box<[u64; WORDS]>,
    next: u64,
    counts: Counts,
}

/// What was counted; what is lost follows from what was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Distinct numbers that arrived within the window.
    pub(crate) received: u64,
    /// Further copies of a number that had arrived.
    pub(crate) duplicates: u64,
    /// First copies that arrived after a higher number (RFC 4737 section 3.3).
    pub(crate) reordered: u64,
    /// Arrivals more than [`WINDOW`] behind the newest; first copy or not cannot be told, so they count as lost.
    pub(crate) late: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.late += other.late;
    }
}

impl Default for Sequence {
    fn default() -> Self {
        Self { seen: Box::new([0; WORDS]), next: 0, counts: Counts::default() }
    }
}

/// The word and the bit of a number.
fn place(number: u64) -> (usize, u64) {
    let word = usize::try_from((number % WINDOW) / 64).expect("below 1024");
    (word, 1 << (number % 64))
}

impl Sequence {
    /// Counts an arrival.
    pub(crate) fn arrived(&mut self, number: u64) {
        if number >= self.next {
            self.advance(number);
        } else if self.next - number > WINDOW {
            self.counts.late += 1;
            return;
        } else if self.mark(number) {
            self.counts.duplicates += 1;
            return;
        } else {
            self.counts.reordered += 1;
        }
        self.counts.received += 1;
    }

    /// The counts so far.
    #[must_use]
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Opens the window up to `number` and marks it.
    fn advance(&mut self, number: u64) {
        if number - self.next >= WINDOW {
            self.seen.fill(0);
        } else {
            for skipped in self.next..number {
                let (word, bit) = place(skipped);
                self.seen[word] &= !bit;
            }
            let (word, bit) = place(number);
            self.seen[word] &= !bit;
        }
        self.mark(number);
        self.next = number.saturating_add(1);
    }

    /// Marks a number as seen and says whether it was before.
    fn mark(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        let before = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_of(numbers: impl IntoIterator<Item = u64>) -> Counts {
        let mut sequence = Sequence::default();
        numbers.into_iter().for_each(|number| sequence.arrived(number));
        sequence.counts()
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
            assert_eq!(counts_of(numbers.to_vec()), Counts { received, duplicates, reordered, late }, "{name}");
        }
    }

    #[test]
    fn the_window_moves_on_without_remembering_too_much() {
        assert_eq!(counts_of(0..WINDOW * 3).received, WINDOW * 3, "the same places in the bitmap, not duplicates");
        assert_eq!(counts_of([0, WINDOW, 1]).reordered, 1, "the oldest number inside");
        assert_eq!(counts_of([0, WINDOW, 0]).late, 1, "just outside: it was received, but that is forgotten");
        assert_eq!(counts_of([5, 5 + WINDOW * 10, 6 + WINDOW * 9]).reordered, 1, "a jump clears the whole bitmap");
    }

    #[test]
    fn numbers_beyond_32_bits_are_ordinary() {
        let begin = (1 << 32) - 2;
        assert_eq!(counts_of(begin..begin + 10), Counts { received: 10, ..Counts::default() });
    }

    #[test]
    fn the_counts_agree_with_a_simple_account_of_random_arrivals() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut sequence, mut seen, mut expected) =
            (Sequence::default(), std::collections::BTreeSet::new(), Counts::default());
        for step in 0..20_000_u64 {
            let number = (step + 50).saturating_sub(random(100));
            match seen.last() {
                _ if seen.contains(&number) => expected.duplicates += 1,
                Some(&newest) if number < newest => expected.reordered += 1,
                _ => {}
            }
            seen.insert(number);
            sequence.arrived(number);
        }
        expected.received = u64::try_from(seen.len()).unwrap();
        assert_eq!(sequence.counts(), expected);
        assert_eq!(sequence.next, seen.last().unwrap() + 1);
    }
}
