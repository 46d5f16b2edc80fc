//! Faults that can be planted on a host of a lab that is up, each with its undo.
//!
//! A fault is a list of commands (`tc`, `nft`, `ip`) and kernel settings of the host's own namespace, of programs that a guard runs there,
//! and of limits for the programs that are started there; few change a setting of the whole machine. It ends with the lab at the latest: its
//! undo is kept in a file of the state folder until it is removed, and what a namespace does not take along is undone by the holder, or after
//! it by `lab down --stale`.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use fathom_model::units::Bytes;
use fathom_sys::process::{ParentBond, confinement::Confinement};
use serde::{Deserialize, Serialize};

use crate::{
    Entry, Error, Host, Lab, LabName, Result, StateFolder,
    control_group::{self, GroupLimit},
    guard::{GuardOrder, WaitingGuard},
    journal::undo_entry,
};

/// A fault that can be planted.
#[derive(Debug)]
pub struct Fault {
    /// The name, such as `shaper`.
    pub name: &'static str,
    /// The effect in a few words.
    pub about: &'static str,
    /// The values that can be changed, with their defaults.
    pub values: &'static [(&'static str, &'static str)],
    steps: &'static [FaultStep],
}

#[derive(Debug)]
enum FaultStep {
    /// A command with its undo; an empty undo is left to a later step.
    Run(&'static str, &'static str),
    /// A setting below `/proc/sys` in dotted form, with its value.
    Set(&'static str, &'static str),
    /// The same of the whole machine, which no namespace has for itself.
    SetOnMachine(&'static str, &'static str),
    /// The most connections that a network namespace of the machine tracks, where none tracks any yet: the limit is that of all.
    TrackedMax(&'static str),
    /// A command that a guard runs several times, on one core unless that is empty.
    Hold { command: &'static str, n_copies: &'static str, core: &'static str },
    /// The only core of the programs that are started on the host.
    Core(&'static str),
    /// The number of descriptors that each of them may have open.
    Descriptors(&'static str),
    /// The number of cores that they may use together, by the quota of a control group.
    Quota(&'static str),
    /// The mebibytes of memory that they may use together, by the limit of a control group, in which the programs of a later step are too.
    Memory(&'static str),
}

use FaultStep::{Core, Descriptors, Hold, Memory, Quota, Run, Set, SetOnMachine, TrackedMax};

/// A program that never waits.
const SPIN: &str = "sh -c 'while :; do :; done'";
/// A program that wants more memory than its group may have, and is started again after it was killed. Each ends by itself, also outside the group.
const GREEDY: &str = "sh -c 'while :; do head -c 256M /dev/zero | tail -c 256M > /dev/null; sleep 0.2; done'";
/// The most programs that a fault runs at once.
const COPIES_MAX: u32 = 64;

/// Makes a table for the rules of one fault, with a chain for what arrives.
const TABLE: FaultStep = Run("nft add table inet fathom-{fault}", "nft delete table inet fathom-{fault}");
const INPUT: FaultStep = Run("nft 'add chain inet fathom-{fault} input { type filter hook input priority 0; }'", "");
/// The same for what arrives at the test's interface, before any counter of the host's IP: so a path loses packets.
const EARLY_TABLE: FaultStep = Run("nft add table netdev fathom-{fault}", "nft delete table netdev fathom-{fault}");
const INGRESS: FaultStep = Run(
    "nft 'add chain netdev fathom-{fault} ingress { type filter hook ingress device {interface} priority 0; }'",
    "",
);
/// Has an interface that goes down keep its addresses of IPv6, which it loses otherwise.
const KEEP_ADDRESSES: FaultStep = Set("net.ipv6.conf.{interface}.keep_addr_on_down", "1");
/// A chain for what leaves the host.
const OUTPUT: FaultStep = Run("nft 'add chain inet fathom-{fault} output { type filter hook output priority 0; }'", "");
/// A chain for what arrives, before the kernel puts fragments together.
const RAW: FaultStep =
    Run("nft 'add chain inet fathom-{fault} raw { type filter hook prerouting priority -450; }'", "");

/// All faults.
pub const FAULTS: &[Fault] = &[
    Fault {
        name: "shaper",
        about: "tbf limits what leaves the host",
        values: &[("rate", "100mbit"), ("latency", "50ms")],
        steps: &[Run(
            "tc qdisc replace dev {interface} root tbf rate {rate} burst 64k latency {latency}",
            "tc qdisc del dev {interface} root",
        )],
    },
    Fault {
        name: "htb",
        about: "a class of htb limits what leaves the host",
        values: &[("rate", "100mbit")],
        steps: &[
            Run("tc qdisc replace dev {interface} root handle 1: htb default 1", "tc qdisc del dev {interface} root"),
            Run("tc class add dev {interface} parent 1: classid 1:1 htb rate {rate}", ""),
        ],
    },
    Fault {
        name: "netem",
        about: "netem delays, drops, duplicates, corrupts or reorders packets that leave the host",
        values: &[
            ("delay", "0ms"),
            ("jitter", "0ms"),
            ("loss", "2"),
            ("duplicate", "0"),
            ("corrupt", "0"),
            ("reorder", "0"),
        ],
        steps: &[Run(
            "tc qdisc replace dev {interface} root netem limit 100000 delay {delay} {jitter} loss {loss} duplicate {duplicate} corrupt {corrupt} reorder {reorder}",
            "tc qdisc del dev {interface} root",
        )],
    },
    Fault {
        name: "policer",
        about: "drops what arrives above a rate, uncounted, as on the way",
        values: &[("rate", "6250")],
        steps: &[
            EARLY_TABLE,
            INGRESS,
            Run(
                "nft add rule netdev fathom-{fault} ingress meta l4proto { tcp, udp } limit rate over {rate} kbytes/second drop",
                "",
            ),
        ],
    },
    Fault {
        name: "loss",
        about: "drops a share of the packets that arrive, uncounted, as on the way",
        values: &[("permille", "20")],
        steps: &[
            EARLY_TABLE,
            INGRESS,
            Run(
                "nft add rule netdev fathom-{fault} ingress meta protocol { ip, ip6 } numgen random mod 1000 < {permille} drop",
                "",
            ),
        ],
    },
    Fault {
        name: "firewall",
        about: "a firewall rule with a counter drops a share of what arrives",
        values: &[("permille", "20")],
        steps: &[
            TABLE,
            INPUT,
            Run("nft add rule inet fathom-{fault} input numgen random mod 1000 < {permille} counter drop", ""),
        ],
    },
    Fault {
        name: "silent-firewall",
        about: "a firewall rule without a counter drops a share of what arrives",
        values: &[("permille", "20")],
        steps: &[
            TABLE,
            INPUT,
            Run("nft add rule inet fathom-{fault} input numgen random mod 1000 < {permille} drop", ""),
        ],
    },
    Fault {
        name: "conntrack",
        about: "the host tracks connections, and the table has room for only a few",
        values: &[("entries", "50")],
        steps: &[
            TABLE,
            INPUT,
            Run("nft add rule inet fathom-{fault} input ct state new accept", ""),
            TrackedMax("{entries}"),
        ],
    },
    Fault {
        name: "resets",
        about: "answers a share of the TCP segments that arrive with a reset",
        values: &[("permille", "5")],
        steps: &[
            TABLE,
            INPUT,
            Run(
                "nft add rule inet fathom-{fault} input meta l4proto tcp numgen random mod 1000 < {permille} reject with tcp reset",
                "",
            ),
        ],
    },
    Fault {
        name: "syn-loss",
        about: "drops a share of the SYNs that arrive, uncounted, as on the way",
        values: &[("permille", "200")],
        steps: &[
            EARLY_TABLE,
            INGRESS,
            Run(
                "nft add rule netdev fathom-{fault} ingress 'tcp flags & (syn | ack) == syn' numgen random mod 1000 < {permille} drop",
                "",
            ),
        ],
    },
    Fault {
        name: "mtu-hole",
        about: "drops packets above a size without a word, as on the way",
        values: &[("bytes", "1400")],
        steps: &[
            EARLY_TABLE,
            INGRESS,
            Run("nft add rule netdev fathom-{fault} ingress meta length > {bytes} drop", ""),
        ],
    },
    Fault {
        name: "fragment-filter",
        about: "drops fragments that arrive or pass, uncounted",
        values: &[],
        steps: &[
            TABLE,
            RAW,
            Run("nft add rule inet fathom-{fault} raw 'ip frag-off & 0x3fff != 0' drop", ""),
            Run("nft add rule inet fathom-{fault} raw exthdr frag exists drop", ""),
        ],
    },
    Fault {
        name: "fragment-loss",
        about: "drops a share of the fragments that arrive, uncounted, and waits for the rest for a second",
        values: &[("permille", "20")],
        steps: &[
            TABLE,
            RAW,
            Run(
                "nft add rule inet fathom-{fault} raw 'ip frag-off & 0x3fff != 0' numgen random mod 1000 < {permille} drop",
                "",
            ),
            Set("net.ipv4.ipfrag_time", "1"),
        ],
    },
    Fault {
        name: "ttl",
        about: "packets leave the host with a small TTL (hop limit)",
        values: &[("hops", "1")],
        steps: &[
            TABLE,
            OUTPUT,
            Run("nft add rule inet fathom-{fault} output ip ttl set {hops}", ""),
            Run("nft add rule inet fathom-{fault} output ip6 hoplimit set {hops}", ""),
        ],
    },
    Fault {
        name: "ecn-marks",
        about: "marks a share of the TCP segments that leave the host as \"congestion experienced\" (ECN)",
        values: &[("permille", "20")],
        steps: &[
            TABLE,
            OUTPUT,
            Run(
                "nft add rule inet fathom-{fault} output 'ip ecn { ect0, ect1 }' numgen random mod 1000 < {permille} ip ecn set ce",
                "",
            ),
            Set("net.ipv4.tcp_ecn", "1"),
        ],
    },
    Fault {
        name: "prohibited",
        about: "a router refuses to forward UDP (ICMP: administratively prohibited)",
        values: &[],
        steps: &[
            TABLE,
            Run("nft 'add chain inet fathom-{fault} forward { type filter hook forward priority 0; }'", ""),
            Run("nft add rule inet fathom-{fault} forward meta l4proto udp reject with icmpx admin-prohibited", ""),
        ],
    },
    Fault {
        name: "no-neighbor",
        about: "ARP requests of the host get no answer",
        values: &[],
        steps: &[
            Run("nft add table arp fathom-{fault}", "nft delete table arp fathom-{fault}"),
            Run("nft 'add chain arp fathom-{fault} output { type filter hook output priority 0; policy drop; }'", ""),
            // The lab made it permanent. Without the fault, ARP finds the address again.
            Run("ip neigh del {peer} dev {interface}", ""),
        ],
    },
    Fault {
        name: "other-mac",
        about: "the host sends to another Ethernet address than that of the other one",
        values: &[],
        steps: &[
            // The lab made the right one permanent. Without the fault, ARP finds it again.
            Run(
                "ip neigh replace {peer} lladdr 02:00:00:00:00:99 dev {interface} nud permanent",
                "ip neigh del {peer} dev {interface}",
            ),
        ],
    },
    Fault {
        name: "neighbor-flap",
        about: "the host's neighbor entry of the other one alternates between the right and a wrong Ethernet address",
        values: &[("right", "0.4"), ("wrong", "0.1")],
        steps: &[
            // The guard ends first, and may leave the wrong address.
            Run(
                "ip neigh replace {peer} lladdr 02:00:00:00:00:99 dev {interface} nud permanent",
                "ip neigh flush to {peer} dev {interface} nud all",
            ),
            // What was deleted is found again by ARP.
            Hold {
                command: "sh -c 'while :; do ip neigh del {peer} dev {interface}; sleep {right}; ip neigh replace {peer} lladdr 02:00:00:00:00:99 dev {interface} nud permanent; sleep {wrong}; done'",
                n_copies: "1",
                core: "",
            },
        ],
    },
    Fault {
        name: "closed-port",
        about: "refuses what arrives over UDP, as if nobody listened",
        values: &[],
        steps: &[
            TABLE,
            INPUT,
            Run("nft add rule inet fathom-{fault} input meta l4proto udp reject with icmpx port-unreachable", ""),
        ],
    },
    Fault {
        name: "reverse-path",
        about: "the way back to the other hosts is another interface, with strict rp_filter",
        values: &[],
        steps: &[
            Run("ip link add fault0 type veth peer name fault1", "ip link del fault0"),
            Run("ip link set fault0 up", ""),
            Run("ip link set fault1 up", ""),
            Run("ip route replace {peer} dev fault0", ""),
            Set("net.ipv4.conf.all.rp_filter", "1"),
            Set("net.ipv4.conf.{interface}.rp_filter", "1"),
        ],
    },
    Fault {
        name: "no-route",
        about: "packets to the other host have no route",
        values: &[],
        steps: &[Run("ip route add unreachable {peer}", "ip route del unreachable {peer}")],
    },
    Fault {
        name: "link-down",
        about: "the interface is down",
        values: &[],
        steps: &[KEEP_ADDRESSES, Run("ip link set {interface} down", "ip link set {interface} up")],
    },
    Fault {
        name: "link-flap",
        about: "the interface goes down again and again",
        values: &[("up", "0.6"), ("down", "0.15")],
        steps: &[
            KEEP_ADDRESSES,
            // The guard ends first, and may leave it down.
            Run("ip link set {interface} up", "ip link set {interface} up"),
            Hold {
                command: "sh -c 'while :; do sleep {up}; ip link set {interface} down; sleep {down}; ip link set {interface} up; done'",
                n_copies: "1",
                core: "",
            },
        ],
    },
    Fault {
        name: "small-mtu",
        about: "the interface takes smaller packets than that of the other host",
        values: &[("bytes", "1300")],
        steps: &[Run("ip link set {interface} mtu {bytes}", "ip link set {interface} mtu {mtu}")],
    },
    Fault {
        name: "no-offload",
        about: "the interface sends TCP segments one by one (no TSO, no GSO)",
        values: &[],
        steps: &[Run("ethtool -K {interface} tso off gso off", "ethtool -K {interface} tso on gso on")],
    },
    Fault {
        name: "receive-window",
        about: "TCP sockets have a tiny receive buffer",
        values: &[("bytes", "8192")],
        steps: &[Set("net.ipv4.tcp_rmem", "4096 {bytes} {bytes}")],
    },
    Fault {
        name: "send-buffer",
        about: "TCP sockets have a tiny send buffer",
        values: &[("bytes", "16384")],
        steps: &[Set("net.ipv4.tcp_wmem", "4096 {bytes} {bytes}")],
    },
    Fault {
        name: "tcp-memory",
        about: "all TCP sockets of the machine together have hardly any memory for their buffers",
        values: &[("pages", "64")],
        // Above the third number the kernel refuses memory, which would end connections of others.
        steps: &[SetOnMachine("net.ipv4.tcp_mem", "{pages} {pages} 4000000")],
    },
    Fault {
        name: "backlog",
        about: "one core takes all that arrives (RPS), from a very short queue",
        values: &[("core", "1"), ("packets", "1")],
        steps: &[
            Run(
                "unshare --mount sh -c 'mount -t sysfs none /sys && ls /sys/devices/system/cpu/cpu{core} > /dev/null && printf %x $((1 << {core})) > /sys/class/net/{interface}/queues/rx-0/rps_cpus'",
                "unshare --mount sh -c 'mount -t sysfs none /sys && echo 0 > /sys/class/net/{interface}/queues/rx-0/rps_cpus'",
            ),
            SetOnMachine("net.core.netdev_max_backlog", "{packets}"),
        ],
    },
    Fault {
        name: "no-window-scaling",
        about: "TCP connections of the host do not scale their windows: 64 KiB at most",
        values: &[],
        steps: &[Set("net.ipv4.tcp_window_scaling", "0")],
    },
    Fault {
        name: "syn-cookies",
        about: "servers answer every SYN with a SYN cookie, and TCP timestamps are off, so its options are lost",
        values: &[],
        steps: &[Set("net.ipv4.tcp_syncookies", "2"), Set("net.ipv4.tcp_timestamps", "0")],
    },
    Fault {
        name: "asymmetric-route",
        about: "packets to an address leave by another wire than the one its answers arrive on (needs --direct-wire)",
        values: &[("wire", "eth1"), ("to", "198.18.1.1")],
        steps: &[Run("ip route add {to} dev {wire}", "ip route del {to} dev {wire}")],
    },
    Fault {
        name: "listen-queue",
        about: "the accept queues of servers hold hardly anything",
        values: &[("length", "1")],
        steps: &[Set("net.core.somaxconn", "{length}")],
    },
    Fault {
        name: "ports",
        about: "few local ports are left for connections",
        values: &[("range", "50000 50050")],
        steps: &[Set("net.ipv4.ip_local_port_range", "{range}")],
    },
    Fault {
        name: "time-wait",
        about: "few connections may be in TIME-WAIT",
        values: &[("buckets", "10")],
        steps: &[Set("net.ipv4.tcp_max_tw_buckets", "{buckets}")],
    },
    Fault {
        name: "busy",
        about: "programs that never wait, on all cores of the machine",
        values: &[("programs", "2")],
        steps: &[Hold { command: SPIN, n_copies: "{programs}", core: "" }],
    },
    Fault {
        name: "busy-core",
        about: "programs that never wait, on one core of the machine",
        values: &[("core", "0"), ("programs", "1")],
        steps: &[Hold { command: SPIN, n_copies: "{programs}", core: "{core}" }],
    },
    Fault {
        name: "pinned",
        about: "programs that start on the host may use one core",
        values: &[("core", "0")],
        steps: &[Core("{core}")],
    },
    Fault {
        name: "quota",
        about: "programs that start on the host share a CPU quota",
        values: &[("cores", "0.3")],
        steps: &[Quota("{cores}")],
    },
    Fault {
        name: "memory",
        about: "programs that start on the host share little memory, and one of them is killed again and again because it ran out",
        values: &[("mebibytes", "64")],
        steps: &[Memory("{mebibytes}"), Hold { command: GREEDY, n_copies: "1", core: "" }],
    },
    Fault {
        name: "descriptors",
        about: "programs that start on the host may open few descriptors",
        values: &[("count", "64")],
        steps: &[Descriptors("{count}")],
    },
    Fault {
        name: "duplicate-address",
        about: "the host has the address of the other one too",
        values: &[],
        steps: &[Run("ip address add {peer}/32 dev lo", "ip address del {peer}/32 dev lo")],
    },
];

/// A fault that was planted, as kept in the state folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlantedFault {
    /// The name of the fault.
    pub fault: String,
    /// The host that it was planted on.
    pub host: LabName,
    /// The values that it was planted with.
    pub values: BTreeMap<String, String>,
    /// The commands that undo it, in their order.
    pub undo: Vec<String>,
    /// What the namespaces of the lab do not take along: the guard, the control group and settings of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Entry>,
    /// The descriptors that each of them may have open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<u64>,
}

impl Fault {
    /// Returns the fault with this name.
    ///
    /// # Errors
    /// [`Error::BadFault`] with the existing names.
    pub fn find(name: &str) -> Result<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name).ok_or_else(|| Error::BadFault {
            given: name.to_owned(),
            why: "it does not exist".to_owned(),
            known: FAULTS.iter().map(|fault| fault.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// Returns the defaults with the given values in their places, each in the form `name=value`.
    ///
    /// # Errors
    /// [`Error::BadFault`] for a value that the fault does not have.
    pub fn values_of<'a>(&self, given: impl Iterator<Item = &'a str>) -> Result<BTreeMap<String, String>> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut values: BTreeMap<String, String> = self.values.iter().map(owned).collect();
        for text in given {
            let pair = text.split_once('=').and_then(|(name, value)| Some((values.get_mut(name)?, value)));
            let Some((place, value)) = pair.filter(|(_, value)| is_plain(value)) else {
                let why = format!("`{text}` is not one of its values");
                return Err(Error::BadFault { given: self.name.to_owned(), why, known: self.defaults() });
            };
            value.clone_into(place);
        }
        Ok(values)
    }

    /// Its values with their defaults, for hints.
    fn defaults(&self) -> String {
        let all: Vec<_> = self.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if all.is_empty() { "it has no values".to_owned() } else { all.join(", ") }
    }
}

/// A value must not bring words of its own into a command.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || "._ -".contains(c))
}

/// Plants a fault on a host of a lab and returns the commands that were run.
///
/// `guard_program` is this program in the role that calls [`crate::guard::run`].
///
/// # Errors
/// [`Error::BadFault`] if it was planted before, or for a value that is no number where one is needed; [`Error::FaultCommand`] for a command that fails, after what was done before it is undone.
pub fn plant(
    place: &FaultPlace<'_>,
    fault: &Fault,
    values: &BTreeMap<String, String>,
    guard_program: Command,
) -> Result<Vec<String>> {
    let host = place.lab.host(place.host)?;
    let file = place.file(fault.name);
    if file.exists() {
        let known = format!("fathom lab fault remove {} {}", place.name, fault.name);
        return Err(Error::BadFault { given: fault.name.to_owned(), why: "it is planted already".to_owned(), known });
    }
    let words = place.words(fault.name, values)?;
    let mut planted = PlantedFault {
        fault: fault.name.to_owned(),
        host: host.name().clone(),
        values: values.clone(),
        undo: Vec::new(),
        left: Vec::new(),
        descriptors: None,
    };
    let mut planting = Planting { place, host, fault, words, file: &file, guard_program: Some(guard_program) };
    let mut done = Vec::new();
    for step in fault.steps {
        // The undo is on disk before the next step, so that a killed program leaves a way back.
        let outcome = planting.take(step, &mut planted).and_then(|command| planted.keep(&file).map(|()| command));
        match outcome {
            Ok(command) => done.push(command),
            Err(error) => {
                let _ = undo_left(&planted);
                let _ = planted.undo.iter().rev().try_for_each(|command| run(host, command).map(drop));
                let _ = fs::remove_file(&file);
                return Err(error);
            }
        }
    }
    Ok(done)
}

/// A fault that is being planted.
struct Planting<'a> {
    place: &'a FaultPlace<'a>,
    host: &'a Host,
    fault: &'a Fault,
    words: BTreeMap<String, String>,
    file: &'a Path,
    /// Taken by the one step that needs it.
    guard_program: Option<Command>,
}

impl Planting<'_> {
    /// Takes one step, adds its undo, and returns the command as people would write it.
    fn take(&mut self, step: &FaultStep, planted: &mut PlantedFault) -> Result<String> {
        match step {
            Run(command, back) => {
                let command = filled(command, &self.words);
                run(self.host, &command)?;
                if !back.is_empty() {
                    planted.undo.push(filled(back, &self.words));
                }
                Ok(command)
            }
            Set(setting, value) => {
                let setting = filled(setting, &self.words);
                let old = run(self.host, &format!("sysctl -n {setting}"))?;
                let set = |value: &str| format!("sysctl -q -w '{setting}={value}'");
                let command = set(&filled(value, &self.words));
                run(self.host, &command)?;
                planted.undo.push(set(&old.split_whitespace().collect::<Vec<_>>().join(" ")));
                Ok(command)
            }
            SetOnMachine(setting, value) => self.set_on_machine(setting, value, planted),
            TrackedMax(entries) => self.limit_tracking(entries, planted),
            Hold { command, n_copies, core } => self.hold(command, n_copies, core, planted),
            Core(core) => {
                let limit = GroupLimit::Core(self.number::<usize>(core, |_| true)?);
                self.make_group(limit, planted)
            }
            Descriptors(count) => {
                // Fewer than 16 would not even let a program load its libraries.
                let count = self.number::<u64>(count, |count| *count >= 16)?;
                planted.descriptors = Some(count);
                self.try_limits(Confinement { descriptors: Some(count), ..Confinement::default() })?;
                Ok(format!("prlimit --nofile={count} PROGRAM"))
            }
            Quota(cores) => {
                let limit = GroupLimit::Quota(self.number::<f64>(cores, |cores| (0.01..=1024.0).contains(cores))?);
                self.make_group(limit, planted)
            }
            Memory(mebibytes) => {
                // Below this an agent itself would be killed; above it the limit is no longer tight for the greedy program.
                let n = self.number::<u64>(mebibytes, |n| (32..=128).contains(n))?;
                self.make_group(GroupLimit::Memory(Bytes(n << 20)), planted)
            }
        }
    }

    /// Changes a setting of the machine, unless a fault on another host did: the last undo of two would bring the first fault back.
    fn set_on_machine(&self, setting: &str, value: &str, planted: &mut PlantedFault) -> Result<String> {
        let files = fault_files(self.place.state)?;
        let mut others = files.iter().filter(|file| *file != self.file).filter_map(|file| read(file));
        if let Some(other) = others.find(|other| other.fault == planted.fault) {
            let why = format!("it is planted on {} already, for the whole machine", other.host);
            let known = format!("{} on {}, which has to be removed first", other.fault, other.host);
            return Err(Error::BadFault { given: other.fault, why, known });
        }
        let path = Path::new("/proc/sys").join(setting.replace('.', "/"));
        let old = fs::read_to_string(&path).map_err(Error::file("read the setting", &path))?;
        planted.left.push(Entry::Sysctl { path: path.clone(), old: old.trim_end().to_owned() });
        planted.keep(self.file)?;
        let value = filled(value, &self.words);
        let command = format!("sysctl -q -w '{setting}={value}'");
        match fs::write(&path, &value) {
            Ok(()) => Ok(command),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(Error::FaultCommand { command, why: format!("{error}: settings of the machine need root") })
            }
            Err(error) => Err(Error::FaultCommand { command, why: error.to_string() }),
        }
    }

    /// Sets the size of the table of connections, unless a network namespace tracks some already: it would lose new ones.
    fn limit_tracking(&self, entries: &str, planted: &mut PlantedFault) -> Result<String> {
        // The kernel takes 0 for no limit.
        self.number::<u64>(entries, |n| *n > 0)?;
        let n = tracked_connections();
        if n > 0 {
            let why = format!(
                "the limit is that of the machine, which tracks connections already (up to {n} in a namespace)"
            );
            let known = "the other faults; or a machine without connection tracking".to_owned();
            return Err(Error::BadFault { given: self.fault.name.to_owned(), why, known });
        }
        self.set_on_machine("net.netfilter.nf_conntrack_max", entries, planted)
    }

    /// Keeps how to remove a control group, and makes it.
    fn make_group(&self, limit: GroupLimit, planted: &mut PlantedFault) -> Result<String> {
        let folder = limit.folder(&format!("{}-{}-{}", self.place.name, planted.host, planted.fault));
        planted.left.push(Entry::ControlGroup(folder.clone()));
        planted.keep(self.file)?;
        control_group::make(&folder, limit)?;
        self.try_limits(Confinement { groups: vec![folder.clone()], ..Confinement::default() })?;
        Ok(format!("echo 0 > {}/cgroup.procs; PROGRAM", folder.display()))
    }

    /// Starts a guard, keeps how to end it, and only then lets it start the programs.
    fn hold(&mut self, command: &str, n_copies: &str, core: &str, planted: &mut PlantedFault) -> Result<String> {
        let n_copies = self.number::<u32>(n_copies, |n| (1..=COPIES_MAX).contains(n))?;
        let core = if core.is_empty() { None } else { Some(self.number::<usize>(core, |_| true)?) };
        let command = filled(command, &self.words);
        let words = shlex::split(&command).expect("the commands of faults are well-formed");
        let order = GuardOrder { holder: self.place.lab.holder()?, command: words, n_copies, core };
        let program = self.guard_program.take().expect("a fault has one guard at most");
        let guard = WaitingGuard::start(self.host, program, &order, planted.confinement())?;
        planted.left.push(Entry::Process(guard.identity));
        planted.keep(self.file)?;
        guard.release(&command)?;
        let on_core = core.map_or_else(String::new, |core| format!("taskset --cpu-list {core} "));
        Ok(format!("{on_core}{command} &    # {n_copies} times"))
    }

    /// Starts a program under these limits, so that a wrong one is refused when the fault is planted.
    fn try_limits(&self, limits: Confinement) -> Result<()> {
        let mut program = Command::new("true");
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = self.host.start_under(limits, program, ParentBond::DiesWithParent)?;
        child.wait().map(drop).map_err(Error::file("wait for", "true"))
    }

    /// Reads the number that stands in the place of a word.
    fn number<T: std::str::FromStr>(&self, word: &str, is_allowed: impl Fn(&T) -> bool) -> Result<T> {
        let text = filled(word, &self.words);
        text.parse().ok().filter(is_allowed).ok_or_else(|| {
            let why = format!("`{text}` is not a number that {} can have", word.trim_matches(['{', '}']));
            Error::BadFault { given: self.fault.name.to_owned(), why, known: self.fault.defaults() }
        })
    }
}

impl PlantedFault {
    /// Returns its limits for the programs that are started on its host.
    fn confinement(&self) -> Confinement {
        let groups = self.left.iter().filter_map(|entry| match entry {
            Entry::ControlGroup(folder) => Some(folder.clone()),
            _ => None,
        });
        Confinement { descriptors: self.descriptors, groups: groups.collect() }
    }
}

/// Undoes what the namespaces of the lab do not take along.
fn undo_left(planted: &PlantedFault) -> Result<()> {
    planted.left.iter().rev().map(undo_entry).fold(Ok(()), Result::and)
}

/// Returns what limits the programs that are started on a host with these faults; the last one of a kind wins.
pub(crate) fn confinement_of(planted: &[PlantedFault], host: &LabName) -> Confinement {
    let mut all = Confinement::default();
    for fault in planted.iter().filter(|fault| fault.host == *host) {
        let limits = fault.confinement();
        all.descriptors = limits.descriptors.or(all.descriptors);
        all.groups.extend(limits.groups);
    }
    all
}

/// Removes a planted fault from a host, or from each host that has it, and returns the commands that were run.
///
/// # Errors
/// [`Error::BadFault`] if it is not planted there; [`Error::FaultCommand`] for the first command that fails, after all others were run.
pub fn remove(state: &StateFolder, name: &LabName, lab: &Lab, fault: &str, only: Option<&str>) -> Result<Vec<String>> {
    let all = planted(state, name)?;
    let is_meant =
        |planted: &&PlantedFault| planted.fault == fault && only.is_none_or(|host| planted.host.as_str() == host);
    let mut done = Vec::new();
    let mut first_error = None;
    for planted in all.iter().filter(is_meant) {
        let host = lab.host(planted.host.as_str())?;
        // Programs end first: they may do again what the commands undo.
        if let Err(error) = undo_left(planted) {
            first_error.get_or_insert(error);
        }
        for command in planted.undo.iter().rev() {
            done.push(command.clone());
            if let Err(error) = run(host, command) {
                first_error.get_or_insert(error);
            }
        }
        let file = file_of(state, name, planted.host.as_str(), fault);
        fs::remove_file(&file).map_err(Error::file("remove", &file))?;
    }
    if !all.iter().any(|planted| is_meant(&planted)) {
        let planted: Vec<String> =
            all.into_iter().map(|planted| format!("{} on {}", planted.fault, planted.host)).collect();
        let known = if planted.is_empty() { "no fault is planted".to_owned() } else { planted.join(", ") };
        return Err(Error::BadFault { given: fault.to_owned(), why: "it is not planted here".to_owned(), known });
    }
    first_error.map_or(Ok(done), Err)
}

/// Returns the faults that are planted in a lab.
///
/// # Errors
/// If the state folder cannot be read.
pub fn planted(state: &StateFolder, lab: &LabName) -> Result<Vec<PlantedFault>> {
    Ok(files_of(state, lab)?.iter().filter_map(|file| read(file)).collect())
}

/// Forgets the faults of a lab that ends or is gone: all but processes, control groups and settings of the machine end with its namespaces.
///
/// # Errors
/// The first of those that could not be undone; its file stays, for another attempt.
pub(crate) fn forget(state: &StateFolder, lab: &LabName) -> Result<()> {
    let mut outcome = Ok(());
    for file in files_of(state, lab).unwrap_or_default() {
        match read(&file).map_or(Ok(()), |planted| undo_left(&planted)) {
            Ok(()) => drop(fs::remove_file(file)),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

/// A host of a lab that is up.
#[derive(Debug)]
pub struct FaultPlace<'a> {
    /// The folder of the planted faults.
    pub state: &'a StateFolder,
    /// The name of the lab.
    pub name: &'a LabName,
    /// The lab.
    pub lab: &'a Lab,
    /// The host.
    pub host: &'a str,
}

impl FaultPlace<'_> {
    fn file(&self, fault: &str) -> PathBuf {
        file_of(self.state, self.name, self.host, fault)
    }

    /// Returns the words that stand in commands: the given values, the interface of the host with its MTU, and the other host.
    fn words(&self, fault: &str, values: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
        let host = self.lab.host(self.host)?;
        let peer = self.lab.hosts().iter().find(|other| other.name() != host.name());
        let mut words = values.clone();
        words.insert("fault".to_owned(), fault.to_owned());
        if let Some(first) = host.interfaces().first() {
            words.insert("interface".to_owned(), first.name.clone());
            words.insert("mtu".to_owned(), first.mtu.0.to_string());
        }
        words.extend(peer.map(|peer| ("peer".to_owned(), peer.address().to_string())));
        Ok(words)
    }
}

impl PlantedFault {
    fn keep(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("a fault is plain data");
        fs::write(file, text).map_err(Error::file("write", file))
    }
}

fn file_of(state: &StateFolder, lab: &LabName, host: &str, fault: &str) -> PathBuf {
    state.path().join(format!("{}{host}+{fault}.fault", prefix_of(lab)))
}

fn prefix_of(lab: &LabName) -> String {
    format!("{lab}+")
}

fn files_of(state: &StateFolder, lab: &LabName) -> Result<Vec<PathBuf>> {
    let prefix = prefix_of(lab);
    let is_of_lab =
        |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
    let mut files = fault_files(state)?;
    files.retain(is_of_lab);
    Ok(files)
}

/// Returns the files of the faults of all labs.
fn fault_files(state: &StateFolder) -> Result<Vec<PathBuf>> {
    let folder = fs::read_dir(state.path()).map_err(Error::file("list", state.path()))?;
    let is_fault = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "fault");
    let mut files: Vec<PathBuf> = folder.filter_map(|file| Some(file.ok()?.path())).filter(is_fault).collect();
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Option<PlantedFault> {
    serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
}

/// Returns the most connections that a network namespace with a program tracks (`entries` of `/proc/PID/net/stat/nf_conntrack`, hexadecimal).
fn tracked_connections() -> u64 {
    let Ok(programs) = fs::read_dir("/proc") else { return 0 };
    let entries = |text: String| u64::from_str_radix(text.lines().nth(1)?.split_whitespace().next()?, 16).ok();
    let tables =
        programs.filter_map(|program| fs::read_to_string(program.ok()?.path().join("net/stat/nf_conntrack")).ok());
    tables.filter_map(entries).max().unwrap_or(0)
}

/// Replaces each `{name}` by its word; other braces stay.
fn filled(text: &str, words: &BTreeMap<String, String>) -> String {
    words.iter().fold(text.to_owned(), |text, (name, word)| text.replace(&format!("{{{name}}}"), word))
}

/// Runs a command on a host and returns its output.
fn run(host: &Host, command: &str) -> Result<String> {
    let failed = |why: String| Error::FaultCommand { command: command.to_owned(), why };
    let words = shlex::split(command).expect("the commands of faults are well-formed");
    let mut program = Command::new(&words[0]);
    program.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = host.start_unconfined(program)?;
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let mut why = String::new();
        let _ = output.stderr.as_slice().read_to_string(&mut why);
        return Err(failed(why.trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_name_of_its_own_and_words_for_all_its_places() {
        let mut names: Vec<&str> = FAULTS.iter().map(|fault| fault.name).collect();
        names.sort_unstable();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        for fault in FAULTS {
            let mut words = fault.values_of(std::iter::empty()).unwrap();
            for place in ["fault", "interface", "mtu", "peer"] {
                words.insert(place.to_owned(), "x".to_owned());
            }
            for step in fault.steps {
                let texts: Vec<&str> = match step {
                    Run(command, undo) => vec![command, undo],
                    Set(setting, value) | SetOnMachine(setting, value) => vec![setting, value],
                    Hold { command, n_copies, core } => vec![command, n_copies, core],
                    Core(word) | Descriptors(word) | Quota(word) | Memory(word) | TrackedMax(word) => vec![word],
                };
                for text in texts {
                    let text = filled(text, &words);
                    let is_left = |rest: &str| rest.starts_with(|c: char| c.is_ascii_lowercase());
                    let n_left = text.split('{').skip(1).filter(|rest| is_left(rest)).count();
                    assert!(shlex::split(&text).is_some() && n_left == 0, "{}: {text}", fault.name);
                }
            }
        }
    }

    #[test]
    fn a_value_is_taken_by_its_name_and_brings_no_words_of_its_own() {
        let shaper = Fault::find("shaper").unwrap();
        let values = shaper.values_of(["rate=1gbit"].into_iter()).unwrap();
        assert_eq!((values["rate"].as_str(), values["latency"].as_str()), ("1gbit", "50ms"));
        for wrong in ["speed=1", "rate", "rate=", "rate=1'; reboot"] {
            let error = shaper.values_of([wrong].into_iter()).unwrap_err();
            assert!(matches!(error, Error::BadFault { .. }), "{wrong}: {error}");
        }
        assert!(matches!(Fault::find("gremlin"), Err(Error::BadFault { .. })));
    }
}
