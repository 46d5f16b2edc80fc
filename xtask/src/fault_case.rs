//! Planted faults, the test that suffers from them, and the findings that name them.

/// What stands for an error before the start, such as a missing route.
pub(crate) const PREFLIGHT: &str = "an error before the start";
/// The finding of a fault that leaves the test one core.
const CORE: &[&str] = &["core-saturated"];
/// The finding of a server that uses one core and could use no more.
const SERVER_CORE: &[&str] = &["server-saturated"];
/// Findings of faults that take CPU from a test which uses all that it gets.
const TAKES_CPU: [&[&str]; 2] = [&["cpu-quota"], &["segmentation-off"]];
/// What the options of a test make of it.
pub(crate) const BUFFER: &str = "small buffer";
pub(crate) const SLOW: &str = "slow server: 20 ms";
pub(crate) const SLOW_RESPONDER: &str = "slow responder: 2 ms";
pub(crate) const STALLING: &str = "stalling server: 300 ms in a second";
pub(crate) const PLANNED: &str = "planned black hole";
pub(crate) const PLANNED_ADDRESS: &str = "planned end of an address";
/// A rate that no sender of a lab reaches.
pub(crate) const TOO_FAST: &str = "rate beyond the sender";
/// No fault: the hosts have addresses of IPv6.
pub(crate) const BOTH_OF_IPV6: &str = "IPv6";
/// The switch of a star; its first port is that of the tested host.
const SWITCH: &str = "switch";
/// The devices between two hosts that a case may have: the words that they begin with.
const DEVICES: [&str; 6] = ["impair", "router", "bridge", "nft:", "policer:", "squeeze"];
/// The fault that needs a second wire beside the device.
const ON_SECOND_WIRE: &str = "asymmetric-route";
/// Findings that are never more than a remark: they cost the test nothing, or are about the next one.
const REMARKS: [&str; 7] = [
    "asymmetric-route",
    "conntrack-near-full",
    "descriptors-near-full",
    "narrow-path",
    "ports-near-full",
    "step-time",
    "time-wait-overflow",
];
/// Faults that `fathom lab fault` does not have, with the command that plants them on their host. They end with the lab.
const COMMANDS: [(&str, &str); 6] = [
    ("drop-all", "tc qdisc replace dev eth0 root blackhole"),
    // A device's other link, on the way to the target.
    ("drop-all-out", "tc qdisc replace dev eth1 root blackhole"),
    ("shaper-out", "tc qdisc replace dev eth1 root tbf rate 20mbit burst 20k limit 30k"),
    ("few-syns", "sysctl -q -w net.ipv4.tcp_syncookies=0 net.ipv4.tcp_max_syn_backlog=16"),
    (
        "ip-damage",
        "nft 'add table netdev ip-damage; add chain netdev ip-damage in { type filter hook ingress device eth0 priority 0; }; \
         add rule netdev ip-damage in ip protocol udp numgen random mod 20 == 0 ip checksum set 0x1234'",
    ),
    (
        "few-nat-ports",
        "nft 'add table ip nat; add chain ip nat out { type nat hook postrouting priority 100; }; \
         add rule ip nat out meta l4proto tcp snat to 198.18.0.1:50000-50009'",
    ),
];

/// A fault of a lab, of a test or of this machine.
pub(crate) struct PlantedFault {
    /// The fault with its values, or a device that harms what passes.
    pub(crate) words: Vec<String>,
    /// The hosts of the fault, one word each; empty for a fault of the device, of the test or of this machine.
    pub(crate) host: String,
}

impl PlantedFault {
    pub(crate) fn new(words: &[&str], host: &str) -> Self {
        Self { words: words.iter().map(|word| (*word).to_owned()).collect(), host: host.to_owned() }
    }

    /// The device between the two hosts, if the fault is one.
    pub(crate) fn device(&self) -> Option<&str> {
        let is_device = |fault: &&str| DEVICES.iter().any(|device| fault.starts_with(device));
        self.words.first().map(String::as_str).filter(is_device)
    }

    /// The command that plants the fault, if `fathom lab fault` does not have it.
    pub(crate) fn command(&self) -> Option<&'static str> {
        let name = self.words.first()?;
        COMMANDS.iter().find(|(of, _)| of == name).map(|(_, command)| *command)
    }

    fn name(&self) -> String {
        let fault = self.words.join(" ");
        if self.host.is_empty() { fault } else { format!("{fault} on {}", self.host.replace(' ', " and ")) }
    }
}

/// Faults with a test that suffers from them.
pub(crate) struct Case {
    /// The faults; empty for a lab without one.
    pub(crate) faults: Vec<PlantedFault>,
    /// The layer and its options.
    pub(crate) test: String,
    /// For each cause, the findings that name it. If empty, nothing above a remark may be said, except what is true of the lab by its record.
    pub(crate) expected: Vec<&'static [&'static str]>,
    /// Whether a seed drew place, strength and direction.
    pub(crate) is_drawn: bool,
}

impl Case {
    /// The topology of its lab.
    pub(crate) fn preset(&self) -> &'static str {
        let is_of_ipv6 = self.faults.iter().any(|planted| planted.words == [BOTH_OF_IPV6]);
        // The companions of a star are c1, c2 and so on, behind a switch.
        let is_in_star = |planted: &PlantedFault| planted.host.starts_with('c') || planted.host == SWITCH;
        let is_of_star = self.faults.iter().any(is_in_star) || self.test.contains("--topology");
        match (is_of_star, is_of_ipv6) {
            (true, _) => "star:4",
            (false, true) => "pair6",
            (false, false) => "pair",
        }
    }

    /// Puts a device between the hosts.
    pub(crate) fn behind(mut self, device: &str) -> Self {
        self.faults.push(PlantedFault::new(&[device], ""));
        self
    }

    /// Expects the names that are as true beside busy programs: threads that share one core with them wait for it, and where a fault takes
    /// CPU too, they are a second one.
    pub(crate) fn beside_busy_programs(&mut self) {
        // A sender of frames needs a core of its own.
        if !self.expected.is_empty() && self.test.starts_with("packet") {
            self.expected.push(&["offered-too-little", "other-programs"]);
        } else if self.expected == [CORE] {
            self.expected = vec![&["core-saturated", "other-programs"]];
        } else if self.expected == [SERVER_CORE] {
            self.expected = vec![&["server-saturated", "other-programs"]];
        } else if self.expected.len() == 1 && TAKES_CPU.contains(&self.expected[0]) {
            self.expected.push(&["other-programs"]);
        }
    }

    /// Whether a finding names one of its causes.
    pub(crate) fn expects(&self, id: &str) -> bool {
        self.expected.iter().any(|names| names.contains(&id))
    }

    /// Whether nothing more than a remark names its cause.
    pub(crate) fn is_of_remark(&self) -> bool {
        !self.expected.is_empty() && self.expected.iter().all(|names| names.iter().all(|id| REMARKS.contains(id)))
    }

    /// Whether its lab has a second wire between the hosts, beside the device.
    pub(crate) fn has_second_wire(&self) -> bool {
        self.faults.iter().any(|planted| planted.words.iter().any(|word| word == ON_SECOND_WIRE))
    }

    /// The faults and their hosts.
    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = self.faults.iter().map(PlantedFault::name).collect();
        if names.is_empty() { "no fault".to_owned() } else { names.join(" + ") }
    }
}
