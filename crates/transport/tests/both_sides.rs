//! Both sides of every kind in one process, over the loopback.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use fathom_engine::{Error, Session, StopFlag, Test, find};
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

fn run(kind: &str, options: &[(&str, &str)]) -> Trial {
    run_both(kind, prepare(kind, options).unwrap(), || ())
}

/// Runs a trial as an agent would: the responder is told to finish when the initiator has come back.
fn run_both(kind: &str, [initiator, responder]: [Box<dyn Test>; 2], over: impl FnOnce()) -> Trial {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let [asks, answers] = sessions(kind);
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
fn a_stream_keeps_to_the_rate_that_was_asked() {
    let trial = run("tcp_stream", &[("rate", "80M"), ("write", "8KiB"), ("discard", "true")]);
    assert_clean(&trial);
    let (from, to) = trial.initiator.measured_ns;
    let (bytes, span) = trial.responder.timeline.growth(count::BYTES_RECEIVED, from, to).unwrap();
    let rate = fathom_model::units::Bytes(bytes) / span;
    assert!(rate.is_some_and(|rate| rate.get() < 100e6), "{rate:?}");
    assert_eq!(trial.responder.notes[0].id, "receive-discarded");
}

#[test]
fn every_transaction_is_counted_by_both_sides_and_timed() {
    for options in [
        [("flows", "1"), ("request", "1"), ("response", "1"), ("workers", "1")],
        [("flows", "50"), ("request", "100"), ("response", "20000"), ("workers", "2")],
        [("flows", "3"), ("request", "400000"), ("response", "1"), ("workers", "1")],
    ] {
        let trial = run("tcp_rr", &options);
        assert_clean(&trial);
        let asked = total(&trial.initiator, count::TRANSACTIONS);
        assert_eq!(asked, total(&trial.responder, count::TRANSACTIONS), "{options:?}");
        assert!(asked > 100, "{asked} transactions, {options:?}");
        let times = &trial.initiator.distributions["service_time_ns"];
        assert!(times.count() > asked / 4 && times.count() <= asked, "{} of {asked} timed", times.count());
        assert!(times.min().unwrap() > 1_000 && times.max().unwrap() < 1_000_000_000);
    }
}

#[test]
fn every_connection_is_opened_used_and_closed_on_both_sides() {
    for options in [
        [("flows", "1"), ("workers", "1"), ("close", "orderly"), ("response", "1")],
        [("flows", "16"), ("workers", "2"), ("close", "orderly"), ("response", "100000")],
        [("flows", "4"), ("workers", "1"), ("close", "reset"), ("response", "64")],
    ] {
        let trial = run("tcp_crr", &options);
        assert_clean(&trial);
        let called = total(&trial.initiator, count::TRANSACTIONS);
        assert_eq!(called, total(&trial.responder, count::TRANSACTIONS), "{options:?}");
        assert_eq!(total(&trial.initiator, count::CONNECTIONS), total(&trial.responder, count::CONNECTIONS));
        assert!(called > 100, "{called} connections, {options:?}");
        let [connect, service] = ["connect_time_ns", "service_time_ns"]
            .map(|name| trial.initiator.distributions[name].quantile(0.5).unwrap());
        assert!(connect < service, "{connect} ns to connect, {service} ns in all");
    }
}

/// Of a stream of datagrams, the side that sends and the side that receives.
fn ends<'a>(kind: &str, trial: &'a Trial) -> (&'a Record, &'a Record) {
    if kind == "udp_stream_down" { (&trial.responder, &trial.initiator) } else { (&trial.initiator, &trial.responder) }
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
fn a_stream_over_ipv6_is_accounted_for_alike() {
    let settings = Settings::default().with("size", "1000").with("offload", "both").with("flows", "2");
    let prepare = |side, peer| {
        let mut role = role("udp_stream_down", side, &settings);
        role.address = Some(std::net::Ipv6Addr::LOCALHOST.into());
        role.peer = peer;
        find(KINDS, "udp_stream_down").unwrap().prepare(&role).unwrap()
    };
    let responder = prepare(Side::Responder, BTreeMap::new());
    let initiator = prepare(Side::Initiator, responder.endpoints());
    let trial = run_both("udp_stream_down", [initiator, responder], || ());
    assert_clean(&trial);
    let lost = total(&trial.initiator, count::SOCKET_DROPPED);
    assert_eq!(total(&trial.initiator, count::RECEIVED) + lost, total(&trial.responder, count::SENT));
    assert!(total(&trial.initiator, count::RECEIVED) > 1000);
}

/// What a relay did to the datagrams that passed it.
#[derive(Debug, Default)]
struct Planted {
    lost: u64,
    doubled: u64,
    overtaken: u64,
}

/// How many datagrams overtake one that is held back.
const OVERTAKE: u32 = 3;

/// Passes datagrams on from `front` to `to`, and answers back, with planted mishaps, until it is told to stop.
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
    let responder = find(KINDS, kind).unwrap().prepare(&role(kind, Side::Responder, &settings)).unwrap();
    let to: SocketAddr = responder.endpoints()["addresses"].parse().unwrap();
    let front = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut asks = role(kind, Side::Initiator, &settings);
    asks.peer = BTreeMap::from([("addresses".to_owned(), front.local_addr().unwrap().to_string())]);
    let initiator = find(KINDS, kind).unwrap().prepare(&asks).unwrap();
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
    let record = kind.prepare(&asks).unwrap().run(&session).unwrap();
    assert_eq!((total(&record, count::RECEIVED), record.errors["no mark of the end came"]), (0, 1));

    answers.stop.finish();
    let responder = kind.prepare(&role(kind.name(), Side::Responder, &settings)).unwrap();
    let record = responder.run(&answers).unwrap();
    assert_eq!((total(&record, count::SENT), record.errors["no receiver said where it is"]), (0, 1));
}

#[test]
fn a_stream_that_cannot_be_is_refused_before_anything_is_sent() {
    for (options, expected) in [
        (vec![("size", "0")], "option `size` takes 1 to 65507 B, not `0 B`"),
        (vec![("rate", "1M"), ("pps", "5")], "option `pps` takes a rate only without `rate`, not `5.00 /s`"),
        (vec![("traffic", "poisson")], "option `traffic` takes a pattern only with `rate` or `pps`, not `poisson`"),
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
        let [initiator, responder] = prepare(kind.name(), &[("flows", "2")]).unwrap();
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
        let error = kind.prepare(&role(kind.name(), Side::Initiator, &Settings::default())).err().unwrap();
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
