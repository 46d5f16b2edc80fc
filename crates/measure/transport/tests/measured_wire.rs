//! Streams of datagrams between two network namespaces, over a link that drops on purpose.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{net::IpAddr, num::NonZeroU32, os::fd::AsFd, thread};

use fathom_engine::{Test, TrialContext, find};
use fathom_model::{Endpoints, Phases, Record, Role, Settings, Side, Stage, names::count, units::Nanos};
use fathom_packet::xdp::{DropProgram, FrameMatch, dropper};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    clock,
    netlink::{Netlink, Veth, VethEnd, namespace::NetNs},
    policy::Policy,
};
use fathom_transport::KINDS;

fn or_skip<T>(outcome: fathom_sys::Result<T>) -> Option<T> {
    fathom_testkit::or_skip(outcome, fathom_sys::Error::is_permission)
}

const PORT: u16 = 9100;
/// The link drops one of this many datagrams.
const LOSES: u64 = 10;
const PHASES: Phases = Phases {
    warmup_max_ns: Nanos::from_millis(50),
    is_warmup_whole: false,
    measure_ns: Nanos::from_millis(200),
    interval_ns: Nanos::from_millis(50),
};

/// Two hosts joined by a link, the first of which is the initiator; removed with the test, however it ends.
struct Wire {
    hosts: [NetNs; 2],
}

const NAMES: [&str; 2] = ["near0", "far0"];
const ADDRESSES: [&str; 2] = ["198.18.0.1", "198.18.0.2"];

impl Wire {
    fn up() -> Option<Self> {
        let near = or_skip(NetNs::new())?;
        let wire = Self { hosts: [near, NetNs::new().unwrap()] };
        let [near, far] = NAMES.map(|name| VethEnd { name, mac: None });
        let veth = Veth { near, far, far_namespace: Some(wire.hosts[1].as_fd()), mtu_bytes: 1500, n_queues: 1 };
        wire.on(0, || Netlink::open().unwrap().add_veth(&veth).unwrap());
        for host in 0..2 {
            wire.on(host, || {
                let mut netlink = Netlink::open().unwrap();
                let index = netlink.link(NAMES[host]).unwrap().index;
                netlink.add_address(index, ADDRESSES[host].parse().unwrap(), 24).unwrap();
                netlink.set_up(index).unwrap();
            });
        }
        Some(wire)
    }

    fn on<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> T {
        self.hosts[host].enter_with(work).unwrap()
    }

    /// Makes the device of the responder drop every tenth datagram of the stream.
    fn lossy(&self) -> Option<(DropProgram, XdpLink)> {
        let every = NonZeroU32::new(u32::try_from(LOSES).unwrap()).unwrap();
        let gate = or_skip(dropper(FrameMatch::UdpPort(PORT), every))?;
        let link = self.on(1, || {
            let index = Netlink::open().unwrap().link(NAMES[1]).unwrap().index;
            gate.attach(index, XdpMode::Native).unwrap()
        });
        Some((gate, link))
    }

    fn prepare(&self, side: Side, settings: &Settings, peer: Endpoints) -> Box<dyn Test> {
        let host = usize::from(side == Side::Responder);
        let kind = find(KINDS, "udp_stream").unwrap();
        let role = Role {
            test: "test".to_owned(),
            kind: kind.name().to_owned(),
            side,
            settings: settings.complete(kind.options()).unwrap(),
            phases: PHASES,
            address: Some(ADDRESSES[host].parse::<IpAddr>().unwrap()),
            interface: Some(NAMES[host].to_owned()),
            peer,
            cores: Vec::new(),
            meeting: fathom_model::PeerAddresses::default(),
            seed: 42,
        };
        self.on(host, || kind.prepare(&role, &Policy::anything()).unwrap())
    }

    /// The records of the initiator and of the responder.
    fn run(&self, options: &[(&str, &str)]) -> [Record; 2] {
        let given = Settings::default().with("port", PORT.to_string());
        let settings = options.iter().fold(given, |settings, (name, text)| settings.with(name, *text));
        let responder = self.prepare(Side::Responder, &settings, Endpoints::new());
        let initiator = self.prepare(Side::Initiator, &settings, responder.endpoints());
        let start = clock::now() + Nanos::from_millis(20);
        let (sends, counts) = (TrialContext::new(start, PHASES), TrialContext::new(start, PHASES));
        thread::scope(|scope| {
            let finish = counts.stop.clone();
            let responder = scope.spawn(move || responder.run(&counts).unwrap());
            let initiator = initiator.run(&sends).unwrap();
            finish.finish();
            [initiator, responder.join().unwrap()]
        })
    }
}

#[test]
fn what_a_device_loses_is_missing_exactly_and_in_bursts_of_one() {
    let Some(wire) = Wire::up() else { return };
    let Some((gate, _link)) = wire.lossy() else { return };
    for (traffic, offload) in [("constant", "none"), ("bursts", "none"), ("bursts", "auto")] {
        let before = gate.counts().unwrap();
        let [sender, receiver] =
            wire.run(&[("pps", "5k"), ("size", "300"), ("traffic", traffic), ("offload", offload)]);
        let after = gate.counts().unwrap();
        let (passed, lost) = (after.passed.0 - before.passed.0, after.dropped.0 - before.dropped.0);
        let sent = sender.totals[count::SENT];
        assert!(sent > 100 && sender.errors.is_empty(), "{sent} {:?}", sender.errors);
        assert_eq!(passed + lost, sent, "{traffic} {offload}");
        assert_eq!(receiver.totals[count::RECEIVED] + receiver.totals[count::SOCKET_DROPPED], passed);
        if receiver.totals[count::SOCKET_DROPPED] > 0 {
            continue;
        }
        let bursts = &receiver.distributions["loss_burst_datagrams"];
        // Losses after the highest received number, such as the last end mark, are in no burst.
        assert!(lost - bursts.count() <= 1 && bursts.max() == Some(1), "{lost} lost, {} bursts", bursts.count());
        assert!(lost.abs_diff(sent / LOSES) <= 1, "{lost} of {sent}");
    }
}

#[test]
fn datagrams_longer_than_the_wire_takes_at_once_leave_without_super_buffers_and_that_is_told() {
    let Some(wire) = Wire::up() else { return };
    let [sender, receiver] = wire.run(&[("pps", "1k"), ("size", "3000"), ("offload", "auto")]);
    let told = sender.notes.iter().find(|note| note.id == "udp-gso-refused").unwrap();
    assert!(told.text.contains("sendmmsg"), "{}", told.text);
    assert!(sender.errors.is_empty() && sender.totals[count::SENT] > 50, "{:?}", sender.errors);
    let dropped = receiver.totals[count::SOCKET_DROPPED];
    assert_eq!(receiver.totals[count::RECEIVED] + dropped, sender.totals[count::SENT]);
    // If it is requested by name, a refusal is an error and there is no fallback.
    let [sender, _] = wire.run(&[("pps", "1k"), ("size", "3000"), ("offload", "gso")]);
    assert!(
        sender.errors.keys().any(|failure| failure.stage == Stage::Call("sendmmsg".to_owned())),
        "{:?}",
        sender.errors
    );
    assert_eq!(sender.totals[count::BYTES_SENT] / 3000, 0, "only marks of the end were sent");
}
