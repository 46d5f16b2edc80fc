//! A device between the two ends dropped packets, or its core was full.

use fathom_model::{
    Evidence, Finding, NextStep, Severity,
    names::host,
    units::{grouped, percent},
};

use super::{FindingRule, local_shaper::LOCAL_SHAPER, time_exceeded::TIME_EXCEEDED};
use crate::{
    change::{Change, lower_rate},
    conservation::device,
    context::paired_tests,
    cores::CoreLoad,
    evidence::{TestEvidence, counter_evidence, explained_ratio, ratio_evidence},
};

/// Drops at one place of a device.
pub(crate) struct DeviceDrops {
    id: &'static str,
    /// The place in the account of all sent packets.
    place: &'static str,
    short: &'static str,
    /// The event, printed after the name of the host.
    what: &'static str,
    /// The command that shows more about it, on the device.
    command: &'static str,
    expected: &'static str,
}

/// The device did not take its frames as fast as they came.
pub(crate) const RING: DeviceDrops = DeviceDrops {
    id: "device-ring",
    place: device::RING,
    short: "device ring",
    what: "did not keep up, so its receive ring was full",
    command: "ethtool -S eth0",
    expected: "show which queue was full",
};

/// A policer, or another program in front of the network stack.
pub(crate) const PROGRAM: DeviceDrops = DeviceDrops {
    id: "device-program",
    place: device::PROGRAM,
    short: "device XDP",
    what: "drops in an XDP program, such as a policer",
    command: "bpftool net show",
    expected: "show which program it is, and on which interface",
};

/// A rule of the packet filter.
pub(crate) const RULE: DeviceDrops = DeviceDrops {
    id: "device-rule",
    place: device::RULE,
    short: "device rule",
    what: "drops by a rule of its packet filter",
    command: "nft --handle list ruleset",
    expected: "show the rule by the number in the evidence",
};

/// Connection tracking of the device.
pub(crate) const CONNTRACK: DeviceDrops = DeviceDrops {
    id: "device-conntrack",
    place: device::CONNTRACK,
    short: "device conntrack",
    what: "drops in its connection tracking, as it does with new connections while the table is full",
    command: "sysctl net.netfilter.nf_conntrack_max",
    expected: "show the size of the table; make it larger, or exempt the traffic with a notrack rule",
};

/// IP forwarding of the device.
pub(crate) const FORWARDING: DeviceDrops = DeviceDrops {
    id: "device-forwarding",
    place: device::FORWARDING,
    short: "device ip",
    what: "does not forward what it received",
    command: "nstat -az 'Ip*'",
    expected: "show why: no route, or a time to live that ran out",
};

/// A queue of the device in front of one of its links.
pub(crate) const QUEUE: DeviceDrops = DeviceDrops {
    id: "device-queue",
    place: device::QUEUE,
    short: "device queue",
    what: "dropped packets because the queue in front of its link was full",
    command: "tc -s qdisc show",
    expected: "show the queue that drops, and its rate",
};

/// The queue of the device for a program that decides about packets (NFQUEUE).
pub(crate) const PACKET_QUEUE: DeviceDrops = DeviceDrops {
    id: "device-packet-queue",
    place: device::PACKET_QUEUE,
    short: "device nfqueue",
    what: "dropped packets because an NFQUEUE queue was full, as the program behind it did not keep up",
    command: "cat /proc/net/netfilter/nfnetlink_queue",
    expected: "show the drops of each queue; add queues, or make them longer",
};

/// A drop that the device counts itself.
pub(crate) const OWN: DeviceDrops = DeviceDrops {
    id: "device-drops",
    place: device::OWN,
    short: "device drops",
    what: "reports drops in its own counters",
    command: "ip -s link",
    expected: "show whether its interfaces drop too; its own counter tells why",
};

/// The output side of the device.
pub(crate) const OUTPUT: DeviceDrops = DeviceDrops {
    id: "device-output",
    place: device::OUTPUT,
    short: "device out",
    what: "could not hand on what it forwarded",
    command: "ethtool -S eth1",
    expected: "show which queue towards the receiver was full",
};

