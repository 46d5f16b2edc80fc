//! The balancer: tables that the control changes and that workers decide by.
//!
//! A change builds a whole new set of tables beside the old one, and then replaces one pointer. A worker looks at a number that says whether
//! the pointer has changed, and takes the new one before its next packet; between changes it shares nothing that is written.

mod control;
mod tables;
mod worker;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::{
    classify::{FlowKey, Packet},
    counters::{BalancerCounters, FixedCounters, StripedCounter},
    decision::CAUSES,
    defects::{DEFECTS, Defects},
    flows::{FlowLookup, FlowRule, FlowRules, RULES_MAX},
    fragments::{FragmentSettings, FragmentSettingsError, FragmentTable},
    hash::flow_hash,
    maglev::{TARGETS_MAX, TableSize},
    targets::Target,
};

use control::Control;
pub use tables::DEFAULT_GROUP;
pub(crate) use tables::GroupTable;
use tables::{Fate, Tables, Tier};
pub use worker::BalancerWorker;

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
    /// The name of this balancer in its tier; absent if it stands alone, or before a tier that it is no part of.
    pub own_name: Option<String>,
    /// The defects, which stay for the life of the balancer.
    pub defects: Defects,
    /// The seed of the defects' draws.
    pub seed: u64,
}

impl Default for BalancerSettings {
    fn default() -> Self {
        Self {
            table_size: TableSize::USUAL,
            fragments: FragmentSettings::USUAL,
            flow_lookup: FlowLookup::default(),
            unmatched: Unmatched::default(),
            own_name: None,
            defects: Defects::default(),
            seed: 0,
        }
    }
}

/// A change that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BalancerError {
    /// A target that is not there.
    #[error("group `{group}` has no target `{name}`")]
    NoSuchTarget {
        /// The group.
        group: String,
        /// The name of the target.
        name: String,
    },
    /// A mark that belongs to another target.
    #[error("target `{name}`: the mark {mark} is that of target `{other}`")]
    MarkTaken {
        /// The target that was to be added.
        name: String,
        /// The mark.
        mark: u32,
        /// The target that has the mark.
        other: String,
    },
    /// A group that is full.
    #[error("group `{0}` has {TARGETS_MAX} targets, which is the most")]
    TooManyTargets(String),
    /// A rule that is not there.
    #[error("there is no flow `{0}`")]
    NoSuchFlow(String),
    /// Too many rules.
    #[error("there are {RULES_MAX} flows, which is the most")]
    TooManyFlows,
    /// Two rules of one name.
    #[error("two flows have the name `{0}`")]
    FlowTwice(String),
    /// A tier without this balancer.
    #[error("the tier does not have this balancer, `{0}`")]
    NotInTier(String),
}

/// The tables, shared by the control and the workers.
#[derive(Debug)]
pub struct Balancer {
    settings: BalancerSettings,
    control: Mutex<Control>,
    /// What workers decide by. The lock is held to copy the pointer, and for no longer.
    tables: Mutex<Arc<Tables>>,
    /// The number of the tables, which workers compare with that of theirs.
    generation: AtomicU64,
    fragments: FragmentTable<Fate>,
    counters: FixedCounters,
    n_workers: AtomicUsize,
}

