//! Tasks of a host waited for memory, or were killed because it ran out.

use fathom_model::{
    Evidence, Finding, NextStep, Severity,
    names::host,
    units::{grouped, percent, ratio},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence, ratio_evidence};

/// If some task waits for memory in at least this share of the time, the work that it does is measurably late.
const PRESSURE_MIN: f64 = 0.1;

/// Looks at the time that tasks waited for memory (PSI, `some`), and at the memory limit of the control group.
///
/// A group at its limit alone is no cause: the kernel fills the limit with file pages, and takes them back without harm
/// (Documentation/admin-guide/cgroup-v2.rst, `memory.events`). The limit names the reason of a wait. While some task waits, others work: what the
/// wait took of the test is not known.
pub(crate) struct MemoryPressure;

impl FindingRule for MemoryPressure {
    fn id(&self) -> &'static str {
        "memory-pressure"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let on_machine = |machine| {
            let hosts: Vec<&str> = if seen.is_one_machine() { seen.hosts().collect() } else { vec![machine] };
            self.on_machine(seen, machine, &hosts)
        };
        seen.machines().filter_map(on_machine).collect()
    }
}

impl MemoryPressure {
    /// Judges one machine: the pressure is its own, and a group that of one of its hosts, or of all.
    fn on_machine(&self, seen: &TestEvidence<'_>, machine: &str, hosts: &[&str]) -> Option<Finding> {
        // The host whose group suffers most, and the first one if none does.
        let at_limit = |host: &str| {
            seen.growth(host, host::CGROUP_MEMORY_HIGH, None) + seen.growth(host, host::CGROUP_MEMORY_MAX, None)
        };
        let of_group = |host: &str| if seen.is_of_server(host) { (0, 0) } else { (killed(seen, host), at_limit(host)) };
        let host = hosts.iter().rev().copied().max_by_key(|host| of_group(host))?;
        let (killed, at_limit) = of_group(host);
        let share = waited(seen, machine).filter(|share| *share >= PRESSURE_MIN);
        let group = "the control group of fathom";
        let (short, title, severity) = match (killed, share) {
            (0, None) => return None,
            (0, Some(share)) if at_limit == 0 => (
                "memory",
                format!("tasks of {host} waited for memory {} of the time: it is short of memory", percent(share)),
                Severity::Disturbs,
            ),
            (0, Some(share)) => (
                "memory",
                format!(
                    "tasks of {host} waited for memory {} of the time: {group} is at its memory limit",
                    percent(share)
                ),
                Severity::HoldsBack,
            ),
            (n, _) => (
                "oom kill",
                format!("the kernel killed processes of {group} on {host} because memory ran out: {}", grouped(n)),
                Severity::HoldsBack,
            ),
        };
        let counted = [(host::CGROUP_OOM_KILLS, killed), ("cgroup_memory_high and _max", at_limit)];
        let mut evidence: Vec<Evidence> =
            counted.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| counter_evidence(host, name, n)).collect();
        evidence.extend(share.map(|share| ratio_evidence(host, format!("{} memory", host::PRESSURE_SOME_NS), share)));
        let next = if severity == Severity::Disturbs {
            NextStep::new("vmstat 1")
                .expected("show free memory and swapping (si, so); end other programs or add memory")
        } else if killed > 0 {
            NextStep::new("dmesg | grep oom-kill").expected(
                "show, as root, the group (oom_memcg) that ran out of memory, or global_oom if the machine did; raise its limit, or start fathom outside it",
            )
        } else {
            NextStep::new("cat /proc/self/cgroup").expected(
                "show the group; raise its memory.max (version 1: memory.limit_in_bytes), or start fathom outside it",
            )
        };
        Some(seen.finding(self.id(), severity, short, title).evidence(evidence).next(next.on(host)))
    }
}

/// Returns the tasks that were killed from the first to the last sample of the test.
///
/// A trial in which a task was killed does not end well and is left out of the value, and its host may not have counted to the end. So the
/// time between trials counts too.
fn killed(seen: &TestEvidence<'_>, host: &str) -> u64 {
    let records = seen.test.trials.iter().filter_map(|trial| trial.hosts.get(host));
    let values = || {
        records.clone().flat_map(|record| record.series_of(host::CGROUP_OOM_KILLS)).flat_map(|series| &series.values)
    };
    values().max().zip(values().min()).map_or(0, |(most, least)| most - least)
}

