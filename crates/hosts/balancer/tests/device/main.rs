//! The balancer on the real kernel: a client, the balancer and its targets in network namespaces.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

mod tiers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    ops::Range,
    os::{fd::AsFd as _, linux::net::SocketAddrExt as _},
    time::Duration,
};

use fathom_balancer::{
    BalancerSettings,
    device::{
        self, ControlRequest, DataPath, DeviceError, DeviceSettings, ForwardMode, RunningBalancer, VerdictGrouping,
    },
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    netlink::{
        Netlink, RouteEntry, Veth, VethEnd, namespace::NetNs, nftables::Nftables, packet_queue,
        routing_rules::MarkedRoute,
    },
    policy::Policy,
    process::{effective_user, may_administer_network},
    socket::raw_ip::{Broadcast, Sender},
};

const N_TARGETS: u8 = 4;
const PORT: u16 = 7000;
/// Long enough for a busy machine, short enough for a failing test.
const PATIENCE: Nanos = Nanos::from_secs(20);
/// The bytes of a small datagram, and of one that needs three fragments.
const SMALL: usize = 20;
const LARGE: usize = 3500;

/// One of the two IP versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

impl Version {
    const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// An address by the number of its network and its number there.
    fn address(self, network: u8, host: u8) -> IpAddr {
        match self {
            Self::V4 => [198, 18, network, host].into(),
            Self::V6 => [0x2001, 2, 0, network.into(), 0, 0, 0, host.into()].into(),
        }
    }

    fn virtual_address(self) -> IpAddr {
        self.address(8, 1)
    }

    fn any(self) -> IpAddr {
        match self {
            Self::V4 => [0; 4].into(),
            Self::V6 => [0; 16].into(),
        }
    }
}

/// The hosts: the client on network 0, each target on a network of its own behind the balancer.
struct Network {
    client: NetNs,
    dut: NetNs,
    targets: Vec<NetNs>,
}

impl Network {
    fn new() -> Option<Self> {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return None;
        }
        let targets = (0..N_TARGETS).map(|_| host()).collect();
        let network = Self { client: host(), dut: host(), targets };
        if !has_queues(&network.dut) {
            return None;
        }
        forward(&network.dut);
        join(&network.client, &network.dut, 0);
        for (target, number) in network.targets.iter().zip(10..) {
            join(target, &network.dut, number);
            target.enter_with(give_virtual_address).unwrap();
        }
        Some(network)
    }

    fn start(&self, settings: DeviceSettings) -> Result<RunningBalancer, DeviceError> {
        self.dut.enter_with(|| RunningBalancer::start(settings)).unwrap()
    }

    fn listen(&self, at: IpAddr) -> Vec<UdpSocket> {
        listen(&self.targets, at)
    }

    fn ask(&self, request: &ControlRequest) -> Result<serde_json::Value, DeviceError> {
        self.dut.enter_with(|| device::ask(DeviceSettings::NAME_DEFAULT, request)).unwrap()
    }
}