/// A lock whose holder panicked still guards whole values: each change is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Balancer {
    /// Makes a balancer without targets and rules.
    ///
    /// # Errors
    /// If a size of the fragment table is out of range.
    pub fn new(settings: BalancerSettings) -> Result<Self, FragmentSettingsError> {
        let fragments = FragmentTable::new(settings.fragments)?;
        Ok(Self {
            settings,
            control: Mutex::default(),
            tables: Mutex::default(),
            generation: AtomicU64::new(0),
            fragments,
            counters: FixedCounters::default(),
            n_workers: AtomicUsize::new(0),
        })
    }

    /// The settings that it was made with; the data path reads its defects here.
    #[must_use]
    pub const fn settings(&self) -> &BalancerSettings {
        &self.settings
    }

    /// Adds a target to a group, or replaces the one of the same name.
    ///
    /// # Errors
    /// If another target has its mark, or the group is full.
    pub fn set_target(&self, group: &str, target: Target) -> Result<(), BalancerError> {
        let mut control = lock(&self.control);
        let all = control.groups.values().flat_map(BTreeMap::values);
        if let Some(other) = all.clone().find(|other| other.mark == target.mark && other.name != target.name) {
            let (mark, other) = (target.mark, other.name.clone());
            return Err(BalancerError::MarkTaken { name: target.name, mark, other });
        }
        let targets = control.groups.entry(group.to_owned()).or_default();
        if targets.len() >= TARGETS_MAX && !targets.contains_key(&target.name) {
            return Err(BalancerError::TooManyTargets(group.to_owned()));
        }
        targets.insert(target.name.clone(), target);
        self.rebuild_group(&mut control, group);
        Ok(())
    }

    /// Removes a target from a group.
    ///
    /// # Errors
    /// If the group has no such target.
    pub fn remove_target(&self, group: &str, name: &str) -> Result<(), BalancerError> {
        let mut control = lock(&self.control);
        let removed = control.groups.get_mut(group).and_then(|targets| targets.remove(name));
        if removed.is_none() {
            return Err(BalancerError::NoSuchTarget { group: group.to_owned(), name: name.to_owned() });
        }
        self.rebuild_group(&mut control, group);
        Ok(())
    }

    /// Adds a rule, or replaces the one of the same name.
    ///
    /// # Errors
    /// If there are too many rules.
    pub fn set_flow(&self, rule: FlowRule) -> Result<(), BalancerError> {
        let mut control = lock(&self.control);
        let mut rules = control.rules.rules().to_vec();
        rules.retain(|other| other.name != rule.name);
        rules.push(rule);
        self.replace_rules(&mut control, rules)
    }

    /// Removes a rule.
    ///
    /// # Errors
    /// If there is no such rule.
    pub fn remove_flow(&self, name: &str) -> Result<(), BalancerError> {
        let mut control = lock(&self.control);
        let mut rules = control.rules.rules().to_vec();
        rules.retain(|other| other.name != name);
        if rules.len() == control.rules.rules().len() {
            return Err(BalancerError::NoSuchFlow(name.to_owned()));
        }
        self.replace_rules(&mut control, rules)
    }

    /// Replaces all rules at once. The index is built once, not once for each rule.
    ///
    /// # Errors
    /// If there are too many rules, or two have one name.
    pub fn set_flows(&self, rules: Vec<FlowRule>) -> Result<(), BalancerError> {
        self.replace_rules(&mut lock(&self.control), rules)
    }

    fn replace_rules(&self, control: &mut Control, rules: Vec<FlowRule>) -> Result<(), BalancerError> {
        if rules.len() > RULES_MAX {
            return Err(BalancerError::TooManyFlows);
        }
        let mut names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(BalancerError::FlowTwice(twice[0].to_owned()));
        }
        control.rules = Arc::new(FlowRules::new(rules, self.settings.flow_lookup));
        self.publish(control);
        Ok(())
    }

    /// Replaces the balancers of the tier. Fragments are spread over the tier by their addresses alone, so that one balancer gets all
    /// fragments of a datagram. A balancer without a name is no part of it, and sends whole packets there too, by their flows. A list of none
    /// ends the tier.
    ///
    /// # Errors
    /// If this balancer has a name that is not in the list.
    pub fn set_tier(&self, balancers: &[Target]) -> Result<(), BalancerError> {
        let mut control = lock(&self.control);
        control.tier = if balancers.is_empty() {
            None
        } else {
            let place = |name: &String| {
                let place = balancers.iter().position(|balancer| balancer.name == *name);
                place.ok_or_else(|| BalancerError::NotInTier(name.clone()))
            };
            let own = self.settings.own_name.as_ref().map(place).transpose()?;
            let counters = balancers.iter().map(|balancer| control.tier_counter(&balancer.name)).collect();
            Some(Arc::new(Tier::new(balancers, counters, own, self.table_size())))
        };
        self.publish(&mut control);
        Ok(())
    }

    /// The groups with their targets, each in the order of names.
    pub fn groups(&self) -> BTreeMap<String, Vec<Target>> {
        let control = lock(&self.control);
        let groups = control.groups.iter();
        groups.map(|(group, targets)| (group.clone(), targets.values().cloned().collect())).collect()
    }

    /// The rules in the order in which they are tried.
    pub fn flows(&self) -> Vec<FlowRule> {
        lock(&self.control).rules.rules().to_vec()
    }

    /// The target that whole packets of this flow reach as the tables are, without defects of the decision. Rules with conditions on bytes
    /// match no flow here.
    pub fn target_of(&self, key: &FlowKey) -> Option<Target> {
        let tables = self.tables();
        let packet = Packet { key: *key, fragment: None, is_icmp_error: false, is_cut: false, transport: &[] };
        let group = tables.group_of(&packet)?.group?;
        let idx = group.table.lookup(flow_hash(key))?;
        Some(group.targets[idx].target.clone())
    }

    /// The table that alone decides about whole packets; `None` where flow rules or defects of other kinds take part.
    pub(crate) fn sole_table(&self) -> Option<Arc<GroupTable>> {
        self.beside_table().is_none().then(|| self.tables().default_group.clone().unwrap_or_default())
    }

    /// What decides about whole packets beside a table, in words.
    pub(crate) fn beside_table(&self) -> Option<String> {
        let defects = self.settings.defects.beside_table().map(|defects| format!("defect {defects}"));
        defects.or_else(|| (!self.tables().of_rules.is_empty()).then(|| "flow rules".to_owned()))
    }

    /// The names of all targets that there ever were, each at the number of its counter.
    pub(crate) fn target_names(&self) -> Vec<String> {
        lock(&self.control).target_counters.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The sums of all counters.
    pub fn counters(&self) -> BalancerCounters {
        let control = lock(&self.control);
        let fixed = &self.counters;
        let by_word = |words: &[&'static str], counters: &[StripedCounter]| {
            words.iter().zip(counters).map(|(word, counter)| (*word, counter.sum())).collect()
        };
        let by_name = |counters: &BTreeMap<String, Arc<StripedCounter>>| -> BTreeMap<String, u64> {
            counters.iter().map(|(name, counter)| (name.clone(), counter.sum())).collect()
        };
        let balancers = by_name(&control.tier_counters);
        BalancerCounters {
            n_packets: fixed.packets.sum(),
            n_forwarded: fixed.forwarded.sum(),
            n_to_balancer: balancers.values().sum(),
            n_passed: fixed.passed.sum(),
            n_held: fixed.held.sum(),
            n_released: fixed.released.sum(),
            dropped: by_word(&CAUSES, &fixed.dropped),
            n_icmp_errors: fixed.icmp_errors.sum(),
            targets: control.target_counters.iter().map(|(name, counter)| (name.clone(), counter.sum())).collect(),
            flows: by_name(&control.rule_counters),
            balancers,
            defects: by_word(&DEFECTS.map(|doc| doc.word), &fixed.defects),
            fragments: self.fragments.counters(),
            n_changes: self.generation.load(Ordering::Relaxed),
        }
    }

    /// Makes a worker: one for each thread that decides packets.
    #[must_use]
    pub fn worker(self: &Arc<Self>) -> BalancerWorker {
        BalancerWorker::new(Arc::clone(self), self.n_workers.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of places of each table.
    pub(crate) fn table_size(&self) -> TableSize {
        self.settings.defects.tiny_table.unwrap_or(self.settings.table_size)
    }

    fn tables(&self) -> Arc<Tables> {
        Arc::clone(&lock(&self.tables))
    }

    /// Builds the table of a group, then replaces the tables. With the defect `in-place-rebuild` the group has no target meanwhile.
    fn rebuild_group(&self, control: &mut Control, group: &str) {
        if self.settings.defects.in_place_rebuild {
            control.group_tables.insert(group.to_owned(), Arc::default());
            self.publish(control);
        }
        let targets: Vec<Target> = control.groups.get(group).into_iter().flat_map(BTreeMap::values).cloned().collect();
        let counters: Vec<usize> = targets.iter().map(|target| control.target_counter(group, &target.name)).collect();
        let blackhole = self.settings.defects.blackhole.as_deref();
        let table = GroupTable::new((targets, counters), self.table_size(), blackhole);
        control.group_tables.insert(group.to_owned(), Arc::new(table));
        self.publish(control);
    }

    /// Replaces the tables of all workers by those that the control describes.
    fn publish(&self, control: &mut Control) {
        let tables = Arc::new(control.tables());
        *lock(&self.tables) = tables;
        self.generation.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
