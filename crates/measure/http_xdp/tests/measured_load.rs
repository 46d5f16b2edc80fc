//! Loads without sockets against a responder with sockets, in two namespaces with a veth between them; the responder counts too.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

mod odd_server;
mod wire;

use std::{
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use fathom_engine::{Error, Stop, StopFlag, TestKind as _, TrialContext};
use fathom_http::{Responder, ResponderOptions};
use fathom_http_xdp::HttpXdp;
use fathom_model::{Cause, Failure, PeerAddresses, Phases, Record, Role, Settings, Side, Stage, units::Nanos};
use fathom_sys::{
    clock,
    policy::{AllowedPeers, Policy},
};
use odd_server::Answers;
use wire::{CLIENT, SERVER, SERVER_DEVICE, Wire};

/// The requests over a socket before a load.
const N_ASKED: u64 = 3;

impl Wire {
    /// Runs a load against a responder at one of the server's addresses. Returns the record, and the requests that the responder counted.
    fn load(&self, at: &str, responder: &[(&str, &str)], given: &[(&str, &str)]) -> (Result<Record, Error>, u64) {
        let settings = |given: &[(&str, &str)]| {
            given.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value))
        };
        let options = ResponderOptions::read(&settings(responder), 7).unwrap();
        let address = SocketAddr::new(at.parse().unwrap(), 0);
        let responder =
            self.server.enter_with(|| Responder::bind(address, &AllowedPeers::anybody(), options).unwrap()).unwrap();
        let url = format!("http://{}/", responder.address());
        let settings = settings(given).with("url", url).complete(HttpXdp::Open.options()).unwrap();
        let stop = StopFlag::default();
        thread::scope(|scope| {
            let counts = scope.spawn(|| responder.run(&stop).unwrap());
            let outcome = self.client.enter_with(|| run(settings)).unwrap();
            stop.finish();
            assert_eq!(stop.state(), Stop::Finish);
            (outcome, counts.join().unwrap().requests)
        })
    }
}

impl Wire {
    /// Runs a load against a server that sends this text. Returns the record, and the requests that the server counted.
    fn odd_load(&self, text: &str, at: &str, given: &[(&str, &str)]) -> (Record, u64) {
        let closes = given.contains(&("per-connection", "1"));
        self.load_of(Answers { text, closes, n_max: u64::MAX }, at, given)
    }

    fn load_of(&self, answers: Answers<'_>, at: &str, given: &[(&str, &str)]) -> (Record, u64) {
        let listener =
            self.server.enter_with(|| TcpListener::bind(SocketAddr::new(at.parse().unwrap(), 0)).unwrap()).unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let settings = given.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        let settings = settings.with("url", url).with("connections", "4").complete(HttpXdp::Open.options()).unwrap();
        let stops = AtomicBool::new(false);
        thread::scope(|scope| {
            let served = scope.spawn(|| odd_server::serve(&listener, answers, &stops));
            let outcome = self.client.enter_with(|| run(settings)).unwrap();
            stops.store(true, Relaxed);
            let n_served = served.join().unwrap();
            (outcome.unwrap(), n_served)
        })
    }
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\n\r\nhello";

#[test]
fn answers_that_the_program_cannot_follow_are_followed_in_user_space() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    for at in SERVER {
        for (answer, given) in [
            (CHUNKED, &[][..]),
            (CHUNKED, &[("per-connection", "1")]),
            (CHUNKED, &[("rate", "1k")]),
            (CHUNKED, &[("xdp", "generic")]),
            (INTERIM, &[]),
            (UNTIL_CLOSE, &[("per-connection", "1")]),
        ] {
            let (record, n_served) = wire.odd_load(answer, at, given);
            check_books(&record, n_served);
            assert_eq!(record.totals["answered_by_slow_path"], record.totals["requests"], "{answer:?} {given:?}");
            assert!(record.notes.iter().any(|note| note.id == "slow-path"), "{answer:?}");
        }
    }
}

fn run(settings: Settings) -> Result<Record, Error> {
    let phases = Phases {
        warmup_max_ns: Nanos::from_millis(100),
        is_warmup_whole: true,
        measure_ns: Nanos::from_millis(400),
        interval_ns: Nanos::from_millis(50),
    };
    let kind = if settings.rate("rate").is_some() { HttpXdp::Open } else { HttpXdp::Closed };
    let role = Role {
        test: "load".to_owned(),
        kind: kind.name().to_owned(),
        side: Side::Initiator,
        settings,
        phases,
        address: None,
        interface: None,
        peer: fathom_model::Endpoints::new(),
        meeting: PeerAddresses::default(),
        cores: Vec::new(),
        seed: 7,
    };
    let test = kind.prepare(&role, &Policy::anything())?;
    test.run(&TrialContext::new(clock::now() + Nanos::from_millis(5), phases))
}

/// Every request that the server has counted is in the books: answered, in flight at the end, or before the load.
#[track_caller]
fn check_books(record: &Record, n_served: u64) {
    let answered = record.totals["requests"];
    assert!(answered > 100, "{:?}", record.totals);
    assert!(record.errors.iter().next().is_none(), "{:?}", record.errors);
    let [first_byte, last_byte] =
        ["first_byte_ns", "response_time_ns"].map(|name| record.distributions[name].quantile(0.5).unwrap());
    assert!(
        0 < first_byte && first_byte <= last_byte,
        "{first_byte} ns to the first byte, {last_byte} ns to the last one"
    );
    let n_ours = N_ASKED + record.totals["answered_before_start"] + answered;
    assert!((n_ours..=n_ours + record.totals["unfinished"]).contains(&n_served), "{n_served}: {:?}", record.totals);
}

