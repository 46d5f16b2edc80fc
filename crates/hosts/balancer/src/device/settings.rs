//! What the device is started with: addresses, targets, queues.

use std::{fmt, net::IpAddr, num::NonZeroU16, ops::RangeInclusive, str::FromStr};

use fathom_model::units::Bytes;
use serde::{Deserialize, Serialize};

use super::error::DeviceError;
use crate::{BalancerSettings, targets::WEIGHT_MAX};

/// How packets reach their target, and how answers come back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForwardMode {
    /// Packets are routed to the target unchanged, by their mark. It has the virtual address and answers by its own way (direct server
    /// return).
    #[default]
    Dsr,
    /// The destination of each connection is translated, and its answers come back by the device. Connection tracking puts fragments together.
    Dnat,
}

impl ForwardMode {
    /// The words of all modes.
    pub const WORDS: [&'static str; 2] = ["dsr", "dnat"];
}

impl FromStr for ForwardMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dsr" => Ok(Self::Dsr),
            "dnat" => Ok(Self::Dnat),
            _ => Err(format!("`{text}` is not dsr or dnat")),
        }
    }
}

impl fmt::Display for ForwardMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dsr => "dsr",
            Self::Dnat => "dnat",
        })
    }
}

/// What decides about packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// This process: all packets wait in queues for its verdicts.
    #[default]
    Nfqueue,
    /// A program in the drivers of the interfaces, before the network stack. What it does not know waits in the queues.
    Xdp,
    /// The same program at the ingress of the stack, which sees packets of several segments as one.
    Tc,
}

impl DataPath {
    /// The words of all data paths.
    pub const WORDS: [&'static str; 3] = ["nfqueue", "xdp", "tc"];

    /// Whether a program on interfaces decides before the queues.
    #[must_use]
    pub fn has_program(self) -> bool {
        self != Self::Nfqueue
    }
}

impl FromStr for DataPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nfqueue" => Ok(Self::Nfqueue),
            "xdp" => Ok(Self::Xdp),
            "tc" => Ok(Self::Tc),
            _ => Err(format!("`{text}` is not nfqueue, xdp or tc")),
        }
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nfqueue => "nfqueue",
            Self::Xdp => "xdp",
            Self::Tc => "tc",
        })
    }
}

/// How verdicts are told to the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictGrouping {
    /// One message for successive packets with the same verdict.
    #[default]
    Batch,
    /// One message and one system call for each packet.
    Single,
}

/// A target with the addresses at which the device reaches it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceTarget {
    /// The name, unique in its group.
    pub name: String,
    /// One address for each IP version of the virtual addresses.
    pub addresses: Vec<IpAddr>,
    /// Its share of the flows in relation to the other targets.
    pub weight: u32,
}

impl DeviceTarget {
    /// Returns the address of the same IP version as another one.
    #[must_use]
    pub fn address_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == other.is_ipv4())
    }
}

/// Whether a text may be the name of a target or of a group.
pub(super) fn is_plain_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.chars().all(is_plain)
}

impl FromStr for DeviceTarget {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let wrong = |why: String| DeviceError::BadTarget { given: text.to_owned(), why };
        let (name, rest) = text.split_once('=').ok_or_else(|| wrong("it has no address".to_owned()))?;
        if !is_plain_name(name) {
            return Err(wrong("its name has letters, digits, '-', '_' and '.' only".to_owned()));
        }
        let mut target = Self { name: name.to_owned(), addresses: Vec::new(), weight: 1 };
        for part in rest.split(',').map(str::trim) {
            if let Some(number) = part.strip_prefix("weight=") {
                let weight = number.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
                target.weight =
                    weight.ok_or_else(|| wrong(format!("its weight is a number from 1 to {WEIGHT_MAX}")))?;
                continue;
            }
            let address: IpAddr = part.parse().map_err(|_| wrong(format!("`{part}` is not an address")))?;
            if target.address_like(address).is_some() {
                return Err(wrong("it has two addresses of the same IP version".to_owned()));
            }
            target.addresses.push(address);
        }
        if target.addresses.is_empty() { Err(wrong("it has no address".to_owned())) } else { Ok(target) }
    }
}

