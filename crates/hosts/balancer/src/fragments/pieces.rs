//! Which parts of a datagram were forwarded: the list of holes of RFC 815, kept as the list of parts between them.

/// The most separate parts of a datagram that are followed; RFC 815 has no limit, but fragments seldom come in more disorder.
const PARTS_MAX: usize = 8;

/// The forwarded parts of a datagram.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pieces {
    /// Begin and end of each part, in order, without overlap; only the first `n` count.
    parts: [(u32, u32); PARTS_MAX],
    n: usize,
    /// The length of the datagram, once its last fragment was seen.
    length: Option<u32>,
}

impl Pieces {
    /// Adds a fragment, and returns whether the datagram is complete.
    ///
    /// A part beyond the limit is left out, so that the datagram never counts as complete.
    pub(super) fn add(&mut self, (begin, end): (u32, u32), is_last: bool) -> bool {
        if is_last {
            self.length = Some(end);
        }
        self.join(begin, end);
        self.length.is_some_and(|length| self.n == 1 && self.parts[0] == (0, length))
    }

    fn join(&mut self, mut begin: u32, mut end: u32) {
        let mut kept = [(0, 0); PARTS_MAX];
        let mut n = 0;
        for part in &self.parts[..self.n] {
            if part.0 <= end && part.1 >= begin {
                (begin, end) = (begin.min(part.0), end.max(part.1));
            } else {
                kept[n] = *part;
                n += 1;
            }
        }
        if n < PARTS_MAX {
            kept[n] = (begin, end);
            n += 1;
        }
        (self.parts, self.n) = (kept, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fragments of 8 bytes each, in this order; the fourth is the last of the datagram.
    fn is_complete(order: &[u32]) -> Vec<bool> {
        let mut pieces = Pieces::default();
        order.iter().map(|number| pieces.add((number * 8, number * 8 + 8), *number == 3)).collect()
    }

    #[test]
    fn a_datagram_is_complete_with_its_last_missing_part_in_any_order() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
            assert_eq!(is_complete(&order), [false, false, false, true], "{order:?}");
        }
    }

    #[test]
    fn what_comes_twice_fills_no_hole() {
        assert_eq!(is_complete(&[0, 0, 1, 1, 3, 3]), [false; 6]);
        assert_eq!(is_complete(&[0, 1, 2, 2, 3, 3]), [false, false, false, false, true, true]);
    }

    #[test]
    fn a_datagram_in_more_parts_than_are_followed_never_counts_as_complete() {
        let mut pieces = Pieces::default();
        let order = (0..20).map(|number| number * 2).chain((0..20).map(|number| number * 2 + 1));
        let complete: Vec<bool> = order.map(|number| pieces.add((number * 8, number * 8 + 8), number == 39)).collect();
        assert!(!complete.contains(&true));
    }
}
