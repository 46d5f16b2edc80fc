//! The record of a load without sockets.

use std::collections::BTreeMap;

use fathom_engine::{Error, Stop, TrialContext};
use fathom_http::{lower_bounds_note, names as http};
use fathom_model::{
    Cause, Failure, Note, Record, Side, Stage,
    names::{count, distribution},
    units::{Bytes, Nanos},
};
use fathom_sys::bpf::histogram;

use crate::{
    client::{BY_SLOW_PATH, FAILURES, LoadOutcome, LoadRun},
    machine::Event,
    program::{Counter, Times},
};

/// Above this, sockets that take whole super-frames need less time per byte.
pub(super) const LARGE: u32 = 8 * 1024;

/// Names of counts that only this kind has.
mod names {
    /// Requests that were answered before the start: one by which the program was tried, and the first one of each connection that stays.
    pub(super) const BEFORE: &str = "answered_before_start";
    /// Segments that the program received for the connections of the load, and those that it sent.
    pub(super) const SEGMENTS_RECEIVED: &str = "segments_received";
    pub(super) const SEGMENTS_SENT: &str = "segments_sent";
    /// Frames that could not become one of ours for want of room.
    pub(super) const NO_ROOM: &str = "no_room";
    /// Segments before which bytes were missing, without anything new, and of earlier connections.
    pub(super) const GAPS: &str = "gaps";
    pub(super) const DUPLICATES: &str = "duplicate_segments";
    pub(super) const STRAYS: &str = "stray_segments";
    /// What we sent again.
    pub(super) const RESENT: &str = "resent_segments";
    /// Frames that the device's queue did not take from user space.
    pub(super) const REFUSED: &str = "frames_refused";
    /// Frames of the program that the driver could not send.
    pub(super) const XDP_TX_ERRORS: &str = "xdp_tx_errors";
    /// Frames for the slow path that found no room, or came too late; the server sends them again.
    pub(super) const SLOW_DROPPED: &str = "slow_path_frames_dropped";
    /// Frames for the slow path that its sockets do not take, however often the server sends them.
    pub(super) const SLOW_TOO_LONG: &str = "slow_path_frames_too_long";
    /// Connections without an answer in the measured window.
    pub(super) const STARVED: &str = "connections_without_answer";
}

/// Puts together what the program and user space have counted.
pub(super) fn record(run: LoadRun, context: &TrialContext) -> Result<Record, Error> {
    let mut record = run.results.record(Side::Initiator);
    let outcome = run.results.workers.into_iter().next().expect("a load has one worker");
    // Connections that stay are open before the start.
    let is_idle = [count::CONNECTIONS, count::REQUESTS].iter().all(|name| record.totals[*name] == 0);
    if is_idle && context.stop.state() != Stop::Abort {
        let what =
            format!("took no connection and answered nothing at {} within the whole trial", run.setup.ends.server);
        return Err(Error::Peer { what });
    }
    let is_open_load = run.setup.rules.is_open_load;
    totals(&mut record, &outcome, run.n_lost_by_driver, is_open_load);
    errors(&mut record, &outcome);
    record.notes.extend(failed_note(&record.totals));
    record.notes.push(engine_note(&run.device, is_open_load));
    let length = run.setup.answer.as_ref().map(|answer| answer.length);
    let large = length.filter(|length| *length > LARGE).map(|length| {
        Note::new(
            "http-xdp-large",
            format!("answers have {}: above 8KiB, sockets need less processor time for each", Bytes(length.into())),
        )
    });
    record.notes.extend(large.into_iter().chain(run.varies.then(varies_note)));
    record.notes.extend(slow_note(&record.totals, run.unusual, run.no_slow_path));
    record.notes.extend(slow_loss_notes(&outcome));
    record.notes.extend(run.n_lost_by_driver.and_then(loss_note));
    record.notes.extend(longest_note(outcome.measured.times.n_longest()));
    record.notes.extend(lower_bounds_note(outcome.lower_bounds.count()));
    record.notes.extend(outcome.measured.n_starved.and_then(|n_starved| starved_note(n_starved, run.setup.slots.n)));
    distributions(&mut record, outcome, is_open_load);
    Ok(record)
}

