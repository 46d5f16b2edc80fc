//! Both sides of every kind in one process, over the loopback.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use fathom_engine::{Error, Stop, StopFlag, Test, TrialContext, find};
use fathom_model::{Cause, PeerClock, Phases, Record, Role, Settings, Side, names::count, units::Nanos};
use fathom_sys::{clock, policy::Policy};
use fathom_transport::KINDS;

/// Concurrent trials would compete for the cores and distort each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The records of both sides.
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
            is_warmup_whole: false,
            measure_ns: Nanos::from_millis(300),
            interval_ns: Nanos::from_millis(100),
        },
        address: Some(Ipv4Addr::LOCALHOST.into()),
        interface: None,
        peer: BTreeMap::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 42,
    }
}

fn prepare(kind: &str, options: &[(&str, &str)]) -> Result<[Box<dyn Test>; 2], Error> {
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    let found = find(KINDS, kind).unwrap();
    let responder = found.prepare(&role(kind, Side::Responder, &settings), &Policy::anything())?;
    let mut asks = role(kind, Side::Initiator, &settings);
    asks.peer = responder.endpoints();
    Ok([found.prepare(&asks, &Policy::anything())?, responder])
}

fn sessions(kind: &str) -> [TrialContext; 2] {
    let phases = role(kind, Side::Initiator, &Settings::default()).phases;
    let start = clock::now() + Nanos::from_millis(20);
    // Both sides are in this process and read the same clock.
    let session = || TrialContext { peer_clock: Some(PeerClock::default()), ..TrialContext::new(start, phases) };
    [session(), session()]
}

/// Options with those that a kind requires.
fn needed<'a>(kind: &str, options: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let needed: &[(&str, &str)] = match kind {
        "tcp_rfc6349" | "tcp_rfc6349_down" => &[("bandwidth", "1G"), ("baseline-rtt", "1ms")],
        open if open.ends_with("_open") => &[("rate", "1k")],
        _ => &[],
    };
    options.iter().chain(needed).copied().collect()
}

fn run(kind: &str, options: &[(&str, &str)]) -> Trial {
    run_both(kind, prepare(kind, options).unwrap(), || ())
}

/// Runs a trial like an agent: the responder is told to finish when the initiator has returned.
fn run_both(kind: &str, tests: [Box<dyn Test>; 2], over: impl FnOnce()) -> Trial {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run_in(sessions(kind), tests, over)
}

