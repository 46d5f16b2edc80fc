//! Labs on the real kernel. The holder of a lab is this test binary, started in the test `role_of_the_holder`.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use fathom_lab::{
    Error, Host, Lab, LabName, LabState, Options, PRESETS, StateFolder,
    device::NoPrograms,
    down,
    holder::{self, LabSpec},
    list, preset, stale, undo_stale,
};
use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    clock,
    netlink::{Link, Netlink, Veth, VethEnd, namespace::NetNs},
    process::{ExitCause, Pidfd, ProcessIdentity, may_administer_network},
};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{fd::AsFd as _, unix::process::CommandExt},
    panic::{AssertUnwindSafe, catch_unwind},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// The user `nobody` on every distribution.
const NOBODY: u32 = 65_534;
/// The number of counted datagrams.
const ROUNDS: u64 = 50;
/// Long enough for a busy machine, short enough for a failing test.
const PATIENCE: Nanos = Nanos::from_secs(20);

fn lacks_privileges() -> bool {
    fathom_testkit::lacks_privileges(may_administer_network())
}

/// This binary in one of its roles; with `-q`, because otherwise the runner writes the name of the test before its output.
fn in_role(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([role, "--exact", "--ignored", "--nocapture", "-q"]);
    command
}

fn holder_program() -> Command {
    in_role("role_of_the_holder")
}

#[test]
#[ignore = "not a test: the role in which this binary holds a lab"]
fn role_of_the_holder() {
    let order = env::args().next_back().unwrap();
    // Its error was already reported, and nobody checks the exit code.
    let _ = holder::run(&order, std::io::stdout(), &NoPrograms);
}

/// A separate state folder, removed with the first value.
fn folder() -> (TempDir, StateFolder) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::open(folder.path()).unwrap();
    (folder, state)
}

fn name(text: &str) -> LabName {
    text.parse().unwrap()
}

fn pair(options: &Options) -> Lab {
    Lab::build(preset::find("pair").unwrap(), options, holder_program()).unwrap()
}

fn link(host: &Host) -> Link {
    host.enter_with(|| Netlink::open()?.link("eth0")).unwrap().unwrap()
}

