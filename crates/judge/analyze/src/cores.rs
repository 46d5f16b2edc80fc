//! How the cores of a host spent their time, and how much of it the test used.

use std::collections::BTreeMap;

use fathom_model::{names::host as counter, units::ratio};

/// A core that is idle for less than 5 % of the time counts as full, because the kernel counts in ticks of 1 to 10 ms.
pub(crate) const FULL: f64 = 0.95;

/// If the test used less than this part of a full core, other work fills the core.
const OWN_WORK_MIN: f64 = 0.5;

/// The core states that count as work.
pub(crate) const WORK: [(&str, &str); 4] = [
    (counter::CPU_USER_NS, "user"),
    (counter::CPU_SYSTEM_NS, "system"),
    (counter::CPU_SOFTIRQ_NS, "softirq"),
    (counter::CPU_IRQ_NS, "irq"),
];

pub(crate) const CPU_STATES: [&str; 6] = [
    counter::CPU_USER_NS,
    counter::CPU_SYSTEM_NS,
    counter::CPU_SOFTIRQ_NS,
    counter::CPU_IRQ_NS,
    counter::CPU_STEAL_NS,
    counter::CPU_IDLE_NS,
];

/// How a core spent its time, as shares from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CoreLoad {
    /// The name of the core, such as `cpu1`.
    pub(crate) core: String,
    /// The share of each state, by counter.
    shares: BTreeMap<&'static str, f64>,
    /// The share that the test used: its threads and all interrupts. If that is unknown, all busy time.
    pub(crate) own: f64,
}

impl CoreLoad {
    /// Computes the load of a core from the time in each state. Returns `None` if there is no time at all.
    pub(crate) fn of(core: &str, spent: &BTreeMap<&'static str, u64>) -> Option<Self> {
        let all: u64 = spent.values().sum();
        let shares = spent.iter().map(|(state, spent)| Some((*state, ratio(*spent, all)?))).collect::<Option<_>>()?;
        let core = Self { core: core.to_owned(), shares, own: 0.0 };
        Some(Self { own: core.busy(), ..core })
    }

    pub(crate) fn share(&self, counter: &str) -> f64 {
        self.shares.get(counter).copied().unwrap_or(0.0)
    }

    /// The share of all states that count as work.
    pub(crate) fn busy(&self) -> f64 {
        WORK.iter().map(|(counter, _)| self.share(counter)).sum()
    }

    /// Returns true if the core has no idle time left, no matter which program used it. Time that a hypervisor took was none to work in; if it took
    /// most of it, the core is not full of work.
    pub(crate) fn is_full(&self) -> bool {
        let stolen = self.share(counter::CPU_STEAL_NS);
        self.busy() >= stolen && self.busy() + stolen >= FULL
    }

    /// Returns true if the core has no idle time left and the test used at least half of its busy time.
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

    /// Returns the state of work with the largest share: its counter, its word and its share.
    pub(crate) fn main_state(&self) -> (&'static str, &'static str, f64) {
        let shares = WORK.iter().map(|(counter, word)| (*counter, *word, self.share(counter)));
        shares.reduce(|most, one| if one.2 > most.2 { one } else { most }).unwrap_or(("", "", 0.0))
    }
}

/// Sets the share of each core that the test used: its threads on that core and all interrupts.
///
/// The time of threads without a fixed core is divided among the cores in proportion to their remaining busy time.
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
