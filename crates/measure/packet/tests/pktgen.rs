//! The kernel's pktgen itself: what it accepts, refuses and changes, and what a receiver sees of it.
//!
//! Most kernels have not loaded it. `make test-vm` boots a kernel with pktgen in an emulated machine, and runs this there.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    os::fd::AsFd,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use fathom_engine::{Error as EngineError, Test, TestKind as _, TrialContext};
use fathom_model::{
    Endpoints, MacAddress, Phases, Record, Role, Settings, Side,
    names::count::{DUPLICATES, INTENDED, RECEIVED, REORDERED, SEND_REFUSED, SENT, SOCKET_DROPPED, UNSENT},
    units::{Bytes, Frames, Nanos, approximate},
};
use fathom_packet::{
    craft::{self, FrameContext, FrameEndpoint, FrameEndpoints},
    kinds::{frames::FramesTest as FramesKind, pktgen_receive::PktgenReceive},
};
use fathom_pktgen::{
    CommandResult, DevicePorts, Error, PktgenDir, PktgenPacket, PktgenSession, PktgenSetting, ReceivedPackets, Status,
    Value, XmitMode,
};
use fathom_sys::{
    bpf::{
        Assembler, Helper, Program, ProgramType,
        Register::{R1, R2, R3},
        SocketMap, XdpLink, XdpMode,
    },
    clock,
    netlink::{Netlink, Veth, VethEnd, namespace::NetNs},
    packet::{
        packet_socket::{MAX_BATCH, ReceiveBuffer, Receiver},
        xsk::{self, Mode, Queue},
    },
    policy::Policy,
};
use fathom_wire::Mark;

const NEAR: &str = "near0";
const FAR: &str = "far0";
/// The port of the first flow; the others follow.
const PORT: u16 = 49_152;

/// Whether there is a pktgen to test. On a machine that must have one, its absence is a failure.
fn is_there() -> bool {
    let is_there = Path::new("/proc/net/pktgen").exists();
    if !is_there {
        assert!(std::env::var_os("FATHOM_TEST_VM").is_none(), "this machine was booted to have pktgen");
        fathom_testkit::skip_everywhere("this kernel has no pktgen loaded; make test-vm boots one that has");
    }
    is_there
}

/// Two hosts joined by a wire; removed with the test, however it ends.
struct Wire {
    near: NetNs,
    far: NetNs,
    to: MacAddress,
}

impl Wire {
    fn up() -> Option<Self> {
        if !is_there() {
            return None;
        }
        let (near, far) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        let ends = (VethEnd { name: NEAR, mac: None }, VethEnd { name: FAR, mac: None });
        let namespace = Some(far.as_fd());
        let veth = Veth { near: ends.0, far: ends.1, far_namespace: namespace, mtu_bytes: 1500, n_queues: 2 };
        near.enter_with(|| Netlink::open().unwrap().add_veth(&veth).unwrap()).unwrap();
        let set_up = |name: &'static str, address: &'static str| {
            move || {
                let mut netlink = Netlink::open().unwrap();
                let link = netlink.link(name).unwrap();
                netlink.add_address(link.index, address.parse().unwrap(), 24).unwrap();
                netlink.set_up(link.index).unwrap();
                link.mac.unwrap()
            }
        };
        near.enter_with(set_up(NEAR, "198.18.0.1")).unwrap();
        let to = far.enter_with(set_up(FAR, "198.18.0.2")).unwrap();
        Some(Self { near, far, to })
    }

    /// Runs code with the pktgen of the sending host.
    fn with<T: Send>(&self, work: impl FnOnce(PktgenSession) -> T + Send) -> T {
        self.near.enter_with(|| work(PktgenSession::claim(&PktgenDir::default()).unwrap())).unwrap()
    }

    /// The common settings of every device.
    fn basics(&self, flow: u16) -> Vec<PktgenSetting> {
        let address = Value::Address(Ipv4Addr::new(198, 18, 0, 2).into());
        let port = u64::from(PORT + flow);
        vec![
            PktgenSetting::new("dst_min", address),
            PktgenSetting::new("dst_mac", self.to),
            PktgenSetting::new("udp_src_min", port),
            PktgenSetting::new("udp_src_max", port),
            PktgenSetting::new("pkt_size", 60_u64),
            PktgenSetting::new("count", 1_000_u64),
        ]
    }

    /// Sends with these settings and the common ones, and counts the packets that arrive.
    fn run(&self, lines: &[&str]) -> Trial {
        self.run_on(&[(0, "near0@0")], lines)
    }

