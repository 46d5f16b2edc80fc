//! Several balancers at the entrance, of which each gets some of the fragments of a datagram.

use etherparse::PacketBuilder;
use fathom_balancer::{BalancerCounters, device::DeviceTarget};
use fathom_model::MacAddress;
use fathom_sys::netlink::BridgeIndex;

use super::*;

/// Datagrams of one run, each from a port of its own.
const PORTS: Range<u16> = 20_000..20_032;
/// As many addresses send, so that each balancer has the fragments of some.
const N_SOURCES: u16 = 8;
const N_FRAGMENTS: usize = 3;
/// The bytes of data in a fragment, a multiple of 8.
const PIECE: usize = 1448;

/// How the balancers at the entrance share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrangement {
    /// Each decides alone.
    Alone,
    /// Each sends the other one its fragments.
    Peers,
    /// Both send everything to the balancers of a second tier.
    TwoTiers,
}

/// Two ways into the network of all others, each by a balancer of the entrance: as behind a router that spreads packets without looking at
/// datagrams.
struct TwoWays {
    clients: [NetNs; 2],
    entrances: [NetNs; 2],
    behind: [NetNs; 2],
    targets: Vec<NetNs>,
    switch: NetNs,
}

/// The numbers of the first host of each kind in the network behind the entrances.
const ENTRANCE: u8 = 11;
const BEHIND: u8 = 21;
const TARGET: u8 = 31;

impl TwoWays {
    fn new() -> Option<Self> {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return None;
        }
        let pair = || [host(), host()];
        let (switch, targets) = (host(), (0..3).map(|_| host()).collect());
        let network = Self { clients: pair(), entrances: pair(), behind: pair(), targets, switch };
        if !has_queues(&network.entrances[0]) {
            return None;
        }
        network.entrances.iter().chain(&network.behind).for_each(forward);
        for (client, entrance) in network.clients.iter().zip(&network.entrances) {
            join(client, entrance, 0);
        }
        network.targets.iter().for_each(|target| target.enter_with(give_virtual_address).unwrap());
        network.plug_all();
        Some(network)
    }

    /// Joins all but the clients by a bridge.
    fn plug_all(&self) {
        let mut switch = self.switch.enter_with(Netlink::open).unwrap().unwrap();
        switch.add_bridge("br0", MacAddress([2, 0, 0, 0, 0, 1])).unwrap();
        let bridge = switch.link("br0").unwrap().index;
        switch.set_up(bridge).unwrap();
        let all = [(&self.entrances[..], ENTRANCE), (&self.behind[..], BEHIND), (&self.targets[..], TARGET)];
        for (host, number) in all.into_iter().flat_map(|(hosts, first)| hosts.iter().zip(first..)) {
            let port = format!("p{number}");
            let end = |name| VethEnd { name, mac: None };
            let far_namespace = Some(self.switch.as_fd());
            let veth = Veth { near: end("behind"), far: end(&port), far_namespace, mtu_bytes: 1500, n_queues: 1 };
            let mut near = host.enter_with(Netlink::open).unwrap().unwrap();
            near.add_veth(&veth).unwrap();
            let index = near.link("behind").unwrap().index;
            for (version, length) in Version::BOTH.into_iter().zip([24, 64]) {
                near.add_address(index, version.address(1, number), length).unwrap();
            }
            let port = switch.link(&port).unwrap().index;
            near.set_up(index).unwrap();
            switch.set_up(port).unwrap();
            // A port that is up forwards at once.
            switch.add_port(BridgeIndex(bridge), port).unwrap();
        }
    }

    fn start(&self, arrangement: Arrangement) -> Vec<RunningBalancer> {
        let targets = named("t", TARGET, self.targets.len());
        let entrances = named("lb", ENTRANCE, 2);
        let alone = DeviceSettings { targets, ..settings("") };
        let of_entrance = |own: &DeviceTarget| match arrangement {
            Arrangement::Alone => alone.clone(),
            Arrangement::Peers => {
                let balancer = BalancerSettings { own_name: Some(own.name.clone()), ..BalancerSettings::default() };
                DeviceSettings { tier: entrances.clone(), balancer, ..alone.clone() }
            }
            Arrangement::TwoTiers => {
                DeviceSettings { tier: named("lb", BEHIND, 2), targets: Vec::new(), ..alone.clone() }
            }
        };
        let start = |host: &NetNs, settings| host.enter_with(|| RunningBalancer::start(settings).unwrap()).unwrap();
        let behind: &[NetNs] = if arrangement == Arrangement::TwoTiers { &self.behind } else { &[] };
        let at_entrance = self.entrances.iter().zip(&entrances).map(|(host, own)| start(host, of_entrance(own)));
        at_entrance.chain(behind.iter().map(|host| start(host, alone.clone()))).collect()
    }

    /// Sends a small datagram and a large one from each port. The fragments of the large one come in reverse order, and by turns at each
    /// entrance.
    fn send(&self, version: Version) {
        for port in PORTS {
            let mut packets = vec![whole(version, port, SMALL)];
            packets.extend(pieces(version, port).into_iter().rev());
            for (packet, entrance) in packets.iter().zip(usize::from(port)..) {
                let send = || {
                    let to = version.virtual_address();
                    let permitted = Policy::anything().permit(SocketAddr::new(to, 0)).unwrap();
                    Sender::open(to, Broadcast::Refused).unwrap().send(packet, &permitted).unwrap();
                };
                self.clients[entrance % 2].enter_with(send).unwrap();
            }
        }
    }
}

