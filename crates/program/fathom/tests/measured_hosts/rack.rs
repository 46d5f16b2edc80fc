//! Hosts on one switch: a network namespace each, with an sshd that accepts one key; and a namespace for the controller.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fathom_model::{MacAddress, units::Nanos};
use fathom_sys::{
    clock,
    netlink::{BridgeIndex, Netlink, Veth, VethEnd, namespace::NetNs},
    process::{ParentBond, ProcessPlace, ProcessSpec},
};

use crate::test_bed::{ProgramResult, RunningProgram, TestBed, lacks_root, until};

/// The MTU of all links.
const MTU_BYTES: u32 = 1500;
/// Where Debian has the server; it must be started by its full path.
const SSHD: &str = "/usr/sbin/sshd";

/// A switch with hosts.
pub(crate) struct Rack {
    pub(crate) stage: TestBed,
    controller: NetNs,
    hosts: Vec<RackHost>,
    // It holds the wires.
    _switch: NetNs,
}

struct RackHost {
    net: NetNs,
    servers: Vec<Child>,
}

impl Rack {
    /// Builds a rack with so many hosts and a controller; none without root or without sshd.
    pub(crate) fn build(n_hosts: u8) -> Option<Self> {
        if lacks_root() {
            return None;
        }
        if !Path::new(SSHD).is_file() {
            fathom_testkit::skip("needs sshd (openssh-server)");
            return None;
        }
        let stage = TestBed::new();
        let switch = NetNs::new().unwrap();
        let bridge = switch.enter_with(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("switch", MacAddress([2, 0, 0, 0, 1, 0])).unwrap();
            let bridge = netlink.link("switch").unwrap().index;
            netlink.set_up(bridge).unwrap();
            BridgeIndex(bridge)
        });
        let bridge = bridge.unwrap();
        let mut namespaces = (0..=n_hosts).map(|number| plugged_in(&switch, bridge, number));
        let controller = namespaces.next().unwrap();
        let hosts = namespaces.map(|net| RackHost { net, servers: Vec::new() }).collect();
        let mut rack = Self { stage, controller, hosts, _switch: switch };
        rack.write_keys();
        for number in 1..=n_hosts {
            rack.start_sshd(number, "");
        }
        Some(rack)
    }

    fn n_hosts(&self) -> u8 {
        u8::try_from(self.hosts.len()).unwrap()
    }

    /// Returns the address of a host; the controller is number 0.
    pub(crate) fn address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, number + 1)
    }

    /// Returns the address of a host in a network that the controller is not in.
    pub(crate) fn data_address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 97, 0, number + 1)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.stage.path(name)
    }

    fn write_keys(&self) {
        for name in ["host_key", "user_key", "other_key"] {
            let mut keygen = self.stage.command("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.path(name));
            assert!(keygen.stdin(Stdio::null()).status().unwrap().success());
        }
        fs::copy(self.path("user_key.pub"), self.path("authorized_keys")).unwrap();
        let public =
            |name: &str| fs::read_to_string(self.path(name)).unwrap().split(' ').take(2).collect::<Vec<_>>().join(" ");
        self.write("known_hosts", &format!("10.99.0.* {}\n", public("host_key.pub")));
        self.write("known_others", &format!("10.99.0.* {}\n", public("other_key.pub")));
        self.write("known_none", "");
        let config = |known: &str, identity: &str| {
            format!(
                "User root\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\nStrictHostKeyChecking yes\n",
                self.path(identity).display(),
                self.path(known).display()
            )
        };
        self.write("ssh.conf", &config("known_hosts", "user_key"));
        self.write("changed.conf", &config("known_others", "user_key"));
        self.write("unknown.conf", &config("known_none", "user_key"));
        self.write("stranger.conf", &config("known_hosts", "other_key"));
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts an sshd on a host, with further lines of configuration.
    pub(crate) fn start_sshd(&mut self, number: u8, further: &str) {
        // Debian's sshd wants this folder, which its service makes; a second one does no harm.
        fs::create_dir_all("/run/sshd").unwrap();
        let port = if further.is_empty() { 22 } else { 2222 };
        let config = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nListenAddress {}:{port}\n\
             {further}\n",
            self.path("host_key").display(),
            self.path("authorized_keys").display(),
            Self::address(number)
        );
        let config = self.write(&format!("sshd-{number}-{port}.conf"), &config);
        let mut command = Command::new(SSHD);
        command.arg("-D").arg("-f").arg(config).arg("-E").arg(self.path(&format!("sshd-{number}-{port}.log")));
        command.stdin(Stdio::null());
        let server = self.spawn_on(number, command);
        self.hosts[usize::from(number) - 1].servers.push(server);
        self.answers(number, port);
    }

    /// Starts a `fathom serve` on a host, with its key in this file.
    pub(crate) fn start_served(&mut self, number: u8, key_file: &str) {
        let mut command = self.stage.command(self.stage.program());
        command.args(["serve", "--only", "agents", "--key-file", key_file]);
        // Its controllers may also make it send to the other hosts.
        command.args(["--allow", "10.99.0.0/24", "--allow", "10.97.0.0/24"]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let server = self.spawn_on(number, command);
        self.hosts[usize::from(number) - 1].servers.push(server);
        self.answers(number, 7700);
    }

    /// Waits until a port of a host is open.
    fn answers(&self, number: u8, port: u16) {
        let at = (IpAddr::V4(Self::address(number)), port);
        until(|| self.enter(0, || std::net::TcpStream::connect(at).ok()));
    }

    /// Starts a program on a host; it dies with this one.
    pub(crate) fn spawn_on(&self, number: u8, command: Command) -> Child {
        self.enter(number, || {
            ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }.spawn().unwrap()
        })
    }

    /// Runs work in the namespace of a host.
    pub(crate) fn enter<T: Send>(&self, number: u8, work: impl FnOnce() -> T + Send) -> T {
        let net = if number == 0 { &self.controller } else { &self.hosts[usize::from(number) - 1].net };
        net.enter_with(work).unwrap()
    }

    /// Writes an inventory of all hosts, `sut`, `b2`, `b3` and so on, with further lines in `[defaults]` and at the end.
    pub(crate) fn inventory(&self, name: &str, defaults: &str, further: &str) -> PathBuf {
        let program = self.stage.program().display().to_string();
        let program = if defaults.contains("program") { String::new() } else { format!("program = {program:?}\n") };
        let (last, next) = (self.n_hosts(), self.n_hosts() + 1);
        // A head reads the same file, from a folder of its own.
        let config = self.path("ssh.conf").display().to_string();
        let text = format!(
            "[defaults]\nssh_config = {config:?}\n{program}{defaults}\n[hosts.sut]\ncontrol = \"10.99.0.2\"\nroles = [\"sut\"]\n\
             [hosts.\"b[2-{last}]\"]\ncontrol = \"10.99.0.[3-{next}]\"\nroles = [\"companion\"]\n{further}\n"
        );
        self.write(name, &text)
    }

    /// Runs fathom at the controller.
    pub(crate) fn fathom(&self, words: &[&str]) -> ProgramResult {
        self.start(words).ends()
    }

    /// Starts fathom at the controller.
    pub(crate) fn start(&self, words: &[&str]) -> RunningProgram {
        self.enter(0, || self.stage.start(words))
    }

    /// Returns the pids of the agents that run on a host.
    pub(crate) fn agents(&self, number: u8) -> Vec<u32> {
        let net = self.enter(number, || NetNs::current().unwrap());
        let is_there = |pid: u32| {
            NetNs::open(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other.is_same(&net).unwrap_or(false))
        };
        let pids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
        let is_agent = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
            words.len() > 2 && words[0].ends_with(b"fathom") && words[1] == b"agent"
        };
        pids.filter(is_agent).filter(|pid| is_there(*pid)).collect()
    }

    /// Returns how long plain `ssh` takes to run nothing on all hosts at once.
    pub(crate) fn plain_ssh_takes(&self) -> Nanos {
        let begin = clock::now();
        let script = "for host in 2 3 4 5 6 7 8 9 10; do ssh -F ssh.conf -T 10.99.0.$host true & done; wait";
        let mut command = self.stage.command("sh");
        command.args(["-c", script]);
        self.enter(0, || self.stage.spawn(command)).ends().succeeded();
        clock::now() - begin
    }

    /// Waits until a host has an agent, and returns its pid.
    pub(crate) fn agent(&self, number: u8) -> u32 {
        until(|| self.agents(number).pop())
    }

    /// Waits until a host sends the packets of a test: `ssh` alone sends some dozens.
    pub(crate) fn measures(&self, number: u8) {
        const PACKETS_OF_A_TEST: u64 = 2000;
        let n_sent = || {
            let devices = self.enter(number, || fs::read_to_string("/proc/thread-self/net/dev").unwrap());
            let counters = devices.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
            counters.split_whitespace().nth(9).unwrap().parse::<u64>().unwrap()
        };
        let before = n_sent();
        until(|| (n_sent() - before > PACKETS_OF_A_TEST).then_some(()));
    }

    /// Waits until no host has an agent or a copied program, which its shell removes when the connection has ended.
    pub(crate) fn is_clean(&self) {
        let n_agents = || (1..=self.n_hosts()).map(|number| self.agents(number).len()).sum::<usize>();
        until(|| (n_agents() == 0).then_some(()));
        let is_copy = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("fathom-push.");
        let n_copies = || fs::read_dir("/tmp").unwrap().filter(|entry| is_copy(entry.as_ref().unwrap())).count();
        until(|| (n_copies() == 0).then_some(()));
        assert_eq!(self.stage.journals(), [""; 0]);
    }
}

