//! The reference balancer as a program and as a device of a lab: it divides, is changed and asked, and leaves nothing.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    ops::Range,
    path::Path,
    time::Duration,
};

use fathom_model::names::host;
use fathom_sys::{
    netlink::Netlink,
    process::{Pidfd, ProcessIdentity},
};
use serde_json::Value;

use crate::test_bed::{PATIENCE, RunningLab, TestBed, lacks_root, until};

const VIRTUAL: &str = "198.18.8.1";
/// Long enough for some hundred datagrams.
const SHORT: &[&str] = &["--rounds", "1", "--warmup", "50ms", "--duration", "300ms", "--json"];

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_balancer_of_a_lab_is_changed_while_it_runs_and_ends_with_whoever_holds_the_lab() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let command = ["lab", "up", "targets:3", "--name", "spread", "--device", "balancer:queues=2", "--for", "5min"];
    let lab = stage.lab_with(&command, "spread");
    let balancer = |words: &[&str]| lab.fathom("dut", &[&["balancer"], words].concat());
    let targets: Vec<UdpSocket> = ["t1", "t2", "t3"]
        .iter()
        .map(|host| lab.enter_with(host, || UdpSocket::bind((VIRTUAL, 7000)).unwrap()))
        .collect();
    let divided = || {
        lab.enter_with("a", || {
            for _ in 0..40 {
                UdpSocket::bind("198.18.0.1:0").unwrap().send_to(b"who", (VIRTUAL, 7000)).unwrap();
            }
        });
        let mut counts = vec![0; targets.len()];
        until(|| {
            for (count, target) in counts.iter_mut().zip(&targets) {
                target.set_nonblocking(true).unwrap();
                *count += std::iter::from_fn(|| target.recv(&mut [0; 10]).ok()).count();
            }
            (counts.iter().sum::<usize>() >= 40).then(|| counts.clone())
        })
    };
    let first = divided();
    assert!(first.iter().all(|n| *n > 0) && first.iter().sum::<usize>() == 40, "{first:?}");
    balancer(&["targets", "remove", "t2"]).succeeded();
    let second = divided();
    assert!(second[1] == 0 && second.iter().sum::<usize>() == 40, "{second:?}");
    let rules = stage.path("rules");
    std::fs::write(&rules, "# one line for each rule\nnone,sources=192.0.2.0/24\n\nall,group=default,ports=7000\n")
        .unwrap();
    balancer(&["flows", "load", rules.to_str().unwrap()]).succeeded();
    balancer(&["targets", "weight", "t3", "1000"]).succeeded();
    let third = divided();
    assert!(third[2] > 30, "t1 has a thousandth of the flows: {third:?}");
    let listed = parsed(&balancer(&["targets", "list", "--json"]).succeeded().stdout).to_string();
    assert!(listed.contains("weight=1000"), "{listed}");
    std::fs::write(&rules, "all,group=default\nwrong,colour=red\n").unwrap();
    balancer(&["flows", "load", rules.to_str().unwrap()]).refused(2, &["line 2: flow field `colour=red`"]);
    let listed = balancer(&["flows", "list"]).succeeded().stdout;
    assert!(listed.lines().count() == 2 && listed.contains("none"), "{listed}");

    let counted = parsed(&balancer(&["counters", "--json"]).succeeded().stdout);
    assert_eq!(counted["decisions"]["n_forwarded"], 120, "{counted:#}");
    let by_queue: Vec<u64> =
        counted["queues"].as_array().unwrap().iter().map(|queue| queue["n_packets"].as_u64().unwrap()).collect();
    assert!(by_queue.contains(&120), "one client address uses one of the queues: {by_queue:?}");

    balancer(&["run", "--vip", VIRTUAL, "--target", "t1=198.18.1.1"]).refused(3, &["runs here already, process"]);
    balancer(&["targets", "add", "t9=198.18.1.1"]).refused(3, &["target t1 has the address 198.18.1.1 too"]);
    balancer(&["targets", "list", "--name", "other"]).refused(3, &["no balancer `other` runs here"]);
    stage.fathom(["tcp", "--lab", "spread"]).refused(2, &["which of 3 targets answers", "targets:1"]);

    let pid = u32::try_from(counted["pid"].as_u64().unwrap()).unwrap();
    let process = ProcessIdentity::of(pid).unwrap();
    let parent = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let holder: u32 = parent.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    Pidfd::open(holder).unwrap().kill().unwrap();
    until(|| (!process.is_alive()).then_some(()));
    stage.fathom(["lab", "down", "--stale"]).succeeded();
}

