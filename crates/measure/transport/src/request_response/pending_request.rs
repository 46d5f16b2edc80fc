//! A request in flight, and the load of one worker of the initiator, for both protocols.

use fathom_engine::{
    Batching, LoadModel, StopFlag, WorkerHandle,
    load::{LoadCounters, LoadSpec, OfferedLoad, OpenSchedule, SendTimes},
    pace::{Arrivals, Pacing},
};

use super::sizes::SizeClass;

/// A request in flight.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PendingRequest {
    pub(super) times: SendTimes,
    pub(super) class: SizeClass,
}

/// The load over `n_flows`, all of which are free at first. It is closed without arrivals.
pub(super) fn load_over<'a>(
    n_flows: usize,
    worker: WorkerHandle<'a>,
    stop: &StopFlag,
    arrivals: Option<Arrivals>,
    counters: LoadCounters,
    batching: Batching,
) -> OfferedLoad<'a> {
    let spec = LoadSpec {
        model: if arrivals.is_some() { LoadModel::Open } else { LoadModel::Closed },
        schedule: arrivals.map(|arrivals| OpenSchedule::new(worker.start, [arrivals], Pacing::Precise)),
        n_connections: n_flows,
        counters,
        batching,
        counts_all: false,
    };
    OfferedLoad::new(worker, stop, spec).with_all_free(n_flows)
}
