//! A device with targets in virtual time, whose defects are switched on.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    net::{IpAddr, SocketAddr},
};

use etherparse::{IpSlice, LaxIpSlice, UdpHeader};
use fathom_model::{
    probe::{FragmentOrderRecord, FragmentsRecord},
    units::Nanos,
};

use super::{
    FragmentConfig, FragmentTest, INCOMPLETE_FLOWS, Order, message,
    packets::{
        Cut, Datagram, is_fragment,
        tests::{place, reassembled},
    },
    run,
};
use crate::{
    driver::{CapturedPacket, ProbeTransport, SendOutcome},
    echo::ip_header,
};

const MS: fn(u64) -> Nanos = Nanos::from_millis;

/// What a device does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    /// Fragments are spread by their addresses alone, so all of them go to one target.
    HashesFragmentsWithoutPorts,
    /// A fragment that comes before the first one is lost.
    NeedsFirstFragmentFirst,
    /// Packets with a hop-by-hop header are lost.
    DropsHopByHop,
    /// Fragments of all sources with one identification are of one datagram.
    IgnoresSource,
    /// Gaps are filled.
    FillsGaps,
    /// Nothing arrives.
    IsDead,
    /// Whole datagrams go to the targets in turn.
    TakesTurns,
}

/// The device, and the targets behind it.
struct SimulatedPath {
    now: Nanos,
    n_targets: u16,
    defect: Defect,
    /// The fragments of each datagram at its target.
    waiting: BTreeMap<(Option<IpAddr>, u32), Vec<Vec<u8>>>,
    answers: VecDeque<Vec<u8>>,
    captured: VecDeque<Vec<u8>>,
    n_fragments: u64,
    n_whole: u16,
    /// The next sends find no room.
    n_full: u32,
}

impl SimulatedPath {
    fn new(defect: Defect) -> Self {
        Self {
            now: MS(7_000),
            n_targets: 4,
            defect,
            waiting: BTreeMap::new(),
            answers: VecDeque::new(),
            captured: VecDeque::new(),
            n_fragments: 0,
            n_whole: 0,
            n_full: 0,
        }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn forward(&mut self, packet: &[u8]) {
        let ip = IpSlice::from_slice(packet).unwrap();
        let ends = (ip.source_addr(), ip.destination_addr());
        let has_hop_by_hop = ends.0.is_ipv6() && packet[6] == 0;
        if self.has(Defect::IsDead) || self.has(Defect::DropsHopByHop) && has_hop_by_hop {
            return;
        }
        let is_atomic = is_fragment(packet) && place(packet).is_some_and(|(start, more, _)| start == 0 && !more);
        if !is_fragment(packet) || is_atomic {
            let udp = ip.payload().payload.to_vec();
            return self.deliver(ends, &udp, false);
        }
        self.n_fragments += 1;
        let id = match ends.0 {
            IpAddr::V4(_) => u16::from_be_bytes([packet[4], packet[5]]).into(),
            IpAddr::V6(_) => {
                let at = if has_hop_by_hop { 48 } else { 40 };
                u32::from_be_bytes(packet[at + 4..at + 8].try_into().unwrap())
            }
        };
        let key = (Some(ends.0).filter(|_| !self.has(Defect::IgnoresSource)), id);
        let is_strict = self.has(Defect::NeedsFirstFragmentFirst);
        let waiting = self.waiting.entry(key).or_default();
        if is_strict && waiting.is_empty() && place(packet).unwrap().0 > 0 {
            self.waiting.remove(&key);
            return;
        }
        waiting.push(packet.to_vec());
        if let Some(body) = self.assembled(key) {
            self.waiting.remove(&key);
            let is_option = ends.0.is_ipv6() && packet[if has_hop_by_hop { 48 } else { 40 }] == 60;
            let udp = if is_option { &body[8..] } else { &body[..] };
            self.deliver(ends, udp, true);
        }
    }

    /// The datagram of these fragments, if all are there.
    fn assembled(&self, key: (Option<IpAddr>, u32)) -> Option<Vec<u8>> {
        let waiting = &self.waiting[&key];
        let is_first = |packet: &&Vec<u8>| place(packet).unwrap().0 == 0;
        if self.has(Defect::FillsGaps) && waiting.len() == 2 {
            return waiting.iter().find(is_first).map(|packet| place(packet).unwrap().2);
        }
        reassembled(waiting)
    }

    /// Hands a datagram to the target of its ports.
    fn deliver(&mut self, ends: (IpAddr, IpAddr), udp: &[u8], was_cut: bool) {
        let (header, mut payload) = UdpHeader::from_slice(udp).unwrap();
        let filled;
        if self.has(Defect::FillsGaps) && payload.len() + 8 < usize::from(header.length) {
            filled = [payload, &vec![0; usize::from(header.length) - 8 - payload.len()]].concat();
            payload = &filled;
        }
        let has_ports = !(was_cut && self.has(Defect::HashesFragmentsWithoutPorts));
        self.n_whole += u16::from(!was_cut);
        let hash = if self.has(Defect::TakesTurns) { self.n_whole } else { header.source_port };
        let target = if has_ports { hash % self.n_targets } else { 0 };
        let name = format!("t{target}");
        let Some(answer) = message::answer(payload, (&name, u64::from(target) + 1)) else { return };
        let length = u16::try_from(answer.len() + 8).unwrap();
        let ports = (header.destination_port, header.source_port);
        let back = UdpHeader { source_port: ports.0, destination_port: ports.1, length, checksum: 0 };
        let ip = ip_header(etherparse::IpNumber::UDP, (ends.1, ends.0), length.into(), Some(60));
        self.answers.push_back([&ip[..], &back.to_bytes(), &answer].concat());
    }
}

impl ProbeTransport for SimulatedPath {
    type Error = Infallible;