#[test]
fn a_test_through_the_balancer_has_the_counters_of_its_queue() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    for preset in ["targets:1", "targets6:1"] {
        let words = ["udp", "--lab", preset, "--device", "balancer", "--rate", "20M"];
        let run = stage.fathom([&words[..], SHORT].concat()).run();
        let trial = &run.tests[0].trials[0];
        let series = trial.hosts["dut"].series.iter().find(|series| series.name == host::NFQUEUE_PACKETS).unwrap();
        let (first, last) = (series.values.first().unwrap(), series.values.last().unwrap());
        let sent = run.tests[0].conservation.as_ref().unwrap().n_sent;
        assert!(last - first >= sent && sent > 0, "{preset}: {sent} sent, {series:?}");
    }
    let dnat = ["tcp", "--lab", "targets:1", "--device", "dnat"];
    stage.fathom(dnat).refused(2, &["no target listens at the virtual address"]);
}

#[test]
fn frames_reach_the_targets_by_ipv6_and_others_are_refused() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let packet = ["packet", "--lab", "targets6:1", "--size", "128", "--rate", "1kpps", "--device"];
    for device in ["router", "balancer"] {
        let run = stage.fathom([&packet[..], &[device, "--transport", "udp6"], SHORT].concat()).run();
        let frames = run.tests[0].conservation.as_ref().unwrap();
        assert!(frames.n_sent > 0 && frames.n_received * 2 > frames.n_sent, "{device}: {frames:?}");
    }
    stage.fathom([&packet[..], &["router"]].concat()).refused(3, &["2001:2:0:8::1", "carry IPv4", "--transport udp6"]);
}

#[test]
fn a_balancer_that_is_ended_leaves_nothing_and_one_that_was_killed_is_cleared_away() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("targets:2", "bare");
    let words = ["balancer", "run", "--vip", VIRTUAL, "--target", "t1=198.18.1.1"];
    let left = || {
        let read = |words: &[&str]| lab.exec("dut", words).ends().succeeded().stdout;
        (read(&["nft", "list", "tables"]), read(&["ip", "rule", "list"]), read(&["ip", "-brief", "link"]))
    };
    let before = left();
    let pid = |said: &str| said.trim().rsplit(' ').next().unwrap().parse::<u32>().unwrap();
    let running = lab.start("dut", &words);
    let process = pid(&running.says("ready:"));
    assert_ne!(left(), before);
    Pidfd::open(process).unwrap().send(fathom_sys::process::signal::Signal::Interrupt).unwrap();
    let counted = running.ends().code(130).stdout;
    assert!(counted.lines().any(|line| line.starts_with("decisions n_changes")), "{counted}");
    assert_eq!(left(), before);

    let killed = lab.start("dut", &words);
    let handle = Pidfd::open(pid(&killed.says("ready:"))).unwrap();
    handle.kill().unwrap();
    assert!(handle.wait(PATIENCE).unwrap());
    lab.fathom("dut", &[&words[..], &["--for", "100ms"]].concat()).succeeded();
    assert_eq!(left(), before);
}

#[test]
fn without_the_privilege_a_balancer_is_refused() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::owned_by(65_534);
    let mut command = stage.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(stage.program());
    command.args(["balancer", "run", "--vip", VIRTUAL, "--target", "t1=198.18.1.1"]);
    stage.spawn(command).ends().refused(3, &["a balancer needs CAP_NET_ADMIN"]);
    assert!(!Path::new("/sys/class/net/fathom20000").exists());
}

const TARGETS: [&str; 3] = ["t1", "t2", "t3"];
const PORTS: Range<u16> = 20_000..20_040;
/// A datagram in three fragments.
const LARGE: usize = 4000;

/// Sockets of the targets of a lab at the virtual address.
struct Listening {
    datagrams: Vec<UdpSocket>,
    streams: Vec<TcpListener>,
}

impl Listening {
    fn at(lab: &RunningLab<'_>) -> Self {
        let datagrams = |host: &&str| lab.enter_with(host, || UdpSocket::bind((VIRTUAL, 7000)).unwrap());
        let streams = |host: &&str| lab.enter_with(host, || TcpListener::bind((VIRTUAL, 7000)).unwrap());
        let listening =
            Self { datagrams: TARGETS.iter().map(datagrams).collect(), streams: TARGETS.iter().map(streams).collect() };
        listening.datagrams.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        listening.streams.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        listening
    }

