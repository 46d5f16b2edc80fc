//! Frames between two network namespaces that each test creates: real devices, real counters.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{net::IpAddr, num::NonZeroU32, os::fd::AsFd, thread};

use fathom_engine::{Error, Test, TestKind, TrialContext};
use fathom_model::{
    Endpoints, Histogram, MacAddress, Phases, Record, Role, Settings, Side,
    names::{
        count::{
            FILL_EMPTY, INTENDED, RECEIVED, RING_FULL, SCHEDULE_LAG_NS_MAX, SEND_REFUSED, SENT, SOCKET_DROPPED, UNSENT,
        },
        host,
    },
    units::{self, Bytes, Nanos, PerSec, approximate},
};
use fathom_packet::{
    kinds::frames::{FramesTest, RECOVERY_NS},
    xdp::{DropCounts, DropProgram, FrameMatch, PolicerLimit, dropper, policer},
};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    clock,
    netlink::{Netlink, Veth, VethEnd, namespace::NetNs},
    packet::packet_socket::{ReceiveBuffer, Receiver},
    policy::Policy,
};
use fathom_wire::ChecksumSum;

fn or_skip<T>(outcome: fathom_sys::Result<T>) -> Option<T> {
    fathom_testkit::or_skip(outcome, fathom_sys::Error::is_permission)
}

/// Whether programs may be loaded here. In a user namespace, for example, they may not.
fn may_load_programs() -> bool {
    or_skip(dropper(FrameMatch::AnyIp, NonZeroU32::MIN)).is_some()
}

/// Two hosts joined by a wire; removed with the test, however it ends.
struct Wire {
    near: NetNs,
    far: NetNs,
    far_address: &'static str,
    /// The namespace that forwards between them, if any.
    router: Option<NetNs>,
}

const NEAR: &str = "near0";
const FAR: &str = "far0";
const FAR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

impl Wire {
    fn up() -> Option<Self> {
        Self::of_mtu(1500)
    }

    fn of_mtu(mtu_bytes: u32) -> Option<Self> {
        let near = or_skip(NetNs::new())?;
        let wire = Self { near, far: NetNs::new().unwrap(), far_address: "198.18.0.2", router: None };
        let ends = (VethEnd { name: NEAR, mac: None }, VethEnd { name: FAR, mac: None });
        let veth = Veth { near: ends.0, far: ends.1, far_namespace: Some(wire.far.as_fd()), mtu_bytes, n_queues: 1 };
        wire.near.enter_with(|| Netlink::open().unwrap().add_veth(&veth).unwrap()).unwrap();
        for (side, address) in [(Side::Initiator, "198.18.0.1"), (Side::Responder, "198.18.0.2")] {
            wire.on(side, |name| {
                let mut netlink = Netlink::open().unwrap();
                let index = netlink.link(name).unwrap().index;
                netlink.add_address(index, address.parse().unwrap(), 24).unwrap();
                netlink.set_up(index).unwrap();
            });
        }
        Some(wire)
    }

    /// The same with Linux forwarding in the middle. Also returns the MAC address of the router's near end.
    fn through_router() -> Option<(Self, String)> {
        Self::through_router_that(|out| {
            Netlink::open().unwrap().add_neighbour(out, "198.18.1.2".parse().unwrap(), FAR_MAC).unwrap();
        })
    }

