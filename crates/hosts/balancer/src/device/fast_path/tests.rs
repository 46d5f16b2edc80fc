//! The program against the classifier and the tables of the queues, packet by packet, in the kernel.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use fathom_model::units::Nanos;
use fathom_statistics::splitmix;
use fathom_sys::{
    netlink::{Veth, VethEnd, namespace::NetNs},
    process::may_administer_network,
};

use super::*;
use crate::{
    Balancer, BalancerSettings, DEFAULT_GROUP, Decision, Target, classify,
    classify::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP},
    device::{DataPath, ForwardMode, VerdictGrouping},
};

const VIRTUAL_4: Ipv4Addr = Ipv4Addr::new(198, 18, 8, 1);
const VIRTUAL_6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 8, 0, 0, 0, 1);
const ETHERNET: usize = 14;
/// The Ethernet address of the loopback interface, on which the program is thought to be.
const OWN: [u8; 6] = [0; 6];
/// The longest frame of the ways here.
const FRAME_MAX: u32 = 1514;

fn settings(data_path: DataPath) -> DeviceSettings {
    DeviceSettings {
        name: "tested".to_owned(),
        virtual_addresses: vec![VIRTUAL_4.into(), Ipv4Addr::new(198, 18, 8, 2).into(), VIRTUAL_6.into()],
        targets: Vec::new(),
        tier: Vec::new(),
        queues: 0..=0,
        mode: ForwardMode::Dsr,
        data_path,
        interfaces: vec!["lo".to_owned()],
        first_mark: DeviceSettings::FIRST_MARK_DEFAULT,
        verdicts: VerdictGrouping::Batch,
        queue_length: DeviceSettings::QUEUE_LENGTH_DEFAULT,
        balancer: BalancerSettings::default(),
    }
}

/// The data paths with a program.
const PATHS: [DataPath; 2] = [DataPath::Xdp, DataPath::Tc];

/// Runs a test for each program, in a network namespace whose loopback device carries frames of [`FRAME_MAX`].
fn at_each_hook(test: impl Fn(DataPath) + Sync) {
    if fathom_testkit::lacks_privileges(may_administer_network()) {
        return;
    }
    let ran = NetNs::new().unwrap().enter_with(|| {
        Netlink::open().unwrap().set_mtu(1, FRAME_MAX - 14).unwrap();
        PATHS.into_iter().for_each(&test);
    });
    ran.unwrap();
}

/// The Ethernet address of the target with this mark, by IP version.
fn mac(mark: u32, is_ipv6: bool) -> MacAddress {
    MacAddress([2, 0, 0, 0, u8::from(is_ipv6), u8::try_from(mark).unwrap()])
}

/// A program with its tables, where this process may load one.
fn prepared(settings: &DeviceSettings, table_size: u32) -> Option<FastPath> {
    let prepared = FastPath::prepare(settings, table_size);
    let prepared = fathom_testkit::or_skip(prepared, |error| matches!(error, DeviceError::NoPrograms))?;
    Some(prepared.expect("this data path has a program"))
}

/// A balancer with a program that knows the ways to its targets.
struct Tested {
    balancer: Arc<Balancer>,
    fast_path: FastPath,
}

impl Tested {
    fn new(path: DataPath, settings: &BalancerSettings) -> Option<Self> {
        let balancer = Arc::new(Balancer::new(settings.clone()).unwrap());
        let fast_path = prepared(&super::tests::settings(path), balancer.table_size().get())?;
        Some(Self { balancer, fast_path })
    }

    fn add(&self, number: u32) {
        let target = Target { name: format!("t{number}"), mark: number, weight: number };
        self.balancer.set_target(DEFAULT_GROUP, target).unwrap();
        self.publish();
    }

    /// Tells the table; the ways are written here, because this host has no such neighbors.
    fn publish(&self) {
        let known = |mark| (mark, format!("t{mark}=203.0.113.{mark},2001:db8::{mark}").parse().unwrap());
        let table = self.balancer.sole_table();
        self.fast_path.publish(table.as_deref(), &(1..=9).map(known).collect()).unwrap();
        for placed in table.iter().flat_map(|table| &table.targets) {
            for is_ipv6 in [false, true] {
                let destination = mac(placed.target.mark, is_ipv6);
                let way = Way { link: 1, frame_max: FRAME_MAX, destination, source: MacAddress([2, 0xff, 0, 0, 0, 0]) };
                let row = 2 * placed.counter_idx + u32::from(is_ipv6);
                self.fast_path.maps.ways.set(row, &Way::row(Some(&way))).unwrap();
            }
        }
    }