    /// The target that each datagram of these ports reaches, of so many bytes.
    fn targets_of(&self, lab: &RunningLab<'_>, length: usize) -> BTreeMap<u16, usize> {
        lab.enter_with("a", || {
            for port in PORTS {
                let socket = UdpSocket::bind(("198.18.0.1", port)).unwrap();
                socket.send_to(&vec![7; length], (VIRTUAL, 7000)).unwrap();
            }
        });
        let (mut reached, mut room) = (BTreeMap::new(), vec![0; 2 * LARGE]);
        until(|| {
            for (place, socket) in self.datagrams.iter().enumerate() {
                while let Ok((received, from)) = socket.recv_from(&mut room) {
                    assert_eq!((received, reached.insert(from.port(), place)), (length, None));
                }
            }
            (reached.len() == PORTS.len()).then_some(())
        });
        reached
    }

    /// Sends some streams of so many bytes to whichever target takes each, and returns how many each target took whole.
    fn streams_of(&self, lab: &RunningLab<'_>, length: usize) -> Vec<usize> {
        const N_STREAMS: usize = 24;
        let connect = || (0..N_STREAMS).map(|_| TcpStream::connect((VIRTUAL, 7000)).unwrap()).collect();
        let clients: Vec<TcpStream> = lab.enter_with("a", connect);
        let mut taken: Vec<(usize, TcpStream)> = Vec::new();
        until(|| {
            for (place, listener) in self.streams.iter().enumerate() {
                taken.extend(std::iter::from_fn(|| Some((place, listener.accept().ok()?.0))));
            }
            (taken.len() == N_STREAMS).then_some(())
        });
        let mut n_whole = vec![0; self.streams.len()];
        std::thread::scope(|scope| {
            for mut client in clients {
                scope.spawn(move || client.write_all(&vec![7; length]).unwrap());
            }
            for (place, mut server) in taken {
                server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let mut received = Vec::new();
                n_whole[place] += usize::from(server.read_to_end(&mut received).unwrap() == length);
            }
        });
        n_whole
    }
}

#[test]
fn a_program_sends_flows_to_the_targets_of_the_queues_and_goes_with_its_process() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let up = |name: &'static str, device: &str| {
        stage.lab_with(&["lab", "up", "targets:3", "--name", name, "--device", device, "--for", "5min"], name)
    };
    let queued = up("queued", "balancer");
    let by_queues = Listening::at(&queued).targets_of(&queued, 20);
    drop(queued);
    for path in ["xdp", "tc"] {
        let lab = up("fast", &format!("balancer:path={path}"));
        divides_like_queues(path, &lab, &by_queues);
    }
}

/// Checks the program of a lab of three targets, then kills its process.
fn divides_like_queues(path: &str, lab: &RunningLab, by_queues: &BTreeMap<u16, usize>) {
    let listening = Listening::at(lab);
    let balancer = |words: &[&str]| lab.fathom("dut", &[&["balancer"], words].concat());
    let counted = || parsed(&balancer(&["counters", "--json"]).succeeded().stdout);
    let number = |value: &Value| value.as_u64().unwrap();

    assert_eq!(listening.targets_of(lab, 20), *by_queues, "both data paths choose the same targets");
    let small = counted();
    assert_eq!(
        (number(&small["fast_path"]["n_redirected"]), number(&small["queues"][0]["n_packets"])),
        (40, 0),
        "{small:#}"
    );
    assert_eq!(listening.targets_of(lab, LARGE), *by_queues, "fragments go where their flow goes");
    let large = counted();
    let n_passed = number(&large["fast_path"]["passed_up"]["fragment"]);
    assert_eq!((n_passed, number(&large["queues"][0]["n_packets"])), (3 * 40, 3 * 40), "{large:#}");
    assert_eq!(number(&large["decisions"]["n_forwarded"]), 4 * 40, "{large:#}");
    let streams = listening.streams_of(lab, 200_000);
    assert!(streams.iter().all(|n| *n > 0) && streams.iter().sum::<usize>() == 24, "{streams:?}");

    balancer(&["targets", "remove", "t2"]).succeeded();
    let without = listening.targets_of(lab, 20);
    let is_kept =
        |(port, target): (&u16, &usize)| if *target == 1 { without[port] != 1 } else { without[port] == *target };
    assert!(by_queues.iter().all(is_kept), "{by_queues:?}, then {without:?}");
    balancer(&["targets", "add", "t2=198.18.1.2"]).succeeded();
    assert_eq!(listening.targets_of(lab, 20), *by_queues);

    let has_program = || lab.enter_with("dut", || Netlink::open().unwrap().link("eth0").unwrap().has_xdp);
    assert_eq!(has_program(), path == "xdp");
    let process = Pidfd::open(u32::try_from(number(&large["pid"])).unwrap()).unwrap();
    process.kill().unwrap();
    assert!(process.wait(PATIENCE).unwrap());
    until(|| (!has_program()).then_some(()));
}

