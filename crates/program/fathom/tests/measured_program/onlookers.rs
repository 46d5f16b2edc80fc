//! Frames outside labs: a third host on the same switch receives none of them, no matter which options are given.

use std::os::fd::AsFd;

use fathom_model::{
    MacAddress,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    netlink::{BridgeIndex, Netlink, Veth, VethEnd, namespace::NetNs},
    packet::packet_socket::{ReceiveBuffer, Receiver},
};

use crate::test_bed::{ProgramResult, RunningProgram, TestBed, lacks_root};

/// Three hosts on one switch, in namespaces that are not a lab.
struct SwitchedHosts {
    hosts: [NetNs; 3],
    _switch: NetNs,
}

const SERVED: &str = "198.18.7.2";

impl SwitchedHosts {
    fn up() -> Self {
        let switch = NetNs::new().unwrap();
        let bridge = switch.enter_with(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("br0", MacAddress([2, 0, 0, 0, 7, 0xfe])).unwrap();
            let index = netlink.link("br0").unwrap().index;
            netlink.set_up(index).unwrap();
            index
        });
        let bridge = bridge.unwrap();
        let host = |nth: u8| {
            let host = NetNs::new().unwrap();
            let port = format!("port{nth}");
            let near = VethEnd { name: "e0", mac: Some(MacAddress([2, 0, 0, 0, 7, nth])) };
            let far = VethEnd { name: &port, mac: None };
            let veth = Veth { near, far, far_namespace: Some(switch.as_fd()), mtu_bytes: 1500, n_queues: 1 };
            host.enter_with(|| {
                let mut netlink = Netlink::open().unwrap();
                netlink.add_veth(&veth).unwrap();
                let index = netlink.link("e0").unwrap().index;
                netlink.add_address(index, format!("198.18.7.{nth}").parse().unwrap(), 24).unwrap();
                netlink.set_up(index).unwrap();
            })
            .unwrap();
            switch
                .enter_with(|| {
                    let mut netlink = Netlink::open().unwrap();
                    let index = netlink.link(&port).unwrap().index;
                    netlink.add_port(BridgeIndex(bridge), index).unwrap();
                    netlink.set_up(index).unwrap();
                })
                .unwrap();
            host
        };
        Self { hosts: [1, 2, 3].map(host), _switch: switch }
    }

    /// Starts fathom on the host with this index.
    fn start(&self, stage: &TestBed, host: usize, words: &[&str]) -> RunningProgram {
        self.hosts[host].enter_with(|| stage.start(words)).unwrap()
    }

    fn fathom(&self, stage: &TestBed, words: &[&str]) -> ProgramResult {
        self.start(stage, 0, words).ends()
    }
}

/// Returns true for frames that a kernel sends on its own: ARP, IGMP, and IPv6 to its groups.
fn is_of_kernel(frame: &[u8]) -> bool {
    const IGMP: u8 = 2;
    let is_arp = frame.starts_with(&[0xff; 6]) && frame[12..14] == [8, 6];
    let is_igmp = frame.starts_with(&[1, 0, 0x5e]) && frame[12..14] == [8, 0] && frame[23] == IGMP;
    is_arp || is_igmp || frame.starts_with(&[0x33, 0x33])
}

/// Returns all frames that a socket received, except those that a kernel sends on its own.
fn seen_by(onlooker: &Receiver) -> Vec<Vec<u8>> {
    let (mut inbox, mut seen) = (ReceiveBuffer::default(), Vec::new());
    while onlooker.wait(Nanos::from_millis(50)).unwrap() && onlooker.receive(&mut inbox).unwrap() > 0 {
        seen.extend(inbox.frames().map(|(frame, _)| frame.to_vec()).filter(|frame| !is_of_kernel(frame)));
    }
    assert_eq!(onlooker.take_counts().unwrap().dropped.0, 0, "all that came was looked at");
    seen
}

