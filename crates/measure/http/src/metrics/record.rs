//! Builds a record from the results of the workers.

use std::{cmp::Reverse, collections::BTreeMap, mem};

use fathom_engine::{IoBackend, TrialResults, pace::Pacing};
use fathom_model::{
    Histogram, Note, Record, SampledConnection, Side,
    names::{count, distribution, fact},
    units::Nanos,
};

use super::{
    request_totals::RequestTotals,
    results::{LoadResults, REQUEST_PARTS},
};
use crate::{
    conn::{ConnectTimes, LoadConfig},
    names,
    target::TlsParameters,
};

/// So many statuses are told in a note.
const STATUSES_TOLD: usize = 5;

/// The record of all workers together, without the values that only schedules have.
pub(crate) fn record<W>(
    trial_results: &TrialResults<W>,
    mut all: LoadResults,
    target: &LoadConfig,
    io_backend: &IoBackend,
) -> Record {
    let mut record = trial_results.record(Side::Initiator);
    if target.is_counted {
        // The number of requests ends the trial, not the time: everything counts from the start.
        record.measure_until(trial_results.ended());
    }
    if !all.sampled.is_empty() {
        record.sampled.push(SampledConnection::of_all(&REQUEST_PARTS, mem::take(&mut all.sampled)));
    }
    record.errors = all.faults.iter().map(|(fault, n)| (*fault, *n)).collect();
    let notes = [
        status_note(&all.statuses, record.totals[count::REQUESTS]),
        lower_bounds_note(all.times.n_lower_bounds),
        discard_note(&all),
        resumed_note(&all.opening),
        not_awaited_note(all.n_not_awaited),
        tls_unclosed_note(all.n_tls_unclosed),
    ];
    record.notes.extend(notes.into_iter().flatten().chain(target.target.notes.iter().cloned()));
    record.notes.push(io_backend.note.clone());
    let named = |(name, n): (&str, u64)| (name.to_owned(), n);
    record.totals.extend(totals(&all, target.recorder_config.first_body()).map(named));
    record.totals.extend(all.statuses.iter().map(|(status, n)| (count::of_status(*status), *n)));
    record.facts.extend(facts(&mut all.totals, &all.opening));
    mem::take(&mut all.reception).add_to(&mut record);
    record.distributions.extend(distributions(all, trial_results.worker_rates().clone()));
    record
}

/// The counts beside those of the counters of workers.
fn totals(all: &LoadResults, first_body_bytes: u64) -> impl Iterator<Item = (&'static str, u64)> {
    let RequestTotals { n_bytes_sent, n_bytes_of_bodies, n_mismatches, .. } = all.totals;
    let always = [
        (names::UNFINISHED, all.times.n_unfinished),
        (names::STUCK, all.times.n_stuck),
        (count::STUCK_UNSERVED, all.times.n_stuck_unserved),
        (count::BYTES_SENT, n_bytes_sent),
        (names::BODY_BYTES, n_bytes_of_bodies),
        (names::FIRST_BODY_BYTES, first_body_bytes),
        (names::LENGTH_MISMATCHES, n_mismatches),
    ];
    let not_awaited = (all.n_not_awaited > 0).then_some((names::NOT_AWAITED, all.n_not_awaited));
    let of_tls = [(names::TLS_RESUMED, all.opening.n_resumed), (names::TLS_UNCLOSED, all.n_tls_unclosed)];
    let has_tls = all.opening.tls.count() > 0;
    always.into_iter().chain(not_awaited).chain(of_tls.into_iter().filter(move |_| has_tls))
}

/// The first answer, and the parameters of TLS.
fn facts(totals: &mut RequestTotals, opening: &ConnectTimes) -> BTreeMap<String, String> {
    let texts = [
        (names::facts::HEAD, totals.head.take()),
        (names::facts::ANSWER, totals.first_answer.take()),
        (fact::REACHED_ADDRESS, opening.reached.map(|address| address.to_string())),
        (fact::FAILED_ADDRESSES, opening.failed_addresses()),
    ];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text?)));
    let all = totals.tls.iter().flat_map(tls_facts).chain(texts);
    all.map(|(name, text)| (name.to_owned(), text)).collect()
}

