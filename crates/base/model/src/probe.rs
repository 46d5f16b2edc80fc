//! What single packets found out about a path, beside counts and round trips.

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// A router on the way, or the host at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HopRecord {
    /// How many hops away it is, from 1.
    pub hop: u8,
    /// Who answered; none for a silent hop, several where the way forks.
    pub addresses: Vec<String>,
    /// How often it was asked.
    pub n_sent: u64,
    /// The round trips of its answers, in the order in which they came.
    pub rtt_ns: Vec<Nanos>,
    /// Whether it is the host that was looked for.
    #[serde(default)]
    pub target: bool,
    /// Why it lets nothing pass, in words: `prohibited by a filter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complaint: Option<String>,
}

/// What a port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// Somebody listens.
    Open,
    /// The host says that nobody listens.
    Closed,
    /// A filter stands before it: it says so, or nothing comes back where a host would answer.
    Filtered,
    /// The host answers, and whether somebody listens cannot be told from how.
    Unfiltered,
    /// Nothing comes back, as from a filter, or from a service that does not answer strangers.
    OpenOrFiltered,
}

impl PortState {
    /// Every state, in the order of tables.
    pub const ALL: [Self; 5] = [Self::Open, Self::OpenOrFiltered, Self::Unfiltered, Self::Filtered, Self::Closed];

    /// The word that stands in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Filtered => "filtered",
            Self::Unfiltered => "unfiltered",
            Self::OpenOrFiltered => "open or filtered",
        }
    }
}

/// A port that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PortRecord {
    /// Its number.
    pub port: u16,
    /// What it is.
    pub state: PortState,
    /// From the probe to the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Nanos>,
    /// What the answer was, or who sent it: `SYN-ACK`, `prohibited by a filter, says 192.0.2.1`.
    pub answer: String,
}

/// A time in which nothing came back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OutageRecord {
    /// When the first probe without an answer was sent, counted from the start of the trial.
    pub from_ns: Nanos,
    /// The same as wall time, RFC 3339 in UTC.
    pub from: String,
    /// Until the next probe with an answer was sent; absent when there was none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_ns: Option<Nanos>,
    /// The probes that had no answer in time.
    pub n_probes: u64,
}

/// Who said that a packet is too big, and what fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TooBigRecord {
    /// The router.
    pub from: String,
    /// What it says that the next link takes; 0 where it does not say.
    pub mtu_bytes: u64,
}

/// The longest packets that a path takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PathMtuRecord {
    /// The longest packet that was answered; absent when none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<u64>,
    /// The longest packet that the own device takes.
    pub device_bytes: u64,
    /// What routers said.
    pub too_big: Vec<TooBigRecord>,
    /// The shortest packet that vanished although nobody said that it would: a black hole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vanishing_from_bytes: Option<u64>,
}

/// What the probes of one trial found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProbeRecord {
    /// The address that was probed.
    pub target: String,
    /// The hops of a route, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<HopRecord>,
    /// The ports of a scan, in the order in which they were asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRecord>,
    /// The outages of a series.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<OutageRecord>,
    /// What a search for the path MTU found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<PathMtuRecord>,
}