#[test]
fn nothing_reaches_a_third_host_whatever_frames_are_asked_for() {
    if lacks_root() {
        return;
    }
    let (stage, switch) = (TestBed::beside_others(), SwitchedHosts::up());
    let server = switch.start(&stage, 1, &["serve"]);
    let lines = server.says("http ");
    let key = lines.lines().find_map(|line| line.strip_prefix("key")).unwrap().trim().to_owned();
    // Without a rate, because a busy machine cannot keep one for such a short time.
    let base = ["packet", SERVED, "--key", &key, "--count", "50", "--rounds", "1", "--json"];
    // The switch learns the ports of both hosts before the third host listens.
    switch.fathom(&stage, &base).succeeded();
    let onlooker = switch.hosts[2].enter_with(|| {
        let index = Netlink::open().unwrap().link("e0").unwrap().index;
        Receiver::open(index, Bytes(8 << 20)).unwrap()
    });
    let onlooker = onlooker.unwrap();
    let third = MacAddress([2, 0, 0, 0, 7, 3]).to_string();
    let (nobody, to_third) = ("02:00:00:00:00:99", format!("eth > {third} / udp"));
    let refused: &[&[&str]] = &[
        &["--mac", &third],
        &["--mac", nobody],
        &["--mac", &third, "--direction", "down"],
        &["--frame", &to_third],
        &["--frame", "eth type 0x88b5 / \"x\""],
        &["--frame", "ip proto 51 / hex 0404"],
        &["--frame", "ip proto 47 / hex 00000800"],
        &["--frame", "udp > 4789 / hex 0800"],
        &["--frame", "ip6 / icmp6 type 136"],
        &["--frame", "icmp type 5"],
    ];
    for words in refused {
        let ending = switch.fathom(&stage, &[&base, *words].concat()).code(3);
        assert!(!ending.stderr.contains("panicked"), "{words:?}: {}", ending.stderr);
    }
    let forged = switch.fathom(&stage, &[&base[..], &["--frame", "ip 1.2.3.4 / udp"]].concat());
    forged.refused(3, &["frames from 1.2.3.4, which is not this host, are sent only in labs", "--lab pair"]);
    let allowed: &[&[&str]] = &[&[], &["--direction", "down"], &["--mac", "02:00:00:00:07:02"], &["--learning", "5"]];
    for words in allowed {
        let run = switch.fathom(&stage, &[&base, *words].concat()).succeeded().run();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        assert_eq!((sum.n_sent, sum.n_received), (50, 50), "{words:?}");
    }
    assert_eq!(seen_by(&onlooker), Vec::<Vec<u8>>::new());
}

#[test]
fn pktgen_leaves_for_single_neighbours_by_the_device_that_leads_to_them() {
    if lacks_root() {
        return;
    }
    let (stage, switch) = (TestBed::beside_others(), SwitchedHosts::up());
    let ends = |words: &[&str]| switch.fathom(&stage, &[&["as", "--allow", "198.18.7.0/24", "pktgen"], words].concat());
    let (second, third) = ("02:00:00:00:07:02", "02:00:00:00:07:03");
    let job = ["-i", "e0", "-d", SERVED, "-n", "10", "-m"];
    ends(&["-i", "e0", "-d", "198.18.7.255", "-m", third, "-n", "10"]).refused(3, &["198.18.7.255 is never a target"]);
    let range = ["add_device e0", "dst_min 198.18.7.250", "dst_max 198.18.7.255", "dst_mac 02:00:00:00:07:03", "start"];
    ends(&range).refused(3, &["198.18.7.255 is never a target"]);
    ends(&["-i", "lo", "-d", SERVED, "-m", second, "-n", "10"]).refused(3, &["lo does not lead to 198.18.7.2"]);
    ends(&[&job[..], &[second]].concat()).refused(3, &["is not known on e0", "ping -c 1 198.18.7.2"]);
    let know = || {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("e0").unwrap().index;
        netlink.add_neighbour(index, SERVED.parse().unwrap(), MacAddress([2, 0, 0, 0, 7, 2])).unwrap();
    };
    switch.hosts[0].enter_with(know).unwrap();
    ends(&[&job[..], &[third]].concat()).refused(3, &["02:00:00:00:07:03 is not on the way to 198.18.7.2"]);
    assert!(ends(&[&job[..], &[second]].concat()).succeeded().stdout.contains("Result: OK"));
}
