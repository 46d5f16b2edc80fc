//! One of several queues of a device gets most of its packets.

use fathom_model::{
    Finding, NextStep, Severity,
    names::host,
    units::{approximate, percent, ratio},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// A queue that gets most packets does most of the work, and the threads and cores of the others are of no use. It is a remark, unless that queue
/// dropped packets.
pub(crate) struct QueueShares;

/// With fewer packets, the shares are those of handshakes.
const PACKETS_MIN: u64 = 1_000;
/// From this share of its packets on, what a queue drops matters.
const DROPS_MIN: f64 = 1e-3;
/// With so many flows for each queue, a division by chance seldom leaves most of them to one.
const FLOWS_PER_QUEUE: u64 = 4;

impl FindingRule for QueueShares {
    fn id(&self) -> &'static str {
        "queue-share"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Some(via), Some(n_flows)) = (seen.via(), n_flows(seen)) else { return Vec::new() };
        let n_queues = n_queues(seen);
        let n_all: u64 = seen.test.queues.iter().map(|queue| queue.n_packets).sum();
        let Some(most) = seen.test.queues.iter().max_by_key(|queue| queue.n_packets) else { return Vec::new() };
        let share = most.share.unwrap_or(0.0);
        // Half way from an even share to all of them.
        let is_most = share > f64::midpoint(1.0, 1.0 / approximate(n_queues));
        if n_queues < 2 || n_all < PACKETS_MIN || n_flows < FLOWS_PER_QUEUE * n_queues || !is_most {
            return Vec::new();
        }
        let n_dropped = most.n_dropped + most.n_user_dropped;
        let drops = ratio(n_dropped, most.n_packets + n_dropped).is_some_and(|share| share >= DROPS_MIN);
        let severity = if drops { Severity::HoldsBack } else { Severity::Remark };
        let title = format!(
            "queue {} of {via} got {} of its packets, although {n_flows} flows are enough for {n_queues} queues: the kernel divides packets by their \
             addresses, and these flows have too few of them (--source NETWORK)",
            most.queue,
            percent(share)
        );
        let evidence = [(host::NFQUEUE_PACKETS, most.n_packets), (host::NFQUEUE_DROPPED, n_dropped)];
        let next = NextStep::new("nft list ruleset").on(via).expected(
            "show the rule that queues: with `flags fanout` (iptables: --queue-cpu-fanout) the core that took a packet chooses its queue, so that ports count where \
             the card spreads flows by them",
        );
        vec![
            seen.finding(self.id(), severity, "one queue", title)
                .evidence(
                    evidence.map(|(counter, n)| counter_evidence(via, format!("{counter} queue{}", most.queue), n)),
                )
                .next(next),
        ]
    }
}

/// The number of flows that the options of a test ask for.
fn n_flows(seen: &TestEvidence<'_>) -> Option<u64> {
    ["flows", "connections"].into_iter().find_map(|option| seen.test.options.count(option))
}

/// The number of queues that packets are divided among. A sweep of them leaves the others without packets.
fn n_queues(seen: &TestEvidence<'_>) -> u64 {
    let swept = || {
        let planned = seen.run.plan.tests.iter().find(|planned| planned.name == seen.test.name)?;
        let name = planned.comparison.as_ref()?;
        let comparison = seen.run.plan.comparisons.iter().find(|comparison| comparison.name == *name)?;
        comparison.at.as_ref().filter(|at| at.parameter == "queues")?.value.parse().ok()
    };
    swept().unwrap_or_else(|| u64::try_from(seen.test.queues.len()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use fathom_model::{ComparisonPlan, Settings, SweepPoint, TestPlan, TrialTimes, units::Nanos};

    use super::*;
    use crate::run_builder::RunBuilder;

    fn with_queues(packets: &[u64], flows: &str) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 10_000)]);
        builder.device_between("dut");
        for (queue, n) in packets.iter().enumerate() {
            builder.host_counter("dut", (host::NFQUEUE_PACKETS, &format!("queue{queue}")), *n);
            builder.host_counter("dut", (host::NFQUEUE_DROPPED, &format!("queue{queue}")), 0);
        }
        let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
        let planned =
            TestPlan { name: builder.run.tests[0].name.clone(), ..TestPlan::new("udp_stream", times, "client") };
        builder.run.tests[0].options = Settings::default().with("flows", flows);
        builder.run.plan.tests.push(planned);
        builder
    }

    #[test]
    fn each_queue_has_its_share() {
        let run = with_queues(&[7_500, 2_500, 0], "1").analyzed();
        let shares: Vec<_> =
            run.tests[0].queues.iter().map(|queue| (queue.queue.as_str(), queue.n_packets, queue.share)).collect();
        assert_eq!(shares, [("0", 7_500, Some(0.75)), ("1", 2_500, Some(0.25)), ("2", 0, Some(0.0))]);
        assert_eq!(with_queues(&[10_000], "16").analyzed().tests[0].queues, [], "one queue is not divided");
    }

    #[test]
    fn a_queue_that_gets_most_packets_of_many_flows_is_told() {
        let told = |packets: &[u64], flows: &str| with_queues(packets, flows).finding("queue-share");
        let finding = told(&[0, 9_000, 1_000, 0], "16").unwrap();
        assert!(
            finding.title.starts_with("queue 1 of dut got 90 % of its packets, although 16 flows are enough for 4"),
            "{}",
            finding.title
        );
        assert_eq!(finding.severity, Severity::Remark);
        let next = finding.next.unwrap();
        assert_eq!((next.command.as_str(), next.on.as_deref()), ("nft list ruleset", Some("dut")));
        assert_eq!(told(&[0, 9_000, 1_000, 0], "15"), None, "they may be there by chance");
        assert_eq!(told(&[4_000, 6_000], "16"), None);
        assert_eq!(told(&[0, 900], "16"), None);
        let mut dropping = with_queues(&[10_000, 0], "8");
        dropping.host_counter("dut", (host::NFQUEUE_USER_DROPPED, "queue0"), 50);
        assert_eq!(dropping.finding("queue-share").unwrap().severity, Severity::HoldsBack);
    }

    #[test]
    fn a_sweep_of_queues_leaves_the_others_without_packets() {
        let mut builder = with_queues(&[10_000, 0], "8");
        let at = Some(SweepPoint { parameter: "queues".to_owned(), value: "1".to_owned() });
        builder.run.plan.comparisons.push(ComparisonPlan { name: "stream".to_owned(), at, set: None });
        builder.run.plan.tests[0].comparison = Some("stream".to_owned());
        assert_eq!(builder.finding("queue-share"), None);
    }
}