    fn now(&self) -> Nanos {
        self.now
    }

    fn send(&mut self, packet: &[u8]) -> Result<SendOutcome, Infallible> {
        if self.n_full > 0 {
            self.n_full -= 1;
            return Ok(SendOutcome::WouldBlock);
        }
        self.captured.push_back(packet.to_vec());
        self.forward(packet);
        Ok(SendOutcome::Sent(self.now))
    }

    fn receive(&mut self, room: &mut [u8]) -> Result<Option<CapturedPacket>, Infallible> {
        let mut hand_over = |packet: Vec<u8>| {
            room[..packet.len()].copy_from_slice(&packet);
            packet.len()
        };
        if let Some(packet) = self.captured.pop_front() {
            return Ok(Some(CapturedPacket::Outgoing(hand_over(packet), Some(self.now))));
        }
        let answer = self.answers.pop_front();
        Ok(answer.map(|packet| CapturedPacket::Incoming(hand_over(packet), self.now)))
    }

    fn wait(&mut self, until: Nanos) -> Result<(), Infallible> {
        self.now = self.now.max(until);
        Ok(())
    }

    fn n_dropped_replies(&self) -> Option<u64> {
        Some(0)
    }
}

const FLOWS: u16 = 40;

fn config(is_ipv4: bool, has_twins: bool) -> FragmentConfig {
    let of = |v4: &str, v6: &str| -> IpAddr { if is_ipv4 { v4 } else { v6 }.parse().unwrap() };
    let sources = |address: IpAddr| (0..FLOWS).map(move |n| SocketAddr::new(address, 20_000 + n)).collect();
    FragmentConfig {
        flows: sources(of("192.0.2.1", "2001:db8::1")),
        twins: if has_twins { sources(of("192.0.2.2", "2001:db8::2")) } else { Vec::new() },
        destination: SocketAddr::new(of("192.0.2.9", "2001:db8::9"), 7701),
        orders: Order::all().filter(|order| order.is_of(is_ipv4)).collect(),
        n_datagrams: 1,
        size: 4000,
        mtu: 1500,
        gap: MS(2),
        timeout: MS(100),
        traffic_class: 0,
        seed: 3,
        secret: 0xfeed,
    }
}

fn play(mut path: SimulatedPath, config: FragmentConfig) -> (FragmentsRecord, SimulatedPath) {
    let mut test = FragmentTest::new(config);
    assert_eq!(run(&mut test, &mut path, &|| false, &mut |_| {}), Ok(false));
    (test.result(), path)
}

fn of_order<'a>(record: &'a FragmentsRecord, name: &str) -> &'a FragmentOrderRecord {
    record.orders.iter().find(|order| order.order == name).unwrap()
}