impl fmt::Display for DeviceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        write!(f, "{}={},weight={}", self.name, addresses.join(","), self.weight)
    }
}

impl TryFrom<String> for DeviceTarget {
    type Error = DeviceError;

    fn try_from(text: String) -> Result<Self, DeviceError> {
        text.parse()
    }
}

impl From<DeviceTarget> for String {
    fn from(target: DeviceTarget) -> Self {
        target.to_string()
    }
}

/// What the device is started with.
#[derive(Debug, Clone)]
pub struct DeviceSettings {
    /// The name under which it is found in its network namespace.
    pub name: String,
    /// The addresses whose packets it divides.
    pub virtual_addresses: Vec<IpAddr>,
    /// The targets of the group of packets without a flow rule.
    pub targets: Vec<DeviceTarget>,
    /// The balancers of the tier: with `balancer.own_name` this is one of them, which sends fragments on to the others; without, it is
    /// before them, and has no targets.
    pub tier: Vec<DeviceTarget>,
    /// The numbers of the queues; a thread reads each.
    pub queues: RangeInclusive<u16>,
    /// How packets reach their target.
    pub mode: ForwardMode,
    /// What decides about packets.
    pub data_path: DataPath,
    /// The interfaces by which packets come to the program of the data path; none for others.
    pub interfaces: Vec<String>,
    /// Marks, routing tables and priorities of rules begin behind this number.
    pub first_mark: u32,
    /// How verdicts are told.
    pub verdicts: VerdictGrouping,
    /// The number of packets that may wait in each queue.
    pub queue_length: u32,
    /// What the decision is made with.
    pub balancer: BalancerSettings,
}

impl DeviceSettings {
    /// What the first line of a balancer's output begins with, as soon as it divides packets.
    pub const READY: &'static str = "ready:";
    /// The name of a balancer that was given none.
    pub const NAME_DEFAULT: &'static str = "balancer";
    /// Far from the marks that people choose by hand, and its tables are looked up before the main one (32766).
    pub const FIRST_MARK_DEFAULT: u32 = 20_000;
    /// A few milliseconds of small packets, or the window of several TCP connections.
    pub const QUEUE_LENGTH_DEFAULT: u32 = 4096;
    /// The rules of all targets come before that of the main table, whose priority is 32766.
    pub const FIRST_MARK: RangeInclusive<u32> = 1..=30_000;
    /// `nf_tables` divides among at most so many queues here; more threads than cores gain nothing.
    pub const N_QUEUES_MAX: u16 = 64;
    /// More waiting packets would use more memory than a socket's buffer may have.
    pub const QUEUE_LENGTH: RangeInclusive<u32> = 1..=65_536;

