//! When which connection's answer is due.

use std::{cmp::Reverse, collections::BinaryHeap};

use fathom_model::units::Nanos;

/// The due times of one worker, earliest first.
///
/// A connection that ends leaves its entry behind; whoever takes it sees that the connection waits no more.
#[derive(Debug, Default)]
pub(super) struct DueAnswers(BinaryHeap<Reverse<(Nanos, usize)>>);

impl DueAnswers {
    pub(super) fn add(&mut self, due: Nanos, idx: usize) {
        self.0.push(Reverse((due, idx)));
    }

    /// When the next is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }

    /// The next connection whose time has come, and which time that was.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(Nanos, usize)> {
        if self.next()? > now { None } else { self.0.pop().map(|Reverse(entry)| entry) }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets what connections that have ended left behind.
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
