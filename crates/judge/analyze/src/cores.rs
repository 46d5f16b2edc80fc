//! How a host's cores spent their time, and which part of it went to the test.

use std::collections::BTreeMap;

use fathom_model::{names::host as counter, units::ratio};

/// A core without work for less than one part in twenty is taken for full: the kernel counts in ticks of 1 to 10 ms.
const FULL: f64 = 0.95;

/// A core of which the test itself used less than this part is full of the work of others.
const OWN_WORK_MIN: f64 = 0.5;

/// The states of a core that are work.
pub(crate) const WORK: [(&str, &str); 4] = [
    (counter::CPU_USER_NS, "user"),
    (counter::CPU_SYSTEM_NS, "system"),
    (counter::CPU_SOFTIRQ_NS, "softirq"),
    (counter::CPU_IRQ_NS, "irq"),
];

/// All states of a core.
pub(crate) const CPU_STATES: [&str; 6] = [
    counter::CPU_USER_NS,
    counter::CPU_SYSTEM_NS,
    counter::CPU_SOFTIRQ_NS,
    counter::CPU_IRQ_NS,
    counter::CPU_STEAL_NS,
    counter::CPU_IDLE_NS,
];

/// How a core spent its time, as shares of 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CoreLoad {
    /// Its name: `cpu1`.
    pub(crate) core: String,
    /// The share of each state by its counter.
    shares: BTreeMap<&'static str, f64>,
    /// What the test itself used: its threads, and all interrupts; where that is not known, all that was used.
    pub(crate) own: f64,
}

impl CoreLoad {
    /// A core by the time that it spent in each state; nothing where it spent none.
    pub(crate) fn of(core: &str, spent: &BTreeMap<&'static str, u64>) -> Option<Self> {
        let all: u64 = spent.values().sum();
        let shares = spent.iter().map(|(state, spent)| Some((*state, ratio(*spent, all)?))).collect::<Option<_>>()?;
        let core = Self { core: core.to_owned(), shares, own: 0.0 };
        Some(Self { own: core.busy(), ..core })
    }

    /// The share of one state.
    pub(crate) fn share(&self, counter: &str) -> f64 {
        self.shares.get(counter).copied().unwrap_or(0.0)
    }

    /// The share of all work.
    pub(crate) fn busy(&self) -> f64 {
        WORK.iter().map(|(counter, _)| self.share(counter)).sum()
    }

    /// Whether no time is left, whoever used it.
    pub(crate) fn is_full(&self) -> bool {
        self.busy() >= FULL
    }

    /// Whether no time is left, and most of it went to the test itself.
    pub(crate) fn is_full_of_own_work(&self) -> bool {
        self.is_full() && self.own >= OWN_WORK_MIN * self.busy()
    }

    /// The share that other programs used.
    pub(crate) fn others(&self) -> f64 {
        self.busy() - self.own
    }

    /// The share of interrupts, which the network causes.
    fn in_interrupts(&self) -> f64 {
        self.share(counter::CPU_SOFTIRQ_NS) + self.share(counter::CPU_IRQ_NS)
    }

    /// The state of work that takes the most: its counter, its word and its share.
    pub(crate) fn main_state(&self) -> (&'static str, &'static str, f64) {
        let shares = WORK.iter().map(|(counter, word)| (*counter, *word, self.share(counter)));
        shares.reduce(|most, one| if one.2 > most.2 { one } else { most }).unwrap_or(("", "", 0.0))
    }
}

/// Says of each core what the test itself used of it: its threads there, and what interrupts took.
///
/// What threads without a core of their own used is shared out by what is left on the cores.
pub(crate) fn attribute_core_work(cores: &mut [CoreLoad], own: &BTreeMap<&str, f64>) {
    for core in cores.iter_mut() {
        let threads = own.get(core.core.as_str()).copied().unwrap_or(0.0);
        core.own = (threads + core.in_interrupts()).min(core.busy());
    }
    let left: f64 = cores.iter().map(CoreLoad::others).sum();
    let part = own.get("").map_or(0.0, |free| (free / left).min(1.0));
    for core in cores.iter_mut().filter(|_| left > 0.0) {
        core.own += part * core.others();
    }
}