    /// The same, with a setup step for the router's far end.
    fn through_router_that(knows: impl FnOnce(u32) + Send) -> Option<(Self, String)> {
        let near = or_skip(NetNs::new())?;
        let (router, far) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        for (host, (name, mac), to) in [(&near, (NEAR, None), "in0"), (&far, (FAR, Some(FAR_MAC)), "out0")] {
            let ends = (VethEnd { name, mac }, VethEnd { name: to, mac: None });
            let far_namespace = Some(router.as_fd());
            let veth = Veth { near: ends.0, far: ends.1, far_namespace, mtu_bytes: 1500, n_queues: 1 };
            host.enter_with(|| Netlink::open().unwrap().add_veth(&veth).unwrap()).unwrap();
        }
        let up = |name: &str, address: &str| {
            let mut netlink = Netlink::open().unwrap();
            let link = netlink.link(name).unwrap();
            netlink.add_address(link.index, address.parse().unwrap(), 24).unwrap();
            netlink.set_up(link.index).unwrap();
            link
        };
        near.enter_with(|| up(NEAR, "198.18.0.1")).unwrap();
        far.enter_with(|| up(FAR, "198.18.1.2")).unwrap();
        let into = router.enter_with(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            knows(up("out0", "198.18.1.254").index);
            up("in0", "198.18.0.254")
        });
        let mac = into.unwrap().mac.unwrap().to_string();
        Some((Self { near, far, far_address: "198.18.1.2", router: Some(router) }, mac))
    }

    /// Runs code on one host, with the name of its device.
    fn on<T: Send>(&self, side: Side, work: impl FnOnce(&'static str) -> T + Send) -> T {
        match side {
            Side::Initiator => self.near.enter_with(|| work(NEAR)).unwrap(),
            Side::Responder => self.far.enter_with(|| work(FAR)).unwrap(),
        }
    }

    /// Takes the initiator's device down once it has sent some frames.
    fn cut(&self) {
        self.on(Side::Initiator, |name| {
            let mut netlink = Netlink::open().unwrap();
            while netlink.link(name).unwrap().stats.tx_packets < 100 {
                thread::yield_now();
            }
            let index = netlink.link(name).unwrap().index;
            netlink.set_down(index).unwrap();
        });
    }

    /// Attaches a drop program in front of the counter of the responder.
    fn behind(&self, gate: &DropProgram) -> XdpLink {
        self.on(Side::Responder, |name| {
            let index = Netlink::open().unwrap().link(name).unwrap().index;
            gate.attach(index, XdpMode::Native).unwrap()
        })
    }

    fn role(&self, side: Side, name: &str, settings: &Settings, peer: Endpoints) -> Role {
        let address = if side == Side::Initiator { "198.18.0.1" } else { self.far_address };
        Role {
            test: "test".to_owned(),
            kind: FramesTest.name().to_owned(),
            side,
            settings: settings.complete(FramesTest.options()).unwrap(),
            phases: PHASES,
            address: Some(address.parse::<IpAddr>().unwrap()),
            interface: Some(name.to_owned()),
            peer,
            cores: Vec::new(),
            meeting: fathom_model::PeerAddresses::default(),
            seed: 42,
        }
    }

    fn prepare(&self, side: Side, settings: &Settings, peer: Endpoints) -> Result<Box<dyn Test>, Error> {
        self.on(side, |name| FramesTest.prepare(&self.role(side, name, settings, peer), &Policy::anything()))
    }

    /// Runs a trial as agents would: the responder is told to finish once the initiator has returned.
    fn run(&self, options: &[(&str, &str)]) -> Result<Trial, Error> {
        self.run_while(options, || ())
    }

    fn run_while(&self, options: &[(&str, &str)], meanwhile: impl FnOnce() + Send) -> Result<Trial, Error> {
        let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
        let responder = self.prepare(Side::Responder, &settings, Endpoints::new())?;
        let initiator = self.prepare(Side::Initiator, &settings, responder.endpoints())?;
        let start = clock::now() + Nanos::from_millis(20);
        let (sends, counts) = (TrialContext::new(start, PHASES), TrialContext::new(start, PHASES));
        thread::scope(|scope| {
            let finish = counts.stop.clone();
            let responder = scope.spawn(move || responder.run(&counts));
            scope.spawn(meanwhile);
            let initiator = initiator.run(&sends);
            finish.finish();
            Ok(Trial { responder: responder.join().unwrap()?, initiator: initiator? })
        })
    }
}

/// Far more time than any count here takes, so that a busy machine does not change the numbers.
const PHASES: Phases = Phases {
    warmup_max_ns: Nanos::from_millis(50),
    is_warmup_whole: false,
    measure_ns: Nanos::from_secs(10),
    interval_ns: Nanos::from_millis(25),
};

#[derive(Debug)]
struct Trial {
    initiator: Record,
    responder: Record,
}

impl Trial {
    fn sent(&self) -> u64 {
        self.initiator.totals[SENT]
    }

    fn refused(&self) -> u64 {
        self.initiator.totals[SEND_REFUSED]
    }

    fn received(&self) -> u64 {
        self.responder.totals[RECEIVED]
    }

    /// The time from the start to the return of the sender's last worker.
    fn took(&self) -> Nanos {
        *self.initiator.timeline.end_ns.last().unwrap()
    }

    fn notes(&self) -> Vec<&str> {
        self.responder.notes.iter().map(|note| note.id.as_str()).collect()
    }

    /// The number of sent frames that no counter explains.
    ///
    /// A refused frame was never sent, although the device may have counted it as dropped. No counter explains more than is still
    /// missing, because two counters may see the same loss of a virtual device.
    fn unexplained(&self) -> i64 {
        let of = |record: &Record, name: &str| record.totals.get(name).copied().unwrap_or(0);
        let places = [
            of(&self.initiator, host::DEV_TX_DROPPED).saturating_sub(self.refused()),
            of(&self.responder, host::DEV_RX_DROPPED),
            of(&self.responder, host::SOFTNET_DROPPED),
            of(&self.responder, SOCKET_DROPPED),
            of(&self.responder, RING_FULL),
            of(&self.responder, FILL_EMPTY),
        ];
        let missing = i64::try_from(self.sent()).unwrap() - i64::try_from(self.received()).unwrap();
        places.into_iter().fold(missing, |missing, n| missing - i64::try_from(n).unwrap().min(missing.max(0)))
    }

    /// The initiator's note on the backend of its frames.
    fn left_by(&self) -> &str {
        let note = self.initiator.notes.iter().find(|note| note.id == "backend");
        note.map_or("", |note| note.text.as_str())
    }

    fn assert_clean(&self) {
        assert_eq!(self.unexplained(), 0, "{:?}\n{:?}", self.initiator.totals, self.responder.totals);
        assert!(self.initiator.complete && self.responder.complete && self.sent() > 0);
    }
}

#[test]
fn every_frame_of_a_count_arrives_once_and_in_order() {
    let Some(wire) = Wire::up() else { return };
    let trial = wire.run(&[("count", "20000")]).unwrap();
    trial.assert_clean();
    assert_eq!(trial.sent() + trial.refused(), 20_000);
    assert_eq!(trial.received() + trial.responder.totals[SOCKET_DROPPED], trial.sent());
    assert_eq!((trial.responder.totals["reordered"], trial.responder.totals["duplicates"]), (0, 0));
    let expected: &[&str] = if may_load_programs() { &[] } else { &["xdp-unavailable", "arrival-times"] };
    assert_eq!(trial.notes(), expected, "veth has native XDP");
}

