//! Drop-in for pktgen without the kernel's pktgen: fathom's own engine sends, and the block is the same as the kernel's.

use std::fs;

use fathom_lab::{Lab, StateFolder};
use fathom_model::units::Bytes;
use fathom_pktgen::{CommandResult, Params, PktgenAddresses, Status};
use fathom_sys::{
    netlink::Netlink,
    packet::packet_socket::{ReceiveBuffer, Receiver},
};

use crate::test_bed::{PATIENCE, RunningLab, TestBed, lacks_root};

/// Returns the sending device of a lab with two hosts, and the address of the other host.
fn ends(stage: &TestBed, lab: &RunningLab<'_>) -> (String, String) {
    let devices = stage.fathom(["lab", "exec", lab.name, "a", "--", "cat", "/proc/self/net/dev"]).succeeded().stdout;
    let names = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let device = names.into_iter().find(|name| *name != "lo").unwrap().to_owned();
    let listed = stage.fathom(["lab", "list"]).succeeded().stdout;
    let host = listed.split_once("b ").unwrap().1;
    (device, host.split([',', '\n']).next().unwrap().trim().to_owned())
}

/// Returns true if the kernel sends. In that case, the own engine is not tested here.
fn is_kernels() -> bool {
    std::path::Path::new("/proc/net/pktgen").exists()
}

/// Returns true and reports it if fathom's own engine is not used here.
fn is_not_asked() -> bool {
    if is_kernels() {
        fathom_testkit::skip("the kernel's pktgen is loaded, and sends in place of fathom's own engine");
    }
    is_kernels()
}

#[test]
fn the_options_of_the_samples_send_and_print_a_block_that_says_which_engine_sent() {
    let stage = TestBed::beside_others();
    let lab = stage.lab("pktgen");
    let (device, to) = ends(&stage, &lab);
    let program = stage.program().to_str().unwrap().to_owned();
    let inside = |words: &[&str]| {
        let begin = ["lab", "exec", lab.name, "a", "--", &program, "as", "pktgen"];
        stage.fathom([&begin, words].concat())
    };
    let mac = "02:00:00:00:00:02";
    let ending = inside(&["-i", &device, "-d", &to, "-m", mac, "-n", "2000", "-s", "64", "-w", "50000"]).succeeded();
    let status: Status = ending.stdout.parse().unwrap();
    assert_eq!(status.to_string(), ending.stdout, "nothing stands beside the block");
    assert_eq!((status.params.count, status.params.min_pkt_size, status.progress.errors), (2_000, 64, 0));
    let CommandResult::Finished(finished) = status.last_result else { panic!("{}", ending.stdout) };
    assert_eq!((finished.sent, finished.size_bytes), (2_000, 64));
    assert!(finished.took.as_secs_f64() >= 0.099, "two thousand every 50 µs: {}", finished.took);
    assert_eq!(ending.stderr.contains("the kernel's pktgen"), is_kernels(), "{}", ending.stderr);
    let lines = ["rem_device_all", &format!("add_device {device}"), "count 1000", "clone_skb 0", "pkt_size 64"];
    let rest = [&format!("dst {to}"), &format!("dst_mac {mac}"), "start"];
    let words = [&["pgset"][..], &lines, &rest].concat();
    let status: Status = inside(&words).succeeded().stdout.parse().unwrap();
    assert_eq!((status.params.ifname, status.progress.sent), (device.clone(), 1_000));
    let two = inside(&["-i", &device, "-d", &to, "-m", mac, "-n", "500", "-t", "2"]).succeeded().stdout;
    assert_eq!(two.matches("Device: ").count(), 2, "{two}");
    if !is_kernels() {
        inside(&["-i", &device, "-d", &to, "-m", mac, "start"]).code(2);
        let lines =
            [&format!("add_device {device}"), &format!("dst {to}"), &format!("dst_mac {mac}"), "flows 8", "start"];
        inside(&lines).refused(3, &["`flows 8` needs the kernel's pktgen", "modprobe pktgen"]);
    }
}