fn elsewhere(record: &FragmentsRecord) -> Vec<(&str, u64)> {
    let orders = record.orders.iter().filter(|order| order.n_elsewhere > 0);
    orders.map(|order| (order.order.as_str(), order.n_elsewhere)).collect()
}

fn lossy(record: &FragmentsRecord) -> Vec<&str> {
    record.orders.iter().filter(|order| order.n_lost() > 0).map(|order| order.order.as_str()).collect()
}

#[test]
fn a_device_without_defects_loses_nothing_and_keeps_every_flow() {
    for is_ipv4 in [true, false] {
        let (record, path) = play(SimulatedPath::new(Defect::None), config(is_ipv4, true));
        assert_eq!(record.orders.len(), if is_ipv4 { 10 } else { 21 });
        assert_eq!((lossy(&record), elsewhere(&record), record.n_flows_unsteady), (vec![], vec![], 0));
        assert_eq!((record.n_flows, record.answers.len()), (2 * u64::from(FLOWS), 4));
        let whole = of_order(&record, FragmentOrderRecord::WHOLE);
        assert_eq!(
            (whole.n_sent, whole.n_answered),
            (4 * u64::from(FLOWS), 4 * u64::from(FLOWS)),
            "before and after, two sources"
        );
        for name in ["overlapping", "last-missing", "first-missing"] {
            let order = of_order(&record, name);
            assert_eq!((order.n_sent, order.n_answered), (u64::try_from(INCOMPLETE_FLOWS).unwrap(), 0), "{name}");
        }
        assert_eq!(of_order(&record, "same-id").n_sent, 2 * u64::from(FLOWS));
        let n_atomic = if is_ipv4 { 0 } else { u64::from(FLOWS) };
        assert_eq!(record.n_fragments(|_| true), path.n_fragments + n_atomic);
        assert_eq!(record.n_captured, record.n_fragments(|_| true));
    }
}

#[test]
fn fragments_that_are_hashed_without_ports_are_at_another_target() {
    let defect = Defect::HashesFragmentsWithoutPorts;
    for is_ipv4 in [true, false] {
        let (record, _) = play(SimulatedPath::new(defect), config(is_ipv4, false));
        // One of four targets is right by chance.
        let expected = u64::from(FLOWS) * 3 / 4;
        let found = elsewhere(&record);
        assert!(found.len() >= 5 && found.iter().all(|(_, n)| *n == expected), "{found:?}");
        assert!(found.iter().all(|(name, _)| !name.starts_with("v6-") || name.ends_with("-fragments")), "{found:?}");
        assert_eq!(lossy(&record), Vec::<&str>::new());
    }
}

#[test]
fn each_defect_shows_in_its_orders_alone() {
    let (record, _) = play(SimulatedPath::new(Defect::NeedsFirstFragmentFirst), config(true, false));
    assert_eq!(lossy(&record), ["reversed", "random"]);
    assert_eq!(of_order(&record, "reversed").n_answered, 0);
    let (record, _) = play(SimulatedPath::new(Defect::DropsHopByHop), config(false, false));
    assert_eq!(lossy(&record), ["v6-hbh8", "v6-hbh16", "v6-hbh64", "v6-hbh256", "v6-hbh8-fragments"]);
    let (record, _) = play(SimulatedPath::new(Defect::IgnoresSource), config(true, true));
    assert_eq!(lossy(&record), ["same-id"]);
}

#[test]
fn an_answer_to_a_datagram_with_a_gap_is_unexpected() {
    let (record, _) = play(SimulatedPath::new(Defect::FillsGaps), config(true, false));
    assert_eq!(of_order(&record, "last-missing").n_unexpected(), u64::try_from(INCOMPLETE_FLOWS).unwrap());
}

