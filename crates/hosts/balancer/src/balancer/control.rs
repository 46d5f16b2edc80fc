//! What the tables are made of: targets by group, rules and counters, as the control changes them.

use std::{collections::BTreeMap, sync::Arc};

use super::tables::{DEFAULT_GROUP, GroupTable, Tables, Tier};
use crate::{counters::StripedCounter, flows::FlowRules, targets::Target};

#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) groups: BTreeMap<String, BTreeMap<String, Target>>,
    pub(super) group_tables: BTreeMap<String, Arc<GroupTable>>,
    pub(super) rules: Arc<FlowRules>,
    pub(super) tier: Option<Arc<Tier>>,
    /// The counters of all targets that there ever were, by group and name.
    pub(super) target_counters: Vec<(String, Arc<StripedCounter>)>,
    pub(super) rule_counters: BTreeMap<String, Arc<StripedCounter>>,
    /// The counters of all balancers of the tier that there ever were, by name.
    pub(super) tier_counters: BTreeMap<String, Arc<StripedCounter>>,
}

impl Control {
    /// The place of a target's counter, which it keeps when it goes and comes back.
    pub(super) fn target_counter(&mut self, group: &str, name: &str) -> usize {
        let name = format!("{group}/{name}");
        let known = self.target_counters.iter().position(|(other, _)| *other == name);
        known.unwrap_or_else(|| {
            self.target_counters.push((name, Arc::default()));
            self.target_counters.len() - 1
        })
    }

    /// The counter of a balancer of the tier.
    pub(super) fn tier_counter(&mut self, name: &str) -> Arc<StripedCounter> {
        Arc::clone(self.tier_counters.entry(name.to_owned()).or_default())
    }

    /// The tables as they are to be now.
    pub(super) fn tables(&mut self) -> Tables {
        let rules = Arc::clone(&self.rules);
        let mut of_rules = Vec::with_capacity(rules.rules().len());
        for rule in rules.rules() {
            let counter = Arc::clone(self.rule_counters.entry(rule.name.clone()).or_default());
            of_rules.push((self.group_tables.get(&rule.group).cloned(), counter));
        }
        Tables {
            rules,
            of_rules,
            default_group: self.group_tables.get(DEFAULT_GROUP).cloned(),
            tier: self.tier.clone(),
            target_counters: self.target_counters.iter().map(|(_, counter)| Arc::clone(counter)).collect(),
        }
    }
}
