//! The books of one worker while it works.

use fathom_engine::{Error, Worker};
use fathom_model::units::Nanos;

use super::{
    ledger::{Entry, Ledger},
    outcome::{Counter, Outcome},
};
use crate::{
    dial::Channel,
    h1::Answer,
    lines::{Fault, OpeningTimes},
};

/// Counters that others see while the worker works, and what it brings home.
pub(crate) struct Accounts<'a> {
    pub(crate) worker: &'a Worker<'a>,
    pub(crate) outcome: Outcome,
    ledger: Ledger,
}

impl<'a> Accounts<'a> {
    pub(crate) fn new(worker: &'a Worker<'a>, ledger: Ledger) -> Self {
        Self { worker, outcome: Outcome::default(), ledger }
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.worker.add(counter as usize, amount);
    }

    /// A line is open.
    pub(crate) fn connected(&mut self, channel: &Channel) {
        self.add(Counter::Connections, 1);
        self.ledger.opened(channel);
    }

    /// A piece of an answer has come.
    #[inline]
    pub(crate) fn received(&mut self, piece: &[u8]) {
        self.ledger.received(piece);
    }

    /// So many bytes were sent.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.ledger.sent(bytes);
    }

    /// An answer has come to its end.
    #[inline]
    pub(crate) fn answered(&mut self, answer: &Answer, entry: &Entry) {
        self.add(Counter::Requests, 1);
        self.add(Counter::Attempts, 1);
        self.worker.add(Counter::Status2xx as usize + usize::from((answer.status / 100).clamp(2, 6) - 2), 1);
        self.ledger.answered(entry);
        if entry.counts {
            self.outcome.service.record(entry.service.0);
            self.outcome.first_byte.record(entry.first_byte.0);
            self.outcome.download.record(entry.service.since(entry.first_byte).0);
        }
    }

    /// An answer ends because its connection does.
    pub(crate) fn ends_with_connection(&mut self, channel: &Channel) {
        self.outcome.n_left_open += u64::from(channel.is_left_open());
    }

    /// A request is over without an answer, as was wanted; it has no status.
    pub(crate) fn left(&mut self, entry: &Entry) {
        self.add(Counter::Requests, 1);
        self.add(Counter::Attempts, 1);
        self.outcome.n_left += 1;
        self.ledger.answered(entry);
        if entry.counts {
            self.outcome.service.record(entry.service.0);
        }
    }

    /// Counts what went wrong.
    pub(crate) fn count_fault(&mut self, fault: Fault) {
        *self.outcome.faults.entry(fault).or_default() += 1;
        self.add(Counter::Attempts, u64::from(!fault.is_of_no_request()));
        self.add(Counter::Errors, 1);
    }

    /// Counts a failure; whether the worker is to give up.
    pub(crate) fn failed(&mut self, fault: Fault) -> bool {
        self.count_fault(fault);
        self.ledger.failed()
    }

    /// A request that nobody waits for any longer took at least as long as it was waited for.
    pub(crate) fn waited_in_vain(&mut self, waited: Nanos) {
        self.outcome.n_bounds += 1;
        self.outcome.service.record(waited.0);
    }

    /// What the worker brings home; `head` is one of those that it has read.
    ///
    /// # Errors
    /// When the log of requests could not be written.
    pub(crate) fn close(mut self, opening: OpeningTimes, head: &[u8]) -> Result<Outcome, Error> {
        self.outcome.opening = opening;
        self.outcome.books = self.ledger.close(head)?;
        Ok(self.outcome)
    }
}
