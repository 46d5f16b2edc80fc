//! Fragments through the devices of a lab: a router, connection tracking, and targets behind rules that spread flows.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use fathom_model::{
    Run,
    names::host,
    probe::{FragmentOrderRecord, FragmentsRecord},
};

use crate::{
    probes::lacks,
    test_bed::{RunningLab, TestBed, lacks_root},
};

/// Quick, and long enough for the answers.
const BRIEF: &[&str] = &["--test", "fragments", "--flows", "20", "--rate", "1k/s", "--timeout", "500ms", "--json"];

#[track_caller]
fn record(run: &Run) -> &FragmentsRecord {
    let mut records = run.tests[0].trials[0].records.values();
    records.find_map(|record| record.probe.as_ref()?.fragments.as_ref()).unwrap()
}

fn findings(run: &Run) -> Vec<&str> {
    let about_fragments = |id: &&str| id.starts_with("fragments-");
    run.findings.iter().map(|finding| finding.id.as_str()).filter(about_fragments).collect()
}

/// The orders of which something is counted, with the count.
fn counted(record: &FragmentsRecord, of: impl Fn(&FragmentOrderRecord) -> u64) -> Vec<(&str, u64)> {
    let orders = record.orders.iter().map(|order| (order.order.as_str(), of(order)));
    orders.filter(|(_, n)| *n > 0).collect()
}

#[test]
fn every_order_arrives_through_a_router_that_puts_nothing_together() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    for (lab, n_orders) in [("pair", 9), ("pair6", 20)] {
        let run = stage.fathom([&["probe", "--lab", lab, "--device", "router"], BRIEF].concat()).succeeded().run();
        let record = record(&run);
        assert_eq!(record.orders.len(), n_orders, "{lab}");
        let (lost, twice) = (counted(record, FragmentOrderRecord::n_lost), counted(record, |order| order.n_duplicates));
        assert_eq!(
            (lost, twice, counted(record, FragmentOrderRecord::n_unexpected)),
            (vec![], vec![], vec![]),
            "{lab}"
        );
        assert_eq!(findings(&run), Vec::<&str>::new(), "{lab}");
        // Each fragment, also of an incomplete datagram, reached the other end by itself.
        let received = &run.tests[0].trials[0].hosts["b"];
        let n: u64 = received.series_of(host::IP_FRAGMENTS_RECEIVED).map(fathom_model::record::Series::growth).sum();
        assert_eq!((n, record.n_captured), (record.n_fragments(|_| true), n), "{lab}");
    }
}

/// Plants rules on the device.
fn plant(lab: &RunningLab<'_>, rules: &str) {
    let script = format!("nft -f - <<'X'\ntable inet spread {{\n{rules}\n}}\nX\n");
    lab.exec("dut", &["sh", "-c", &script]).ends().succeeded();
}

#[test]
fn connection_tracking_on_the_device_is_told_for_both_versions_of_ip() {
    if lacks_root() || lacks(&["nft"]) {
        return;
    }
    let stage = TestBed::beside_others();
    for (preset, name) in [("pair", "tracked"), ("pair6", "tracked6")] {
        let lab = stage.lab_with(&["lab", "up", preset, "--device", "router", "--name", name, "--for", "5min"], name);
        plant(&lab, "chain c {\n type filter hook forward priority 0\n ct state new counter\n}");
        let run = stage.fathom([&["probe", "--lab", name], BRIEF].concat()).succeeded().run();
        let lost = counted(record(&run), FragmentOrderRecord::n_lost);
        assert_eq!((findings(&run), lost), (vec!["fragments-reassembled"], vec![]), "{preset}");
        let finding = run.findings.iter().find(|finding| finding.id == "fragments-reassembled").unwrap();
        assert!(finding.title.contains("the device dut puts fragments together"), "{}", finding.title);
    }
}

/// The address that two targets share, and the addresses of the targets.
struct Targets {
    shared: &'static str,
    own: [&'static str; 2],
}

const V4: Targets = Targets { shared: "198.18.1.9", own: ["198.18.1.1", "198.18.1.2"] };
const V6: Targets = Targets { shared: "2001:2:0:1::9", own: ["2001:2:0:1::1", "2001:2:0:1::2"] };

/// Answers datagrams like a target until the end.
fn answer(socket: &UdpSocket, name: &str, is_over: &AtomicBool) {
    let mut room = vec![0; 65_536];
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut room) else { continue };
        assert_eq!(
            (&room[64..68], length),
            (&b"FWHO"[..], u32::from_be_bytes(room[68..72].try_into().unwrap()) as usize)
        );
        room[..name.len()].copy_from_slice(name.as_bytes());
        socket.send_to(&room[..96], from).unwrap();
    }
}