fn udp(host: &Host) -> UdpSocket {
    let socket = host.enter_with(|| UdpSocket::bind(SocketAddr::new(host.address(), 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

#[test]
fn a_tcp_connection_crosses_a_pair() {
    if lacks_privileges() {
        return;
    }
    let lab = pair(&Options::default());
    assert_eq!((lab.standing(), lab.missing_features().len()), (LabState::Root, 0));
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    assert_eq!(a.address(), "198.18.0.1".parse::<IpAddr>().unwrap());
    let listener = b.enter_with(|| TcpListener::bind(SocketAddr::new(b.address(), 0))).unwrap().unwrap();
    let target = listener.local_addr().unwrap();
    let mut client = a.enter_with(|| TcpStream::connect(target)).unwrap().unwrap();
    let (mut server, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), a.address());
    client.write_all(b"ping").unwrap();
    let mut received = [0; 4];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"ping");
}

/// Two machines joined by one wire, `lan0` to `lan1`; the second has an address.
fn two_machines() -> (NetNs, NetNs) {
    let (here, there) = (NetNs::new().unwrap(), NetNs::new().unwrap());
    let end = |name| VethEnd { name, mac: None };
    let (near, far) = (end("lan0"), end("lan1"));
    let set_up = |name: &str, address: Option<&str>| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link(name).unwrap().index;
        if let Some(address) = address {
            netlink.add_address(index, address.parse().unwrap(), 24).unwrap();
        }
        netlink.set_up(index).unwrap();
    };
    here.enter_with(|| {
        let far_namespace = Some(there.as_fd());
        let veth = Veth { near, far, far_namespace, mtu_bytes: 1400, n_queues: 1 };
        Netlink::open().unwrap().add_veth(&veth).unwrap();
        set_up("lan0", None);
    })
    .unwrap();
    there.enter_with(|| set_up("lan1", Some("198.19.7.2"))).unwrap();
    (here, there)
}

#[test]
fn an_uplink_joins_a_host_to_the_network_of_an_interface_and_ends_with_the_lab() {
    if lacks_privileges() {
        return;
    }
    let (here, there) = two_machines();
    let uplink = |text: &str| Options { uplink: Some(text.parse().unwrap()), ..Options::default() };
    let build = |options: &Options| {
        here.enter_with(|| Lab::build(preset::find("pair").unwrap(), options, holder_program())).unwrap()
    };
    let lab = build(&uplink("b=lan0,198.19.7.1/24")).unwrap();
    let interface = lab.host("b").unwrap().interfaces()[1].clone();
    assert_eq!((interface.name.as_str(), interface.prefix_len, interface.mtu), ("uplink", 24, Bytes(1400)));
    let listener = there.enter_with(|| TcpListener::bind("198.19.7.2:0")).unwrap().unwrap();
    let target = listener.local_addr().unwrap();
    let _client = lab.host("b").unwrap().enter_with(|| TcpStream::connect(target)).unwrap().unwrap();
    assert_eq!(listener.accept().unwrap().1.ip(), interface.address);
    drop(lab);
    for (options, reason) in [
        (uplink("c=lan0,198.19.7.1/24"), "no host \"c\""),
        (uplink("b=lan7,198.19.7.1/24"), "no such interface"),
        (uplink("b=lan0,2001:2::7/64"), "use pair6"),
    ] {
        let error = build(&options).unwrap_err();
        assert!(format!("{error} {:?}", error.hint()).contains(reason), "{error}");
    }
}

#[test]
fn the_counters_of_a_pair_count_the_frames_that_were_sent_and_nothing_else() {
    if lacks_privileges() {
        return;
    }
    let lab = pair(&Options { mtu_bytes: 9000, ..Options::default() });
    let (a, b) = (&lab.hosts()[0], &lab.hosts()[1]);
    assert_eq!((a.interfaces()[0].mtu, link(b).mtu_bytes), (Bytes(9000), 9000));
    assert_eq!(link(a).mac, Some(a.interfaces()[0].mac));
    assert_eq!(link(a).stats, fathom_sys::netlink::LinkStats::default(), "no frame comes on its own");
    let (client, server) = (udp(a), udp(b));
    let payload = [7; 100];
    let mut received = [0; 200];
    for _ in 0..ROUNDS {
        client.send_to(&payload, server.local_addr().unwrap()).unwrap();
        assert_eq!(server.recv(&mut received).unwrap(), payload.len());
    }
    let (sent, arrived) = (link(a).stats, link(b).stats);
    // The count includes 14 bytes of Ethernet, 20 of IPv4 and 8 of UDP besides the payload, but not the frame check sequence.
    assert_eq!((sent.tx_packets, sent.tx_bytes), (ROUNDS, ROUNDS * 142));
    assert_eq!((arrived.rx_packets, arrived.rx_bytes), (ROUNDS, ROUNDS * 142));
    assert_eq!((sent.rx_packets, arrived.tx_packets, arrived.rx_dropped), (0, 0, 0));
}

#[test]
fn every_preset_builds_with_the_hosts_that_it_names() {
    if lacks_privileges() {
        return;
    }
    for preset in PRESETS {
        let lab = Lab::build(preset, &Options::default(), holder_program()).unwrap();
        let names: Vec<_> = lab.hosts().iter().map(|host| host.name().as_str()).collect();
        assert_eq!(names, preset.hosts, "{}", preset.name);
    }
}

#[test]
fn every_host_of_a_star_reaches_every_other_one_through_the_switch() {
    if lacks_privileges() {
        return;
    }
    for text in ["star:5", "star6:5"] {
        let (preset, options) = preset::chosen(text, Options::default()).unwrap();
        let lab = Lab::build(preset, &options, holder_program()).unwrap();
        let names = preset.ends(&options);
        assert_eq!(names, ["sut", "c1", "c2", "c3", "c4"]);
        let hosts: Vec<&Host> = names.iter().map(|name| lab.host(name).unwrap()).collect();
        for from in &hosts {
            for to in hosts.iter().filter(|to| to.name() != from.name()) {
                let (client, server) = (udp(from), udp(to));
                client.send_to(b"across", server.local_addr().unwrap()).unwrap();
                let (_, source) = server.recv_from(&mut [0; 10]).unwrap();
                assert_eq!(source.ip(), from.address(), "{text}");
            }
        }
        let counted: u64 = hosts.iter().map(|host| link(host).stats.rx_packets).sum();
        assert!(counted >= 20, "{text}: {counted}");
    }
}

#[test]
fn a_star_has_a_number_of_hosts_and_a_pair_has_none() {
    for wrong in ["star:1", "star:513", "star:x", "pair:3", "star:"] {
        let error = preset::chosen(wrong, Options::default()).unwrap_err();
        assert!(error.hint().unwrap().contains("star:N with N from 2 to 512"), "{wrong}: {error}");
    }
    let device = Options { device: Some("router".parse().unwrap()), ..Options::default() };
    assert!(preset::find("star").unwrap().device(&device).is_err(), "a switch joins its hosts already");
}

#[test]
fn a_router_passes_every_datagram_on_once() {
    if lacks_privileges() {
        return;
    }
    let lab = Lab::build(preset::find("router").unwrap(), &Options::default(), holder_program()).unwrap();
    let (a, r, b) = (lab.host("a").unwrap(), lab.host("dut").unwrap(), lab.host("b").unwrap());
    let (client, server) = (udp(a), udp(b));
    for _ in 0..ROUNDS {
        client.send_to(b"across", server.local_addr().unwrap()).unwrap();
        let (_, from) = server.recv_from(&mut [0; 10]).unwrap();
        assert_eq!(from.ip(), a.address());
    }
    let passed_on = r.enter_with(|| Netlink::open()?.link("eth1")).unwrap().unwrap().stats;
    assert_eq!((link(r).stats.rx_packets, passed_on.tx_packets, link(b).stats.rx_packets), (ROUNDS, ROUNDS, ROUNDS));
    assert_eq!(link(a).stats.rx_packets, 0, "no redirect, no ARP");
}

#[test]
fn a_lab_that_a_panic_drops_leaves_no_device_and_no_namespace() {
    if lacks_privileges() {
        return;
    }
    // A separate namespace plays the machine, so that no other process changes its devices during the test.
    let machine = NetNs::new().unwrap();
    let devices = || machine.enter_with(|| Netlink::open()?.links()).unwrap().unwrap();
    let before = devices();
    let lab = machine.enter_with(|| pair(&Options::default())).unwrap();
    assert_eq!(devices(), before, "the machine sees nothing of the wires");
    let survivor = lab.hosts()[0].namespaces().net.try_clone().unwrap();
    let mut netlink = survivor.enter_with(Netlink::open).unwrap().unwrap();
    assert!(netlink.link("eth0").is_ok());
    let panic = catch_unwind(AssertUnwindSafe(move || {
        let _lab = lab;
        panic!("planted");
    }));
    assert!(panic.is_err());
    // The kernel removes a namespace in the background; the wire's end in the remaining one disappears with it.
    let deadline = clock::now() + PATIENCE;
    while netlink.link("eth0").is_ok() {
        assert!(clock::now() < deadline, "the other namespace is still there");
        std::thread::yield_now();
    }
    assert_eq!(devices(), before);
}

#[test]
fn a_process_started_on_a_host_sees_its_devices_and_the_files_of_the_machine() {
    if lacks_privileges() {
        return;
    }
    let lab = pair(&Options::default());
    let mut command = Command::new("sh");
    command.args(["-c", "cat /proc/net/dev; ls /sys/fs/cgroup | wc -l"]).stdout(Stdio::piped());
    let output = lab.host("b").unwrap().start(command).unwrap().wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("eth0:"), "{text}");
    assert_eq!(text.lines().count(), 5, "two headings, lo, eth0 and the count: {text}");
    // Nothing is remounted, so the control groups are those of the machine.
    let groups = fs::read_dir("/sys/fs/cgroup").map_or(0, Iterator::count);
    assert_eq!(text.lines().last().unwrap().trim(), groups.to_string());
}