    fn run_on(&self, devices: &[(usize, &str)], lines: &[&str]) -> Trial {
        let receiver = self.far.enter_with(|| {
            let index = Netlink::open().unwrap().link(FAR).unwrap().index;
            Receiver::open_stamped(index, Bytes(32 << 20)).unwrap()
        });
        let (receiver, is_over) = (receiver.unwrap(), AtomicBool::new(false));
        let n_flows = u32::try_from(devices.len()).unwrap();
        thread::scope(|scope| {
            let counted = scope.spawn(|| count(&receiver, n_flows, &is_over));
            // The counter ends with the sender, even if that panics.
            let sending = Over(&is_over);
            let statuses = self.with(|mut generator| {
                for ((thread, device), flow) in devices.iter().zip(0..) {
                    generator.add(*thread, device).unwrap();
                    let asked = lines.iter().map(|line| line.parse().unwrap());
                    for setting in self.basics(flow).into_iter().chain(asked) {
                        generator.set(device, &setting).unwrap();
                    }
                }
                assert_eq!(generator.changes().unwrap(), []);
                let deadline = clock::now() + Nanos::from_secs(10);
                generator.run(|| clock::now() > deadline).unwrap();
                assert_eq!(generator.changes().unwrap(), []);
                let statuses = devices.iter().map(|(_, device)| status(device)).collect();
                generator.release().unwrap();
                statuses
            });
            drop(sending);
            Trial { statuses, arrivals: counted.join().unwrap() }
        })
    }
}

/// Far more time than any count here takes, except one that is cut off.
const PHASES: Phases = Phases {
    warmup_max_ns: Nanos::ZERO,
    is_warmup_whole: false,
    measure_ns: Nanos::from_secs(20),
    interval_ns: Nanos::from_millis(100),
};

impl Wire {
    fn prepare(&self, side: Side, settings: &Settings, peer: Endpoints) -> Result<Box<dyn Test>, EngineError> {
        let (host, name, address) = match side {
            Side::Initiator => (&self.near, NEAR, "198.18.0.1"),
            Side::Responder => (&self.far, FAR, "198.18.0.2"),
        };
        let role = Role {
            test: "test".to_owned(),
            kind: FramesKind.name().to_owned(),
            side,
            settings: settings.complete(FramesKind.options()).unwrap(),
            phases: PHASES,
            address: Some(address.parse().unwrap()),
            interface: Some(name.to_owned()),
            peer,
            cores: Vec::new(),
            meeting: fathom_model::PeerAddresses::default(),
            seed: 42,
        };
        host.enter_with(|| FramesKind.prepare(&role, &Policy::anything())).unwrap()
    }

    /// A trial of the kind `frames`, run as agents would. It is told to end once the sender has sent `cut_at` frames.
    fn measure(&self, options: &[(&str, &str)], cut_at: u64) -> Result<(Record, Record), EngineError> {
        let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
        let responder = self.prepare(Side::Responder, &settings, Endpoints::new())?;
        let initiator = self.prepare(Side::Initiator, &settings, responder.endpoints())?;
        let start = clock::now() + Nanos::from_millis(20);
        let (sends, counts) = (TrialContext::new(start, PHASES), TrialContext::new(start, PHASES));
        let (stop, finish, is_over) = (sends.stop.clone(), counts.stop.clone(), AtomicBool::new(false));
        thread::scope(|scope| {
            let responder = scope.spawn(move || responder.run(&counts));
            scope.spawn(|| {
                self.near
                    .enter_with(|| {
                        let mut netlink = Netlink::open().unwrap();
                        while netlink.link(NEAR).unwrap().stats.tx_packets < cut_at && !is_over.load(Ordering::Acquire)
                        {
                            clock::sleep_until(clock::now() + Nanos::from_millis(5));
                        }
                        stop.finish();
                    })
                    .unwrap();
            });
            let sent = initiator.run(&sends);
            is_over.store(true, Ordering::Release);
            finish.finish();
            Ok((sent?, responder.join().unwrap()?))
        })
    }
}

/// Reads the status of a device, and checks that fathom prints it in the same way.
fn status(device: &str) -> Status {
    let text = std::fs::read_to_string(format!("/proc/thread-self/net/pktgen/{device}")).unwrap();
    let status: Status = text.parse().unwrap();
    // One answer has an extra empty line at its end.
    assert_eq!(status.to_string().trim_end(), text.trim_end());
    status
}

/// Counts until the sender is done and nothing has arrived for a while.
fn count(receiver: &Receiver, n_flows: u32, is_over: &AtomicBool) -> ReceivedPackets {
    let (mut inbox, mut arrivals) =
        (ReceiveBuffer::default(), ReceivedPackets::of(DevicePorts { first: PORT, each: 1 }, n_flows));
    loop {
        let was_over = is_over.load(Ordering::Acquire);
        let has_more = receiver.wait(Nanos::from_millis(300)).unwrap();
        while receiver.receive(&mut inbox).unwrap() > 0 {
            for ((frame, length), at) in inbox.frames().zip(inbox.stamps()) {
                arrivals.record(frame, length, at);
            }
        }
        if was_over && !has_more {
            assert_eq!(receiver.take_counts().unwrap().dropped, Frames(0), "the receiver has room");
            return arrivals;
        }
    }
}

/// Applies a setting given as a line.
fn set(generator: &mut PktgenSession, device: &str, line: &str) -> Result<(), Error> {
    generator.set(device, &line.parse().unwrap())
}

/// Tells the counter that the sender is done.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

struct Trial {
    statuses: Vec<Status>,
    arrivals: ReceivedPackets,
}

impl Trial {
    fn sent(&self) -> u64 {
        self.statuses.iter().map(|status| status.progress.sent).sum()
    }
}