fn run_in(
    [asks, answers]: [TrialContext; 2],
    [initiator, responder]: [Box<dyn Test>; 2],
    over: impl FnOnce(),
) -> Trial {
    thread::scope(|scope| {
        let finish = answers.stop.clone();
        let responder = scope.spawn(move || responder.run(&answers).unwrap());
        let initiator = initiator.run(&asks).unwrap();
        finish.finish();
        let responder = responder.join().unwrap();
        over();
        Trial { initiator, responder }
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
fn probes_are_answered_in_time_order_beside_every_load() {
    for (load, up, down) in [("none", false, false), ("up", true, false), ("down", false, true), ("both", true, true)] {
        let trial = run("tcp_loaded", &[("direction", load), ("flows", "2"), ("probe-rate", "500")]);
        assert_clean(&trial);
        let response = &trial.initiator.distributions["response_time_ns"];
        // 500 per second for at least 300 ms. A busy machine ends the measured part later, and the record contains the time; and what was due before
        // that part is sent in it, as late as the record says.
        let (from, to) = trial.initiator.measured_ns;
        let late = trial.initiator.distributions["schedule_lag_ns"].max().unwrap_or(0);
        let most = ((to - from).0 + late) / 2_000_000 + 5;
        assert!((145..=most).contains(&response.count()), "{load}: {} of {most} probes", response.count());
        assert_eq!(response.count(), trial.initiator.distributions["schedule_lag_ns"].count());
        assert_eq!(total(&trial.initiator, count::TRANSACTIONS), total(&trial.responder, count::TRANSACTIONS));
        for (is_loaded, from, to) in
            [(up, &trial.initiator, &trial.responder), (down, &trial.responder, &trial.initiator)]
        {
            assert_eq!(from.totals.get(count::BYTES_SENT), to.totals.get(count::BYTES_RECEIVED), "{load}");
            let sent = from.totals.get(count::BYTES_SENT).copied();
            assert_eq!(sent.is_some(), is_loaded, "{load}");
            assert!(sent.is_none_or(|sent| sent > 1_000_000), "{load}: {sent:?} bytes in 300 ms");
        }
        assert_eq!(trial.initiator.flows.len(), 2 * (usize::from(up) + usize::from(down)));
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
            // Every packet to the host itself is copied; that the kernel reports this shows that zero copy was requested.
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
fn busy_polling_that_polls_nothing_is_told() {
    let options = [("busy-poll", "20us"), ("rate", "80M")];
    if let Err(error) = prepare("tcp_stream", &options) {
        return fathom_testkit::skip_everywhere(&error.to_string());
    }
    let trial = run("tcp_stream", &options);
    assert!(trial.responder.notes.iter().any(|note| note.id == "busy-poll-idle"), "the loopback has no queue to poll");
}

#[test]
fn a_receiver_that_waits_for_more_than_arrives_still_counts_in_time() {
    let trial = run("tcp_stream", &[("wake", "16MiB"), ("rate", "8M")]);
    assert_clean(&trial);
    let column = &trial.responder.timeline.counters[count::BYTES_RECEIVED];
    // 300 ms are measured; a receive ends after 50 ms with any amount of data.
    assert!(column.iter().filter(|growth| **growth > 0).count() >= 3, "{column:?}");
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
    let refused = refusal("tcp_stream", &[("wake", "0")]);
    assert_eq!(refused, "option `wake` takes 1 B to 16 MiB, not `0 B`");
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
fn a_responder_that_sends_on_a_schedule_ends_when_the_initiator_has_had_enough() {
    for (kind, flows) in [("tcp_stream_down", "1"), ("tcp_stream_both", "2")] {
        for rate in ["80k", "40M"] {
            let trial = run(kind, &[("rate", rate), ("flows", flows)]);
            assert_clean(&trial);
            let ended = trial.responder.timeline.end_ns.last().copied().unwrap();
            assert!(ended < Nanos::from_millis(1_500), "{kind} at {rate} went on until {ended}");
        }
    }
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
        &[("flows", "2"), ("threads", "2"), ("request", "64:3,9000:1"), ("response", "1,100000")],
        &[("flows", "50"), ("request", "100"), ("response", "20000"), ("threads", "2")],
        &[("flows", "50"), ("request", "100"), ("response", "20000"), ("threads", "2"), ("reactor", "epoll")],
        &[("flows", "3"), ("request", "400000"), ("threads", "1")],
        &[("flows", "3"), ("request", "400000"), ("threads", "1"), ("reactor", "epoll")],
        &[("flows", "20"), ("threads", "1"), ("burst", "16")],
        &[("flows", "20"), ("threads", "1"), ("burst", "16"), ("reactor", "epoll")],
        &[("flows", "4"), ("threads", "2"), ("burst", "5"), ("request", "1:2,700:1"), ("response", "3,40000")],
        &[("flows", "1"), ("burst", "100"), ("request", "2000"), ("response", "2000")],
        &[("flows", "40"), ("threads", "3"), ("ports", "7"), ("reactor", "epoll")],
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
        // Connections accepted after the start are served, but not sampled.
        assert!(u64::try_from(trial.responder.flows.len()).unwrap() <= flows);
    }
}

#[test]
fn transactions_go_over_multipath_tcp_in_every_way_of_serving_them() {
    let cases: &[&[(&str, &str)]] = &[
        &[("flows", "1")],
        &[("flows", "20"), ("threads", "2"), ("port", "0"), ("reactor", "io_uring")],
        &[("flows", "20"), ("threads", "2"), ("reactor", "epoll")],
    ];
    for options in cases {
        let asked = [&[("mptcp", "true")], *options].concat();
        let sides = match prepare("tcp_rr", &asked) {
            Ok(sides) => sides,
            Err(error) => {
                fathom_testkit::skip_everywhere(&format!("{options:?}: {error}"));
                continue;
            }
        };
        let trial = run_both("tcp_rr", sides, || ());
        assert_clean(&trial);
        let n_asked = total(&trial.initiator, count::TRANSACTIONS);
        assert!(n_asked > 0 && n_asked == total(&trial.responder, count::TRANSACTIONS), "{n_asked}, {options:?}");
        let fell_back = |record: &Record| record.notes.iter().any(|note| note.id == "mptcp-fell-back");
        assert!(!fell_back(&trial.initiator), "{options:?}: {:?}", trial.initiator.notes);
        let is_sampled = trial.initiator.flows.iter().all(|flow| !flow.samples.is_empty());
        assert!(is_sampled && !trial.initiator.flows.is_empty(), "TCP_INFO is that of the first subflow");
    }
}

#[test]
fn a_flow_that_spins_counts_as_one_that_sleeps_and_says_so() {
    let trial = run("tcp_rr", &[("flows", "1"), ("spin", "true")]);
    assert_clean(&trial);
    // On a machine with no idle core, spinning may leave the other side little time.
    let asked = total(&trial.initiator, count::TRANSACTIONS);
    assert!(asked > 0 && asked == total(&trial.responder, count::TRANSACTIONS), "{asked}");
    assert!(trial.initiator.notes.iter().any(|note| note.id == "spin"));
}

#[test]
fn spinning_with_several_flows_per_worker_is_refused() {
    let refused = prepare("tcp_rr", &[("flows", "5"), ("threads", "2"), ("spin", "true")]).err().unwrap();
    assert!(refused.hint().unwrap().starts_with("set --threads 5"), "{refused}");
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
        ("tcp_crr", &[("flows", "16"), ("threads", "2"), ("response", "100000")]),
        ("tcp_crr", &[("flows", "16"), ("threads", "2"), ("request", "1:3,70000:1"), ("response", "1,100000")]),
        ("tcp_crr", &[("flows", "4"), ("threads", "1"), ("close", "reset"), ("response", "64")]),
        ("tcp_crr", &[("flows", "8"), ("threads", "2"), ("ports", "5"), ("source", "127.0.0.8/29,127.0.1.1")]),
        ("tcp_cc", &[("flows", "1")]),
        ("tcp_cc", &[("flows", "1"), ("close", "reset")]),
        ("tcp_cc", &[("flows", "16"), ("threads", "2")]),
        ("tcp_cc", &[("flows", "16"), ("threads", "2"), ("close", "reset")]),
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

/// The sending and the receiving side of a stream of datagrams.
fn ends<'a>(kind: &str, trial: &'a Trial) -> (&'a Record, &'a Record) {
    if kind == "udp_stream_down" { (&trial.responder, &trial.initiator) } else { (&trial.initiator, &trial.responder) }
}

#[test]
fn every_request_in_a_datagram_is_answered_lost_or_unfinished() {
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("udp_rr", &[("flows", "1")]),
        ("udp_rr", &[("flows", "1"), ("spin", "true")]),
        ("udp_rr", &[("flows", "20"), ("threads", "2"), ("request", "8:3,1400:1"), ("response", "100,65507")]),
        ("udp_rr_open", &[("flows", "20"), ("threads", "2"), ("rate", "3k"), ("arrivals", "poisson")]),
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

/// An initiator against a UDP socket of the test, which calls `each` for every datagram until stopped.
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
            while stop.state() == Stop::Continue {
                if let Ok((length, from)) = socket.recv_from(&mut room) {
                    each(&socket, &room[..length], from);
                }
            }
        });
        let prepared = find(KINDS, "udp_rr").unwrap().prepare(&asks, &Policy::anything()).unwrap();
        let session = TrialContext::new(clock::now() + Nanos::from_millis(20), asks.phases);
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
                // No answer.
                0 => {}
                // Two answers.
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
    assert!(record.errors["recv: not the message that was due"] > 0, "{:?}", record.errors);
}

#[test]
fn nobody_at_the_port_is_an_error_and_every_request_is_lost() {
    let gone = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut asks = role("udp_rr", Side::Initiator, &Settings::default().with("timeout", "10ms"));
    asks.peer = BTreeMap::from([("address".to_owned(), gone.to_string())]);
    let prepared = find(KINDS, "udp_rr").unwrap().prepare(&asks, &Policy::anything()).unwrap();
    let record = prepared.run(&TrialContext::new(clock::now(), asks.phases)).unwrap();
    assert!(total(&record, "lost") > 0 && total(&record, count::TRANSACTIONS) == 0, "{:?}", record.totals);
    assert!(record.errors.keys().any(|failure| failure.cause == Cause::Refused), "{:?}", record.errors);
    assert!(!record.complete);
}

#[test]
fn datagrams_sent_are_received_or_known_to_be_dropped() {
    for (kind, options) in [
        ("udp_stream", [("size", "1400"), ("flows", "1"), ("batch", "32")]),
        ("udp_stream_down", [("size", "1400"), ("flows", "2"), ("batch", "32")]),
        ("udp_stream", [("size", "18"), ("flows", "2"), ("batch", "64")]),
        ("udp_stream", [("size", "65507"), ("flows", "1"), ("batch", "1")]),
        ("udp_stream", [("mix", "imix"), ("flows", "1"), ("batch", "16")]),
        ("udp_stream", [("size", "1000"), ("flows", "1"), ("offload", "gso")]),
    ] {
        let trial = run(kind, &options);
        assert_clean(&trial);
        let (sender, receiver) = ends(kind, &trial);
        let received = total(receiver, count::RECEIVED);
        let dropped = total(receiver, count::SOCKET_DROPPED);
        assert_eq!(total(receiver, "late") + total(receiver, "strangers") + total(receiver, count::DUPLICATES), 0);
        assert_eq!(received + dropped, total(sender, count::SENT), "{kind} {options:?}");
        assert!(received > 1000, "{received} received, {kind} {options:?}");
        assert!(!receiver.totals.contains_key(count::JITTER_NS), "jitter without a schedule means nothing");
        let bursts = &receiver.distributions["loss_burst_datagrams"];
        let lost = bursts.mean().unwrap_or(0.0) * fathom_model::units::approximate(bursts.count());
        assert_eq!(fathom_model::units::rounded(lost), dropped, "every loss is in a burst, {kind} {options:?}");
    }
}

#[test]
fn super_buffers_are_told_of_and_lose_nothing_silently() {
    let trial = run("udp_stream", &[("size", "1400"), ("offload", "both")]);
    assert_clean(&trial);
    let ids = |record: &Record| record.notes.iter().map(|note| note.id.clone()).collect::<Vec<_>>();
    assert!(ids(&trial.initiator).contains(&"udp-gso".to_owned()), "{:?}", ids(&trial.initiator));
    assert!(ids(&trial.responder).contains(&"udp-gro".to_owned()), "{:?}", ids(&trial.responder));
    let (sent, received) = (total(&trial.initiator, count::SENT), total(&trial.responder, count::RECEIVED));
    assert!(total(&trial.responder, "messages_received") * 10 < received, "{received}");
    assert_eq!(received + total(&trial.responder, count::SOCKET_DROPPED), sent);
}

#[test]
fn datagrams_too_short_for_a_number_are_counted_and_nothing_else_is_claimed() {
    let trial = run("udp_stream", &[("size", "1"), ("pps", "20k"), ("traffic", "bursts")]);
    assert_clean(&trial);
    let dropped = total(&trial.responder, count::SOCKET_DROPPED);
    assert_eq!(total(&trial.responder, count::RECEIVED) + dropped, total(&trial.initiator, count::SENT));
    for unknown in [count::DUPLICATES, count::REORDERED, count::JITTER_NS, "late"] {
        assert!(!trial.responder.totals.contains_key(unknown), "{unknown}");
    }
    assert!(trial.responder.distributions.is_empty());
    assert!(trial.initiator.notes.iter().any(|note| note.id == "udp-no-numbers"));
}

#[test]
fn paced_datagrams_leave_at_the_rate_that_was_asked() {
    for (kind, traffic, size) in [
        ("udp_stream", "constant", "200"),
        ("udp_stream_down", "constant", "200"),
        ("udp_stream", "poisson", "64"),
        ("udp_stream_down", "bursts:8", "1400"),
        ("udp_stream", "frames:50:20%", "1000"),
    ] {
        let trial = run(kind, &[("pps", "2k"), ("size", size), ("traffic", traffic)]);
        assert_clean(&trial);
        let (sender, receiver) = ends(kind, &trial);
        let sent = total(sender, count::SENT);
        let dropped = total(receiver, count::SOCKET_DROPPED);
        assert_eq!(sent, total(receiver, count::RECEIVED) + dropped, "{kind} {traffic}");
        assert_eq!(total(receiver, count::REORDERED), 0);
        let intended = total(sender, count::INTENDED);
        let lag = total(sender, count::SCHEDULE_LAG_NS_MAX);
        assert!(intended - sent <= 200 + lag / 100_000, "{sent} of {intended}, {kind} {traffic}");
        let elapsed = sender.timeline.end_ns.last().unwrap().as_secs_f64();
        let most = 2_000.0 * elapsed * 1.5 + 100.0;
        assert!((150.0..=most).contains(&fathom_model::units::approximate(sent)), "{sent} in {elapsed} s, {traffic}");
        assert!(total(receiver, count::JITTER_NS) < 100_000_000);
        let delay = &receiver.distributions["one_way_delay_ns"];
        assert!(delay.count() > 50 && delay.max().unwrap() < 1_000_000_000, "one machine has one clock, {kind}");
        assert!(delay.quantile(0.5).unwrap() > 500, "no datagram arrives before it was sent, {kind}");
        assert!(receiver.distributions["ipdv_ns"].count() > 50);
    }
}

#[test]
fn one_way_delays_are_told_with_the_error_of_the_clocks_or_withheld_where_it_is_larger() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let told = |peer_clock: Option<PeerClock>| {
        let tests = prepare("udp_stream", &[("pps", "2k"), ("size", "200")]).unwrap();
        let sessions = sessions("udp_stream").map(|session| TrialContext { peer_clock, ..session });
        let record = run_in(sessions, tests, || ()).responder;
        let is_withheld = record.notes.iter().any(|note| note.id == "one-way-delay-withheld");
        let error = record.totals.get("one_way_delay_error_ns").copied();
        assert_eq!(is_withheld, error.is_none(), "{:?}", record.notes);
        (error, record.distributions.get("one_way_delay_ns").cloned())
    };
    let compared = |error, ahead_ns| Some(PeerClock { ahead_ns, error_ns: Some(error), compared_ns: clock::now() });
    // The receiver assumes that the sender's clock is ahead, so all delays appear longer by that much.
    let (error, delays) = told(compared(Nanos::from_millis(1), 50_000_000));
    let error = error.unwrap();
    assert!((1_000_000..1_100_000).contains(&error), "{error} ns, with what the clocks drift in a second");
    let median = delays.unwrap().quantile(0.5).unwrap();
    assert!((50_000_000..60_000_000).contains(&median), "{median}");
    for unknown in [compared(Nanos::from_secs(5), 0), None] {
        assert_eq!(told(unknown), (None, None));
    }
    assert_eq!(told(Some(PeerClock::default())).0, Some(0), "one clock has no error");
}

#[test]
fn a_stream_over_ipv6_is_accounted_for_alike() {
    let settings = Settings::default().with("size", "1000").with("offload", "both").with("flows", "2");
    let prepare = |side, peer| {
        let mut role = role("udp_stream_down", side, &settings.clone().with("flow-label", "703710"));
        role.address = Some(std::net::Ipv6Addr::LOCALHOST.into());
        role.peer = peer;
        find(KINDS, "udp_stream_down").unwrap().prepare(&role, &Policy::anything()).unwrap()
    };
    let responder = prepare(Side::Responder, BTreeMap::new());
    let initiator = prepare(Side::Initiator, responder.endpoints());
    let trial = run_both("udp_stream_down", [initiator, responder], || ());
    assert_clean(&trial);
    let lost = total(&trial.initiator, count::SOCKET_DROPPED);
    assert_eq!(total(&trial.initiator, count::RECEIVED) + lost, total(&trial.responder, count::SENT));
    assert!(total(&trial.initiator, count::RECEIVED) > 1000);
}

#[test]
fn a_stream_leaves_from_the_sources_and_through_the_device_that_were_asked_for() {
    let kind = find(KINDS, "udp_stream").unwrap();
    let options = [("flows", "3"), ("pps", "300"), ("source", "127.0.0.8/30"), ("interface", "lo")];
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    let listeners = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    let mut asks = role(kind.name(), Side::Initiator, &settings);
    asks.peer = BTreeMap::from([("addresses".to_owned(), addresses.join(","))]);
    let [session, _] = sessions(kind.name());
    kind.prepare(&asks, &Policy::anything()).unwrap().run(&session).unwrap();
    // Everything is in the sockets' queues by now.
    let sources = listeners.map(|listener| listener.recv_from(&mut [0; 2000]).unwrap().1.ip().to_string());
    assert_eq!(sources, ["127.0.0.9", "127.0.0.10", "127.0.0.9"], "in turn");

    let mut refused = |name: &str, text: &str| {
        asks.settings.set(name, text);
        kind.prepare(&asks, &Policy::anything()).err().unwrap().to_string()
    };
    assert_eq!(refused("flow-label", "7"), "option `flow-label` takes a target with an IPv6 address, not `127.0.0.1`");
    assert_eq!(refused("interface", "none0"), "cannot send through the interface none0");
}

/// What a relay did to the passing datagrams.
#[derive(Debug, Default)]
struct Planted {
    lost: u64,
    doubled: u64,
    overtaken: u64,
}

/// How many datagrams overtake a delayed one.
const OVERTAKE: u32 = 3;

/// Relays datagrams from `front` to `to`, and answers back, with deliberate faults, until it is stopped.
fn relay(front: &UdpSocket, to: SocketAddr, stop: &AtomicBool) -> Planted {
    let back = UdpSocket::bind("127.0.0.1:0").unwrap();
    back.connect(to).unwrap();
    back.set_nonblocking(true).unwrap();
    front.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
    let (mut planted, mut n, mut room) = (Planted::default(), 0_u64, [0; 2048]);
    let mut held: Option<(Vec<u8>, u32)> = None;
    let mut sender = None;
    while !stop.load(Ordering::Relaxed) {
        if let Ok(length) = back.recv(&mut room) {
            sender.inspect(|sender| drop(front.send_to(&room[..length], sender)));
        }
        let Ok((length, from)) = front.recv_from(&mut room) else { continue };
        sender = Some(from);
        n += 1;
        match n {
            n if n % 50 == 7 => {
                planted.lost += 1;
                continue;
            }
            n if n % 90 == 33 && held.is_none() => {
                held = Some((room[..length].to_vec(), OVERTAKE));
                continue;
            }
            n if n % 70 == 20 => {
                planted.doubled += 1;
                back.send(&room[..length]).unwrap();
            }
            _ => {}
        }
        back.send(&room[..length]).unwrap();
        if let Some((datagram, left)) = &mut held {
            *left -= 1;
            if *left == 0 {
                planted.overtaken += 1;
                back.send(datagram).unwrap();
                held = None;
            }
        }
    }
    planted.lost += u64::from(held.is_some());
    let dropped = fathom_sys::socket::drops(front).unwrap();
    planted.lost += u64::from(dropped);
    planted
}

#[test]
fn planted_losses_copies_and_overtakings_are_counted_exactly() {
    let kind = "udp_stream";
    let settings = Settings::default().with("size", "200").with("pps", "4k").with("traffic", "bursts");
    let responder =
        find(KINDS, kind).unwrap().prepare(&role(kind, Side::Responder, &settings), &Policy::anything()).unwrap();
    let to: SocketAddr = responder.endpoints()["addresses"].parse().unwrap();
    let front = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut asks = role(kind, Side::Initiator, &settings);
    asks.peer = BTreeMap::from([("addresses".to_owned(), front.local_addr().unwrap().to_string())]);
    let initiator = find(KINDS, kind).unwrap().prepare(&asks, &Policy::anything()).unwrap();
    let stop = AtomicBool::new(false);
    let (trial, planted) = thread::scope(|scope| {
        let relay = scope.spawn(|| relay(&front, to, &stop));
        let trial = run_both(kind, [initiator, responder], || stop.store(true, Ordering::Relaxed));
        (trial, relay.join().unwrap())
    });
    let (sent, got) = (total(&trial.initiator, count::SENT), &trial.responder);
    let dropped = total(got, count::SOCKET_DROPPED);
    assert!(planted.lost > 10 && planted.doubled > 10 && planted.overtaken > 5, "{planted:?}");
    assert_eq!(total(got, count::RECEIVED) + dropped + planted.lost, sent, "{planted:?}");
    if dropped == 0 {
        assert_eq!(total(got, count::DUPLICATES), planted.doubled);
        assert_eq!(total(got, count::REORDERED), planted.overtaken);
        let extents = &got.distributions["reordering_extent_datagrams"];
        assert_eq!((extents.count(), extents.min(), extents.max()), (planted.overtaken, Some(3), Some(3)));
    }
}

#[test]
fn datagrams_of_strangers_are_counted_apart() {
    let [initiator, responder] = prepare("udp_stream", &[("pps", "2k"), ("size", "100")]).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in [&[0xaa; 100][..], &[], &[1], &[0xbb; 26], &[0; 1400]] {
        stranger.send_to(datagram, &responder.endpoints()["addresses"]).unwrap();
    }
    let trial = run_both("udp_stream", [initiator, responder], || ());
    assert_clean(&trial);
    assert_eq!(total(&trial.responder, "strangers"), 5);
    let dropped = total(&trial.responder, count::SOCKET_DROPPED);
    assert_eq!(total(&trial.responder, count::RECEIVED) + dropped, total(&trial.initiator, count::SENT));
}

#[test]
fn a_receiver_whose_sender_is_silent_and_a_sender_whose_receiver_never_comes_say_so() {
    let settings = Settings::default();
    let kind = find(KINDS, "udp_stream_down").unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut asks = role(kind.name(), Side::Initiator, &settings);
    asks.peer = BTreeMap::from([("addresses".to_owned(), silent.local_addr().unwrap().to_string())]);
    let [session, answers] = sessions(kind.name());
    let record = kind.prepare(&asks, &Policy::anything()).unwrap().run(&session).unwrap();
    assert_eq!((total(&record, count::RECEIVED), record.errors["no mark of the end came"]), (0, 1));

    answers.stop.finish();
    let responder = kind.prepare(&role(kind.name(), Side::Responder, &settings), &Policy::anything()).unwrap();
    let record = responder.run(&answers).unwrap();
    assert_eq!((total(&record, count::SENT), record.errors["no receiver proved its address"]), (0, 1));
}

#[test]
fn a_stream_that_cannot_be_is_refused_before_anything_is_sent() {
    for (options, expected) in [
        (vec![("size", "0")], "option `size` takes 1 to 65507 B, not `0 B`"),
        (vec![("rate", "1M"), ("pps", "5")], "option `pps` takes a rate only without `rate`, not `5.00 /s`"),
        (vec![("traffic", "poisson")], "option `traffic` takes a pattern only with `rate`, not `poisson`"),
        (
            vec![("mix", "imix"), ("offload", "gso")],
            "option `offload` takes gso only for datagrams of one size, not `a mix`",
        ),
        (vec![("pps", "0")], "option `pps` takes a rate above zero, not `0`"),
    ] {
        let error = prepare("udp_stream", &options).err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
    let error = prepare("udp_stream", &[("mix", "64")]).err().unwrap().to_string();
    assert!(error.starts_with("option `mix` takes imix, or sizes") && error.ends_with("not `64`"), "{error}");
    let error = prepare("udp_stream", &[("rate", "1M"), ("traffic", "burst")]).err().unwrap().to_string();
    assert!(error.starts_with("option `traffic` takes constant, bursts"), "{error}");
}

#[test]
fn an_abort_ends_both_sides_quickly_and_leaves_incomplete_records() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for kind in KINDS {
        let [initiator, responder] = prepare(kind.name(), &needed(kind.name(), &[("flows", "2")])).unwrap();
        let [asks, answers] = sessions(kind.name()).map(|session| TrialContext {
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

/// Runs an initiator against a server of the test, which is told when to stop.
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
        let prepared = find(KINDS, kind).unwrap().prepare(&asks, &Policy::anything());
        let begin = clock::now();
        let session = TrialContext::new(begin + Nanos::from_millis(20), phases);
        let record = prepared.unwrap().run(&session).unwrap();
        let took = clock::now() - begin;
        stop.finish();
        assert!(took < Nanos::from_secs(4), "{kind} with {options:?} took {took}");
        record
    })
}

/// Accepts connections until stopped, and calls `each` for every one.
fn accept_all(listener: &TcpListener, stop: &StopFlag, mut each: impl FnMut(&mut TcpStream) -> bool) {
    let mut open: Vec<TcpStream> = Vec::new();
    while stop.state() == Stop::Continue {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            open.push(stream);
        }
        open.retain_mut(&mut each);
        thread::yield_now();
    }
}

/// One configuration per engine: blocking, `io_uring` or its fallback, epoll.
const ENGINES: &[&[(&str, &str)]] = &[&[("flows", "1")], &[("flows", "3"), ("threads", "1")], EPOLL];
const EPOLL: &[(&str, &str)] = &[("flows", "3"), ("threads", "1"), ("reactor", "epoll")];

#[test]
fn a_peer_that_never_answers_is_an_error_and_no_hang() {
    for (kind, engines) in [("tcp_rr", ENGINES), ("tcp_crr", &ENGINES[..2]), ("tcp_cc", &ENGINES[..2])] {
        for options in engines {
            let record = against(kind, options, |listener, stop| accept_all(listener, stop, |_| true));
            assert!(record.errors["recv: no answer for more than 1 s before the end"] > 0, "{:?}", record.errors);
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
            let wrong = record.errors["recv: not the message that was due"];
            assert!(wrong > 0, "{kind} {options:?} {answer:?}: {:?}", record.errors);
        }
    }
}

#[test]
fn a_stranger_on_a_connection_of_the_responder_is_an_error_and_the_others_go_on() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (kind, flows) in [("tcp_rr", "3"), ("tcp_crr", "3"), ("tcp_crr", "1")] {
        let [initiator, responder] = prepare(kind, &[("flows", flows), ("threads", "1")]).unwrap();
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
            assert_eq!(responder.errors["recv: not the message that was due"], 1, "{kind} {flows}");
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
    let error = find(KINDS, "tcp_rr").unwrap().prepare(&asks, &Policy::anything()).err().unwrap();
    assert!(error.to_string().starts_with("100000 flows are more than there are local ports"), "{error}");
    assert!(error.hint().unwrap().starts_with("set --ports "), "{:?}", error.hint());
}

#[test]
fn a_responder_that_nobody_connects_to_says_so() {
    let settings = Settings::default();
    let responder = find(KINDS, "tcp_rr")
        .unwrap()
        .prepare(&role("tcp_rr", Side::Responder, &settings), &Policy::anything())
        .unwrap();
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
        let error = kind.prepare(&role(kind.name(), Side::Initiator, &settings), &Policy::anything()).err().unwrap();
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
