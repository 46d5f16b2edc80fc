//! What single packets found out about a path, in addition to counts and round-trip times.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// A router on the path, or the host at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HopRecord {
    /// Its distance in hops, from 1.
    pub hop: u8,
    /// The addresses that replied; none for a silent hop, several if the path forks.
    pub addresses: Vec<String>,
    /// The number of probes sent to it.
    pub n_sent: u64,
    /// The round-trip times of its replies, in order of arrival.
    pub rtt_ns: Vec<Nanos>,
    /// Whether it is the target host.
    #[serde(default)]
    pub target: bool,
    /// The reason why it forwards nothing, in words, such as `prohibited by a filter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complaint: Option<String>,
}

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// A service listens.
    Open,
    /// The host reports that no service listens.
    Closed,
    /// A filter blocks it: the filter says so, or there is no reply from a host that would reply.
    Filtered,
    /// The host replies, but the reply does not show whether a service listens.
    Unfiltered,
    /// There is no reply, as from a filter or from a service that does not answer strangers.
    OpenOrFiltered,
}

impl PortState {
    /// Every state, in the order of tables.
    pub const ALL: [Self; 5] = [Self::Open, Self::OpenOrFiltered, Self::Unfiltered, Self::Filtered, Self::Closed];

    /// The word used in tables.
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

/// A probed port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PortRecord {
    /// Its number.
    pub port: u16,
    /// Its state.
    pub state: PortState,
    /// The time from the probe to the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Nanos>,
    /// The reply or its sender, such as `SYN-ACK`, `prohibited by a filter, says 192.0.2.1`.
    pub answer: String,
}

/// A period without replies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OutageRecord {
    /// The time of the first probe without a reply, since the start of the trial.
    pub from_ns: Nanos,
    /// The same as wall-clock time, RFC 3339 in UTC.
    pub from: String,
    /// The time until the next probe with a reply was sent; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_ns: Option<Nanos>,
    /// The number of probes without a timely reply.
    pub n_probes: u64,
}

/// A report that a packet is too big, with its sender and the size that fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TooBigRecord {
    /// The router.
    pub from: String,
    /// The reported MTU of the next link; 0 if it is not reported.
    pub mtu_bytes: u64,
}

/// The longest packets that a path accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PathMtuRecord {
    /// The longest packet with a reply; absent if there was no reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<u64>,
    /// The longest packet that the local device accepts.
    pub device_bytes: u64,
    /// The reports of routers.
    pub too_big: Vec<TooBigRecord>,
    /// The shortest packet that vanished without a report from any router: a black hole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vanishing_from_bytes: Option<u64>,
}

/// What a target does with the datagrams of an order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OrderOutcome {
    /// It receives them, so that an answer is due.
    #[default]
    Answered,
    /// It must not receive them, so that an answer is a defect.
    Dropped,
    /// It may receive them or not.
    Either,
}

/// What became of the datagrams whose fragments were sent in one order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FragmentOrderRecord {
    /// The order, such as `reversed`; `whole` for datagrams in one packet.
    pub order: String,
    /// What is right.
    pub outcome: OrderOutcome,
    /// The datagrams that were sent.
    pub n_sent: u64,
    /// Their fragments.
    pub n_fragments: u64,
    /// The datagrams with an answer.
    pub n_answered: u64,
    /// Those of them that another target answered than the whole datagrams of their flow.
    pub n_elsewhere: u64,
    /// Those of them whose flow has no single target to compare with.
    pub n_unjudged: u64,
    /// Answers that came once more.
    pub n_duplicates: u64,
}

impl FragmentOrderRecord {
    /// The name of datagrams in one packet, whose answers name the target of their flow.
    pub const WHOLE: &str = "whole";

    /// The datagrams without the answer that is due.
    #[must_use]
    pub fn n_lost(&self) -> u64 {
        if self.outcome == OrderOutcome::Answered { self.n_sent.saturating_sub(self.n_answered) } else { 0 }
    }

    /// The datagrams that were answered although their target must not have received them.
    #[must_use]
    pub fn n_unexpected(&self) -> u64 {
        if self.outcome == OrderOutcome::Dropped { self.n_answered } else { 0 }
    }
}

/// What became of datagrams in fragments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FragmentsRecord {
    /// The IP version, 4 or 6.
    pub ip_version: u8,
    /// The length of each packet before it is cut.
    pub size_bytes: u64,
    /// The longest fragment, its IP header included.
    pub mtu_bytes: u64,
    /// The number of flows.
    pub n_flows: u64,
    /// The flows whose whole datagrams were answered by more than one target.
    pub n_flows_unsteady: u64,
    /// The fragments that left this host, as a capture on its devices counted them.
    pub n_captured: u64,
    /// The answered datagrams by target: its name, `#` and its token.
    pub answers: BTreeMap<String, u64>,
    /// The orders, as they were sent.
    pub orders: Vec<FragmentOrderRecord>,
}

impl FragmentsRecord {
    /// The fragments of these orders together.
    #[must_use]
    pub fn n_fragments(&self, is_counted: impl Fn(&FragmentOrderRecord) -> bool) -> u64 {
        self.orders.iter().filter(|order| is_counted(order)).map(|order| order.n_fragments).sum()
    }
}

/// The results of the probes of one trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProbeRecord {
    /// The probed address.
    pub target: String,
    /// The hops of a route, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<HopRecord>,
    /// The ports of a scan, in the order of probing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRecord>,
    /// The outages of a series.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<OutageRecord>,
    /// The result of a search for the path MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<PathMtuRecord>,
    /// The results of a test with fragments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragments: Option<FragmentsRecord>,
}
