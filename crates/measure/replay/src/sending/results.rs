//! What workers did with their requests, and the record of it.

use std::io;

use fathom_http::{names, users::UserAnswer};
use fathom_model::{Histogram, Note, Record, ReplayRecord, names::distribution, replay::ComparedAnswers, units::Nanos};

use super::metrics::{COMPARED, DIFFERENT, RECORDED_TIME};

/// What one worker did.
#[derive(Debug, Default)]
pub(super) struct SentResults {
    pub(super) n_answered: u64,
    pub(super) n_failed: u64,
    pub(super) n_cut_off: u64,
    /// From when a request was due to when it was sent.
    pub(super) lag: Histogram,
    /// From when a request was due to its last byte.
    pub(super) response: Histogram,
    /// The times in the recording, of the requests that were compared.
    pub(super) recorded: Histogram,
    pub(super) compared: Option<ComparedAnswers>,
    /// Why the worker could not read on.
    pub(super) error: Option<io::Error>,
}

impl SentResults {
    /// Counts the time of a recorded answer.
    pub(super) fn count_recorded(&mut self, took: Option<Nanos>) {
        if let Some(took) = took {
            self.recorded.record(took.0);
        }
    }

    /// Counts an answer, and its times if its request was due at one.
    pub(super) fn count_answer(&mut self, answer: &UserAnswer<'_>, due: Option<Nanos>) {
        self.n_answered += 1;
        if let Some(due) = due {
            self.lag.record(answer.sent_at.since(due).0);
            self.response.record(answer.ended_at.since(due).0);
        }
    }
}

/// Adds to a record what became of the requests. `account` says how many were to be sent.
pub(super) fn add(record: &mut Record, account: ReplayRecord, workers: Vec<SentResults>) -> &ReplayRecord {
    let mut all = account;
    let mut times = [Histogram::new(), Histogram::new(), Histogram::new()];
    for worker in workers {
        let SentResults { n_answered, n_failed, n_cut_off, lag, response, recorded, compared, error } = worker;
        all.merge(&ReplayRecord { n_answered, n_failed, n_cut_off, compared, ..ReplayRecord::default() });
        for (all, of_worker) in times.iter_mut().zip([lag, response, recorded]) {
            all.merge(&of_worker);
        }
        if let Some(error) = error {
            record.complete = false;
            record
                .notes
                .push(Note::new("recording-unreadable", format!("the recording could not be read on: {error}")));
        }
    }
    all.n_not_sent = all.n_to_send().saturating_sub(all.n_told());
    // The load driver knows only when users came.
    record.distributions.remove(distribution::SCHEDULE_LAG);
    let names = [distribution::SCHEDULE_LAG, distribution::RESPONSE_TIME, RECORDED_TIME];
    let present = names.into_iter().zip(times).filter(|(_, times)| times.count() > 0);
    record.distributions.extend(present.map(|(name, times)| (name.to_owned(), times)));
    record.totals.extend(totals(&all));
    // Which statuses are as they should be, the recording says, if answers are compared with it.
    record.notes.retain(|note| all.compared.is_none() || note.id != "http-status");
    all.n_sent_again = record.totals.get(names::RESENT).copied().unwrap_or_default();
    record.replay.insert(all)
}

/// A note on requests that were recorded over HTTP/2, if there are any.
pub(super) fn over_http2(n: u64) -> Option<Note> {
    (n > 0).then(|| {
        let text = format!(
            "{n} requests were recorded over HTTP/2 and are sent over HTTP/1.1: those of a recorded connection that overlapped are on \
             connections of their own"
        );
        Note::new("sent-over-http1", text)
    })
}

/// The counts of compared answers, for their metric.
fn totals(all: &ReplayRecord) -> impl Iterator<Item = (String, u64)> + use<> {
    let compared = all
        .compared
        .as_ref()
        .map(|compared| [(DIFFERENT, compared.n_different), (COMPARED, compared.n_different + compared.n_same)]);
    compared.into_iter().flatten().map(|(name, n)| (name.to_owned(), n))
}