#[test]
fn a_lab_that_is_up_is_found_by_name_and_taken_down() {
    if lacks_privileges() {
        return;
    }
    let (_folder, state) = folder();
    up_find_and_down(&state, LabState::Root);
}

fn up_find_and_down(state: &StateFolder, standing: LabState) {
    let lab = name("office");
    let (preset, options) = (preset::find("pair").unwrap(), Options::default());
    let order = LabSpec { name: &lab, state, preset, options: &options, lifetime: Nanos::from_secs(60) };
    assert!(matches!(Lab::find(state, &lab), Err(Error::NotUp(_))));
    holder::up(holder_program(), &order).unwrap();
    assert!(matches!(holder::up(holder_program(), &order), Err(Error::NameTaken { .. })));
    assert_eq!(list(state).unwrap().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["office"]);

    let found = Lab::find(state, &lab).unwrap();
    assert_eq!(found.standing(), standing);
    let unknown = found.host("c").unwrap_err();
    assert_eq!(unknown.hint().unwrap(), "its hosts are: a, b");
    let mut command = Command::new("cat");
    command.arg("/proc/net/fib_trie").stdout(Stdio::piped());
    let output = found.host("b").unwrap().start(command).unwrap().wait_with_output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("198.18.0.2"));

    down(state, &lab).unwrap();
    assert!(list(state).unwrap().is_empty());
    assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0, "the journal is gone");
    assert!(matches!(down(state, &lab), Err(Error::NotUp(_))));
}

