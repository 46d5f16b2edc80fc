//! Threads of the kernel used the cores, maybe for the test.

use fathom_model::{Finding, Layer, NextStep, Severity, units::approximate};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// Below this share of all cores, kernel threads are not reported.
const REPORT_MIN: f64 = 0.1;
/// A single one that fills a core is reported on a host of any size.
const A_CORE: f64 = 0.9;

/// Looks at the time of kernel threads other than those of softirqs.
///
/// Some of them work for the test: they encrypt for `WireGuard` (`wg-crypt`), carry the packets of a guest (`vhost`), or receive for a card (`napi`,
/// with `threaded` in sysfs). Others write files. It is a remark, because nobody tells them apart.
pub(crate) struct KernelThreads;

impl FindingRule for KernelThreads {
    fn id(&self) -> &'static str {
        "kernel-threads"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Single packets need no core, and kernel threads that send frames are the test's.
        if matches!(seen.test.layer, Layer::Path | Layer::Frames) {
            return Vec::new();
        }
        let used = seen.hosts().map(|host| (host, seen.kernel_threads(host), seen.cores(host).len()));
        let most = used.max_by(|a, b| a.1.total_cmp(&b.1));
        let is_much = |n_cores: usize, used: f64| used >= A_CORE || used >= REPORT_MIN * approximate(n_cores as u64);
        let Some((host, used, n_cores)) = most.filter(|(_, used, n_cores)| *n_cores > 0 && is_much(*n_cores, *used))
        else {
            return Vec::new();
        };
        let title = format!(
            "kernel threads of {host} used {used:.1} of its {n_cores} cores, possibly for the test: WireGuard, vhost and threaded NAPI work in such threads"
        );
        vec![
            seen.finding(self.id(), Severity::Remark, "kernel cpu", title)
                .evidence([text_evidence(host, "kernel threads, cores", format!("{used:.2}"))])
                .next(NextStep::new("top").on(host).expected("show which threads")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;
    use fathom_model::{Severity, units::Nanos};

    #[test]
    fn threads_of_the_kernel_are_no_other_programs_and_are_told_of() {
        let found = |kernel_percent: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.cpu("client", "cpu0", [5, 80, 5, 0]);
            builder.own_cpu("client", &[("cpu0", 100)]);
            let host = builder.run.tests[0].trials[0].hosts.get_mut("client").unwrap();
            host.kernel_threads_ns = Some(Nanos(host.span().0 / 100 * kernel_percent));
            ["other-programs", "kernel-threads"].map(|id| builder.finding(id).map(|finding| finding.severity))
        };
        assert_eq!(found(0), [Some(Severity::Disturbs), None]);
        assert_eq!(found(65), [None, Some(Severity::Remark)]);
    }
}