/// A socket on each target.
fn listen(targets: &[NetNs], at: IpAddr) -> Vec<UdpSocket> {
    let bind = |target: &NetNs| {
        let socket = target.enter_with(|| UdpSocket::bind((at, PORT)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket
    };
    targets.iter().map(bind).collect()
}

/// Whether this kernel can send packets to a queue; told if not.
fn has_queues(host: &NetNs) -> bool {
    let has = host.enter_with(|| packet_queue::queue_way().unwrap().is_some()).unwrap();
    if !has {
        fathom_testkit::skip_everywhere("this kernel has no rule that sends packets to a queue");
    }
    has
}

fn forward(host: &NetNs) {
    host.enter_with(|| set(&["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"], "1")).unwrap();
}

fn set(settings: &[&str], value: &str) {
    for setting in settings {
        fs::write(format!("/proc/sys/{setting}"), value).unwrap();
    }
}

fn host() -> NetNs {
    let host = NetNs::new().unwrap();
    let quiet = || {
        set(&["net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter"], "0");
        set(&["net/ipv6/conf/all/accept_dad", "net/ipv6/conf/default/accept_dad"], "0");
    };
    host.enter_with(quiet).unwrap();
    host
}

/// Joins a host to the balancer, which is its gateway.
fn join(host: &NetNs, dut: &NetNs, network: u8) {
    let far = format!("to{network}");
    let end = |name| VethEnd { name, mac: None };
    let (near, far_namespace) = (VethEnd { name: "eth0", mac: None }, Some(dut.as_fd()));
    let veth = Veth { near, far: end(&far), far_namespace, mtu_bytes: 1500, n_queues: 1 };
    let mut near = host.enter_with(Netlink::open).unwrap().unwrap();
    near.add_veth(&veth).unwrap();
    let mut gateway = dut.enter_with(Netlink::open).unwrap().unwrap();
    for (netlink, name, number) in [(&mut near, "eth0", 1), (&mut gateway, far.as_str(), 254)] {
        let index = netlink.link(name).unwrap().index;
        for (version, length) in Version::BOTH.into_iter().zip([24, 64]) {
            netlink.add_address(index, version.address(network, number), length).unwrap();
        }
        netlink.set_up(index).unwrap();
    }
    for version in Version::BOTH {
        let gateway = Some(version.address(network, 254));
        near.add_route(&RouteEntry { destination: version.any(), prefix_len: 0, gateway, device: None }).unwrap();
    }
}

fn give_virtual_address() {
    let mut netlink = Netlink::open().unwrap();
    for (version, length) in Version::BOTH.into_iter().zip([32, 128]) {
        netlink.add_address(1, version.virtual_address(), length).unwrap();
    }
}

fn settings(defects: &str) -> DeviceSettings {
    let target = |number: u8| {
        let [v4, v6] = Version::BOTH.map(|version| version.address(number + 9, 1));
        format!("t{number}={v4},{v6}").parse().unwrap()
    };
    DeviceSettings {
        name: DeviceSettings::NAME_DEFAULT.to_owned(),
        virtual_addresses: Version::BOTH.map(Version::virtual_address).to_vec(),
        targets: (1..=N_TARGETS).map(target).collect(),
        tier: Vec::new(),
        queues: 0..=1,
        mode: ForwardMode::Dsr,
        data_path: DataPath::Nfqueue,
        interfaces: Vec::new(),
        first_mark: DeviceSettings::FIRST_MARK_DEFAULT,
        verdicts: VerdictGrouping::Batch,
        queue_length: DeviceSettings::QUEUE_LENGTH_DEFAULT,
        balancer: BalancerSettings { defects: defects.parse().unwrap(), ..BalancerSettings::default() },
    }
}

/// A datagram of the client, cut by hand into its fragments, the last one first.
fn reversed_fragments(port: u16) -> Vec<Vec<u8>> {
    let mut datagram = [port.to_be_bytes(), PORT.to_be_bytes()].concat();
    datagram.extend(u16::try_from(8 + LARGE).unwrap().to_be_bytes());
    // No checksum, which UDP allows in IPv4.
    datagram.extend([0, 0]);
    datagram.resize(8 + LARGE, 7);
    let pieces: Vec<&[u8]> = datagram.chunks(1480).collect();
    let packet = |(place, piece): (usize, &&[u8])| {
        let more = if place + 1 < pieces.len() { 0x2000 } else { 0 };
        let offset = u16::try_from(place * 1480 / 8).unwrap() | more;
        let mut packet = vec![0x45, 0];
        packet.extend(u16::try_from(20 + piece.len()).unwrap().to_be_bytes());
        packet.extend(port.to_be_bytes());
        packet.extend(offset.to_be_bytes());
        packet.extend([64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 8, 1]);
        packet.extend_from_slice(piece);
        packet
    };
    pieces.iter().enumerate().map(packet).rev().collect()
}

/// Waits until the balancer has decided so many packets.
fn settle(running: &RunningBalancer, n_packets: usize) {
    let deadline = clock::now() + PATIENCE;
    while running.counters().decisions.n_packets < n_packets as u64 {
        assert!(clock::now() < deadline, "{:#?}", running.counters());
        std::thread::yield_now();
    }
}

/// Receives until nothing comes: the lengths by source port, each with the place of the target.
fn received(targets: &[UdpSocket]) -> BTreeMap<u16, Vec<(usize, usize)>> {
    let mut all: BTreeMap<u16, Vec<(usize, usize)>> = BTreeMap::new();
    for (place, socket) in targets.iter().enumerate() {
        let mut room = [0; 9000];
        loop {
            match socket.recv_from(&mut room) {
                Ok((length, from)) => all.entry(from.port()).or_default().push((length, place)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    all
}

/// The targets that got something.
fn used(flows: &BTreeMap<u16, Vec<(usize, usize)>>) -> Vec<usize> {
    let targets: BTreeSet<usize> = flows.values().flatten().map(|(_, target)| *target).collect();
    targets.into_iter().collect()
}

/// Sends a small datagram from each of these ports.
fn send_small(client: &NetNs, version: Version, ports: Range<u16>) {
    let to = SocketAddr::new(version.virtual_address(), PORT);
    let send = |port| {
        UdpSocket::bind((version.address(0, 1), port)).unwrap().send_to(&[1; SMALL], to).unwrap();
    };
    client.enter_with(|| ports.for_each(send)).unwrap();
}

/// Sends a large datagram from each of these ports, whose fragments come in reverse order in IPv4.
fn send_large(client: &NetNs, version: Version, ports: Range<u16>) {
    let to = SocketAddr::new(version.virtual_address(), PORT);
    let send = || match version {
        Version::V4 => {
            let raw = Sender::open(to.ip(), Broadcast::Refused).unwrap();
            let permitted = Policy::anything().permit(SocketAddr::new(to.ip(), 0)).unwrap();
            ports.flat_map(reversed_fragments).for_each(|packet| {
                raw.send(&packet, &permitted).unwrap();
            });
        }
        Version::V6 => ports.for_each(|port| {
            UdpSocket::bind((version.address(0, 1), port)).unwrap().send_to(&[2; LARGE], to).unwrap();
        }),
    };
    client.enter_with(send).unwrap();
}

/// The fragments that this host was asked to put together, in IPv4 and IPv6.
fn reassembled() -> [u64; 2] {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = snmp.lines().filter(|line| line.starts_with("Ip:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|name| name == "ReasmReqds").unwrap();
    let snmp6 = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
    let of_ipv6 = snmp6.lines().find_map(|line| line.strip_prefix("Ip6ReasmReqds")).unwrap();
    [values.split(' ').nth(place).unwrap(), of_ipv6.trim()].map(|text| text.parse().unwrap())
}

#[test]
fn a_flow_stays_with_its_target_and_its_fragments_come_in_any_order() {
    let Some(network) = Network::new() else { return };
    for version in Version::BOTH {
        let sockets = network.listen(version.virtual_address());
        let running = network.start(settings("")).unwrap();
        let ports = 20_000..20_060;
        send_small(&network.client, version, ports.clone());
        send_large(&network.client, version, ports.clone());
        // A small datagram and three fragments each, of which two come again where they had to wait.
        settle(&running, ports.len() * if version == Version::V4 { 6 } else { 4 });
        let flows = received(&sockets);
        assert_eq!(flows.len(), ports.len(), "{version:?}");
        for (port, datagrams) in &flows {
            let mut lengths: Vec<usize> = datagrams.iter().map(|(length, _)| *length).collect();
            lengths.sort_unstable();
            assert_eq!(lengths, [SMALL, LARGE], "{version:?}: {port}");
            assert_eq!(datagrams[0].1, datagrams[1].1, "{version:?}: the fragments of {port} went elsewhere");
        }
        assert_eq!(used(&flows), [0, 1, 2, 3], "{version:?}: 60 flows reach every target");
        let counted = running.end().unwrap();
        let n_flows = ports.len() as u64;
        let n_held = if version == Version::V4 { 2 * n_flows } else { 0 };
        assert_eq!((counted.decisions.n_held, counted.decisions.n_released), (n_held, n_held), "{version:?}");
        assert_eq!(counted.decisions.n_forwarded, 4 * n_flows, "{version:?}: {counted:#?}");
        assert_eq!(counted.queues.iter().map(|queue| queue.n_injected).sum::<u64>(), n_held);
        assert_eq!(network.dut.enter_with(reassembled).unwrap(), [0, 0], "the balancer puts no fragments together");
    }
}

#[test]
fn in_mode_dnat_answers_come_from_the_virtual_address_unless_a_defect_gives_them_another_one() {
    let Some(network) = Network::new() else { return };
    for (version, defects) in
        [(Version::V4, ""), (Version::V6, ""), (Version::V4, "wrong-source"), (Version::V6, "wrong-source")]
    {
        let sockets = network.listen(version.any());
        let running = network.start(DeviceSettings { mode: ForwardMode::Dnat, ..settings(defects) }).unwrap();
        let to = SocketAddr::new(version.virtual_address(), PORT);
        let client = network.client.enter_with(|| UdpSocket::bind((version.address(0, 1), 0)).unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.send_to(b"who", to).unwrap();
        let mut room = [0; 10];
        let deadline = clock::now() + PATIENCE;
        let (socket, from) = loop {
            let got = sockets.iter().find_map(|socket| Some((socket, socket.recv_from(&mut room).ok()?.1)));
            if let Some(got) = got {
                break got;
            }
            assert!(clock::now() < deadline, "{version:?} {defects}: {:#?}", running.counters());
        };
        assert_eq!(from, client.local_addr().unwrap(), "the source of a request stays");
        socket.send_to(b"me", from).unwrap();
        let (_, answered) = client.recv_from(&mut room).unwrap();
        assert_eq!(answered == to, defects.is_empty(), "{version:?} {defects}: {answered}");
        running.end().unwrap();
    }
}

#[test]
fn defects_of_the_data_path_do_what_they_say_as_often_as_they_count() {
    let Some(network) = Network::new() else { return };
    let version = Version::V4;
    let ports = 20_000..20_200;
    for (defect, effect) in [("drop=1/10", -1), ("duplicate=1/10", 1), ("delay=1/10@5ms", 0), ("reorder=1/10", 0)] {
        let sockets = network.listen(version.virtual_address());
        let running = network.start(settings(defect)).unwrap();
        send_small(&network.client, version, ports.clone());
        settle(&running, ports.len());
        let n_received = received(&sockets).values().map(Vec::len).sum::<usize>();
        let counted = running.end().unwrap();
        let word = defect.split('=').next().unwrap();
        let n_done = i64::try_from(counted.decisions.defects[word]).unwrap();
        assert!((5..50).contains(&n_done), "{defect}: {n_done}");
        let expected = i64::try_from(ports.len()).unwrap() + effect * n_done;
        assert_eq!(i64::try_from(n_received).unwrap(), expected, "{defect}: {counted:#?}");
    }
}

#[test]
fn a_target_comes_and_goes_while_the_balancer_runs() {
    let Some(network) = Network::new() else { return };
    let version = Version::V4;
    let sockets = network.listen(version.virtual_address());
    let running = network.start(settings("")).unwrap();
    let group = "default".to_owned();
    let remove = ControlRequest::RemoveTarget { group: group.clone(), name: "t2".to_owned() };
    network.ask(&remove).unwrap();
    assert_eq!(network.ask(&remove).unwrap_err().to_string(), "group `default` has no target `t2`");
    send_small(&network.client, version, 20_000..20_040);
    settle(&running, 40);
    assert_eq!(used(&received(&sockets)), [0, 2, 3]);
    let add =
        |text: &str| network.ask(&ControlRequest::AddTarget { group: group.clone(), target: text.parse().unwrap() });
    let same = add("t9=198.18.10.1,2001:2:0:a::9").unwrap_err();
    assert!(same.to_string().contains("target t1 has the address 198.18.10.1 too"), "{same}");
    let far = add("t9=203.0.113.1,2001:db8::1").unwrap_err();
    assert!(far.to_string().contains("203.0.113.1 is on no link"), "{far}");
    let own = add("t9=198.18.10.254,2001:2:0:a::9").unwrap_err();
    assert!(own.to_string().contains("198.18.10.254 is an address of this host"), "{own}");
    let local = add("t9=127.0.0.1,2001:2:0:a::9").unwrap_err();
    assert!(local.to_string().contains("127.0.0.1 is not the address of another host"), "{local}");
    let target = "t9=198.18.10.9,2001:2:0:a::9".parse().unwrap();
    let bad = network.ask(&ControlRequest::AddTarget { group: "a b".to_owned(), target }).unwrap_err();
    assert!(bad.to_string().contains("group `a b`: its name has letters"), "{bad}");
    add("t2=198.18.11.1,2001:2:0:b::1").unwrap();
    send_small(&network.client, version, 21_000..21_040);
    settle(&running, 80);
    assert_eq!(used(&received(&sockets)), [0, 1, 2, 3]);
    running.end().unwrap();
    let gone = network.ask(&ControlRequest::Counters).unwrap_err();
    assert_eq!(gone.to_string(), "no balancer `balancer` runs here");
}

#[test]
fn those_who_connect_and_say_nothing_do_not_hold_up_the_end() {
    let Some(network) = Network::new() else { return };
    let running = network.start(settings("")).unwrap();
    let connect = || {
        let address = std::os::unix::net::SocketAddr::from_abstract_name("fathom-balancer-balancer").unwrap();
        std::os::unix::net::UnixStream::connect_addr(&address).unwrap()
    };
    // The control waits two seconds for each.
    let silent: Vec<_> = network.dut.enter_with(|| (0..20).map(|_| connect()).collect()).unwrap();
    let began = clock::now();
    running.end().unwrap();
    assert!(clock::now() - began < PATIENCE);
    drop(silent);
}

#[test]
fn what_stands_in_the_way_is_named_and_everything_is_put_back() {
    let Some(network) = Network::new() else { return };
    let look = || {
        let chains = Nftables::open().unwrap().base_chains().unwrap().len();
        let mut netlink = Netlink::open().unwrap();
        (chains, netlink.marked_routes().unwrap().len(), netlink.links().unwrap().len())
    };
    let state = || network.dut.enter_with(look).unwrap();
    let before = state();
    let running = network.start(settings("")).unwrap();
    let while_it_runs = state();
    assert_eq!(while_it_runs, (2, 2 * usize::from(N_TARGETS), before.2 + 1));
    let refused = |settings: DeviceSettings| network.start(settings).map(drop).unwrap_err();
    let (name, queues) = ("other".to_owned(), 5..=5);
    let same = refused(settings(""));
    let own = format!("process {} of user {}", std::process::id(), effective_user());
    assert_eq!(same.to_string(), format!("a balancer `balancer` runs here already, {own}"));
    let taken = refused(DeviceSettings { name: name.clone(), first_mark: 25_000, ..settings("") });
    assert_eq!(taken.to_string(), "queue 0 belongs to another program");
    let marks = refused(DeviceSettings { name: name.clone(), queues: queues.clone(), ..settings("") });
    assert_eq!(marks.to_string(), "the marks from 20000 on belong to another balancer");
    assert_eq!(state(), while_it_runs, "refused balancers left nothing");
    let second = network.start(DeviceSettings { name, queues, first_mark: 25_000, ..settings("") });
    second.unwrap().end().unwrap();
    assert_eq!(state(), while_it_runs);
    running.end().unwrap();
    assert_eq!(state(), before);
}

#[test]
fn routes_of_a_balancer_that_was_killed_are_taken_away_by_the_next_one() {
    let Some(network) = Network::new() else { return };
    let mark = DeviceSettings::FIRST_MARK_DEFAULT + 1;
    let left = MarkedRoute { mark, table: mark, gateway: Version::V4.address(10, 1) };
    let n_routes = || network.dut.enter_with(|| Netlink::open().unwrap().marked_routes().unwrap().len()).unwrap();
    let leave = || network.dut.enter_with(|| Netlink::open().unwrap().add_marked_route(&left).unwrap()).unwrap();
    leave();
    network.start(settings("")).unwrap().end().unwrap();
    assert_eq!(n_routes(), 0);
    // While another one runs, whose routes stay.
    let other = DeviceSettings { name: "other".to_owned(), queues: 5..=5, first_mark: 25_000, ..settings("") };
    let other = network.start(other).unwrap();
    let n_of_other = n_routes();
    leave();
    network.start(settings("")).unwrap().end().unwrap();
    assert_eq!(n_routes(), n_of_other);
    other.end().unwrap();
    assert_eq!(n_routes(), 0);
}
