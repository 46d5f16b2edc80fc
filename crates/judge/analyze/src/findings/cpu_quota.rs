//! A quota of a control group stopped a host of the test.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host,
    units::{approximate, percent},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, ratio_evidence};

/// A quota that takes less than this share of the time holds nothing back.
const HOLDS_BACK: f64 = 0.05;

/// Compares the time that quotas took with the measured time.
pub(crate) struct CpuQuota;

impl FindingRule for CpuQuota {
    fn id(&self) -> &'static str {
        "cpu-quota"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.reached_target() || seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let on_host = |host| {
            let lost = approximate(seen.growth(host, host::CGROUP_THROTTLED_NS, None));
            let span = seen.sampled_time(host)?;
            // The kernel counts each core of a group.
            let share = (lost / approximate(span.0)).min(1.0);
            let limit = seen.environment(host).and_then(|facts| facts.get("cpu", "cgroup_limit_cores"));
            let cores =
                limit.filter(|limit| *limit != "none").map_or_else(String::new, |limit| format!(" of {limit} cores"));
            (share >= HOLDS_BACK).then(|| Finding {
                id: self.id().to_owned(),
                short: "cpu quota".to_owned(),
                title: format!(
                    "the CPU quota{cores} of its control group stopped fathom on {host} {} of the time",
                    percent(share)
                ),
                severity: Severity::HoldsBack,
                tests: vec![seen.test.name.clone()],
                evidence: vec![ratio_evidence(host, host::CGROUP_THROTTLED_NS, share)],
                explains: None,
                next: Some(NextStep {
                    command: "cat /proc/self/cgroup; cat /sys/fs/cgroup/cpu.max".to_owned(),
                    on: Some(host.to_owned()),
                    expected: Some(
                        "show the group and its quota; raise it (CPU limit of the container or unit)".to_owned(),
                    ),
                }),
            })
        };
        let hosts = seen.hosts().take(if seen.is_one_machine() { 1 } else { usize::MAX });
        hosts.filter_map(on_host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_quota_that_stopped_the_target_two_thirds_of_the_time_is_named() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), 800_000_000);
        builder.run.hosts.get_mut("target").unwrap().environment.note("cpu", "cgroup_limit_cores", "0.10");
        let finding = builder.finding("cpu-quota").unwrap();
        assert!(finding.title.starts_with("the CPU quota of 0.10 cores of its control group stopped fathom on target"));
        builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), 1_000_000);
        assert_eq!(builder.finding("cpu-quota"), None);
    }
}
