//! One flow rule, as text and as values.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{
    byte_match::{ByteMatch, ByteMatchError},
    protocol::{Protocol, ProtocolError},
};
use crate::classify::{Packet, Ports};

/// A rule. A list without entries matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowRule {
    /// The name; a rule replaces the one of the same name.
    pub name: String,
    /// The group of targets that gets the packets.
    pub group: String,
    /// The highest priority wins; of equal ones, the first name.
    #[serde(default)]
    pub priority: i32,
    /// The protocols.
    #[serde(default)]
    pub protocols: Vec<Protocol>,
    /// Networks of senders.
    #[serde(default)]
    pub sources: Vec<IpNet>,
    /// Networks of receivers.
    #[serde(default)]
    pub destinations: Vec<IpNet>,
    /// Ports of senders. Packets without ports do not match.
    #[serde(default)]
    pub source_ports: Vec<PortRange>,
    /// Ports of receivers. Packets without ports do not match.
    #[serde(default)]
    pub destination_ports: Vec<PortRange>,
    /// Conditions on bytes of the transport header, all of which must hold. ICMP errors and later fragments show no such bytes.
    #[serde(default)]
    pub matches: Vec<ByteMatch>,
}

/// A range of ports, written as `80` or `8000-8099`; both ends belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Why a text is no flow rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A protocol that is not known.
    #[error("{0}")]
    Protocol(ProtocolError),
    /// A text that is no range of ports.
    #[error("ports `{0}`: write a port or FIRST-LAST, from 0 to 65535")]
    Ports(String),
    /// A text that is no network.
    #[error("network `{0}`: write an address or ADDRESS/PREFIX, such as 198.18.0.0/24 or 2001:2::/48")]
    Network(String),
    /// A priority that is no number.
    #[error("priority `{0}`: write a number from -2147483648 to 2147483647")]
    Priority(String),
    /// A condition on bytes that is wrong.
    #[error("match {0}")]
    Match(ByteMatchError),
    /// A field that rules do not have.
    #[error(
        "flow field `{0}`: the fields are group, priority, protocols, sources, destinations, source-ports, ports, match"
    )]
    Field(String),
    /// A rule without a name.
    #[error("flow `{0}`: it begins with its name, as in web,protocols=tcp,ports=80+443")]
    Name(String),
}

impl FromStr for PortRange {
    type Err = RuleError;
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| first <= last);
        range.map(|(first, last)| Self { first, last }).ok_or_else(|| RuleError::Ports(text.to_owned()))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl PortRange {
    /// The first and the last port.
    #[must_use]
    pub const fn ends(self) -> (u16, u16) {
        (self.first, self.last)
    }
}

impl TryFrom<String> for PortRange {
    type Error = RuleError;
    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

fn network(text: &str) -> Result<IpNet, RuleError> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>().ok().or_else(address).ok_or_else(|| RuleError::Network(text.to_owned()))
}

/// Reads the parts of a list: `80+443`.
fn list<T>(text: &str, read: impl Fn(&str) -> Result<T, RuleError>) -> Result<Vec<T>, RuleError> {
    text.split('+').map(|part| read(part.trim())).collect()
}

impl FromStr for FlowRule {
    type Err = RuleError;

    /// Parses `web,group=web,priority=10,protocols=tcp+udp,sources=198.18.0.0/24,ports=80+8000-8099,match=tcp[12:2]&0x1ff=0x2`. The group is
    /// the name of the rule if none is given.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().filter(|name| !name.is_empty() && !name.contains(['=', ' ']));
        let name = name.ok_or_else(|| RuleError::Name(text.to_owned()))?.to_owned();
        let mut rule = Self {
            group: name.clone(),
            name,
            priority: 0,
            protocols: Vec::new(),
            sources: Vec::new(),
            destinations: Vec::new(),
            source_ports: Vec::new(),
            destination_ports: Vec::new(),
            matches: Vec::new(),
        };
        for part in parts {
            let (field, value) = part.split_once('=').ok_or_else(|| RuleError::Field(part.to_owned()))?;
            match field {
                "group" if !value.is_empty() => value.clone_into(&mut rule.group),
                "priority" => rule.priority = value.parse().map_err(|_| RuleError::Priority(value.to_owned()))?,
                "protocols" => rule.protocols = list(value, |text| text.parse().map_err(RuleError::Protocol))?,
                "sources" => rule.sources = list(value, network)?,
                "destinations" => rule.destinations = list(value, network)?,
                "source-ports" => rule.source_ports = list(value, str::parse)?,
                "ports" => rule.destination_ports = list(value, str::parse)?,
                "match" => rule.matches = list(value, |text| text.parse().map_err(RuleError::Match))?,
                _ => return Err(RuleError::Field(part.to_owned())),
            }
        }
        Ok(rule)
    }
}

fn is_among<T>(list: &[T], is_match: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(is_match)
}

impl FlowRule {
    /// Returns whether a packet belongs to the rule.
    #[must_use]
    pub fn matches(&self, packet: &Packet<'_>) -> bool {
        let key = &packet.key;
        let has_ports = match key.ports {
            Ports::Pair { source, destination } => {
                let contains = |port: u16| move |range: &PortRange| (range.first..=range.last).contains(&port);
                is_among(&self.source_ports, contains(source))
                    && is_among(&self.destination_ports, contains(destination))
            }
            Ports::Echo(_) | Ports::Absent => self.source_ports.is_empty() && self.destination_ports.is_empty(),
        };
        has_ports
            && is_among(&self.protocols, |protocol| protocol.0 == key.protocol)
            && is_among(&self.sources, |network| network.contains(&key.source))
            && is_among(&self.destinations, |network| network.contains(&key.destination))
            && self.matches_bytes(packet)
    }

    /// Returns whether the conditions on bytes hold, whatever the addresses and ports are.
    pub(super) fn matches_bytes(&self, packet: &Packet<'_>) -> bool {
        self.matches.iter().all(|condition| condition.matches(packet))
    }
}
