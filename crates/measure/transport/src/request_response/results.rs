//! The results of a worker of request and response, and their part of a record.

use fathom_engine::{LoadModel, TrialResults, load::LoadTimes};
use fathom_model::{
    FailureCounts, Histogram, Note, Record, SampledConnection, Side,
    names::distribution::{CONNECT_TIME, RESPONSE_TIME, SCHEDULE_LAG, SERVICE_TIME},
};

/// Transactions without an answer when the trial ended.
pub(crate) const UNFINISHED: &str = "unfinished";
/// Transactions that were due and never started, because no flow became free before the end.
pub(crate) const NOT_STARTED: &str = "not_started";

/// The counters of both models, and of datagrams.
pub(crate) mod counters {
    use fathom_engine::load::LoadCounters;
    use fathom_model::names::count;

    /// Of a closed load, and of every responder.
    pub(crate) const CLOSED: &[&str] = &[count::TRANSACTIONS];
    /// Of an open load.
    pub(crate) const OPEN: &[&str] =
        &[count::TRANSACTIONS, count::INTENDED, count::SENT, count::LATE_NO_CONNECTION, count::LATE_OWN_CPU];
    /// Indices in both.
    pub(crate) const TRANSACTIONS: usize = 0;
    /// The same, as a load counts them.
    pub(crate) const LOAD: LoadCounters =
        LoadCounters { answers: TRANSACTIONS, intended: 1, sent: 2, late_no_connection: 3, late_own_cpu: 4 };
}

/// The measurements of a worker.
#[derive(Debug, Default)]
pub(crate) struct RrResults {
    pub(crate) times: LoadTimes,
    pub(crate) connect: Histogram,
    pub(crate) errors: FailureCounts,
    pub(crate) n_connections: u64,
    pub(crate) sampled: Option<SampledConnection>,
}

impl RrResults {
    pub(crate) fn with_sampled(self, sampled: Option<SampledConnection>) -> Self {
        Self { sampled, ..self }
    }
}

/// The record of one side of a trial.
pub(crate) fn record(results: TrialResults<RrResults>, side: Side, model: LoadModel) -> Record {
    let mut record = results.record(side);
    let mut all = RrResults::default();
    for tally in results.workers {
        all.times.merge(&tally.times);
        all.connect.merge(&tally.connect);
        record.errors.extend(tally.errors);
        record.sampled.extend(tally.sampled);
    }
    if side == Side::Initiator {
        let mut times = vec![(SERVICE_TIME, all.times.service), (CONNECT_TIME, all.connect)];
        record.totals.insert(UNFINISHED.to_owned(), all.times.n_unfinished);
        if model == LoadModel::Open {
            times.extend([(RESPONSE_TIME, all.times.response), (SCHEDULE_LAG, all.times.lag)]);
            record.totals.insert(NOT_STARTED.to_owned(), all.times.n_not_started);
            let n_bounds = all.times.n_unfinished + all.times.n_not_started;
            if n_bounds > 0 {
                let text = format!(
                    "{n_bounds} transactions had no answer when the trial ended: their response times are lower bounds"
                );
                record.notes.push(Note::new("lower-bounds", text));
            }
        }
        record.distributions.extend(times.into_iter().map(|(name, times)| (name.to_owned(), times)));
    }
    record.notes.extend(untold_note(&record.sampled));
    record
}

/// A note if transactions were to be sampled and none told all of its times, so that there is no anatomy.
fn untold_note(sampled: &[SampledConnection]) -> Option<Note> {
    let is_untold = !sampled.is_empty() && sampled.iter().all(|connection| connection.units.is_empty());
    is_untold.then(|| {
        Note::new(
            "no-anatomy",
            "the kernel gave no times for sampled packets, so the parts of the time of a transaction are \
               unknown: some drivers give no software timestamps (`ethtool -T IFACE`)",
        )
    })
}