#[test]
fn a_count_is_measured_whole_from_the_first_frame_to_the_turn_of_the_last() {
    let Some(wire) = Wire::up() else { return };
    for (backend, _) in backends() {
        // 10 frames have 9 gaps of 1 ms between them, all within the warm-up and the first interval.
        let trial = wire.run(&[("count", "10"), ("rate", "1k"), ("backend", backend)]).unwrap();
        let span = trial.initiator.whole_span().unwrap();
        let late = Nanos(trial.initiator.totals[SCHEDULE_LAG_NS_MAX]);
        let in_time = Nanos::from_millis(10)..=Nanos::from_millis(10) + late;
        assert!(in_time.contains(&span), "{backend}: {span}, {late} late");
        assert!(trial.initiator.complete && trial.initiator.notes.iter().all(|note| note.id != "no-steady-state"));
        assert_eq!(trial.initiator.timeline.end_ns.last(), Some(&span), "{backend}");
    }
}

#[test]
fn each_way_of_counting_counts_the_same() {
    let Some(wire) = Wire::up() else { return };
    let counters: &[&str] = if may_load_programs() { &["native", "generic", "xsk", "socket"] } else { &["socket"] };
    for counter in counters {
        let trial = wire.run(&[("count", "3000"), ("rate", "30k"), ("counter", counter)]).unwrap();
        trial.assert_clean();
        assert_eq!(trial.sent() + trial.refused(), 3_000, "{counter}");
        assert_eq!(trial.received() + trial.responder.totals[SOCKET_DROPPED], trial.sent(), "{counter}");
        let n = |name: &str| trial.responder.distributions.get(name).map(Histogram::count);
        assert_eq!(n("latency_ns"), Some(trial.received()), "{counter}: one clock on both sides");
        // A gap needs two frames on one processor, and a thread may move to another one.
        assert!(n("arrival_gap_ns").is_some_and(|n| 0 < n && n < trial.received()), "{counter}");
        let latency = trial.responder.distributions["latency_ns"].max().unwrap();
        assert!(Nanos(latency) < trial.took(), "{counter}: {latency} ns");
        let is_told = trial.responder.notes.iter().any(|note| note.id == "arrival-times");
        assert_eq!(is_told, *counter == "socket", "{counter}: where times end is told when it is behind the driver");
    }
}

#[test]
fn frames_that_the_kernel_cuts_arrive_one_by_one_as_they_were_asked_for() {
    let Some(wire) = Wire::up() else { return };
    // If the other end of a veth has a native program, it gets frames one by one, and a packet socket can look at those that
    // pass.
    let Some(gate) = or_skip(dropper(FrameMatch::UdpPort(1), NonZeroU32::MIN)) else { return };
    let _link = wire.behind(&gate);
    for size in ["64", "333", "1518"] {
        let index = wire.on(Side::Responder, |name| Netlink::open().unwrap().link(name).unwrap().index);
        let witness = wire.on(Side::Responder, |_| Receiver::open(index, Bytes(8 << 20)).unwrap());
        let options = [("backend", "socket"), ("count", "1000"), ("rate", "200k"), ("burst", "50"), ("size", size)];
        let trial = wire.run(&options).unwrap();
        trial.assert_clean();
        let super_buffers = "frames sent by a packet socket (super-buffers that the kernel cuts)";
        assert!(trial.left_by().starts_with(super_buffers), "{}", trial.left_by());
        assert_eq!((trial.sent(), trial.refused()), (1_000, 0), "{size}");
        assert_eq!((trial.responder.totals["reordered"], trial.responder.totals["duplicates"]), (0, 0), "{size}");
        let (mut inbox, mut n_seen) = (ReceiveBuffer::default(), 0);
        while witness.receive(&mut inbox).unwrap() > 0 {
            let ours = inbox.frames().filter(|(frame, _)| frame[12..14] == [8, 0] && frame[23] == 17);
            for (frame, length) in ours {
                assert_eq!(length.0, size.parse::<u64>().unwrap() - 4);
                let half = |at: usize| u64::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
                assert_eq!((half(16), half(38)), (length.0 - 14, length.0 - 34), "lengths of IPv4 and UDP");
                assert_eq!(
                    ChecksumSum::default().add_bytes(&frame[14..34]).checksum(),
                    0,
                    "the sum of the header is right"
                );
                n_seen += 1;
            }
        }
        assert_eq!(n_seen + witness.take_counts().unwrap().dropped.0, 1_000, "{size}");
    }
    // A super-buffer holds a single flow.
    let trial = wire.run(&[("backend", "socket"), ("count", "1000"), ("rate", "200k"), ("flows", "2")]).unwrap();
    let told = trial.left_by();
    let sendmmsg = "frames sent by a packet socket (sendmmsg); not by a packet socket (super-buffers";
    assert!(told.starts_with(sendmmsg) && told.ends_with("one long frame is of one flow"), "{told}");
}

#[test]
fn frames_that_nobody_would_cut_leave_one_by_one() {
    let Some(wire) = Wire::up() else { return };
    // A veth without a program at its other end passes super-buffers on unsegmented.
    let trial = wire.run(&[("backend", "socket"), ("counter", "socket"), ("count", "500")]).unwrap();
    let told = trial.left_by();
    assert!(told.starts_with("frames sent by a packet socket (sendmmsg)") && told.contains("unsegmented"), "{told}");
    assert_eq!(trial.received() + trial.responder.totals[SOCKET_DROPPED], trial.sent());
}

