//! Connections segment by segment.

use super::*;

const RULES: Rules = Rules { request_length: 57, closes: false, is_open_load: false, port_mask: 0 };

const fn at(now: u64) -> Conditions {
    Conditions { now, stops: false, rules: RULES }
}

#[test]
fn a_row_holds_the_whole_connection() {
    let connection = Connection {
        unacknowledged: 1,
        send_next: 2,
        receive_next: 3,
        left: 4,
        started_at: 5,
        active_at: 6,
        state: State::LastAck,
        n_unacknowledged: 7,
        is_early_end: true,
        is_last: true,
        port_idx: 8,
        is_measured: true,
        early_from: 9,
        early_to: 10,
        n_answered: 11,
        is_ended_by_server: true,
        is_taken: true,
        is_away: true,
    };
    assert_eq!(Connection::from_row(&connection.row()), connection);
}

#[test]
fn a_connection_opens_asks_and_asks_again() {
    let mut connection = Connection::default();
    let mut step = Step::default();
    connection.open(1 << 20, RULES, &mut step);
    assert_eq!((step.send, connection.state), (Send::Syn, State::SynSent));
    let accepted =
        Segment { flags: flag::SYN | flag::ACK, sequence: 1_000, acknowledgement: connection.send_next, length: 0 };
    let step = connection.on_segment(&accepted, Head::Unknown, &at(1 << 21));
    assert_eq!((step.send, step.acknowledgement, step.elapsed), (Send::Request, 1_001, 1 << 20));
    let answer = Segment { flags: flag::ACK, sequence: 1_001, acknowledgement: connection.send_next, length: 850 };
    let head = Head::Answer { length: 850, is_success: true, closes: false };
    let step = connection.on_segment(&answer, head, &at(1 << 22));
    assert_eq!((step.send, step.acknowledgement, step.elapsed), (Send::Request, 1_851, 1 << 21));
    assert!(step.events.has(Event::Answered) && !step.events.has(Event::NotSuccess));
}

#[test]
fn a_request_that_was_sent_late_has_its_whole_timeout() {
    let timers = Timers::new(200);
    let mut connection = Connection { state: State::Idle, ..Connection::default() };
    let (due, sent_at) = (1_000, 5_000);
    connection.start_request(due, sent_at, RULES);
    for (now, is_overdue) in [(sent_at, false), (sent_at + 200, false), (sent_at + 201, true)] {
        assert_eq!(connection.is_overdue(now, sent_at, &timers), is_overdue, "{now}");
    }
    connection.close(9_000);
    assert!(!connection.is_overdue(9_200, sent_at, &timers) && connection.is_overdue(9_201, sent_at, &timers));
}
