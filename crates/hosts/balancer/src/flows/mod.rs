//! Flow rules: which packets belong to which group of targets, linear and indexed.

use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::classify::Packet;

/// A rule. Each list that is empty matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowRule {
    /// The name; a rule with the name of another one replaces it.
    pub name: String,
    /// The group of targets that gets the packets.
    pub group: String,
    /// The highest priority wins; of equal ones, the first name.
    #[serde(default)]
    pub priority: i32,
    /// IP protocol numbers.
    #[serde(default)]
    pub protocols: Vec<u8>,
    /// Networks of senders.
    #[serde(default)]
    pub sources: Vec<IpNet>,
    /// Networks of receivers.
    #[serde(default)]
    pub destinations: Vec<IpNet>,
    /// Ports of senders.
    #[serde(default)]
    pub source_ports: Vec<RangeInclusive<u16>>,
    /// Ports of receivers.
    #[serde(default)]
    pub destination_ports: Vec<RangeInclusive<u16>>,
    /// Bytes of the transport header, such as `tcp[12:2]&0x01ff=0x0002`; all of them must match.
    #[serde(default)]
    pub matches: Vec<ByteMatch>,
}

/// How the rule of a packet is looked up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowLookup {
    /// Rule by rule.
    Linear,
    /// By a bit vector for each field (Lakshman and Stiliadis, SIGCOMM 1998).
    #[default]
    Indexed,
}

// FromStr of a rule: `web:prio=10,protocols=tcp,dsts=198.18.8.1/32 2001:2::/48,dports=80 8000-8099,match=tcp[12:2]&0x01ff=0x0002,group=g1`