/// Runs an iproute2 command on the sending host.
fn tc(wire: &Wire, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let output = wire.near.enter_with(|| Command::new("tc").args(words).output().unwrap()).unwrap();
    assert!(output.status.success(), "tc {line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_packet_of_a_count_arrives_once_in_order_and_with_a_latency() {
    let Some(wire) = Wire::up() else { return };
    let trial = wire.run(&[]);
    let CommandResult::Finished(finished) = trial.statuses[0].last_result else { panic!("{:?}", trial.statuses[0]) };
    assert_eq!((trial.sent(), finished.sent, finished.errors, finished.size_bytes), (1_000, 1_000, 0, 60));
    assert_eq!(finished.bps, finished.pps * 60 * 8);
    let arrivals = trial.arrivals;
    assert_eq!((arrivals.frames, arrivals.bytes), (Frames(1_000), Bytes(60_000)));
    assert_eq!((arrivals.reordered(), arrivals.duplicates(), arrivals.untimely), (Frames(0), Frames(0), Frames(0)));
    // The first socket that asks for stamps gets them a moment later, which is before the first of a thousand packets.
    assert_eq!(arrivals.latency_ns.count(), 1_000);
    assert!(arrivals.latency_ns.max().unwrap() < 60_000_000_000);
}

#[test]
fn mixed_sizes_arrive_as_often_as_they_were_counted() {
    let Some(wire) = Wire::up() else { return };
    let trial = wire.run(&["imix_weights 64,7 570,4 1500,1"]);
    let counts = &trial.statuses[0].progress.imix_size_counts;
    assert_eq!(counts.iter().map(|count| count.size).collect::<Vec<_>>(), [64, 570, 1500]);
    assert_eq!(counts.iter().map(|count| count.weight).sum::<u64>(), 1_000);
    let bytes: u64 = counts.iter().map(|count| count.size * count.weight).sum();
    assert_eq!((trial.arrivals.frames, trial.arrivals.bytes), (Frames(1_000), Bytes(bytes)));
}

#[test]
fn what_pktgen_refuses_is_an_error_whether_it_says_so_by_number_or_by_text() {
    let Some(wire) = Wire::up() else { return };
    let refusals = [
        // By error number, while the OK of the previous command is still there.
        ("clone_skb 10", "operation not supported here (ENOTSUPP)"),
        ("burst 8", "operation not supported here (ENOTSUPP)"),
        // By accepting a part of the line.
        ("ratep 0", "it took 1 of 8 bytes"),
        ("rate 0", "it took 1 of 7 bytes"),
        // By text alone.
        ("vlan_p 3", "ERROR: vlan_p must be 0-7"),
        ("svlan_cfi 1", "ERROR: svlan_cfi must be 0-1"),
        ("node 99999", "ERROR: node not possible"),
    ];
    wire.with(|mut generator| {
        generator.add(0, NEAR).unwrap();
        set(&mut generator, NEAR, "count 1000").unwrap();
        for (line, expected) in refusals {
            let error = set(&mut generator, NEAR, line).unwrap_err();
            let Error::Refused { command, said, fix, .. } = &error else { panic!("{error}") };
            assert_eq!((command.as_str(), said.starts_with(expected)), (line, true), "{said}");
            assert!(!fix.is_empty());
        }
        // A command without a text of its own is not judged by the old refusal.
        set(&mut generator, NEAR, "imix_weights 64,1").unwrap();
        let error = set(&mut generator, NEAR, "clone_skb 1").unwrap_err();
        assert!(error.to_string().starts_with("pktgen refused `clone_skb 1` for near0"), "{error}");
        assert_eq!(generator.set(NEAR, &PktgenSetting::new("count", 5_u64)).map_err(|error| error.to_string()), Ok(()));
    });
}

#[test]
fn flags_that_this_kernel_does_not_know_are_refused_by_text() {
    let Some(wire) = Wire::up() else { return };
    wire.with(|mut generator| {
        generator.add(0, NEAR).unwrap();
        // IPv6 is enabled only by addresses.
        let error = set(&mut generator, NEAR, "flag IPV6").unwrap_err();
        assert_eq!(error.to_string(), "pktgen refused `flag IPV6` for near0: Flag -:IPV6:- unknown");
        for flag in ["IPSRC_RND", "UDPCSUM", "NO_TIMESTAMP", "QUEUE_MAP_CPU", "NODE_ALLOC", "VID_RND"] {
            set(&mut generator, NEAR, &format!("flag {flag}")).unwrap();
        }
        assert_eq!(generator.changes().unwrap(), []);
    });
}

#[test]
fn what_pktgen_silently_changes_is_found_by_reading_back() {
    let Some(wire) = Wire::up() else { return };
    let changes = |lines: &[&str]| {
        wire.with(|mut generator| {
            generator.add(0, NEAR).unwrap();
            for line in lines {
                set(&mut generator, NEAR, line).unwrap();
            }
            let changes = generator.changes().unwrap();
            changes.iter().map(|change| (change.requested.to_string(), change.applied.clone())).collect::<Vec<_>>()
        })
    };
    let one = |asked: &str, kept: &str| vec![(asked.to_owned(), kept.to_owned())];
    assert_eq!(changes(&["pkt_size 10"]), one("pkt_size 10", "42, and sends 58 bytes"));
    assert_eq!(changes(&["pkt_size 57"]), one("pkt_size 57", "57, and sends 58 bytes"));
    assert_eq!(changes(&["vlan_id 5", "pkt_size 60"]), one("pkt_size 60", "60, and sends 62 bytes"));
    assert_eq!(changes(&["imix_weights 10,1 570,2"]), one("imix_weights 10,1 570,2", "42,1 570,2"));
    assert_eq!(changes(&["vlan_id 5", "mpls 0001000a"]), one("vlan_id 5", "absent"));
    assert_eq!(changes(&["svlan_id 5"]), one("svlan_id 5", "absent"));
    assert_eq!(changes(&["count 123456789012"]), one("count 123456789012", "1234567890"));
    assert_eq!(changes(&["udp_dst_min 65545"]), one("udp_dst_min 65545", "9"));
    assert_eq!(changes(&["flows 70000"]), one("flows 70000", "65536"));
    assert_eq!(changes(&["ratep 1000000"]), []);
    assert_eq!(changes(&["ratep 3000000"]), one("ratep 3000000", "3003003.003 packets/s (every 333 ns)"));
    assert_eq!(changes(&["pkt_size 60", "rate 480M"]), []);
    assert_eq!(changes(&["pkt_size 60", "rate 300M"]), []);
    assert_eq!(
        changes(&["burst 0", "tos 28", "traffic_class b8", "skb_priority 5", "flows 4", "flowlen 8"]),
        one("burst 0", "1")
    );
}

#[test]
fn every_parameter_is_kept_as_it_was_asked() {
    let Some(wire) = Wire::up() else { return };
    let lines = [
        "count 7",
        "min_pkt_size 70",
        "max_pkt_size 1000",
        "frags 2",
        "delay 5000",
        "clone_skb 0",
        "burst 1",
        "debug 0",
        "dst_min 10.0.0.1",
        "dst_max 10.0.0.9",
        "src_min 10.1.0.1",
        "src_max 10.1.0.9",
        "dst_mac 02:00:00:00:00:01",
        "src_mac 02:00:00:00:00:02",
        "src_mac_count 3",
        "dst_mac_count 4",
        "udp_src_min 5",
        "udp_src_max 6",
        "udp_dst_min 7",
        "udp_dst_max 8",
        "flows 4",
        "flowlen 8",
        "queue_map_min 0",
        "queue_map_max 1",
        "skb_priority 5",
        "tos 28",
        "traffic_class b8",
        "vlan_id 5",
        "vlan_p 3",
        "vlan_cfi 1",
        "svlan_id 7",
        "svlan_p 2",
        "svlan_cfi 0",
        "spi 1",
        "flag FLOW_SEQ",
        "flag UDPSRC_RND",
        "flag !UDPSRC_RND",
        "xmit_mode queue_xmit",
        "node 0",
        "clear_counters",
    ];
    let six = ["dst6 fd00::1", "dst6_min fd00::2", "dst6_max fd00::9", "src6 fd00::7", "mpls 0001000a,0002000a"];
    for lines in [&lines[..], &six] {
        wire.with(|mut generator| {
            generator.add(0, NEAR).unwrap();
            for line in lines {
                set(&mut generator, NEAR, line).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            assert_eq!(generator.changes().unwrap(), []);
            status(NEAR);
        });
    }
}

#[test]
fn a_queueing_discipline_loses_only_what_passes_it_and_only_the_receiver_knows() {
    let Some(wire) = Wire::up() else { return };
    tc(&wire, "qdisc add dev near0 root netem loss 10%");
    let past = wire.run(&[]);
    assert_eq!((past.sent(), past.arrivals.distinct()), (1_000, Frames(1_000)));
    let through = wire.run(&["xmit_mode queue_xmit", "count 5000"]);
    let (sent, arrived) = (through.sent(), through.arrivals.distinct().0);
    assert_eq!((sent, through.statuses[0].progress.errors), (5_000, 0), "pktgen takes its packets for sent");
    // Ten standard deviations of a binomial distribution around nine tenths.
    assert!((4_290..4_710).contains(&arrived), "{arrived} of {sent}");
    assert_eq!(through.arrivals.duplicates(), Frames(0));
}

#[test]
fn packets_that_are_duplicated_and_overtaken_are_counted() {
    let Some(wire) = Wire::up() else { return };
    tc(&wire, "qdisc add dev near0 root netem duplicate 20%");
    let twice = wire.run(&["xmit_mode queue_xmit"]);
    assert_eq!((twice.sent(), twice.arrivals.distinct()), (1_000, Frames(1_000)));
    assert!((75..325).contains(&twice.arrivals.duplicates().0), "{}", twice.arrivals.duplicates());
    tc(&wire, "qdisc replace dev near0 root netem delay 20ms reorder 20% limit 10000");
    // One packet in five is not delayed, and overtakes those that are.
    let swapped = wire.run(&["xmit_mode queue_xmit", "delay 1000000", "count 200"]);
    assert_eq!((swapped.arrivals.frames, swapped.arrivals.duplicates()), (Frames(200), Frames(0)));
    assert!(swapped.arrivals.reordered() > Frames(20), "{}", swapped.arrivals.reordered());
    assert!(swapped.arrivals.latency_ns.max().unwrap() >= 20_000_000, "the delay is in the latency");
}

#[test]
fn two_threads_send_through_two_queues_and_each_keeps_its_order() {
    let Some(wire) = Wire::up() else { return };
    let devices = [(0, "near0@0"), (1, "near0@1")];
    let trial = wire.run_on(&devices, &["flag QUEUE_MAP_CPU", "queue_map_max 1", "count 2000"]);
    assert_eq!((trial.sent(), trial.arrivals.frames), (4_000, Frames(4_000)));
    assert_eq!((trial.arrivals.reordered(), trial.arrivals.duplicates()), (Frames(0), Frames(0)));
    assert_eq!(trial.statuses[1].progress.queue_map, 1);
    assert_eq!(trial.statuses[1].params.ifname, "near0@1");
}

#[test]
fn tags_labels_and_version_6_are_decoded() {
    let Some(wire) = Wire::up() else { return };
    let forms: [&[&str]; 4] = [
        &["vlan_id 5", "pkt_size 62"],
        &["vlan_id 5", "svlan_id 7", "pkt_size 66"],
        &["mpls 0001000a,0002000a", "pkt_size 66"],
        &["dst6 fd00::2", "src6 fd00::1", "pkt_size 100"],
    ];
    for form in forms {
        let trial = wire.run(form);
        assert_eq!((trial.sent(), trial.arrivals.distinct()), (1_000, Frames(1_000)), "{form:?}");
    }
}

#[test]
fn packets_that_nobody_takes_are_errors_of_the_stack() {
    let Some(wire) = Wire::up() else { return };
    wire.with(|mut generator| {
        generator.add(0, NEAR).unwrap();
        for setting in wire.basics(0) {
            generator.set(NEAR, &setting).unwrap();
        }
        // The destination is not this host, so the stack drops each packet.
        generator.set(NEAR, &PktgenSetting::new("xmit_mode", XmitMode::NetifReceive)).unwrap();
        set(&mut generator, NEAR, "burst 8").unwrap();
        generator.run(|| false).unwrap();
        let current = status(NEAR).progress;
        assert_eq!((current.sent, current.errors), (1_000, 1_000));
    });
}

#[test]
fn a_run_without_end_is_stopped_and_everything_is_given_back() {
    let Some(wire) = Wire::up() else { return };
    wire.with(|mut generator| {
        generator.add(0, "near0@a").unwrap();
        generator.set("near0@a", &PktgenSetting::new("count", 0_u64)).unwrap();
        generator.set("near0@a", &PktgenSetting::new("delay", Nanos::from_millis(1))).unwrap();
        let error = PktgenSession::claim(&PktgenDir::default()).unwrap_err();
        assert_eq!(error.to_string(), "pktgen's thread 0 has devices that are not ours: near0@a");
        let over = clock::now() + Nanos::from_millis(300);
        generator.run(|| clock::now() > over).unwrap();
        let sent = generator.status("near0@a").unwrap().progress.sent;
        assert!(sent > 0);
        drop(generator);
        assert!(PktgenDir::default().threads().unwrap().iter().all(|thread| thread.devices().count() == 0));
        assert!(PktgenDir::default().status("near0@a").is_err());
    });
}

/// Returns the text of a note.
fn note<'a>(record: &'a Record, id: &str) -> &'a str {
    record.notes.iter().find(|note| note.id == id).map_or("", |note| note.text.as_str())
}