#[test]
fn fragments_are_not_sent_before_a_whole_datagram_was_answered() {
    let (record, path) = play(SimulatedPath::new(Defect::IsDead), config(true, false));
    assert_eq!(
        record.orders.iter().map(|order| (order.n_sent, order.n_answered)).collect::<Vec<_>>(),
        [(u64::from(FLOWS), 0)]
    );
    assert_eq!(path.now, MS(7_000) + Nanos(MS(2).0 * (u64::from(FLOWS) - 1)) + MS(100));
}

#[test]
fn flows_of_which_whole_datagrams_move_are_not_judged() {
    let defect = Defect::TakesTurns;
    let mut path = SimulatedPath::new(defect);
    path.n_targets = 3;
    let (record, _) = play(path, config(true, false));
    assert!(record.n_flows_unsteady > 0, "{record:?}");
    let forward = of_order(&record, "forward");
    assert_eq!(forward.n_unjudged, record.n_flows_unsteady);
}

#[test]
fn a_packet_without_room_is_sent_again_and_not_counted_twice() {
    let mut path = SimulatedPath::new(Defect::None);
    path.n_full = 50;
    let (record, _) = play(path, config(true, false));
    assert_eq!((lossy(&record), record.n_captured), (vec![], record.n_fragments(|_| true)));
}

#[test]
fn strangers_and_late_answers_of_another_trial_are_not_counted() {
    let mut test = FragmentTest::new(config(true, false));
    let mut path = SimulatedPath::new(Defect::None);
    let other = FragmentConfig { secret: 0xdead, ..config(true, false) };
    let mut others = FragmentTest::new(other);
    let super::FragmentStep::Send(packet) = others.step(MS(7_000)) else { panic!("it is due") };
    path.forward(packet);
    let answer = path.answers.pop_front().unwrap();
    let _ = test.step(MS(7_000));
    assert_eq!((test.on_incoming(&answer), test.n_answered()), (None, 0));
    assert_eq!((others.on_incoming(&answer), others.n_answered()), (Some(0), 1));
    assert_eq!(others.on_incoming(&answer[..60]), None, "cut off");
}

#[test]
fn identifications_follow_from_the_clock_so_that_trials_do_not_share_them() {
    let ids = |start| {
        let mut path = SimulatedPath::new(Defect::None);
        path.now = start;
        let mut test = FragmentTest::new(config(true, false));
        let mut ids = std::collections::BTreeSet::new();
        while let super::FragmentStep::Send(packet) = {
            path.now += MS(2);
            test.step(path.now)
        } {
            let packet = packet.to_vec();
            if is_fragment(&packet) {
                ids.insert(u16::from_be_bytes([packet[4], packet[5]]));
            }
            path.forward(&packet);
            for answer in std::mem::take(&mut path.answers) {
                test.on_incoming(&answer);
            }
            test.on_sent(SendOutcome::Sent(path.now));
        }
        (ids, path.now)
    };
    let (first, end) = ids(MS(40_000));
    let (second, _) = ids(end);
    assert!(first.len() > 200 && first.is_disjoint(&second), "{} {}", first.len(), second.len());
    assert!(!first.contains(&0));
    let datagram = Datagram {
        source: "192.0.2.1:1".parse().unwrap(),
        destination: "192.0.2.9:2".parse().unwrap(),
        payload: &[0; 2000],
        traffic_class: 0,
    };
    let packets = datagram.packets(Order::Forward, Cut { mtu: 1500, identification: 9, seed: 0 });
    assert!(LaxIpSlice::from_slice(&packets[1]).unwrap().0.is_fragmenting_payload());
}

#[test]
fn a_short_outage_hits_all_orders_alike() {
    let (groups, n_first) = super::groups(&config(false, true));
    let complete: Vec<Order> = groups[n_first..].iter().map(|group| group.order).collect();
    let n_complete = complete.iter().position(|order| order.is_incomplete()).unwrap();
    // Half of the time has half of each order.
    for order in Order::all().filter(|order| *order != Order::Whole && !order.is_incomplete()) {
        let n = |orders: &[Order]| orders.iter().filter(|other| **other == order).count();
        assert_eq!(n(&complete[..n_complete / 2]) * 2, n(&complete[..n_complete]), "{order:?}");
    }
}
