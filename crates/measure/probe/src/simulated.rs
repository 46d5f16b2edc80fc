//! A network in virtual time: a chain of routers with a host behind them, which parse and write real packets.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use etherparse::{IpNumber, Ipv4Header, Ipv6Header};
use fathom_model::units::Nanos;

use super::{
    CapturedPacket, ChecksumMode, FlowRule, IpFields, ProbeDriver, ProbeKind, ProbePorts, ProbeRunner, ProbeTemplate,
    ProbeTransport, SendOutcome,
    path_mtu::{PathMtuOptions, PathMtuResult, PathMtuSearch, ReplyLimit},
    port_scan::{PortScan, PortStatus, ScanOptions},
    reply::{IcmpErrorKind, TcpFlags},
    route::{RouteOptions, RouteTrace},
    series::{ProbeSeries, Schedule},
};

const MS: fn(u64) -> Nanos = Nanos::from_millis;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A router, or the link behind it.
#[derive(Debug, Clone, Copy)]
struct Router {
    /// The last byte of its address.
    name: u8,
    /// The MTU of the link behind it.
    mtu: usize,
    /// Whether it sends ICMP errors for packets that it does not forward.
    speaks: bool,
}

const ROUTER: Router = Router { name: 1, mtu: 1500, speaks: true };

/// A network as a driver sees it.
struct SimulatedNetwork {
    now: Nanos,
    routers: Vec<Router>,
    is_v6: bool,
    /// The delay of each hop.
    hop_delay: Nanos,
    /// Open ports, and ports behind a filter.
    open: Vec<u16>,
    filtered: Vec<u16>,
    /// The numbers of probes that are lost, answered late, or answered twice.
    lost: Vec<u64>,
    late: BTreeMap<u64, Nanos>,
    twice: Vec<u64>,
    n_probes: u64,
    arrivals: Vec<(Nanos, Vec<u8>)>,
}

fn address(is_v6: bool, last: u8) -> IpAddr {
    if is_v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(192, 0, 2, last).into()
    }
}

const HERE: u8 = 100;
const TARGET: u8 = 200;

impl SimulatedNetwork {
    fn of(routers: &[Router]) -> Self {
        Self {
            now: MS(1000),
            routers: routers.to_vec(),
            is_v6: false,
            hop_delay: MS(1),
            open: vec![80],
            filtered: Vec::new(),
            lost: Vec::new(),
            late: BTreeMap::new(),
            twice: Vec::new(),
            n_probes: 0,
            arrivals: Vec::new(),
        }
    }

    fn conversation(&self, ask: ProbeKind, flow: FlowRule) -> ProbeTemplate {
        ProbeTemplate {
            source: address(self.is_v6, HERE),
            destination: address(self.is_v6, TARGET),
            kind: ask,
            ip: IpFields { dont_fragment: true, ..IpFields::default() },
            ports: ProbePorts { destination: 80, source: 40_000 },
            flow,
            secret: 0x1234_5678,
            payloads: Vec::new(),
            checksum: ChecksumMode::Valid,
        }
    }

