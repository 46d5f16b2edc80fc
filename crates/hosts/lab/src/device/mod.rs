//! The device under test between the two hosts of a lab.
//!
//! This module defines the devices and their text form; [`topology`] connects the wires, and [`fitted_device`] prepares the device.

mod balancer;
mod before_targets;
mod device_process;
mod fitted_device;
mod hop_counters;
mod impairment;
mod reset;
mod told_counters;
mod topology;

use std::{fmt, num::NonZeroU32, process::Command, str::FromStr};

use fathom_model::{
    MacAddress,
    units::{PerSec, approximate, rounded},
};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub use balancer::BalancerDevice;
pub(crate) use before_targets::fit_before_targets;
pub use fitted_device::{DeviceRecord, Thread};
pub(crate) use fitted_device::{FittedDevice, fit};
pub use impairment::{ImpairedDirections, Impairment};
pub(crate) use topology::build;

/// The name of the host that acts as the device.
pub const HOST: &str = "dut";

/// A device under test with its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The kernel's router between two networks.
    Router,
    /// The kernel's router with a link that carries smaller packets than those to the hosts, in bytes.
    Squeeze(u32),
    /// The kernel's bridge between two wires of one network.
    Bridge,
    /// The kernel's router with a rule set of the packet filter.
    Filter(RuleSet),
    /// A program that forwards frames from one wire to the other before the network stack sees them.
    Redirect,
    /// The same program for frames up to a rate, on the sender's core: its throughput is known, and nothing else drops.
    Policer(Policer),
    /// Threads that move frames from one wire to the other and harm them on purpose.
    Impairment(Impairment),
    /// The kernel's packet filter, which translates the destination of each flow to that of a target by a hash.
    Translation,
    /// The reference balancer, a program that divides flows among targets and has the defects that were switched on.
    Balancer(Box<BalancerDevice>),
}

/// Rules that are checked against every packet, and the packets that they drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleSet {
    /// The number of non-matching rules that a packet is checked against before it passes.
    pub n_rules: u32,
    /// An extra rule drops one in this many packets; absent without such a rule.
    pub drop_one_of: Option<NonZeroU32>,
}

/// A rate limit with a burst size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policer {
    /// The number of frames per second that pass in the long run.
    pub rate_per_sec: u32,
    /// The number of frames that pass back to back after a pause.
    pub burst: u32,
}

/// A program on an interface of a device that runs before the network stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Forwards every IPv4 and IPv6 frame to another interface.
    Redirect(DeviceRedirect),
    /// Forwards frames up to a rate; drops the rest.
    Policer(Policer, DeviceRedirect),
}

/// The target of forwarded frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRedirect {
    /// The index of the other interface.
    pub to: u32,
    /// The destination MAC address on that wire.
    pub destination: MacAddress,
    /// The source MAC address on that wire: the address of the other interface.
    pub source: MacAddress,
}

/// Attaches programs to interfaces; the code that builds a lab supplies the programs of the packet layer.
pub trait ProgramLoader: Sync {
    /// Attaches a program to an interface in the calling thread's network namespace, for the lifetime of the returned guard.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN` outside user namespaces.
    fn attach(&self, program: &Program, interface: u32) -> fathom_sys::Result<Box<dyn ProgramGuard>>;

    /// Returns the command that runs a device as a process of its own, given the words of its command line.
    ///
    /// # Errors
    /// If the program has no such command or does not find its own file.
    fn process(&self, words: &[String]) -> std::io::Result<Command> {
        let _ = words;
        Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
    }
}

/// An attached program; dropping it detaches the program.
pub trait ProgramGuard: Send + fmt::Debug {}

/// A loader without programs, for labs whose devices need none.
#[derive(Debug, Clone, Copy)]
pub struct NoPrograms;

impl ProgramLoader for NoPrograms {
    fn attach(&self, _: &Program, _: u32) -> fathom_sys::Result<Box<dyn ProgramGuard>> {
        Err(fathom_sys::Error::new("attach a program", std::io::Error::from(std::io::ErrorKind::Unsupported)))
    }
}

/// The text forms of devices: the word, its arguments, and a description.
pub const FORMS: &[(&str, &str, &str)] = &[
    ("router", "", "the kernel's router"),
    ("squeeze", "[:MTU]", "a router on whose way packets have at most MTU bytes (1400)"),
    ("bridge", "", "the kernel's bridge"),
    ("nft", "[:RULES[,1/N]]", "a router with RULES rules of nftables (100), of which one may drop every Nth packet"),
    ("redirect", "", "an XDP program that hands frames on"),
    (
        "policer",
        "[:RATE[,BURST]]",
        "an XDP program that hands RATE frames/s on from a to b (200k), BURST at once (512), and drops the rest",
    ),
    (
        "impair",
        impairment::VALUES,
        "impairs traffic both ways or one way, and counts each impairment; values that are not named are those of a good wire",
    ),
    (
        "dnat",
        "",
        "the kernel's packet filter divides flows among targets:N by a hash of address and port, and translates addresses",
    ),
    (
        "balancer",
        balancer::VALUES,
        "the reference balancer of docs/balancer.md divides flows among targets:N, with defects on a switch",
    ),
];

