//! A core of the test runs slower than it is made for.

use fathom_model::{
    Finding, NextStep, Severity,
    names::host::{CPU_FREQUENCY_KHZ, CPU_NOMINAL_FREQUENCY_KHZ},
    units::{approximate, percent},
};

use super::FindingRule;
use crate::{
    cores::CoreLoad,
    evidence::{TestEvidence, text_evidence},
    gap,
};

/// At this part of its nominal frequency and above, a core runs as fast as one may expect: the firmware lowers it a little where many cores work.
const AS_MADE: f64 = 0.9;
/// A core that the test uses less than this share of the time tells nothing: what is idle runs slowly on purpose.
const USED_MIN: f64 = 0.1;

/// Governors that do not raise the frequency with the load.
const SLOW_GOVERNORS: [&str; 2] = ["powersave", "userspace"];
/// Drivers whose governors only give the processor a hint (`Documentation/admin-guide/pm/intel_pstate.rst`, `amd-pstate.rst`).
const LEAVE_IT: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];

/// Compares the frequency of the busiest core of each host with the one that it is made for.
pub(crate) struct LowFrequency;

/// The busiest core of a host, and its two frequencies in kHz.
struct SlowCore<'a> {
    host: &'a str,
    core: CoreLoad,
    current: f64,
    nominal: f64,
}

impl SlowCore<'_> {
    fn part(&self) -> f64 {
        self.current / self.nominal
    }
}

impl FindingRule for LowFrequency {
    fn id(&self) -> &'static str {
        "low-frequency"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["too-hot"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let slow_core = |host| {
            let core = seen.cores(host).into_iter().next()?;
            let khz = |gauge| seen.mean_of_core(host, gauge, &core.core).map(approximate).filter(|khz| *khz > 0.0);
            let (current, nominal) = (khz(CPU_FREQUENCY_KHZ)?, khz(CPU_NOMINAL_FREQUENCY_KHZ)?);
            Some(SlowCore { host, core, current, nominal })
        };
        let is_slow = |slow: &SlowCore<'_>| slow.part() < AS_MADE && slow.core.own >= USED_MIN;
        let slow = seen.hosts().filter_map(slow_core).filter(is_slow).min_by(|a, b| a.part().total_cmp(&b.part()));
        slow.map(|slow| finding(self.id(), seen, &slow)).into_iter().collect()
    }
}

fn finding(id: &'static str, seen: &TestEvidence<'_>, slow: &SlowCore<'_>) -> Finding {
    let SlowCore { host, core: load, .. } = slow;
    let core = &load.core;
    let explained = load.is_full_of_own_work().then(|| gap::explained_by_speed(seen, slow.part()));
    let is_cause =
        slow.part() < gap::HALF && explained.is_some_and(|part| part >= gap::HALF) && !gap::reaches_a_limit(seen);
    let costs = if load.is_full() { "and has no idle time left" } else { "so that all its work takes longer" };
    let title = format!(
        "{core} of {host} runs at {}, below its nominal {}, {costs}: {}",
        gigahertz(slow.current),
        gigahertz(slow.nominal),
        slow_governor(seen, host).map_or_else(
            || "its power settings or its cooling keep it slow".to_owned(),
            |name| format!("its governor is {name}")
        ),
    );
    let next = NextStep::new(format!("grep . /sys/devices/system/cpu/{core}/cpufreq/scaling_*")).on(host).expected(
        "show a scaling_governor other than performance, or a scaling_max_freq that is low; otherwise the power settings of its firmware come next",
    );
    let severity = if is_cause { Severity::HoldsBack } else { Severity::Remark };
    seen.finding(id, severity, "slow core", title)
        .evidence([
            text_evidence(host, format!("{CPU_FREQUENCY_KHZ} {core}"), gigahertz(slow.current)),
            text_evidence(host, format!("{CPU_NOMINAL_FREQUENCY_KHZ} {core}"), gigahertz(slow.nominal)),
            text_evidence(host, format!("busy {core}"), percent(load.busy())),
        ])
        .explains(explained)
        .next(next)
}

/// Returns the governor of a host if it keeps full cores slow. With a driver that leaves the frequency to the processor, `powersave` does not.
fn slow_governor<'a>(seen: &TestEvidence<'a>, host: &str) -> Option<&'a str> {
    let fact = |name| seen.environment(host)?.get("cpu", name);
    let leaves_it = fact("frequency_driver").is_some_and(|driver| LEAVE_IT.contains(&driver));
    fact("governor").filter(|name| SLOW_GOVERNORS.contains(name) && !leaves_it)
}

fn gigahertz(khz: f64) -> String {
    format!("{:.2} GHz", khz / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    /// The finding about a core at these MHz of 3,000, which the test keeps busy for a share of the time.
    fn found(mhz: u64, busy: u64, governor: &str) -> Option<Finding> {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.cpu("target", "cpu0", [0, busy, 0, 0]);
        builder.series("target", (CPU_FREQUENCY_KHZ, "cpu0"), &[mhz * 1_000; 4]);
        builder.series("target", (CPU_NOMINAL_FREQUENCY_KHZ, "cpu0"), &[3_000_000; 4]);
        builder.run.hosts.get_mut("target").unwrap().environment.note("cpu", "governor", governor);
        builder.finding("low-frequency")
    }

    #[test]
    fn a_full_core_at_less_than_half_of_its_frequency_is_the_cause() {
        let finding = found(1_200, 100, "powersave").unwrap();
        assert_eq!(
            finding.title,
            "cpu0 of target runs at 1.20 GHz, below its nominal 3.00 GHz, and has no idle time left: its governor is powersave"
        );
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, Some(0.6)));
        let finding = found(2_400, 100, "performance").unwrap();
        assert_eq!(finding.severity, Severity::Remark, "a fifth more would not be much");
        assert!(finding.title.ends_with("its power settings or its cooling keep it slow"), "{}", finding.title);
        let explains_most = found(1_600, 100, "performance").unwrap();
        assert_eq!(explains_most.severity, Severity::Remark, "as fast as all cores at once may be");
    }

    #[test]
    fn a_core_that_has_time_answers_later_and_one_that_idles_or_is_fast_says_nothing() {
        let finding = found(1_200, 30, "schedutil").unwrap();
        assert_eq!((finding.severity, finding.explains), (Severity::Remark, None));
        assert!(finding.title.contains("so that all its work takes longer"), "{}", finding.title);
        assert_eq!(found(1_200, 5, "schedutil"), None);
        assert_eq!(found(2_800, 100, "performance"), None);
        assert_eq!(found(3_700, 100, "performance"), None);
    }
}