#[test]
fn the_kind_frames_sends_by_pktgen_first_and_counts_in_xdp() {
    let Some(wire) = Wire::up() else { return };
    for options in [&[("count", "2000")][..], &[("count", "2000"), ("backend", "pktgen"), ("counter", "socket")]] {
        let (sent, received) = wire.measure(options, u64::MAX).unwrap();
        let expected = "frames sent by the kernel's pktgen, with a TTL of 32, without DF and without a checksum of UDP";
        assert_eq!(note(&sent, "backend"), expected);
        let [got, missed] = [RECEIVED, SOCKET_DROPPED].map(|name| received.totals[name]);
        assert_eq!((sent.totals[SENT], got + missed), (2_000, 2_000), "{options:?} {sent:?}");
        assert_eq!((received.totals[REORDERED], received.totals[DUPLICATES]), (0, 0));
        assert!(sent.complete && received.complete);
        if options.len() == 1 {
            let latency = &received.distributions["latency_ns"];
            assert_eq!(latency.count(), 2_000);
        }
    }
    assert_eq!(wire.near.enter_with(|| PktgenDir::default().threads().unwrap()[0].devices().count()).unwrap(), 0);
}

#[test]
fn a_rate_is_paced_by_pktgen_and_everything_intended_is_accounted_for() {
    let Some(wire) = Wire::up() else { return };
    let (sent, received) = wire.measure(&[("rate", "2000"), ("backend", "pktgen")], 600).unwrap();
    let total = |name: &str| sent.totals[name];
    assert_eq!(total(INTENDED), total(SENT) + total(SEND_REFUSED) + total(UNSENT), "{:?}", sent.totals);
    assert_eq!(received.totals[RECEIVED], total(SENT));
    // The few frames that the kernel sends on its own are among those that the device counts.
    assert!(total(SENT) >= 550, "{}", total(SENT));
    let most = 2_000.0 * sent.timeline.end_ns.last().unwrap().as_secs_f64() + 1.0;
    assert!(approximate(total(SENT)) <= most, "{} of at most {most}", total(SENT));
}