/// The backends that work here, with the start of each one's note.
fn backends() -> &'static [(&'static str, &'static str)] {
    let all: &[_] = &[
        ("live", "frames sent by XDP"),
        ("xsk", "frames sent by AF_XDP with"),
        ("socket", "frames sent by a packet socket"),
    ];
    if may_load_programs() { all } else { &all[2..] }
}

#[test]
fn each_backend_sends_what_was_asked_for_and_says_which_it_is() {
    let Some(wire) = Wire::up() else { return };
    for (backend, name) in backends() {
        let options = [("count", "20003"), ("rate", "200k"), ("flows", "7"), ("size", "128"), ("backend", *backend)];
        let trial = wire.run(&options).unwrap();
        trial.assert_clean();
        assert!(trial.left_by().starts_with(name), "{}", trial.left_by());
        assert_eq!(trial.sent() + trial.refused(), 20_003, "{backend}");
        assert_eq!((trial.responder.totals["reordered"], trial.responder.totals["duplicates"]), (0, 0), "{backend}");
        let latency = trial.responder.distributions.get("latency_ns");
        assert_eq!(latency.map(Histogram::count), Some(trial.received()), "{backend}: one clock on both sides");
    }
}

#[test]
fn the_best_backend_is_taken_and_what_a_better_one_lacks_is_told() {
    let Some(wire) = Wire::up().filter(|_| may_load_programs()) else { return };
    assert_eq!(wire.run(&[("count", "100")]).unwrap().left_by(), "frames sent by XDP (BPF_PROG_TEST_RUN)");
    // If its other end has a generic program, a veth accepts no redirected frames.
    let options = [("count", "1000"), ("rate", "50k"), ("counter", "generic")];
    let trial = wire.run(&options).unwrap();
    trial.assert_clean();
    let told = trial.left_by();
    assert!(told.starts_with("frames sent by AF_XDP with copies; not by XDP"), "{told}");
    assert!(told.contains("near0 takes no redirected frames") && told.contains("AF_XDP without copies: "), "{told}");
    let error = wire.run(&[&options[..], &[("backend", "live")]].concat()).unwrap_err();
    assert!(error.to_string().starts_with("frames cannot leave near0 as was asked: XDP"), "{error}");
    assert_eq!(error.hint(), Some("leave out --backend, and the best one that works is taken"));
    // Only frames of a socket pass a queueing discipline.
    let trial = wire.run(&[("count", "100"), ("qdisc", "true")]).unwrap();
    assert!(trial.left_by().starts_with("frames sent by a packet socket"), "{}", trial.left_by());
}

#[test]
fn flat_out_long_frames_are_better_than_copies_and_at_a_rate_copies_are() {
    // The frames are too long to be built in the kernel, and the devices get them one by one.
    let Some(wire) = Wire::of_mtu(3_482).filter(|_| may_load_programs()) else { return };
    let orders: [(&[(&str, &str)], &str); 2] = [
        (&[], "frames sent by a packet socket (super-buffers that the kernel cuts); not by XDP"),
        (&[("rate", "10k")], "frames sent by AF_XDP with copies; not by XDP"),
    ];
    for (rate, first) in orders {
        let trial = wire.run(&[&[("count", "500"), ("size", "3500")], rate].concat()).unwrap();
        trial.assert_clean();
        assert!(trial.left_by().starts_with(first), "{}", trial.left_by());
    }
}

#[test]
fn at_any_rate_what_left_and_what_did_not_are_together_what_was_intended() {
    let Some(wire) = Wire::up() else { return };
    for (backend, _) in backends() {
        for (rate, count) in [("1k", "50"), ("100k", "5000"), ("1M", "50000")] {
            let trial = wire.run(&[("rate", rate), ("count", count), ("backend", backend)]).unwrap();
            let totals = &trial.initiator.totals;
            assert_eq!(trial.sent() + trial.refused(), count.parse::<u64>().unwrap(), "{backend} {rate}");
            assert_eq!(
                trial.sent() + trial.refused() + totals[UNSENT],
                totals[INTENDED],
                "{backend} {rate}: {totals:?}"
            );
            assert!(totals.contains_key(SCHEDULE_LAG_NS_MAX));
            trial.assert_clean();
        }
    }
}

#[test]
fn bursts_and_random_arrivals_leave_by_every_backend() {
    let Some(wire) = Wire::up() else { return };
    for (backend, _) in backends() {
        for pattern in [&[("burst", "32")][..], &[("arrivals", "poisson")], &[("arrivals", "poisson"), ("burst", "8")]]
        {
            let trial =
                wire.run(&[pattern, &[("rate", "50k"), ("count", "3200"), ("backend", backend)]].concat()).unwrap();
            trial.assert_clean();
            assert_eq!(trial.sent() + trial.refused(), 3_200, "{backend} {pattern:?}");
            assert!(trial.took() >= Nanos::from_millis(45), "{backend} {pattern:?}: {}", trial.took());
        }
    }
    let error = wire.run(&[("burst", "8")]).unwrap_err();
    assert_eq!(error.to_string(), "bursts need a rate: flat out, each frame leaves directly after the previous one");
}