#[test]
fn the_server_counts_the_requests_that_we_count() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    for at in SERVER {
        for given in [&[][..], &[("per-connection", "1")], &[("rate", "2k")]] {
            let (record, n_served) = wire.load(at, &[], given);
            check_books(&record.unwrap(), n_served);
        }
    }
}

#[test]
fn requests_at_a_rate_are_started_once_each() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    let (record, _) = wire.load(SERVER[0], &[], &[("rate", "1k"), ("connections", "8")]);
    let record = record.unwrap();
    assert_eq!(record.totals["sent"], record.totals["requests"] + record.totals["unfinished"]);
    assert_eq!(record.totals["answered_before_start"], 9, "one to try the program, and the first of each connection");
    assert_eq!(record.totals["sent"] + record.totals["not_started"], record.totals["intended"]);
}

/// A server that answers each connection after 20 ms, and gets three times as many requests as 32 connections can ask.
fn overload(wire: &Wire, at: &str) -> Record {
    let given = [("rate", "5k"), ("connections", "32"), ("timeout", "100ms")];
    wire.load(at, &[("delay", "20ms")], &given).0.unwrap()
}

#[test]
fn a_request_that_waited_for_a_connection_has_its_whole_timeout() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    let record = overload(&wire, SERVER[0]);
    let lag_max = record.distributions["schedule_lag_ns"].max().unwrap();
    assert!(lag_max > Nanos::from_millis(150).0, "no request waited for longer than the timeout: {lag_max} ns");
    assert!(record.errors.iter().next().is_none(), "{:?}", record.errors);
}

/// Every request that was due in the measured window has a latency; returns the number of those that were due in the whole trial.
#[track_caller]
fn check_omissions(record: &Record) -> u64 {
    let [response, lag] = ["response_time_ns", "schedule_lag_ns"].map(|name| &record.distributions[name]);
    assert!((1..record.totals["intended"]).contains(&lag.count()), "what was due in the warm-up does not count");
    assert_eq!(response.count(), lag.count(), "each has both: {:?}", record.totals);
    assert!(record.totals["not_started"] > 0, "{:?}", record.totals);
    assert!(response.max() >= lag.max(), "a request that never started waited from when it was due to the end");
    assert!(record.notes.iter().any(|note| note.id == "waited-in-vain"), "{:?}", record.notes);
    record.totals["intended"]
}

#[test]
fn requests_that_never_started_are_among_the_latencies_and_time_to_first_byte_is_from_the_send() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    let record = overload(&wire, SERVER[0]);
    assert_eq!(check_omissions(&record), record.totals["sent"] + record.totals["not_started"]);
    let [first_byte, response] = ["first_byte_ns", "response_time_ns"].map(|name| &record.distributions[name]);
    assert!(first_byte.count() < response.count(), "what has no answer has no first byte");
    let [first_byte, response] = [first_byte, response].map(|times| times.quantile(0.5).unwrap());
    assert!(first_byte < response / 2, "{first_byte} ns from the send, {response} ns from when it was due");
}

#[test]
fn requests_that_time_out_are_among_the_latencies() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    for at in SERVER {
        // The server falls silent in the middle of the measured window.
        let answers = Answers { text, closes: false, n_max: 8 + 200 };
        let (record, _) = wire.load_of(answers, at, &[("rate", "1k"), ("timeout", "50ms")]);
        check_omissions(&record);
        let timed_out = Failure { stage: Stage::Read, cause: Cause::Timeout };
        assert!(record.errors.iter().any(|(failure, n)| *failure == timed_out && *n >= 4), "{:?}", record.errors);
        let n_long = record.distributions["response_time_ns"].count_above(Nanos::from_millis(50).0);
        assert!(n_long >= 4, "{n_long} latencies of more than the timeout");
    }
}

#[test]
fn connections_from_addresses_that_nobody_has_are_answered() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    for (at, source) in [(SERVER[0], "198.18.0.64/28"), (SERVER[1], "fd00::100/120")] {
        let (record, n_served) = wire.load(at, &[], &[("source", source), ("connections", "300")]);
        check_books(&record.unwrap(), n_served);
    }
    for (taken, by) in [(SERVER[0], "answers for it"), (CLIENT[0], "this host has it itself")] {
        let (refused, _) = wire.load(SERVER[0], &[], &[("source", taken)]);
        let error = refused.map(|record| record.totals).unwrap_err().to_string();
        assert!(error.contains(&format!("{taken} belongs to somebody")) && error.contains(by), "{error}");
    }
}

#[test]
fn a_veth_whose_other_end_has_no_program_is_named() {
    let Some(mut wire) = Wire::up(SERVER_DEVICE) else { return };
    wire.pass = None;
    let (refused, _) = wire.load(SERVER[0], &[], &[]);
    let error = refused.map(|record| record.totals).unwrap_err();
    assert!(error.to_string().contains("has no XDP program"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--engine sockets")));
}

#[test]
fn a_server_with_other_statuses_is_counted_as_such() {
    let Some(wire) = Wire::up(SERVER_DEVICE) else { return };
    let (record, n_served) = wire.load(SERVER[0], &[("statuses", "404")], &[]);
    let record = record.unwrap();
    check_books(&record, n_served);
    assert_eq!(record.totals["status_2xx"], 0);
}