impl Rack {
    /// Makes `ssh` share its connections, with their sockets in a folder that this returns.
    pub(crate) fn shares_connections(&self) -> PathBuf {
        let sockets = self.path("sockets");
        fs::create_dir(&sockets).unwrap();
        let config = fs::read_to_string(self.path("ssh.conf")).unwrap();
        self.write("ssh.conf", &format!("{config}ControlMaster auto\nControlPath {}/%C\n", sockets.display()));
        sockets
    }

    /// Returns the processes in the namespaces of the rack without its servers, by the number of their host.
    pub(crate) fn processes(&self) -> BTreeMap<u8, Vec<u32>> {
        let namespace = |place: &str| fs::metadata(format!("/proc/{place}/ns/net")).map(|file| file.ino()).ok();
        let numbers: BTreeMap<Option<u64>, u8> =
            (0..=self.n_hosts()).map(|number| (self.enter(number, || namespace("thread-self")), number)).collect();
        let servers: Vec<u32> = self.hosts.iter().flat_map(|host| &host.servers).map(Child::id).collect();
        let mut processes: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for pid in pids.filter(|name| name.parse::<u32>().is_ok_and(|pid| !servers.contains(&pid))) {
            if let Some(number) = namespace(&pid).and_then(|found| numbers.get(&Some(found))) {
                processes.entry(*number).or_default().push(pid.parse().unwrap());
            }
        }
        processes
    }

