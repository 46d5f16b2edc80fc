//! What holds a test back: one file per cause, all asked of every test.
//!
//! A cause sees one test with its run and judges by thresholds of its own; it knows no other cause.

mod benchmark;
mod black_hole;
mod core_saturated;
mod device;
mod drops;
mod errors;
mod flow_bottleneck;
mod flow_limited;
mod generator_limited;
mod incomplete;
mod interval_too_wide;
mod latency_under_load;
mod limit;
mod link;
mod notes;
mod nothing_done;
mod other_programs;
mod outage;
mod promise_broken;
mod retransmissions;
mod scan;
mod stall;
mod steal;
mod step_errors;
mod step_time;
mod unexplained_loss;
mod unreachable;
mod unsteady;
mod users_gave_up;
mod users_late;
mod users_left_early;

pub(crate) use nothing_done::NOTHING_DONE;

use std::{cmp::Reverse, collections::BTreeMap};

use fathom_model::{
    Bottleneck, Environment, Evidence, Finding, HostRecord, Layer, Limit, LimitKind, Record, Run, Severity, Side,
    Trial,
    names::{count, host as counter},
    plan::HostReach,
    probe::ProbeRecord,
    run::TestRun,
    units::{approximate, grouped, percent, ratio},
};

use crate::{
    AnalysisContext, conservation, lead_test,
    limits::hosts_of,
    repeat_command,
    window::{MeasuredWindow, host_of, record_of, samples_within, usable_trials},
};

/// Something that may hold a test back or make its value say nothing.
///
/// The interface alone: the files beside this one implement it, one type per cause, and [`FINDING_RULES`] lists them.
pub trait FindingRule: Sync {
    /// Its stable name, the id of its findings.
    fn id(&self) -> &'static str;
    /// What it finds in one test; nothing when all is well.
    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding>;
}

/// Every cause that is looked for.
pub const FINDING_RULES: &[&dyn FindingRule] = &[
    &nothing_done::NothingDone,
    &limit::LimitFound,
    &benchmark::BenchmarkHeadline,
    &scan::OptionScan,
    &latency_under_load::LatencyUnderLoad,
    &unreachable::Unreachable,
    &black_hole::BlackHole,
    &outage::Outage,
    &device::RING,
    &device::PROGRAM,
    &device::RULE,
    &device::FORWARDING,
    &device::OUTPUT,
    &device::DeviceCore,
    &other_programs::OtherPrograms,
    &core_saturated::CoreSaturated,
    &generator_limited::GeneratorLimited,
    &generator_limited::OfferedTooLittle,
    &unexplained_loss::UnexplainedLoss,
    &drops::BadChecksum,
    &drops::UdpReceiveBuffer,
    &drops::BacklogDrops,
    &drops::DeviceReceiveDrops,
    &drops::DeviceSendDrops,
    &drops::QdiscDrops,
    &retransmissions::Retransmissions,
    &flow_limited::ReceiveWindow,
    &flow_limited::SendBuffer,
    &flow_bottleneck::FlowBottleneck(Bottleneck::CongestionWindow),
    &flow_bottleneck::FlowBottleneck(Bottleneck::Queue),
    &flow_bottleneck::FlowBottleneck(Bottleneck::Pacing),
    &flow_bottleneck::FlowBottleneck(Bottleneck::Application),
    &link::LinkFull,
    &link::NoLineRate,
    &steal::CpuSteal,
    &stall::Stall,
    &unsteady::NoSteadyState,
    &interval_too_wide::IntervalTooWide,
    &step_errors::StepErrors,
    &users_left_early::UsersLeftEarly,
    &users_gave_up::UsersGaveUp,
    &users_late::UsersLate,
    &step_time::StepTime,
    &errors::ErrorCauses,
    &incomplete::IncompleteTrials,
    &notes::EngineNotes,
    &promise_broken::PromiseBroken,
];

/// One test with everything that a cause may look at.
pub struct TestEvidence<'a> {
    /// The whole run.
    pub run: &'a Run,
    /// The test in question.
    pub test: &'a TestRun,
    /// What was told beside the records.
    pub context: &'a AnalysisContext,
    trials: Vec<&'a Trial>,
}

/// Whether the host that was probed answered.
fn has_answers(record: &Record) -> bool {
    record.totals.get(count::RECEIVED).is_some_and(|n| *n > 0)
}