#[test]
fn what_a_script_says_of_packets_is_what_arrives() {
    const SCRIPT: &str = "\
#!/bin/sh
modprobe pktgen
PGDEV=/proc/net/pktgen/kpktgend_0
pgset 'add_device DEVICE'
PGDEV=/proc/net/pktgen/DEVICE
pgset 'count 24'
pgset 'pkt_size 80'
pgset 'dst_min 198.18.9.1'
pgset 'dst_max 198.18.9.3'
pgset 'dst_mac 02:00:00:00:00:02'
pgset 'src_min 203.0.113.7'
pgset 'src_mac 02:00:00:00:00:10'
pgset 'src_mac_count 2'
pgset 'vlan_id 5'
pgset 'vlan_p 3'
pgset 'svlan_id 7'
pgset 'tos b8'
pgset 'udp_src_min 1000'
pgset 'udp_src_max 1004'
pgset 'udp_dst_min 53'
pgset 'udp_dst_max 53'
pg_ctrl start
";
    if lacks_root() || is_not_asked() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("script");
    let (device, _) = ends(&stage, &lab);
    let state = StateFolder::open(&stage.state()).unwrap();
    let other = Lab::find(&state, &lab.name.parse().unwrap()).unwrap();
    let open = || Receiver::open(Netlink::open().unwrap().link("eth0").unwrap().index, Bytes(1 << 20)).unwrap();
    let receiver = other.host("b").unwrap().enter_with(open).unwrap();
    fs::write(stage.path("job.sh"), SCRIPT.replace("DEVICE", &device)).unwrap();
    let script = stage.path("job.sh");
    let status: Status =
        lab.fathom("a", &["as", "pktgen", script.to_str().unwrap()]).succeeded().stdout.parse().unwrap();
    let Params { vlan, svlan, addresses, udp_src, .. } = status.params;
    assert_eq!((vlan.unwrap().id, vlan.unwrap().priority, svlan.unwrap().id, udp_src), (5, 3, 7, (1_000, 1_004)));
    assert!(
        matches!(addresses, PktgenAddresses::V4 { dst: (Some(_), Some(_)), src: (Some(_), None) }),
        "{addresses:?}"
    );
    assert_eq!((status.progress.sent, status.progress.errors), (24, 0));
    let (mut arrived, mut inbox) = (Vec::new(), ReceiveBuffer::default());
    while arrived.len() < 24 {
        assert!(receiver.wait(PATIENCE).unwrap(), "{} of 24 packets have arrived", arrived.len());
        receiver.receive(&mut inbox).unwrap();
        // The kernel has removed the outer tag. Untagged frames do not belong to the test.
        let ours = inbox.frames().filter(|(frame, _)| frame[12..14] == [0x81, 0]);
        arrived.extend(ours.map(|(frame, length)| (frame.to_vec(), length)));
    }
    for (number, (frame, length)) in (0_u8..).zip(&arrived) {
        assert_eq!(*length, Bytes(76), "eighty bytes without a tag");
        assert_eq!(frame[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0x10 + number % 2]);
        // Priority 3 and VLAN 5 before IPv4, with a traffic class of 0xb8.
        assert_eq!(frame[14..20], [0x60, 5, 8, 0, 0x45, 0xb8]);
        assert_eq!(frame[30..38], [203, 0, 113, 7, 198, 18, 9, 1 + number % 3]);
        let ports = [frame[38..40].try_into().unwrap(), frame[40..42].try_into().unwrap()].map(u16::from_be_bytes);
        assert_eq!(ports, [1_000 + u16::from(number % 4), 53]);
    }
}