    /// As [`Self::is_clean`], and waits until nothing but the servers runs on a host; no host is held by a run.
    pub(crate) fn is_deserted(&self) {
        self.is_clean();
        until(|| self.processes().is_empty().then_some(()));
        for number in 1..=self.n_hosts() {
            let sockets = self.enter(number, || fs::read_to_string("/proc/thread-self/net/unix").unwrap());
            assert!(!sockets.contains("fathom"), "a run holds host {number}: {sockets}");
        }
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        for server in self.hosts.iter_mut().flat_map(|host| &mut host.servers) {
            // It may have ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Makes a namespace with a wire to the switch.
fn plugged_in(switch: &NetNs, bridge: BridgeIndex, number: u8) -> NetNs {
    let net = NetNs::new().unwrap();
    let port = format!("port{number}");
    let plug = || {
        let mut netlink = Netlink::open().unwrap();
        let veth = Veth {
            near: VethEnd { name: &port, mac: None },
            far: VethEnd { name: "eth0", mac: Some(MacAddress([2, 0, 0, 0, 0, number + 1])) },
            far_namespace: Some(net.as_fd()),
            mtu_bytes: MTU_BYTES,
            n_queues: 1,
        };
        netlink.add_veth(&veth).unwrap();
        let index = netlink.link(&port).unwrap().index;
        netlink.add_port(bridge, index).unwrap();
        netlink.set_up(index).unwrap();
    };
    switch.enter_with(plug).unwrap();
    let set_up = || {
        let mut netlink = Netlink::open().unwrap();
        for name in ["lo", "eth0"] {
            let index = netlink.link(name).unwrap().index;
            netlink.set_up(index).unwrap();
            if name == "eth0" {
                netlink.add_address(index, IpAddr::V4(Rack::address(number)), 24).unwrap();
                if number > 0 {
                    netlink.add_address(index, IpAddr::V4(Rack::data_address(number)), 24).unwrap();
                }
            }
        }
    };
    net.enter_with(set_up).unwrap();
    net
}