impl<'a> TestEvidence<'a> {
    /// What probes found in each trial, by the host that sent them.
    fn probes(&self) -> impl Iterator<Item = (&'a str, &'a Record, &'a ProbeRecord)> {
        let records = self.test.trials.iter().flat_map(|trial| &trial.records);
        records.filter_map(|(key, record)| Some((host_of(key), record, record.probe.as_ref()?)))
    }
}

/// What a sender with a schedule really sent.
pub(crate) struct OfferedLoad<'a> {
    pub(crate) host: &'a str,
    pub(crate) side: Side,
    pub(crate) sent: u64,
    pub(crate) intended: u64,
    /// The part of the intended that was sent.
    pub(crate) share: f64,
}

/// How a core spent its time, as shares of 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CoreLoad {
    /// Its name: `cpu1`.
    pub(crate) core: String,
    /// The share of each state by its counter.
    shares: BTreeMap<&'static str, f64>,
    /// What the test itself used: its threads, and all interrupts; where that is not known, all that was used.
    own: f64,
}

/// A core of which the test itself used less than this part is full of the work of others.
const OWN_WORK_MIN: f64 = 0.5;

/// The states of a core that are work.
pub(crate) const WORK: [(&str, &str); 4] = [
    (counter::CPU_USER_NS, "user"),
    (counter::CPU_SYSTEM_NS, "system"),
    (counter::CPU_SOFTIRQ_NS, "softirq"),
    (counter::CPU_IRQ_NS, "irq"),
];

impl CoreLoad {
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

impl<'a> TestEvidence<'a> {
    pub(crate) fn new(run: &'a Run, test: &'a TestRun, context: &'a AnalysisContext) -> Self {
        Self { run, test, context, trials: usable_trials(&test.trials) }
    }

    /// The hosts of the test, the one that begins first.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &'a str> {
        hosts_of(self.test)
    }

    /// The command that makes the whole run again with other options.
    pub(crate) fn repeat_run_command(&self, options: &str) -> Option<String> {
        repeat_command::repeat_run_command(self.run, options)
    }

    /// The command that makes this test again with other options of its kind.
    pub(crate) fn repeat_test_command(&self, options: &str) -> Option<String> {
        repeat_command::repeat_test_command(self.run, self.test, options)
    }

