//! Both sides of every kind in one process, over the loopback.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Mutex, PoisonError},
    thread,
};

use fathom_engine::{Error, Session, Stop, StopFlag, Test, find};
use fathom_model::{Phases, Record, Role, Settings, Side, names::count, units::Nanos};
use fathom_sys::clock;
use fathom_transport::KINDS;

/// Trials that compete for the cores would measure each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What both sides recorded.
struct Trial {
    initiator: Record,
    responder: Record,
}

fn role(kind: &str, side: Side, settings: &Settings) -> Role {
    Role {
        test: "test".to_owned(),
        kind: kind.to_owned(),
        side,
        settings: settings.complete(find(KINDS, kind).unwrap().options()).unwrap(),
        phases: Phases {
            warmup_max_ns: Nanos::from_millis(100),
            measure_ns: Nanos::from_millis(300),
            interval_ns: Nanos::from_millis(100),
        },
        address: Some(Ipv4Addr::LOCALHOST.into()),
        interface: None,
        peer: BTreeMap::new(),
        cores: Vec::new(),
        seed: 42,
    }
}

fn prepare(kind: &str, options: &[(&str, &str)]) -> Result<[Box<dyn Test>; 2], Error> {
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    let found = find(KINDS, kind).unwrap();
    let responder = found.prepare(&role(kind, Side::Responder, &settings))?;
    let mut asks = role(kind, Side::Initiator, &settings);
    asks.peer = responder.endpoints();
    Ok([found.prepare(&asks)?, responder])
}

fn sessions(kind: &str) -> [Session; 2] {
    let phases = role(kind, Side::Initiator, &Settings::default()).phases;
    let start = clock::now() + Nanos::from_millis(20);
    [Session::new(start, phases), Session::new(start, phases)]
}

/// Options with what a kind cannot do without.
fn needed<'a>(kind: &str, options: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let rate = kind.ends_with("_open").then_some(("rate", "1k"));
    options.iter().copied().chain(rate).collect()
}

/// Runs a trial as an agent would: the responder is told to finish when the initiator has come back.
fn run(kind: &str, options: &[(&str, &str)]) -> Trial {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let [initiator, responder] = prepare(kind, options).unwrap();
    let [asks, answers] = sessions(kind);
    thread::scope(|scope| {
        let finish = answers.stop.clone();
        let responder = scope.spawn(move || responder.run(&answers).unwrap());
        let initiator = initiator.run(&asks).unwrap();
        finish.finish();
        Trial { initiator, responder: responder.join().unwrap() }
    })
}

fn total(record: &Record, name: &str) -> u64 {
    *record.totals.get(name).unwrap_or_else(|| panic!("no total `{name}` in {:?}", record.totals))
}

fn assert_clean(trial: &Trial) {
    for record in [&trial.initiator, &trial.responder] {
        let ended = record.timeline.end_ns.last();
        assert!(record.complete, "{:?} measured {:?}, ended {ended:?}", record.side, record.measured_ns);
        assert!(record.errors.is_empty(), "{:?} {:?}", record.side, record.errors);
        assert!(record.cpu_ns > Nanos::ZERO);
    }
}

#[test]
fn all_that_a_stream_sent_was_received_in_either_direction() {
    for flows in ["1", "3"] {
        for (kind, is_down) in [("tcp_stream", false), ("tcp_stream_down", true)] {
            let trial = run(kind, &[("flows", flows)]);
            assert_clean(&trial);
            let (sender, receiver) =
                if is_down { (&trial.responder, &trial.initiator) } else { (&trial.initiator, &trial.responder) };
            let sent = total(sender, count::BYTES_SENT);
            assert_eq!(sent, total(receiver, count::BYTES_RECEIVED), "{kind} with {flows} flows");
            assert!(sent > 10_000_000, "{sent} bytes in 300 ms");
            assert_eq!(receiver.timeline.counters[count::BYTES_RECEIVED].iter().sum::<u64>(), sent);
            assert_eq!(sender.flows.len().to_string(), flows);
            let acked: u64 = sender.flows.iter().map(|flow| flow.samples.last().unwrap().values["bytes_acked"]).sum();
            // The kernel counts the FIN, and on the connecting side the SYN, as one byte each.
            assert!((sent..=sent + 2 * 3).contains(&acked), "{acked} of {sent} acknowledged");
        }
    }
}

