//! One core does all the receiving and is full, while others are idle and the device has more queues.

use std::collections::BTreeMap;

use fathom_model::{
    Evidence, Finding, Layer, NextStep, Severity,
    names::host::{self, CPU_IRQ_NS, CPU_SOFTIRQ_NS},
    units::{approximate, percent, ratio},
};
use fathom_statistics::mean;

use super::{FindingRule, receive_budget::dropped_before_core};
use crate::{
    cores::CoreLoad,
    evidence::{TestEvidence, explained_ratio, ratio_evidence, text_evidence},
};

/// A core that takes at least this share of all packets receives for the whole host.
const NEARLY_ALL: f64 = 0.9;
/// Cores that are busy for less than this share of the time, on average, can take over work.
const FREE: f64 = 0.5;
/// A hash spreads flows evenly over queues only if there are several for each queue.
const FLOWS_PER_QUEUE: u64 = 4;

/// Compares what each core received with the queues of the device.
///
/// RSS puts each flow into one queue, and each queue interrupts one core (`Documentation/networking/scaling.rst`). Either all flows are
/// in one queue, or several queues interrupt the same core. A device with a single queue is no matter of this rule.
pub(crate) struct OneCoreReceives;

/// A queue of the test's card that interrupted in the test.
struct ActiveQueue<'a> {
    /// Its number in `/proc/irq`.
    irq: &'a str,
    name: &'a str,
    /// Its share of the interrupts of all queues of the interface.
    share: f64,
    core: Option<u64>,
}

impl FindingRule for OneCoreReceives {
    fn id(&self) -> &'static str {
        "one-core-receives"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", "receive-window", "send-buffer", "other-programs", "bad-tcp-checksums"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Single packets need hardly any CPU.
        if seen.reached_target() || seen.test.layer == Layer::Path {
            return Vec::new();
        }
        // Cores and interrupts belong to the machine.
        seen.machines().filter_map(|host| self.on_host(seen, host)).collect()
    }
}

impl OneCoreReceives {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        // A device of memory has neither RSS nor interrupts.
        let n_queues = receive_queues(seen, host).filter(|n| *n > 1 && !seen.is_memory(host))?;
        let (core, share, counter) = receiving_core(seen, host)?;
        let cores = seen.cores(host);
        let load = cores.iter().find(|load| load.core == core)?;
        let in_interrupts = load.share(CPU_SOFTIRQ_NS) + load.share(CPU_IRQ_NS);
        let others: Vec<f64> = cores.iter().filter(|load| load.core != core).map(CoreLoad::busy).collect();
        let rest = mean(&others).filter(|rest| *rest < FREE)?;
        if share < NEARLY_ALL || !load.is_full() || in_interrupts < load.busy() / 2.0 {
            return None;
        }
        // A core that polls is hardly interrupted, and the queues of others say nothing about it.
        let mut queues = active_queues(seen, host);
        queues.retain(|queue| queue.core.is_some_and(|of| format!("cpu{of}") == core));
        let mut evidence = vec![
            ratio_evidence(host, format!("{counter} {core}"), share),
            ratio_evidence(host, format!("busy {core}"), load.busy()),
            ratio_evidence(host, format!("{CPU_SOFTIRQ_NS} {core}"), load.share(CPU_SOFTIRQ_NS)),
        ];
        evidence.extend(queues.iter().map(|queue| queue.evidence(host)));
        let from = match queues.as_slice() {
            [] => format!("; {} has {n_queues} receive queues", seen.card(host)),
            [one] => format!("; of {n_queues} queues only {} is in use", one.name),
            several => format!("; {} queues interrupt it", several.len()),
        };
        let title = format!(
            "{core} of {host} receives {} of all packets and is busy {}, while the others are busy {}{from}",
            percent(share),
            percent(load.busy()),
            percent(rest)
        );
        Some(
            seen.finding(self.id(), Severity::HoldsBack, "rx one core", title)
                .evidence(evidence)
                .explains(
                    explained_ratio(dropped_before_core(seen, host, core), seen.packets_lost())
                        .filter(|share| *share > 0.0),
                )
                .next(next(seen, host, &queues, n_queues).on(host)),
        )
    }
}

impl ActiveQueue<'_> {
    fn evidence(&self, host: &str) -> Evidence {
        let core = self.core.map_or(String::new(), |core| format!(" on cpu{core}"));
        let counter = format!("{} irq{} {}", host::QUEUE_INTERRUPTS, self.irq, self.name);
        text_evidence(host, counter, format!("{}{core}", percent(self.share)))
    }
}