/// Enough rules to show the cost of one without taking long to create.
const RULES_DEFAULT: u32 = 100;
/// The MTU of a usual tunnel.
const SQUEEZE_DEFAULT: u32 = 1400;
/// From the smallest MTU of IPv6 (RFC 8200, section 5).
const SQUEEZE: std::ops::RangeInclusive<u32> = 1280..=65_535;
/// Far below the capacity of every path of this kind, so that only the policer drops.
const POLICER_DEFAULT: Policer = Policer { rate_per_sec: 200_000, burst: 512 };
/// The maximum exceeds the rule set of any firewall that evaluates its rules one by one.
const RULES: std::ops::RangeInclusive<u32> = 1..=20_000;
const ONE_OF: std::ops::RangeInclusive<u32> = 2..=1_000_000;
const RATE: std::ops::RangeInclusive<u32> = 1..=100_000_000;
const BURST: std::ops::RangeInclusive<u32> = 1..=1_000_000;

/// All forms on one line, for hints and help.
#[must_use]
pub fn forms() -> String {
    FORMS.iter().map(|(word, arguments, _)| format!("{word}{arguments}")).collect::<Vec<_>>().join(", ")
}

impl Device {
    /// Returns whether frames are forwarded before the network stack of the device sees them.
    const fn is_program(&self) -> bool {
        matches!(self, Self::Redirect | Self::Policer(_))
    }

    /// Returns whether the device has its own core, which can be overloaded. A device that drops only by its rule must not drop for
    /// overload.
    const fn has_own_core(&self) -> bool {
        !matches!(self, Self::Policer(_) | Self::Impairment(_))
    }

    /// Returns whether the device can stand before targets that share a virtual address.
    pub(crate) const fn is_before_targets(&self) -> bool {
        matches!(self, Self::Router | Self::Translation | Self::Balancer(_))
    }

    /// Returns whether the device divides traffic among targets, so that it has no use between two hosts.
    #[must_use]
    pub const fn needs_targets(&self) -> bool {
        matches!(self, Self::Translation | Self::Balancer(_))
    }

    /// Returns whether the device is a process, which the scheduler places like any other.
    #[must_use]
    pub const fn is_process(&self) -> bool {
        matches!(self, Self::Balancer(_))
    }

    /// The names of the balancers behind it, in their order.
    #[must_use]
    pub(crate) fn names_behind(&self) -> Vec<String> {
        match self {
            Self::Balancer(balancer) => balancer.names_behind(),
            _ => Vec::new(),
        }
    }

    /// Returns whether the answers of targets have to go back through the device.
    #[must_use]
    pub fn translates(&self) -> bool {
        match self {
            Self::Translation => true,
            Self::Balancer(balancer) => balancer.translates(),
            _ => false,
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::BadDevice { given: text.to_owned(), why, known: forms() };
        let (word, arguments) = text.split_once(':').map_or((text, None), |(word, rest)| (word, Some(rest)));
        if word == "impair" {
            return Impairment::parse(arguments).map(Self::Impairment).map_err(wrong);
        }
        if word == "balancer" {
            return BalancerDevice::parse(arguments).map(|balancer| Self::Balancer(Box::new(balancer))).map_err(wrong);
        }
        let (first, second) = arguments.map_or((None, None), |rest| match rest.split_once(',') {
            Some((first, second)) => (Some(first), Some(second)),
            None => (Some(rest), None),
        });
        match word {
            "router" | "bridge" | "redirect" | "dnat" if arguments.is_some() => {
                Err(wrong(format!("a {word} has nothing to choose")))
            }
            "router" => Ok(Self::Router),
            "squeeze" => {
                let mtu = arguments.map_or(Ok(SQUEEZE_DEFAULT), |text| number("the MTU", text, SQUEEZE));
                mtu.map(Self::Squeeze).map_err(wrong)
            }
            "bridge" => Ok(Self::Bridge),
            "redirect" => Ok(Self::Redirect),
            "dnat" => Ok(Self::Translation),
            "nft" => {
                let n_rules = first.map_or(Ok(RULES_DEFAULT), |text| number("the number of rules", text, RULES));
                let one_of = |text: &str| {
                    let n = text.trim().strip_prefix("1/").ok_or_else(|| format!("`{text}` is not written as 1/N"))?;
                    number("N of 1/N", n, ONE_OF)
                };
                let drop_one_of = second.map(one_of).transpose().map_err(wrong)?.and_then(NonZeroU32::new);
                Ok(Self::Filter(RuleSet { n_rules: n_rules.map_err(wrong)?, drop_one_of }))
            }
            "policer" => {
                let Policer { rate_per_sec, burst } = POLICER_DEFAULT;
                let rate_per_sec = first.map_or(Ok(rate_per_sec), |text| number("the rate", text, RATE));
                let burst = second.map_or(Ok(burst), |text| number("the burst", text, BURST));
                Ok(Self::Policer(Policer { rate_per_sec: rate_per_sec.map_err(wrong)?, burst: burst.map_err(wrong)? }))
            }
            _ => Err(wrong(format!("there is no device `{word}`"))),
        }
    }
}

/// Parses a whole number in a range; `k` and `M` are allowed.
fn number(what: &str, text: &str, range: std::ops::RangeInclusive<u32>) -> std::result::Result<u32, String> {
    let (low, high) = (*range.start(), *range.end());
    let read = text.trim().parse::<PerSec>().map_err(|error| format!("{what}: {error}"))?;
    let whole = u32::try_from(rounded(read.get())).ok().filter(|n| range.contains(n));
    let is_whole = |n: &u32| (approximate(u64::from(*n)) - read.get()).abs() < 1e-6;
    whole
        .filter(is_whole)
        .ok_or_else(|| format!("{what}: `{}` is not a whole number from {low} to {high}", text.trim()))
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Router => f.write_str("router"),
            Self::Squeeze(mtu_bytes) => write!(f, "squeeze:{mtu_bytes}"),
            Self::Bridge => f.write_str("bridge"),
            Self::Redirect => f.write_str("redirect"),
            Self::Translation => f.write_str("dnat"),
            Self::Filter(RuleSet { n_rules, drop_one_of }) => {
                write!(f, "nft:{n_rules}")?;
                drop_one_of.map_or(Ok(()), |n| write!(f, ",1/{n}"))
            }
            Self::Policer(Policer { rate_per_sec, burst }) => write!(f, "policer:{rate_per_sec},{burst}"),
            Self::Balancer(balancer) => write!(f, "balancer:{balancer}"),
            Self::Impairment(impairment) => {
                let values = impairment.to_string();
                if values.is_empty() { f.write_str("impair") } else { write!(f, "impair:{values}") }
            }
        }
    }
}