#[test]
fn a_rate_changes_within_a_trial_and_all_that_was_due_is_accounted_for() {
    let Some(wire) = Wire::up() else { return };
    for (backend, _) in backends() {
        let steps = [("rate", "20k"), ("step-at", "50ms"), ("step-rate", "2k"), ("count", "1100")];
        let trial = wire.run(&[&steps[..], &[("backend", backend), ("flows", "3")]].concat()).unwrap();
        trial.assert_clean();
        let totals = &trial.initiator.totals;
        assert_eq!(trial.sent() + trial.refused(), 1_100, "{backend}");
        assert_eq!(trial.sent() + trial.refused() + totals[UNSENT], totals[INTENDED], "{backend}: {totals:?}");
        // 1000 frames at the first rate take 50 ms, and the next 100 take just as long.
        assert!(trial.took() >= Nanos::from_millis(99), "{backend}: {}", trial.took());
        assert_eq!((trial.responder.totals["reordered"], trial.responder.totals["duplicates"]), (0, 0), "{backend}");
        let recovery = may_load_programs().then(|| trial.responder.totals[RECOVERY_NS]);
        assert!(recovery.is_none_or(|recovery| recovery == 0), "{backend}: nothing was lost, {recovery:?}");
    }
}

#[test]
fn the_last_loss_after_a_change_of_the_rate_is_the_recovery() {
    let Some((wire, mac)) = Wire::through_router().filter(|_| may_load_programs()) else { return };
    // At most 101 frames leave before the step, so the dropped frame leaves after it.
    let step = [("rate", "20k"), ("step-at", "5ms"), ("step-rate", "2k")];
    let options = [&step[..], &[("count", "300"), ("mac", mac.as_str())]].concat();
    let gate = dropper(FrameMatch::UdpPort(9), NonZeroU32::new(250).unwrap()).unwrap();
    let attach = || gate.attach(Netlink::open().unwrap().link("in0").unwrap().index, XdpMode::Native).unwrap();
    let _link = wire.router.as_ref().unwrap().enter_with(attach).unwrap();
    let trial = wire.run(&options).unwrap();
    assert_eq!(gate.counts().unwrap().dropped, units::Frames(1));
    assert!(trial.received() < trial.sent(), "{:?}", trial.responder.totals);
    let recovery = Nanos(trial.responder.totals[RECOVERY_NS]);
    assert!(recovery > Nanos::ZERO && recovery < trial.took(), "{recovery} of {}", trial.took());
    // A counter that polls does not see when a frame came in.
    let trial = wire.run(&[&options[..], &[("counter", "socket")]].concat()).unwrap();
    assert!(!trial.responder.totals.contains_key(RECOVERY_NS), "{:?}", trial.responder.totals);
    assert_eq!(trial.notes(), ["arrival-times", "recovery-withheld"]);
}

#[test]
fn a_device_learns_where_the_ends_are_before_the_trial_and_that_is_not_counted_in_it() {
    let Some((wire, mac)) = Wire::through_router_that(|_| ()) else { return };
    let router = wire.router.as_ref().unwrap();
    let known = || {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("out0").unwrap().index;
        netlink.neighbour(index, "198.18.1.2".parse().unwrap()).unwrap()
    };
    assert_eq!(router.enter_with(known).unwrap(), None, "the router does not know the receiver");
    let options = [("mac", mac.as_str()), ("learning", "5"), ("rate", "2k"), ("count", "100")];
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    let responder = wire.prepare(Side::Responder, &settings, Endpoints::new()).unwrap();
    let initiator = wire.prepare(Side::Initiator, &settings, responder.endpoints()).unwrap();
    let deadline = clock::now() + Nanos::from_secs(20);
    while router.enter_with(known).unwrap() != Some(FAR_MAC) {
        assert!(clock::now() < deadline, "the router does not learn where the receiver is before the trial");
        thread::yield_now();
    }
    drop((initiator, responder));
    let trial = wire.run(&options).unwrap();
    assert_eq!([&trial.initiator, &trial.responder].map(|record| record.totals["learning_frames"]), [5, 5]);
    assert_eq!((trial.sent() + trial.refused(), trial.unexplained()), (100, 0), "{:?}", trial.responder.totals);
    let told = |record: &Record| record.notes.iter().any(|note| note.id == "learning");
    assert!(told(&trial.initiator) && told(&trial.responder));
    let error = wire.run(&[("mac", mac.as_str()), ("learning", "5"), ("learning-wait", "1min")]).unwrap_err();
    assert!(error.to_string().ends_with("learning-wait is at most 10.0 s"), "{error}");
}

#[test]
fn half_a_change_of_the_rate_is_refused_with_the_other_half() {
    let Some(wire) = Wire::up() else { return };
    let refused = |options: &[(&str, &str)]| {
        let error = wire.run(options).unwrap_err();
        (error.to_string(), error.hint().unwrap_or_default().to_owned())
    };
    let (told, hint) = refused(&[("rate", "1k"), ("step-at", "1s")]);
    assert_eq!((told.as_str(), hint.as_str()), ("a change of the rate needs --step-rate too", "--step-rate 50k"));
    let (told, hint) = refused(&[("rate", "1k"), ("step-rate", "500")]);
    assert_eq!((told.as_str(), hint.as_str()), ("a change of the rate needs --step-at too", "--step-at 1s"));
    let step = [("step-at", "1s"), ("step-rate", "500")];
    assert_eq!(refused(&step).1, "--rate 100k", "flat out there is no rate to change");
    assert_eq!(refused(&[&step[..], &[("rate", "1k"), ("arrivals", "poisson")]].concat()).1, "--arrivals constant");
}