impl FindingRule for DeviceDrops {
    fn id(&self) -> &'static str {
        self.id
    }

    fn effect_of(&self) -> &'static [&'static str] {
        match self.place {
            // A router counts the packets whose time to live ran out, and tells their sender.
            device::FORWARDING => &[TIME_EXCEEDED],
            device::QUEUE => &[LOCAL_SHAPER],
            device::PACKET_QUEUE => &["queue-share"],
            _ => &[],
        }
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Some(via), Some(sum)) = (seen.via(), &seen.test.conservation) else { return Vec::new() };
        let at_place: Vec<_> = sum.drops.iter().filter(|drop| drop.place == self.place && drop.n_dropped > 0).collect();
        let n: u64 = at_place.iter().map(|drop| drop.n_dropped).sum();
        if n == 0 {
            return Vec::new();
        }
        let evidence = at_place.iter().flat_map(|drop| {
            let counter = drop.counter.rsplit_once(' ').map_or(drop.counter.as_str(), |(_, counter)| counter);
            let instances = seen.growth_by_instance(via, counter);
            let evidence_of_drop =
                instances.iter().map(|(of, n)| counter_evidence(via, format!("{counter} {of}").trim_end(), *n));
            let evidence_of_drop: Vec<Evidence> = evidence_of_drop.collect();
            if evidence_of_drop.is_empty() {
                vec![counter_evidence(via, counter, drop.n_dropped)]
            } else {
                evidence_of_drop
            }
        });
        let n_lost = sum.n_sent.saturating_sub(sum.n_received);
        let share = percent(fathom_model::units::ratio(n, sum.n_sent).unwrap_or(1.0).min(1.0));
        let (n, of) = (n, grouped(sum.n_sent));
        let title = format!("the device {via} {}: {} dropped of {of} ({share})", self.what, grouped(n));
        vec![
            seen.finding(self.id, Severity::HoldsBack, self.short, title)
                .tests(
                    std::iter::once(seen.test).chain(paired_tests(seen.run, seen.test)).map(|test| test.name.clone()),
                )
                .evidence(evidence)
                .explains(explained_ratio(n, Some(n_lost)))
                .next(NextStep::new(self.command).on(via).expected(self.expected)),
        ]
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        match self.place {
            // What is full has room at a lower rate.
            device::RING | device::QUEUE | device::PACKET_QUEUE | device::OUTPUT => lower_rate(seen),
            // A rule or a program may be a policer, or drop at any rate.
            device::RULE | device::PROGRAM => lower_rate(seen).map(Change::into_clue),
            _ => None,
        }
    }
}

/// The core that a device runs on had no idle time left.
pub(crate) struct DeviceCore;

/// If programs used more than this part of a full core, it is full of their work, and the device would have more of it at a higher load.
const OF_PROGRAMS_MAX: f64 = 0.5;
/// From this share on, what programs used of the core of the device is told.
const OF_PROGRAMS_TOLD: f64 = 0.1;

/// Returns the core of the device between the two ends, if the device filled it during the measured time.
///
/// A device of kernel threads never runs in user mode, so that this time is surely that of programs.
pub(crate) fn full_core(seen: &TestEvidence<'_>) -> Option<CoreLoad> {
    let via = seen.via()?;
    let core = format!("cpu{}", seen.environment(via)?.get("device", "core")?);
    let is_filled = |core: &CoreLoad| core.is_full() && of_programs(core) <= OF_PROGRAMS_MAX * core.busy();
    seen.cores(via).into_iter().find(|one| one.core == core && is_filled(one))
}

/// The share of a device's core that programs used.
fn of_programs(core: &CoreLoad) -> f64 {
    core.share(host::CPU_USER_NS)
}

