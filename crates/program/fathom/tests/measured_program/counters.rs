//! The counters that `fathom watch` reads, against what `nstat`, `ip`, `ss` and `ethtool` tell of the same host at the same time.
//!
//! Each tool is asked before and after fathom, because a host also counts what its kernel sends on its own.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    net::{TcpListener, TcpStream, UdpSocket},
};

use fathom_model::names::host;
use serde_json::Value;

use crate::test_bed::{RunningLab, TestBed, lacks_root};

/// Counters of the protocols with their instances and the names that `nstat` has for them.
const OF_NSTAT: [(&str, &str, &str); 34] = [
    (host::IP_IN_RECEIVES, "", "IpInReceives"),
    (host::IP_IN_DELIVERS, "", "IpInDelivers"),
    (host::IP_FORWARDED, "", "IpForwDatagrams"),
    (host::IP_IN_HEADER_ERRORS, "", "IpInHdrErrors"),
    (host::IP_IN_ADDRESS_ERRORS, "", "IpInAddrErrors"),
    (host::IP_OUT_NO_ROUTES, "", "IpOutNoRoutes"),
    (host::IP_REASSEMBLY_FAILS, "", "IpReasmFails"),
    (host::IP_FRAGMENTS_CREATED, "", "IpFragCreates"),
    (host::ICMP_IN_UNREACHABLE, "", "IcmpInDestUnreachs"),
    (host::ICMP_OUT_UNREACHABLE, "", "IcmpOutDestUnreachs"),
    (host::TCP_IN_SEGMENTS, "", "TcpInSegs"),
    (host::TCP_OUT_SEGMENTS, "", "TcpOutSegs"),
    (host::TCP_RETRANS_SEGMENTS, "", "TcpRetransSegs"),
    (host::TCP_OUT_RESETS, "", "TcpOutRsts"),
    (host::UDP_IN_DATAGRAMS, "", "UdpInDatagrams"),
    (host::UDP_NO_PORTS, "", "UdpNoPorts"),
    (host::UDP_OUT_DATAGRAMS, "", "UdpOutDatagrams"),
    (host::UDP_RCVBUF_ERRORS, "", "UdpRcvbufErrors"),
    (host::UDP_IN_CSUM_ERRORS, "", "UdpInCsumErrors"),
    (host::IP_IN_RECEIVES, "ipv6", "Ip6InReceives"),
    (host::IP_IN_DELIVERS, "ipv6", "Ip6InDelivers"),
    (host::UDP_NO_PORTS, "ipv6", "Udp6NoPorts"),
    (host::UDP_OUT_DATAGRAMS, "ipv6", "Udp6OutDatagrams"),
    (host::ICMP_OUT_UNREACHABLE, "ipv6", "Icmp6OutDestUnreachs"),
    (host::TCP_SYN_RETRANS, "", "TcpExtTCPSynRetrans"),
    (host::TCP_TIMEOUTS, "", "TcpExtTCPTimeouts"),
    (host::TCP_LOSS_PROBES, "", "TcpExtTCPLossProbes"),
    (host::TCP_DSACK_SEGMENTS, "", "TcpExtTCPDSACKRecvSegs"),
    (host::TCP_LISTEN_OVERFLOWS, "", "TcpExtListenOverflows"),
    (host::TCP_LISTEN_DROPS, "", "TcpExtListenDrops"),
    (host::TCP_DELAYED_ACKS, "", "TcpExtDelayedACKs"),
    (host::TCP_BACKLOG_DROPS, "", "TcpExtTCPBacklogDrop"),
    (host::IP_IN_NO_ROUTES, "", "IpExtInNoRoutes"),
    (host::IP_RP_FILTER_DROPPED, "", "TcpExtIPReversePathFilter"),
];
/// So many of them count something in this test.
const GROWN_MIN: usize = 10;
/// Counters of an interface with their places in the document of `ip -s -j link`.
const OF_LINK: [(&str, &str); 8] = [
    (host::DEV_RX_BYTES, "/stats64/rx/bytes"),
    (host::DEV_RX_FRAMES, "/stats64/rx/packets"),
    (host::DEV_RX_ERRORS, "/stats64/rx/errors"),
    (host::DEV_RX_DROPPED, "/stats64/rx/dropped"),
    (host::DEV_TX_BYTES, "/stats64/tx/bytes"),
    (host::DEV_TX_FRAMES, "/stats64/tx/packets"),
    (host::DEV_TX_ERRORS, "/stats64/tx/errors"),
    (host::DEV_TX_DROPPED, "/stats64/tx/dropped"),
];
const DATAGRAMS: usize = 50;

/// Returns the counters of a host, by their names and instances, as a recording has them.
fn recorded(stage: &TestBed, lab: &RunningLab<'_>) -> BTreeMap<(String, String), u64> {
    let kept = stage.path("counters.ndjson");
    lab.fathom("b", &["watch", "--once", "--record", kept.to_str().unwrap()]).succeeded();
    let text = fs::read_to_string(&kept).unwrap();
    let first: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let keys: Vec<_> = first["keys"].as_array().unwrap().iter().map(|key| (word(&key[0]), word(&key[1]))).collect();
    let values = first["values"].as_array().unwrap().iter();
    values
        .map(|at| (keys[usize::try_from(at[0].as_u64().unwrap()).unwrap()].clone(), at[1].as_u64().unwrap()))
        .collect()
}

/// Returns what a tool says on host b.
fn said(lab: &RunningLab<'_>, words: &[&str]) -> String {
    lab.exec("b", words).ends().succeeded().stdout
}

fn document(lab: &RunningLab<'_>, words: &[&str]) -> Value {
    serde_json::from_str(&said(lab, words)).unwrap()
}

