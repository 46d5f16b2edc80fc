//! A device between the two ends dropped packets, or its core was full.

use fathom_model::{
    Evidence, Finding, NextStep, Severity,
    names::host,
    units::{grouped, percent, ratio},
};

use super::{
    FindingRule, drops::PACKETS_MIN, link_down::LINK_DOWN, local_shaper::LOCAL_SHAPER, rule::DEVICE_CORE_FULL,
    time_exceeded::TIME_EXCEEDED, unexplained_loss::is_no_outage,
};
use crate::{
    change::{Change, lower_rate},
    comparison,
    conservation::device,
    context::paired_tests,
    cores::{self, CoreLoad},
    evidence::{TestEvidence, counter_evidence, explained_ratio, ratio_evidence},
    gap,
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
    command: "ethtool -S IFACE",
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
    command: "nstat -az 'Ip*' 'TcpExtIPReversePathFilter'",
    expected: "show why: no route, a time to live that ran out, packets too large for the next link (FragFails), or a route back by another interface (IPReversePathFilter)",
};

/// A queue of the device in front of one of its links.
pub(crate) const QUEUE: DeviceDrops = DeviceDrops {
    id: "device-queue",
    place: device::QUEUE,
    short: "device queue",
    what: "dropped packets in the queue in front of its link",
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
    command: "ethtool -S IFACE",
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
            // Nothing takes frames from a link that is down.
            device::RING => &[LINK_DOWN],
            device::QUEUE => &[LOCAL_SHAPER],
            device::PACKET_QUEUE => &["queue-share"],
            _ => &[],
        }
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        let Some(sum) = seen.test.conservation.as_ref().filter(|_| cause == LINK_DOWN) else { return false };
        let n = sum.drops.iter().filter(|drop| drop.place == self.place).map(|drop| drop.n_dropped).sum();
        is_no_outage(seen, n, ratio(n, sum.n_received).unwrap_or(0.0))
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Some(via), Some(sum)) = (seen.via(), &seen.test.conservation) else { return Vec::new() };
        let at_place: Vec<_> = sum.drops.iter().filter(|drop| drop.place == self.place && drop.n_dropped > 0).collect();
        let n: u64 = at_place.iter().map(|drop| drop.n_dropped).sum();
        let share = ratio(n, sum.n_sent).unwrap_or(1.0).min(1.0);
        // A router does not forward what others send, too, and a sender learns the largest size by the loss of a packet.
        let is_few =
            if self.place == device::FORWARDING { share < SHARE_MIN } else { n < PACKETS_MIN && share < SHARE_MIN };
        if n == 0 || is_few || seen.packets_lost() == Some(0) {
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
        let dropped_most = || {
            let counter = at_place.iter().max_by_key(|drop| drop.n_dropped)?.counter.rsplit_once(' ')?.1;
            let (interface, _) = *seen.growth_by_instance(via, counter).first()?;
            seen.environment(via)?.0.contains_key(interface).then_some(interface)
        };
        let interface = dropped_most().unwrap_or("IFACE");
        let n_lost = sum.n_sent.saturating_sub(sum.n_received);
        let share = percent(share);
        let (n, of) = (n, grouped(sum.n_sent));
        let title = format!("the device {via} {}: {} dropped of {of} ({share})", self.what, grouped(n));
        vec![
            seen.finding(self.id, Severity::HoldsBack, self.short, title)
                .tests(
                    std::iter::once(seen.test).chain(paired_tests(seen.run, seen.test)).map(|test| test.name.clone()),
                )
                .evidence(evidence)
                .explains(explained_ratio(n, Some(n_lost)))
                .next(NextStep::new(self.command.replace("IFACE", interface)).on(via).expected(self.expected)),
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

/// A device that does not forward a smaller part is none that a test notices: a loss is told from a thousandth on.
const SHARE_MIN: f64 = 1e-3;

/// A thread or a core of a device had no idle time left.
pub(crate) struct DeviceCore;

/// A thread that had a core for less than this share of the time is held back by those who had it instead.
const RAN_MIN: f64 = 0.5;
/// From this share on, the time that a thread waited for a core is told.
const WAITED_TOLD: f64 = 0.1;

/// A thread of a device with its shares of the measured time.
pub(crate) struct DeviceThread<'a> {
    pub(crate) name: &'a str,
    pub(crate) ran: f64,
    pub(crate) waited: f64,
}

/// Returns the threads of a lab's device.
fn threads<'a>(seen: &TestEvidence<'a>, via: &str) -> impl Iterator<Item = DeviceThread<'a>> {
    let share = move |name: &'a str| {
        let ran = seen.measured_share(via, host::DEVICE_CPU_NS, name)?;
        let waited = seen.measured_share(via, host::DEVICE_WAIT_NS, name)?;
        Some(DeviceThread { name, ran, waited })
    };
    seen.growth_by_instance(via, host::DEVICE_CPU_NS).into_iter().filter_map(move |(name, _)| share(name))
}