#[test]
fn several_workers_have_a_thread_of_the_kernel_and_a_share_of_the_flows_each() {
    let Some(wire) = Wire::up() else { return };
    for ports in ["1024-1025 > 9", "2000-2007 > 9"] {
        let flows = [("ports", ports), ("vlan", "5"), ("threads", "2"), ("count", "3001")];
        let options = [&flows[..], &[("backend", "pktgen"), ("qdisc", "true")]].concat();
        let (sent, received) = wire.measure(&options, u64::MAX).unwrap();
        assert_eq!((sent.totals[SENT], received.totals[RECEIVED]), (3_001, 3_001), "{ports}");
        assert_eq!((received.totals[REORDERED], received.totals[DUPLICATES]), (0, 0), "{ports}");
    }
}

/// Whole frames at the far end, by AF_XDP: a packet socket would not show their tags.
struct Capture {
    sockets: Vec<xsk::Receiver>,
    _map: SocketMap,
    _link: XdpLink,
}

impl Capture {
    fn open() -> Self {
        let ifindex = Netlink::open().unwrap().link(FAR).unwrap().index;
        let map = SocketMap::create("capture", 2).unwrap();
        let socket = |number| {
            let socket = xsk::Receiver::open(Queue { ifindex, number }, Mode::Copy).unwrap();
            map.set(number, &socket).unwrap();
            socket
        };
        let sockets = (0..2).map(socket).collect();
        let mut a = Assembler::new();
        // `struct xdp_md` has the queue index after four words.
        a.load(R2, R1.word(16)).load_map(R1, &map).mov(R3, 0).call(Helper::RedirectMap).exit();
        let program = Program::load(ProgramType::Xdp, "capture", &a.assemble()).unwrap();
        let link = XdpLink::attach(&program, ifindex, XdpMode::Native).unwrap();
        Self { sockets, _map: map, _link: link }
    }