    /// Checks what can be wrong before anything is touched.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), DeviceError> {
        let bad = |option: &'static str, why: String| Err(DeviceError::BadSetting { option, why });
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if self.name.is_empty() || self.name.len() > 24 || !self.name.chars().all(is_plain) {
            return bad("name", "1 to 24 letters, digits, '-' and '_'".to_owned());
        }
        if self.virtual_addresses.is_empty() {
            return bad("vip", "the balancer has no virtual address".to_owned());
        }
        if let Some(wrong) =
            self.virtual_addresses.iter().find(|address| address.is_unspecified() || address.is_multicast())
        {
            return bad("vip", format!("{wrong} is not the address of a host"));
        }
        let n_queues = self.queues.end().checked_sub(*self.queues.start()).and_then(|n| n.checked_add(1));
        if n_queues.is_none_or(|n| n > Self::N_QUEUES_MAX) {
            return bad("queues", format!("1 to {} queues, the first one before the last", Self::N_QUEUES_MAX));
        }
        if !Self::FIRST_MARK.contains(&self.first_mark) {
            let (low, high) = (Self::FIRST_MARK.start(), Self::FIRST_MARK.end());
            return bad("first-mark", format!("a number from {low} to {high}"));
        }
        if !Self::QUEUE_LENGTH.contains(&self.queue_length) {
            let (low, high) = (Self::QUEUE_LENGTH.start(), Self::QUEUE_LENGTH.end());
            return bad("queue-length", format!("{low} to {high} packets"));
        }
        if self.balancer.defects.wrong_source && self.mode != ForwardMode::Dnat {
            return bad(
                "defect",
                "wrong-source needs --mode dnat: in mode dsr no answer passes the balancer".to_owned(),
            );
        }
        self.check_data_path()?;
        self.check_tier()?;
        if let Some(name) = &self.balancer.defects.blackhole
            && !self.targets.iter().any(|target| target.name == *name)
        {
            return bad("defect", format!("blackhole names {name}, which is not a target"));
        }
        (0..self.targets.len()).try_for_each(|place| {
            let (before, target) = (&self.targets[..place], &self.targets[place]);
            self.check_target(target, before.iter())
        })
    }

    /// Whether it has the balancers of its tier decide about everything.
    pub(super) fn is_first_tier(&self) -> bool {
        !self.tier.is_empty() && self.balancer.own_name.is_none()
    }

    /// Whether a balancer of the tier is this one.
    pub(super) fn is_own(&self, balancer: &DeviceTarget) -> bool {
        self.balancer.own_name.as_ref() == Some(&balancer.name)
    }

    fn check_tier(&self) -> Result<(), DeviceError> {
        let bad = |option: &'static str, why: String| Err(DeviceError::BadSetting { option, why });
        if let Some(name) = &self.balancer.own_name
            && !self.tier.iter().any(|balancer| self.is_own(balancer))
        {
            return bad("tier-name", format!("{name} is not among the balancers of --tier"));
        }
        if self.tier.is_empty() {
            return Ok(());
        }
        if self.mode != ForwardMode::Dsr {
            return bad("tier", "it needs --mode dsr: packets are routed to another balancer as they are".to_owned());
        }
        (0..self.tier.len()).try_for_each(|place| {
            let checked = self.check_target(&self.tier[place], self.tier[..place].iter());
            checked.map_err(DeviceError::of_tier)
        })?;
        if self.balancer.own_name.is_some() {
            return Ok(());
        }
        let first_tier = "without --tier-name, the balancers of --tier decide about everything";
        if !self.targets.is_empty() {
            return bad("target", format!("{first_tier}, so this one has no targets"));
        }
        if self.data_path.has_program() {
            return bad("data-path", format!("{first_tier}, and {} knows targets only", self.data_path));
        }
        match self.balancer.defects.of_targets() {
            Some(defects) => bad("defect", format!("{first_tier}, so {defects} has to be a defect of theirs")),
            None => Ok(()),
        }
    }

    fn check_data_path(&self) -> Result<(), DeviceError> {
        let bad = |option: &'static str, why: &str| Err(DeviceError::BadSetting { option, why: why.to_owned() });
        let path = self.data_path;
        match (path.has_program(), self.interfaces.is_empty()) {
            (false, false) => bad("interface", "only --data-path xdp or tc has a program on interfaces"),
            (true, true) => {
                bad("interface", &format!("--data-path {path} needs the interface by which packets come in"))
            }
            (true, false) if self.mode != ForwardMode::Dsr => {
                bad("data-path", &format!("{path} needs --mode dsr: its program does not translate addresses"))
            }
            _ => {
                let mut names = self.interfaces.iter().enumerate();
                let twice = names.find(|(place, name)| self.interfaces[..*place].contains(name));
                twice.map_or(Ok(()), |(_, name)| bad("interface", &format!("{name} is given twice")))
            }
        }
    }

    /// Checks a target beside others.
    ///
    /// # Errors
    /// If it cannot be reached for each virtual address, or has the name or an address of another one.
    pub fn check_target<'a>(
        &self,
        target: &DeviceTarget,
        mut others: impl Iterator<Item = &'a DeviceTarget>,
    ) -> Result<(), DeviceError> {
        let wrong = |why: String| Err(DeviceError::TargetRefused { given: target.to_string(), why });
        if let Some(address) = self.virtual_addresses.iter().find(|vip| target.address_like(**vip).is_none()) {
            return wrong(format!("it has no address of the IP version of {address}"));
        }
        let is_nowhere =
            |address: &&IpAddr| address.is_loopback() || address.is_unspecified() || address.is_multicast();
        if let Some(address) = target.addresses.iter().find(is_nowhere) {
            return wrong(format!("{address} is not the address of another host"));
        }
        if let Some(address) = target.addresses.iter().find(|address| self.virtual_addresses.contains(address)) {
            return wrong(format!("{address} is the virtual address itself"));
        }
        let same = others.find_map(|other| {
            let address = target.addresses.iter().find(|address| other.addresses.contains(address));
            match address {
                _ if other.name == target.name => Some(format!("there is a target {} already", other.name)),
                Some(address) => Some(format!("target {} has the address {address} too", other.name)),
                None => None,
            }
        });
        same.map_or(Ok(()), wrong)
    }

    /// The number of queues.
    pub(super) fn n_queues(&self) -> NonZeroU16 {
        let further = self.queues.end().saturating_sub(*self.queues.start());
        NonZeroU16::MIN.saturating_add(further)
    }

    /// The number of bytes that are copied of each packet on links with this MTU.
    pub(super) fn copy_range(&self, mtu: Bytes) -> Bytes {
        // The longest packet of IP: a held fragment is sent again, so it has to be whole.
        self.balancer.defects.copy_range.map_or(Bytes(mtu.0.min(65_535)), |range| Bytes(range.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_with_its_addresses_and_written_as_it_is_read() {
        let target: DeviceTarget = "t1=198.18.1.1,2001:2:0:1::1,weight=3".parse().unwrap();
        assert_eq!((target.name.as_str(), target.addresses.len(), target.weight), ("t1", 2, 3));
        assert_eq!(target.to_string().parse::<DeviceTarget>().unwrap(), target);
        assert_eq!("t1=198.18.1.1".parse::<DeviceTarget>().unwrap().weight, 1);
    }

    #[test]
    fn what_is_the_address_of_no_other_host_is_no_target() {
        let settings = |interfaces: &[&str]| DeviceSettings {
            name: "tested".to_owned(),
            virtual_addresses: vec![[198, 18, 8, 1].into()],
            targets: Vec::new(),
            tier: Vec::new(),
            queues: 0..=0,
            mode: ForwardMode::Dsr,
            data_path: DataPath::Xdp,
            interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
            first_mark: DeviceSettings::FIRST_MARK_DEFAULT,
            verdicts: VerdictGrouping::Batch,
            queue_length: DeviceSettings::QUEUE_LENGTH_DEFAULT,
            balancer: BalancerSettings::default(),
        };
        for address in ["127.0.0.1", "0.0.0.0", "224.0.0.1"] {
            let target = format!("t1={address}").parse().unwrap();
            let error = settings(&["v0"]).check_target(&target, std::iter::empty()).unwrap_err().to_string();
            assert!(error.ends_with(&format!("{address} is not the address of another host")), "{error}");
        }
        assert!(settings(&["v0", "v1"]).check().is_ok());
        let twice = settings(&["v0", "v1", "v0"]).check().unwrap_err().to_string();
        assert_eq!(twice, "interface: v0 is given twice");
    }

    #[test]
    fn what_is_wrong_with_a_target_is_named() {
        let cases = [
            ("t1", "no address"),
            ("=198.18.1.1", "its name"),
            ("t 1=198.18.1.1", "its name"),
            ("t1=weight=2", "no address"),
            ("t1=somewhere", "`somewhere` is not an address"),
            ("t1=198.18.1.1,198.18.1.2", "same IP version"),
            ("t1=198.18.1.1,weight=0", "its weight"),
        ];
        for (text, named) in cases {
            let error = text.parse::<DeviceTarget>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
