//! A core ended its turn at receiving with packets left, although it had time for more.

use fathom_model::{
    Finding, NextStep, Severity,
    names::host,
    units::{Nanos, approximate, grouped, percent, ratio},
};

use super::{FindingRule, drops::doubled_sysctl};
use crate::{
    cores::CoreLoad,
    evidence::{TestEvidence, counter_evidence, explained_ratio, ratio_evidence},
};

/// A core whose turn ends waits for its next one, up to a tick of the scheduler (1 to 10 ms): ten in a second may take a tenth of its time.
const PER_SECOND_MIN: f64 = 10.0;
/// Fewer dropped packets explain nothing.
const PACKETS_MIN: u64 = 10;
/// Less than this share of the packets holds nothing back.
const SHARE_MIN: f64 = 1e-3;
/// Twice `net.core.netdev_budget`, which is 300 packets unless the host sets another value (`net/core/hotdata.c`, Linux 6.18).
const BUDGET_DOUBLED: u64 = 600;

/// Looks for turns that ended early (`time_squeeze`) next to drops, or on a full core.
///
/// `net_rx_action` of `net/core/dev.c` ends a turn after `net.core.netdev_budget` packets or `netdev_budget_usecs`. With idle time left,
/// that limit is why packets wait and are dropped. On a full core it is a symptom, because a larger budget adds no time.
pub(crate) struct ReceiveBudget;

impl FindingRule for ReceiveBudget {
    fn id(&self) -> &'static str {
        "receive-budget"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["other-programs", "cpu-quota", "one-core-receives"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // The counter belongs to a core, so all hosts on one machine show the same one.
        seen.machines().filter_map(|host| self.on_host(seen, host)).collect()
    }
}

impl ReceiveBudget {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let grown = seen.growth_by_core(host, host::SOFTNET_SQUEEZED);
        let (core, n) = grown.first()?;
        let per_second = approximate(*n) * 1e9 / approximate(sampled_time_of_cores(seen, host)?.0);
        if per_second < PER_SECOND_MIN {
            return None;
        }
        // Without the times of the core nobody knows whether it had time for more.
        let load = seen.cores(host).into_iter().find(|load| load.core == *core)?;
        let n_dropped = dropped_before_core(seen, host, core);
        let has_time = !load.is_full();
        if has_time && n_dropped < PACKETS_MIN {
            return None;
        }
        let mut evidence = vec![
            counter_evidence(host, format!("{} {core}", host::SOFTNET_SQUEEZED), *n),
            ratio_evidence(host, format!("busy {core}"), load.busy()),
        ];
        evidence.extend((n_dropped > 0).then(|| counter_evidence(host, "dropped before this core", n_dropped)));
        let budget = doubled_sysctl(seen, host, "net.core.netdev_budget", BUDGET_DOUBLED);
        let next = NextStep::new(format!("sysctl -w net.core.netdev_budget={budget}")).expected(
            "let a core take more packets in one turn; raise net.core.netdev_budget_usecs by the same factor",
        );
        let received = seen.growth(host, host::DEV_RX_FRAMES, Some(seen.interface(host)));
        // A ring overflows for other reasons too, such as bursts: it has a rule of its own. The backlog of a core waits for its turns alone.
        let of_backlog = seen.growth(host, host::SOFTNET_DROPPED, Some(core));
        let matters = ratio(of_backlog, received + n_dropped).is_some_and(|share| share >= SHARE_MIN);
        let severity = if has_time && matters { Severity::HoldsBack } else { Severity::Remark };
        Some(
            seen.finding(self.id(), severity, "rx budget", title((core, host), (*n, n_dropped), matters, &load))
                .evidence(evidence)
                .explains(explained_ratio(of_backlog, seen.packets_lost()).filter(|_| has_time))
                .next((has_time && matters).then(|| next.on(host))),
        )
    }
}

/// The sampled time of the trials by which the cores of a host are judged.
fn sampled_time_of_cores(seen: &TestEvidence<'_>, host: &str) -> Option<Nanos> {
    let spans = seen.trials_of_cores(host).into_iter().filter_map(|trial| Some(trial.hosts.get(host)?.span()));
    spans.reduce(|all, one| all + one).filter(|span| *span > Nanos::ZERO)
}