#[test]
fn both_directions_stream_at_once_and_all_that_was_sent_is_received() {
    let trial = run("tcp_stream_both", &[("flows", "2")]);
    assert_clean(&trial);
    for (sender, receiver) in [(&trial.initiator, &trial.responder), (&trial.responder, &trial.initiator)] {
        let sent = total(sender, count::BYTES_SENT);
        assert!(sent > 10_000_000, "{sent} bytes in 300 ms");
        assert_eq!(sent, total(receiver, count::BYTES_RECEIVED));
        let last = |name: &str| -> Vec<_> {
            sender.flows.iter().filter_map(|flow| flow.samples.last()?.values.get(name).copied()).collect()
        };
        let (out, back) = (last("payload_bytes_sent"), last("payload_bytes_received"));
        assert_eq!((out.len(), back.len()), (2, 2), "two flows each way");
        assert_eq!(out.iter().sum::<u64>(), sent);
        assert_eq!(back.iter().sum::<u64>(), total(sender, count::BYTES_RECEIVED));
    }
}

#[test]
fn what_each_flow_carried_is_known_at_every_sample() {
    let trial = run("tcp_stream", &[("flows", "3")]);
    for (record, name) in [(&trial.initiator, "payload_bytes_sent"), (&trial.responder, "payload_bytes_received")] {
        let mut sum = 0;
        for flow in &record.flows {
            let counts: Vec<u64> = flow.samples.iter().map(|sample| sample.values[name]).collect();
            assert!(counts.len() > 2 && counts.is_sorted() && counts[0] < counts[counts.len() - 1], "{counts:?}");
            sum += counts[counts.len() - 1];
        }
        assert_eq!(sum, total(&trial.initiator, count::BYTES_SENT), "{name}");
    }
}

#[test]
fn every_way_to_send_and_to_receive_carries_the_same_bytes() {
    for send in ["copy", "sendfile", "zerocopy"] {
        for receive in ["copy", "truncate"] {
            let trial = run("tcp_stream", &[("send", send), ("receive", receive)]);
            assert_clean(&trial);
            let sent = total(&trial.initiator, count::BYTES_SENT);
            assert!(sent > 10_000_000, "{sent} bytes with {send}, {receive}");
            assert_eq!(sent, total(&trial.responder, count::BYTES_RECEIVED));
            let has = |record: &Record, id: &str| record.notes.iter().any(|note| note.id == id);
            // Every packet to the own host is copied: that the kernel says so shows that it was asked for no copy.
            assert_eq!(has(&trial.initiator, "zerocopy-copied"), send == "zerocopy", "{:?}", trial.initiator.notes);
            assert_eq!(has(&trial.responder, "receive-truncated"), receive == "truncate");
        }
    }
}

#[test]
fn a_number_of_bytes_is_kept_exactly_and_ends_the_trial() {
    for (kind, n_ways) in [("tcp_stream", 1), ("tcp_stream_down", 1), ("tcp_stream_both", 2)] {
        let trial = run(kind, &[("bytes", "10000001"), ("flows", "3")]);
        assert_clean(&trial);
        let sum = |name: &str| {
            [&trial.initiator, &trial.responder].iter().filter_map(|record| record.totals.get(name)).sum::<u64>()
        };
        assert_eq!((sum(count::BYTES_SENT), sum(count::BYTES_RECEIVED)), (10_000_001 * n_ways, 10_000_001 * n_ways));
        for record in [&trial.initiator, &trial.responder] {
            assert!(record.notes.iter().all(|note| note.id != "bytes-unsent"), "{:?}", record.notes);
            let ended = record.timeline.end_ns.last().copied().unwrap();
            assert_eq!(record.measured_ns.1, ended, "the measured part ends with the last byte");
        }
    }
    let trial = run("tcp_stream", &[("bytes", "100MB"), ("rate", "8M")]);
    assert_clean(&trial);
    let note = trial.initiator.notes.iter().find(|note| note.id == "bytes-unsent").unwrap();
    assert!(note.text.starts_with("the time was over before all was sent"), "{}", note.text);
}

