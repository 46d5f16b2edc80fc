//! A host does not read its clock from its cores.

use fathom_model::{Finding, NextStep, Severity, names::SLOW_CLOCKS};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// Compares the clock source with those that take long to read.
pub(crate) struct SlowClock;

impl FindingRule for SlowClock {
    fn id(&self) -> &'static str {
        "slow-clock"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let clock =
            |host| seen.environment(host)?.get("kernel", "clocksource").filter(|name| SLOW_CLOCKS.contains(name));
        let Some((host, name)) = seen.hosts().find_map(|host| Some((host, clock(host)?))) else { return Vec::new() };
        let title = format!(
            "{host} reads its clock from {name} and not from its cores: reading it takes a microsecond or more, which adds to every latency and costs rate"
        );
        let next = NextStep::new("cat /sys/devices/system/clocksource/clocksource0/available_clocksource")
            .on(host)
            .expected("list tsc, unless the kernel found it unstable; its log (dmesg) says why");
        vec![
            seen.finding(self.id(), Severity::Remark, "slow clock", title)
                .evidence([text_evidence(host, "clocksource", name)])
                .next(next),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_clock_outside_the_cores_is_told() {
        let title = |clock: &str| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(1_000, 1);
            builder.run.hosts.get_mut("target").unwrap().environment.note("kernel", "clocksource", clock);
            builder.finding("slow-clock").map(|finding| finding.title)
        };
        assert!(title("hpet").unwrap().starts_with("target reads its clock from hpet"));
        for of_cores in ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"] {
            assert_eq!(title(of_cores), None);
        }
    }
}
