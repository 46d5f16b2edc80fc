//! Answers in user space, segment by segment.

use super::*;
use crate::machine::{Rules, Send};

const RULES: Rules = Rules { request_length: 57, closes: false, is_open_load: false, port_mask: 0 };
const SERVER: u32 = 5_000;

/// A connection that the program has handed over: its request is out, and the server has said nothing.
fn away() -> Connection {
    let mut connection = Connection { send_next: 900, ..Connection::default() };
    connection.open(1, RULES, &mut Step::default());
    let accepted =
        Segment { flags: flag::SYN | flag::ACK, sequence: SERVER, acknowledgement: connection.send_next, length: 0 };
    let _ = connection.on_segment(&accepted, Head::Unknown, &at());
    Connection { is_away: true, ..connection }
}

const fn at() -> Conditions {
    Conditions { now: 2, stops: false, rules: RULES }
}

/// Hands pieces of an answer over, each in a segment of its own; the last one may have a FIN. Returns all that happened.
fn hand_over(connection: &mut Connection, pieces: &[&str], fin: u8) -> Vec<Step> {
    let (mut reader, mut heads) = (ResponseReader::default(), heads(Method::Get));
    let mut sequence = SERVER + 1;
    let steps = pieces.iter().enumerate().map(|(idx, piece)| {
        let flags = flag::ACK | if idx + 1 == pieces.len() { fin } else { 0 };
        let length = length(piece.as_bytes());
        let segment = Segment { flags, sequence, acknowledgement: connection.send_next, length };
        sequence += length;
        follow(connection, (&mut reader, &mut heads), (&segment, piece.as_bytes()), &at())
    });
    steps.collect()
}

const ANSWERS: [&str; 4] = [
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
];

#[test]
fn an_answer_may_be_cut_at_every_byte_and_the_program_goes_on_behind_it() {
    for text in ANSWERS {
        for cut in 1..text.len() {
            let mut connection = away();
            let (first, second) = text.split_at(cut);
            let steps = hand_over(&mut connection, &[first, second], 0);
            assert!(steps[0].events.has(Event::Begun) && !steps[0].events.has(Event::Answered), "{text} at {cut}");
            assert!(steps[1].events.has(Event::Answered) && !steps[1].events.has(Event::NotSuccess), "{text} at {cut}");
            assert_eq!((steps[1].send, connection.is_away), (Send::Request, false), "{text} at {cut}");
            assert_eq!(connection.receive_next, SERVER + 1 + length(text.as_bytes()));
        }
    }
}

#[test]
fn the_end_of_the_connection_ends_an_answer_without_a_length() {
    for pieces in [&["HTTP/1.1 404 No\r\n\r\n", "gone"][..], &["HTTP/1.1 404 No\r\n\r\ngone", ""]] {
        let mut connection = away();
        let steps = hand_over(&mut connection, pieces, flag::FIN);
        let events = steps[1].events;
        assert!(events.has(Event::Answered) && events.has(Event::NotSuccess) && !events.has(Event::ClosedEarly));
        assert_eq!((steps[1].send, connection.state, connection.is_away), (Send::Fin, State::LastAck, true));
        let last = Segment {
            flags: flag::ACK,
            sequence: connection.receive_next,
            acknowledgement: connection.send_next,
            length: 0,
        };
        let (mut reader, mut heads) = (ResponseReader::default(), heads(Method::Get));
        let step = follow(&mut connection, (&mut reader, &mut heads), (&last, &[]), &at());
        assert_eq!((step.send, connection.state, connection.is_away), (Send::Syn, State::SynSent, false));
    }
}

#[test]
fn what_is_no_answer_or_more_than_one_ends_the_connection() {
    for (pieces, event) in [
        (&["SSH-2.0-OpenSSH_9.2\r\n"][..], Event::UnknownAnswer),
        (&["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "zz\r\n"], Event::UnknownAnswer),
        (&["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!"], Event::Excess),
    ] {
        let mut connection = away();
        let steps = hand_over(&mut connection, pieces, 0);
        let step = steps.last().unwrap();
        assert!(step.events.has(event), "{pieces:?}: {step:?}");
        assert_eq!((step.send, connection.state, connection.is_away), (Send::Reset, State::Closed, false));
    }
    let mut connection = away();
    let steps = hand_over(&mut connection, &["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"], flag::FIN);
    assert!(steps[0].events.has(Event::ClosedEarly), "{steps:?}");
}

#[test]
fn early_and_old_bytes_are_not_read() {
    let text = ANSWERS[0];
    let mut connection = away();
    let (mut reader, mut heads) = (ResponseReader::default(), heads(Method::Get));
    // The end comes first, then all but the end, then all of it.
    for (from, to, is_answered) in [(30, text.len(), false), (0, 40, false), (10, text.len(), true)] {
        let payload = &text.as_bytes()[from..to];
        let segment = Segment {
            flags: flag::ACK,
            sequence: SERVER + 1 + u32::try_from(from).unwrap(),
            acknowledgement: 900 + 64 + 1 + 57,
            length: length(payload),
        };
        connection.is_away = true;
        let step = follow(&mut connection, (&mut reader, &mut heads), (&segment, payload), &at());
        assert_eq!(step.events.has(Event::Answered), is_answered, "{from}..{to}: {step:?}");
        assert_eq!(step.sack, (0, 0), "bytes that came early are not kept");
    }
}