#[test]
fn as_many_flows_as_queues_are_agreed_upon_by_the_responder() {
    let trial = run("tcp_stream", &[("flows", "queues"), ("rate", "80M")]);
    assert_clean(&trial);
    let cores = thread::available_parallelism().unwrap().get();
    assert_eq!((trial.initiator.flows.len(), trial.responder.flows.len()), (cores, cores), "no interface was named");
}

#[test]
fn values_that_no_flow_could_keep_are_refused() {
    let refusal = |kind: &str, options: &[(&str, &str)]| prepare(kind, options).err().unwrap().to_string();
    let refused = refusal("tcp_stream", &[("rate", "4bps")]);
    assert_eq!(refused, "option `rate` takes at least a byte per second and flow, not `4.00 bit/s`");
    let refused = refusal("tcp_stream", &[("bytes", "2"), ("flows", "3")]);
    assert_eq!(refused, "option `bytes` takes at least a byte per flow, not `2 B`");
    let refused = refusal("tcp_stream", &[("write", "17MiB")]);
    assert_eq!(refused, "option `write` takes 1 B to 16 MiB, not `17 MiB`");
    let refused = refusal("tcp_stream_both", &[("port", "65535")]);
    assert!(refused.contains("a port below 65535"), "{refused}");
}

#[test]
fn a_stream_keeps_to_the_rate_that_was_asked() {
    let trial = run("tcp_stream", &[("rate", "80M"), ("write", "8KiB"), ("receive", "truncate")]);
    assert_clean(&trial);
    let (from, to) = trial.initiator.measured_ns;
    let (bytes, span) = trial.responder.timeline.growth(count::BYTES_RECEIVED, from, to).unwrap();
    let rate = fathom_model::units::Bytes(bytes) / span;
    assert!(rate.is_some_and(|rate| (60e6..100e6).contains(&rate.get())), "{rate:?}");
    assert_eq!(trial.responder.notes[0].id, "receive-truncated");
}

#[test]
fn the_kernel_paces_every_flow_to_its_share() {
    let trial = run("tcp_stream", &[("pacing", "80M"), ("flows", "2")]);
    assert_clean(&trial);
    for flow in &trial.initiator.flows {
        let paced = flow.samples.last().unwrap().values["pacing_rate_bps"];
        assert_eq!(paced, 40_000_000, "SO_MAX_PACING_RATE bounds what TCP_INFO tells");
    }
}

#[test]
fn every_transaction_is_counted_by_both_sides_and_timed() {
    let cases: &[&[(&str, &str)]] = &[
        &[("flows", "1")],
        &[("flows", "2"), ("workers", "2"), ("request", "64:3,9000:1"), ("response", "1,100000")],
        &[("flows", "50"), ("request", "100"), ("response", "20000"), ("workers", "2")],
        &[("flows", "50"), ("request", "100"), ("response", "20000"), ("workers", "2"), ("reactor", "epoll")],
        &[("flows", "3"), ("request", "400000"), ("workers", "1")],
        &[("flows", "3"), ("request", "400000"), ("workers", "1"), ("reactor", "epoll")],
        &[("flows", "20"), ("workers", "1"), ("burst", "16")],
        &[("flows", "20"), ("workers", "1"), ("burst", "16"), ("reactor", "epoll")],
        &[("flows", "4"), ("workers", "2"), ("burst", "5"), ("request", "1:2,700:1"), ("response", "3,40000")],
        &[("flows", "1"), ("burst", "100"), ("request", "2000"), ("response", "2000")],
        &[("flows", "40"), ("workers", "3"), ("ports", "7"), ("reactor", "epoll")],
    ];
    for options in cases {
        let trial = run("tcp_rr", options);
        assert_clean(&trial);
        let asked = total(&trial.initiator, count::TRANSACTIONS);
        assert_eq!(asked, total(&trial.responder, count::TRANSACTIONS), "{options:?}");
        assert!(asked > 100, "{asked} transactions, {options:?}");
        let times = &trial.initiator.distributions["service_time_ns"];
        assert!((1..=asked).contains(&times.count()), "{} of {asked} timed", times.count());
        assert!(times.min().unwrap() > 1_000 && times.max().unwrap() < 1_000_000_000);
        let flows: u64 = options[0].1.parse().unwrap();
        assert_eq!(trial.initiator.distributions["connect_time_ns"].count(), flows);
        assert_eq!(u64::try_from(trial.initiator.flows.len()).unwrap(), flows);
        // What the responder accepts after the start is served, but not sampled.
        assert!(u64::try_from(trial.responder.flows.len()).unwrap() <= flows);
    }
}

