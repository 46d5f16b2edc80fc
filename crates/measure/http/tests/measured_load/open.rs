//! The kind `http_open` over loopback: scheduled requests, and their outcome when the server does not keep up.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use crate::{
    common::{over_both, read_request},
    harness::{self, PHASES, role, server, server_of},
};
use fathom_engine::TestKind;
use fathom_http::{HttpClosed, HttpOpen, names};
use fathom_model::{
    Derivation, Histogram, Phases, Record, Side,
    names::{count, distribution},
    units::Nanos,
};
use fathom_sys::{clock, policy::Policy};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn both(options: &[(&str, &str)]) -> Record {
    harness::run_both_sides(&HttpOpen, options).0
}

/// Runs the initiator against any server for some time, all of which counts.
fn against(millis: u64, address: SocketAddr, options: &[(&str, &str)]) -> Record {
    let phases = Phases { warmup_max_ns: Nanos::ZERO, measure_ns: Nanos::from_millis(millis), ..PHASES };
    harness::run_against(&HttpOpen, phases, address, options).unwrap()
}

fn times<'a>(record: &'a Record, name: &str) -> &'a Histogram {
    &record.distributions[name]
}

fn quantile(record: &Record, name: &str, q: f64) -> Nanos {
    Nanos(times(record, name).quantile(q).unwrap())
}

over_both! {
    as_many_requests_are_started_as_the_rate_says
    a_number_of_requests_and_a_profile_are_gone_through_once
    every_metric_follows_from_what_is_recorded
    connections_are_opened_as_they_are_needed
    a_stall_is_felt_by_all_requests_that_were_due_and_by_one_of_a_closed_loop
    response_time_is_lag_and_service_time_together
    cheap_pacing_lets_requests_leave_together_and_counts_from_their_times
    what_an_overloaded_server_never_got_is_counted_and_enters_the_response_time
    a_request_that_is_never_answered_counts_with_the_time_that_it_was_waited_for
    a_server_that_closes_idle_connections_is_no_error
    a_schedule_that_cannot_be_kept_is_refused_before_the_start
}

fn as_many_requests_are_started_as_the_rate_says() {
    for threads in ["1", "3"] {
        for arrivals in ["constant", "poisson"] {
            let options = [("rate", "2k"), ("threads", threads), ("arrivals", arrivals), ("connections", "30")];
            let record = both(&options);
            let due = record.totals[count::INTENDED];
            // 200 ms at 2000 per second; four standard deviations of a Poisson process more or less.
            assert!(due.abs_diff(400) < 90, "{options:?}: {due}");
            let started = record.totals[count::REQUESTS] + record.totals[names::UNFINISHED];
            assert_eq!(started + record.totals[names::NOT_STARTED], due);
            assert_eq!(record.totals[names::ERRORS], 0, "{:?}", record.errors);
        }
    }
}

fn a_number_of_requests_and_a_profile_are_gone_through_once() {
    let record = both(&[("rate", "5k"), ("count", "301"), ("threads", "2")]);
    assert_eq!((record.totals[count::REQUESTS], record.totals[count::INTENDED]), (301, 301));
    assert_eq!(times(&record, distribution::RESPONSE_TIME).count(), 301);
    assert_eq!(times(&record, distribution::SCHEDULE_LAG).count(), 301);
    let record = both(&[("profile", "1k:50ms,0-4k:50ms"), ("threads", "2")]);
    assert_eq!(record.totals[count::REQUESTS], 150);
    assert!(record.complete);
}

fn every_metric_follows_from_what_is_recorded() {
    let record = both(&[("rate", "1k"), ("count", "10")]);
    for metric in HttpOpen.metrics() {
        let is_recorded = match &metric.from {
            Derivation::Quantile { distribution, .. } => record.distributions.contains_key(&**distribution),
            Derivation::Rate { counter, .. } => record.timeline.counters.contains_key(&**counter),
            Derivation::Total { counter, .. } | Derivation::Cost { counter, .. } => {
                record.totals.contains_key(&**counter)
            }
            Derivation::Share { part, whole } | Derivation::Missing { sent: part, arrived: whole } => {
                record.totals.contains_key(&*part.1) && record.totals.contains_key(&*whole.1)
            }
            other => panic!("nothing about requests follows by {other:?}"),
        };
        assert!(is_recorded, "{}", metric.name);
    }
}