/// Measures with both targets on host b, behind rules of the device.
fn measure(stage: &TestBed, lab: &RunningLab<'_>, targets: &Targets) -> Run {
    let [_, second] = targets.own;
    let bits = if second.contains(':') { 64 } else { 24 };
    lab.exec("b", &["ip", "address", "replace", &format!("{second}/{bits}"), "dev", "eth0", "nodad"])
        .ends()
        .succeeded();
    let mac = lab.mac("b").to_string();
    // Devices of a lab ask for no neighbors.
    lab.exec("dut", &["ip", "neighbor", "replace", second, "lladdr", &mac, "dev", "eth1"]).ends().succeeded();
    let sockets = lab.enter_with("b", || {
        targets.own.map(|address| UdpSocket::bind(SocketAddr::new(address.parse().unwrap(), 7701)).unwrap())
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (socket, name) in sockets.iter().zip(["one", "two"]) {
            let is_over = &is_over;
            scope.spawn(move || answer(socket, name, is_over));
        }
        let run = stage.fathom([&["probe", targets.shared, "--lab", lab.name], BRIEF].concat()).succeeded().run();
        is_over.store(true, Ordering::Relaxed);
        run
    })
}

#[test]
fn fragments_at_another_target_than_their_flow_are_told_and_a_nat_that_keeps_flows_is_told_to_put_them_together() {
    if lacks_root() || lacks(&["ip", "nft"]) {
        return;
    }
    let stage = TestBed::beside_others();
    for (preset, name, targets, [ip, is_fragment]) in [
        ("pair", "apart", &V4, ["ip", "ip frag-off & 0x3fff != 0"]),
        ("pair6", "apart6", &V6, ["ip6", "exthdr frag exists"]),
    ] {
        let lab = stage.lab_with(&["lab", "up", preset, "--device", "router", "--name", name, "--for", "5min"], name);
        let Targets { shared, own: [one, two] } = targets;
        // Fragments are not spread: all go to the first target. Nothing here tracks connections.
        plant(
            &lab,
            &format!(
                "chain c {{
  type filter hook prerouting priority -450
  {ip} daddr {shared} {is_fragment} {ip} daddr set {one}
  {ip} daddr {shared} udp sport & 1 == 0 {ip} daddr set {one}
  {ip} daddr {shared} udp sport & 1 == 1 {ip} daddr set {two}
  {ip} saddr {{ {one}, {two} }} udp sport 7701 {ip} saddr set {shared}
}}"
            ),
        );
        let run = measure(&stage, &lab, targets);
        let elsewhere = counted(record(&run), |order| order.n_elsewhere);
        let cut: Vec<_> =
            record(&run).orders.iter().filter(|order| order.n_fragments > 0 && order.n_answered > 0).collect();
        assert!(
            cut.len() >= 5 && cut.iter().all(|order| order.n_elsewhere == 10 && order.n_answered == 20),
            "{elsewhere:?}"
        );
        assert_eq!((elsewhere.len(), findings(&run)), (cut.len(), vec!["fragments-elsewhere"]), "{preset}");

        lab.exec("dut", &["nft", "delete", "table", "inet", "spread"]).ends().succeeded();
        plant(
            &lab,
            &format!(
                "chain c {{
  type nat hook prerouting priority -100
  {ip} daddr {shared} dnat {ip} to jhash udp sport mod 2 map {{ 0 : {one}, 1 : {two} }}
}}"
            ),
        );
        let run = measure(&stage, &lab, targets);
        let record = record(&run);
        assert_eq!(counted(record, |order| order.n_elsewhere + order.n_lost()), [], "{preset}");
        assert_eq!((record.answers.len(), findings(&run)), (2, vec!["fragments-reassembled"]), "{preset}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_its_reason() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    for (options, words) in [
        (&["--size", "1400"][..], &["needs no fragments", "--size 3000"][..]),
        (&["--size", "20000"], &["at most 16412 B", "--size 4000"]),
        (&["--mtu", "60"], &["takes 68 B", "--mtu 1500"]),
        (&["--fragments", "sideways"], &["`sideways` is no order", "reversed"]),
        (&["--fragments", "same-id"], &["second source", "--second-source"]),
        (&["--fragments", "v6-hbh8"], &["headers of IPv6", "--family 6"]),
        (&["--rate", "3k/s"], &["1 to 2000", "--rate 500"]),
        (&["--second-source", "127.0.0.1"], &["first source already", "ip address"]),
        (
            &["--port", "9", "--timeout", "50ms"],
            &["none of 100 whole datagrams to 127.0.0.1:9 was answered", "port unreachable"],
        ),
    ] {
        let result = stage.fathom([&["probe", "127.0.0.1", "--test", "fragments"], options].concat());
        let text = format!("{}{}", result.stdout, result.stderr);
        assert!(!result.has_succeeded() && words.iter().all(|word| text.contains(word)), "{options:?}: {text}");
    }
}
