//! Segment against segment: the machine and the program do the same with any row and any segment.

use std::{cell::RefCell, sync::atomic::Ordering::Relaxed};

use fathom_sys::bpf::{XdpAction, histogram};
use fathom_testkit::or_skip;
use proptest::prelude::*;

use super::{
    frames::{Over, answer, expected_head, from_server, setup},
    interpreted::{InterpretedLoad, SLOT},
};
use crate::{
    machine::{
        Conditions, Connection, Event, HEAD_DUE, Head, ROW_WORDS, Rules, Segment, Send, State, Step, WINDOW, flag,
    },
    program::{Counter, Kept, LoadProgram, LoadSetup},
};

/// Of the room before a frame, the kernel keeps 40 bytes.
const USABLE_HEAD_ROOM: usize = 216;
const NOW: u64 = 7_000_000_000_000;
/// The bytes of the expected answer, which has more than one segment.
const ANSWER: u32 = 3_000;

/// What the first bytes of a payload are, and what they say.
#[derive(Debug, Clone, Copy)]
enum Text {
    /// The expected answer.
    Expected,
    /// An answer with other lines.
    Other(&'static str, Head),
    /// No answer.
    Garbage(&'static str),
}

const TEXTS: [Text; 9] = [
    Text::Expected,
    Text::Other(
        "HTTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n",
        Head::Answer { length: 44, is_success: true, closes: false },
    ),
    Text::Other(
        "HTTP/1.1 404 Not Found\r\nConnection: close\r\nCONTENT-LENGTH: 12\r\nX: y\r\n\r\n",
        Head::Answer { length: 83, is_success: false, closes: true },
    ),
    Text::Other(
        "HTTP/1.1 503 No\r\nServer: fathom\r\nContent-Length: 10000\r\n\r\n",
        Head::Answer { length: 10_058, is_success: false, closes: false },
    ),
    Text::Garbage("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n"),
    Text::Garbage("HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n"),
    Text::Garbage("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc"),
    Text::Garbage("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
    Text::Garbage("SSH-2.0-OpenSSH_9.2\r\n"),
];

impl Text {
    /// A payload of so many bytes with this start, and what its head says.
    fn payload(self, length: u32) -> (Vec<u8>, Head) {
        let n = usize::try_from(length).unwrap();
        let (expected, n_expected) = answer(ANSWER, false);
        let (start, head, n_head) = match self {
            Self::Expected => (&expected[..], expected_head(ANSWER), usize::try_from(n_expected).unwrap()),
            Self::Other(text, head) => (text.as_bytes(), head, text.len()),
            Self::Garbage(text) => (text.as_bytes(), Head::Unknown, 0),
        };
        let mut payload = start[..start.len().min(n)].to_vec();
        payload.resize(n, b'.');
        (payload, if n < n_head { Head::Unknown } else { head })
    }
}

/// A row, what comes for it, and what else holds.
#[derive(Debug, Clone)]
struct Case {
    row: Connection,
    segment: Segment,
    text: Text,
    /// The segment is for the next port of the slot.
    is_stray: bool,
    stops: bool,
    is_padded: bool,
    options: usize,
    tail_room: usize,
}

fn flags() -> impl Strategy<Value = u8> {
    let often = prop::sample::select(vec![
        flag::ACK,
        flag::ACK | flag::PSH,
        flag::ACK | flag::FIN,
        flag::ACK | flag::SYN,
        flag::RST,
        flag::RST | flag::ACK,
    ]);
    prop_oneof![6 => often, 1 => any::<u8>()]
}

/// A distance that is often one of these.
fn distance(interesting: Vec<i64>) -> impl Strategy<Value = u32> {
    let random = any::<u32>().prop_map(i64::from);
    prop_oneof![8 => prop::sample::select(interesting), 1 => -3_000..70_000_i64, 1 => random]
        .prop_map(|value| u32::try_from(value.rem_euclid(1 << 32)).unwrap())
}

fn row(rules: Rules) -> impl Strategy<Value = Connection> {
    let request = i64::from(rules.request_length);
    let numbers = (
        prop_oneof![any::<u32>(), Just(0), Just(u32::MAX)],
        prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(WINDOW)],
        distance(vec![0, 0, 0, 1, request, request, request + 1]),
    );
    let left = prop_oneof![
        4 => prop::sample::select(vec![HEAD_DUE, HEAD_DUE, HEAD_DUE, 0, 1, 57, 100, 1_459, 1_460, 2_920]),
        1 => 0..10_000_u32
    ];
    let early = prop::option::of((distance(vec![1, 57, 100, 1_460, 1]), distance(vec![1, 43, 57, 100, 1_460])));
    let bytes = (
        prop::sample::select(vec![0, 1, 2, 254, 255]),
        any::<(bool, bool, bool)>(),
        (prop::bool::weighted(0.03), prop::bool::weighted(0.03)),
    );
    let time = || prop_oneof![4 => NOW - (1 << 34)..=NOW, 1 => NOW - (1 << 38)..=NOW];
    let times = (time(), time());
    let rest = (prop::sample::select(State::ALL.to_vec()), 0..=rules.port_mask, any::<u32>(), any::<bool>());
    (numbers, left, early, bytes, times, rest).prop_map(
        |(
            (send_next, receive_next, unacknowledged),
            left,
            early,
            (n_unacknowledged, ends, (is_taken, is_away)),
            times,
            rest,
        )| {
            let (early_from, early_to) = early.map_or((0, 0), |(from, length)| {
                let from = receive_next.wrapping_add(from);
                (from, from.wrapping_add(length))
            });
            Connection {
                unacknowledged: send_next.wrapping_sub(unacknowledged),
                send_next,
                receive_next,
                left,
                started_at: times.0,
                active_at: times.1,
                state: rest.0,
                n_unacknowledged,
                is_early_end: ends.0,
                is_last: ends.1,
                port_idx: rest.1,
                is_measured: rest.3,
                early_from,
                early_to,
                n_answered: rest.2,
                is_ended_by_server: ends.2,
                is_taken,
                is_away,
            }
        },
    )
}

fn case(rules: Rules) -> impl Strategy<Value = Case> {
    let request = i64::from(rules.request_length);
    let length = prop_oneof![
        3 => prop::sample::select(vec![0, 0, 0, 1, 43, 44, 57, 83, 100, 1_440]),
        1 => 0..1_441_u32,
        1 => Just(u32::MAX)
    ];
    let window = i64::from(WINDOW);
    let sequence = distance(vec![0, 0, 0, 0, 0, -1, 1, -57, 57, 100, 1_460, -1_440, -100, window - 1, window]);
    let acknowledgement = distance(vec![0, 0, 0, 0, 1, -1, -request, -request - 1, 57]);
    let others =
        (any::<(bool, bool)>(), prop::bool::weighted(0.1), 0..4_usize, prop::sample::select(vec![0, 6, 60, 400]));
    (row(rules), flags(), (length, sequence, acknowledgement), prop::sample::select(TEXTS.to_vec()), others).prop_map(
        |(
            row,
            flags,
            (length, sequence, acknowledgement),
            text,
            ((stops, is_padded), is_stray, options, tail_room),
        )| {
            let left = if row.left == HEAD_DUE { 44 } else { row.left };
            let segment = Segment {
                flags,
                sequence: row.receive_next.wrapping_add(sequence),
                acknowledgement: row.send_next.wrapping_add(acknowledgement),
                // Often just what is left.
                length: if length == u32::MAX { left } else { length }.min(1_440),
            };
            Case { row, segment, text, is_stray, stops, is_padded, options: options * 4, tail_room }
        },
    )
}

/// What the machine makes of a case.
fn by_machine(case: &Case, head: Head, at: &Conditions) -> (Connection, Step) {
    let mut row = case.row;
    if row.is_taken {
        let mut step = Step::default();
        step.events.add(Event::Stray);
        return (row, step);
    }
    if case.is_stray && at.rules.port_mask > 0 {
        return (row, Connection::on_stray(&case.segment));
    }
    let step = row.on_segment(&case.segment, head, at);
    (row, step)
}

/// What became of a case.
struct Outcome {
    /// What it looks like when a frame goes to user space.
    handed_over: XdpAction,
    now: u64,
    words: [u64; ROW_WORDS],
    action: u32,
    sent: Vec<u8>,
    counts: Vec<u64>,
}

/// All counters.
fn counters() -> impl Iterator<Item = Counter> {
    [Counter::Received, Counter::Sent, Counter::NoRoom].into_iter().chain(Event::ALL.map(Counter::Of))
}

/// The frame of a case, and what the head of its payload says.
fn frame(setup: &LoadSetup, case: &Case) -> (Vec<u8>, Head) {
    let (payload, head) = case.text.payload(case.segment.length);
    let to = setup.slots.place(SLOT, port_idx(case, setup.rules));
    let mut frame = from_server(setup, to, &case.segment, &vec![1; case.options], &payload);
    if case.is_padded {
        frame.resize(frame.len().max(60), 0);
    }
    (frame, head)
}

fn port_idx(case: &Case, rules: Rules) -> u16 {
    case.row.port_idx.wrapping_add(u16::from(case.is_stray)) & rules.port_mask
}

/// Whether the outcome is what the machine says; returns its step.
fn agrees(setup: &LoadSetup, case: &Case, outcome: &Outcome) -> Result<Step, TestCaseError> {
    let rules = setup.rules;
    let (frame, head) = frame(setup, case);
    let (row, step) = by_machine(case, head, &Conditions { now: outcome.now, stops: case.stops, rules });
    prop_assert_eq!(Connection::from_row(&outcome.words), row, "the row after {:?}", step);
    prop_assert_eq!(outcome.words, row.row());
    let port_idx = if step.send == Send::Syn { row.port_idx } else { port_idx(case, rules) };
    let expected = setup.ends.frame(&step, setup.slots.place(SLOT, port_idx));
    let growth = expected.len().saturating_sub(frame.len());
    let has_room = growth <= case.tail_room.max(USABLE_HEAD_ROOM);
    let is_sent = step.send != Send::Nothing && has_room;
    let action = match () {
        () if is_sent => XdpAction::Transmit,
        () if step.is_for_user_space => outcome.handed_over,
        () => XdpAction::Drop,
    };
    prop_assert_eq!(outcome.action, action as u32, "{:?}", step);
    if is_sent {
        prop_assert_eq!(&outcome.sent, &expected);
    }
    let counts = counters().map(|counter| match counter {
        Counter::Received => 1,
        Counter::Sent => u64::from(is_sent),
        Counter::NoRoom => u64::from(step.send != Send::Nothing && !has_room),
        Counter::Of(event) => u64::from(step.events.has(event)),
    });
    prop_assert_eq!(&outcome.counts, &counts.collect::<Vec<u64>>(), "the counters after {:?}", step);
    Ok(step)
}

fn check(load: &mut InterpretedLoad, case: &Case) -> Result<(), TestCaseError> {
    load.tail_room = case.tail_room;
    load.clear_books();
    load.set_words(&case.row.row());
    let at = Conditions { now: NOW, stops: case.stops, rules: load.setup.rules };
    let (frame, _) = frame(&load.setup, case);
    let (action, sent) = load.receive(&frame, &at).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let (books, histograms) = (load.books(), load.histograms());
    let counts = counters().map(|counter| books[counter.word()]).collect();
    let step = agrees(
        &load.setup,
        case,
        &Outcome { handed_over: XdpAction::Redirect, now: NOW, words: load.words(), action, sent, counts },
    )?;
    for kept in Kept::ALL {
        let times = kept.histogram(&histograms);
        let [begun, answered] = [Event::Begun, Event::Answered].map(|event| step.events.has(event));
        let is_due = match (load.setup.rules.is_open_load, kept) {
            (_, Kept::Opened) => step.events.has(Event::Opened),
            (true, Kept::Whole) => false,
            (true, Kept::Last) => answered && case.row.is_measured,
            (true, Kept::First) => begun && case.row.is_measured,
            (false, Kept::Whole) => begun && answered,
            (false, Kept::Last) => answered && !begun,
            (false, Kept::First) => begun && !answered,
        };
        prop_assert_eq!(times.count(), u64::from(is_due), "{:?}", kept);
        if is_due {
            let time = if kept == Kept::First { step.to_first } else { step.elapsed };
            let (is, should) = (times.max().unwrap_or(0), time.min(histogram::last_middle()));
            prop_assert!(is.abs_diff(should) <= should / 50 + 1, "{} ns instead of {}", is, should);
        }
    }
    Ok(())
}

/// All ways to load a server over both protocols, with requests of so many bytes.
fn setups(request_length: u32) -> impl Iterator<Item = LoadSetup> {
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    Over::ALL.into_iter().flat_map(move |over| {
        ways.map(|(closes, is_open_load)| {
            setup(over, Rules { request_length, closes, is_open_load, port_mask: 255 }, ANSWER)
        })
    })
}

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(n) }
}

