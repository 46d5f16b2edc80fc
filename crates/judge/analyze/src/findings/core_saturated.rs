//! One core has no idle time left.

use fathom_model::{
    Evidence, Finding, Layer, NextStep, Severity,
    names::host::{CPU_IRQ_NS, CPU_SOFTIRQ_NS, CPU_STEAL_NS},
    units::percent,
};
use fathom_statistics::mean;

use super::{FindingRule, device, generator_limited, retransmissions};
use crate::{
    change::{Change, another_core, lower_rate},
    cores::CoreLoad,
    evidence::{TestEvidence, ratio_evidence},
    gap,
};

/// Cores that are busy for less than this share of the time can take over work.
const FREE: f64 = 0.5;

/// What a hypervisor took of a full core is told from this share on.
const STOLEN_MIN: f64 = 0.01;
/// From this share on, it is what to look at first.
const STOLEN_MOST: f64 = 0.1;

/// Looks at the busiest core of the test and at the state of its work.
pub(crate) struct CoreSaturated;

impl FindingRule for CoreSaturated {
    fn id(&self) -> &'static str {
        "core-saturated"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "local-shaper",
            "cpu-quota",
            "low-frequency",
            "receive-window",
            "send-buffer",
            "other-programs",
            "bad-tcp-checksums",
            "one-core-receives",
            "segmentation-off",
            "server-saturated",
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Single packets need hardly any CPU. The core of a device in between has its own finding.
        if seen.reached_target() || seen.test.layer == Layer::Path || device::is_full(seen) {
            return Vec::new();
        }
        // A core that is polled on is full, whatever its work is.
        if seen.polls_all_the_time() {
            return Vec::new();
        }
        // A sender that keeps its schedule spins between packets, so its full core is no bottleneck.
        let paced = seen.offered().filter(|offered| offered.share >= generator_limited::OFFERED);
        // Full ones first: of a core that a hypervisor takes time from, less is busy.
        let full_first = |mut cores: Vec<CoreLoad>| {
            cores.sort_by_key(|core| !core.is_full_of_own_work());
            cores
        };
        let cores = seen.hosts().map(|host| (host, full_first(seen.cores(host))));
        let suspect = |(host, cores): &(&str, Vec<CoreLoad>)| match &paced {
            Some(_) if seen.is_one_machine() => cores.iter().all(CoreLoad::is_full_of_own_work),
            Some(offered) => *host != offered.host,
            None => true,
        };
        let hosts: Vec<(&str, Vec<CoreLoad>)> = cores.filter(|(_, cores)| !cores.is_empty()).filter(suspect).collect();
        let fullness = |cores: &[CoreLoad]| (cores[0].is_full_of_own_work(), cores[0].busy());
        let busiest = hosts.iter().max_by(|a, b| {
            let ((a_full, a_busy), (b_full, b_busy)) = (fullness(&a.1), fullness(&b.1));
            a_full.cmp(&b_full).then(a_busy.total_cmp(&b_busy))
        });
        let Some((host, cores)) = busiest.filter(|(_, cores)| cores[0].is_full_of_own_work()) else {
            return Vec::new();
        };
        // Reporting the same core twice would look like two causes.
        if seen.role_of(host) != "receiver" && generator_limited::threads_saturated(seen).is_some() {
            return Vec::new();
        }
        let shared = shares_all(seen, cores);
        let mut evidence: Vec<Evidence> = Vec::new();
        for (host, cores) in &hosts {
            let full = cores.iter().filter(|core| core.is_full_of_own_work());
            evidence.extend(full.flat_map(|core| core_evidence(host, core)));
            if seen.is_one_machine() {
                break;
            }
        }
        // TCP waits for lost segments first; the core would be next.
        let comes_next = seen.test.layer == Layer::Tcp && retransmissions::path_limits_window(seen);
        let short = match (shared, seen.is_one_machine()) {
            (true, _) => "shared cores".to_owned(),
            (false, true) => "one core".to_owned(),
            (false, false) => format!("{} cpu", seen.role_of(host)),
        };
        // Where the server is not known, it may be the work of another program.
        let is_hidden = seen.hides_server(host);
        let severity = if comes_next || is_hidden { Severity::Remark } else { Severity::HoldsBack };
        let whose = if is_hidden { "; whether that is the server's work is not known" } else { "" };
        vec![
            seen.finding(self.id(), severity, short, format!("{}{whose}", title(seen, host, cores)))
                .evidence(evidence)
                // What others took of the core is theirs to explain.
                .explains(gap::explained_by_core(seen, cores[0].own))
                // No way to spread the work gives back what the hypervisor took.
                .next((!comes_next && stolen(&cores[0]) < STOLEN_MOST).then(|| next(seen, host, cores))),
        ]
    }

    fn change(&self, finding: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        let host = finding.evidence.first()?.host.as_str();
        let in_interrupts = |core: &CoreLoad| core.share(CPU_SOFTIRQ_NS) + core.share(CPU_IRQ_NS) >= core.busy() / 2.0;
        match seen.test.layer {
            // A lower rate relieves everything on the way, so it proves no core.
            Layer::Udp => lower_rate(seen).map(Change::into_clue),
            _ if seen.cores(host).first().is_some_and(in_interrupts) => None,
            _ => another_core(seen, host),
        }
    }
}