    fn run(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        let run = self.fast_path.program.test_run(frame, 1).unwrap();
        (run.value.cast_signed(), run.frame)
    }

    /// The value with which it passes a frame up.
    fn passes(&self) -> i32 {
        self.fast_path.hook.pass()
    }

    fn redirects(&self) -> i32 {
        self.fast_path.hook.redirect()
    }
}

/// Draws from a seed, in a row.
struct Draws(u64, u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.1 += 1;
        splitmix(self.0, self.1) % limit
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// True once in so many draws.
    fn is_rare(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

fn sum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// A packet as senders make them, and now and then as no sender does.
fn frame(draws: &mut Draws) -> Vec<u8> {
    let is_ipv6 = draws.is_rare(2);
    let protocol = draws.one(&[TCP, TCP, UDP, UDP, ICMP, ICMPV6, SCTP, 44, 0]);
    let payload: Vec<u8> = (0..draws.one(&[0, 3, 4, 8, 20, 64, 1440, 1480])).map(|_| draws.byte()).collect();
    let mut packet = if is_ipv6 { ipv6(draws, protocol, payload.len()) } else { ipv4(draws, protocol, payload.len()) };
    packet.extend(payload);
    if draws.is_rare(20) {
        packet.truncate(usize::try_from(draws.below(packet.len() as u64)).unwrap());
    }
    let ethertype: u16 = if draws.is_rare(50) {
        0x8100
    } else if is_ipv6 {
        0x86dd
    } else {
        0x0800
    };
    let mut frame = [if draws.is_rare(50) { [2; 6] } else { OWN }, [2; 6]].concat();
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    // A short frame is padded, which is no part of the packet.
    frame.resize(frame.len().max(draws.one(&[14, 60])), 0);
    frame
}

fn ipv4(draws: &mut Draws, protocol: u8, n_payload: usize) -> Vec<u8> {
    let n_words = if draws.is_rare(8) { draws.one(&[4, 6, 15]) } else { 5 };
    let length = usize::from(n_words.max(5)) * 4;
    let mut header = vec![0; length];
    header[0] = if draws.is_rare(50) { 0x50 } else { 0x40 } | n_words;
    let total = if draws.is_rare(20) { draws.below(100) } else { (length + n_payload) as u64 };
    header[2..4].copy_from_slice(&u16::try_from(total).unwrap().to_be_bytes());
    header[6] = if draws.is_rare(8) { draws.byte() } else { draws.one(&[0, 0x40]) };
    header[8] = if draws.is_rare(8) { draws.one(&[0, 1, 2]) } else { draws.byte() };
    header[9] = protocol;
    header[12..16].copy_from_slice(&[198, 18, draws.byte(), draws.byte()]);
    header[16..20].copy_from_slice(&VIRTUAL_4.octets());
    header[19] = draws.one(&[1, 1, 1, 2, 3]);
    let checksum = !sum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn ipv6(draws: &mut Draws, protocol: u8, n_payload: usize) -> Vec<u8> {
    let mut header = vec![0; 40];
    header[0] = if draws.is_rare(50) { 0x40 } else { 0x60 };
    let payload = if draws.is_rare(20) { draws.below(100) } else { n_payload as u64 };
    header[4..6].copy_from_slice(&u16::try_from(payload).unwrap().to_be_bytes());
    header[6] = protocol;
    header[7] = if draws.is_rare(8) { draws.one(&[0, 1, 2]) } else { draws.byte() };
    (8..24).for_each(|at| header[at] = draws.byte());
    header[24..40].copy_from_slice(&VIRTUAL_6.octets());
    if draws.is_rare(8) {
        let at = draws.one(&[24, 39]);
        header[at] ^= 1;
    }
    header
}

/// Whether the program has to decide a packet itself, by the words of its documentation.
fn is_usual(frame: &[u8]) -> bool {
    let bytes = &frame[ETHERNET..];
    let is_ip = [[0x08, 0x00], [0x86, 0xdd]].iter().any(|known| frame[12..ETHERNET] == *known);
    let Ok(packet) = classify(bytes) else { return false };
    let is_ipv6 = bytes[0] >> 4 == 6;
    let (protocol, hops, is_plain) =
        if is_ipv6 { (bytes[6], bytes[7], true) } else { (bytes[9], bytes[8], bytes[0] == 0x45) };
    let length = usize::from(u16::from_be_bytes(if is_ipv6 { [bytes[4], bytes[5]] } else { [bytes[2], bytes[3]] }));
    let is_length_right = length > 0 && !packet.is_cut;
    let is_ethertype_right = frame[12] == if is_ipv6 { 0x86 } else { 0x08 };
    let is_for_us = settings(DataPath::Xdp).virtual_addresses.contains(&packet.key.destination);
    let is_short = frame.len() <= usize::try_from(FRAME_MAX).unwrap();
    let is_whole = packet.fragment.is_none() && is_length_right && is_plain;
    let is_for_us = is_for_us && frame.starts_with(&OWN);
    is_ip && is_ethertype_right && is_for_us && is_whole && hops > 1 && is_short && [TCP, UDP].contains(&protocol)
}

#[test]
fn the_program_chooses_the_target_that_the_queues_would_choose() {
    at_each_hook(|path| {
        let Some(tested) = Tested::new(path, &BalancerSettings::default()) else { return };
        (1..=5).for_each(|number| tested.add(number));
        let mut worker = tested.balancer.worker();
        let (mut draws, mut n_redirected, mut n_passed) = (Draws(7, 0), 0, 0);
        for _ in 0..20_000 {
            let mut before = frame(&mut draws);
            if path == DataPath::Tc {
                // The kernel makes no packet of the stack from a frame without an IP header.
                before.resize(before.len().max(60), 0);
            }
            let (value, after) = tested.run(&before);
            if !is_usual(&before) {
                assert_eq!((value, &after), (tested.passes(), &before), "{before:x?}");
                n_passed += 1;
                continue;
            }
            n_redirected += 1;
            let decision = worker.decide(&before[ETHERNET..], Nanos::ZERO);
            let Decision::Forward { mark } = decision else { panic!("{decision:?}: {before:x?}") };
            let is_ipv6 = before[ETHERNET] >> 4 == 6;
            assert_eq!(value, tested.redirects(), "{before:x?}");
            assert_eq!(after[..12], [mac(mark, is_ipv6).0, [2, 0xff, 0, 0, 0, 0]].concat(), "{before:x?}");
            let mut expected = before[ETHERNET..].to_vec();
            if is_ipv6 {
                expected[7] -= 1;
            } else {
                expected[8] -= 1;
                assert_eq!(sum(&after[ETHERNET..ETHERNET + 20]), 0xffff, "{after:x?}");
                expected[10..12].copy_from_slice(&after[ETHERNET + 10..ETHERNET + 12]);
            }
            assert_eq!(after[ETHERNET..], expected);
        }
        assert!(n_redirected > 3_000 && n_passed > 3_000, "{n_redirected} and {n_passed}");
        let counted: u64 = (0..5).map(|number| tested.fast_path.n_redirected(number)).sum();
        assert_eq!(counted, n_redirected);
        let by_queues = tested.balancer.counters().targets;
        for (number, name) in tested.balancer.target_names().into_iter().enumerate() {
            assert_eq!(tested.fast_path.n_redirected(number), by_queues[&name], "{name}");
        }
    });
}

/// A datagram from this port.
fn datagram(port: u16) -> Vec<u8> {
    let mut frame = [OWN, [2; 6]].concat();
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0, 198, 18, 0, 1, 198, 18, 8, 1]);
    frame.extend([port.to_be_bytes(), 7000_u16.to_be_bytes(), [0, 8], [0, 0]].concat());
    frame
}

impl Tested {
    /// The marks of the targets of 300 flows; 0 for those that pass up.
    fn marks(&self) -> Vec<u32> {
        let mark = |port| {
            let (value, frame) = self.run(&datagram(port));
            if value == self.redirects() { frame[5].into() } else { 0 }
        };
        (1000..1300).map(mark).collect()
    }

    fn passed(&self, cause: &str) -> u64 {
        self.fast_path.counters().passed_up[cause]
    }
}

#[test]
fn a_change_of_the_table_is_followed_at_once_and_what_the_program_does_not_know_passes_up() {
    at_each_hook(|path| {
        let Some(tested) = Tested::new(path, &BalancerSettings::default()) else { return };
        assert_eq!(tested.marks(), [0; 300], "nobody told it a table yet");
        assert_eq!(tested.passed("left_to_queue"), 300);
        tested.publish();
        assert_eq!((tested.marks(), tested.passed("no_target")), (vec![0; 300], 300));
        (1..=3).for_each(|number| tested.add(number));
        let three = tested.marks();
        assert!((1..=3).all(|mark| three.contains(&mark)) && !three.contains(&0), "{three:?}");
        tested.balancer.remove_target(DEFAULT_GROUP, "t2").unwrap();
        tested.publish();
        let two = tested.marks();
        assert!(!two.contains(&2) && !two.contains(&0), "{two:?}");
        tested.add(2);
        assert_eq!(tested.marks(), three, "the places of a name are the same again");
        tested.fast_path.maps.ways.set(0, &Way::row(None)).unwrap();
        let n_of_first = three.iter().filter(|mark| **mark == 1).count() as u64;
        assert_eq!(tested.marks().iter().filter(|mark| **mark == 0).count() as u64, n_of_first);
        assert_eq!(tested.passed("no_way"), n_of_first);
        tested.balancer.set_flow("web,ports=80".parse().unwrap()).unwrap();
        tested.publish();
        assert_eq!((tested.marks(), tested.passed("left_to_queue")), (vec![0; 300], 600));
    });
}

#[test]
fn with_a_defect_everything_is_left_to_the_queues_but_a_tiny_table_is_a_table() {
    at_each_hook(|path| {
        for (defect, is_left) in
            [("mis-hash=1/2", true), ("drop=1/2", true), ("blackhole=t1", true), ("tiny-table", false)]
        {
            let settings = BalancerSettings { defects: defect.parse().unwrap(), ..BalancerSettings::default() };
            let Some(tested) = Tested::new(path, &settings) else { return };
            (1..=3).for_each(|number| tested.add(number));
            assert_eq!(tested.marks().contains(&0), is_left, "{defect}");
        }
    });
}

#[test]
fn a_frame_that_the_next_link_does_not_carry_passes_up() {
    at_each_hook(|path| {
        let Some(tested) = Tested::new(path, &BalancerSettings::default()) else { return };
        tested.add(1);
        let mut long = datagram(1);
        long.resize(1515, 0);
        assert_eq!(tested.run(&long).0, tested.passes());
        assert_eq!(tested.run(&long[..1514]).0, tested.redirects());
        assert_eq!(tested.passed("too_long"), 1);
    });
}

#[test]
fn the_kernel_takes_the_program_for_addresses_of_one_version() {
    at_each_hook(|path| {
        for address in [IpAddr::from(VIRTUAL_4), VIRTUAL_6.into()] {
            let settings = DeviceSettings { virtual_addresses: vec![address], ..settings(path) };
            let Some(fast_path) = prepared(&settings, 65_537) else { return };
            let value = fast_path.program.test_run(&datagram(1), 1).unwrap().value;
            assert_eq!(value.cast_signed(), fast_path.hook.pass());
            let is_for_us = u64::from(address.is_ipv4());
            assert_eq!(fast_path.counters().passed_up["left_to_queue"], is_for_us, "{address}");
        }
    });
}

#[test]
fn an_interface_that_is_replaced_is_told_as_detached() {
    if fathom_testkit::lacks_privileges(may_administer_network()) {
        return;
    }
    let end = |name, mac| VethEnd { name, mac };
    let add = |netlink: &mut Netlink, mac| {
        let (near, far) = (end("v0", Some(mac)), end("v1", None));
        netlink.add_veth(&Veth { near, far, far_namespace: None, mtu_bytes: 1500, n_queues: 1 }).unwrap();
        netlink.link("v0").unwrap().index
    };
    let tried = NetNs::new().unwrap().enter_with(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = add(&mut netlink, MacAddress([2, 0, 0, 0, 0, 1]));
        let settings = DeviceSettings { interfaces: vec!["v0".to_owned()], ..settings(DataPath::Xdp) };
        let fast_path = prepared(&settings, 65_537)?;
        let told = || {
            fast_path.refresh().unwrap();
            let counters = fast_path.counters();
            (counters.interfaces, counters.detached)
        };
        let before = told();
        netlink.delete_link(index).unwrap();
        add(&mut netlink, MacAddress([2, 0, 0, 0, 0, 1]));
        Some((before, told()))
    });
    let Some((before, after)) = tried.unwrap() else { return };
    let name = || vec!["v0".to_owned()];
    assert_eq!((before, after), ((name(), Vec::new()), (Vec::new(), name())));
}

#[test]
fn addresses_are_hashed_in_the_order_of_the_wire() {
    let halves = |address: IpAddr| crate::hash::halves(address);
    assert_eq!(halves(VIRTUAL_4.into()), (0, 0xffff_c612_0801));
    assert_eq!(halves(VIRTUAL_6.into()), (0x2001_0002_0000_0008, 1));
}