/// Returns the thread of a lab's device that had least idle time.
pub(crate) fn busiest_thread<'a>(seen: &TestEvidence<'a>, via: &str) -> Option<DeviceThread<'a>> {
    threads(seen, via).max_by(|a, b| (a.ran + a.waited).total_cmp(&(b.ran + b.waited)))
}

/// Returns true if a thread of a lab's device waited for a core so long that packets wait with it.
pub(crate) fn waits_for_core(seen: &TestEvidence<'_>) -> bool {
    const WAITS: f64 = 0.2;
    let thread = seen.via().and_then(|via| threads(seen, via).max_by(|a, b| a.waited.total_cmp(&b.waited)));
    thread.is_some_and(|thread| thread.waited >= WAITS)
}

/// What of a lab's device had no time left.
enum FullWork<'a> {
    /// A thread that ran, or waited for a core, all the time.
    Thread(DeviceThread<'a>),
    /// The core to which all threads are bound.
    Core { number: &'a str, ran: f64 },
}

fn full_work<'a>(seen: &TestEvidence<'a>, via: &str) -> Option<FullWork<'a>> {
    let thread =
        busiest_thread(seen, via).filter(|thread| thread.ran + thread.waited >= cores::FULL && thread.ran >= RAN_MIN);
    let core = || {
        let ran: f64 = threads(seen, via).map(|thread| thread.ran).sum();
        let number = seen.environment(via)?.get("device", "core").filter(|_| ran >= cores::FULL)?;
        Some(FullWork::Core { number, ran })
    };
    thread.map(FullWork::Thread).or_else(core)
}

/// Returns a core of a device that is a machine of its own, if interrupts fill it: other full cores may be those of programs that forward nothing.
fn full_core(seen: &TestEvidence<'_>, via: &str) -> Option<CoreLoad> {
    let receives = |core: &CoreLoad| [host::CPU_SOFTIRQ_NS, host::CPU_IRQ_NS].contains(&core.main_state().0);
    let busiest = || seen.cores(via).into_iter().find(|core| core.is_full() && receives(core));
    comparison::is_machine_apart(seen.run, seen.test, via).then(busiest).flatten()
}

/// Returns true if the device between the two ends had no time left.
pub(crate) fn is_full(seen: &TestEvidence<'_>) -> bool {
    seen.via().is_some_and(|via| full_work(seen, via).is_some() || full_core(seen, via).is_some())
}

impl FindingRule for DeviceCore {
    fn id(&self) -> &'static str {
        DEVICE_CORE_FULL
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(via) = seen.via().filter(|_| !seen.reached_target()) else { return Vec::new() };
        let of_lab = || Some(self.told_work(seen, via, &full_work(seen, via)?));
        let of_machine = || Some(self.told_core(seen, via, &full_core(seen, via)?));
        of_lab().or_else(of_machine).into_iter().collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        // A lower rate relieves everything on the way, so it proves no core.
        lower_rate(seen).map(Change::into_clue)
    }
}

impl DeviceCore {
    fn told_work(&self, seen: &TestEvidence<'_>, via: &str, work: &FullWork<'_>) -> Finding {
        let (of, ran, waited) = match work {
            FullWork::Thread(thread) => (thread.name.to_owned(), thread.ran, Some(thread.waited)),
            FullWork::Core { number, ran } => (format!("cpu{number}"), *ran, None),
        };
        let times = match waited {
            None => format!("its threads used {} of {of}, their only core", percent(ran)),
            Some(waited) if waited < WAITED_TOLD => format!("its thread {of} ran {} of the time", percent(ran)),
            Some(waited) => {
                format!("its thread {of} ran {} of the time and waited for a core {}", percent(ran), percent(waited))
            }
        };
        let waited = waited.map(|waited| (host::DEVICE_WAIT_NS, waited));
        let evidence = std::iter::once((host::DEVICE_CPU_NS, ran)).chain(waited);
        self.told(seen, format!("the device {via} is at its limit: {times}"), ran)
            .evidence(evidence.map(|(counter, share)| ratio_evidence(via, format!("{counter} {of}"), share)))
            .next(NextStep::new("top -H").on(via).expected("show its threads, and what else runs on their core"))
    }