/// Returns the number of queues on which the card of a host receives, if the driver tells.
fn receive_queues(seen: &TestEvidence<'_>, host: &str) -> Option<u64> {
    let facts = seen.environment(host)?;
    let count = |name| facts.get(seen.card(host), name)?.parse::<u64>().ok();
    let counts = [count("queues_combined"), count("queues_rx")];
    counts.into_iter().flatten().reduce(|all, n| all + n)
}

/// Returns the core that took most packets, with its share of all and the counter of it: packets, or soft interrupts if packets are unknown.
///
/// A core at its limit handles more packets with each interrupt than an idle one, so that interrupts alone would hide it.
fn receiving_core<'a>(seen: &TestEvidence<'a>, host: &str) -> Option<(&'a str, f64, &'static str)> {
    [host::SOFTNET_PROCESSED, host::SOFTIRQ_NET_RX].into_iter().find_map(|counter| {
        let grown = seen.growth_by_core(host, counter);
        let (core, most) = grown.first()?;
        Some((*core, ratio(*most, grown.iter().map(|(_, n)| n).sum())?, counter))
    })
}

/// Returns the queues that make up nearly all interrupts of the test's card, the busiest first.
fn active_queues<'a>(seen: &TestEvidence<'a>, host: &str) -> Vec<ActiveQueue<'a>> {
    let card = seen.card(host);
    let of_card = |of: &'a str| {
        let (name, rest) = of.split_once(" irq")?;
        rest.split_once(' ').filter(|_| name == card)
    };
    let mut by_queue: BTreeMap<(&str, &str), (u64, Option<u64>)> = BTreeMap::new();
    for (of, n) in seen.growth_by_instance(host, host::QUEUE_INTERRUPTS) {
        let Some(queue) = of_card(of) else { continue };
        let core = seen.last_value_of(host, host::QUEUE_INTERRUPT_CORE, of);
        by_queue.insert(queue, (n, core));
    }
    let all: u64 = by_queue.values().map(|(n, _)| n).sum();
    let queue = |((irq, name), (n, core)): ((&'a str, &'a str), (u64, Option<u64>))| {
        Some(ActiveQueue { irq, name, share: ratio(n, all)?, core })
    };
    let mut queues: Vec<_> = by_queue.into_iter().filter_map(queue).collect();
    queues.sort_by(|a, b| b.share.total_cmp(&a.share));
    let mut covered = 0.0;
    queues.retain(|queue| {
        let is_needed = covered < NEARLY_ALL;
        covered += queue.share;
        is_needed
    });
    queues
}