fn connections_are_opened_as_they_are_needed() {
    // One would be enough; a busy machine may be late several times in a row.
    let record = against(100, server_of(OK), &[("rate", "100"), ("connections", "50")]);
    assert!(record.totals[count::CONNECTIONS] < 10, "{}", record.totals[count::CONNECTIONS]);
    let slow = server(|stream| {
        clock::sleep_until(clock::now() + Nanos::from_millis(50));
        stream.write_all(OK)
    });
    let record = against(200, slow, &[("rate", "200"), ("connections", "50")]);
    // Each request keeps its connection busy for 50 ms: ten at a time.
    assert!((10..=45).contains(&record.totals[count::CONNECTIONS]), "{}", record.totals[count::CONNECTIONS]);
}

fn a_stall_is_felt_by_all_requests_that_were_due_and_by_one_of_a_closed_loop() {
    // One request in the middle takes 200 ms, and on a single connection all others wait for it.
    let stalling = || {
        let n_asked = Arc::new(AtomicU64::new(0));
        server(move |stream| {
            if n_asked.fetch_add(1, Ordering::Relaxed) == 200 {
                clock::sleep_until(clock::now() + Nanos::from_millis(200));
            }
            stream.write_all(OK)
        })
    };
    let options = [("rate", "1k"), ("connections", "1")];
    let open = against(600, stalling(), &options);
    let (response, service) = (times(&open, distribution::RESPONSE_TIME), times(&open, distribution::SERVICE_TIME));
    assert_eq!(response.count(), open.totals[count::INTENDED]);
    // Requests are due every millisecond, so 100 of them waited for 100 ms and longer, and one was served that slowly. A busy
    // machine may stall by itself, which affects both.
    let felt = response.count_above(100_000_000);
    assert!(felt >= 95, "{felt} felt it");
    assert!((1..10).contains(&service.count_above(100_000_000)), "{}", service.count_above(100_000_000));
    assert!(open.totals[count::LATE_NO_CONNECTION] >= 190, "{:?}", open.totals);
    let phases = Phases { warmup_max_ns: Nanos::ZERO, measure_ns: Nanos::from_millis(600), ..PHASES };
    let closed = harness::run_against(&HttpClosed, phases, stalling(), &options[1..]).unwrap();
    assert!((1..10).contains(&times(&closed, distribution::SERVICE_TIME).count_above(100_000_000)));
}

fn response_time_is_lag_and_service_time_together() {
    let record = against(300, server_of(OK), &[("rate", "1k"), ("count", "300"), ("connections", "2")]);
    let mean = |name: &str| times(&record, name).mean().unwrap();
    let sum = mean(distribution::SCHEDULE_LAG) + mean(distribution::SERVICE_TIME);
    assert!((mean(distribution::RESPONSE_TIME) - sum).abs() < 1.0, "{sum}");
}

fn cheap_pacing_lets_requests_leave_together_and_counts_from_their_times() {
    let options = [("rate", "10k"), ("count", "1000"), ("connections", "100"), ("pacing", "cheap")];
    let record = against(300, server_of(OK), &options);
    let mean = |name: &str| times(&record, name).mean().unwrap();
    // At least a millisecond passes between two checks, so requests due within it wait for half of that on average.
    let lag = mean(distribution::SCHEDULE_LAG);
    assert!(lag > 400_000.0, "{lag}");
    assert!((mean(distribution::RESPONSE_TIME) - lag - mean(distribution::SERVICE_TIME)).abs() < 1.0);
    assert_eq!(record.totals[count::REQUESTS], 1000);
    let note = record.notes.iter().find(|note| note.id == "pacing").unwrap();
    assert!(note.text.contains("(p50)") && note.text.contains("(p99)"), "{}", note.text);
}