/// Sends datagrams to a port without a listener, and a byte to a listener and to a port without one, over both versions of IP.
fn send(lab: &RunningLab<'_>) {
    let listeners =
        lab.enter_with("b", || ["198.18.0.2:5555", "[2001:2::2]:5555"].map(|at| TcpListener::bind(at).unwrap()));
    lab.enter_with("a", || {
        for host in ["198.18.0.2", "[2001:2::2]"] {
            let any = if host.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any).unwrap();
            for _ in 0..DATAGRAMS {
                socket.send_to(&[7; 100], format!("{host}:9")).unwrap();
            }
            TcpStream::connect(format!("{host}:5555")).unwrap().write_all(&[7]).unwrap();
            assert!(TcpStream::connect(format!("{host}:9")).is_err(), "nobody listens there");
        }
    });
    drop(listeners);
}

#[test]
fn the_counters_of_a_host_are_those_that_nstat_and_ip_tell() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("pair6", "counted");
    send(&lab);
    let [nstat, link] = [&["nstat", "-a", "-s", "-z", "-j"][..], &["ip", "-s", "-j", "link", "show", "eth0"]];
    let before = [document(&lab, nstat), document(&lab, link)];
    let counters = recorded(&stage, &lab);
    let after = [document(&lab, nstat), document(&lab, link)];
    let of = |name: &str, instance: &str| {
        let key = (name.to_owned(), instance.to_owned());
        *counters.get(&key).unwrap_or_else(|| panic!("{name} {instance} is not recorded"))
    };
    // Those of `nstat` are numbers with a fraction in some releases.
    let number = |value: &Value| value.as_f64().map(fathom_model::units::rounded);
    let mut n_grown = 0;
    for (name, instance, theirs) in OF_NSTAT {
        let at = |document: &Value| number(&document["kernel"][theirs]);
        let (Some(low), Some(high)) = (at(&before[0]), at(&after[0])) else { panic!("nstat does not tell {theirs}") };
        let ours = of(name, instance);
        assert!((low..=high).contains(&ours), "{name} {instance} is {ours}, and {theirs} {low} to {high}");
        n_grown += usize::from(ours > 0);
    }
    assert!(n_grown >= GROWN_MIN, "{n_grown} counters count something: {counters:?}");
    for (name, place) in OF_LINK {
        let at = |document: &Value| number(document[0].pointer(place).unwrap()).unwrap();
        let (low, ours, high) = (at(&before[1]), of(name, "eth0"), at(&after[1]));
        assert!((low..=high).contains(&ours), "{name} is {ours}, and {place} {low} to {high}");
    }
}

#[test]
fn listeners_are_those_of_ss_with_what_waits_in_their_queues() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("pair6", "listened");
    let _listeners =
        lab.enter_with("b", || ["198.18.0.2:5555", "[2001:2::2]:5556"].map(|at| TcpListener::bind(at).unwrap()));
    let _waiting = lab.enter_with("a", || {
        ["198.18.0.2:5555", "198.18.0.2:5555", "[2001:2::2]:5556"].map(|at| TcpStream::connect(at).unwrap())
    });
    let theirs: Vec<[String; 3]> = said(&lab, &["ss", "-l", "-t", "-n", "-H"])
        .lines()
        .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .map(|fields| [fields[3].clone(), fields[1].clone(), fields[2].clone()])
        .collect();
    let view: Value = serde_json::from_str(&lab.fathom("b", &["watch", "--json"]).succeeded().stdout).unwrap();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let ours = view["listeners"].as_array().unwrap().iter();
    let ours: Vec<_> = ours.map(|one| ["address", "n_waiting", "n_length"].map(|member| text(&one[member]))).collect();
    for [address, waiting, length] in &theirs {
        let is_it = |one: &&[String; 3]| one[0] == *address;
        let one = ours.iter().find(is_it).unwrap_or_else(|| panic!("{address} is not in {ours:?}"));
        assert_eq!([&one[1], &one[2]], [waiting, length], "{address}");
    }
    assert_eq!(theirs.len(), 2, "{theirs:?}");
}

#[test]
fn features_of_an_interface_are_those_of_ethtool() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("featured");
    said(&lab, &["ethtool", "-K", "eth0", "tx-udp-segmentation", "off"]);
    let theirs = said(&lab, &["ethtool", "-k", "eth0"]);
    let text = lab.fathom("b", &["watch", "--queues", "eth0", "--count", "1"]).succeeded().stdout;
    let ours = |state: &str| {
        let beginning = format!("features {state}");
        let line = text.lines().find_map(|line| line.strip_prefix(&beginning));
        let names = line.unwrap_or_else(|| panic!("no {beginning} in {text}")).split(',').map(str::trim);
        names.map(str::to_owned).collect::<Vec<String>>()
    };
    let (on, off) = (ours("on"), ours("off"));
    // ethtool has older names for some groups; those of the kernel begin with their direction.
    let mut n_compared = 0;
    for (name, state) in theirs.lines().filter_map(|line| line.trim().split_once(": ")) {
        let is_of_kernel = (name.starts_with("tx-") || name.starts_with("rx-"))
            && !["checksumming", "vlan-offload"].iter().any(|old| name.ends_with(old));
        if is_of_kernel && !state.ends_with("[fixed]") {
            let (here, there) = if state.starts_with("on") { (&on, &off) } else { (&off, &on) };
            let name = name.to_owned();
            assert!(here.contains(&name) && !there.contains(&name), "{name} is {state} for ethtool\n{text}");
            n_compared += 1;
        }
    }
    assert!(n_compared >= 3 && off.contains(&"tx-udp-segmentation".to_owned()), "{theirs}\n{text}");
}