#[test]
fn a_flow_that_spins_counts_as_one_that_sleeps_and_says_so() {
    let trial = run("tcp_rr", &[("flows", "1"), ("spin", "true")]);
    assert_clean(&trial);
    // On a machine whose cores are all wanted, spinning may leave the other side little time.
    let asked = total(&trial.initiator, count::TRANSACTIONS);
    assert!(asked > 0 && asked == total(&trial.responder, count::TRANSACTIONS), "{asked}");
    assert!(trial.initiator.notes.iter().any(|note| note.id == "spin"));
}

#[test]
fn spinning_with_several_flows_per_worker_is_refused() {
    let refused = prepare("tcp_rr", &[("flows", "5"), ("workers", "2"), ("spin", "true")]).err().unwrap();
    assert!(refused.hint().unwrap().starts_with("set --workers 5"), "{refused}");
}

#[test]
fn an_open_load_keeps_its_rate_and_divides_response_time_into_lag_and_service() {
    for arrivals in ["constant", "poisson"] {
        for reactor in ["auto", "epoll"] {
            let options = [("rate", "4k"), ("arrivals", arrivals), ("flows", "16"), ("reactor", reactor)];
            let trial = run("tcp_rr_open", &options);
            assert_clean(&trial);
            let [intended, sent, done] =
                [count::INTENDED, count::SENT, count::TRANSACTIONS].map(|name| total(&trial.initiator, name));
            assert!(intended > 600 && intended < 4000, "{intended} intended in about 0.4 s");
            assert_eq!(intended, sent + total(&trial.initiator, "not_started"));
            assert_eq!(sent, done + total(&trial.initiator, "unfinished"));
            assert_eq!(done, total(&trial.responder, count::TRANSACTIONS));
            let [response, service, lag] = ["response_time_ns", "service_time_ns", "schedule_lag_ns"]
                .map(|name| trial.initiator.distributions[name].clone());
            assert!(response.count() > 300 && response.count() == lag.count(), "{} {}", response.count(), lag.count());
            assert!(response.quantile(0.5) >= service.quantile(0.5));
        }
    }
}

#[test]
fn an_open_load_that_one_flow_cannot_carry_shows_what_users_would_wait() {
    let trial = run("tcp_rr_open", &[("rate", "1M"), ("flows", "1"), ("response", "100000")]);
    let [intended, sent] = [count::INTENDED, count::SENT].map(|name| total(&trial.initiator, name));
    assert!(sent < intended / 2, "{sent} of {intended}");
    assert_eq!(intended, sent + total(&trial.initiator, "not_started"));
    let response = &trial.initiator.distributions["response_time_ns"];
    assert!(response.quantile(0.5).unwrap() > 50_000_000, "{:?}", response.quantile(0.5));
    assert!(trial.initiator.notes.iter().any(|note| note.id == "lower-bounds"));
}