    /// Returns up to `n` packets of pktgen among the frames that have arrived.
    fn packets(&mut self, n: usize) -> Vec<Vec<u8>> {
        let (mut packets, deadline) = (Vec::new(), clock::now() + Nanos::from_secs(10));
        while packets.len() < n && clock::now() < deadline {
            for socket in &mut self.sockets {
                socket.wait(Nanos::from_millis(5)).unwrap();
                let keep = |received: xsk::Received<'_>| {
                    if PktgenPacket::find(received.frame).is_some() {
                        packets.push(received.frame.to_vec());
                    }
                };
                socket.receive(MAX_BATCH, keep).unwrap();
            }
        }
        packets
    }
}

/// Returns the first `n` frames that the options ask for.
fn asked(wire: &Wire, options: &[(&str, &str)], n: u64) -> Vec<Vec<u8>> {
    let from = wire.near.enter_with(|| Netlink::open().unwrap().link(NEAR).unwrap().mac.unwrap()).unwrap();
    let end = |mac, last, port| FrameEndpoint { mac, ipv4: Some(Ipv4Addr::new(198, 18, 0, last)), ipv6: None, port };
    let ends = FrameEndpoints { source: end(from, 1, PORT), target: end(wire.to, 2, 9) };
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    let blueprint = craft::from_settings(&settings, &FrameContext { ends, mtu_bytes: 1500, seed: 42 }).unwrap();
    let frame = |number: u64| {
        let flows = u64::from(blueprint.n_flows);
        let (flow, sequence) = (u32::try_from(number % flows).unwrap(), number / flows);
        let shape = blueprint.template(flow, sequence);
        let mut frame = shape.bytes.clone();
        shape.write(&mut frame, &blueprint.frame_index(flow, sequence, [0; Mark::LENGTH]));
        frame
    };
    (0..n).map(frame).collect()
}

/// Options as names and values.
type Options = &'static [(&'static str, &'static str)];

/// Clears the fields that pktgen always fills in its own way. The rest must be as requested.
fn comparable(mut frame: Vec<u8>, udp: usize) -> Vec<u8> {
    let is_v4 = frame[udp - 20] == 0x45;
    // For IPv4: identification, DF, TTL and checksum. For IPv6: the hop limit.
    let own: &[usize] = if is_v4 { &[16, 15, 14, 13, 12, 10, 9] } else { &[33] };
    for back in own {
        frame[udp - back] = 0;
    }
    frame[udp + 6..udp + 8 + Mark::LENGTH].fill(0);
    frame
}

