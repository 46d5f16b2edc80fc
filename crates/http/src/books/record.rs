//! From the outcomes of the workers to a record.

use fathom_engine::Conducted;
use fathom_model::{
    Note, Record, Side,
    names::{count, distribution},
    units::Nanos,
};

use super::{ledger::Books, outcome::Outcome};
use crate::{
    dial::Security,
    lines::{Target, Way},
    names,
};

/// The record of what all workers together brought home, but for what only schedules have.
pub(crate) fn record<W>(conducted: &Conducted<W>, all: Outcome, (target, way): (&Target, &Way)) -> Record {
    let mut record = conducted.record(Side::Initiator);
    if target.is_counted {
        // The number ends the trial, not the time: everything counts from the start on.
        record.measured_ns = (Nanos::ZERO, conducted.ended());
    }
    record.errors = all.faults.iter().map(|(fault, n)| (fault.to_string(), *n)).collect();
    let notes = [status_note(&record), bounds_note(all.n_bounds), discard_note(&all)];
    let Books { head, security, total, n_bytes_sent, n_bytes_of_bodies, n_mismatches } = all.books;
    record.totals.extend(
        [
            (names::UNFINISHED, all.n_unfinished),
            (count::BYTES_SENT, n_bytes_sent),
            (names::BODY_BYTES, n_bytes_of_bodies),
            (names::FIRST_BODY_BYTES, target.keeping.first_body()),
            (names::LENGTH_MISMATCHES, n_mismatches),
        ]
        .map(|(name, n)| (name.to_owned(), n)),
    );
    let security = security.map(|Security { version, cipher }| {
        [(names::facts::TLS_VERSION, version), (names::facts::TLS_CIPHER, cipher)]
            .map(|(name, text)| (name, text.to_owned()))
    });
    let head = head.map(|head| (names::facts::HEAD, head));
    let facts = security.into_iter().flatten().chain(head);
    record.facts.extend(facts.map(|(name, text)| (name.to_owned(), text)));
    let always = [
        (names::TOTAL_TIME, total),
        (names::WORKER_RATE, conducted.worker_rates().clone()),
        (distribution::SERVICE_TIME, all.service),
        (distribution::CONNECT_TIME, all.opening.connect),
        (distribution::FIRST_BYTE, all.first_byte),
        (distribution::DOWNLOAD_TIME, all.download),
    ];
    let seldom = [
        (distribution::DNS_TIME, all.opening.resolve),
        (distribution::PROXY_TIME, all.opening.proxy),
        (distribution::TLS_TIME, all.opening.tls),
    ];
    let distributions = always.into_iter().chain(seldom.into_iter().filter(|(_, times)| times.count() > 0));
    record.distributions = distributions.map(|(name, all)| (name.to_owned(), all)).collect();
    record.notes.extend(notes.into_iter().flatten().chain(target.dialing.notes.iter().cloned()));
    record.notes.push(way.note.clone());
    record
}

/// Says so when a server answered fast, but not with what was asked for.
fn status_note(record: &Record) -> Option<Note> {
    let others = names::STATUS[1..].iter().map(|name| (name, record.totals[*name])).filter(|(_, n)| *n > 0);
    let others: Vec<String> = others.map(|(name, n)| format!("{n} × {}", name.trim_start_matches("status_"))).collect();
    (!others.is_empty()).then(|| Note {
        id: "http-status".to_owned(),
        text: format!(
            "of {} answers not all were 2xx: {}; they count as answered, and may be cheaper than what was asked for",
            record.totals[count::REQUESTS],
            others.join(", ")
        ),
    })
}

/// Says so when times are lower bounds, because nobody waited for the answer.
fn bounds_note(n_bounds: u64) -> Option<Note> {
    (n_bounds > 0).then(|| Note {
        id: "waited-in-vain".to_owned(),
        text: "requests without an answer in time are among the latencies with the time that they were waited for: \
               their true latency is longer"
            .to_owned(),
    })
}

/// Says so when bodies were not copied, which is less work than a client does that looks at them.
fn discard_note(all: &Outcome) -> Option<Note> {
    all.has_discarded.then(|| Note {
        id: "bodies-discarded".to_owned(),
        text:
            "large bodies were thrown away in the kernel without being copied: a client that reads them does more work"
                .to_owned(),
    })
}