/// How it was measured.
fn engine_note(device: &str, is_open_load: bool) -> Note {
    let times = if is_open_load {
        "latencies are from when a request was due to the arrival of the last frame of its answer in the driver"
    } else {
        "times are from the departure of a frame in the driver to the arrival of the last one there"
    };
    Note::new(
        "http-xdp",
        format!(
            "without sockets, by an XDP program on {device}: {times}, and there is no congestion \
             control"
        ),
    )
}

/// What the slow path lost on this host, which would look like a slow server.
fn slow_loss_notes(outcome: &LoadOutcome) -> impl Iterator<Item = Note> {
    let dropped = (outcome.n_slow_dropped > 0).then(|| {
        let text = format!(
            "{} frames of answers that the program cannot follow found no room on this host, or came too late: the server had to send \
             them again, so long times and timeouts are partly those of this host",
            outcome.n_slow_dropped
        );
        Note::new("slow-path-dropped", text)
    });
    let too_long = (outcome.n_slow_too_long > 0).then(|| {
        let text = format!(
            "{} frames of answers that the program cannot follow were longer than an AF_XDP socket takes (3,840 bytes), so their \
             timeouts are those of this host: turn off GRO here, and TSO at the other end of a veth",
            outcome.n_slow_too_long
        );
        Note::new("slow-path-too-long", text)
    });
    dropped.into_iter().chain(too_long)
}

fn totals(record: &mut Record, outcome: &LoadOutcome, n_lost_by_driver: Option<u64>, is_open_load: bool) {
    let counts = &outcome.counts;
    let of_load = [
        (names::BEFORE, outcome.n_answered_before),
        (http::UNFINISHED, outcome.own.n_unfinished),
        (names::SEGMENTS_RECEIVED, counts.of(Counter::Received)),
        (names::SEGMENTS_SENT, counts.of(Counter::Sent)),
        (names::NO_ROOM, counts.of(Counter::NoRoom)),
        (names::GAPS, counts.n(Event::Gap)),
        (names::DUPLICATES, counts.n(Event::Duplicate)),
        (names::STRAYS, counts.n(Event::Stray)),
        (names::RESENT, outcome.own.n_resent),
        (names::REFUSED, outcome.n_refused),
        (names::SLOW_DROPPED, outcome.n_slow_dropped),
        (names::SLOW_TOO_LONG, outcome.n_slow_too_long),
    ];
    let not_started = is_open_load.then_some((http::NOT_STARTED, outcome.n_not_started));
    let starved = outcome.measured.n_starved.map(|n| (names::STARVED, n));
    // A driver that does not count them leaves no row, rather than a zero.
    let lost = n_lost_by_driver.map(|n| (names::XDP_TX_ERRORS, n));
    record.totals.extend(
        of_load.into_iter().chain(not_started).chain(starved).chain(lost).map(|(name, n)| (name.to_owned(), n)),
    );
}

fn errors(record: &mut Record, outcome: &LoadOutcome) {
    let cause = |event| match event {
        Event::Reset => (Stage::Read, Cause::Reset),
        Event::ClosedEarly => (Stage::Read, Cause::Other("closed before the answer had ended".to_owned())),
        Event::Excess => (Stage::Parse, Cause::Other("more bytes than the answer has".to_owned())),
        _ => (Stage::Parse, Cause::Other("bytes that are no answer".to_owned())),
    };
    let of_program = FAILURES.map(|event| (cause(event), outcome.counts.n(event)));
    let timed_out = [
        ((Stage::Connect, Cause::Timeout), outcome.own.n_connects_timed_out),
        ((Stage::Read, Cause::Timeout), outcome.own.n_requests_timed_out),
    ];
    for ((stage, cause), n) in of_program.into_iter().chain(timed_out).filter(|(_, n)| *n > 0) {
        record.errors.add(Failure { stage, cause }, n);
    }
}

