//! The face of pktgen where the kernel has none: fathom's own engine sends, and the block is the kernel's.

use fathom_packet::pktgen::{Outcome, Status};

use crate::stage::{LabUp, Stage, lacks_root};

/// The sending device of a lab of two hosts, and the address of the other one.
fn ends(stage: &Stage, lab: &LabUp<'_>) -> (String, String) {
    let devices = stage.fathom(["lab", "exec", lab.name, "a", "--", "cat", "/proc/self/net/dev"]).succeeded().stdout;
    let names = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let device = names.into_iter().find(|name| *name != "lo").unwrap().to_owned();
    let listed = stage.fathom(["lab", "list"]).succeeded().stdout;
    let host = listed.split_once("b ").unwrap().1;
    (device, host.split([',', '\n']).next().unwrap().trim().to_owned())
}

/// Whether the kernel sends: then its own engine is not tried here.
fn is_kernels() -> bool {
    std::path::Path::new("/proc/net/pktgen").exists()
}

#[test]
fn the_options_of_the_samples_send_and_print_a_block_that_says_which_engine_sent() {
    let stage = Stage::new();
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
    assert_eq!((status.params.count, status.params.min_pkt_size, status.current.errors), (2_000, 64, 0));
    let Outcome::Finished(finished) = status.outcome else { panic!("{}", ending.stdout) };
    assert_eq!((finished.sent, finished.size_bytes), (2_000, 64));
    assert!(finished.took.as_secs_f64() >= 0.099, "two thousand every 50 µs: {}", finished.took);
    assert_eq!(ending.stderr.contains("the kernel's pktgen"), is_kernels(), "{}", ending.stderr);
    let lines = ["rem_device_all", &format!("add_device {device}"), "count 1000", "clone_skb 0", "pkt_size 64"];
    let rest = [&format!("dst {to}"), &format!("dst_mac {mac}"), "start"];
    let words = [&["pgset"][..], &lines, &rest].concat();
    let status: Status = inside(&words).succeeded().stdout.parse().unwrap();
    assert_eq!((status.params.ifname, status.current.sent), (device.clone(), 1_000));
    let two = inside(&["-i", &device, "-d", &to, "-m", mac, "-n", "500", "-t", "2"]).succeeded().stdout;
    assert_eq!(two.matches("Device: ").count(), 2, "{two}");
    if !is_kernels() {
        inside(&["-i", &device, "-d", &to, "-m", mac, "start"]).code(2);
        let lines =
            [&format!("add_device {device}"), &format!("dst {to}"), &format!("dst_mac {mac}"), "vlan_id 5", "start"];
        inside(&lines).refused(3, &["`vlan_id 5` needs the kernel's pktgen", "modprobe pktgen"]);
    }
}

#[test]
fn pktgen_sends_nowhere_that_is_not_allowed() {
    let stage = Stage::new();
    let face = |words: &[&str]| stage.fathom([&["as", "pktgen"], words].concat());
    face(&["-i", "lo", "-d", "192.0.2.1", "-m", "02:00:00:00:00:02"])
        .refused(3, &["192.0.2.1 is not a target you have allowed", "FATHOM_ALLOW"]);
    face(&["-i", "lo", "-m", "02:00:00:00:00:02"]).refused(3, &["has no destination"]);
    face(&["-i", "lo", "-d", "127.0.0.1"]).refused(3, &["has no dst_mac"]);
    face(&["-i", "lo", "-d", "127.0.0.1", "-m", "ff:ff:ff:ff:ff:ff"]).refused(3, &["is never a target"]);
    face(&["add_device lo", "dst 127.0.0.1", "dst_mac 02:00:00:00:00:02", "src_min 192.0.2.7", "start"])
        .refused(3, &["192.0.2.7 is not a target you have allowed", "it is a source that is not this host's"]);
    face(&["add_device lo", "dst 127.0.0.1", "dst_mac 02:00:00:00:00:02", "flag MACSRC_RND", "start"])
        .refused(3, &["foreign addresses of Ethernet"]);
    assert!(face(&[]).code(2).stderr.starts_with("Please specify output device"));
    assert!(face(&["count many"]).code(5).stderr.starts_with("ERROR: "));
}

#[test]
fn a_receiver_to_which_no_pktgen_sends_fails() {
    if lacks_root() {
        return;
    }
    let stage = Stage::new();
    let lab = stage.lab("silent");
    let program = stage.program().to_str().unwrap().to_owned();
    lab.exec("a", &[&program, "packet", "--receive", "lo", "--duration", "100ms"])
        .ends()
        .refused(1, &["no packet of a pktgen arrived at lo", "nor any other frame", "promisc on"]);
}