#[test]
fn every_connection_is_opened_used_and_closed_on_both_sides() {
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("tcp_crr", &[("flows", "1")]),
        ("tcp_crr", &[("flows", "1"), ("close", "reset"), ("request", "1:3,70000:1"), ("response", "1,100000")]),
        ("tcp_crr", &[("flows", "16"), ("workers", "2"), ("response", "100000")]),
        ("tcp_crr", &[("flows", "16"), ("workers", "2"), ("request", "1:3,70000:1"), ("response", "1,100000")]),
        ("tcp_crr", &[("flows", "4"), ("workers", "1"), ("close", "reset"), ("response", "64")]),
        ("tcp_crr", &[("flows", "8"), ("workers", "2"), ("ports", "5"), ("source", "127.0.0.8/29,127.0.1.1")]),
        ("tcp_cc", &[("flows", "1")]),
        ("tcp_cc", &[("flows", "1"), ("close", "reset")]),
        ("tcp_cc", &[("flows", "16"), ("workers", "2")]),
        ("tcp_cc", &[("flows", "16"), ("workers", "2"), ("close", "reset")]),
    ];
    for (kind, options) in cases {
        let trial = run(kind, options);
        assert_clean(&trial);
        let called = total(&trial.initiator, count::TRANSACTIONS);
        assert_eq!(called, total(&trial.responder, count::TRANSACTIONS), "{kind} {options:?}");
        assert_eq!(total(&trial.initiator, count::CONNECTIONS), total(&trial.responder, count::CONNECTIONS));
        assert!(called > 100, "{called} connections, {options:?}");
        let [connect, service] = ["connect_time_ns", "service_time_ns"]
            .map(|name| trial.initiator.distributions[name].quantile(0.5).unwrap());
        assert!(connect < service, "{connect} ns to connect, {service} ns in all");
    }
}

#[test]
fn every_request_in_a_datagram_is_answered_lost_or_unfinished() {
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("udp_rr", &[("flows", "1")]),
        ("udp_rr", &[("flows", "1"), ("spin", "true")]),
        ("udp_rr", &[("flows", "20"), ("workers", "2"), ("request", "8:3,1400:1"), ("response", "100,65507")]),
        ("udp_rr_open", &[("flows", "20"), ("workers", "2"), ("rate", "3k"), ("arrivals", "poisson")]),
    ];
    for (kind, options) in cases {
        let trial = run(kind, options);
        assert!(trial.initiator.errors.is_empty() && trial.responder.errors.is_empty(), "{:?}", trial.initiator.errors);
        let of = |name| total(&trial.initiator, name);
        assert_eq!(of(count::SENT), of(count::TRANSACTIONS) + of("lost") + of("unfinished"), "{kind} {options:?}");
        assert!(of(count::TRANSACTIONS) > 0);
        let answered = total(&trial.responder, count::TRANSACTIONS);
        assert!((of(count::TRANSACTIONS)..=of(count::SENT)).contains(&answered), "{answered}");
        assert_eq!(of("strangers") + total(&trial.responder, "strangers"), 0);
        assert!(trial.initiator.distributions["service_time_ns"].count() > 0);
    }
}

/// An initiator against a UDP socket of the test, which does something with each datagram until told.
fn against_datagrams(options: &[(&str, &str)], mut each: impl FnMut(&UdpSocket, &[u8], SocketAddr) + Send) -> Record {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Nanos::from_millis(10).as_duration())).unwrap();
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    let mut asks = role("udp_rr", Side::Initiator, &settings);
    asks.address = Some(Ipv6Addr::LOCALHOST.into());
    asks.peer = BTreeMap::from([("address".to_owned(), socket.local_addr().unwrap().to_string())]);
    let stop = StopFlag::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut room = [0; 2000];
            while stop.told() == Stop::GoOn {
                if let Ok((length, from)) = socket.recv_from(&mut room) {
                    each(&socket, &room[..length], from);
                }
            }
        });
        let prepared = find(KINDS, "udp_rr").unwrap().prepare(&asks).unwrap();
        let session = Session::new(clock::now() + Nanos::from_millis(20), asks.phases);
        let record = prepared.run(&session).unwrap();
        stop.finish();
        record
    })
}

