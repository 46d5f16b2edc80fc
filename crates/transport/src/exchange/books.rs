//! What a worker of the initiator counts and times, in either model and over either protocol.

use fathom_engine::{
    Batching, Model, Phase, Worker,
    pace::{Late, Start},
};
use fathom_model::units::Nanos;

use super::{
    sizes::Class,
    tally::{Tally, names},
};

/// A request under way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ask {
    pub(super) sent_at: Nanos,
    pub(super) intended: Nanos,
    pub(super) class: Class,
}

/// What is counted, beside the reactor and its bytes.
pub(super) struct Books<'a> {
    pub(super) worker: Worker<'a>,
    pub(super) model: Model,
    pub(super) batching: Batching,
    /// When this worker saw the measured part begin; intended starts from then on count.
    pub(super) measured_from: Option<Nanos>,
    /// When this worker saw the end.
    pub(super) over_at: Option<Nanos>,
    pub(super) tally: Tally,
}

impl<'a> Books<'a> {
    pub(super) fn new(worker: Worker<'a>, model: Model, (batching, tally): (Batching, Tally)) -> Self {
        let measured_from = (worker.phase() == Phase::Measure).then_some(worker.start);
        Self { worker, model, batching, measured_from, over_at: None, tally }
    }

    /// Follows the phases of the trial.
    pub(super) fn follow(&mut self, now: Nanos) {
        match self.worker.phase() {
            Phase::Measure if self.measured_from.is_none() => self.measured_from = Some(now),
            Phase::Over if self.over_at.is_none() => self.over_at = Some(now),
            _ => {}
        }
    }

    /// Enters a start of an open load, with the counters of those that are late; when it was to be.
    pub(super) fn started(&mut self, start: Start, (no_flow, own_cpu): (usize, usize)) -> Nanos {
        match start.late {
            None => {}
            Some(Late::NoConnection) => self.worker.add(no_flow, 1),
            Some(Late::OwnProcessor) => self.worker.add(own_cpu, 1),
        }
        let intended = self.worker.start + start.intended;
        if self.counts(intended) {
            self.tally.lag.record(start.lag.0);
        }
        intended
    }

    /// Whether a transaction of an open load that was intended then counts.
    pub(super) fn counts(&self, intended: Nanos) -> bool {
        self.measured_from.is_some_and(|from| intended >= from) && self.over_at.is_none_or(|at| intended < at)
    }

    /// Enters an answer.
    #[inline]
    pub(super) fn answered(&mut self, ask: Ask, at: Nanos) {
        let service = at - ask.sent_at;
        self.worker.add(names::TRANSACTIONS, 1);
        self.worker.show(service);
        self.batching.observe(service);
        match self.model {
            Model::Closed if self.worker.phase() == Phase::Measure => self.tally.service.record(service.0),
            Model::Open if self.counts(ask.intended) => {
                self.tally.service.record(service.0);
                self.tally.response.record((at - ask.intended).0);
            }
            Model::Closed | Model::Open => {}
        }
    }

    /// Enters a transaction that had no answer by the end.
    pub(super) fn unfinished(&mut self, ask: Ask, now: Nanos) {
        self.tally.n_unfinished += 1;
        if self.model == Model::Open && self.counts(ask.intended) {
            self.tally.response.record((now - ask.intended).0);
        }
    }

    /// Enters a transaction that was due and never started.
    pub(super) fn not_started(&mut self, intended: Nanos, now: Nanos) {
        self.tally.n_not_started += 1;
        if self.counts(intended) {
            let lag = (now - intended).0;
            self.tally.lag.record(lag);
            self.tally.response.record(lag);
        }
    }
}
