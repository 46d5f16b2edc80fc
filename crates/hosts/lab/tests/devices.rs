//! Devices of a lab on the real kernel: each one forwards, counts its drops, and leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use fathom_lab::{Device, Error, Host, Lab, LabState, Options, preset};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    netlink::{
        Netlink,
        nftables::{Nftables, RuleFate, Table, TableFamily},
    },
    process::{affinity, may_administer_network},
};
use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, UdpSocket},
    path::PathBuf,
    process::Command,
    time::Duration,
};

/// The number of counted datagrams.
const ROUNDS: u64 = 50;
/// Long enough for a busy machine, short enough for a failing test.
const PATIENCE: Nanos = Nanos::from_secs(20);

fn lacks_privileges() -> bool {
    fathom_testkit::lacks_privileges(may_administer_network())
}

fn lab_with(device: &str) -> Lab {
    lab_of("pair", device)
}

fn lab_of(preset: &str, device: &str) -> Lab {
    let core = affinity::allowed_cores().unwrap().last().copied();
    let options = Options { device: Some(device.parse().unwrap()), device_core: core, ..Options::default() };
    // With root, no child is started.
    Lab::build(preset::find(preset).unwrap(), &options, Command::new("/not/started")).unwrap()
}

fn udp(host: &Host) -> UdpSocket {
    let socket = host.enter_with(|| UdpSocket::bind((host.address(), 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Frames that the kernel itself sends on a new device: for IPv6, multicast listener reports.
const OWN_FRAMES: u64 = 30;

/// Waits until a device of the middle host has sent this many frames; its counter lags behind their arrival.
fn wait_for_frames(dut: &Host, device: &'static str, n: u64) {
    let deadline = clock::now() + PATIENCE;
    loop {
        let stats = dut.enter_with(|| Netlink::open()?.link(device)).unwrap().unwrap().stats;
        assert!(
            stats.tx_packets <= n + OWN_FRAMES && clock::now() < deadline,
            "{} of {n} frames by {device}",
            stats.tx_packets
        );
        if stats.tx_packets >= n {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn every_device_of_the_kernel_passes_every_datagram_on_once() {
    if lacks_privileges() {
        return;
    }
    let devices = ["router", "bridge", "nft:200"];
    let labs = ["pair", "pair6"].into_iter().flat_map(|preset| devices.map(|device| (preset, device)));
    for (preset, device) in labs {
        let lab = lab_of(preset, device);
        let [a, dut, b] = ["a", "dut", "b"].map(|name| lab.host(name).unwrap());
        let (client, server) = (udp(a), udp(b));
        for _ in 0..ROUNDS {
            client.send_to(b"across", server.local_addr().unwrap()).unwrap();
            let (_, from) = server.recv_from(&mut [0; 10]).unwrap();
            assert_eq!(from.ip(), a.address(), "{preset} with {device}");
            server.send_to(b"back", from).unwrap();
            assert_eq!(client.recv_from(&mut [0; 10]).unwrap().1.ip(), b.address(), "{preset} with {device}");
        }
        wait_for_frames(dut, "eth1", ROUNDS);
        wait_for_frames(dut, "eth0", ROUNDS);
        assert_eq!(lab.device().unwrap().device.to_string().split(':').next(), device.split(':').next());
    }
}

#[test]
fn a_squeeze_cuts_what_is_too_long_for_its_way_and_tells_who_may_not_be_cut() {
    if lacks_privileges() {
        return;
    }
    for preset in ["pair", "pair6"] {
        let lab = lab_of(preset, "squeeze:1300");
        let [a, b] = ["a", "b"].map(|name| lab.host(name).unwrap());
        let (client, server) = (udp(a), udp(b));
        client.connect(server.local_addr().unwrap()).unwrap();
        let mut received = [0; 1500];
        // The sender's packets may not be cut until it knows how long they can be.
        client.send(&[1; 1400]).unwrap();
        let told = std::iter::repeat_with(|| client.send(&[2; 1400])).take(1000).any(|sent| {
            server.set_nonblocking(true).unwrap();
            std::thread::yield_now();
            sent.is_ok() && server.recv(&mut received).is_ok_and(|n| n == 1400)
        });
        assert!(told && received[0] == 2, "{preset}: the first datagram is refused, a later one arrives in fragments");
    }
}

#[test]
fn what_a_rule_drops_and_what_passes_adds_up_to_what_came() {
    if lacks_privileges() {
        return;
    }
    let lab = lab_with("nft:30,1/5");
    let [a, dut, b] = ["a", "dut", "b"].map(|name| lab.host(name).unwrap());
    let (client, server) = (udp(a), udp(b));
    for _ in 0..ROUNDS {
        client.send_to(b"across", server.local_addr().unwrap()).unwrap();
    }
    let n_arrived = (0..ROUNDS - ROUNDS / 5).filter(|_| server.recv_from(&mut [0; 10]).is_ok()).count() as u64;
    let counted = dut.enter_with(|| -> fathom_sys::Result<_> {
        let mut nft = Nftables::open()?;
        let chains = nft.base_chains()?;
        let of_ipv4 = Table { family: TableFamily::Ipv4, name: "fathom" };
        assert_eq!(chains.iter().filter(|chain| **chain == Nftables::chain(of_ipv4, "forward")).count(), 1);
        Ok((nft.counted(&Nftables::chain(of_ipv4, "forward"))?, nft.counted(&Nftables::chain(of_ipv4, "rules"))?))
    });
    let (entry, rules) = counted.unwrap().unwrap();
    let seen: Vec<(RuleFate, u64)> = entry.iter().map(|rule| (rule.fate, rule.n_packets)).collect();
    assert_eq!(seen, [(RuleFate::Passed, ROUNDS), (RuleFate::Dropped, ROUNDS / 5), (RuleFate::Passed, n_arrived)]);
    assert_eq!((rules.len(), rules.iter().map(|rule| rule.n_packets).sum::<u64>()), (30, 0));
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.recv_from(&mut [0; 10]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_device_has_threads_on_its_core_and_they_go_with_it() {
    if lacks_privileges() {
        return;
    }
    let lab = lab_with("router");
    let record = lab.device().unwrap().clone();
    if lab.standing() == LabState::Contained && record.threads.is_empty() {
        return fathom_testkit::skip_everywhere(&record.unavailable.join("; "));
    }
    assert_eq!(record.unavailable, [""; 0]);
    let interfaces: Vec<&str> = record.threads.iter().map(|thread| thread.interface.as_str()).collect();
    assert_eq!(interfaces, ["eth0", "eth1"], "one per interface");
    let core = record.core.unwrap().to_string();
    let places: Vec<PathBuf> = record.threads.iter().map(|thread| format!("/proc/{}", thread.pid).into()).collect();
    for (place, thread) in places.iter().zip(&record.threads) {
        let name = fs::read_to_string(place.join("comm")).unwrap();
        assert!(name.starts_with(&format!("napi/{}-", thread.interface)), "{name}");
        let status = fs::read_to_string(place.join("status")).unwrap();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(allowed.trim(), core);
    }
    drop(lab);
    let deadline = clock::now() + PATIENCE;
    // The kernel removes namespaces in the background.
    while places.iter().any(|place| place.exists()) {
        assert!(clock::now() < deadline, "{places:?} are still there");
        std::thread::yield_now();
    }
}

#[test]
fn a_device_that_needs_a_program_is_refused_where_there_is_none() {
    if lacks_privileges() {
        return;
    }
    let options = Options { device: Some(Device::Redirect), ..Options::default() };
    let build = |preset: &str| Lab::build(preset::find(preset).unwrap(), &options, Command::new("/not/started"));
    let error = build("pair").unwrap_err();
    assert_eq!(error.to_string(), "cannot put the program of redirect on eth0 of host dut");
    let error = build("router").unwrap_err();
    assert!(matches!(error, Error::BadDevice { .. }), "{error}");
}

/// Sends a datagram from each of 30 ports of the client to an address, and returns how many each target got.
fn divided(lab: &Lab, targets: &[&Host], to: IpAddr) -> Vec<usize> {
    const PORT: u16 = 7000;
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let sockets: Vec<UdpSocket> =
        targets.iter().map(|target| target.enter_with(|| UdpSocket::bind((any, PORT)).unwrap()).unwrap()).collect();
    let client = lab.host("a").unwrap();
    let send = || {
        for _ in 0..30 {
            UdpSocket::bind((any, 0)).unwrap().send_to(b"who", (to, PORT)).unwrap();
        }
    };
    client.enter_with(send).unwrap();
    let count = |socket: &UdpSocket| {
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        std::iter::from_fn(|| socket.recv_from(&mut [0; 10]).ok()).count()
    };
    sockets.iter().map(count).collect()
}

#[test]
fn targets_are_reached_through_their_device_by_the_virtual_address_and_directly_by_their_own() {
    if lacks_privileges() {
        return;
    }
    for (name, device) in
        [("targets:3", "router"), ("targets6:3", "router"), ("targets:3", "dnat"), ("targets6:3", "dnat")]
    {
        let options = Options { device: Some(device.parse().unwrap()), ..Options::default() };
        let (preset, options) = preset::chosen(name, options).unwrap();
        assert_eq!(preset.ends(&options), ["a", "t1", "t2", "t3"]);
        let lab = Lab::build(preset, &options, Command::new("/not/started")).unwrap();
        let targets = ["t1", "t2", "t3"].map(|name| lab.host(name).unwrap());
        let shared = targets[0].virtual_address().unwrap();
        let through = divided(&lab, &targets, shared);
        assert_eq!(through.iter().sum::<usize>(), 30, "{name} {device}: {through:?}");
        let n_used = through.iter().filter(|n| **n > 0).count();
        assert_eq!(n_used, if device == "router" { 1 } else { 3 }, "{name} {device}: {through:?}");
        assert_eq!(divided(&lab, &targets, targets[1].address()), [0, 30, 0], "{name} {device}: directly");
        // Answers come from the address that was asked, by whatever way.
        let client = lab.host("a").unwrap().enter_with(|| {
            let any: IpAddr = if shared.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
            UdpSocket::bind((any, 0)).unwrap()
        });
        let client = client.unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let at = if device == "router" { shared } else { targets[0].address() };
        let servers = targets.map(|target| {
            let at = if device == "router" { at } else { target.address() };
            let server = target.enter_with(|| UdpSocket::bind((at, 7001)).unwrap()).unwrap();
            server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            server
        });
        client.send_to(b"who", (shared, 7001)).unwrap();
        let deadline = clock::now() + PATIENCE;
        let (server, from) = loop {
            let asked = servers.iter().find_map(|server| Some((server, server.recv_from(&mut [0; 10]).ok()?.1)));
            if let Some(asked) = asked {
                break asked;
            }
            assert!(clock::now() < deadline, "{name} {device}: no request arrived");
        };
        server.send_to(b"me", from).unwrap();
        assert_eq!(client.recv_from(&mut [0; 10]).unwrap().1.ip(), shared, "{name} {device}");
    }
}

#[test]
fn a_device_and_a_topology_that_do_not_fit_are_refused() {
    let refused = |preset: &str, device: &str| {
        let (preset, options) = preset::chosen(preset, Options::default()).unwrap();
        let options = Options { device: Some(device.parse().unwrap()), ..options };
        preset.device(&options).unwrap_err().to_string()
    };
    assert!(refused("pair", "dnat").contains("use the preset targets:N"));
    assert!(refused("targets:2", "bridge").contains("use router, dnat or balancer"));
    assert!(refused("star:3", "router").contains("use the preset pair"));
    assert!(refused("pair", "squeeze:1500").contains("the links carry no more than 1500 bytes anyway"));
    for wrong in ["targets:0", "targets:65", "targets:many", "pair:2"] {
        let error = preset::chosen(wrong, Options::default()).unwrap_err();
        assert!(error.hint().unwrap().contains("targets:N with N from 1 to 64"), "{wrong}: {error}");
    }
}