#[test]
fn packets_arrive_as_the_frames_that_were_asked_for() {
    let Some(wire) = Wire::up() else { return };
    let mut capture = wire.far.enter_with(Capture::open).unwrap();
    // Options, the number of source ports, the offset of UDP, and the same options with consecutive values instead of random ones.
    let cases: &[(Options, u16, usize, Options)] = &[
        (&[("size", "200"), ("tos", "0xb8")], 1, 34, &[]),
        (&[("vlan", "5")], 1, 38, &[]),
        (&[("frame", "vlan 7 / vlan 5 prio 3")], 1, 42, &[]),
        (&[("mpls", "16,17")], 1, 42, &[]),
        (&[("frame", "ip6 fd00::1 > fd00::2 class 0xb8"), ("size", "300")], 1, 54, &[]),
        (&[("ports", "49152-49159 > 9")], 8, 34, &[]),
        (&[("frame", "ip > 198.18.1.1-198.18.1.8 / udp 49152-49159 > 1000-1007")], 8, 34, &[]),
        (&[("frame", "eth src 02:00:00:00:00:fe-02:00:00:00:01:01")], 1, 34, &[]),
        (&[("mix", "64:2,570:1,1000:1")], 1, 34, &[]),
        (
            &[("frame", "ip 198.18.2.0-198.18.2.3? each > 198.18.1.1 / udp > 1000-1003? each")],
            1,
            34,
            &[("frame", "ip 198.18.2.0-198.18.2.3 > 198.18.1.1 / udp > 1000-1003")],
        ),
        (&[("frame", "udp 49152-49159? each > 9")], 8, 34, &[("frame", "udp 49152-49159 > 9")]),
        (&[("frame", "ip6 fd00::1 > fd00::10-fd00::17? each")], 1, 54, &[("frame", "ip6 fd00::1 > fd00::10-fd00::17")]),
    ];
    for (options, each, udp, in_a_row) in cases {
        let told = [
            ("mac", wire.to.to_string()),
            ("address", "198.18.0.2".to_owned()),
            ("port", "9".to_owned()),
            ("trial", "1".to_owned()),
            ("pktgen", PORT.to_string()),
            ("pktgen_each", each.to_string()),
        ];
        let peer = told.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
        let with = [*options, &[("count", "256"), ("backend", "pktgen")]].concat();
        let settings = with.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
        let sending = wire.prepare(Side::Initiator, &settings, peer).unwrap();
        let sent = wire.near.enter_with(|| sending.run(&TrialContext::new(clock::now(), PHASES)).unwrap()).unwrap();
        assert_eq!(sent.totals[SENT], 256, "{options:?}");
        let arrived = capture.packets(256);
        assert_eq!(arrived.len(), 256, "{options:?}");
        let ttl = if arrived[0][udp - 20] == 0x45 { udp - 12 } else { udp - 33 };
        assert!(arrived.iter().all(|frame| frame[ttl] == 32), "{options:?}");
        let arrived: BTreeSet<Vec<u8>> = arrived.into_iter().map(|frame| comparable(frame, *udp)).collect();
        let meant = if in_a_row.is_empty() { options } else { in_a_row };
        let meant: BTreeSet<Vec<u8>> =
            asked(&wire, meant, 256).into_iter().map(|frame| comparable(frame, *udp)).collect();
        if in_a_row.is_empty() {
            assert_eq!(arrived, meant, "{options:?}");
        } else {
            // Sources and ports are drawn independently, so the values of each are compared separately.
            let bytes =
                |frames: &BTreeSet<Vec<u8>>, at: usize| frames.iter().map(|frame| frame[at]).collect::<BTreeSet<u8>>();
            for at in 0..udp + 8 {
                assert_eq!(bytes(&arrived, at), bytes(&meant, at), "{options:?}, byte {at}");
            }
        }
    }
}

#[test]
fn what_pktgen_cannot_send_leaves_another_way_and_that_is_told() {
    let Some(wire) = Wire::up() else { return };
    let refusals: [(&[(&str, &str)], &str); 3] = [
        (&[("rate", "10k"), ("arrivals", "poisson")], "it sends at equal distances only"),
        (&[("rate", "3M")], "it waits whole nanoseconds, and the next packet is due after 333 ns and a part"),
        (&[("flows", "8")], "it keeps no random source ports for each flow"),
    ];
    for (options, expected) in refusals {
        let asked = [options, &[("backend", "pktgen"), ("count", "100")]].concat();
        let error = wire.measure(&asked, u64::MAX).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let otherwise = [options, &[("count", "100"), ("burst", "1")]].concat();
        let (sent, received) = wire.measure(&otherwise, u64::MAX).unwrap();
        assert!(note(&sent, "backend").contains(expected), "{}", note(&sent, "backend"));
        assert_eq!((sent.totals[SENT], received.totals[RECEIVED]), (100, 100));
    }
}