fn distributions(record: &mut Record, outcome: LoadOutcome, is_open_load: bool) {
    let LoadOutcome { measured, lower_bounds, lag, .. } = outcome;
    // A request of a closed load is due when it is sent.
    let other = if is_open_load {
        (distribution::SCHEDULE_LAG, lag)
    } else {
        (distribution::SERVICE_TIME, measured.times.last_byte.clone())
    };
    let Times { first_byte, mut last_byte, connect } = measured.times;
    last_byte.merge(&lower_bounds);
    let all = [
        (distribution::FIRST_BYTE, first_byte),
        (distribution::RESPONSE_TIME, last_byte),
        (distribution::CONNECT_TIME, connect),
        other,
    ];
    record.distributions.extend(all.map(|(name, times)| (name.to_owned(), times)));
}

/// What the slow path did, and why.
fn slow_note(totals: &BTreeMap<String, u64>, unusual: Option<String>, unavailable: Option<String>) -> Option<Note> {
    let n = |name: &str| totals.get(name).copied().unwrap_or(0);
    let (n_slow, n_all) = (n(BY_SLOW_PATH), n(count::REQUESTS));
    if let Some(why) = unavailable {
        let text = format!(
            "answers that the program cannot follow time out, since user space gets none of their frames: {why}"
        );
        return Some(Note::new("no-slow-path", text));
    }
    (n_slow > 0).then(|| {
        let why = unusual.map(|why| format!(", since {why}")).unwrap_or_default();
        let text =
            format!("{n_slow} of {n_all} answers were followed by a thread in user space and not by the program{why}");
        Note::new("slow-path", text)
    })
}

/// RFC 9411 takes a result only if fewer than one of so many transactions failed (section 7.2.3.3).
const FAILED_PART: u64 = 100_000;

fn failed_note(totals: &BTreeMap<String, u64>) -> Option<Note> {
    let n = |name: &str| totals.get(name).copied().unwrap_or(0);
    let (n_all, n_success) = (n(http::ATTEMPTS), n(http::STATUS[0]));
    let n_failed = n_all.saturating_sub(n_success);
    (n_failed > 0 && n_failed.saturating_mul(FAILED_PART) >= n_all).then(|| {
        Note::new(
            "rfc9411-failed",
            format!(
                "{n_failed} of {n_all} requests failed or got a status other than 2xx; RFC 9411 (section 7.2.3.3) takes a result only if it \
                 is fewer than one of {FAILED_PART}"
            ),
        )
    })
}

fn varies_note() -> Note {
    Note::new(
        "http-xdp-varies",
        "the answers vary in length, so the program searches the head of each that is not like the first: this takes more processor time",
    )
}

fn loss_note(n_lost: u64) -> Option<Note> {
    (n_lost > 0).then(|| {
        Note::new(
            "xdp-tx-errors",
            format!(
                "the driver could not send {n_lost} frames of the program, since its ring was full: each waits 200 ms to be sent again; \
                 use fewer connections or --rate, or enlarge the ring (ethtool -G)"
            ),
        )
    })
}

/// Times that the histograms of the program do not tell apart.
fn longest_note(n_longest: u64) -> Option<Note> {
    let [from, counted_as] = [histogram::LAST_FROM, histogram::last_middle()].map(Nanos);
    (n_longest > 0).then(|| {
        Note::new(
            "http-xdp-longest",
            format!(
                "{n_longest} latencies of {from} or more, which the program does not tell apart, count as {counted_as}: the true ones may be \
                 longer"
            ),
        )
    })
}

fn starved_note(n_starved: u64, n: u32) -> Option<Note> {
    (n_starved > 0).then(|| {
        Note::new(
            "connections-without-answer",
            format!("{n_starved} of {n} connections got no answer in the measured time, so the others did their work"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_of_the_engine_says_where_latencies_begin() {
        let text = |is_open_load| engine_note("eth1", is_open_load).text;
        assert!(
            text(true).contains("eth1: latencies are from when a request was due to the arrival"),
            "{}",
            text(true)
        );
        assert!(
            text(false).contains("eth1: times are from the departure of a frame in the driver to"),
            "{}",
            text(false)
        );
    }

    #[test]
    fn the_longest_times_are_noted_with_what_they_count_as() {
        assert_eq!(longest_note(0), None);
        let text = longest_note(3).unwrap().text;
        assert!(text.starts_with("3 latencies of 67.6 s or more") && text.contains("count as 68.2 s"), "{text}");
    }
}