/// Returns true if both ends run on one machine and no core of it can take over work.
fn shares_all(seen: &TestEvidence<'_>, cores: &[CoreLoad]) -> bool {
    seen.is_one_machine() && cores.iter().all(|core| core.busy() >= FREE)
}

/// The share of a core's time that a hypervisor took.
fn stolen(core: &CoreLoad) -> f64 {
    core.share(CPU_STEAL_NS)
}

/// Returns the busy share of a core and its main state as evidence, and what a hypervisor took of it.
fn core_evidence(host: &str, core: &CoreLoad) -> Vec<Evidence> {
    let (counter, _, share) = core.main_state();
    let mut shares = vec![("busy", core.busy()), (counter, share)];
    if stolen(core) >= STOLEN_MIN {
        shares.push((CPU_STEAL_NS, stolen(core)));
    }
    shares.into_iter().map(|(name, share)| ratio_evidence(host, format!("{name} {}", core.core), share)).collect()
}

fn title(seen: &TestEvidence<'_>, host: &str, cores: &[CoreLoad]) -> String {
    let core = &cores[0];
    let (_, word, share) = core.main_state();
    let by_hypervisor = Some(stolen(core)).filter(|stolen| *stolen >= STOLEN_MIN);
    let by_hypervisor = by_hypervisor.map_or_else(String::new, |n| format!(", and the hypervisor took {}", percent(n)));
    let busy = format!("busy {} of the time, {word} {}{by_hypervisor}", percent(core.busy()), percent(share));
    if shares_all(seen, cores) {
        let mut full: Vec<&str> =
            cores.iter().filter(|core| core.is_full_of_own_work()).map(|core| core.core.as_str()).collect();
        full.sort_unstable();
        let are = if full.len() > 1 { "are" } else { "is" };
        return format!(
            "both ends share the {} cores of one machine: {} {are} {busy}",
            cores.len(),
            full.join(" and ")
        );
    }
    let others: Vec<f64> = cores[1..].iter().map(CoreLoad::busy).collect();
    let rest = mean(&others).map_or(String::new(), |mean| format!("; the others are busy {}", percent(mean)));
    if seen.is_one_machine() {
        return format!("{} of this machine, which runs both ends, is {busy}{rest}", core.core);
    }
    format!("the {}'s {} on {host} is {busy}{rest}", seen.role_of(host), core.core)
}