/// Hosts behind the entrances, by number from the first one on.
fn named(word: &str, first: u8, n: usize) -> Vec<DeviceTarget> {
    let host = |(place, number): (usize, u8)| {
        let [v4, v6] = Version::BOTH.map(|version| version.address(1, number));
        format!("{word}{place}={v4},{v6}").parse().unwrap()
    };
    (1..=n).zip(first..).map(host).collect()
}

/// A datagram of the flow of a port, uncut.
fn whole(version: Version, port: u16, length: usize) -> Vec<u8> {
    let source = version.address(0, u8::try_from(1 + port % N_SOURCES).unwrap());
    let mut packet = Vec::new();
    let builder = match (source, version.virtual_address()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("both have one version"),
    };
    builder.udp(port, PORT).write(&mut packet, &vec![7; length]).unwrap();
    packet
}

/// The fragments of a large datagram (RFC 791 section 3.2, RFC 8200 section 4.5).
fn pieces(version: Version, port: u16) -> Vec<Vec<u8>> {
    let whole = whole(version, port, LARGE);
    let (head, body) = whole.split_at(if version == Version::V4 { 20 } else { 40 });
    let bytes = |number: usize| u16::try_from(number).unwrap().to_be_bytes();
    let piece = |(place, piece): (usize, &[u8])| {
        let (offset, is_more) = (place * PIECE, place + 1 < N_FRAGMENTS);
        let mut packet = head.to_vec();
        match version {
            Version::V4 => {
                packet[4..6].copy_from_slice(&port.to_be_bytes());
                packet[6..8].copy_from_slice(&bytes(offset / 8 + usize::from(is_more) * 0x2000));
            }
            Version::V6 => {
                packet[4..6].copy_from_slice(&bytes(8 + piece.len()));
                packet[6] = 44;
                packet.extend([17, 0]);
                packet.extend(bytes(offset + usize::from(is_more)));
                packet.extend(u32::from(port).to_be_bytes());
            }
        }
        packet.extend_from_slice(piece);
        packet
    };
    body.chunks(PIECE).enumerate().map(piece).collect()
}

#[test]
fn fragments_that_arrive_at_different_balancers_reach_one_target_by_a_tier_alone() {
    let Some(network) = TwoWays::new() else { return };
    for (arrangement, version) in [Arrangement::Alone, Arrangement::Peers, Arrangement::TwoTiers]
        .into_iter()
        .flat_map(|arrangement| Version::BOTH.map(|version| (arrangement, version)))
    {
        let case = format!("{arrangement:?} {version:?}");
        let sockets = listen(&network.targets, version.virtual_address());
        let running = network.start(arrangement);
        network.send(version);
        // One of three fragments arrives where its first one does not, and waits there in vain.
        let n_forwarded = PORTS.len() as u64 * if arrangement == Arrangement::Alone { 3 } else { 4 };
        let forwarded = || running.iter().map(|one| one.counters().decisions.n_forwarded).sum::<u64>();
        let deadline = clock::now() + PATIENCE;
        while forwarded() < n_forwarded {
            assert!(clock::now() < deadline, "{case}: {} of {n_forwarded} forwarded", forwarded());
            std::thread::yield_now();
        }
        let n_whole = PORTS.len() * if arrangement == Arrangement::Alone { 1 } else { 2 };
        let flows = gathered(&sockets, n_whole);
        assert_eq!(flows.len(), PORTS.len(), "{case}");
        for (port, datagrams) in &flows {
            let mut lengths: Vec<usize> = datagrams.iter().map(|(length, _)| *length).collect();
            lengths.sort_unstable();
            let whole = if arrangement == Arrangement::Alone { &[SMALL][..] } else { &[SMALL, LARGE] };
            assert_eq!(lengths, whole, "{case}: {port}");
            assert!(datagrams.iter().all(|one| one.1 == datagrams[0].1), "{case}: {port} went to several targets");
        }
        assert_eq!(used(&flows), [0, 1, 2], "{case}: every target is used");
        let counted = running.into_iter().map(|one| one.end().unwrap().decisions);
        check_counters(&counted.collect::<Vec<_>>(), arrangement, &case);
    }
}