#[test]
fn lost_and_late_answers_are_counted_and_stall_no_flow() {
    for options in [[("flows", "1"), ("timeout", "5ms")], [("flows", "4"), ("timeout", "5ms")]] {
        let mut n = 0;
        let record = against_datagrams(&options, |socket, request, from| {
            n += 1;
            match n % 3 {
                // Nobody answers.
                0 => {}
                // Twice.
                1 => (0..2).for_each(|_| assert_eq!(socket.send_to(request, from).unwrap(), request.len())),
                _ => assert_eq!(socket.send_to(request, from).unwrap(), request.len()),
            }
        });
        let of = |name| total(&record, name);
        assert_eq!(of(count::SENT), of(count::TRANSACTIONS) + of("lost") + of("unfinished"));
        assert!(of("lost") > 5 && of(count::TRANSACTIONS) > 10 && of("late") > 5, "{:?}", record.totals);
        assert!(record.errors.is_empty(), "{:?}", record.errors);
    }
}

#[test]
fn datagrams_of_strangers_and_answers_of_the_wrong_size_are_told_apart() {
    let record = against_datagrams(&[("flows", "2"), ("timeout", "20ms")], |socket, request, from| {
        socket.send_to(b"who are you, and what do you want?", from).unwrap();
        socket.send_to(&[request, b"more"].concat(), from).unwrap();
    });
    assert!(total(&record, "strangers") > 2 && total(&record, count::TRANSACTIONS) == 0, "{:?}", record.totals);
    assert!(record.errors.contains_key("recv: not the message that was due"), "{:?}", record.errors);
}

#[test]
fn nobody_at_the_port_is_an_error_and_every_request_is_lost() {
    let gone = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut asks = role("udp_rr", Side::Initiator, &Settings::default().with("timeout", "10ms"));
    asks.peer = BTreeMap::from([("address".to_owned(), gone.to_string())]);
    let prepared = find(KINDS, "udp_rr").unwrap().prepare(&asks).unwrap();
    let record = prepared.run(&Session::new(clock::now(), asks.phases)).unwrap();
    assert!(total(&record, "lost") > 0 && total(&record, count::TRANSACTIONS) == 0, "{:?}", record.totals);
    assert!(record.errors.keys().any(|cause| cause.ends_with("connection refused")), "{:?}", record.errors);
    assert!(!record.complete);
}

#[test]
fn datagrams_sent_are_received_or_known_to_be_dropped() {
    for options in [
        [("size", "1400"), ("flows", "1"), ("batch", "32")],
        [("size", "18"), ("flows", "2"), ("batch", "64")],
        [("size", "65507"), ("flows", "1"), ("batch", "1")],
    ] {
        let trial = run("udp_stream", &options);
        assert_clean(&trial);
        let received = total(&trial.responder, count::RECEIVED);
        let dropped = total(&trial.responder, count::SOCKET_DROPPED);
        let late = total(&trial.responder, "late");
        assert_eq!(late + total(&trial.responder, "strangers") + total(&trial.responder, count::DUPLICATES), 0);
        assert_eq!(received + dropped, total(&trial.initiator, count::SENT), "{options:?}");
        assert!(received > 1000, "{received} received, {options:?}");
        assert!(!trial.responder.totals.contains_key(count::JITTER_NS), "jitter without a schedule means nothing");
    }
}

#[test]
fn paced_datagrams_leave_at_the_rate_that_was_asked() {
    let trial = run("udp_stream", &[("pps", "2k"), ("size", "200")]);
    assert_clean(&trial);
    let sent = total(&trial.initiator, count::SENT);
    let dropped = total(&trial.responder, count::SOCKET_DROPPED);
    assert_eq!(sent, total(&trial.responder, count::RECEIVED) + dropped);
    assert_eq!(total(&trial.responder, count::REORDERED), 0);
    let intended = total(&trial.initiator, count::INTENDED);
    assert!(
        intended - sent <= 1 + total(&trial.initiator, count::SCHEDULE_LAG_NS_MAX) / 500_000,
        "{sent} of {intended}"
    );
    let elapsed = trial.initiator.timeline.end_ns.last().unwrap().as_secs_f64();
    assert!(
        (150.0..=2_000.0 * elapsed + 11.0).contains(&fathom_model::units::approximate(sent)),
        "{sent} in {elapsed} s"
    );
    assert!(total(&trial.responder, count::JITTER_NS) < 100_000_000);
}