fn what_an_overloaded_server_never_got_is_counted_and_enters_the_response_time() {
    let slow = server(|stream| {
        clock::sleep_until(clock::now() + Nanos::from_millis(20));
        stream.write_all(OK)
    });
    let record = against(400, slow, &[("rate", "1k"), ("connections", "2")]);
    let (due, waiting) = (record.totals[count::INTENDED], record.totals[names::NOT_STARTED]);
    assert!(due >= 390 && waiting * 10 > due * 8, "of {due} {waiting} were not started");
    assert_eq!(times(&record, distribution::RESPONSE_TIME).count(), due);
    // Half of the requests were due in the first half of the time and were never served.
    assert!(quantile(&record, distribution::RESPONSE_TIME, 0.5) > Nanos::from_millis(150));
    assert!(quantile(&record, distribution::SERVICE_TIME, 0.5) < Nanos::from_millis(60));
    assert!(record.notes.iter().any(|note| note.id == "waited-in-vain"), "{:?}", record.notes);
    assert!(record.complete);
}

fn a_request_that_is_never_answered_counts_with_the_time_that_it_was_waited_for() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = [("rate", "100"), ("connections", "100"), ("timeout", "100ms")];
    let record = against(300, silent.local_addr().unwrap(), &options);
    assert_eq!(record.totals[count::REQUESTS], 0);
    assert!(record.errors["read: timeout"] > 0 && record.errors.len() == 1, "{:?}", record.errors);
    assert_eq!(times(&record, distribution::RESPONSE_TIME).count(), record.totals[count::INTENDED]);
    assert!(quantile(&record, distribution::RESPONSE_TIME, 0.0) >= Nanos::from_millis(90));
}

fn a_server_that_closes_idle_connections_is_no_error() {
    const N: u64 = 20;
    const CONNECTIONS: u64 = 5;
    let (told, crossed) = mpsc::channel();
    let address = server(move |stream| {
        stream.write_all(OK)?;
        // The last answer may end the trial, which resets the connection.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // A delayed client may have sent another request before it saw the end; only the server knows that.
        let _ = told.send(read_request(stream).is_some());
        Err(std::io::ErrorKind::Other.into())
    });
    let options = [("rate", "100"), ("count", &N.to_string()), ("connections", &CONNECTIONS.to_string())];
    let record = against(200, address, &options);
    let (n_answered, n_failed) = (record.totals[count::REQUESTS], record.totals[names::ERRORS]);
    assert_eq!(n_answered + n_failed, N);
    let n_crossed = (0..n_answered).filter(|_| crossed.recv().unwrap()).count();
    assert_eq!(usize::try_from(n_failed), Ok(n_crossed), "{:?}", record.errors);
    // The closes after the last answers may arrive after the load is over.
    assert!(record.totals[names::CLOSED_BY_SERVER] + CONNECTIONS >= n_answered - n_failed, "{:?}", record.totals);
}

fn a_schedule_that_cannot_be_kept_is_refused_before_the_start() {
    let refused = |options: &[(&str, &str)]| {
        let options = [options, &[("url", "http://127.0.0.1")]].concat();
        HttpOpen
            .prepare(&role(&HttpOpen, Side::Initiator, &options), &Policy::anything())
            .err()
            .map(|error| error.to_string())
            .unwrap()
    };
    assert!(refused(&[]).contains("no rate is given"));
    assert!(refused(&[("rate", "0")]).starts_with("option `rate` takes the requests per second"));
    assert!(refused(&[("rate", "11M")]).contains("at most 10M"));
    assert!(refused(&[("rate", "1k"), ("profile", "1k:1s")]).contains("together with a profile"));
    assert!(refused(&[("profile", "1k")]).contains("`1k` is neither a step"));
}