/// What the targets received, at least so many datagrams: the first ones may wait for the Ethernet address of their target.
fn gathered(sockets: &[UdpSocket], n: usize) -> BTreeMap<u16, Vec<(usize, usize)>> {
    let deadline = clock::now() + PATIENCE;
    let mut all: BTreeMap<u16, Vec<(usize, usize)>> = BTreeMap::new();
    while all.values().map(Vec::len).sum::<usize>() < n && clock::now() < deadline {
        for (port, datagrams) in received(sockets) {
            all.entry(port).or_default().extend(datagrams);
        }
    }
    all
}

/// Everything is accounted for, and each balancer had a part in it.
fn check_counters(counted: &[BalancerCounters], arrangement: Arrangement, case: &str) {
    for one in counted {
        let n_dropped: u64 = one.dropped.values().sum();
        let parts = [one.n_forwarded, one.n_to_balancer, one.n_held, n_dropped];
        assert_eq!((one.n_packets, n_dropped), (parts.iter().sum(), 0), "{case}");
        assert_eq!(one.n_to_balancer, one.balancers.values().sum::<u64>(), "{case}");
    }
    let (entrances, behind) = counted.split_at(2);
    let n_sent = |one: &BalancerCounters| one.n_to_balancer;
    match arrangement {
        Arrangement::Alone => assert!(entrances.iter().all(|one| n_sent(one) == 0)),
        Arrangement::Peers => {
            assert!(entrances.iter().all(|one| n_sent(one) > 0 && one.n_forwarded > 0), "{case}");
        }
        Arrangement::TwoTiers => {
            // Each entrance had two of the four packets of each port.
            let n = 2 * PORTS.len() as u64;
            assert!(entrances.iter().all(|one| (n_sent(one), one.n_packets) == (n, n)), "{case}");
            assert!(entrances.iter().all(|one| one.balancers.values().all(|n| *n > 0)), "{case}");
            assert!(behind.iter().all(|one| one.n_forwarded > 0), "{case}");
        }
    }
}

#[test]
fn a_tier_that_is_not_possible_is_refused_before_anything_changes() {
    let tier = named("lb", BEHIND, 2);
    let first = DeviceSettings { tier, targets: Vec::new(), ..settings("") };
    let own = |name: &str| BalancerSettings { own_name: Some(name.to_owned()), ..BalancerSettings::default() };
    let twice = vec![first.tier[0].clone(), first.tier[0].clone()];
    let with = |defects: &str| settings(defects).balancer;
    let cases = [
        (DeviceSettings { balancer: own("lb9"), ..first.clone() }, "lb9 is not among the balancers of --tier"),
        (DeviceSettings { mode: ForwardMode::Dnat, ..first.clone() }, "it needs --mode dsr"),
        (DeviceSettings { targets: settings("").targets, ..first.clone() }, "so this one has no targets"),
        (
            DeviceSettings { balancer: with("mis-hash=1/2,drop=1/2"), ..first.clone() },
            "so mis-hash=1/2 has to be a defect of theirs",
        ),
        (DeviceSettings { tier: twice, ..first.clone() }, "there is a target lb1 already"),
    ];
    for (settings, expected) in cases {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let xdp = DeviceSettings { data_path: DataPath::Xdp, interfaces: vec!["eth0".to_owned()], ..first.clone() };
    let error = xdp.check().unwrap_err().to_string();
    assert!(error.contains("xdp knows targets only"), "{error}");
    assert!(DeviceSettings { balancer: with("drop=1/2"), ..first }.check().is_ok());
}