    /// An IP packet back to the source of the probes.
    fn packet(&self, from: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let octets = |last| match address(self.is_v6, last) {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let length = u16::try_from(payload.len()).unwrap();
        let header = if self.is_v6 {
            let header = Ipv6Header {
                payload_length: length,
                next_header: IpNumber(protocol),
                hop_limit: 60,
                source: octets(from).try_into().unwrap(),
                destination: octets(HERE).try_into().unwrap(),
                ..Ipv6Header::default()
            };
            header.to_bytes().to_vec()
        } else {
            let (source, destination) = (octets(from).try_into().unwrap(), octets(HERE).try_into().unwrap());
            Ipv4Header::new(length, 60, IpNumber(protocol), source, destination).unwrap().to_bytes().to_vec()
        };
        [&header[..], payload].concat()
    }

    /// An ICMP error about a packet. It quotes as much of the packet as the IP version requires.
    fn error(&self, from: u8, (kind, code, number): (u8, u8, u32), about: &[u8]) -> Vec<u8> {
        let quoted = if self.is_v6 { about.len().min(1200) } else { about.len().min(28) };
        let message = [&[kind, code, 0, 0][..], &number.to_be_bytes(), &about[..quoted]].concat();
        self.packet(from, if self.is_v6 { 58 } else { 1 }, &message)
    }

    /// Returns the reply to a packet, and after how many hops it was sent.
    fn fate(&self, packet: &[u8]) -> Option<(u64, Vec<u8>)> {
        let hops = usize::from(packet[if self.is_v6 { 7 } else { 8 }]);
        for (nth, router) in (1..).zip(&self.routers) {
            let exceeded = if self.is_v6 { (3, 0, 0) } else { (11, 0, 0) };
            let mtu = u32::try_from(router.mtu).unwrap();
            let too_big = if self.is_v6 { (2, 0, mtu) } else { (3, 4, mtu) };
            let complaint = if hops <= nth {
                Some(exceeded)
            } else if packet.len() > router.mtu {
                Some(too_big)
            } else {
                None
            };
            if let Some(complaint) = complaint {
                let nth = u64::try_from(nth).unwrap();
                return router.speaks.then(|| (nth, self.error(router.name, complaint, packet)));
            }
        }
        let answer = self.answer(packet)?;
        Some((u64::try_from(self.routers.len() + 1).unwrap(), answer))
    }

    /// Returns the reply of the host itself.
    fn answer(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let (protocol, segment) = if self.is_v6 { (packet[6], &packet[40..]) } else { (packet[9], &packet[20..]) };
        let port = u16::from_be_bytes([segment[2], segment[3]]);
        match protocol {
            TCP | UDP if self.filtered.contains(&port) => None,
            TCP => {
                let sequence = u32::from_be_bytes(segment[4..8].try_into().unwrap());
                let flags = TcpFlags(segment[13]);
                let mut answer = [&segment[2..4], &segment[..2], &[0; 16]].concat();
                answer[12] = 5 << 4;
                let reset = TcpFlags::RST.with(TcpFlags::ACK);
                answer[13] = if flags.has(TcpFlags::ACK) {
                    // RFC 9293 section 3.10.7.1: the sequence number of a reset is the acknowledgment number that it answers.
                    answer[4..8].copy_from_slice(&segment[8..12]);
                    TcpFlags::RST.0
                } else {
                    answer[8..12].copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
                    if self.open.contains(&port) { TcpFlags::SYN.with(TcpFlags::ACK).0 } else { reset.0 }
                };
                Some(self.packet(TARGET, TCP, &answer))
            }
            UDP if self.open.contains(&port) => {
                Some(self.packet(TARGET, UDP, &[&segment[2..4], &segment[..2], &segment[4..]].concat()))
            }
            UDP => Some(self.error(TARGET, if self.is_v6 { (1, 4, 0) } else { (3, 3, 0) }, packet)),
            1 | 58 => {
                let mut answer = segment.to_vec();
                answer[0] = if self.is_v6 { 129 } else { 0 };
                Some(self.packet(TARGET, protocol, &answer))
            }
            _ => Some(self.error(TARGET, if self.is_v6 { (4, 1, 0) } else { (3, 2, 0) }, packet)),
        }
    }

    fn run(&mut self, conversation: &ProbeTemplate, driver: &mut dyn ProbeDriver) {
        let mut conduct = ProbeRunner { template: conversation, transport: self, is_stopped: &|| false };
        assert_eq!(conduct.run(driver), Ok(false));
    }

    fn route(&mut self, ask: ProbeKind) -> RouteTrace {
        let mut route = RouteTrace::new(RouteOptions {
            hops_max: 30,
            queries: 3,
            timeout: MS(500),
            gap: Nanos::from_micros(500),
            pause: MS(10),
        });
        let conversation = self.conversation(ask, FlowRule::Constant);
        self.run(&conversation, &mut route);
        route
    }

    fn path_mtu(&mut self) -> PathMtuResult {
        let floor = if self.is_v6 { 1280 } else { 68 };
        let mut search = PathMtuSearch::new(PathMtuOptions {
            floor,
            ceiling: 1500,
            tries: 2,
            timeout: MS(500),
            gap: Nanos::from_micros(500),
            reply_limit: ReplyLimit::Free,
        });
        let conversation = self.conversation(ProbeKind::echo(address(self.is_v6, TARGET)), FlowRule::Constant);
        self.run(&conversation, &mut search);
        search.result()
    }

    fn series(&mut self, ask: ProbeKind, flow: FlowRule, count: u64) -> ProbeSeries {
        let schedule = Schedule { interval: MS(10), count: Some(count), end: MS(1_000_000), timeout: MS(100) };
        let mut series = ProbeSeries::new(schedule, 3);
        let conversation = self.conversation(ask, flow);
        self.run(&conversation, &mut series);
        series
    }
}

impl ProbeTransport for SimulatedNetwork {
    type Error = Infallible;