/// Returns the share of the time in which some task of a host waited for memory; `None` if the host does not tell.
pub(crate) fn waited(seen: &TestEvidence<'_>, host: &str) -> Option<f64> {
    let is_counted = seen.has_counter(host, host::PRESSURE_SOME_NS);
    let waited = seen.growth(host, host::PRESSURE_SOME_NS, Some("memory"));
    ratio(waited, seen.sampled_time(host)?.0).filter(|_| is_counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    /// The samples of a trial span 1.2 s.
    fn waiting(millis: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("target", (host::PRESSURE_SOME_NS, "cpu"), 1_200_000_000);
        builder.host_counter("target", (host::PRESSURE_SOME_NS, "memory"), millis * 1_000_000);
        builder
    }

    #[test]
    fn a_host_short_of_memory_disturbs_from_a_tenth_of_the_time() {
        assert_eq!(waiting(100).finding("memory-pressure"), None, "8 %; waiting for cores is no matter here");
        let finding = waiting(300).finding("memory-pressure").unwrap();
        assert_eq!(finding.title, "tasks of target waited for memory 25 % of the time: it is short of memory");
        assert_eq!((finding.severity, finding.next.unwrap().command.as_str()), (Severity::Disturbs, "vmstat 1"));
    }

    #[test]
    fn a_limit_of_the_own_group_holds_back_if_it_makes_tasks_wait() {
        let mut builder = waiting(300);
        builder.host_counter("target", (host::CGROUP_MEMORY_MAX, ""), 7);
        let finding = builder.finding("memory-pressure").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert!(finding.title.ends_with("the control group of fathom is at its memory limit"), "{}", finding.title);
        let mut builder = waiting(0);
        builder.host_counter("target", (host::CGROUP_MEMORY_MAX, ""), 7);
        assert_eq!(builder.finding("memory-pressure"), None, "file pages fill every limit");
    }

    #[test]
    fn killed_tasks_are_told_whatever_else_is_known() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        assert_eq!(builder.finding("memory-pressure"), None, "nothing was sampled");
        builder.host_counter("client", (host::CGROUP_OOM_KILLS, ""), 2);
        let finding = builder.finding("memory-pressure").unwrap();
        assert_eq!((finding.short.as_str(), finding.severity), ("oom kill", Severity::HoldsBack));
        assert!(finding.title.ends_with("because memory ran out: 2"), "{}", finding.title);
    }

    #[test]
    fn of_two_hosts_of_one_machine_the_one_is_named_in_whose_group_tasks_were_killed() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.one_machine();
        builder.host_counter("client", (host::CGROUP_OOM_KILLS, ""), 0);
        builder.host_counter("client", (host::CGROUP_MEMORY_MAX, ""), 9);
        builder.host_counter("target", (host::CGROUP_OOM_KILLS, ""), 3);
        let title = |builder: &RunBuilder| builder.finding("memory-pressure").unwrap().title;
        assert!(title(&builder).contains("on target because memory ran out: 3"), "{}", title(&builder));
        let evidence = builder.finding("memory-pressure").unwrap().evidence;
        assert!(
            evidence.iter().all(|shown| shown.host == "target" && shown.counter == host::CGROUP_OOM_KILLS),
            "{evidence:?}"
        );
        builder.host_counter("client", (host::CGROUP_OOM_KILLS, ""), 3);
        assert!(
            title(&builder).contains("on client because memory ran out: 3"),
            "one group of both: {}",
            title(&builder)
        );
    }

    #[test]
    fn a_task_that_is_killed_between_the_samples_of_two_trials_counts() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.series("client", (host::CGROUP_OOM_KILLS, ""), &[4]);
        assert_eq!(builder.finding("memory-pressure"), None, "all of them were before the test");
        let later = builder.run.tests[0].trials[1].hosts.get_mut("client").unwrap();
        later.series.last_mut().unwrap().values = vec![5];
        assert!(builder.finding("memory-pressure").unwrap().title.ends_with("because memory ran out: 1"));
    }
}
