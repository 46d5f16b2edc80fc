//! The methods find what is true of a policer: real frames between two network namespaces that each test makes for itself.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]
#![expect(clippy::print_stderr, reason = "a skipped test says so, and a measurement tells its numbers")]

use std::{
    net::IpAddr,
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use fathom_engine::{
    Error, Session, TestKind,
    search::{
        Load,
        mlr::{GoalEnding, SearchGoal},
    },
};
use fathom_model::{
    Endpoints, Phases, Record, Role, Settings, Side,
    names::count::{INTENDED, RECEIVED, SENT},
    units::{Nanos, PerSec, rounded},
};
use fathom_packet::{
    kinds::frames::Frames,
    methods::{
        Asked, BackToBack, LossCurve, Outcome, SearchInput, Seen, Tester, Traffic, back_to_back, forwarding, loss,
        throughput,
    },
    xdp::{Matching, PolicerLimit, policer},
};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    clock,
    namespace::NetNs,
    netlink::{Netlink, Veth, VethEnd},
};

/// So much less than any machine sends that a sender which others keep from its core for 20 ms still sends all that was due.
const RATE: f64 = 5_000.0;
/// What the searches begin with.
const MAX_RATE: f64 = 12_000.0;
/// What a sender catches up with at once; little of what passes in a trial.
const SMALL_BURST: u32 = 30;
/// A buffer of many steps.
const LARGE_BURST: u32 = 300;

/// The value, or nothing after saying loudly that a privilege is missing; where `CI` is set that is a failure.
fn or_skip<T>(outcome: fathom_sys::Result<T>) -> Option<T> {
    match outcome {
        Err(error) if error.is_permission() && std::env::var_os("CI").is_none() => {
            eprintln!("SKIPPED: {error}: {}", error.source);
            None
        }
        outcome => Some(outcome.unwrap()),
    }
}

/// Held by the search that runs.
static ALONE: Mutex<()> = Mutex::new(());

/// Two hosts joined by a wire, with a policer in front of the second; gone with the test, however it ends.
struct Policed {
    near: NetNs,
    far: NetNs,
    _link: XdpLink,
    /// Two senders that keep a schedule would keep each other from their cores.
    _alone: MutexGuard<'static, ()>,
}

impl Policed {
    fn up(burst: u32) -> Option<Self> {
        let limit = PolicerLimit { rate: PerSec::new(RATE).unwrap(), burst };
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = or_skip(policer(Matching::UdpPort(9), limit))?;
        let (near, far) = (or_skip(NetNs::new())?, NetNs::new().unwrap());
        let ends = ["near0", "far0"].map(|name| VethEnd { name, mac: None });
        let [near_end, far_end] = ends;
        let far_namespace = Some(far.as_fd());
        let veth = Veth { near: near_end, far: far_end, far_namespace, mtu_bytes: 1500, n_queues: 1 };
        near.enter_with(|| Netlink::open().unwrap().add_veth(&veth).unwrap()).unwrap();
        let up = |name: &str, address: &str| {
            let mut netlink = Netlink::open().unwrap();
            let index = netlink.link(name).unwrap().index;
            netlink.add_address(index, address.parse().unwrap(), 24).unwrap();
            netlink.set_up(index).unwrap();
            index
        };
        near.enter_with(|| up("near0", "198.18.0.1")).unwrap();
        let link = far.enter_with(|| gate.attach(up("far0", "198.18.0.2"), XdpMode::Native).unwrap()).unwrap();
        Some(Self { near, far, _link: link, _alone: alone })
    }

    fn play(&self, settings: &Settings, phases: Phases) -> Result<(Record, Record), Error> {
        let prepare = |side: Side, peer: Endpoints| {
            let initiator = (&self.near, "near0", "198.18.0.1");
            let (host, interface, address) =
                if side == Side::Initiator { initiator } else { (&self.far, "far0", "198.18.0.2") };
            let role = Role {
                test: "test".to_owned(),
                kind: Frames.name().to_owned(),
                side,
                settings: settings.complete(Frames.options()).unwrap(),
                phases,
                address: Some(address.parse::<IpAddr>().unwrap()),
                interface: Some(interface.to_owned()),
                peer,
                cores: Vec::new(),
                seed: 42,
            };
            host.enter_with(|| Frames.prepare(&role)).unwrap()
        };
        let responder = prepare(Side::Responder, Endpoints::new())?;
        let initiator = prepare(Side::Initiator, responder.endpoints())?;
        let start = clock::now() + Nanos::from_millis(20);
        let (sends, counts) = (Session::new(start, phases), Session::new(start, phases));
        thread::scope(|scope| {
            let finish = counts.stop.clone();
            let responder = scope.spawn(move || responder.run(&counts));
            let initiator = initiator.run(&sends);
            finish.finish();
            Ok((initiator?, responder.join().unwrap()?))
        })
    }
}