#[test]
fn packets_of_ipv6_and_of_mixed_sizes_are_made_and_counted() {
    if lacks_root() || is_not_asked() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("mixed");
    let (device, _) = ends(&stage, &lab);
    let add = format!("add_device {device}");
    let lines = [&add, "count 120", "imix_weights 80,7 566,4 1500,1", "dst6 fd00::2", "src6 fd00::7"];
    let rest = ["dst_mac 02:00:00:00:00:02", "mpls 0001000a,00020040", "start"];
    let ending = lab.fathom("a", &[&["as", "pktgen"], &lines[..], &rest].concat()).succeeded();
    let status: Status = ending.stdout.parse().unwrap();
    let counts: Vec<(u64, u64)> =
        status.progress.imix_size_counts.iter().map(|size| (size.size, size.weight)).collect();
    assert_eq!(counts, [(80, 70), (566, 40), (1500, 10)]);
    assert_eq!(status.progress.addresses, ("fd00::7".to_owned(), "fd00::2".to_owned()));
    assert_eq!((status.progress.sent, status.params.mpls.len()), (120, 2));
    assert!(ending.stderr.contains("packets of 80 bytes have 88"), "{}", ending.stderr);
}

#[test]
fn pktgen_sends_nowhere_that_is_not_allowed() {
    let stage = TestBed::beside_others();
    let drop_in = |words: &[&str]| stage.fathom([&["as", "pktgen"], words].concat());
    drop_in(&["-i", "lo", "-d", "192.0.2.1", "-m", "02:00:00:00:00:02"])
        .refused(3, &["192.0.2.1 is not a target you have allowed", "fathom as --allow 192.0.2.1 pktgen"]);
    drop_in(&["-i", "lo", "-m", "02:00:00:00:00:02"]).refused(3, &["has no destination"]);
    drop_in(&["-i", "lo", "-d", "127.0.0.1"]).refused(3, &["has no dst_mac"]);
    drop_in(&["-i", "lo", "-d", "127.0.0.1", "-m", "ff:ff:ff:ff:ff:ff"]).refused(3, &["is never a target"]);
    drop_in(&["add_device lo", "dst 127.0.0.1", "dst_mac 02:00:00:00:00:02", "src_min 192.0.2.7", "start"])
        .refused(3, &["192.0.2.7 is not a target you have allowed", "it is a source that is not this host's"]);
    drop_in(&["add_device lo", "dst 127.0.0.1", "dst_mac 02:00:00:00:00:02", "flag MACSRC_RND", "start"])
        .refused(3, &["foreign addresses of Ethernet"]);
    // The last of two settings for the same parameter counts, and any IPv6 address makes all packets IPv6.
    for (lines, words) in [
        (&["dst_min 127.0.0.1", "dst 192.0.2.1"][..], "192.0.2.1 is not a target you have allowed"),
        (&["dst 127.0.0.1", "dst_max 192.0.2.1"], "192.0.2.1 is not a target you have allowed"),
        (&["dst 127.0.0.1", "dst6 2001:db8::1"], "2001:db8::1 is not a target you have allowed"),
        (&["dst6 ::1", "dst 192.0.2.1", "flag !IPV6"], "192.0.2.1 is not a target you have allowed"),
        (&["dst6 ::1", "dst6_min 2001:db8::", "dst6_max 2001:db8::f"], "2001:db8:: is not a target you have allowed"),
        (&["dst6 ::1", "src6 2001:db8::7"], "2001:db8::7 is not a target you have allowed"),
        (&["dst 127.0.0.1", "src6 ::1"], "has no destination"),
        (&["dst 127.0.0.1", "src_min 127.0.0.1", "src_max 192.0.2.9"], "192.0.2.9 is not a target you have allowed"),
    ] {
        drop_in(&[&["add_device lo"], lines, &["dst_mac 02:00:00:00:00:02", "start"]].concat()).refused(3, &[words]);
    }
    assert!(drop_in(&[]).code(2).stderr.starts_with("Please specify output device"));
    assert!(drop_in(&["count many"]).code(5).stderr.starts_with("ERROR: "));
}

#[test]
fn a_receiver_to_which_no_pktgen_sends_fails() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("silent");
    let program = stage.program().to_str().unwrap().to_owned();
    lab.exec("a", &[&program, "packet", "--receive", "lo", "--duration", "100ms"])
        .ends()
        .refused(1, &["no packet of a pktgen arrived at lo", "nor any other frame", "promisc on"]);
}
