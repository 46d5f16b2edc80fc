//! The responder over loopback, asked by hand.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
};

use fathom_engine::StopFlag;
use fathom_http::{Responder, ResponderCounts, ResponderOptions};
use fathom_model::units::{Bytes, Nanos};

/// Runs `ask` against a responder; what the responder counted.
fn asked(options: ResponderOptions, ask: impl FnOnce(SocketAddr)) -> ResponderCounts {
    /// Ends the responder also when an assertion fails.
    struct Ending(StopFlag);
    impl Drop for Ending {
        fn drop(&mut self) {
            self.0.finish();
        }
    }
    let responder = Responder::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let (address, stop) = (responder.address(), StopFlag::default());
    thread::scope(|scope| {
        let ending = Ending(stop.clone());
        let running = scope.spawn(|| responder.run(&stop).unwrap());
        ask(address);
        drop(ending);
        running.join().unwrap()
    })
}

fn small() -> ResponderOptions {
    ResponderOptions { size: Bytes(3), ..ResponderOptions::default() }
}

/// What comes back until the responder closes.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const GET: &str = "GET /any/path?x HTTP/1.1\r\nHost: a\r\n\r\n";
const LAST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[test]
fn get_and_head_are_answered_and_counted() {
    let counts = asked(small(), |address| {
        let answer = exchange(address, LAST);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nxxx"), "{answer}");
        assert!(answer.contains("\r\nContent-Length: 3\r\n") && answer.contains("\r\nConnection: close\r\n"));
        assert!(!answer.contains("01 Jan 1970"), "{answer}");
        let head = exchange(address, &LAST.replace("GET", "HEAD"));
        assert!(head.ends_with("\r\n\r\n") && head.contains("\r\nContent-Length: 3\r\n"), "{head}");
    });
    assert_eq!((counts.requests, counts.connections, counts.rejected), (2, 2, 0));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let counts = asked(small(), |address| {
        let head = GET.replace("GET", "HEAD");
        let answer = exchange(address, &format!("{}{head}{GET}{LAST}", GET.repeat(100)));
        let bodies: Vec<&str> = answer.split("HTTP/1.1 200 OK").skip(1).map(|one| &one[one.len() - 3..]).collect();
        let expected: Vec<&str> = (0..103).map(|i| if i == 100 { "\n\r\n" } else { "xxx" }).collect();
        assert_eq!(bodies, expected);
    });
    assert_eq!(counts.requests, 103);
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let counts = asked(small(), |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in format!("{GET}{LAST}").bytes() {
            stream.write_all(&[byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
    });
    assert_eq!(counts.requests, 2);
}

#[test]
fn an_http_1_0_client_is_told_that_the_connection_stays() {
    asked(small(), |address| {
        let answer = exchange(address, "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET / HTTP/1.0\r\n\r\n");
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
        assert_eq!(answer.matches("\r\nConnection: keep-alive\r\n").count(), 1);
    });
}

#[test]
fn what_cannot_be_answered_gets_its_status_and_the_connection_is_closed() {
    let counts = asked(small(), |address| {
        let cases = [
            ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400 Bad Request"),
            ("POST / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "405 Method Not Allowed"),
            (format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}", "x".repeat(17_000)), "431 Request Header Fields Too Large"),
        ];
        for (request, status) in cases {
            assert!(exchange(address, &request).starts_with(&format!("HTTP/1.1 {status}\r\n")), "{status}");
        }
    });
    assert_eq!((counts.requests, counts.rejected), (0, 4));
}

#[test]
fn a_reader_that_takes_its_time_gets_everything() {
    let options = ResponderOptions { size: Bytes(4 << 20), ..ResponderOptions::default() };
    let counts = asked(options, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("{GET}{GET}{LAST}").as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let (mut total, mut piece) = (0, vec![0; 64 * 1024]);
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => break,
                n => total += n,
            }
            thread::yield_now();
        }
        assert!(total > 3 * (4 << 20), "{total}");
    });
    assert_eq!(counts.requests, 3);
}

#[test]
fn a_client_that_never_finishes_its_request_is_hung_up_on() {
    let options = ResponderOptions { patience: Nanos::from_millis(10), ..small() };
    let counts = asked(options, |address| assert_eq!(exchange(address, "GET / HT"), ""));
    assert_eq!((counts.timed_out, counts.requests), (1, 0));
}

#[test]
fn more_connections_than_allowed_wait_for_their_turn() {
    let options = ResponderOptions { connections_max: 1, ..small() };
    let counts = asked(options, |address| {
        let first = TcpStream::connect(address).unwrap();
        let second = thread::spawn(move || exchange(address, LAST));
        let mut first = first;
        first.write_all(LAST.as_bytes()).unwrap();
        first.read_to_end(&mut Vec::new()).unwrap();
        drop(first);
        assert!(second.join().unwrap().starts_with("HTTP/1.1 200 OK"));
    });
    assert_eq!((counts.requests, counts.connections), (2, 2));
}

#[test]
fn workers_share_one_port() {
    let counts = asked(ResponderOptions { workers: 3, ..small() }, |address| {
        for _ in 0..20 {
            assert!(exchange(address, LAST).starts_with("HTTP/1.1 200 OK"));
        }
    });
    assert_eq!((counts.requests, counts.connections), (20, 20));
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let options = ResponderOptions { size: Bytes(1 << 30), ..ResponderOptions::default() };
    let error = Responder::bind("127.0.0.1:0".parse().unwrap(), options).unwrap_err();
    assert_eq!(error.to_string(), "a body of 1 GiB is more than the responder holds");
}