#[test]
fn what_a_device_loses_when_it_is_killed_is_told_as_the_effect_of_that() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let up = ["lab", "up", "targets:2", "--name", "killed", "--device", "balancer", "--for", "5min"];
    let lab = stage.lab_with(&up, "killed");
    let serve = |host: &'static str| {
        let server = lab.start(host, &["serve", "--only", "identity", "--identity-name", host]);
        server.says("identity");
        server
    };
    let _servers = ["t1", "t2"].map(serve);
    let words = ["tcp", VIRTUAL, "--test", "continuity", "--flows", "20", "--rate", "400/s", "--duration", "1s"];
    let test = |more: &[&str]| stage.fathom([&words[..], &["--lab", "killed", "--json"], more].concat());
    let event = ["--at", "500ms kill-device=dut"];
    let twice = ["--at", "100ms kill-device=dut", "--rounds", "2"];
    test(&twice).refused(2, &["a killed device does not come back", "--rounds 1"]);
    // The file of this program is gone before the event, as after an upgrade.
    let copy = stage.path("it's fathom");
    fathom_testkit::copy_program(stage.program(), &copy);
    let mut upgraded = stage.command("sh");
    upgraded.args(["-c", r#"exec 3<"$0"; rm "$0"; exec /proc/self/fd/3 "$@""#]).arg(&copy).args(words);
    upgraded.args(["--lab", "killed", "--json"]).args(event);
    let run = stage.spawn(upgraded).ends().run();
    assert!(!copy.exists());
    let [effect] = &run.tests[0].targets.as_ref().unwrap().effects[..] else { panic!("one event") };
    assert_eq!((effect.event.status, effect.n_own, effect.n_flows), (Some(0), 20, 20), "{effect:?}");
    let found = run.findings.iter().find(|finding| finding.id == "targets-lost-by-event").unwrap();
    assert!(found.title.starts_with("no target answered after `500ms kill-device=dut`"), "{}", found.title);
    lab.fathom("dut", &["balancer", "kill"]).refused(3, &["no balancer `balancer` runs here"]);
}

#[test]
fn what_keeps_a_program_from_its_work_is_named_and_leaves_nothing() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("targets:1", "deaf");
    let left = || {
        let read = |words: &[&str]| lab.exec("dut", words).ends().succeeded().stdout;
        (read(&["nft", "list", "tables"]), read(&["ip", "rule", "list"]), read(&["ip", "-brief", "link"]))
    };
    let before = left();
    let words = ["balancer", "run", "--vip", VIRTUAL, "--target", "t1=198.18.1.1", "--data-path", "xdp"];
    let cases: [(&[&str], i32, &[&str]); 4] = [
        (&[], 2, &["interface: --data-path xdp needs the interface"]),
        (&["--interface", "eth0", "--mode", "dnat"], 2, &["xdp needs --mode dsr"]),
        (&["--interface", "eth9"], 3, &["no interface `eth9`", "ip link"]),
        (&["--interface", "eth0"], 3, &["eth1, the interface to target t1, takes no frames", "gro on"]),
    ];
    for (more, code, said) in cases {
        lab.fathom("dut", &[&words[..], more].concat()).refused(code, said);
        assert_eq!(left(), before, "{more:?}");
    }
    // Without a target nothing is sent anywhere, and the loopback has no native mode.
    let words = ["balancer", "run", "--vip", VIRTUAL, "--data-path", "xdp", "--interface", "lo"];
    lab.fathom("dut", &words).refused(3, &["the driver of lo has no native XDP", "--data-path tc or nfqueue"]);
    assert_eq!(left(), before);
}
