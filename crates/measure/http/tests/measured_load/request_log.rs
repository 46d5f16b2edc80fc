//! Data that the kinds keep besides their times (lengths of answers, rows of requests), and when they give up.

use std::{
    fs,
    io::{self, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fathom_http::{HttpClosed, HttpOpen, names};
use fathom_model::{Phases, Record, names::count, units::Nanos};

use crate::harness::{self, PHASES, server, server_of};

/// Runs a number of requests that is complete long before the time is over.
fn against(address: SocketAddr, options: &[(&str, &str)]) -> Record {
    let phases = Phases { measure_ns: Nanos::from_secs(20), warmup_max_ns: Nanos::ZERO, ..PHASES };
    harness::run_against(&HttpClosed, phases, address, options).unwrap()
}

#[test]
fn answers_that_are_not_as_long_as_the_first_are_counted() {
    let n_answered = Arc::new(AtomicU64::new(0));
    let address = server(move |stream| {
        let body = if n_answered.fetch_add(1, Ordering::Relaxed) % 4 == 3 { "four" } else { "five!" };
        write!(stream, "HTTP/1.1 200 OK\r\nServer: one/2\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    });
    let record = against(address, &[("connections", "1"), ("count", "100")]);
    let kept = [names::FIRST_BODY_BYTES, names::LENGTH_MISMATCHES, names::BODY_BYTES].map(|name| record.totals[name]);
    assert_eq!(kept, [5, 25, 75 * 5 + 25 * 4]);
    assert!(record.facts[names::facts::HEAD].starts_with("HTTP/1.1 200 OK\r\nServer: one/2\r\n"));
    assert_eq!(record.totals[count::BYTES_SENT] % 100, 0, "every request is as long as the others");
}

#[test]
fn the_time_of_a_request_with_its_connect_is_kept_for_each_answer() {
    let (record, _) =
        harness::run_both_sides(&HttpClosed, &[("connections", "2"), ("count", "50"), ("per-connection", "1")]);
    assert_eq!(record.totals[count::CONNECTIONS], 50);
    let [total, service, connect] =
        [names::TOTAL_TIME, "service_time_ns", "connect_time_ns"].map(|name| &record.distributions[name]);
    assert_eq!((total.count(), service.count(), connect.count()), (50, 50, 50));
    let [total, service, connect] = [total, service, connect].map(|times| times.mean().unwrap());
    assert!((total - service - connect).abs() < 1.0, "{total} is not {service} and {connect}");
}

#[test]
fn a_row_is_written_for_each_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let address = server_of(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let options = [("connections", "2"), ("count", "50"), ("threads", "2"), ("request-log", path.to_str().unwrap())];
    let record = against(address, &options);
    let rows: Vec<Vec<u8>> = (0..2).map(|idx| fs::read(folder.path().join(format!("log.{idx}"))).unwrap()).collect();
    let rows = rows.concat();
    assert_eq!(rows.len(), 50 * 32);
    let numbers: Vec<u64> = rows.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect();
    let n_connects = numbers.chunks_exact(4).filter(|row| row[1] > 0).count();
    assert_eq!(n_connects as u64, record.totals[count::CONNECTIONS], "kept connections take no time to connect");
    assert!(numbers.chunks_exact(4).all(|row| row[3] > 0 && row[3] <= row[2]), "the first byte is not after the last");
}

#[test]
fn nobody_waits_for_the_answer_of_a_request_that_is_left() {
    let address = server(|_| Ok(()));
    let options = [("connections", "2"), ("count", "50"), ("per-connection", "1"), ("leave", "true")];
    let record = against(address, &options);
    let told = [count::REQUESTS, count::CONNECTIONS, names::NOT_AWAITED, names::ERRORS, names::STATUS[0]];
    assert_eq!(told.map(|name| record.totals[name]), [50, 50, 50, 0, 0]);
    assert!(record.notes.iter().any(|note| note.id == "answers-left"));
    let kept = harness::run_against(
        &HttpClosed,
        PHASES,
        address,
        &options[..2].iter().chain(&options[3..]).copied().collect::<Vec<_>>(),
    );
    assert!(kept.unwrap_err().to_string().contains("`leave` needs `per-connection 1`"));
}

/// A server that answers `n` requests, then resets every connection.
fn dies_after(n: u64) -> SocketAddr {
    let n_asked = Arc::new(AtomicU64::new(0));
    server(move |stream| {
        if n_asked.fetch_add(1, Ordering::Relaxed) < n {
            return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    })
}

#[test]
fn a_worker_gives_up_at_the_failure_that_it_was_told() {
    let record = against(dies_after(10), &[("connections", "1"), ("count", "100"), ("give-up", "3")]);
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (10, 3));
    assert!(record.complete);
}

#[test]
fn a_worker_of_an_open_load_gives_up_too() {
    let phases = Phases { measure_ns: Nanos::from_secs(20), warmup_max_ns: Nanos::ZERO, ..PHASES };
    let options = [("connections", "1"), ("rate", "1k"), ("give-up", "3")];
    let record = harness::run_against(&HttpOpen, phases, dies_after(10), &options).unwrap();
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (10, 3));
    assert!(record.complete && record.totals[count::SENT] >= 11, "{:?}", record.totals);
    assert!(record.measured_ns.1 < Nanos::from_secs(10), "it ends with the work: {:?}", record.measured_ns);
}

#[test]
fn failures_use_up_requests_so_that_a_counted_run_ends() {
    let record = against(dies_after(10), &[("connections", "1"), ("count", "14")]);
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ATTEMPTS]), (10, 14));
}

#[test]
fn a_counted_run_is_as_long_as_its_work() {
    let address = server_of(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let record = against(address, &[("connections", "1"), ("count", "5")]);
    let (from, to) = record.measured_ns;
    assert_eq!(from, Nanos::ZERO);
    // The measurement and the last interval end with the work, not when the engine has noticed the end.
    assert!(to > Nanos::ZERO && record.timeline.end_ns.last() == Some(&to), "{:?}", record.timeline.end_ns);
}
