//! Servers that violate the protocol: each fault is counted under its own name, and the load continues.

use std::{
    io::{Error, ErrorKind, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use crate::{
    common::{over_both, read_request},
    harness::{self, PHASES, server, server_of},
};
use fathom_engine::TestKind;
use fathom_http::{HttpClosed, HttpOpen, names};
use fathom_model::{Phases, Record, names::count, units::Nanos};
use fathom_sys::{clock, socket::SockRef};

over_both! {
    a_reset_in_the_middle_of_a_body
    a_reset_before_the_answer
    a_response_that_never_ends
    a_head_of_a_mebibyte
    an_invalid_chunk
    no_answer_at_all
    no_answer_by_the_end_of_the_trial
    no_connection_by_the_end_of_the_trial
    a_refused_connect_after_a_good_one
    bytes_that_nobody_asked_for
    a_switch_of_protocols
    an_end_of_one_direction_behind_the_answer
}

/// Long enough that a worker that starts late still waits for a second.
const SECONDS: Phases = Phases { warmup_max_ns: Nanos::ZERO, measure_ns: Nanos::from_secs(2), ..PHASES };

/// The records of both kinds against the same server, for 300 ms that count.
fn records(address: SocketAddr, options: &[(&str, &str)]) -> [Record; 2] {
    let phases = Phases { warmup_max_ns: Nanos::ZERO, measure_ns: Nanos::from_millis(300), ..PHASES };
    let options = [options, &[("connections", "2")]].concat();
    let run =
        |kind: &dyn TestKind, options: &[(&str, &str)]| harness::run_against(kind, phases, address, options).unwrap();
    [run(&HttpClosed, &options), run(&HttpOpen, &[&options[..], &[("rate", "200")]].concat())]
}

/// Both kinds must count this fault and no other, and not very often.
fn only(fault: &str, address: SocketAddr, options: &[(&str, &str)]) {
    for record in records(address, options) {
        let n = record.errors[fault];
        assert!(n > 0 && record.errors.len() == 1, "{fault}: {:?}", record.errors);
        assert_eq!(record.totals[names::ERRORS], n);
        assert!(record.complete && n < 200, "{fault}: {n}");
    }
}

/// Closes a connection like a crashed server: with a reset.
fn reset(stream: &TcpStream) -> Error {
    SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    ErrorKind::ConnectionReset.into()
}

fn a_reset_in_the_middle_of_a_body() {
    let address = server(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nand so it begins")?;
        Err(reset(stream))
    });
    only("read: connection reset by peer", address, &[]);
}

fn a_reset_before_the_answer() {
    only("read: connection reset by peer", server(|stream| Err(reset(stream))), &[]);
}

fn a_response_that_never_ends() {
    let heads: [&[u8]; 3] = [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n",
    ];
    for head in heads {
        let address = server(move |stream| {
            stream.write_all(head)?;
            let piece: Vec<u8> = b"400\r\n".iter().chain(&[b'x'; 0x400]).chain(b"\r\n").copied().collect();
            loop {
                stream.write_all(&piece)?;
            }
        });
        only("read: timeout", address, &[("timeout", "50ms")]);
    }
}

fn a_head_of_a_mebibyte() {
    let address = server(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        (0..16_384)
            .try_for_each(|_| stream.write_all(b"X-Padding: and so on, and so on, and so on, and so on, and...\r\n"))
    });
    only("parse: head longer than max-head", address, &[]);
    only("parse: head longer than max-head", address, &[("max-head", "64")]);
}

fn an_invalid_chunk() {
    let texts: [(&[u8], &str); 2] = [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "parse: malformed chunk size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "parse: chunk longer than its size"),
    ];
    for (text, fault) in texts {
        only(fault, server_of(text), &[]);
    }
}

fn no_answer_at_all() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    only("read: timeout", silent.local_addr().unwrap(), &[("timeout", "50ms")]);
}

fn no_answer_by_the_end_of_the_trial() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    for (kind, rate) in [(&HttpClosed as &dyn TestKind, None), (&HttpOpen, Some(("rate", "200")))] {
        let options = [Some(("connections", "2")), rate];
        let options: Vec<_> = options.into_iter().flatten().collect();
        let record = harness::run_against(kind, SECONDS, address, &options).unwrap();
        assert_eq!(record.errors, [("read: unanswered", 2)].into_iter().collect());
        assert_eq!((record.totals[names::ERRORS], record.totals[names::ATTEMPTS]), (2, 2));
        assert_eq!(
            (record.totals[names::UNFINISHED], record.totals[names::STUCK]),
            (0, 0),
            "no other one was answered"
        );
    }
}

fn no_connection_by_the_end_of_the_trial() {
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    // The accept queue is this short; further SYNs are dropped.
    SockRef::from(&full).listen(0).unwrap();
    let record =
        harness::run_against(&HttpClosed, SECONDS, full.local_addr().unwrap(), &[("connections", "200")]).unwrap();
    let n = |fault: &str| record.errors[fault];
    assert!(n("connect: unanswered") >= 190, "{:?}", record.errors);
    assert_eq!(n("connect: unanswered") + n("read: unanswered"), 200, "{:?}", record.errors);
}

fn a_refused_connect_after_a_good_one() {
    for kind in [&HttpClosed as &dyn TestKind, &HttpOpen] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // One answer, then the listener is closed.
        let dying = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            drop(listener);
            read_request(&mut stream).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
        });
        let phases = Phases { warmup_max_ns: Nanos::ZERO, measure_ns: Nanos::from_millis(300), ..PHASES };
        let mut options = vec![("connections", "1")];
        options.extend((kind.name() == "http_open").then_some(("rate", "200")));
        let record = harness::run_against(kind, phases, address, &options).unwrap();
        dying.join().unwrap();
        assert_eq!(record.totals[count::REQUESTS], 1);
        assert!(record.errors["connect: connection refused"] > 0 && record.errors.len() == 1, "{:?}", record.errors);
    }
}

fn bytes_that_nobody_asked_for() {
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nsurplus";
    for record in records(server_of(text), &[]) {
        let n = record.errors["parse: bytes after the end of the response"];
        assert!(n > 0 && record.errors.len() == 1, "{:?}", record.errors);
        assert_eq!(record.totals[count::REQUESTS], n, "each answer was complete, and counts");
        assert_eq!(record.totals["attempts"], n, "what lies behind it is no attempt of its own");
    }
}

fn a_switch_of_protocols() {
    let text = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n";
    only("parse: switched protocols unasked", server_of(text), &[]);
}

/// A server may close its sending direction and continue to read; the answer before it is valid.
fn an_end_of_one_direction_behind_the_answer() {
    let address = server(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        // It reads on until the client has closed.
        while read_request(stream).is_some() {}
        Err(ErrorKind::Other.into())
    });
    let begin = clock::now();
    for record in records(address, &[]) {
        assert!(record.totals[count::REQUESTS] > 10, "{:?}", record.totals);
        assert_eq!(record.totals[count::REQUESTS], record.totals[names::CLOSED_BY_SERVER]);
        assert!(record.errors.is_empty(), "{:?}", record.errors);
    }
    assert!(clock::now() - begin < Nanos::from_secs(10));
}