impl FindingRule for DeviceCore {
    fn id(&self) -> &'static str {
        "device-core-full"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Some(via), Some(core), false) = (seen.via(), full_core(seen), seen.reached_target()) else {
            return Vec::new();
        };
        let (counter, word, share) = core.main_state();
        let meaning = match of_programs(&core) {
            share if share >= OF_PROGRAMS_TOLD => format!("programs took {} of its time", percent(share)),
            _ => "it forwards no more than this".to_owned(),
        };
        let evidence = [("busy", core.busy()), (counter, share)];
        let title = format!(
            "the device {via} runs on {}, which was busy {} of the time, mostly {word}: {meaning}",
            core.core,
            percent(core.busy())
        );
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "device cpu", title)
                .evidence(evidence.map(|(name, share)| ratio_evidence(via, format!("{name} {}", core.core), share)))
                .next(
                    NextStep::new(format!("perf top -C {}", core.core.trim_start_matches("cpu")))
                        .on(via)
                        .expected("show what the core of the device does for each frame"),
                ),
        ]
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        // A lower rate relieves everything on the way, so it proves no core.
        lower_rate(seen).map(Change::into_clue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_device_that_drops_is_named_with_the_place_and_its_counter() {
        let cases: [(&str, &str, &str); 5] = [
            (host::DEV_XDP_DROPPED, "eth0", "device-program"),
            (host::NFT_DROPPED, "ip fathom forward 7", "device-rule"),
            (host::CONNTRACK_DROPPED, "", "device-conntrack"),
            (host::IP_IN_NO_ROUTES, "", "device-forwarding"),
            (host::DEV_TX_DROPPED, "eth1", "device-output"),
        ];
        for (counter, of, id) in cases {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 900)]);
            builder.device_between("dut");
            builder.host_counter("dut", (counter, of), 90);
            let finding = builder.finding(id).unwrap();
            assert!(finding.title.ends_with("90 dropped of 1,000 (9.0 %)"), "{}", finding.title);
            assert_eq!((finding.explains, finding.severity), (Some(0.9), Severity::HoldsBack));
            assert_eq!(finding.evidence[0].counter, format!("{counter} {of}").trim_end());
            assert_eq!(finding.next.unwrap().on.as_deref(), Some("dut"));
        }
    }

    #[test]
    fn a_full_ring_is_the_device_s_and_not_the_sender_s() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.device_between("dut");
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 100);
        builder.host_counter("dut", (host::DEV_RX_DROPPED, "eth0"), 100);
        let run = builder.analyzed();
        let told: Vec<&str> = run.findings.iter().map(|finding| finding.id.as_str()).collect();
        assert!(told.contains(&"device-ring"), "{told:?}");
        assert!(!told.contains(&"device-send-drops") && !told.contains(&"device-receive-drops"), "{told:?}");
    }

    #[test]
    fn the_core_of_the_device_is_named_when_it_is_full() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.device_between("dut");
        builder.run.hosts.get_mut("dut").unwrap().environment.note("device", "core", "1");
        builder.cpu("dut", "cpu0", [90, 8, 0, 0]);
        builder.cpu("dut", "cpu1", [1, 2, 60, 0]);
        assert_eq!(builder.finding("device-core-full"), None, "another core is full");
        builder.cpu("dut", "cpu1", [1, 2, 96, 0]);
        let finding = builder.finding("device-core-full").unwrap();
        assert!(finding.title.contains("the device dut runs on cpu1"), "{}", finding.title);
        assert!(finding.title.ends_with("it forwards no more than this"), "{}", finding.title);
    }

    #[test]
    fn a_core_that_programs_fill_is_not_the_device_s() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000)]);
        builder.device_between("dut");
        builder.run.hosts.get_mut("dut").unwrap().environment.note("device", "core", "1");
        for (of_core, said) in [
            ([97, 2, 1, 0], None),
            ([55, 43, 2, 0], None),
            ([40, 58, 2, 0], Some("programs took 40 % of its time")),
            ([5, 93, 2, 0], Some("it forwards no more than this")),
        ] {
            builder.cpu("dut", "cpu1", of_core);
            let title = builder.finding("device-core-full").map(|finding| finding.title);
            match said {
                None => assert_eq!(title, None, "{of_core:?}"),
                Some(said) => assert!(title.as_ref().is_some_and(|title| title.ends_with(said)), "{title:?}"),
            }
        }
    }
}