impl TryFrom<String> for Device {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        text.parse::<Device>().unwrap().to_string()
    }

    #[test]
    fn a_device_is_read_with_what_is_left_out() {
        assert_eq!(
            (read("router"), read("bridge"), read("redirect")),
            ("router".into(), "bridge".into(), "redirect".into())
        );
        assert_eq!(
            (read("nft"), read("nft:7"), read("nft:1k,1/50")),
            ("nft:100".into(), "nft:7".into(), "nft:1000,1/50".into())
        );
        assert_eq!((read("policer"), read("policer:50k")), ("policer:200000,512".into(), "policer:50000,512".into()));
        assert_eq!(read("policer:1M,1"), "policer:1000000,1");
        assert_eq!((read("squeeze"), read("squeeze:1280")), ("squeeze:1400".into(), "squeeze:1280".into()));
        assert_eq!((read("impair"), read("impair:loss=1%")), ("impair".into(), "impair:loss=1%".into()));
        assert_eq!((read("dnat"), read("balancer")), ("dnat".into(), "balancer:queues=1,mode=dsr".into()));
        let text = "balancer:queues=2,mode=dnat,defect=drop=1/100,defect=wrong-source";
        assert_eq!(read(text), text);
        let text = "balancer:queues=1,mode=dsr,second-tier=2";
        assert_eq!((read("balancer:second-tier=2"), read(text)), (text.to_owned(), text.to_owned()));
        assert_eq!(read("balancer:path=xdp"), "balancer:queues=1,mode=dsr,path=xdp");
        assert_eq!(read("balancer:path=tc"), "balancer:queues=1,mode=dsr,path=tc");
    }

    #[test]
    fn what_is_wrong_with_a_device_is_named() {
        let cases = [
            ("wheel", "wheel"),
            ("router:2", "nothing to choose"),
            ("dnat:2", "nothing to choose"),
            ("squeeze:576", "1280 to 65535"),
            ("nft:0", "1 to 20000"),
            ("nft:2.5", "whole number"),
            ("nft:10,50", "1/N"),
            ("nft:10,1/1", "2 to 1000000"),
            ("policer:fast", "the rate"),
            ("policer:1k,0", "the burst"),
            ("impair:loss=2", "0.5%"),
            ("balancer:speed=2", "no value `speed`"),
            ("balancer:queues=0", "1 to 64"),
            ("balancer:second-tier=9", "second-tier: `9` is not a number from 1 to 8"),
            ("balancer:second-tier=2,path=xdp", "second-tier needs mode=dsr and path=nfqueue"),
            ("balancer:path=fast", "not nfqueue, xdp or tc"),
            ("balancer:path=xdp,mode=dnat", "path=xdp needs mode=dsr"),
            ("balancer:path=tc,mode=dnat", "path=tc needs mode=dsr"),
            ("balancer:defect=laziness", "laziness"),
            ("balancer:defect=wrong-source", "dnat"),
        ];
        for (text, named) in cases {
            let error = text.parse::<Device>().unwrap_err();
            assert!(error.to_string().contains(named), "{text}: {error}");
            assert!(error.hint().unwrap().contains("policer[:RATE[,BURST]]"));
        }
    }

    #[test]
    fn every_word_of_the_table_is_a_device() {
        for (word, _, about) in FORMS {
            assert!(word.parse::<Device>().is_ok() && !about.is_empty(), "{word}");
        }
    }
}