#[test]
fn a_lab_whose_time_is_over_ends_on_its_own() {
    if lacks_privileges() {
        return;
    }
    let (_folder, state) = folder();
    let (preset, options) = (preset::find("pair").unwrap(), Options::default());
    let lab = name("short");
    let order = LabSpec { name: &lab, state: &state, preset, options: &options, lifetime: Nanos::from_millis(300) };
    holder::up(holder_program(), &order).unwrap();
    if let Some(journal) = fs::read_dir(state.path()).unwrap().next() {
        let text = fs::read_to_string(journal.unwrap().path()).unwrap_or_default();
        if let Some(pid) = pid_of_owner(&text) {
            // The holder may already have exited.
            let ended = Pidfd::open(pid).map_or(true, |holder| holder.wait(PATIENCE).unwrap());
            assert!(ended, "the holder is still there");
        }
    }
    assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
}

fn pid_of_owner(journal: &str) -> Option<u32> {
    let journal: serde_json::Value = serde_json::from_str(journal).ok()?;
    u32::try_from(journal["owner"]["pid"].as_u64()?).ok()
}

#[test]
fn a_holder_that_is_killed_leaves_a_stale_journal_and_nothing_else() {
    if lacks_privileges() {
        return;
    }
    let (_folder, state) = folder();
    let (preset, options) = (preset::find("pair").unwrap(), Options::default());
    let lab = name("doomed");
    let order = LabSpec { name: &lab, state: &state, preset, options: &options, lifetime: Nanos::from_secs(60) };
    holder::up(holder_program(), &order).unwrap();
    let pid = pid_of_owner(&fs::read_to_string(state.path().join("lab-doomed.json")).unwrap()).unwrap();
    let identity = ProcessIdentity::of(pid).unwrap();
    let holder = Pidfd::open(pid).unwrap();
    holder.kill().unwrap();
    assert!(holder.wait(PATIENCE).unwrap());

    assert!(!identity.is_alive());
    assert!(list(&state).unwrap().is_empty());
    assert!(matches!(Lab::find(&state, &lab), Err(Error::NotUp(_))));
    assert_eq!(stale(&state).unwrap().len(), 1);
    assert_eq!(undo_stale(&state).unwrap(), [name("lab-doomed")]);
    assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
}

