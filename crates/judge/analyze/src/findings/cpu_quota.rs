//! A quota of a control group stopped a host of the test.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host,
    units::{approximate, percent},
};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, ratio_evidence},
    gap,
};

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
        let mut stopped: Vec<(&str, f64)> =
            seen.hosts().filter_map(|host| Some((host, stopped_time(seen, host)?))).collect();
        // Both ends of one machine may be in the same group.
        stopped.sort_by(|a, b| b.1.total_cmp(&a.1));
        stopped.truncate(if seen.is_one_machine() { 1 } else { usize::MAX });
        stopped.into_iter().map(|(host, share)| self.on_host(seen, host, share)).collect()
    }
}

/// Returns the share of the measured time in which quotas stopped a host, if that holds a test back.
fn stopped_time(seen: &TestEvidence<'_>, host: &str) -> Option<f64> {
    let lost = approximate(seen.growth(host, host::CGROUP_THROTTLED_NS, None));
    // The kernel counts each core of a group.
    let share = (lost / approximate(seen.sampled_time(host)?.0)).min(1.0);
    (share >= HOLDS_BACK).then_some(share)
}

impl CpuQuota {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str, share: f64) -> Finding {
        let limit = seen.environment(host).and_then(|facts| facts.get("cpu", "cgroup_limit_cores"));
        let cores =
            limit.filter(|limit| *limit != "none").map_or_else(String::new, |limit| format!(" of {limit} cores"));
        let title = format!(
            "the CPU quota{cores} of its control group stopped fathom on {host} {} of the time",
            percent(share)
        );
        seen.finding(self.id(), Severity::HoldsBack, "cpu quota", title)
            .evidence([ratio_evidence(host, host::CGROUP_THROTTLED_NS, share)])
            .explains(gap::explained_by_time(seen, share))
            .next(
                NextStep::new("cat /proc/self/cgroup; cat /sys/fs/cgroup/cpu.max")
                    .on(host)
                    .expected("show the group and its quota; raise it (CPU limit of the container or unit)"),
            )
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
        assert!(finding.explains.is_some_and(|share| share >= 0.5), "{finding:?}");
        builder.one_machine();
        assert!(builder.finding("cpu-quota").is_some(), "the second host of one machine has a group of its own");
        builder.host_counter("target", (host::CGROUP_THROTTLED_NS, ""), 1_000_000);
        assert_eq!(builder.finding("cpu-quota"), None);
    }
}