    /// The device between them, if there is one.
    pub(crate) fn via(&self) -> Option<&'a str> {
        self.run.plan.via.as_deref()
    }

    /// Whether what a host's interface drops is accounted for at the device between the two: its wires are memory.
    pub(crate) fn is_of_device(&self, host: &str) -> bool {
        let lead = lead_test(self.run, self.test).unwrap_or(self.test);
        self.via().is_some() && lead.conservation.is_some() && self.is_memory(host)
    }

    /// The trials to judge by.
    pub(crate) fn trials(&self) -> &[&'a Trial] {
        &self.trials
    }

    /// What one side recorded in each trial.
    pub(crate) fn records(&self, side: Side) -> impl Iterator<Item = &'a Record> {
        self.trials.iter().filter_map(move |trial| Some(record_of(trial, side)?.1))
    }

    /// A total of one side, summed over the trials.
    pub(crate) fn total(&self, side: Side, counter: &str) -> u64 {
        self.records(side).filter_map(|record| record.totals.get(counter)).sum()
    }

    /// What a host's counter grew by over all trials, over all its instances or one.
    pub(crate) fn growth(&self, host: &str, counter: &str, of: Option<&str>) -> u64 {
        conservation::host_growth(&self.trials, host, counter, of)
    }

    /// The instances of a host's counter that grew, with by how much, the most first.
    pub(crate) fn growth_by_instance(&self, host: &str, counter: &str) -> Vec<(&'a str, u64)> {
        let mut all: BTreeMap<&str, u64> = BTreeMap::new();
        for record in self.trials.iter().filter_map(|trial| trial.hosts.get(host)) {
            for series in record.series.iter().filter(|series| series.name == counter) {
                *all.entry(&series.of).or_default() += series.growth();
            }
        }
        let mut all: Vec<_> = all.into_iter().filter(|(_, growth)| *growth > 0).collect();
        all.sort_by_key(|(_, growth)| Reverse(*growth));
        all
    }

    /// How a host's cores spent the measured time, the busiest first.
    pub(crate) fn cores(&self, host: &str) -> Vec<CoreLoad> {
        let mut spent: BTreeMap<&str, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for trial in &self.trials {
            let Some((record, (first, last))) = self.measured_samples(trial, host) else { continue };
            for counter in CPU_STATES {
                for series in record.series.iter().filter(|series| series.name == counter) {
                    let grown = series.at(last).unwrap_or(0).saturating_sub(series.at(first).unwrap_or(0));
                    *spent.entry(&series.of).or_default().entry(counter).or_default() += grown;
                }
            }
        }
        let mut cores: Vec<CoreLoad> = spent.into_iter().filter_map(|(core, states)| shares(core, &states)).collect();
        if let Some(own) = self.own_cpu(host) {
            attribute_core_work(&mut cores, &own);
            // Threads of the kernel may work for a test of frames, so only other programs are certainly not its own.
            for core in cores.iter_mut().filter(|_| self.test.layer == Layer::Frames) {
                core.own = core.busy() - core.others().min(core.share(counter::CPU_USER_NS));
            }
        }
        cores.sort_by(|a, b| b.busy().total_cmp(&a.busy()));
        cores
    }

    /// The share of each core's time that the threads of the test used, on a host or on the one machine of all.
    ///
    /// Nothing where a side does not know it. What has no core of its own stands under an empty name.
    fn own_cpu(&self, host: &str) -> Option<BTreeMap<&'a str, f64>> {
        let one_machine = self.is_one_machine();
        let mut own: BTreeMap<&str, f64> = BTreeMap::new();
        for trial in &self.trials {
            for (_, record) in trial.records.iter().filter(|(key, _)| one_machine || host_of(key) == host) {
                if record.cpu_ns_by_core.is_empty() {
                    return None;
                }
                let (from, to) = record.measured_ns;
                for (core, spent) in &record.cpu_ns_by_core {
                    *own.entry(core).or_default() += ratio(spent.0, (to - from).0)?;
                }
            }
        }
        let n_trials = approximate(u64::try_from(self.trials.len()).ok()?);
        for share in own.values_mut() {
            *share /= n_trials;
        }
        (!own.is_empty()).then_some(own)
    }

    /// A host's counters in one trial with the samples that bound the measured part.
    fn measured_samples(&self, trial: &'a Trial, host: &str) -> Option<(&'a HostRecord, (usize, usize))> {
        let record = trial.hosts.get(host)?;
        let window = MeasuredWindow::common(trial, &self.run.hosts)?.on_host(&self.run.hosts, host);
        Some((record, samples_within(record, window)?))
    }

    /// What a host is, as far as it is known.
    pub(crate) fn environment(&self, host: &str) -> Option<&'a Environment> {
        self.run.hosts.get(host).map(|host| &host.environment)
    }

    /// The interface that a host was tested on, or a placeholder for a command.
    pub(crate) fn interface(&self, host: &str) -> &'a str {
        self.run.hosts.get(host).and_then(|host| host.interface.as_deref()).unwrap_or("IFACE")
    }

    /// The command of the run with another value of an option, where the command is one of this test's layer.
    pub(crate) fn repeat_with_option(&self, option: &str, value: &str) -> Option<String> {
        let flag = format!("--{option}");
        let mut words = self.run.command.split(' ').peekable();
        let mut kept: Vec<&str> = Vec::new();
        while let Some(word) = words.next() {
            if word == flag {
                words.next();
            } else if !word.starts_with(&format!("{flag}=")) {
                kept.push(word);
            }
        }
        let is_of_layer = kept.get(1) == Some(&self.test.layer.name());
        is_of_layer.then(|| format!("{} {flag} {value}", kept.join(" ")))
    }

    /// Whether a host's device hands packets over within one machine.
    pub(crate) fn is_memory(&self, host: &str) -> bool {
        conservation::is_memory(&self.run.hosts, host)
    }

    /// Whether all hosts of the test are one machine, so that its ends share the cores.
    pub(crate) fn is_one_machine(&self) -> bool {
        let here = |host: &str| self.run.plan.hosts.get(host).is_some_and(HostReach::is_on_this_machine);
        let boot = |host: &str| self.environment(host).and_then(|facts| facts.get("kernel", "boot_id"));
        let Some(to) = self.test.to.as_deref() else { return false };
        let from = self.test.from.as_str();
        from == to || (here(from) && here(to)) || boot(from).is_some_and(|id| boot(to) == Some(id))
    }

    /// Whether both ends run on the same cores and those have no time left.
    pub(crate) fn shares_full_cores(&self) -> bool {
        let cores = self.cores(&self.test.from);
        self.is_one_machine() && !cores.is_empty() && cores.iter().all(CoreLoad::is_full_of_own_work)
    }

    /// The host that sends and the host that receives, where the work goes one way.
    pub(crate) fn one_way(&self) -> Option<(Side, Side)> {
        let ways = [(count::SENT, count::RECEIVED), (count::BYTES_SENT, count::BYTES_RECEIVED)];
        ways.into_iter().find_map(|(sent, received)| conservation::one_way(self.test, sent, received))
    }

    /// The host of one side.
    pub(crate) fn host_of(&self, side: Side) -> Option<&'a str> {
        self.trials.iter().find_map(|trial| Some(record_of(trial, side)?.0))
    }

    /// The word for what a host does in this test: sender and receiver, or client and target.
    pub(crate) fn role_of(&self, host: &str) -> &'static str {
        let initiates = self.host_of(Side::Initiator).unwrap_or(&self.test.from) == host;
        let sends = self.one_way().map(|(from, _)| (from == Side::Initiator) == initiates);
        match (sends, initiates) {
            (Some(true), _) => "sender",
            (Some(false), _) => "receiver",
            (None, true) => "client",
            (None, false) => "target",
        }
    }

    /// What the sender offered of what its schedule asked for; nothing without a schedule.
    pub(crate) fn offered(&self) -> Option<OfferedLoad<'a>> {
        let (side, _) = self.one_way()?;
        let (sent, intended) = (self.total(side, count::SENT), self.total(side, count::INTENDED));
        Some(OfferedLoad { host: self.host_of(side)?, side, sent, intended, share: ratio(sent, intended)? })
    }

    /// What did not arrive, where everything goes one way.
    pub(crate) fn packets_lost(&self) -> Option<u64> {
        let (from, to) = self.one_way()?;
        Some(self.total(from, count::SENT).saturating_sub(self.total(to, count::RECEIVED)))
    }

    /// Whether the test reached what was asked of it and lost nothing, so that nothing holds it back.
    pub(crate) fn reached_target(&self) -> bool {
        let full = |limit: &Limit| {
            matches!(limit.kind, LimitKind::Asked | LimitKind::LineRate) && limit.used.is_some_and(|used| used >= 0.98)
        };
        self.test.limits.iter().any(full) && self.packets_lost().unwrap_or(0) == 0
    }

    /// The value of the test as a share of its nearest limit.
    fn limit_utilization(&self) -> Option<f64> {
        self.test.limits.iter().find_map(|limit| limit.used)
    }
}

