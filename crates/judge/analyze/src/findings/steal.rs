//! The hypervisor took CPU time from a core.

use fathom_model::{Finding, NextStep, Severity, names::host::CPU_STEAL_NS, units::percent};

use super::FindingRule;
use crate::{
    cores::{CoreLoad, FULL},
    evidence::{TestEvidence, ratio_evidence},
    gap,
};

/// At this share of a core's time and above, a value is less steady than it seems.
const REPORT_MIN: f64 = 0.02;
/// At this share and above, the value depends on the other virtual machines as much as on the test.
const DISTURBS: f64 = 0.1;

/// A core on which the test used less than this share of the time takes nothing from it.
const USED_MIN: f64 = 0.01;

/// Looks for the core on which most was stolen from the test.
pub(crate) struct CpuSteal;

impl FindingRule for CpuSteal {
    fn id(&self) -> &'static str {
        "steal"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let cores = seen.hosts().flat_map(|host| seen.cores(host).into_iter().map(move |core| (host, core)));
        let most = cores
            .filter(|(_, core)| core.own >= USED_MIN)
            .max_by(|a, b| stolen_from_test(&a.1).total_cmp(&stolen_from_test(&b.1)));
        let Some((host, core)) = most.filter(|(_, core)| core.share(CPU_STEAL_NS) > REPORT_MIN) else {
            return Vec::new();
        };
        let share = core.share(CPU_STEAL_NS);
        let severity = if stolen_from_test(&core) > DISTURBS { Severity::Disturbs } else { Severity::Remark };
        let title = format!(
            "the hypervisor took {} of {} of {host} away while it was needed; repeat the run on a dedicated machine",
            percent(share),
            core.core
        );
        // The guest shows no more than the share. Who took it, and why, is known to the hypervisor.
        let next = NextStep::new("vmstat 1").on(host).expected(
            "show whether it goes on (st); its reason is seen on the hypervisor alone: more virtual cores than real ones, or a limit or used-up credits of this \
             machine",
        );
        // A core that was idle at times had time left to make up for it.
        let has_no_time_left = core.busy() + share >= FULL;
        vec![
            seen.finding(self.id(), severity, "stolen time", title)
                .evidence([ratio_evidence(host, format!("{CPU_STEAL_NS} {}", core.core), share)])
                .explains(gap::explained_by_time(seen, share).filter(|_| has_no_time_left))
                .next(next),
        ]
    }
}

/// The part of the stolen time that the test lost: as large as its part of the work.
fn stolen_from_test(core: &CoreLoad) -> f64 {
    let busy = core.busy();
    if busy > 0.0 { core.share(CPU_STEAL_NS) * core.own / busy } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;
    use fathom_model::{
        Severity,
        names::host::{CPU_IDLE_NS, CPU_SOFTIRQ_NS, CPU_USER_NS},
        units::Nanos,
    };

    #[test]
    fn stolen_time_is_told_from_two_percent_and_disturbs_from_ten() {
        for (stolen_ms, severity) in [(10, None), (50, Some(Severity::Remark)), (300, Some(Severity::Disturbs))] {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.steal("target", Nanos::from_millis(stolen_ms));
            assert_eq!(builder.finding("steal").map(|finding| finding.severity), severity, "{stolen_ms} ms");
        }
    }

    #[test]
    fn stolen_time_explains_its_share_of_a_core_that_had_no_other_left() {
        let explains = |stolen_ms: u64, idle_ms: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.steal("target", Nanos::from_millis(stolen_ms));
            builder.series("target", (CPU_IDLE_NS, "cpu3"), &[0, 0, idle_ms * 1_000_000, idle_ms * 1_000_000]);
            let finding = builder.finding("steal").unwrap();
            assert_eq!(finding.next.unwrap().command, "vmstat 1");
            finding.explains
        };
        assert_eq!(explains(900, 0), Some(0.9));
        assert_eq!(explains(600, 300), None, "it was idle at times");
    }

    #[test]
    fn a_core_that_the_test_does_not_use_takes_nothing_from_it() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.steal("target", Nanos::from_millis(300));
        for trial in &mut builder.run.tests[0].trials {
            let target = trial.hosts.get_mut("target").unwrap();
            let softirqs = target.series.iter_mut().filter(|series| series.name == CPU_SOFTIRQ_NS);
            softirqs.for_each(|series| series.name = CPU_USER_NS.to_owned());
        }
        assert!(builder.finding("steal").is_some(), "whose time it was is not known");
        builder.own_cpu("target", &[("cpu0", 500)]);
        assert_eq!(builder.finding("steal"), None);
    }

    #[test]
    fn stolen_time_of_a_core_that_hardly_works_for_the_test_disturbs_nothing() {
        let severity = |own_ms: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.steal("target", Nanos::from_millis(150));
            builder.series("target", (CPU_USER_NS, "cpu3"), &[0, 0, 400_000_000, 400_000_000]);
            builder.own_cpu("target", &[("cpu3", own_ms)]);
            builder.finding("steal").map(|finding| finding.severity)
        };
        assert_eq!([severity(400), severity(20)], [Some(Severity::Disturbs), Some(Severity::Remark)]);
    }
}
