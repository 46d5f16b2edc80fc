//! The due times of delayed answers.

use std::{cmp::Reverse, collections::BinaryHeap};

use fathom_model::units::Nanos;

/// The due times of one worker, earliest first.
///
/// A connection that ends leaves its entry behind; the caller checks whether the connection still waits.
#[derive(Debug, Default)]
pub(super) struct DueAnswers(BinaryHeap<Reverse<(Nanos, usize)>>);

impl DueAnswers {
    pub(super) fn add(&mut self, due: Nanos, idx: usize) {
        self.0.push(Reverse((due, idx)));
    }

    /// The earliest due time.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }

    /// Takes the next connection that is due, with its due time.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(Nanos, usize)> {
        if self.next()? > now { None } else { self.0.pop().map(|Reverse(entry)| entry) }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes the entries of connections that have ended.
    pub(super) fn keep(&mut self, mut waits: impl FnMut(Nanos, usize) -> bool) {
        self.0.retain(|Reverse((due, idx))| waits(*due, *idx));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_taken_in_order_and_never_early() {
        let mut agenda = DueAnswers::default();
        for (due, idx) in [(30, 1), (10, 2), (20, 3)] {
            agenda.add(Nanos(due), idx);
        }
        assert_eq!(agenda.take(Nanos(9)), None);
        assert_eq!(agenda.take(Nanos(25)), Some((Nanos(10), 2)));
        assert_eq!(agenda.take(Nanos(25)), Some((Nanos(20), 3)));
        assert_eq!(agenda.take(Nanos(25)), None);
        agenda.keep(|_, idx| idx != 1);
        assert_eq!((agenda.len(), agenda.next()), (0, None));
    }
}