fn title((core, host): (&str, &str), (n, n_dropped): (u64, u64), is_cause: bool, load: &CoreLoad) -> String {
    let squeezed = format!("{core} of {host} ended {} turns at receiving with packets left", grouped(n));
    let busy = percent(load.busy());
    if load.is_full() {
        return format!("{squeezed} because it has no idle time (busy {busy}): a larger packet budget does not help");
    }
    let is = if is_cause { "is" } else { "may be" };
    format!(
        "the packet budget {is} too small: {squeezed}, and {} were dropped while it was busy only {busy}",
        grouped(n_dropped)
    )
}

/// Returns the packets that were dropped before a core took them: from its backlog, and by the test's device if it has a ring.
pub(super) fn dropped_before_core(seen: &TestEvidence<'_>, host: &str, core: &str) -> u64 {
    let backlog = seen.growth(host, host::SOFTNET_DROPPED, Some(core));
    if seen.is_memory(host) {
        return backlog;
    }
    let dropped = seen.growth(host, host::DEV_RX_DROPPED, Some(seen.interface(host)));
    let fifo = seen.cards(host).iter().map(|card| seen.growth(host, host::DEV_RX_FIFO, Some(card))).sum();
    // The device also counts the drops of the backlogs behind it.
    let behind = seen.growth(host, host::SOFTNET_DROPPED, None);
    let device = dropped.saturating_sub(behind).max(fifo);
    backlog + device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn squeezed(n: u64, softirq_percent: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 9_000)]);
        builder.wire("10000000000", "1500");
        builder.cpu("target", "cpu0", [1, 1, 1, 0]);
        builder.cpu("target", "cpu1", [0, 0, softirq_percent, 0]);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 9_000);
        builder.host_counter("target", (host::SOFTNET_SQUEEZED, "cpu0"), 0);
        builder.host_counter("target", (host::SOFTNET_SQUEEZED, "cpu1"), n);
        builder
    }

    #[test]
    fn a_core_with_idle_time_that_ends_its_turns_before_drops_needs_a_larger_budget() {
        let mut builder = squeezed(400, 60);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 1_000);
        let severity = |builder: &RunBuilder, id: &str| builder.finding(id).unwrap().severity;
        assert_eq!(severity(&builder, "receive-budget"), Severity::Remark, "a ring may overflow by bursts");
        assert_eq!(severity(&builder, "device-receive-drops"), Severity::HoldsBack);
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 1_000);
        let run = builder.analyzed();
        let first = &run.findings[0];
        assert_eq!((first.id.as_str(), first.severity), ("receive-budget", Severity::HoldsBack), "{:#?}", run.findings);
        let title = "the packet budget is too small: cpu1 of target ended 400 turns at receiving with packets left, \
                     and 1,000 were dropped while it was busy only 60 %";
        assert_eq!(first.title, title);
        assert_eq!(first.explains, Some(1.0));
        let next = first.next.clone().unwrap();
        assert_eq!(
            (next.command.as_str(), next.on.as_deref()),
            ("sysctl -w net.core.netdev_budget=600", Some("target"))
        );
        assert!(run.findings.iter().all(|finding| finding.id != "device-receive-drops"), "one fault is told once");
    }

    #[test]
    fn on_a_full_core_it_is_a_symptom() {
        let mut builder = squeezed(400, 99);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 1_000);
        let finding = builder.finding("receive-budget").unwrap();
        assert_eq!((finding.severity, finding.next), (Severity::Remark, None));
        assert!(finding.title.contains("no idle time (busy 99 %)"), "{}", finding.title);
        assert_eq!(builder.finding("device-receive-drops").unwrap().severity, Severity::HoldsBack);
    }

    #[test]
    fn without_drops_or_with_few_ended_turns_nothing_is_found() {
        assert_eq!(squeezed(400, 60).finding("receive-budget"), None, "nothing was dropped");
        let mut builder = squeezed(5, 60);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 1_000);
        assert_eq!(builder.finding("receive-budget"), None, "5 in 1.2 s");
    }

    #[test]
    fn without_the_times_of_the_core_nothing_is_claimed() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 9_000)]);
        builder.host_counter("target", (host::SOFTNET_SQUEEZED, "cpu1"), 400);
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 1_000);
        assert_eq!(builder.finding("receive-budget"), None);
    }
}