#[test]
fn the_program_does_what_the_machine_does() {
    // The longer request does not always find room.
    for setup in setups(57).chain(setups(400)) {
        let strategy = case(setup.rules);
        let load = RefCell::new(InterpretedLoad::new(setup));
        proptest!(cases(1_000), |(case in strategy)| check(&mut load.borrow_mut(), &case)?);
    }
}

#[test]
fn the_program_does_what_the_machine_does_in_the_kernel_too() {
    for setup in setups(57) {
        for stops in [false, true] {
            let Some(load) = or_skip(LoadProgram::load(&setup), fathom_sys::Error::is_permission) else { return };
            if stops {
                load.stop().unwrap();
            }
            proptest!(cases(200), |(case in case(setup.rules))| {
                check_in_kernel(&load, &setup, Case { stops, ..case })?;
            });
        }
    }
}

fn check_in_kernel(load: &LoadProgram, setup: &LoadSetup, mut case: Case) -> Result<(), TestCaseError> {
    let (frame, _) = frame(setup, &case);
    // What a test run leaves of its page.
    case.tail_room = 4_096 - 256 - 320 - frame.len();
    let row = load.rows.row(SLOT);
    for (to, word) in row.iter().zip(case.row.row()) {
        to.store(word, Relaxed);
    }
    let count = || -> Vec<u64> {
        let counts = load.counts().unwrap();
        counters().map(|counter| counts.of(counter)).collect()
    };
    let before = count();
    let run = load.program().test_run(&frame, 1).unwrap();
    let words: [u64; ROW_WORDS] = std::array::from_fn(|word| row[word].load(Relaxed));
    let counts = count().iter().zip(before).map(|(after, before)| after - before).collect();
    // Whatever takes the time from the clock writes it here.
    let now = Connection::from_row(&words).active_at;
    // No socket is there.
    let handed_over = XdpAction::Drop;
    agrees(setup, &case, &Outcome { handed_over, now, words, action: run.value, sent: run.frame, counts })?;
    Ok(())
}

#[test]
fn the_program_is_short() {
    for setup in setups(1_400) {
        let n = InterpretedLoad::new(setup).n_instructions();
        assert!(n < 3_000, "{n} instructions");
    }
}
