//! What workers did with their messages, and the record of it.

use std::io;

use fathom_engine::{TrialResults, load::LoadTimes};
use fathom_model::{
    FailureCounts, Histogram, Note, Record, ReplayRecord, Side,
    names::distribution::{CONNECT_TIME, RESPONSE_TIME, SCHEDULE_LAG, SERVICE_TIME},
    units::counted,
};

use super::metrics::{COMPARED, DIFFERENT, ENDED, FAILED, RECORDED_TIME};

/// What one worker did.
#[derive(Debug, Default)]
pub(super) struct RawResults {
    /// What became of each message.
    pub(super) account: ReplayRecord,
    pub(super) times: LoadTimes,
    /// From when a message was due to when it was sent.
    pub(super) lag: Histogram,
    /// The times in the recording, of the messages that were answered.
    pub(super) recorded: Histogram,
    pub(super) connect: Histogram,
    pub(super) errors: FailureCounts,
    /// Datagrams that belong to no question.
    pub(super) n_unasked: u64,
    /// Why the worker could not read on.
    pub(super) error: Option<io::Error>,
}

/// Returns the record of a trial. `account` says how many messages were to be sent.
pub(super) fn record(results: TrialResults<RawResults>, account: ReplayRecord) -> Record {
    let mut record = results.record(Side::Initiator);
    let (mut all, mut account) = (RawResults::default(), account);
    for worker in results.workers {
        account.merge(&worker.account);
        all.times.merge(&worker.times);
        all.lag.merge(&worker.lag);
        all.recorded.merge(&worker.recorded);
        all.connect.merge(&worker.connect);
        all.n_unasked += worker.n_unasked;
        record.errors.extend(worker.errors);
        if let Some(error) = worker.error {
            record.complete = false;
            let text = format!("the recording could not be read on: {error}");
            record.notes.push(Note::new("recording-unreadable", text));
        }
    }
    account.n_not_sent = account.n_to_send().saturating_sub(account.n_told());
    let times = [
        (SERVICE_TIME, all.times.service),
        (RESPONSE_TIME, all.times.response),
        (SCHEDULE_LAG, all.lag),
        (RECORDED_TIME, all.recorded),
        (CONNECT_TIME, all.connect),
    ];
    let present = times.into_iter().filter(|(_, times)| times.count() > 0);
    record.distributions.extend(present.map(|(name, times)| (name.to_owned(), times)));
    let n_failed = account.n_failed + account.n_behind_failure + account.n_short;
    let n_ended = n_failed + account.n_answered + account.n_answerless;
    let mut totals = vec![(FAILED, n_failed), (ENDED, n_ended)];
    if let Some(compared) = &account.compared {
        totals.extend([(DIFFERENT, compared.n_different), (COMPARED, compared.n_different + compared.n_same)]);
    }
    record.totals.extend(totals.into_iter().map(|(name, n)| (name.to_owned(), n)));
    record.notes.extend(unasked(all.n_unasked));
    record.replay = Some(account);
    record
}

/// A note on answers that nobody waited for, if there are any.
fn unasked(n: u64) -> Option<Note> {
    (n > 0).then(|| {
        let text = format!(
            "{} of the server came when no answer was waited for: no other count has them",
            counted(n, "datagram")
        );
        Note::new("unexpected-datagrams", text)
    })
}