#[test]
fn a_hundred_thousand_flows_each_keep_their_order() {
    let Some(wire) = Wire::up().filter(|_| may_load_programs()) else { return };
    for (backend, _) in backends() {
        let options = [("flows", "100000"), ("count", "200001"), ("rate", "200k"), ("backend", *backend)];
        let trial = wire.run(&options).unwrap();
        trial.assert_clean();
        assert_eq!(trial.sent() + trial.refused(), 200_001, "{backend}");
        assert_eq!((trial.responder.totals["reordered"], trial.responder.totals["duplicates"]), (0, 0), "{backend}");
    }
}

#[test]
fn workers_need_a_flow_each() {
    let Some(wire) = Wire::up() else { return };
    let error = wire.run(&[("threads", "3"), ("flows", "2")]).unwrap_err();
    assert_eq!(error.to_string(), "3 workers need a flow each, and there are 2");
    let trial = wire.run(&[("threads", "2"), ("flows", "3"), ("count", "3001"), ("rate", "30k")]).unwrap();
    trial.assert_clean();
    assert_eq!(trial.sent() + trial.refused(), 3_001);
}

#[test]
fn loss_that_was_planted_in_the_way_of_live_frames_is_found_exactly() {
    let Some(wire) = Wire::up() else { return };
    let Some(gate) = or_skip(dropper(FrameMatch::UdpPort(9), NonZeroU32::new(100).unwrap())) else { return };
    let _link = wire.behind(&gate);
    let trial = wire.run(&[("count", "5000"), ("rate", "40k"), ("backend", "live")]).unwrap();
    let DropCounts { passed, dropped } = gate.counts().unwrap();
    let of_ring = trial.initiator.totals[host::DEV_TX_DROPPED];
    assert_eq!((trial.sent(), passed.0 + dropped.0 + of_ring), (5_000, 5_000));
    assert_eq!(dropped.0, (5_000 - of_ring) / 100);
    assert_eq!(trial.received() + trial.responder.totals[SOCKET_DROPPED], passed.0);
}

#[test]
fn live_frames_are_made_anew_whatever_a_router_on_the_same_machine_wrote_into_their_pages() {
    let Some((wire, mac)) = Wire::through_router().filter(|_| may_load_programs()) else { return };
    // A veth accepts redirected frames while its other end has a program; this one passes all frames.
    let gate = dropper(FrameMatch::UdpPort(1), NonZeroU32::MIN).unwrap();
    let attach = || gate.attach(Netlink::open().unwrap().link("in0").unwrap().index, XdpMode::Native).unwrap();
    let _link = wire.router.as_ref().unwrap().enter_with(attach).unwrap();
    let options = [("mac", mac.as_str()), ("count", "20000"), ("rate", "100k"), ("backend", "live")];
    let trial = wire.run(&options).unwrap();
    assert_eq!(trial.sent(), 20_000);
    let of_ring = trial.initiator.totals[host::DEV_TX_DROPPED];
    assert_eq!(trial.received() + of_ring, trial.sent(), "{:?}", trial.responder.totals);
    assert_eq!(trial.responder.totals["reordered"], 0);
}

#[test]
fn live_frames_out_of_a_device_that_went_down_are_not_taken_for_sent_for_long() {
    let Some(wire) = Wire::up().filter(|_| may_load_programs()) else { return };
    let trial = wire.run_while(&[("rate", "10k"), ("backend", "live")], || wire.cut()).unwrap();
    assert!(!trial.initiator.complete && trial.sent() >= 50, "{:?}", trial.initiator.totals);
    assert_eq!(
        trial.initiator.errors.keys().map(ToString::to_string).collect::<Vec<_>>(),
        ["live frames: network down"]
    );
}

#[test]
fn several_flows_share_the_count_and_each_keeps_its_order() {
    let Some(wire) = Wire::up() else { return };
    let counters: &[&str] = if may_load_programs() { &["native", "socket"] } else { &["socket"] };
    for counter in counters {
        let trial = wire.run(&[("count", "3001"), ("rate", "30k"), ("flows", "3"), ("counter", counter)]).unwrap();
        trial.assert_clean();
        assert_eq!(trial.sent() + trial.refused(), 3_001, "{counter}");
        assert_eq!((trial.responder.totals["reordered"], trial.responder.totals["duplicates"]), (0, 0), "{counter}");
    }
}

#[test]
fn long_frames_arrive_and_too_long_ones_are_refused_before_the_start() {
    let Some(wire) = Wire::up() else { return };
    let trial = wire.run(&[("count", "500"), ("size", "1518"), ("rate", "10k")]).unwrap();
    trial.assert_clean();
    let error = wire.run(&[("size", "1519")]).unwrap_err();
    assert_eq!(error.to_string(), "frames of 1519 bytes need an MTU of 1501, and that of far0 is 1500");
    assert_eq!(error.hint(), Some("ip link set far0 mtu 1501, on both ends"));
}

#[test]
fn a_rate_is_never_exceeded() {
    let Some(wire) = Wire::up() else { return };
    let trial = wire.run(&[("rate", "20k"), ("count", "2000")]).unwrap();
    trial.assert_clean();
    assert!(trial.initiator.totals[INTENDED] >= 2_000);
    assert_eq!(trial.sent() + trial.refused(), 2_000);
    assert!(trial.took() >= Nanos::from_micros(99_950), "{}", trial.took());
    let error = wire.run(&[("rate", "0")]).unwrap_err();
    assert_eq!(error.to_string(), "at a rate of zero nothing would be sent");
}