/// Suggests more flows if there are few, another core for one of several queues, or a look at how RSS spreads flows.
fn next(seen: &TestEvidence<'_>, host: &str, queues: &[ActiveQueue<'_>], n_queues: u64) -> NextStep {
    let card = seen.card(host);
    if let [first, .., last] = queues
        && first.core == last.core
    {
        return NextStep::new(format!(
            "grep . /proc/irq/{}/smp_affinity_list /proc/irq/{}/smp_affinity_list",
            first.irq, last.irq
        ))
        .expected(
            "show the cores that may take these queues; write an idle one to smp_affinity_list, or start irqbalance",
        );
    }
    let n_flows = ["flows", "connections"].iter().find_map(|name| seen.test.options.count(name));
    let is_few = n_flows.is_some_and(|n| approximate(n) < approximate(FLOWS_PER_QUEUE * n_queues));
    let more = seen.repeat_test_command(&format!("--flows {}", FLOWS_PER_QUEUE * n_queues));
    if let Some(command) = more.filter(|_| is_few && matches!(seen.test.layer, Layer::Tcp | Layer::Udp)) {
        return NextStep::new(command).expected("give each queue several flows; RSS puts each flow into one queue");
    }
    NextStep::new(format!("ethtool -x {card}"))
        .expected("show how RSS spreads flows over queues; ethtool -X changes it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    /// A target with four cores and four queues, whose first core has this softirq time and this many packets of 1000.
    fn receiving(softirq_percent: u64, packets: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.wire("100000000000", "1500");
        builder.run.hosts.get_mut("target").unwrap().environment.note("eth0", "queues_combined", "4");
        builder.cpu("target", "cpu0", [1, 1, softirq_percent, 0]);
        for core in ["cpu1", "cpu2", "cpu3"] {
            builder.cpu("target", core, [5, 5, 0, 0]);
        }
        builder.host_counter("target", (host::SOFTNET_PROCESSED, "cpu0"), packets);
        builder.host_counter("target", (host::SOFTNET_PROCESSED, "cpu1"), 1000 - packets);
        builder.host_counter("target", (host::SOFTIRQ_NET_RX, "cpu0"), 100);
        builder.host_counter("target", (host::SOFTIRQ_NET_RX, "cpu1"), 100);
        builder
    }

    fn interrupts(builder: &mut RunBuilder, queue: &str, n: u64, core: u64) {
        builder.host_counter("target", (host::QUEUE_INTERRUPTS, queue), n);
        builder.series("target", (host::QUEUE_INTERRUPT_CORE, queue), &[core]);
    }

    #[test]
    fn a_core_that_receives_for_all_is_named_with_its_queue() {
        let mut builder = receiving(97, 980);
        interrupts(&mut builder, "eth0 irq41 eth0-TxRx-0", 500, 0);
        interrupts(&mut builder, "eth0 irq42 eth0-TxRx-1", 3, 1);
        interrupts(&mut builder, "eth1 irq43 eth1-TxRx-0", 9_000, 1);
        let run = builder.analyzed();
        let first = &run.findings[0];
        assert_eq!(
            (first.id.as_str(), first.severity),
            ("one-core-receives", Severity::HoldsBack),
            "{:#?}",
            run.findings
        );
        let title = "cpu0 of target receives 98 % of all packets and is busy 99 %, while the others are busy 10 %; \
                     of 4 queues only eth0-TxRx-0 is in use";
        assert_eq!(first.title, title);
        let queue = first.evidence.last().unwrap();
        assert_eq!(
            (queue.counter.as_str(), queue.value.as_str()),
            ("queue_interrupts irq41 eth0-TxRx-0", "99 % on cpu0")
        );
        assert_eq!(first.next.as_ref().unwrap().command, "ethtool -x eth0");
        let core = run.findings.iter().find(|finding| finding.id == "core-saturated").unwrap();
        assert_eq!(core.severity, Severity::Remark, "one fault is told once");
    }

    #[test]
    fn few_flows_are_asked_to_be_more() {
        let mut builder = receiving(97, 980);
        builder.run.tests[0].options.set("flows", "2");
        let command = builder.finding("one-core-receives").unwrap().next.unwrap().command;
        assert!(command.contains("--flows 16"), "{command}");
    }

    #[test]
    fn several_queues_on_one_core_need_another_core() {
        let mut builder = receiving(97, 1000);
        interrupts(&mut builder, "eth0 irq41 eth0-TxRx-0", 500, 0);
        interrupts(&mut builder, "eth0 irq42 eth0-TxRx-1", 400, 0);
        let finding = builder.finding("one-core-receives").unwrap();
        assert!(finding.title.ends_with("; 2 queues interrupt it"), "{}", finding.title);
        assert_eq!(
            finding.next.unwrap().command,
            "grep . /proc/irq/41/smp_affinity_list /proc/irq/42/smp_affinity_list"
        );
    }

    #[test]
    fn a_core_with_idle_time_a_spread_load_and_a_single_queue_are_no_matter() {
        assert_eq!(receiving(60, 980).finding("one-core-receives"), None, "the core has idle time");
        assert_eq!(receiving(97, 700).finding("one-core-receives"), None, "another core receives too");
        let mut one_queue = receiving(97, 980);
        one_queue.run.hosts.get_mut("target").unwrap().environment.note("eth0", "queues_combined", "1");
        assert_eq!(one_queue.finding("one-core-receives"), None);
        let mut memory = receiving(97, 980);
        memory.driver("veth");
        assert_eq!(memory.finding("one-core-receives"), None, "a veth has no RSS");
        let mut busy = receiving(97, 980);
        for core in ["cpu1", "cpu2", "cpu3"] {
            busy.cpu("target", core, [50, 30, 0, 0]);
        }
        assert_eq!(busy.finding("one-core-receives"), None, "no core is free");
    }

    #[test]
    fn where_packets_by_core_are_unknown_soft_interrupts_tell_and_without_both_nothing_is_claimed() {
        let mut builder = receiving(97, 980);
        for trial in &mut builder.run.tests[0].trials {
            trial.hosts.get_mut("target").unwrap().series.retain(|series| series.name != host::SOFTNET_PROCESSED);
        }
        assert_eq!(builder.finding("one-core-receives"), None, "half of the soft interrupts are on cpu1");
        builder.host_counter("target", (host::SOFTIRQ_NET_RX, "cpu0"), 1_000);
        builder.host_counter("target", (host::SOFTIRQ_NET_RX, "cpu1"), 10);
        assert!(builder.finding("one-core-receives").is_some());
        for trial in &mut builder.run.tests[0].trials {
            trial.hosts.get_mut("target").unwrap().series.retain(|series| series.name != host::SOFTIRQ_NET_RX);
        }
        assert_eq!(builder.finding("one-core-receives"), None);
    }
}