    fn now(&self) -> Nanos {
        self.now
    }

    fn send(&mut self, packet: &[u8]) -> Result<SendOutcome, Infallible> {
        if packet.len() > 1500 {
            return Ok(SendOutcome::TooLong);
        }
        let number = self.n_probes;
        self.n_probes += 1;
        if !self.lost.contains(&number)
            && let Some((n_hops, answer)) = self.fate(packet)
        {
            let delay = self.late.get(&number).copied().unwrap_or(self.hop_delay * (2 * n_hops));
            let copies = if self.twice.contains(&number) { 2 } else { 1 };
            self.arrivals.extend(std::iter::repeat_n((self.now + delay, answer), copies));
            self.arrivals.sort_by_key(|(at, _)| *at);
        }
        Ok(SendOutcome::Sent(self.now))
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<Option<CapturedPacket>, Infallible> {
        if self.arrivals.first().is_none_or(|(at, _)| *at > self.now) {
            return Ok(None);
        }
        let (at, packet) = self.arrivals.remove(0);
        room[..packet.len()].copy_from_slice(&packet);
        Ok(Some(CapturedPacket::Incoming(packet.len(), at)))
    }

    fn wait(&mut self, until: Nanos) -> Result<(), Infallible> {
        let next = self.arrivals.first().map_or(until, |(at, _)| (*at).min(until));
        self.now = self.now.max(next);
        Ok(())
    }

    fn n_dropped_replies(&self) -> Option<u64> {
        Some(0)
    }
}

fn asks(is_v6: bool) -> [(ProbeKind, FlowRule); 6] {
    let echo = ProbeKind::echo(address(is_v6, TARGET));
    [
        (echo, FlowRule::Constant),
        (echo, FlowRule::PerProbe),
        (ProbeKind::SYN, FlowRule::Constant),
        (ProbeKind::SYN, FlowRule::PerProbe),
        (ProbeKind::Udp, FlowRule::Constant),
        (ProbeKind::Udp, FlowRule::PerProbe),
    ]
}

#[test]
fn every_way_to_ask_is_answered_and_each_answer_finds_its_probe() {
    for is_v6 in [false, true] {
        for (ask, flow) in asks(is_v6) {
            for open in [vec![80], vec![]] {
                let mut network =
                    SimulatedNetwork { is_v6, open, late: [(1, MS(35))].into(), ..SimulatedNetwork::of(&[ROUTER]) };
                let series = network.series(ask, flow, 5);
                let counts = series.tracker().counts();
                assert_eq!(
                    (counts.n_sent, counts.n_answered, counts.n_reordered),
                    (5, 5, 1),
                    "{ask:?} {flow:?} {is_v6}"
                );
                let rtts: Vec<u64> = (1..=5).map(|rank| series.tracker().rtts().value_at_rank(rank).unwrap()).collect();
                assert!(rtts[3].abs_diff(MS(4).0) < 100_000 && rtts[4].abs_diff(MS(35).0) < 1_000_000, "{rtts:?}");
            }
        }
    }
}

#[test]
fn a_reset_for_an_acknowledgment_finds_its_probe() {
    let ask = ProbeKind::Tcp(super::TcpProbe { flags: TcpFlags::ACK, ..super::TcpProbe::default() });
    for flow in [FlowRule::Constant, FlowRule::PerProbe] {
        let mut network = SimulatedNetwork { late: [(0, MS(25))].into(), ..SimulatedNetwork::of(&[ROUTER]) };
        let counts = network.series(ask, flow, 4).tracker().counts();
        assert_eq!((counts.n_answered, counts.n_reordered), (4, 1), "{flow:?}");
    }
}

#[test]
fn lost_late_and_doubled_answers_are_told_apart() {
    let faults = (vec![2, 5, 6, 7], BTreeMap::from([(9, MS(150))]), vec![4]);
    let mut network =
        SimulatedNetwork { lost: faults.0, late: faults.1, twice: faults.2, ..SimulatedNetwork::of(&[ROUTER]) };
    let series = network.series(ProbeKind::SYN, FlowRule::PerProbe, 30);
    let counts = series.tracker().counts();
    assert_eq!((counts.n_sent, counts.n_answered, counts.n_late, counts.n_duplicates), (30, 25, 1, 1));
    assert_eq!(counts.n_lost(), 4);
    let outages = series.tracker().outages();
    assert_eq!(outages.len(), 1, "{outages:?}");
    assert_eq!((outages[0].from, outages[0].until, outages[0].n_probes), (MS(1050), Some(MS(1080)), 3));
}

#[test]
fn a_router_that_refuses_is_named_and_its_probes_are_not_answered() {
    let mut network = SimulatedNetwork::of(&[Router { mtu: 20, ..ROUTER }]);
    let series = network.series(ProbeKind::SYN, FlowRule::Constant, 3);
    let counts = series.tracker().counts();
    assert_eq!((counts.n_answered, counts.n_refused, counts.n_lost()), (0, 3, 3));
    let told: Vec<_> = series.icmp_errors().iter().map(|(text, n)| (text.as_str(), *n)).collect();
    assert_eq!(told, [("packet too big, MTU 20, says 192.0.2.1", 3)]);
    // Refused probes are not waited for.
    assert!(network.now < MS(1100), "{}", network.now);
}

#[test]
fn a_route_is_found_with_every_way_to_ask() {
    let routers: Vec<Router> = (1..=9).map(|name| Router { name, ..ROUTER }).collect();
    for is_v6 in [false, true] {
        for (ask, _) in asks(is_v6).into_iter().filter(|(_, flow)| *flow == FlowRule::Constant) {
            let mut network = SimulatedNetwork { is_v6, ..SimulatedNetwork::of(&routers) };
            let route = network.route(ask);
            assert_eq!(route.reached(), Some(10), "{ask:?}");
            for (hop, nth) in route.hops().iter().zip(1_u8..) {
                let name = if nth == 10 { TARGET } else { nth };
                assert_eq!(hop.addresses, [address(is_v6, name)], "{ask:?} hop {nth}");
                assert_eq!((hop.n_sent, hop.rtts.clone()), (3, vec![MS(2 * u64::from(nth)); 3]), "{ask:?} hop {nth}");
            }
        }
    }
}

#[test]
fn silent_routers_are_hops_without_an_address_and_a_silent_end_is_given_up() {
    let mut routers: Vec<Router> = (1..=4).map(|name| Router { name, ..ROUTER }).collect();
    routers[1].speaks = false;
    let route = SimulatedNetwork::of(&routers).route(ProbeKind::SYN);
    assert_eq!((route.reached(), route.hops()[1].addresses.len(), route.hops()[1].n_sent), (Some(5), 0, 3));

    let mut network = SimulatedNetwork { filtered: vec![80], ..SimulatedNetwork::of(&routers) };
    let route = network.route(ProbeKind::SYN);
    assert_eq!(route.reached(), None);
    assert_eq!(route.hops().iter().filter(|hop| !hop.addresses.is_empty()).count(), 3);
    assert!(route.hops().len() < 30 && network.now < MS(10_000), "{} hops, {}", route.hops().len(), network.now);
}

#[test]
fn a_smaller_link_is_found_in_one_round_where_its_router_speaks() {
    for (is_v6, mtu) in [(false, 1400), (false, 576), (true, 1400)] {
        let mut network =
            SimulatedNetwork { is_v6, ..SimulatedNetwork::of(&[ROUTER, Router { name: 2, mtu, ..ROUTER }]) };
        let found = network.path_mtu();
        assert_eq!(found.mtu, u16::try_from(mtu).ok());
        assert_eq!(found.reported, BTreeMap::from([(address(is_v6, 2), u32::try_from(mtu).unwrap())]));
        assert_eq!(found.black_hole_from, None);
        assert!(network.n_probes <= 8, "{} probes", network.n_probes);
    }
}

#[test]
fn a_black_hole_is_named_with_the_length_from_which_packets_vanish() {
    for mtu in [1499, 1300, 577, 69] {
        let mut network = SimulatedNetwork::of(&[ROUTER, Router { name: 2, mtu, speaks: false }]);
        let found = network.path_mtu();
        let mtu = u16::try_from(mtu).unwrap();
        assert_eq!((found.mtu, found.black_hole_from), (Some(mtu), Some(mtu + 1)));
        assert!(network.now < MS(5_000), "{}", network.now);
    }
    // Behind a reported link, a second one drops silently.
    let routers = [Router { mtu: 1400, ..ROUTER }, Router { name: 2, mtu: 1300, speaks: false }];
    let found = SimulatedNetwork::of(&routers).path_mtu();
    assert_eq!((found.mtu, found.black_hole_from, found.reported.len()), (Some(1300), Some(1301), 1));
}

#[test]
fn a_target_that_limits_its_answers_is_asked_at_its_pace_and_its_silence_is_no_black_hole() {
    let limited = |lost: Vec<u64>, mtu: usize| {
        let mut network = SimulatedNetwork::of(&[Router { mtu, speaks: false, ..ROUTER }]);
        network.lost = lost;
        let range = PathMtuOptions {
            floor: 68,
            ceiling: 1500,
            tries: 3,
            timeout: MS(500),
            gap: MS(1100),
            reply_limit: ReplyLimit::RateLimited,
        };
        let mut search = PathMtuSearch::new(range);
        let conversation = network.conversation(ProbeKind::Udp, FlowRule::Constant);
        network.run(&conversation, &mut search);
        (search.result(), network.n_probes)
    };
    let (found, n_seen) = limited(Vec::new(), 1500);
    assert_eq!((found.mtu, found.black_hole_from, n_seen), (Some(1500), None, 2), "two answers are enough");
    let (found, _) = limited(Vec::new(), 1400);
    assert_eq!((found.mtu, found.black_hole_from), (Some(1400), Some(1401)));
    // It answers six probes and then no more.
    let (found, _) = limited((6..1000).collect(), 1400);
    assert_eq!((found.mtu, found.black_hole_from), (None, None));
}

#[test]
fn a_path_as_wide_as_the_device_takes_one_round_and_an_unreachable_host_has_none() {
    let mut network = SimulatedNetwork::of(&[ROUTER]);
    assert_eq!(network.path_mtu(), PathMtuResult { mtu: Some(1500), reported: BTreeMap::new(), black_hole_from: None });
    assert_eq!(network.n_probes, 4);
    let found = SimulatedNetwork::of(&[Router { mtu: 10, speaks: false, ..ROUTER }]).path_mtu();
    assert_eq!((found.mtu, found.black_hole_from), (None, None));
}

#[test]
fn a_burst_of_loss_does_not_make_a_path_narrower() {
    for mtu in [1400, 1500] {
        // The first four probes are two of the floor and two of the ceiling.
        for burst in [2..4, 4..12, 8..20, 12..40] {
            let lost = burst.clone().collect();
            let mut network =
                SimulatedNetwork { lost, ..SimulatedNetwork::of(&[Router { mtu, speaks: false, ..ROUTER }]) };
            let found = network.path_mtu();
            let vanishing = (mtu < 1500).then_some(1401);
            assert_eq!(
                (found.mtu.map(usize::from), found.black_hole_from),
                (Some(mtu), vanishing),
                "{burst:?} of {mtu}"
            );
        }
    }
}

#[test]
fn one_lost_probe_does_not_make_a_path_narrower() {
    for lost in 0..6 {
        let mut network =
            SimulatedNetwork { lost: vec![lost], ..SimulatedNetwork::of(&[Router { mtu: 1400, ..ROUTER }]) };
        assert_eq!(network.path_mtu().mtu, Some(1400), "probe {lost} lost");
    }
}

#[test]
fn ports_are_open_closed_silent_or_forbidden() {
    let scan =
        |ports: &[u16]| PortScan::new(ScanOptions { ports: ports.to_vec(), tries: 2, timeout: MS(100), gap: MS(1) });
    for (ask, flow) in [(ProbeKind::SYN, FlowRule::Constant), (ProbeKind::Udp, FlowRule::PerProbe)] {
        let mut network =
            SimulatedNetwork { open: vec![22, 80], filtered: vec![81, 443], ..SimulatedNetwork::of(&[ROUTER]) };
        // The first probe is lost, and the port is probed again.
        network.lost = vec![0];
        let mut driver = scan(&[22, 23, 80, 81, 443]);
        let conversation = network.conversation(ask, flow);
        network.run(&conversation, &mut driver);
        let states: Vec<PortStatus> = driver.ports().iter().map(|port| port.state).collect();
        assert_eq!(
            states,
            [PortStatus::Open, PortStatus::Closed, PortStatus::Open, PortStatus::Silent, PortStatus::Silent],
            "{ask:?}"
        );
        assert_eq!(driver.n_sent(), 8, "{ask:?}: five, and those that were silent again");
        assert_eq!(driver.ports()[1].rtt, Some(MS(4)));
    }
    let mut network = SimulatedNetwork::of(&[Router { mtu: 10, ..ROUTER }]);
    let mut driver = scan(&[80]);
    let conversation = network.conversation(ProbeKind::SYN, FlowRule::Constant);
    network.run(&conversation, &mut driver);
    let told = PortStatus::Prohibited(address(false, 1), IcmpErrorKind::TooBig(10));
    assert_eq!(driver.ports()[0].state, told);
}

#[test]
fn packets_that_are_not_about_our_probes_are_not_ours() {
    let network = SimulatedNetwork::of(&[ROUTER]);
    let ours = network.conversation(ProbeKind::SYN, FlowRule::PerProbe);
    let mut other = ours.clone();
    other.ports.source = 1000;
    let mut packet = Vec::new();
    other.write(super::ProbeFields::default(), &mut packet);
    let answer = network.answer(&packet).unwrap();
    assert!(other.read(&answer).is_some() && other.own_tag(&packet).is_some());
    assert!(ours.read(&answer).is_none() && ours.own_tag(&packet).is_none());
    let about_theirs = network.error(1, (11, 0, 0), &packet);
    assert!(other.read(&about_theirs).is_some() && ours.read(&about_theirs).is_none());
    // Truncated or damaged packets are parsed as far as possible, and never beyond their end.
    for end in 0..answer.len() {
        let _ = other.read(&answer[..end]);
    }
    for at in 0..about_theirs.len() {
        let mut damaged = about_theirs.clone();
        damaged[at] ^= 0xff;
        let _ = other.read(&damaged);
    }
}
