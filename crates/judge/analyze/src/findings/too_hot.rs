//! A processor slowed a core down because it was too hot.

use fathom_model::{Finding, NextStep, Severity, names::host::CPU_TOO_HOT_NS, units::percent, units::ratio};

use super::FindingRule;
use crate::evidence::{TestEvidence, ratio_evidence};

/// At this share of the time and above, a value is that of a slower processor at times.
const REPORT_MIN: f64 = 0.01;
/// At this share and above, the value depends on the cooling as much as on the test.
const DISTURBS: f64 = 0.1;

/// A core on which the test used less than this share of the time takes nothing from it.
const USED_MIN: f64 = 0.01;
/// A core that is busy for less than this share of the time does its work slower and in time.
const BUSY: f64 = 0.5;

/// Looks for the core that was slowed down most, of those that the test used.
pub(crate) struct TooHot;

impl FindingRule for TooHot {
    fn id(&self) -> &'static str {
        "too-hot"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let of_host = |host| {
            let loads = seen.cores(host);
            // Where the cores do not tell what they did, the test may have used each.
            let busy = |core: &str| match loads.iter().find(|load| load.core == core) {
                Some(load) if load.own < USED_MIN => None,
                Some(load) => Some(load.busy()),
                None => loads.is_empty().then_some(1.0),
            };
            let mut grown = seen.growth_by_instance(host, CPU_TOO_HOT_NS).into_iter();
            let (core, time, busy) = grown.find_map(|(core, time)| Some((core, time, busy(core)?)))?;
            Some((host, core, ratio(time, seen.sampled_time(host)?.0)?.min(1.0), busy))
        };
        let most = seen.hosts().filter_map(of_host).max_by(|a, b| a.2.total_cmp(&b.2));
        let Some((host, core, share, busy)) = most.filter(|(_, _, share, _)| *share > REPORT_MIN) else {
            return Vec::new();
        };
        let needs_core = busy >= BUSY && !seen.reached_target();
        let severity = if share > DISTURBS && needs_core { Severity::Disturbs } else { Severity::Remark };
        let faster = if needs_core { ": better cooling makes this test faster" } else { "" };
        let title = format!("{core} of {host} was too hot and ran slower {} of the time{faster}", percent(share));
        let next = NextStep::new(format!("grep . /sys/devices/system/cpu/{core}/thermal_throttle/*"))
            .on(host)
            .expected("show counts and times that grow under load while the machine is cooled too little");
        vec![
            seen.finding(self.id(), severity, "too hot", title)
                .evidence([ratio_evidence(host, format!("{CPU_TOO_HOT_NS} {core}"), share)])
                .next(next),
        ]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Severity, names::host::CPU_TOO_HOT_NS};

    use crate::run_builder::RunBuilder;

    #[test]
    fn time_that_a_core_was_slowed_down_is_told_from_one_percent_and_disturbs_from_ten() {
        for (hot_ms, severity) in [(5, None), (50, Some(Severity::Remark)), (300, Some(Severity::Disturbs))] {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.host_counter("target", (CPU_TOO_HOT_NS, "cpu1"), hot_ms * 1_000_000);
            let finding = builder.finding("too-hot");
            assert_eq!(finding.as_ref().map(|finding| finding.severity), severity, "{hot_ms} ms");
            assert!(finding.is_none_or(|finding| finding.title.starts_with("cpu1 of target was too hot")));
        }
    }

    #[test]
    fn a_core_that_the_test_does_not_use_or_need_may_be_hot() {
        let severity = |own_ms: u64, percent: [u64; 4]| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.cpu("target", "cpu1", percent);
            builder.own_cpu("target", &[("cpu1", own_ms)]);
            builder.host_counter("target", (CPU_TOO_HOT_NS, "cpu1"), 300_000_000);
            builder.finding("too-hot").map(|finding| finding.severity)
        };
        assert_eq!(severity(800, [40, 40, 0, 0]), Some(Severity::Disturbs));
        assert_eq!(severity(100, [10, 0, 0, 0]), Some(Severity::Remark), "it has time left");
        assert_eq!(severity(0, [80, 10, 0, 0]), None, "that of another program");
    }
}
