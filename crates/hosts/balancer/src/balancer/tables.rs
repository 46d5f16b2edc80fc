//! One state of all tables, which does not change any more.

use std::sync::Arc;

use crate::{
    classify::Packet,
    counters::StripedCounter,
    decision::DropCause,
    flows::FlowRules,
    hash::{address_hash, flow_hash},
    maglev::{MaglevTable, TableSize},
    targets::Target,
};

/// The group of all packets while there is no rule.
pub const DEFAULT_GROUP: &str = "default";

/// What was decided for a flow or a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Forward {
        mark: u32,
        /// The place of the target's counter.
        counter_idx: u32,
    },
    Pass,
    Drop(DropCause),
}

/// The targets of a group and their table.
#[derive(Debug, Default)]
pub(crate) struct GroupTable {
    pub(crate) targets: Vec<PlacedTarget>,
    pub(crate) table: MaglevTable,
}

#[derive(Debug)]
pub(crate) struct PlacedTarget {
    pub(crate) target: Target,
    pub(crate) counter_idx: u32,
    /// Whether its packets are dropped by the defect.
    pub(crate) is_blackhole: bool,
}

impl GroupTable {
    /// Builds the table of targets, each with the place of its counter.
    pub(super) fn new(
        (targets, counters): (Vec<Target>, Vec<usize>),
        size: TableSize,
        blackhole: Option<&str>,
    ) -> Self {
        let table = MaglevTable::build(&targets, size);
        let placed = |(target, counter): (Target, usize)| PlacedTarget {
            is_blackhole: blackhole == Some(target.name.as_str()),
            counter_idx: u32::try_from(counter).expect("there are fewer targets than names"),
            target,
        };
        Self { targets: targets.into_iter().zip(counters).map(placed).collect(), table }
    }
}

/// The balancers that have the fragments, of which this one may be one.
#[derive(Debug)]
pub(super) struct Tier {
    balancers: Vec<TierBalancer>,
    /// The place of this balancer; absent in the first tier, which has the others decide about everything.
    own: Option<usize>,
    table: MaglevTable,
}

#[derive(Debug)]
pub(super) struct TierBalancer {
    pub(super) mark: u32,
    /// What was sent there.
    pub(super) counter: Arc<StripedCounter>,
}

impl Tier {
    /// Builds the table of balancers, each with its counter.
    pub(super) fn new(
        balancers: &[Target],
        counters: Vec<Arc<StripedCounter>>,
        own: Option<usize>,
        size: TableSize,
    ) -> Self {
        let of = |(balancer, counter): (&Target, _)| TierBalancer { mark: balancer.mark, counter };
        Self {
            balancers: balancers.iter().zip(counters).map(of).collect(),
            own,
            table: MaglevTable::build(balancers, size),
        }
    }

    /// Returns the balancer that a packet is sent on to; `None` if this one decides about it.
    pub(super) fn other_balancer(&self, packet: &Packet<'_>) -> Option<&TierBalancer> {
        let hash = match &packet.fragment {
            Some(fragment) => address_hash(&fragment.datagram),
            None if self.own.is_some() => return None,
            None => flow_hash(&packet.key),
        };
        let place = self.table.lookup(hash)?;
        (Some(place) != self.own).then(|| &self.balancers[place])
    }
}

/// What workers decide by.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) rules: Arc<FlowRules>,
    /// The group and the counter of each rule.
    pub(super) of_rules: Vec<(Option<Arc<GroupTable>>, Arc<StripedCounter>)>,
    pub(super) default_group: Option<Arc<GroupTable>>,
    pub(super) tier: Option<Arc<Tier>>,
    /// The counters of targets, by their places.
    pub(super) target_counters: Vec<Arc<StripedCounter>>,
}

/// The group that a packet belongs to.
pub(super) struct PacketGroup<'a> {
    /// The group's table; absent if the group never had a target.
    pub(super) group: Option<&'a Arc<GroupTable>>,
    /// The counter of the rule; absent without rules.
    pub(super) rule: Option<&'a StripedCounter>,
}

impl Tables {
    /// Returns the group of a packet; `None` if there are rules and none matches.
    pub(super) fn group_of(&self, packet: &Packet<'_>) -> Option<PacketGroup<'_>> {
        if self.of_rules.is_empty() {
            return Some(PacketGroup { group: self.default_group.as_ref(), rule: None });
        }
        let (group, counter) = &self.of_rules[self.rules.find(packet)?];
        Some(PacketGroup { group: group.as_ref(), rule: Some(counter) })
    }
}