/// Starts a program on host a of a lab that is up, when it has said that it runs.
fn started(state: &StateFolder, lab: &LabName, script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped());
    let mut program = Lab::find(state, lab).unwrap().host("a").unwrap().start(command).unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    program
}

#[test]
fn programs_on_the_hosts_of_a_lab_end_with_it_and_no_others() {
    if lacks_privileges() {
        return;
    }
    let (_folder, state) = folder();
    let (preset, options) = (preset::find("pair").unwrap(), Options::default());
    let lab = name("busy");
    let order = LabSpec { name: &lab, state: &state, preset, options: &options, lifetime: Nanos::from_secs(60) };
    holder::up(holder_program(), &order).unwrap();
    let mut mild = started(&state, &lab, "echo ready; exec sleep 600");
    let mut stubborn = started(&state, &lab, "trap '' TERM; echo ready; exec sleep 600");
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    let mut ended = down(&state, &lab).unwrap();
    ended.sort_by_key(|program| program.pid != mild.id());
    let expected = [(mild.id(), ExitCause::Terminated), (stubborn.id(), ExitCause::Killed)];
    let lives_on = other.try_wait().unwrap().is_none();
    other.kill().unwrap();
    for program in [&mut mild, &mut stubborn, &mut other] {
        program.wait().unwrap();
    }
    // The shell is ready before it has become `sleep`.
    assert!(ended.iter().all(|program| ["sh", "sleep"].contains(&program.name.as_str())), "{ended:?}");
    assert_eq!(ended.iter().map(|program| (program.pid, program.cause)).collect::<Vec<_>>(), expected);
    assert!(lives_on);
}

#[test]
fn programs_on_the_hosts_end_when_the_time_of_the_lab_is_over() {
    if lacks_privileges() {
        return;
    }
    let (_folder, state) = folder();
    let (preset, options) = (preset::find("pair").unwrap(), Options::default());
    let lab = name("short");
    let order = LabSpec { name: &lab, state: &state, preset, options: &options, lifetime: Nanos::from_secs(2) };
    holder::up(holder_program(), &order).unwrap();
    let mut program = started(&state, &lab, "echo ready; exec sleep 600");
    assert!(Pidfd::open(program.id()).unwrap().wait(PATIENCE).unwrap(), "it ends long before its own time");
    program.wait().unwrap();
}

#[test]
fn the_name_of_a_lab_whose_holder_was_killed_is_free_and_can_be_taken_down() {
    if lacks_privileges() {
        return;
    }
    let (_folder, state) = folder();
    let (preset, options) = (preset::find("pair").unwrap(), Options::default());
    let lab = name("again");
    let order = LabSpec { name: &lab, state: &state, preset, options: &options, lifetime: Nanos::from_secs(60) };
    let kill = || {
        let pid = pid_of_owner(&fs::read_to_string(state.path().join("lab-again.json")).unwrap()).unwrap();
        let holder = Pidfd::open(pid).unwrap();
        holder.kill().unwrap();
        assert!(holder.wait(PATIENCE).unwrap());
    };
    holder::up(holder_program(), &order).unwrap();
    kill();
    holder::up(holder_program(), &order).unwrap();
    assert_eq!(list(&state).unwrap().len(), 1);
    kill();
    down(&state, &lab).unwrap();
    assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
    assert!(matches!(down(&state, &lab), Err(Error::NotUp(_))));
}

#[test]
fn an_option_out_of_range_is_refused_before_anything_is_touched() {
    let options = Options { mtu_bytes: 20, ..Options::default() };
    let error = Lab::build(preset::find("pair").unwrap(), &options, Command::new("/not/started")).unwrap_err();
    assert_eq!(error.to_string(), "MTU 20 is outside 68 to 65535 bytes");
    assert_eq!(
        preset::find("ring").unwrap_err().hint().unwrap(),
        "the presets are: pair, pair6, router, star, star6, targets, targets6"
    );
}