#[test]
fn an_abort_ends_both_sides_quickly_and_leaves_incomplete_records() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for kind in KINDS {
        let [initiator, responder] = prepare(kind.name(), &needed(kind.name(), &[("flows", "2")])).unwrap();
        let [asks, answers] = sessions(kind.name()).map(|session| Session {
            phases: Phases { measure_ns: Nanos::from_secs(20), ..session.phases },
            ..session
        });
        let stops: [StopFlag; 2] = [asks.stop.clone(), answers.stop.clone()];
        thread::scope(|scope| {
            let sides = [scope.spawn(move || initiator.run(&asks)), scope.spawn(move || responder.run(&answers))];
            clock::sleep_until(clock::now() + Nanos::from_millis(150));
            let begin = clock::now();
            stops.iter().for_each(StopFlag::abort);
            for side in sides {
                let record = side.join().unwrap().unwrap();
                assert!(!record.complete, "{}, {:?}", kind.name(), record.side);
            }
            let took = clock::now() - begin;
            assert!(took < Nanos::from_millis(150), "{} took {took}", kind.name());
        });
    }
}

/// Plays an initiator against something that is no responder of ours, which is told when to go away.
fn against(kind: &str, options: &[(&str, &str)], serve: impl FnOnce(&TcpListener, &StopFlag) + Send) -> Record {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let options = needed(kind, options);
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    let mut asks = role(kind, Side::Initiator, &settings);
    asks.peer = BTreeMap::from([("address".to_owned(), listener.local_addr().unwrap().to_string())]);
    let stop = StopFlag::default();
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &stop));
        let phases = Phases { measure_ns: Nanos::from_millis(1300), ..asks.phases };
        let prepared = find(KINDS, kind).unwrap().prepare(&asks);
        let begin = clock::now();
        let session = Session::new(begin + Nanos::from_millis(20), phases);
        let record = prepared.unwrap().run(&session).unwrap();
        let took = clock::now() - begin;
        stop.finish();
        assert!(took < Nanos::from_secs(4), "{kind} with {options:?} took {took}");
        record
    })
}

/// Accepts whatever comes until it is told to go, and does something with each connection.
fn accept_all(listener: &TcpListener, stop: &StopFlag, mut each: impl FnMut(&mut TcpStream) -> bool) {
    let mut open: Vec<TcpStream> = Vec::new();
    while stop.told() == Stop::GoOn {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            open.push(stream);
        }
        open.retain_mut(&mut each);
        thread::yield_now();
    }
}

/// One way of each engine: blocking, `io_uring` or what there is, epoll.
const ENGINES: &[&[(&str, &str)]] = &[&[("flows", "1")], &[("flows", "3"), ("workers", "1")], EPOLL];
const EPOLL: &[(&str, &str)] = &[("flows", "3"), ("workers", "1"), ("reactor", "epoll")];

#[test]
fn a_peer_that_never_answers_is_an_error_and_no_hang() {
    for (kind, engines) in [("tcp_rr", ENGINES), ("tcp_crr", &ENGINES[..2]), ("tcp_cc", &ENGINES[..2])] {
        for options in engines {
            let record = against(kind, options, |listener, stop| accept_all(listener, stop, |_| true));
            assert!(
                record.errors.contains_key("recv: no answer for more than 1 s before the end"),
                "{:?}",
                record.errors
            );
            assert_eq!(total(&record, count::TRANSACTIONS), 0);
        }
    }
    for options in [&ENGINES[1][..1], EPOLL] {
        let record = against("tcp_rr_open", options, |listener, stop| accept_all(listener, stop, |_| true));
        let lost = total(&record, "unfinished") + total(&record, "not_started");
        assert!(lost > 0 && lost == total(&record, count::INTENDED), "{:?}", record.totals);
        assert!(record.distributions["response_time_ns"].max().unwrap() > 1_000_000_000);
    }
}

