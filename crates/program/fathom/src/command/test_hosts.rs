//! The hosts of a plan on the command line: two of them, one that plays both roles, or groups.

use std::collections::BTreeMap;

use fathom_model::{
    OnLoss, TestPlan, Topology, TrialTimes,
    plan::{HostReach, LabPlan},
};

/// The hosts of a plan and their roles.
#[derive(Clone)]
pub(crate) struct TestHosts {
    /// The lab to build, if any.
    pub(crate) lab: Option<LabPlan>,
    /// The hosts by name, in the direction of the traffic.
    pub(crate) hosts: Vec<(String, HostReach)>,
    /// The groups of hosts.
    pub(crate) groups: BTreeMap<String, Vec<String>>,
    /// The initiator, or a group of them.
    pub(crate) from: String,
    /// The responder, or a group of them. On loopback, it is the initiator.
    pub(crate) to: String,
    /// The host in between, if there is one.
    pub(crate) via: Option<String>,
    /// Which hosts of the groups talk to each other.
    pub(crate) topology: Option<Topology>,
    /// Whether each pair gets the whole of the totals.
    pub(crate) each: bool,
    pub(crate) on_loss: OnLoss,
    /// The number of hosts that connect to the others, if not all are connected directly.
    pub(crate) heads: Option<u32>,
}

impl TestHosts {
    /// Makes one host, two hosts, or two with a third one in between, in the direction of the traffic.
    pub(crate) fn between(lab: Option<LabPlan>, hosts: Vec<(String, HostReach)>) -> Self {
        let name = |place: usize| hosts.get(place).map(|(name, _)| name.clone()).unwrap_or_default();
        let (from, to) = (name(0), name(hosts.len().saturating_sub(1)));
        let via = (hosts.len() == 3).then(|| name(1));
        let (groups, on_loss) = (BTreeMap::new(), OnLoss::Fail);
        Self { lab, hosts, groups, from, to, via, topology: None, each: false, on_loss, heads: None }
    }

    /// Returns a test of this kind from the initiating hosts, with the topology of the hosts and without a responder.
    pub(crate) fn test(&self, kind: &str, times: TrialTimes) -> TestPlan {
        let topology = self.topology.filter(|_| !self.groups.is_empty() || self.from == self.to);
        TestPlan { topology, each: self.each, ..TestPlan::new(kind, times, self.from()) }
    }

    /// Returns true if a host is not this machine or a lab on it.
    pub(crate) fn are_elsewhere(&self) -> bool {
        self.hosts.iter().any(|(_, reach)| !reach.is_on_this_machine())
    }

    /// Returns the initiator.
    pub(crate) fn from(&self) -> &str {
        &self.from
    }

    /// Returns the responder. On loopback, it is the same host.
    pub(crate) fn to(&self) -> &str {
        &self.to
    }

    /// Returns a single pair of hosts, for tests that run only between two: the first one of each group.
    pub(crate) fn of_one_pair(mut self) -> Self {
        let nth =
            |name: &String, n: usize| self.groups.get(name).and_then(|group| group.get(n)).unwrap_or(name).clone();
        let is_one_group = self.from == self.to && self.groups.contains_key(&self.to);
        (self.from, self.to) = (nth(&self.from, 0), nth(&self.to, usize::from(is_one_group)));
        self.groups.clear();
        let via = self.via.clone();
        self.hosts.retain(|(host, _)| [&self.from, &self.to].contains(&host) || via.as_ref() == Some(host));
        self
    }

    /// Returns the hosts with the direction of the traffic reversed.
    pub(crate) fn swapped(mut self) -> Self {
        self.hosts.reverse();
        std::mem::swap(&mut self.from, &mut self.to);
        self
    }

    /// Returns what a title says of the hosts: `, a to b in lab pair`, since these names mean nothing without the lab, or `, b1 to sut`.
    pub(crate) fn place(&self) -> Option<String> {
        let lab = match &self.hosts.first()?.1 {
            HostReach::LabUp(lab, _) => format!(" in lab {lab}"),
            HostReach::Lab(_) => format!(" in lab {}", self.lab.as_ref()?.preset),
            HostReach::Ssh(_) | HostReach::Exec(_) | HostReach::Kubernetes(_) => String::new(),
            _ => return None,
        };
        let via = self.via().map(|via| format!(" through {via}")).unwrap_or_default();
        let to = if self.to() == self.from() { String::new() } else { format!(" to {}", self.to()) };
        Some(format!(", {}{to}{via}{lab}", self.from()))
    }

    /// Returns the host in between, if there is one.
    pub(crate) fn via(&self) -> Option<&str> {
        self.via.as_deref()
    }
}
