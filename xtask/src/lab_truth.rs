//! Which findings are true of a lab whatever is planted in it: both ends share the cores of one machine, with whoever else uses them.
//!
//! The record of a run decides, by its own counters and not by the words of the finding: a finding that they do not bear out is untrue.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{
    HostRecord, Record, Run, Trial,
    names::{count, host},
    units::ratio,
};

/// A core is full at this share, and of the test's own work if that alone takes so much.
const FULL: f64 = 0.95;
/// Other programs matter at this share of all cores, or if threads of the test waited for a core at this share of the time.
const OTHERS_MIN: f64 = 0.2;
const WAIT_MIN: f64 = 0.05;
/// The hypervisor matters at this share of a core.
const STEAL_MIN: f64 = 0.02;

const BUSY: [&str; 4] = [host::CPU_USER_NS, host::CPU_SYSTEM_NS, host::CPU_SOFTIRQ_NS, host::CPU_IRQ_NS];
const STATES: [&str; 6] = [
    host::CPU_USER_NS,
    host::CPU_SYSTEM_NS,
    host::CPU_SOFTIRQ_NS,
    host::CPU_IRQ_NS,
    host::CPU_STEAL_NS,
    host::CPU_IDLE_NS,
];
const INTERRUPTS: [&str; 2] = [host::CPU_SOFTIRQ_NS, host::CPU_IRQ_NS];

/// The time of one core in the measured part of a trial, as shares from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CoreTime {
    busy: f64,
    /// The threads of the test and all interrupts.
    own: f64,
    steal: f64,
}

/// Returns true if the record bears out that a finding is about this machine and not about a planted fault.
pub(crate) fn is_true_of_lab(run: &Run, id: &str) -> bool {
    let trials = || run.tests.iter().flat_map(|test| &test.trials);
    let in_any =
        |holds: fn(&[CoreTime], f64) -> bool| trials().any(|trial| holds(&core_times(trial), core_wait(trial)));
    match id {
        "core-saturated" | "generator-limited" => {
            in_any(|cores, _| cores.iter().any(|core| core.busy >= FULL && core.own >= FULL))
        }
        "offered-too-little" => trials().any(lacked_a_core),
        "other-programs" => in_any(|cores, wait| {
            let others = cores.iter().map(|core| (core.busy - core.own).max(0.0));
            mean(others).is_some_and(|share| share >= OTHERS_MIN || (wait >= WAIT_MIN && share >= WAIT_MIN))
        }),
        "steal" => in_any(|cores, _| mean(cores.iter().map(|core| core.steal)).is_some_and(|share| share >= STEAL_MIN)),
        _ => false,
    }
}

fn mean(shares: impl Iterator<Item = f64>) -> Option<f64> {
    let (n, sum) = shares.fold((0_u32, 0.0), |(n, sum), share| (n + 1, sum + share));
    (n > 0).then(|| sum / f64::from(n))
}

/// Returns the share of the time in which the threads of the test had work and no core.
fn core_wait(trial: &Trial) -> f64 {
    let waited = trial.records.values().filter_map(|record| {
        let n_cores = u64::try_from(record.cpu_ns_by_core.len()).ok()?;
        let span = record.measured_ns.1.0.saturating_sub(record.measured_ns.0.0);
        ratio(record.run_delay_ns?.0, span.saturating_mul(n_cores))
    });
    waited.fold(0.0, f64::max)
}

/// Returns whether the sender of a trial lacked a core for at least half of what it did not send.
fn lacked_a_core(trial: &Trial) -> bool {
    let of = |record: &Record| {
        let total = |name: &str| record.totals.get(name).copied();
        let missing = 1.0 - ratio(total(count::SENT)?, total(count::INTENDED)?)?;
        let (from, to) = record.measured_ns;
        let of_threads = (to - from).0.saturating_mul(u64::try_from(record.cpu_ns_by_core.len()).ok()?);
        Some(missing > 0.0 && ratio(record.run_delay_ns?.0, of_threads)? >= missing / 2.0)
    };
    trial.records.values().any(|record| of(record).unwrap_or(false))
}