    fn told_core(&self, seen: &TestEvidence<'_>, via: &str, core: &CoreLoad) -> Finding {
        let (counter, word, share) = core.main_state();
        let busy = percent(core.busy());
        let title =
            format!("the device {via} is at its limit: its {} was busy {busy} of the time, mostly {word}", core.core);
        self.told(seen, title, core.busy())
            .evidence(
                [("busy", core.busy()), (counter, share)]
                    .map(|(name, share)| ratio_evidence(via, format!("{name} {}", core.core), share)),
            )
            .next(
                NextStep::new(format!("perf top -C {}", core.core.trim_start_matches("cpu")))
                    .on(via)
                    .expected("show what the core of the device does for each frame"),
            )
    }

    fn told(&self, seen: &TestEvidence<'_>, title: String, share: f64) -> Finding {
        // What others took of the core is theirs to explain.
        seen.finding(self.id(), Severity::HoldsBack, "device cpu", title)
            .explains(Some(gap::explained_by_core(seen, share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_device_that_drops_is_named_with_the_place_and_its_counter() {
        let cases: [(&str, &str, &str); 7] = [
            (host::DEV_XDP_DROPPED, "eth0", "device-program"),
            (host::NFT_DROPPED, "ip fathom forward 7", "device-rule"),
            (host::CONNTRACK_DROPPED, "", "device-conntrack"),
            (host::IP_IN_NO_ROUTES, "", "device-forwarding"),
            (host::IP_RP_FILTER_DROPPED, "", "device-forwarding"),
            (host::IP_FRAGMENTATION_FAILS, "", "device-forwarding"),
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

    /// A stream of datagrams through a device with a thread that ran and waited for these shares of the time, in percent.
    fn with_thread(ran: u64, waited: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.device_between("dut");
        builder.spent("dut", (host::DEVICE_CPU_NS, "balance-0"), ran);
        builder.spent("dut", (host::DEVICE_WAIT_NS, "balance-0"), waited);
        builder.spent("dut", (host::DEVICE_CPU_NS, "balance-1"), 40);
        builder.spent("dut", (host::DEVICE_WAIT_NS, "balance-1"), 1);
        builder
    }

    #[test]
    fn a_thread_of_the_device_without_idle_time_is_named() {
        for (ran, waited, said) in [
            (98, 1, Some("its thread balance-0 ran 98 % of the time")),
            (62, 37, Some("its thread balance-0 ran 62 % of the time and waited for a core 37 %")),
            (80, 5, None),
            (20, 79, None),
        ] {
            let title = with_thread(ran, waited).finding("device-core-full").map(|finding| finding.title);
            match said {
                None => assert_eq!(title, None, "{ran} {waited}"),
                Some(said) => assert!(title.as_ref().is_some_and(|title| title.ends_with(said)), "{title:?}"),
            }
        }
    }

    #[test]
    fn threads_that_fill_their_only_core_are_named_together() {
        let mut builder = with_thread(60, 10);
        assert_eq!(builder.finding("device-core-full"), None, "they may run on two cores");
        builder.run.hosts.get_mut("dut").unwrap().environment.note("device", "core", "1");
        let finding = builder.finding("device-core-full").unwrap();
        assert!(finding.title.ends_with("its threads used 100 % of cpu1, their only core"), "{}", finding.title);
    }

    #[test]
    fn a_full_core_is_that_of_a_device_only_on_a_machine_of_its_own() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.device_between("dut");
        builder.cpu("dut", "cpu1", [1, 2, 96, 0]);
        assert_eq!(builder.finding("device-core-full"), None, "it is not known which machine it is");
        for (host, boot) in [("client", "x"), ("target", "y"), ("dut", "z")] {
            builder.run.hosts.get_mut(host).unwrap().environment.note("kernel", "boot_id", boot);
        }
        let finding = builder.finding("device-core-full").unwrap();
        let title = "the device dut is at its limit: its cpu1 was busy 99 % of the time, mostly softirq";
        assert_eq!((finding.title.as_str(), finding.next.unwrap().command.as_str()), (title, "perf top -C 1"));
        builder.cpu("dut", "cpu1", [96, 2, 1, 0]);
        assert_eq!(builder.finding("device-core-full"), None, "a program may fill it that forwards nothing");
        builder.cpu("dut", "cpu1", [1, 2, 96, 0]);
        builder.run.hosts.get_mut("dut").unwrap().environment.note("kernel", "boot_id", "x");
        assert_eq!(builder.finding("device-core-full"), None, "the core is that of an end");
    }

    #[test]
    fn a_few_packets_that_a_device_dropped_are_those_of_others() {
        let found = |n: u64, arrived: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(100_000, arrived)]);
            builder.device_between("dut");
            builder.host_counter("dut", (host::NFT_DROPPED, "ip fathom forward 7"), n);
            builder.finding("device-rule").is_some()
        };
        assert!(!found(3, 99_000) && !found(300, 100_000));
        assert!(found(300, 99_000));
    }
}
