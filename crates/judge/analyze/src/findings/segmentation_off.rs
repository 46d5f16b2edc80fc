//! The sender's stack splits its data into segments itself, because the offload for that is turned off or takes only a few at once.

use std::collections::BTreeSet;

use fathom_model::{Evidence, Finding, Layer, NextStep, Severity, units::counted};

use super::FindingRule;
use crate::evidence::TestEvidence;

/// The names by which ethtool shows that the stack hands on large segments: split by the device (TSO), or just before it (GSO).
const SEGMENTATION: [&str; 2] = ["tx-tcp-segmentation", "tx-generic-segmentation"];

/// With so few segments at once, the offload saves hardly anything: it is made for up to 45 of 1,448 bytes.
const FEW: u64 = 4;
/// Others who used no more than this share of a full core are not why it is full.
const LITTLE: f64 = 0.2;
/// The headers of IP and TCP in a frame.
const HEADERS: u64 = 52;

/// Looks for a bulk sender without TSO and GSO: the stack handles each packet on its own, up to ten times as much work for the same data.
///
/// Silent where no core is full of the test's own work, or of others for whom the test waits, and where the features of the interface are
/// unknown. An offload of a few segments is a remark then. What the offload would save of the work is not known before it is on.
pub(crate) struct SegmentationOff;

impl FindingRule for SegmentationOff {
    fn id(&self) -> &'static str {
        "segmentation-off"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", "receive-window", "send-buffer", "other-programs"]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // Others who take little of a core that is full leave the test most of it.
        let leave_most = |host| seen.cores(host).first().is_some_and(|core| core.is_full() && core.others() <= LITTLE);
        cause == "other-programs" && seen.test.flows.iter().any(|flow| leave_most(flow.sender.as_str()))
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.test.layer != Layer::Tcp || seen.test.flows.is_empty() || seen.reached_target() {
            return Vec::new();
        }
        let lacks_cpu = seen.hosts().any(|host| lacks_cpu(seen, host));
        let senders: BTreeSet<&str> = seen.test.flows.iter().map(|flow| flow.sender.as_str()).collect();
        let on_host = |host| if is_on(seen, host)? { self.of_few(seen, host, lacks_cpu) } else { self.off(seen, host) };
        senders
            .into_iter()
            .filter_map(on_host)
            .filter(|found| lacks_cpu || found.severity == Severity::Remark)
            .collect()
    }
}

/// Returns true if the busiest core of a host has no time left for the test: its own work fills it, or it waits for others. Between the hosts of one
/// machine, sender and receiver wait for each other's core a little.
fn lacks_cpu(seen: &TestEvidence<'_>, host: &str) -> bool {
    let waits = || seen.waits_for_core(host);
    let cores = seen.cores(host);
    seen.is_limited_by_cores_of_machine(host)
        || cores.first().is_some_and(|core| core.is_full_of_own_work() || (core.is_full() && waits()))
}

/// Whether the interface of a host has the offload, if it tells.
fn is_on(seen: &TestEvidence<'_>, host: &str) -> Option<bool> {
    let offloads = seen.environment(host)?.get(seen.interface(host), "offloads")?;
    Some(offloads.split_whitespace().any(|name| SEGMENTATION.contains(&name)))
}

impl SegmentationOff {
    /// Reports an offload that is turned off.
    fn off(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let interface = seen.interface(host);
        let offloads = seen.environment(host)?.get(interface, "offloads")?;
        let title = format!(
            "segmentation offload is off on {interface} of {host} (TSO and GSO): its stack handles every packet on its own, which fills a core"
        );
        let evidence =
            Evidence { host: host.to_owned(), counter: format!("offloads {interface}"), value: offloads.to_owned() };
        Some(
            seen.finding(self.id(), Severity::HoldsBack, "no TSO, GSO", title).evidence([evidence]).next(
                NextStep::new(format!("ethtool -K {interface} gso on tso on"))
                    .on(host)
                    .expected("let the stack handle up to 64 KiB at once"),
            ),
        )
    }
}