/// A core without work for less than one part in twenty is taken for full: the kernel counts in ticks of 1 to 10 ms.
const FULL: f64 = 0.95;

/// All states of a core.
const CPU_STATES: [&str; 6] = [
    counter::CPU_USER_NS,
    counter::CPU_SYSTEM_NS,
    counter::CPU_SOFTIRQ_NS,
    counter::CPU_IRQ_NS,
    counter::CPU_STEAL_NS,
    counter::CPU_IDLE_NS,
];

fn shares(core: &str, states: &BTreeMap<&'static str, u64>) -> Option<CoreLoad> {
    let all: u64 = states.values().sum();
    let shares = states.iter().map(|(state, spent)| Some((*state, ratio(*spent, all)?))).collect::<Option<_>>()?;
    let mut of_core = CoreLoad { core: core.to_owned(), shares, own: 0.0 };
    of_core.own = of_core.busy();
    Some(of_core)
}

/// Says of each core what the test itself used of it: its threads there, and what interrupts took.
///
/// What threads without a core of their own used is shared out by what is left on the cores.
fn attribute_core_work(cores: &mut [CoreLoad], own: &BTreeMap<&str, f64>) {
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

/// A counter that grew, as evidence.
pub(crate) fn counter_evidence(host: &str, counter: &str, n: u64) -> Evidence {
    Evidence { host: host.to_owned(), counter: counter.to_owned(), value: grouped(n) }
}

/// A share as evidence.
pub(crate) fn ratio_evidence(host: &str, counter: &str, share: f64) -> Evidence {
    Evidence { host: host.to_owned(), counter: counter.to_owned(), value: percent(share) }
}

/// The part of a loss that a number of drops explains, at most all of it.
pub(crate) fn explained_ratio(n_dropped: u64, n_lost: Option<u64>) -> Option<f64> {
    n_lost.filter(|lost| *lost > 0).map(|lost| (approximate(n_dropped) / approximate(lost)).min(1.0))
}

/// Everything that is found in a run, the most important first; what several tests share is told once.
pub(crate) fn findings(run: &Run, context: &AnalysisContext) -> Vec<Finding> {
    let mut found: Vec<(f64, Finding)> = Vec::new();
    for test in run.tests.iter().filter(|test| test.unavailable.is_none() && !test.trials.is_empty()) {
        let seen = TestEvidence::new(run, test, context);
        // A test without a limit lacks an unknown part of it, so it comes after those that are known to lack much.
        let used = seen.limit_utilization().unwrap_or(f64::INFINITY);
        let mut of_test: Vec<Finding> = FINDING_RULES.iter().flat_map(|cause| cause.evaluate(&seen)).collect();
        if of_test.iter().any(nothing_done::explains_errors) {
            of_test.retain(|finding| finding.id != errors::ERRORS);
        }
        found.extend(of_test.into_iter().map(|finding| (used, finding)));
    }
    found.sort_by(|(a_used, a), (b_used, b)| b.severity.cmp(&a.severity).then(a_used.total_cmp(b_used)));
    let mut merged: Vec<Finding> = Vec::new();
    for (_, finding) in found {
        let same = |other: &&mut Finding| {
            let alike = (&other.id, &other.short, other.severity) == (&finding.id, &finding.short, finding.severity);
            // Two promises that were broken are two facts.
            alike && (finding.id != "promise-broken" || other.title == finding.title)
        };
        match merged.iter_mut().find(same) {
            Some(first) => merge_finding(first, finding),
            None => merged.push(finding),
        }
    }
    // What most tests share explains more than what makes one of them say little.
    let most = |finding: &Finding| run.tests.len() > 1 && 2 * finding.tests.len() > run.tests.len();
    merged.sort_by_key(|finding| (finding.severity == Severity::Remark, !most(finding)));
    merged
}

/// Adds the tests of a finding to one of the same cause, and what other hosts showed.
///
/// One host's counters of two tests would contradict each other without saying so: the first test's, which lacks most to its
/// limit, stand for both.
fn merge_finding(first: &mut Finding, other: Finding) {
    for test in other.tests {
        if !first.tests.contains(&test) {
            first.tests.push(test);
        }
    }
    let known: Vec<String> = first.evidence.iter().map(|evidence| evidence.host.clone()).collect();
    first.evidence.extend(other.evidence.into_iter().filter(|evidence| !known.contains(&evidence.host)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::units::Nanos;

    #[test]
    fn on_a_quiet_host_nothing_is_found() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1010, 990]);
        builder.udp_stream(&[(1000, 1000), (1000, 1000)]);
        builder.http(1000, 100);
        builder.wire("10000000000", "1500");
        builder.cpu("client", "cpu0", [20, 20, 10, 0]);
        builder.cpu("target", "cpu0", [10, 30, 30, 0]);
        builder.host_counter("target", (counter::TCP_OUT_SEGMENTS, ""), 100_000);
        builder.host_counter("target", (counter::TCP_RETRANS_SEGMENTS, ""), 3);
        let run = builder.analyzed();
        assert!(run.findings.is_empty(), "{:#?}", run.findings);
    }

    #[test]
    fn what_most_tests_share_leads_and_its_words_fit_a_column() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.growth_per_interval(|interval| 2000 - 60 * interval);
        builder.http(1000, 1);
        builder.tcp_rr(1000, 1);
        builder.cpu("target", "cpu0", [5, 5, 88, 0]);
        builder.cpu("target", "cpu1", [5, 5, 1, 0]);
        let run = builder.analyzed();
        let told: Vec<(&str, usize)> = run.findings.iter().map(|f| (f.id.as_str(), f.tests.len())).collect();
        assert_eq!((told[0], told[1]), (("core-saturated", 2), ("no-steady-state", 1)), "{told:?}");
        assert!(run.findings.iter().all(|finding| finding.short.chars().count() <= 12), "{:?}", run.findings);
        let expected = run.findings.iter().filter_map(|finding| finding.next.as_ref()?.expected.as_ref());
        assert!(expected.into_iter().all(|text| !text.split(' ').next().unwrap().ends_with('s')));
    }

    #[test]
    fn one_cause_of_several_tests_is_told_once_and_the_most_important_comes_first() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.http(1000, 1);
        builder.cpu("target", "cpu0", [5, 5, 88, 0]);
        builder.cpu("target", "cpu1", [5, 5, 1, 0]);
        builder.steal("client", Nanos::from_millis(600));
        let run = builder.analyzed();
        let told: Vec<(&str, usize)> = run.findings.iter().map(|f| (f.id.as_str(), f.tests.len())).collect();
        assert_eq!(told[0], ("steal", 2));
        assert!(told.contains(&("core-saturated", 1)), "{told:?}");
        assert_eq!(run.findings[0].severity, Severity::Disturbs);
        assert!(run.tests.iter().all(|test| test.findings.contains(&"steal".to_owned())));
    }
}