#[test]
fn planted_loss_is_found_exactly_and_an_occupied_device_is_told() {
    let Some(wire) = Wire::up() else { return };
    let Some(gate) = or_skip(dropper(FrameMatch::UdpPort(9), NonZeroU32::new(100).unwrap())) else { return };
    let _link = wire.behind(&gate);
    // The device already has a program, so the counter steps down to a socket behind it, and says so.
    let trial = wire.run(&[("count", "5000"), ("rate", "40k")]).unwrap();
    assert_eq!(trial.notes(), ["xdp-unavailable", "arrival-times"]);
    let DropCounts { passed, dropped } = gate.counts().unwrap();
    assert_eq!(passed.0 + dropped.0, trial.sent());
    assert_eq!(dropped.0, trial.sent() / 100);
    assert_eq!(trial.received() + trial.responder.totals[SOCKET_DROPPED], passed.0);
    assert_eq!(trial.unexplained(), i64::try_from(dropped.0).unwrap(), "no counter of the kernel saw the gate");
}

#[test]
fn a_device_without_native_mode_is_counted_in_generic_mode_and_that_is_told() {
    // Frames of 9000 bytes do not fit into a page, so veth refuses native XDP.
    let Some(wire) = Wire::of_mtu(9000).filter(|_| may_load_programs()) else { return };
    let trial = wire.run(&[("count", "500"), ("rate", "10k"), ("size", "9018")]).unwrap();
    trial.assert_clean();
    assert_eq!(trial.notes(), ["xdp-generic"]);
    assert_eq!(trial.received(), 500);
}

#[test]
fn a_policer_lets_its_rate_and_one_burst_pass() {
    let Some(wire) = Wire::up() else { return };
    let limit = PolicerLimit { rate: PerSec::new(10_000.0).unwrap(), burst: 1_000 };
    let Some(gate) = or_skip(policer(FrameMatch::UdpPort(9), limit)) else { return };
    let _link = wire.behind(&gate);
    let trial = wire.run(&[("rate", "30k"), ("count", "6000"), ("counter", "socket")]).unwrap();
    let DropCounts { passed, dropped } = gate.counts().unwrap();
    assert_eq!((passed + dropped).0, trial.sent());
    assert_eq!(trial.received() + trial.responder.totals[SOCKET_DROPPED], passed.0);
    // The used part of the rate depends on the sender's pauses; these bounds do not.
    let most = 10_000.0 * trial.took().as_secs_f64() + 1_001.0;
    assert!(passed.0 >= 1_000 && approximate(passed.0) <= most, "{passed} of at most {most} passed");
}

#[test]
fn a_sink_that_receives_nothing_says_so_and_has_its_account_all_the_same() {
    let Some(wire) = Wire::up() else { return };
    let Some(gate) = or_skip(dropper(FrameMatch::AnyIp, NonZeroU32::MIN)) else { return };
    let _link = wire.behind(&gate);
    let trial = wire.run(&[("count", "100")]).unwrap();
    let note = trial.responder.notes.iter().find(|note| note.id == "nothing-arrived").unwrap();
    assert!(note.text.starts_with("none of the frames arrived at far0, which received "), "{}", note.text);
    assert_eq!((trial.sent() + trial.refused(), trial.received()), (100, 0));
}

#[test]
fn a_device_that_is_down_is_refused_before_the_start() {
    let Some(wire) = Wire::up() else { return };
    wire.on(Side::Initiator, |name| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link(name).unwrap().index;
        netlink.set_down(index).unwrap();
    });
    let error = wire.run(&[]).unwrap_err();
    assert_eq!(error.to_string(), "far0 has no carrier");
    assert!(error.is_preflight());
}

#[test]
fn what_was_sent_before_a_device_went_down_is_kept_as_incomplete() {
    let Some(wire) = Wire::up() else { return };
    let trial = wire.run_while(&[("rate", "10k"), ("backend", "socket")], || wire.cut()).unwrap();
    // The hundred frames counted by the device include the few that the kernel's IPv6 sends on its own.
    assert!(!trial.initiator.complete && trial.sent() >= 50, "{:?}", trial.initiator.totals);
    let told: Vec<_> = trial.initiator.errors.keys().map(ToString::to_string).collect();
    let [error] = told.as_slice() else { panic!("{told:?}") };
    assert!(error.contains("(AF_PACKET") && error.ends_with(": network down"), "{error}");
}

#[test]
fn frames_to_many_hosts_at_once_are_refused() {
    let Some(wire) = Wire::up() else { return };
    let error = wire.run(&[("mac", "ff:ff:ff:ff:ff:ff")]).unwrap_err();
    assert_eq!(error.to_string(), "ff:ff:ff:ff:ff:ff and 198.18.0.2 must each be of a single host");
}

/// Lines that each make different headers.
const LINES: &[&str] = &[
    "vlan 100 / ip / udp 1024-65535? > 9",
    "svlan 5 / vlan 6-9 each / ip6 / tcp > 80 seq ? each",
    "mpls 16 / mpls 17 / ip ttl 3 / icmp seq 0-65535 each",
    "ip 10.0.0.0/24 > 10.9.0.0/16? each options 01010101 / udp",
    "arp",
    "eth > ff:ff:ff:ff:ff:ff type 0x88b5 / \"text\" mark random",
];

