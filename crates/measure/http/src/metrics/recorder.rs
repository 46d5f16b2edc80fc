//! Counting in one worker while the load runs.

use fathom_engine::{Error, SampleSchedule, WorkerHandle};
use fathom_model::{SampledUnit, units::Nanos};

use super::{
    request_totals::{RequestSample, TotalsRecorder},
    results::{LoadCounter, LoadResults},
};
use crate::{
    conn::{ConnectTimes, RequestFault},
    h1::ResponseSummary,
    target::Channel,
};

/// Counters that are visible while the worker runs, and its results.
pub(crate) struct LoadRecorder<'a> {
    pub(crate) worker: &'a WorkerHandle<'a>,
    pub(crate) results: LoadResults,
    totals: TotalsRecorder,
    sampling: SampleSchedule,
}

impl<'a> LoadRecorder<'a> {
    pub(crate) fn new(worker: &'a WorkerHandle<'a>, totals: TotalsRecorder) -> Self {
        Self { worker, results: LoadResults::default(), totals, sampling: worker.sample_schedule() }
    }

    #[inline]
    pub(crate) fn add(&self, counter: LoadCounter, amount: u64) {
        self.worker.add(counter as usize, amount);
    }

    /// A connection is open.
    pub(crate) fn on_connected(&mut self, channel: &Channel) {
        self.add(LoadCounter::Connections, 1);
        self.totals.on_connected(channel);
    }

    /// A piece of an answer has arrived.
    #[inline]
    pub(crate) fn on_received(&mut self, piece: &[u8]) {
        self.totals.on_received(piece);
    }

    /// Bytes were sent.
    #[inline]
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.totals.on_sent(bytes);
    }

    /// An answer is complete. The round trip is asked for if the request is one of the sample.
    #[inline]
    pub(crate) fn on_answer(
        &mut self,
        answer: &ResponseSummary,
        entry: &RequestSample,
        baseline_rtt: impl FnOnce() -> Option<Nanos>,
    ) {
        self.add(LoadCounter::Attempts, 1);
        let class = (answer.status / 100).clamp(2, 6);
        self.worker.add(LoadCounter::Status2xx as usize + usize::from(class - 2), 1);
        if class != 2 {
            *self.results.statuses.entry(answer.status).or_default() += 1;
        }
        self.totals.on_answer(entry);
        if entry.counts {
            self.results.first_byte.record(entry.first_byte.0);
            self.results.download.record(entry.service.since(entry.first_byte).0);
            if self.sampling.is_due(entry.sent_at) {
                self.sample(entry, baseline_rtt());
            }
        }
    }

    /// Adds a request to the sample.
    #[cold]
    fn sample(&mut self, entry: &RequestSample, baseline_rtt: Option<Nanos>) {
        let RequestSample { late, connect, service, first_byte, .. } = *entry;
        // Without it, the server would be blamed for the path.
        let Some(path) = baseline_rtt.map(|rtt| rtt.min(first_byte)) else { return };
        let spans_ns = vec![late.since(connect), connect, path, first_byte - path, service.since(first_byte)];
        self.results.sampled.push(SampledUnit { number: self.results.sampled.len() as u64, spans_ns });
    }

    /// An answer ends with its connection.
    pub(crate) fn on_answer_ended_by_close(&mut self, channel: &Channel) {
        self.results.n_tls_unclosed += u64::from(channel.lacks_close_notify());
    }

    /// A request is complete without an answer, as the option asks; it has no status.
    pub(crate) fn on_sent_not_awaited(&mut self, entry: &RequestSample) {
        self.add(LoadCounter::Attempts, 1);
        self.results.n_not_awaited += 1;
        self.totals.on_answer(entry);
    }

    /// Counts a failure.
    pub(crate) fn count_fault(&mut self, fault: RequestFault) {
        *self.results.faults.entry(fault).or_default() += 1;
        self.add(LoadCounter::Attempts, u64::from(!fault.is_between_requests()));
        self.add(LoadCounter::Errors, 1);
    }

    /// Counts a failure. Returns whether the worker must give up.
    pub(crate) fn on_failure(&mut self, fault: RequestFault) -> bool {
        self.count_fault(fault);
        self.totals.on_failure()
    }

    /// Returns the results of the worker, apart from the times of its load; `head` is the last head that it parsed.
    ///
    /// # Errors
    /// The request log could not be written.
    pub(crate) fn finish(mut self, opening: ConnectTimes, head: &[u8]) -> Result<LoadResults, Error> {
        self.results.opening = opening;
        self.results.totals = self.totals.close(head)?;
        Ok(self.results)
    }
}
