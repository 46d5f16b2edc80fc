//! The decision: from the bytes of a packet to a mark, with tables that are replaced as a whole.

use fathom_model::units::Nanos;

use crate::{classify::{ClassifyError, FlowKey}, counters::BalancerCounters, defects::Defects, flows::{FlowLookup, FlowRule}, fragments::FragmentSettings, maglev::TableSize, targets::Target};

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Let it pass with this firewall mark, which routes it to its target.
    Forward {
        /// The mark of the target, or of another balancer of this tier.
        mark: u32,
    },
    /// Drop it.
    Drop(DropCause),
    /// Drop this copy: the balancer keeps its own until the first fragment comes.
    Hold,
    /// Let it pass as it is.
    Pass,
}

/// Why a packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropCause {
    /// The packet cannot be classified.
    Unreadable(ClassifyError),
    /// No rule matches.
    NoFlow,
    /// The group has no target.
    NoTarget,
    /// The fragment table is full.
    TableFull,
    /// There is no room for a fragment that came before the first one.
    StoreFull,
    /// An earlier fragment of the datagram was dropped.
    Incomplete,
    /// The defect `blackhole`.
    Blackhole,
}

/// What becomes of packets that no rule matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// They pass without a mark.
    Pass,
    /// They are dropped.
    #[default]
    Drop,
}

/// What a balancer is made with. Targets and rules come and go later.
#[derive(Debug, Clone)]
pub struct BalancerSettings {
    /// The size of each group's table.
    pub table_size: TableSize,
    /// The fragment table.
    pub fragments: FragmentSettings,
    /// How the rule of a packet is found.
    pub flow_lookup: FlowLookup,
    /// What becomes of packets without a rule.
    pub unmatched: Unmatched,
    /// The name of this balancer among those of [`Balancer::set_tier`]; absent in a single tier.
    pub own_name: Option<String>,
    /// The defects; they stay for the life of the balancer.
    pub defects: Defects,
    /// The seed of the defects' draws.
    pub seed: u64,
}

/// The tables, shared by the workers and the control.
///
/// Without a rule all packets belong to the group [`DEFAULT_GROUP`].
pub struct Balancer {}

/// The group of packets while there is no rule.
pub const DEFAULT_GROUP: &str = "default";

impl Balancer {
    /// Makes a balancer without targets.
    pub fn new(settings: BalancerSettings) -> Self { todo!() }
    /// The settings that it was made with; the data path reads its defects here.
    pub fn settings(&self) -> &BalancerSettings { todo!() }
    /// Adds a target to a group, or replaces the one of the same name.
    ///
    /// # Errors
    /// If another target of any group has the same mark.
    pub fn set_target(&self, group: &str, target: Target) -> Result<(), BalancerError> { todo!() }
    /// Removes a target from a group.
    ///
    /// # Errors
    /// If the group has no such target.
    pub fn remove_target(&self, group: &str, name: &str) -> Result<(), BalancerError> { todo!() }
    /// Adds a rule, or replaces the one of the same name.
    ///
    /// # Errors
    /// If there are too many rules.
    pub fn set_flow(&self, rule: FlowRule) -> Result<(), BalancerError> { todo!() }
    /// Removes a rule.
    ///
    /// # Errors
    /// If there is no such rule.
    pub fn remove_flow(&self, name: &str) -> Result<(), BalancerError> { todo!() }
    /// Replaces the balancers of this tier, this one included; a list of none ends the tier.
    ///
    /// # Errors
    /// If this balancer has no name, or is not in the list.
    pub fn set_tier(&self, balancers: Vec<Target>) -> Result<(), BalancerError> { todo!() }
    /// The groups with their targets, in the order of names.
    pub fn groups(&self) -> std::collections::BTreeMap<String, Vec<Target>> { todo!() }
    /// The rules, in the order in which they are tried.
    pub fn flows(&self) -> Vec<FlowRule> { todo!() }
    /// The target that a whole packet of this flow would reach without defects.
    pub fn target_of(&self, key: &FlowKey) -> Option<Target> { todo!() }
    /// The sums of all counters.
    pub fn counters(&self) -> BalancerCounters { todo!() }
    /// Makes a worker; one for each thread that decides packets.
    pub fn worker(self: &std::sync::Arc<Self>) -> BalancerWorker { todo!() }
}

/// What one thread decides packets with: its counters, and the tables as of its last packet.
pub struct BalancerWorker {}

impl BalancerWorker {
    /// Decides a packet, given from its IP header on. `now` is a monotonic time, the same clock in all workers.
    pub fn decide(&mut self, bytes: &[u8], now: Nanos) -> Decision { todo!() }
    /// Takes the packets that waited for a fragment that was decided; they are to be decided again, so the device sends them into its own
    /// input (its tun device).
    pub fn released(&mut self) -> impl Iterator<Item = &[u8]> { std::iter::empty() }
}

/// A change that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BalancerError {
    /// A target that is not there.
    #[error("group `{group}` has no target `{name}`")]
    NoSuchTarget {
        /// The group.
        group: String,
        /// The target.
        name: String,
    },
}