#[test]
fn frames_of_a_line_leave_by_every_backend_and_are_counted_whatever_their_headers_are() {
    let Some(wire) = Wire::up().filter(|_| may_load_programs()) else { return };
    for (backend, _) in backends() {
        for line in LINES {
            let options = [("frame", *line), ("count", "2001"), ("rate", "100k"), ("backend", *backend)];
            let trial = wire.run(&options).unwrap_or_else(|error| panic!("{backend}: {line}: {error}"));
            trial.assert_clean();
            assert_eq!(trial.sent() + trial.refused(), 2_001, "{backend}: {line}");
            assert_eq!(trial.received(), trial.sent(), "{backend}: {line}");
            let order = (trial.responder.totals["reordered"], trial.responder.totals["duplicates"]);
            assert_eq!(order, (0, 0), "{backend}: {line}");
        }
    }
}

#[test]
fn frames_of_a_mix_are_all_counted_and_each_size_has_its_share() {
    let Some(wire) = Wire::up().filter(|_| may_load_programs()) else { return };
    let bytes =
        |wire: &Wire| wire.on(Side::Responder, |name| Netlink::open().unwrap().link(name).unwrap().stats.rx_bytes);
    for (backend, _) in backends() {
        let before = bytes(&wire);
        let options = [("mix", "imix"), ("flows", "5"), ("count", "6000"), ("rate", "100k"), ("backend", *backend)];
        let trial = wire.run(&options).unwrap_or_else(|error| panic!("{backend}: {error}"));
        trial.assert_clean();
        assert_eq!((trial.sent() + trial.refused(), trial.refused()), (6_000, 0), "{backend}");
        let expected = 6_000 / 12 * (7 * 60 + 4 * 566 + 1_514);
        // veth counts frames from the stack without their 14-byte header. The kernel also sends a few frames of its own.
        let counted = bytes(&wire) - before + if *backend == "live" { 0 } else { 6_000 * 14 };
        assert!(
            (expected..expected + 5_000).contains(&counted),
            "{backend}: {counted} bytes, and {expected} were sent"
        );
    }
}

#[test]
fn an_address_that_the_device_does_not_have_is_not_sent_from() {
    let Some(wire) = Wire::up() else { return };
    let witness = wire.on(Side::Responder, |name| {
        let index = Netlink::open().unwrap().link(name).unwrap().index;
        Receiver::open(index, Bytes(8 << 20)).unwrap()
    });
    let settings = Settings::default().with("count", "20").with("counter", "socket").with("backend", "socket");
    let responder = wire.prepare(Side::Responder, &settings, Endpoints::new()).unwrap();
    let role = Role {
        address: Some("203.0.113.77".parse().unwrap()),
        ..wire.role(Side::Initiator, NEAR, &settings, responder.endpoints())
    };
    let initiator = wire.on(Side::Initiator, |_| FramesTest.prepare(&role, &Policy::anything()).unwrap());
    let sent = initiator.run(&TrialContext::new(clock::now(), PHASES)).unwrap().totals[SENT];
    let (mut inbox, mut n_seen) = (ReceiveBuffer::default(), 0);
    while n_seen < sent && witness.receive(&mut inbox).unwrap() > 0 {
        for (frame, _) in inbox.frames().filter(|(frame, _)| frame[12..14] == [8, 0]) {
            assert_eq!(frame[26..30], [198, 18, 0, 1]);
            n_seen += 1;
        }
    }
    assert_eq!(n_seen, sent);
}

#[test]
fn a_capture_is_sent_as_it_is_and_counted_by_the_frame() {
    let Some(wire) = Wire::up().filter(|_| may_load_programs()) else { return };
    let path = std::env::temp_dir().join(format!("fathom-frames-{}.pcap", std::process::id()));
    let mut file: Vec<u8> =
        [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    for length in [60_u32, 200, 1514] {
        file.extend([0, 0, length, length].iter().flat_map(|word| word.to_le_bytes()));
        // One of them goes to an IPv6 multicast group, to which kernels announce themselves too.
        let head: [u8; 14] = match length {
            200 => [0x33, 0x33, 0, 0, 0, 0xfb, 2, 0, 0, 0, 0, 1, 0x86, 0xdd],
            _ => [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5],
        };
        file.extend([&head[..], &vec![7; usize::try_from(length).unwrap() - 14]].concat());
    }
    std::fs::write(&path, file).unwrap();
    let path_text = path.to_str().unwrap();
    for (backend, _) in backends() {
        for counter in ["native", "generic", "socket"] {
            let options = [
                ("capture", path_text),
                ("count", "3000"),
                ("rate", "50k"),
                ("backend", *backend),
                ("counter", counter),
            ];
            // If its other end has a generic program, a veth accepts no redirected frames.
            if *backend == "live" && counter != "native" {
                continue;
            }
            let trial = wire.run(&options).unwrap_or_else(|error| panic!("{backend} {counter}: {error}"));
            assert_eq!((trial.sent(), trial.received()), (3_000, 3_000), "{backend} {counter}");
            assert_eq!(trial.responder.notes.iter().filter(|note| note.id == "frames-unmarked").count(), 1);
            assert!(!trial.responder.notes.iter().any(|note| note.id == "latency-withheld"));
            assert!(!trial.responder.distributions.contains_key("latency_ns"));
        }
    }
    std::fs::remove_file(&path).unwrap();
    let error = wire.run(&[("capture", path_text)]).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot send the capture {path_text}: No such file")), "{error}");
}