/// The times of requests and of opening connections, and the rates of the workers.
fn distributions(all: LoadResults, worker_rates: Histogram) -> BTreeMap<String, Histogram> {
    let always = [
        (names::TOTAL_TIME, all.totals.total),
        (names::WORKER_RATE, worker_rates),
        (distribution::SERVICE_TIME, all.times.service),
        (distribution::CONNECT_TIME, all.opening.connect),
        (distribution::FIRST_BYTE, all.first_byte),
        (distribution::DOWNLOAD_TIME, all.download),
    ];
    let seldom = [
        (distribution::DNS_TIME, all.opening.resolve),
        (distribution::PROXY_TIME, all.opening.proxy),
        (distribution::TLS_TIME, all.opening.tls),
    ];
    let present = always.into_iter().chain(seldom.into_iter().filter(|(_, times)| times.count() > 0));
    present.map(|(name, times)| (name.to_owned(), times)).collect()
}

/// The parameters that TLS negotiated, by the names of facts.
fn tls_facts(security: &TlsParameters) -> impl Iterator<Item = (&'static str, String)> {
    let TlsParameters { version, cipher, group, server_key_bits } = *security;
    let usual = [(names::facts::TLS_VERSION, version.to_owned()), (names::facts::TLS_CIPHER, cipher.to_owned())];
    let group = group.map(|group| (names::facts::TLS_GROUP, group.to_owned()));
    let bits = server_key_bits.map(|bits| (names::facts::TLS_SERVER_KEY, bits.to_string()));
    usual.into_iter().chain(group).chain(bits)
}

/// A note if handshakes were abbreviated by resumption, which is less work for both ends.
fn resumed_note(opening: &ConnectTimes) -> Option<Note> {
    let (n_resumed, n) = (opening.n_resumed, opening.tls.count());
    (n_resumed > 0).then(|| {
        Note::new(
            "tls-resumed",
            format!(
                "{n_resumed} of {n} TLS sessions were resumed, which is less work for both ends than a full handshake; \
             `resumption off` resumes none"
            ),
        )
    })
}

/// A note if a server answered, but with a status other than 2xx: the most frequent ones.
fn status_note(statuses: &BTreeMap<u16, u64>, n_answers: u64) -> Option<Note> {
    let mut others: Vec<_> = statuses.iter().collect();
    others.sort_by_key(|(_, n)| Reverse(**n));
    let others: Vec<String> = others.iter().take(STATUSES_TOLD).map(|(status, n)| format!("{n} × {status}")).collect();
    (!others.is_empty()).then(|| Note::new("http-status", format!(
            "of {n_answers} answers not all were 2xx: {}; they count as answered, and may be cheaper to serve than the requested page",
            others.join(", ")
        )))
}

/// A note if some times are lower bounds because the wait was given up.
#[must_use]
pub fn lower_bounds_note(n_bounds: u64) -> Option<Note> {
    (n_bounds > 0).then(|| {
        Note::new(
            "waited-in-vain",
            "requests without an answer in time are among the latencies with the time that they were waited for: \
               their true latency is longer",
        )
    })
}

/// A note if answers were not awaited, so that the values cover sending only.
fn not_awaited_note(n_left: u64) -> Option<Note> {
    (n_left > 0).then(|| Note::new("answers-left", format!(
            "nobody waited for the answers to {n_left} requests: they ended once they were sent, so rate and latency \
             say little about the server"
        )))
}

/// A note if the completeness of answers is unknown: an attacker who cuts a connection truncates such an answer without being noticed.
fn tls_unclosed_note(n_left_open: u64) -> Option<Note> {
    (n_left_open > 0).then(|| Note::new("tls-left-open", format!(
            "the server did not close TLS (close_notify, RFC 8446 section 6.1) after {n_left_open} of the answers that end with \
             the connection: they count as whole, but may be cut short"
        )))
}

/// A note if bodies were not copied, which is less work than a client does that reads them.
fn discard_note(all: &LoadResults) -> Option<Note> {
    all.has_discarded.then(|| {
        Note::new(
            "bodies-discarded",
            "large bodies were thrown away in the kernel without being copied: a client that reads them does more work",
        )
    })
}

/// A note on the delay of requests that had to wait for other work.
pub(crate) fn pacing_note(pacing: Pacing, lag: &Histogram) -> Option<Note> {
    let [p50, p99] = [0.5, 0.99].map(|share| lag.quantile(share).map(Nanos));
    let (p50, p99) = (p50?, p99?);
    (pacing == Pacing::Cheap).then(|| {
        Note::new(
            "pacing",
            format!(
                "pacing cheap: requests due within {} began together, {p50} (p50) and {p99} (p99) after their time; \
             response times count from that time, service times do not",
                Pacing::PERIOD
            ),
        )
    })
}