#[test]
fn a_receiver_alone_tells_loss_and_order_of_a_pktgen_that_it_did_not_start() {
    let Some(wire) = Wire::up() else { return };
    let settings = Settings::default().with("receive", FAR).with("ports-each", "1").with("shared-clock", "true");
    let role = Role {
        test: "test".to_owned(),
        kind: PktgenReceive.name().to_owned(),
        side: Side::Initiator,
        settings: settings.complete(PktgenReceive.options()).unwrap(),
        phases: PHASES,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    };
    tc(&wire, "qdisc add dev near0 root netem loss 10%");
    let test = wire.far.enter_with(|| PktgenReceive.prepare(&role, &Policy::anything()).unwrap()).unwrap();
    let session = TrialContext::new(clock::now(), PHASES);
    let stop = session.stop.clone();
    let (record, sent) = thread::scope(|scope| {
        let receiving = scope.spawn(move || test.run(&session).unwrap());
        // Any ports work: these packets go from port 49152 to port 53, with a tag.
        let form =
            ["xmit_mode queue_xmit", "vlan_id 5", "pkt_size 62", "udp_dst_min 53", "udp_dst_max 53", "count 2000"];
        let trial = wire.run(&form);
        stop.finish();
        (receiving.join().unwrap(), trial)
    });
    let total = |name: &str| record.totals[name];
    let missed = total(SOCKET_DROPPED);
    assert!(missed > 0 || total(RECEIVED) == sent.arrivals.distinct().0, "{:?}", record.totals);
    // Ten standard deviations of a binomial distribution around nine tenths.
    assert!((1_666..1_934).contains(&(total(RECEIVED) + missed)), "{:?}", record.totals);
    assert!((1_900..=2_000).contains(&total("numbered")), "{:?}", record.totals);
    // On a busy machine, the discipline sends now from one core and then from the other, and their queues overtake each other.
    assert!(total(REORDERED) < 20, "{:?}", record.totals);
    assert_eq!((total(DUPLICATES), total("untimely")), (0, 0));
    assert_eq!(record.distributions["latency_ns"].count(), total(RECEIVED));
    assert!(record.distributions["ipdv_ns"].count() > 0);
}

/// Runs fathom's pktgen drop-in tool on the sending host; returns its output, its errors and its exit code.
fn face(wire: &Wire, words: &[&str]) -> (String, String, Option<i32>) {
    let program = std::env::var("FATHOM_PROGRAM").unwrap();
    // Outside labs, frames are sent only to a neighbor that this host knows.
    let know = || {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link(NEAR).unwrap().index;
        netlink.add_neighbour(index, "198.18.0.2".parse().unwrap(), wire.to).unwrap();
    };
    wire.near.enter_with(know).unwrap();
    let run = || Command::new(program).args(["as", "pktgen"]).args(words).env("FATHOM_ALLOW", "198.18.0.0/24").output();
    let output = wire.near.enter_with(run).unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn the_face_asks_the_kernels_pktgen_and_prints_its_block() {
    let Some(wire) = Wire::up() else { return };
    let mac = wire.to.to_string();
    let (block, said, code) = face(&wire, &["-i", NEAR, "-d", "198.18.0.2", "-m", &mac, "-n", "700", "-s", "64"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("packets sent by the kernel's pktgen 2.75"), "{said}");
    let status: Status = block.parse().unwrap();
    assert_eq!((status.progress.sent, status.params.ifname.as_str()), (700, "near0@0"));
    assert_eq!(status.to_string(), block);
    let add = format!("add_device {NEAR}");
    let (dst, dst_mac) = ("dst 198.18.0.2", format!("dst_mac {mac}"));
    let words = ["pgset", &add, dst, &dst_mac, "pkt_size 10", "count 5", "start"];
    let (block, said, code) = face(&wire, &words);
    assert_eq!((code, block.contains("pkts-sofar: 5 ")), (Some(0), true), "{said}");
    assert!(said.contains("WARN : pktgen took `pkt_size 10` for near0 and made it 42, and sends 58 bytes"), "{said}");
    let (_, said, code) = face(&wire, &[&add, dst, &dst_mac, "burst 8", "start"]);
    assert_eq!((code, said.contains("pktgen refused `burst 8` for near0")), (Some(5), true), "{said}");
    let (blocks, said, code) = face(&wire, &["-i", NEAR, "-d", "198.18.0.2", "-m", &mac, "-n", "50", "-t", "2"]);
    assert_eq!((code, blocks.matches("Device: near0@").count()), (Some(0), 2), "{said}");
    let threads = wire.near.enter_with(|| PktgenDir::default().threads().unwrap()).unwrap();
    assert!(threads.iter().all(|thread| thread.devices().count() == 0), "everything was given back: {threads:?}");
}

#[test]
fn threads_and_devices_that_are_not_there_are_named() {
    let Some(wire) = Wire::up() else { return };
    wire.with(|mut generator| {
        let error = generator.add(99, NEAR).unwrap_err().to_string();
        assert!(error.starts_with("pktgen has no thread 99: it has one for each of "), "{error}");
        let error = generator.add(0, "nosuch0").unwrap_err().to_string();
        assert!(error.starts_with("pktgen refused `add_device nosuch0` for kpktgend_0: No such device"), "{error}");
        generator.add(0, NEAR).unwrap();
        let error = generator.add(0, NEAR).unwrap_err().to_string();
        assert!(error.contains("Device or resource busy"), "{error}");
    });
}
