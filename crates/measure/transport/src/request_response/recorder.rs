//! The counters and times of a worker of the initiator, for both load models and both protocols.

use fathom_engine::{
    Batching, LoadModel, Phase, WorkerHandle,
    load::MeasureWindow,
    pace::{DueStart, LateCause},
};
use fathom_model::units::Nanos;

use super::{
    results::{RrResults, counters},
    sizes::SizeClass,
};

/// A request in flight.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PendingRequest {
    pub(super) sent_at: Nanos,
    pub(super) intended: Nanos,
    pub(super) class: SizeClass,
}

/// The recorded state, apart from the reactor and its bytes.
pub(super) struct RrRecorder<'a> {
    pub(super) worker: WorkerHandle<'a>,
    pub(super) model: LoadModel,
    pub(super) batching: Batching,
    pub(super) window: MeasureWindow,
    pub(super) results: RrResults,
}

impl<'a> RrRecorder<'a> {
    pub(super) fn new(worker: WorkerHandle<'a>, model: LoadModel, batching: Batching, tally: RrResults) -> Self {
        Self { window: MeasureWindow::new(&worker, false), worker, model, batching, results: tally }
    }

    /// Follows the phases of the trial.
    pub(super) fn update_phase(&mut self, now: Nanos) {
        self.window.update(self.worker.phase(), now);
    }

    /// Enters a start of an open load, with the counters of those that are late.
    pub(super) fn record_start(&mut self, start: DueStart, (no_flow, own_cpu): (usize, usize)) {
        match start.late {
            None => {}
            Some(LateCause::NoConnection) => self.worker.add(no_flow, 1),
            Some(LateCause::OwnProcessor) => self.worker.add(own_cpu, 1),
        }
        if self.window.contains(start.intended) {
            self.results.lag.record(start.lag.0);
        }
    }

    /// Records an answer.
    #[inline]
    pub(super) fn record_answer(&mut self, ask: PendingRequest, at: Nanos) {
        let service = at - ask.sent_at;
        self.worker.add(counters::TRANSACTIONS, 1);
        self.worker.show_latency(service);
        self.batching.observe(service);
        match self.model {
            LoadModel::Closed if self.worker.phase() == Phase::Measure => self.results.service.record(service.0),
            LoadModel::Open if self.window.contains(ask.intended) => {
                self.results.service.record(service.0);
                self.results.response.record((at - ask.intended).0);
            }
            LoadModel::Closed | LoadModel::Open => {}
        }
    }

    /// Records a transaction that had no answer by the end.
    pub(super) fn record_unfinished(&mut self, ask: PendingRequest, now: Nanos) {
        self.results.n_unfinished += 1;
        if self.model == LoadModel::Open && self.window.contains(ask.intended) {
            self.results.response.record((now - ask.intended).0);
        }
    }

    /// Records a transaction that was due and never started.
    pub(super) fn record_not_started(&mut self, intended: Nanos, now: Nanos) {
        self.results.n_not_started += 1;
        if self.window.contains(intended) {
            let lag = (now - intended).0;
            self.results.lag.record(lag);
            self.results.response.record(lag);
        }
    }
}
