//! Frames injected into the stack of a namespace that each test creates: real rules, real sockets, exact counts.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use fathom_engine::{Error, TestKind, TrialContext};
use fathom_model::{Endpoints, Phases, Record, Role, Settings, Side, units::Nanos};
use fathom_packet::kinds::stack_receive::StackReceive;
use fathom_sys::{
    clock,
    netlink::{Netlink, Veth, VethEnd, namespace::NetNs, nftables::Nftables},
    policy::Policy,
};

use fathom_testkit::or_skip;

const DEVICE: &str = "eth0";

/// A host with one device, whose wire leads nowhere.
fn host() -> Option<NetNs> {
    let host = or_skip(NetNs::new(), fathom_sys::Error::is_permission)?;
    let end = |name| VethEnd { name, mac: None };
    let veth = Veth { near: end(DEVICE), far: end("peer0"), far_namespace: None, mtu_bytes: 1500, n_queues: 1 };
    host.enter_with(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.add_veth(&veth).unwrap();
        for name in [DEVICE, "peer0"] {
            let index = netlink.link(name).unwrap().index;
            netlink.set_up(index).unwrap();
        }
        let index = netlink.link(DEVICE).unwrap().index;
        netlink.add_address(index, "198.18.0.1".parse().unwrap(), 24).unwrap();
    })
    .unwrap();
    Some(host)
}

fn role(options: &[(&str, &str)]) -> Role {
    let given = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    Role {
        test: "stack".to_owned(),
        kind: StackReceive.name().to_owned(),
        side: Side::Initiator,
        settings: given.complete(StackReceive.options()).unwrap(),
        phases: Phases {
            warmup_max_ns: Nanos::ZERO,
            is_warmup_whole: false,
            measure_ns: Nanos::from_millis(100),
            interval_ns: Nanos::from_millis(20),
        },
        address: Some("198.18.0.1".parse().unwrap()),
        interface: Some(DEVICE.to_owned()),
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    }
}

/// Runs the test on a host; `None` if programs may not be loaded.
fn run(host: &NetNs, options: &[(&str, &str)]) -> Option<Record> {
    let role = role(options);
    let played = host.enter_with(|| {
        let test = StackReceive.prepare(&role, &Policy::anything())?;
        test.run(&TrialContext::new(clock::now(), role.phases))
    });
    or_skip(played.unwrap(), |error| matches!(error, Error::Permission { .. }))
}

/// Reads a UDP counter of a namespace.
fn udp(host: &NetNs, name: &str) -> u64 {
    let text = host.enter_with(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap().unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|one| one == name).unwrap();
    values.split(' ').nth(place).unwrap().parse().unwrap()
}

#[test]
fn every_frame_comes_to_the_last_rule_and_the_rules_go_with_the_test() {
    let Some(host) = host() else { return };
    for rules in ["0", "50"] {
        let Some(record) = run(&host, &[("end", "filter"), ("rules", rules)]) else { return };
        let count = |name: &str| record.totals[name];
        assert!(count("injected") > 0, "{:?}", record.totals);
        assert_eq!(count("filtered"), count("injected"));
        assert!(count("stack_cpu_ns") > 0 && record.complete);
        assert_eq!(udp(&host, "NoPorts"), 0);
        assert_eq!(host.enter_with(|| Nftables::open().unwrap().base_chains().unwrap()).unwrap(), []);
    }
}

#[test]
fn every_frame_is_read_from_the_socket_or_counted_where_it_had_no_room() {
    let Some(host) = host() else { return };
    let Some(record) = run(&host, &[("end", "socket"), ("rules", "3"), ("size", "1518")]) else { return };
    let count = |name: &str| record.totals[name];
    assert!(count("delivered") > 0 && count("reader_cpu_ns") > 0);
    assert_eq!(count("delivered") + udp(&host, "RcvbufErrors"), count("injected"));
    assert_eq!((udp(&host, "InDatagrams"), count("filtered")), (count("delivered"), count("injected")));
}

#[test]
fn a_frame_to_a_closed_port_is_counted_there_and_others_come_to_no_protocol() {
    let Some(host) = host() else { return };
    let Some(record) = run(&host, &[("end", "port")]) else { return };
    let n_closed = udp(&host, "NoPorts");
    assert_eq!(n_closed, record.totals["injected"]);
    for end in ["device", "program"] {
        let record = run(&host, &[("end", end)]).unwrap();
        assert!(record.totals["injected"] > 0);
        assert_eq!((udp(&host, "NoPorts"), record.totals["delivered"]), (n_closed, 0));
    }
}

#[test]
fn what_cannot_be_injected_is_refused_by_name() {
    let Some(host) = host() else { return };
    let refused = |options: &[(&str, &str)]| {
        let role = role(options);
        host.enter_with(|| StackReceive.prepare(&role, &Policy::anything()).map(drop)).unwrap().unwrap_err().to_string()
    };
    assert!(refused(&[("end", "device"), ("rules", "5")]).contains("meet no rule"));
    assert!(refused(&[("size", "20")]).contains("20"));
    let absent = Role { interface: Some("none0".to_owned()), ..role(&[]) };
    let error = host.enter_with(|| StackReceive.prepare(&absent, &Policy::anything()).map(drop)).unwrap().unwrap_err();
    assert!(error.to_string().contains("none0"), "{error}");
}