impl Tester for Policed {
    type Error = Error;

    fn trial(&mut self, asked: &Asked) -> Result<Seen, Error> {
        let began = clock::now();
        let rate = PerSec::new(asked.traffic.rate()).unwrap();
        let mut settings = Settings::default().with("rate", rate.exact());
        let mut measure_ns = asked.traffic.duration();
        if let Traffic::Burst { n_frames, .. } = asked.traffic {
            settings.set("count", n_frames.to_string());
            measure_ns += Nanos::from_secs(1);
        }
        let phases = Phases { warmup_max_ns: Nanos::ZERO, measure_ns, interval_ns: Nanos::from_millis(25) };
        let (initiator, responder) = self.play(&settings, phases)?;
        let (intended, offered) = (initiator.totals[INTENDED], initiator.totals[SENT]);
        let received = responder.totals[RECEIVED];
        Ok(Seen { intended, offered, received, latencies: None, took: clock::now() - began })
    }
}

/// A busy machine may keep the sender from its processor, which the methods notice; this is what then remains to be said.
fn is_too_busy<T, E: std::fmt::Debug>(outcome: &Outcome<T, E>) -> bool {
    let is_unsent = matches!(outcome.cut, Some(fathom_packet::methods::Cut::Unsent { .. }));
    if is_unsent && std::env::var_os("CI").is_none() {
        eprintln!("SKIPPED: others use this machine so much that no ten trials in turn were sent as they were due");
        return true;
    }
    assert!(outcome.cut.is_none(), "{:?}", outcome.cut);
    false
}

#[test]
fn the_throughput_of_a_policer_is_found_within_half_a_percent() {
    let Some(mut policed) = Policed::up(SMALL_BURST) else { return };
    // In trials of 4 s the burst lets 0.15 % more pass, which leaves 0.35 % for the width.
    let goal = SearchGoal { width: 0.003, ..SearchGoal::tst009(Nanos::from_secs(4)) };
    let rates = (Load::new(1000.0).unwrap(), Load::new(MAX_RATE).unwrap());
    let outcome = throughput(&SearchInput { goals: vec![goal], rates, time: Nanos::from_secs(150) }, &mut policed);
    if is_too_busy(&outcome) {
        return;
    }
    let [found] = outcome.found.goals[..] else { panic!("one goal has one result") };
    let (lower, upper) = (found.lower.unwrap().get(), found.upper.unwrap().get());
    println!("{lower} to {upper}, {} trials made again", outcome.found.n_void);
    assert_eq!(found.ending, GoalEnding::Regular, "{found:?}");
    assert!((lower / RATE - 1.0).abs() <= 0.005 && upper >= RATE, "{lower} to {upper}");
}

#[test]
fn the_loss_curve_of_a_policer_is_found_within_a_fifth_of_a_point() {
    let Some(mut policed) = Policed::up(SMALL_BURST) else { return };
    let curve = LossCurve { max_rate: 10_000.0, step: 0.1, duration: Nanos::from_secs(3) };
    let outcome = loss(&curve, &mut policed);
    if is_too_busy(&outcome) {
        return;
    }
    assert_eq!(outcome.found.iter().map(|at| rounded(at.rate / 1e3)).collect::<Vec<_>>(), [10, 9, 8, 7, 6, 5, 4]);
    for at in &outcome.found {
        // What passes beyond the rate is one burst.
        let passes = RATE * 3.0 + f64::from(SMALL_BURST);
        let expected = (1.0 - passes / (at.rate * 3.0)).max(0.0);
        assert!((at.loss_ratio - expected).abs() <= 0.002, "{at:?}: {expected} expected");
    }
    let outcome = forwarding(&curve, &mut policed);
    if is_too_busy(&outcome) {
        return;
    }
    let found = outcome.found.unwrap();
    assert!((found.at_max / RATE - 1.0).abs() < 0.01 && (found.max / RATE - 1.0).abs() < 0.01, "{found:?}");
}

#[test]
fn the_buffer_of_a_policer_is_found_within_one_step() {
    let Some(mut policed) = Policed::up(LARGE_BURST) else { return };
    let asked = BackToBack {
        max_rate: MAX_RATE,
        throughput: RATE,
        burst_max: Nanos::from_millis(50),
        step: 16,
        max_repeat: 2,
        n_searches: 3,
    };
    let outcome = back_to_back(&asked, &mut policed);
    if is_too_busy(&outcome) {
        return;
    }
    let found = outcome.found.unwrap();
    println!("{found:?}");
    // A burst of B / (1 - X / R) frames is the longest, and the buffer that follows from it is B.
    let longest = f64::from(LARGE_BURST) / (1.0 - RATE / MAX_RATE);
    let step = 16.0;
    assert!((found.mean - longest).abs() <= step, "{longest}: {found:?}");
    assert!((found.corrected_frames - f64::from(LARGE_BURST)).abs() <= step, "{found:?}");
}