/// Returns the time of each core. All hosts of a lab see the same cores by the same clock, so those of one are enough.
fn core_times(trial: &Trial) -> Vec<CoreTime> {
    let Some(seen) = trial.hosts.values().next() else { return Vec::new() };
    let windows = trial.records.values().map(|record| {
        let (from, to) = record.measured_ns;
        (record.start_ns + from, record.start_ns + to)
    });
    let Some((from, to)) = windows.reduce(|all, one| (all.0.max(one.0), all.1.min(one.1))) else { return Vec::new() };
    let (begin, end) = (seen.at_ns.iter().position(|at| *at >= from), seen.at_ns.iter().rposition(|at| *at <= to));
    let Some((begin, end)) = begin.zip(end).filter(|(begin, end)| begin < end) else { return Vec::new() };
    let mut own: BTreeMap<&str, f64> = BTreeMap::new();
    for record in trial.records.values() {
        let span = record.measured_ns.1 - record.measured_ns.0;
        for (core, spent) in &record.cpu_ns_by_core {
            *own.entry(core).or_default() += ratio(spent.0, span.0).unwrap_or(0.0);
        }
    }
    // Threads without a core of their own may have run on any.
    let free = own.get("").copied().unwrap_or(0.0);
    let names: BTreeSet<&str> = seen.series_of(host::CPU_IDLE_NS).map(|series| series.of.as_str()).collect();
    let of_core = |core: &str| {
        let grown = |name: &&str| growth(seen, name, core, (begin, end));
        let all: u64 = STATES.iter().map(grown).sum();
        let share = |counters: &[&str]| ratio(counters.iter().map(grown).sum(), all);
        let busy = share(&BUSY)?;
        let pinned = own.get(core).copied().unwrap_or(0.0) + share(&INTERRUPTS)?;
        Some(CoreTime { busy, own: (pinned + free).min(busy), steal: share(&[host::CPU_STEAL_NS])? })
    };
    names.into_iter().filter_map(of_core).collect()
}

/// Returns the growth of a counter of a core between two samples.
fn growth(seen: &HostRecord, name: &str, core: &str, (begin, end): (usize, usize)) -> u64 {
    let series = seen.series_of(name).find(|series| series.of == core);
    let value = |sample| series.and_then(|series| series.at(sample)).unwrap_or(0);
    value(end).saturating_sub(value(begin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_model::{Side, record::Series, units::Nanos};

    const SECOND: u64 = 1_000_000_000;

    /// A trial of one second on two cores, each with the given shares of user, softirq and idle time in per cent.
    fn trial(cores: [[u64; 3]; 2], own: [u64; 2]) -> Trial {
        let names = [host::CPU_USER_NS, host::CPU_SOFTIRQ_NS, host::CPU_IDLE_NS];
        let series = cores.iter().enumerate().flat_map(|(core, shares)| {
            names.iter().zip(shares).map(move |(name, share)| Series {
                name: (*name).to_owned(),
                of: format!("cpu{core}"),
                // An idle second comes before the measured one.
                values: vec![0, 0, share * SECOND / 100],
            })
        });
        let seen = HostRecord {
            at_ns: vec![Nanos(0), Nanos(SECOND), Nanos(2 * SECOND)],
            series: series.collect(),
            ..HostRecord::default()
        };
        let mut record = Record::empty(Side::Initiator);
        record.measured_ns = (Nanos(SECOND), Nanos(2 * SECOND));
        record.cpu_ns_by_core =
            own.iter().enumerate().map(|(core, share)| (format!("cpu{core}"), Nanos(share * SECOND / 100))).collect();
        Trial {
            round: 0,
            records: [("a".to_owned(), record)].into(),
            hosts: [("a".to_owned(), seen)].into(),
            start_skew_ns: Nanos::ZERO,
            links: Vec::new(),
            lost: Vec::new(),
            events: Vec::new(),
        }
    }

    #[test]
    fn a_core_is_the_tests_only_if_its_own_threads_and_interrupts_fill_it() {
        let times = core_times(&trial([[60, 38, 2], [90, 8, 2]], [58, 40]));
        assert!(times[0].busy >= FULL && times[0].own >= FULL, "{times:?}");
        assert!(times[1].busy >= FULL && times[1].own < FULL, "half of it is somebody else's: {times:?}");
    }

    #[test]
    fn a_sender_lacked_a_core_if_its_wait_explains_what_it_did_not_send() {
        let lacked = |sent: u64, waited_ms: u64| {
            let mut trial = trial([[90, 8, 2], [90, 8, 2]], [40, 0]);
            let record = trial.records.get_mut("a").unwrap();
            record.totals = [(count::SENT.to_owned(), sent), (count::INTENDED.to_owned(), 1000)].into_iter().collect();
            record.run_delay_ns = Some(Nanos::from_millis(waited_ms));
            lacked_a_core(&trial)
        };
        assert!(lacked(724, 430) && !lacked(724, 100) && !lacked(1000, 430));
    }

    #[test]
    fn the_part_before_the_measured_one_does_not_count() {
        let times = core_times(&trial([[100, 0, 0], [0, 0, 100]], [100, 0]));
        assert!((times[0].busy - 1.0).abs() < 1e-9 && times[1].busy.abs() < 1e-9, "{times:?}");
    }
}