#[test]
fn a_user_without_privileges_gets_the_same_labs() {
    if lacks_privileges() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(state.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = as_nobody(in_role("role_of_a_user_without_privileges"));
    let output = command.env("FATHOM_STATE", state.path()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if text.contains("cannot make a user namespace") {
        return fathom_testkit::skip(&text);
    }
    assert!(output.status.success(), "{text}");
    a_starter_that_is_killed_takes_its_processes_along(as_nobody(in_role("role_of_a_starter")));
}

#[test]
fn a_killed_process_takes_along_what_it_started_on_its_hosts() {
    if lacks_privileges() {
        return;
    }
    a_starter_that_is_killed_takes_its_processes_along(in_role("role_of_a_starter"));
}

fn a_starter_that_is_killed_takes_its_processes_along(mut starter: Command) {
    let mut starter = starter.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let line = line_with("started ", starter.stdout.as_mut().unwrap());
    let sleeper = Pidfd::open(line.trim().parse().unwrap()).unwrap();
    assert!(!sleeper.wait(Nanos::from_millis(50)).unwrap(), "it runs while its starter does");
    starter.kill().unwrap();
    starter.wait().unwrap();
    assert!(sleeper.wait(PATIENCE).unwrap());
}

#[test]
#[ignore = "not a test: a process that builds a lab, starts a process in it and is killed"]
fn role_of_a_starter() {
    let lab = pair(&Options::default());
    let mut command = Command::new("sleep");
    command.arg("60").stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = lab.hosts()[0].start(command).unwrap();
    println!("started {}", child.id());
    // Killed by the test.
    child.wait().unwrap();
}

fn as_nobody(mut command: Command) -> Command {
    command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null());
    command
}

/// The rest of the first output line of a process that starts with `beginning`.
///
/// The caller provides the output, because the runner in the process fails if nobody reads its last lines.
fn line_with(beginning: &str, output: &mut ChildStdout) -> String {
    let mut lines = BufReader::new(output).lines().map(Result::unwrap);
    lines.find_map(|line| line.strip_prefix(beginning).map(str::to_owned)).expect("the process says so before it ends")
}

#[test]
#[ignore = "not a test of its own: run as nobody by the test above"]
fn role_of_a_user_without_privileges() {
    assert!(!may_administer_network());
    let lab = pair(&Options::default());
    assert_eq!(lab.standing(), LabState::Rootless);
    assert!(lab.missing_features().iter().any(|loss| loss.what.contains("XDP")));
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let error = a.enter_with(|| ()).unwrap_err();
    assert!(matches!(error, Error::NeedsProcess(_)));

    // One process on each host, and a connection between them.
    let port = 7700;
    let mut server = in_role("role_of_a_server");
    server.env("LISTEN", SocketAddr::new(b.address(), port).to_string()).stdout(Stdio::piped());
    let mut server = b.start(server).unwrap();
    line_with("listening", server.stdout.as_mut().unwrap());
    let mut client = in_role("role_of_a_client");
    client.env("CONNECT", SocketAddr::new(b.address(), port).to_string());
    assert!(a.start(client).unwrap().wait().unwrap().success());
    assert!(server.wait().unwrap().success());

    let state = StateFolder::from_environment().unwrap();
    up_find_and_down(&state, LabState::Rootless);
}

#[test]
#[ignore = "not a test: a process on host b"]
fn role_of_a_server() {
    let listener = TcpListener::bind(env::var("LISTEN").unwrap()).unwrap();
    println!("listening");
    let (mut connection, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), "198.18.0.1".parse::<IpAddr>().unwrap());
    connection.write_all(b"welcome").unwrap();
}

#[test]
#[ignore = "not a test: a process on host a"]
fn role_of_a_client() {
    let mut text = String::new();
    TcpStream::connect(env::var("CONNECT").unwrap()).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "welcome");
}