impl SegmentationOff {
    /// Reports an offload that takes only a few segments at once.
    fn of_few(&self, seen: &TestEvidence<'_>, host: &str, lacks_cpu: bool) -> Option<Finding> {
        let interface = seen.interface(host);
        let fact = |name: &str| seen.environment(host)?.get(interface, name)?.parse::<u64>().ok();
        let of_bytes = fact("gso_max_bytes").zip(fact("mtu_bytes"));
        let of_bytes = of_bytes.map(|(bytes, mtu)| bytes / mtu.saturating_sub(HEADERS).max(1));
        let segments = fact("gso_max_segments");
        let at_once = of_bytes.into_iter().chain(segments).min().filter(|n| *n <= FEW)?.max(1);
        let title = format!(
            "the stack of {host} hands at most {} at once to {interface} (gso_max_size, gso_max_segs): it handles nearly every packet on its own",
            counted(at_once, "segment")
        );
        let limits = [("gso_max_size", fact("gso_max_bytes")), ("gso_max_segs", segments)];
        let evidence = limits.into_iter().filter_map(|(name, n)| {
            Some(Evidence { host: host.to_owned(), counter: format!("{name} {interface}"), value: n?.to_string() })
        });
        Some(
            seen.finding(self.id(), if lacks_cpu { Severity::HoldsBack } else { Severity::Remark }, "small GSO", title)
                .evidence(evidence)
                .next(
                    NextStep::new(format!("ip -d link show dev {interface}")).on(host).expected(
                    "show gso_max_size and gso_max_segs beside what the driver can (tso_max_size, tso_max_segs); `ip link set` changes them",
                ),

                ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{Bottleneck, FlowSummary, SenderTime};

    fn with_offloads(offloads: &str) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000_000]);
        builder.wire("100000000000", "1500");
        builder.cpu("client", "cpu0", [1, 2, 97, 0]);
        builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "offloads", offloads);
        builder
    }

    #[test]
    fn a_sender_that_splits_its_data_itself_is_told() {
        let found = |builder: RunBuilder| {
            let mut run = builder.run;
            run.tests[0].flows = vec![FlowSummary {
                id: "a:1 b:2".to_owned(),
                sender: "client".to_owned(),
                acknowledged_bps: 1e9,
                waits: SenderTime { receive_window: 0.0, send_buffer: 0.0, application: 0.0, network: 1.0 },
                held_by: Bottleneck::SenderCpu,
            }];
            let context = RunBuilder::new().context;
            SegmentationOff.evaluate(&TestEvidence::new(&run, &run.tests[0], &context)).pop()
        };
        assert!(
            found(with_offloads("rx-gro tx-checksum-ipv4"))
                .is_some_and(|finding| finding.title.starts_with("segmentation offload is off on eth0"))
        );
        assert_eq!(found(with_offloads("rx-gro tx-generic-segmentation")), None);
        let nearly_full = || {
            let mut builder = with_offloads("rx-gro");
            builder.cpu("client", "cpu0", [1, 2, 77, 0]);
            builder
        };
        assert_eq!(found(nearly_full()), None);
        let mut within = nearly_full();
        within.one_machine();
        within.driver("veth");
        assert!(found(within).is_some(), "sender and receiver wait for each other's core a little");
        let of_few = |name: &str, value: &str| {
            let mut builder = with_offloads("tx-generic-segmentation");
            builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", name, value);
            found(builder).map(|finding| finding.title)
        };
        assert!(of_few("gso_max_segments", "2").unwrap().starts_with("the stack of client hands at most 2 segments"));
        assert!(of_few("gso_max_bytes", "3000").unwrap().starts_with("the stack of client hands at most 2 segments"));
        assert_eq!((of_few("gso_max_segments", "40"), of_few("gso_max_bytes", "32768")), (None, None));
    }
}