/// Suggests spreading the work over cores with idle time, or another machine if there are none.
fn next(seen: &TestEvidence<'_>, host: &str, cores: &[CoreLoad]) -> NextStep {
    let n_cores = cores.len();
    let free = cores.iter().filter(|core| core.busy() < FREE).count();
    let here = |command: String| NextStep::new(command).on(host);
    let code =
        || here(format!("perf top -C {}", core_number(&cores[0].core))).expected("show which code takes the time");
    let card = seen.card(host);
    let in_interrupts = cores[0].share(CPU_SOFTIRQ_NS) + cores[0].share(CPU_IRQ_NS) >= cores[0].busy() / 2.0;
    match (free > 0, in_interrupts, seen.test.layer) {
        _ if shares_all(seen, cores) => {
            NextStep::new("fathom serve").on("another machine").expected("give each end its own cores")
        }
        (true, true, _) => {
            // All frames of a flow go to one queue, and so to one core.
            let has_few_flows = seen.test.options.count("flows").is_some_and(|n| n < n_cores as u64);
            if has_few_flows && let Some(command) = seen.repeat_test_command(&format!("--flows {n_cores}")) {
                return NextStep::new(command).expected(
                    "spread the frames of several flows over queues and cores; all frames of one flow go to one core",
                );
            }
            if let Some(n) = spare_queues(seen, host) {
                return here(format!("ethtool -L {card} combined {}", n.min(n_cores))).expected(
                    "spread arriving frames over more queues and cores; many cards lose their link for seconds then",
                );
            }
            let queues = format!("/sys/class/net/{card}/queues/rx-*/rps_cpus");
            here(format!("echo {} | tee {queues}", mask_of_all(n_cores)))
                .expected("spread the packets of its queues over all cores")
        }
        (true, false, Layer::Tcp | Layer::Udp) => {
            let more = |command| NextStep::new(command).expected("give each flow a core of its own");
            seen.repeat_test_command(&format!("--flows {n_cores}")).map_or_else(code, more)
        }
        _ if seen.role_of(host) == "client" => {
            here("fathom calibrate".to_owned()).expected("measure this client's maximum; add clients to go beyond it")
        }
        _ => code(),
    }
}

/// Returns the number of queues that the card of a host could have, if it has fewer.
fn spare_queues(seen: &TestEvidence<'_>, host: &str) -> Option<usize> {
    let count = |name| seen.environment(host)?.get(seen.card(host), name)?.parse::<usize>().ok();
    count("queues_combined_max").filter(|most| count("queues_combined").is_some_and(|now| now < *most))
}

/// Returns the bit mask of the first cores in the format of the kernel: words of 32 bits with commas between them, the highest first.
fn mask_of_all(n_cores: usize) -> String {
    let highest = u32::MAX.checked_shr(u32::try_from((32 - n_cores % 32) % 32).unwrap_or(0)).unwrap_or(u32::MAX);
    let n_full = n_cores.div_ceil(32).saturating_sub(1);
    std::iter::once(format!("{highest:x}"))
        .chain(std::iter::repeat_n(format!("{:x}", u32::MAX), n_full))
        .collect::<Vec<_>>()
        .join(",")
}

fn core_number(core: &str) -> &str {
    core.strip_prefix("cpu").unwrap_or(core)
}

#[cfg(test)]
mod tests {
    use super::mask_of_all;
    use crate::run_builder::RunBuilder;
    use fathom_model::{
        Severity, VerdictState,
        names::{count, host},
    };