#[test]
fn a_peer_that_dies_in_the_middle_leaves_an_error_and_what_was_measured() {
    for options in ENGINES {
        let mut n_answered = 0;
        let record = against("tcp_rr", options, |listener, stop| {
            accept_all(listener, stop, |stream| {
                let mut request = [0; 1];
                while stream.read(&mut request).is_ok_and(|n| n == 1) {
                    n_answered += 1;
                    if n_answered > 200 || stream.write_all(&[0]).is_err() {
                        return false;
                    }
                }
                true
            });
        });
        assert!(total(&record, count::TRANSACTIONS) >= 198, "{:?}", record.totals);
        assert!(!record.complete && !record.errors.is_empty(), "{:?}", record.errors);
    }
}

#[test]
fn answers_that_are_not_those_of_a_responder_are_errors() {
    for (kind, engines) in [("tcp_rr", ENGINES), ("tcp_crr", &ENGINES[..2])] {
        for (options, answer) in engines.iter().flat_map(|options| [(options, &b"H"[..]), (options, &[0, 0])]) {
            let record = against(kind, options, |listener, stop| {
                accept_all(listener, stop, |stream| {
                    let is_asked = stream.read(&mut [0; 64]).is_ok_and(|n| n > 0);
                    !is_asked || stream.write_all(answer).is_ok()
                });
            });
            let wrong = record.errors.get("recv: not the message that was due");
            assert!(wrong.is_some(), "{kind} {options:?} {answer:?}: {:?}", record.errors);
        }
    }
}

#[test]
fn a_stranger_on_a_connection_of_the_responder_is_an_error_and_the_others_go_on() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (kind, flows) in [("tcp_rr", "3"), ("tcp_crr", "3"), ("tcp_crr", "1")] {
        let [initiator, responder] = prepare(kind, &[("flows", flows), ("workers", "1")]).unwrap();
        let [asks, answers] = sessions(kind);
        let address: std::net::SocketAddr = responder.endpoints()["address"].parse().unwrap();
        thread::scope(|scope| {
            let finish = answers.stop.clone();
            let responder = scope.spawn(move || responder.run(&answers).unwrap());
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let initiator = initiator.run(&asks).unwrap();
            finish.finish();
            let responder = responder.join().unwrap();
            assert_eq!(responder.errors.get("recv: not the message that was due"), Some(&1), "{kind} {flows}");
            let answered = total(&initiator, count::TRANSACTIONS);
            assert!(initiator.errors.is_empty() && answered > 100, "{answered} {:?}", initiator.errors);
        });
    }
}

#[test]
fn more_flows_than_there_are_ports_are_refused_before_anything_is_sent() {
    let settings = Settings::default().with("flows", "100000");
    let mut asks = role("tcp_rr", Side::Initiator, &settings);
    asks.peer = BTreeMap::from([("address".to_owned(), "127.0.0.1:9".to_owned())]);
    let error = find(KINDS, "tcp_rr").unwrap().prepare(&asks).err().unwrap();
    assert!(error.to_string().starts_with("100000 flows are more than there are local ports"), "{error}");
    assert!(error.hint().unwrap().starts_with("set --ports "), "{:?}", error.hint());
}

#[test]
fn a_responder_that_nobody_connects_to_says_so() {
    let settings = Settings::default();
    let responder = find(KINDS, "tcp_rr").unwrap().prepare(&role("tcp_rr", Side::Responder, &settings)).unwrap();
    let [_, session] = sessions("tcp_rr");
    session.stop.finish();
    let error = responder.run(&session).unwrap_err();
    assert_eq!(error.to_string(), "the other side opened 0 of 1 connections");
}

#[test]
fn an_initiator_without_an_address_is_refused() {
    for kind in KINDS {
        let options = needed(kind.name(), &[]);
        let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
        let error = kind.prepare(&role(kind.name(), Side::Initiator, &settings)).err().unwrap();
        assert!(matches!(error, Error::Endpoint { .. }), "{error}");
    }
}

#[test]
fn every_option_and_metric_has_a_name_of_its_own() {
    for kind in KINDS {
        let mut options: Vec<_> = kind.options().iter().map(|option| option.name).collect();
        let mut metrics: Vec<_> = kind.metrics().iter().map(|metric| metric.name.as_ref()).collect();
        for names in [&mut options, &mut metrics] {
            let n = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), n, "{}", kind.name());
        }
    }
}