    #[test]
    fn a_receiver_whose_one_core_is_full_of_softirqs_is_named_with_its_counter() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.cpu("client", "cpu0", [20, 30, 10, 0]);
        builder.cpu("target", "cpu0", [1, 2, 97, 0]);
        builder.cpu("target", "cpu1", [5, 5, 1, 0]);
        builder.driver("ice");
        let note = |builder: &mut RunBuilder, name: &str, n: &str| {
            builder.run.hosts.get_mut("target").unwrap().environment.note("eth0", name, n);
        };
        note(&mut builder, "queues_combined", "1");
        let next = builder.finding("core-saturated").unwrap().next.unwrap();
        assert_eq!(next.command, "echo 3 | tee /sys/class/net/eth0/queues/rx-*/rps_cpus", "it has one queue");
        note(&mut builder, "queues_combined_max", "8");
        let finding = builder.finding("core-saturated").unwrap();
        assert_eq!((finding.short.as_str(), finding.explains), ("receiver cpu", Some(1.0)));
        assert_eq!(
            finding.title,
            "the receiver's cpu0 on target is busy 100 % of the time, softirq 97 %; the others are busy 11 %"
        );
        assert!(
            finding.evidence.iter().any(|e| e.counter == "cpu_softirq_ns cpu0" && e.value == "97 %"),
            "{finding:?}"
        );
        let next = finding.next.unwrap();
        assert_eq!((next.command.as_str(), next.on.as_deref()), ("ethtool -L eth0 combined 2", Some("target")));
    }

    #[test]
    fn a_path_that_loses_one_segment_in_fifty_holds_back_before_the_cores_do() {
        for (resent, dropped, severity) in
            [(2_000, 0, Severity::Remark), (200, 0, Severity::HoldsBack), (2_000, 2_000, Severity::HoldsBack)]
        {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.cpu("target", "cpu0", [1, 2, 97, 0]);
            builder.host_counter("client", (host::TCP_OUT_SEGMENTS, ""), 100_000);
            builder.host_counter("client", (host::TCP_RETRANS_SEGMENTS, ""), resent);
            builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu0"), dropped);
            let finding = builder.finding("core-saturated").unwrap();
            assert_eq!(finding.severity, severity, "{resent} {dropped}");
        }
    }

    #[test]
    fn a_sender_that_is_full_is_told_to_use_more_flows() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.cpu("client", "cpu0", [10, 88, 1, 0]);
        builder.cpu("client", "cpu1", [1, 1, 1, 0]);
        builder.cpu("target", "cpu0", [10, 60, 10, 0]);
        let finding = builder.finding("core-saturated").unwrap();
        assert_eq!(finding.short, "sender cpu");
        assert_eq!(finding.next.unwrap().command, "fathom tcp 198.18.0.2 --flows 2");
    }

    #[test]
    fn ends_that_share_the_cores_of_one_machine_are_said_to() {
        let mut builder = RunBuilder::new();
        builder.one_machine();
        builder.tcp_stream(&[1000, 1000]);
        for host in ["client", "target"] {
            builder.cpu(host, "cpu0", [10, 50, 39, 0]);
            builder.cpu(host, "cpu1", [10, 60, 28, 0]);
        }
        let finding = builder.finding("core-saturated").unwrap();
        assert_eq!(finding.short, "shared cores");
        assert!(finding.title.starts_with("both ends share the 2 cores of one machine"), "{}", finding.title);
        assert!(finding.title.contains("cpu0 and cpu1"), "{}", finding.title);
    }

    #[test]
    fn one_full_core_of_a_machine_with_idle_ones_is_not_shared() {
        let mut builder = RunBuilder::new();
        builder.one_machine();
        builder.tcp_stream(&[1000, 1000]);
        for host in ["client", "target"] {
            builder.cpu(host, "cpu0", [10, 86, 2, 0]);
            builder.cpu(host, "cpu1", [1, 2, 1, 0]);
        }
        let finding = builder.finding("core-saturated").unwrap();
        assert_eq!(finding.short, "one core");
        let title = "cpu0 of this machine, which runs both ends, is busy 98 % of the time, system 86 %; the others are busy 4.0 %";
        assert_eq!(finding.title, title);
        assert_eq!(finding.next.unwrap().command, "fathom tcp 198.18.0.2 --flows 2");
    }

    #[test]
    fn a_core_that_other_programs_fill_is_not_the_tests() {
        let mut builder = RunBuilder::new();
        builder.one_machine();
        builder.tcp_stream(&[1000, 1000]);
        for host in ["client", "target"] {
            builder.cpu(host, "cpu0", [60, 35, 4, 0]);
            builder.cpu(host, "cpu1", [70, 27, 1, 0]);
        }
        builder.own_cpu("client", &[("cpu0", 20)]);
        builder.own_cpu("target", &[("", 230)]);
        assert_eq!(builder.finding("core-saturated"), None);
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.measured_ns.1 = record.measured_ns.0;
        }
        assert_eq!(
            builder.finding("core-saturated"),
            None,
            "a round without a measured part tells nothing of the others"
        );
        let others = builder.finding("other-programs").unwrap();
        assert_eq!(others.severity, Severity::Disturbs);
        assert_eq!(others.title, "other programs used 84 % of the 2 cores of this machine: results are disturbed");
        assert_eq!(builder.analyzed().verdict.state, VerdictState::Disturbed);
        builder.own_cpu("client", &[("cpu0", 900)]);
        builder.own_cpu("target", &[("cpu1", 900)]);
        assert_eq!(builder.finding("core-saturated").unwrap().short, "shared cores");
        assert_eq!(builder.finding("other-programs"), None);
    }

    #[test]
    fn cores_that_are_busy_but_not_full_are_not_the_cause() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.cpu("target", "cpu0", [10, 40, 40, 0]);
        assert_eq!(builder.finding("core-saturated"), None);
    }

    #[test]
    fn a_full_core_does_not_hold_back_what_reached_all_that_was_asked() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000), (1000, 1000)]);
        builder.run.tests[0].options.set("rate", "1000/s");
        builder.cpu("target", "cpu0", [1, 2, 97, 0]);
        assert_eq!(builder.finding("core-saturated"), None);
    }

    #[test]
    fn a_sender_that_keeps_its_schedule_spins_and_is_not_the_cause_of_a_loss() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.total("client", count::INTENDED, 1000);
        builder.cpu("client", "cpu0", [60, 40, 0, 0]);
        builder.cpu("target", "cpu0", [1, 2, 50, 0]);
        assert_eq!(builder.finding("core-saturated"), None);
        builder.cpu("target", "cpu0", [1, 2, 97, 0]);
        assert_eq!(builder.finding("core-saturated").unwrap().short, "receiver cpu");
    }

    #[test]
    fn the_mask_of_all_cores_is_hexadecimal() {
        let masks = [2, 8, 32, 40, 64].map(mask_of_all);
        assert_eq!(masks, ["3", "ff", "ffffffff", "ff,ffffffff", "ffffffff,ffffffff"]);
    }

    #[test]
    fn a_core_of_which_a_hypervisor_took_the_rest_has_no_time_left_either() {
        let told = |work: u64, stolen: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.cpu("target", "cpu0", [0, 0, work, 0]);
            builder.spent("target", (host::CPU_STEAL_NS, "cpu0"), stolen);
            builder.spent("target", (host::CPU_IDLE_NS, "cpu0"), 100 - work - stolen);
            builder.cpu("target", "cpu1", [0, 0, 93, 0]);
            builder.finding("core-saturated").map(|finding| finding.title)
        };
        let title = told(92, 7).unwrap();
        assert!(
            title.contains("cpu0 on target is busy 92 % of the time, softirq 92 %, and the hypervisor took 7.0 %"),
            "{title}"
        );
        assert_eq!(told(60, 10), None, "it was idle at times");
        assert_eq!(told(30, 69), None, "the hypervisor is the cause");
    }

    #[test]
    fn more_queues_are_no_help_for_fewer_flows_than_cores() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.cpu("target", "cpu0", [1, 2, 97, 0]);
        builder.cpu("target", "cpu1", [1, 2, 1, 0]);
        let command = |builder: &RunBuilder| builder.finding("core-saturated").unwrap().next.unwrap().command;
        builder.run.tests[0].options.set("flows", "1");
        assert_eq!(command(&builder), "fathom tcp 198.18.0.2 --flows 2");
        builder.run.tests[0].options.set("flows", "8");
        assert_eq!(command(&builder), "echo 3 | tee /sys/class/net/eth0/queues/rx-*/rps_cpus");
    }
}
