//! Tests that no finding explains: what was ruled out, what could not be looked at, and what points to a cause.
//!
//! The numbers are those that the rules judge. Here they are below every threshold, and are told so that a person can go on.

use std::fmt::Display;

use fathom_model::{
    Derivation, Finding, Intervention, Layer, NoCause, ProofOutcome, SenderTime, Severity, TestRun,
    names::{count, host as counter},
    units::{Nanos, approximate, counted, grouped, percent, ratio},
};
use fathom_statistics::{mean, stdev};

use crate::{
    closed_load::whole_times,
    cores::CoreLoad,
    evidence::TestEvidence,
    findings::{DeviceThread, HOLDS_BACK, PACED, busiest_thread, waited_for_memory},
    flat::UsualRate,
    gap,
    reception::SeenReception,
    resent::{LOSS_MATTERS, most_resent},
    summaries::main_rate,
};

/// The most parts that are told, and the least that is worth it.
const PARTS_MAX: usize = 3;
const PART_MIN: f64 = 0.05;
/// A rate whose intervals differ by less than this from their mean, as a standard deviation, is steady.
const STEADY: f64 = 0.03;
/// Where usual answers take less than this share of the time, others hold the load back.
const USUAL_MIN: f64 = 0.5;
/// A core that is as busy cannot be ruled out.
const BUSY: f64 = 0.9;
/// Other programs that use so much of a core cannot be ruled out.
const OTHERS_MIN: f64 = 0.5;
/// Acknowledgements are no more than this share of the bytes that they acknowledge: one of 66 bytes for two segments, or for one of a small MTU.
const ACKNOWLEDGEMENTS: f64 = 0.1;
/// Fewer intervals say nothing about steadiness.
const INTERVALS_MIN: usize = 5;

/// Returns what is known about a test without a cause. `None` if it has one, lacks nothing, or is no test of a rate.
pub(crate) fn no_cause(seen: &TestEvidence<'_>) -> Option<NoCause> {
    let test = seen.test;
    let is_of_rate = test.layer != Layer::Path && test.curve.is_none() && test.benchmark.is_none();
    let is_known = test.unavailable.is_none() && !test.trials.is_empty() && main_rate(test)?.value.is_some();
    if !is_of_rate || !is_known || is_explained(seen) {
        return None;
    }
    let mut inspection = Inspection::default();
    for look in LOOKS {
        look(seen, &mut inspection);
    }
    Some(NoCause {
        parts: parts(seen),
        reached: gap::reached(seen),
        ruled_out: inspection.ruled_out,
        not_seen: inspection.not_seen,
        clue: waiting(seen).or_else(|| paced(seen)),
    })
}

/// Returns true if a finding explains the test, it reaches a limit, or its time went into one part.
fn is_explained(seen: &TestEvidence<'_>) -> bool {
    let is_cause =
        |finding: &Finding| finding.severity >= Severity::HoldsBack && finding.tests.contains(&seen.test.name);
    let has_part = seen.test.anatomy.as_ref().is_some_and(|anatomy| {
        let largest = anatomy.largest().and_then(|(_, time)| ratio(time.0, anatomy.median().0));
        largest.is_some_and(|share| share >= gap::HALF)
    });
    let is_paced_as_asked = seen.test.options.text("pacing").is_some() && is_said(seen, PACED);
    // A host that was lost took its share of the rate along.
    let has_lost = seen.test.trials.iter().any(|trial| !trial.lost.is_empty());
    seen.run.findings.iter().any(is_cause) || gap::reaches_a_limit(seen) || has_part || is_paced_as_asked || has_lost
}

/// Returns the causes that explain less than half of what the test lacks, the largest first.
fn parts(seen: &TestEvidence<'_>) -> Vec<String> {
    let is_of_test = |finding: &&Finding| finding.tests.contains(&seen.test.name);
    let known = seen.run.findings.iter().filter(is_of_test).filter_map(|finding| Some((finding, finding.explains?)));
    let mut parts: Vec<_> = known.filter(|(_, share)| *share >= PART_MIN).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    parts.iter().take(PARTS_MAX).map(|(finding, share)| format!("{} {}", finding.short, percent(*share))).collect()
}

/// What was looked at.
#[derive(Default)]
struct Inspection {
    ruled_out: Vec<String>,
    not_seen: Vec<String>,
}

impl Inspection {
    fn rule_out(&mut self, what: &str, showed: impl Display) {
        self.ruled_out.push(format!("{what} ({showed})"));
    }
}

/// Returns true if a finding with this id stands at the test, be it as a part or a remark: its cause is not ruled out.
fn is_said(seen: &TestEvidence<'_>, id: &str) -> bool {
    seen.run.findings.iter().any(|finding| finding.id == id && finding.tests.contains(&seen.test.name))
}

/// All looks, in the order in which people ask.
const LOOKS: [fn(&TestEvidence<'_>, &mut Inspection); 10] =
    [cores, device, lost, resent, buffers, queues, quota, memory, other_programs, uncounted];

fn cores(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    let mut busiest: Option<(f64, String)> = None;
    for host in seen.hosts() {
        match seen.cores(host).first() {
            Some(core) if busiest.as_ref().is_none_or(|(most, _)| core.busy() > *most) => {
                busiest = Some((core.busy(), format!("{} of {host}", core.core)));
            }
            Some(_) => {}
            None => inspection.not_seen.push(format!("the cores of {host}")),
        }
    }
    if let Some((busy, core)) = busiest {
        let showed = format!("the busiest, {core}, is busy {}", percent(busy));
        if busy < BUSY {
            inspection.rule_out("cores", showed);
        } else {
            inspection.not_seen.push(format!("whether cores hold it back ({showed})"));
        }
    }
    if seen.test.answering().is_none() {
        inspection.not_seen.push("the host of the server, whose counters were not read".to_owned());
    }
}

fn device(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    let Some(via) = seen.via() else { return };
    let Some(thread) = busiest_thread(seen, via) else {
        // A machine of its own has cores to look at.
        if seen.cores(via).is_empty() {
            inspection.not_seen.push(format!("the cores of the device {via}"));
        }
        return;
    };
    let DeviceThread { name, ran, waited } = thread;
    let showed = format!("its busiest thread, {name}, ran {} of the time", percent(ran));
    if ran + waited < BUSY {
        inspection.rule_out(&format!("the device {via}"), showed);
    } else {
        let waited = percent(waited);
        inspection
            .not_seen
            .push(format!("whether the device {via} holds it back ({showed} and waited for a core {waited})"));
    }
}

/// Counters of drops that do not belong to a protocol, with their places.
const DROPS: [(&str, &str); 6] = [
    (counter::DEV_RX_DROPPED, "interfaces"),
    (counter::DEV_TX_DROPPED, "interfaces"),
    (counter::QDISC_DROPPED, "queues"),
    (counter::SOFTNET_DROPPED, "backlogs"),
    (counter::UDP_RCVBUF_ERRORS, "UDP sockets"),
    (counter::TCP_LISTEN_DROPS, "TCP listeners"),
];

fn lost(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    if let Some((lost, sum)) = seen.packets_lost().zip(seen.test.conservation.as_ref()) {
        match ratio(lost, sum.n_sent).filter(|share| *share > LOSS_MATTERS) {
            Some(share) => {
                inspection.not_seen.push(format!(
                    "whether the loss of {} ({}) holds it back",
                    grouped(lost),
                    percent(share)
                ));
            }
            None => inspection.rule_out("loss", grouped(lost)),
        }
    } else {
        let places = seen.hosts().flat_map(|host| DROPS.map(|(counter, place)| (host, counter, place)));
        let (known, unknown): (Vec<_>, Vec<_>) = places.partition(|(host, counter, _)| seen.has_counter(host, counter));
        if !known.is_empty() {
            // What a filter drops on the way in is counted only where one is.
            let at_filters = seen.hosts().map(|host| seen.growth(host, counter::QDISC_IN_DROPPED, None));
            let at_places = known.iter().map(|(host, counter, _)| seen.growth(host, counter, None));
            inspection.rule_out("drops", grouped(at_places.chain(at_filters).sum()));
        }
        for (host, _, place) in unknown {
            let text = format!("drops at the {place} of {host}");
            if inspection.not_seen.last() != Some(&text) {
                inspection.not_seen.push(text);
            }
        }
    }
}

fn resent(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    if !is_of_tcp(seen) {
        return;
    }
    let is_half_seen = unseen_server_sends(seen);
    if let Some((host, share)) = most_resent(seen).filter(|_| !is_said(seen, "retransmissions")) {
        let whose = if is_half_seen { format!("retransmissions of {host}") } else { "retransmissions".to_owned() };
        inspection.rule_out(&whose, percent(share));
    }
    match SeenReception::of(seen).filter(|_| is_half_seen && !is_said(seen, "data-gaps")) {
        Some(found) if found.has_hardly_any_gaps() => {
            inspection.rule_out("segments of the server out of order", percent(found.behind_gaps));
        }
        Some(found) => {
            let share = percent(found.behind_gaps);
            inspection.not_seen.push(format!("whether segments of the server out of order ({share}) hold it back"));
        }
        None if is_half_seen => inspection.not_seen.push("retransmissions of the server".to_owned()),
        None => {}
    }
    let unknown = seen.hosts().filter(|host| !seen.has_counter(host, counter::TCP_RETRANS_SEGMENTS));
    inspection.not_seen.extend(unknown.map(|host| format!("retransmissions of {host}")));
}

/// Returns true if a server sends more than acknowledgements whose host is not seen, or counts what it sends to others too.
fn unseen_server_sends(seen: &TestEvidence<'_>) -> bool {
    let is_of_test = |server: &str| seen.hosts_of_tcp().any(|host| host == server);
    let is_unseen =
        seen.is_server_host_unread() || seen.test.server.as_deref().is_some_and(|server| !is_of_test(server));
    let client = seen.test.from.as_str();
    let passed = |counter| approximate(seen.growth(client, counter, Some(seen.interface(client))));
    is_unseen && passed(counter::DEV_RX_BYTES) > ACKNOWLEDGEMENTS * passed(counter::DEV_TX_BYTES)
}

fn is_of_tcp(seen: &TestEvidence<'_>) -> bool {
    matches!(seen.test.layer, Layer::App | Layer::Http | Layer::Tcp)
}

fn buffers(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    let of = |share: fn(&SenderTime) -> f64| {
        mean(&seen.test.flows.iter().map(|flow| share(&flow.waits)).collect::<Vec<_>>())
    };
    let is_refuted = |tried: &Intervention| {
        tried.option == "buffer" && tried.effect.as_ref().is_some_and(|effect| effect.outcome == ProofOutcome::Refuted)
    };
    if seen.test.interventions.iter().any(is_refuted) {
        inspection.rule_out("receive window and send buffer", "larger ones changed nothing");
        return;
    }
    let looked = [
        ("receive window", "receive-window", of(|waits| waits.receive_window)),
        ("send buffer", "send-buffer", of(|waits| waits.send_buffer)),
    ];
    for (what, id, share) in looked {
        if let Some(share) = share.filter(|share| *share <= HOLDS_BACK && !is_said(seen, id)) {
            inspection.rule_out(what, format!("{} of the time", percent(share)));
        }
    }
}

fn queues(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    let held = |host| {
        let devices = seen.devices(host).into_iter();
        devices.filter_map(move |device| seen.growing_time(host, counter::QDISC_OVERLIMITS, device))
    };
    let most = seen.hosts().flat_map(held).reduce(f64::max);
    if let Some(share) = most.filter(|share| *share < HOLDS_BACK && !is_said(seen, "local-shaper")) {
        inspection.rule_out("queues with a rate at the hosts", format!("holding back {} of the time", percent(share)));
    }
}

fn quota(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    let stopped = |host| {
        seen.last_value(host, counter::CGROUP_THROTTLED_NS)?;
        Some((seen.growth(host, counter::CGROUP_THROTTLED_NS, None), seen.sampled_time(host)?))
    };
    let stopped = seen.hosts_of_fathom().filter_map(stopped);
    let most = stopped.filter_map(|(lost, span)| ratio(lost, span.0)).reduce(f64::max);
    if let Some(share) = most.filter(|share| *share < HOLDS_BACK && !is_said(seen, "cpu-quota")) {
        inspection.rule_out("CPU quotas", percent(share));
    }
}

fn memory(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    let most = seen.hosts().filter_map(|host| waited_for_memory(seen, host)).reduce(f64::max);
    if let Some(share) = most {
        inspection.rule_out("memory", format!("tasks waited for it {} of the time", percent(share)));
    }
}

/// Counters that further rules need. Their zeros say little, but without them nobody looked.
const NEEDED: [(&str, &str); 7] = [
    (counter::SOFTNET_SQUEEZED, "turns at receiving"),
    (counter::PRESSURE_SOME_NS, "memory pressure"),
    (counter::IP_MARTIAN_SOURCE, "martian packets"),
    (counter::CONNTRACK_ENTRIES, "connection tracking"),
    (counter::NEIGHBOR_CHANGES, "neighbors"),
    (counter::NEIGHBOR_TABLE_FULL, "neighbor tables"),
    (counter::DEV_XDP_DROPPED, "XDP programs"),
];

fn uncounted(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    for (counter, what) in NEEDED {
        let unknown: Vec<&str> = seen.hosts().filter(|host| !seen.has_counter(host, counter)).collect();
        if !unknown.is_empty() {
            inspection.not_seen.push(format!("{what} of {}", unknown.join(" and ")));
        }
    }
}

fn other_programs(seen: &TestEvidence<'_>, inspection: &mut Inspection) {
    let (hidden, known): (Vec<&str>, Vec<&str>) = seen.hosts().partition(|host| seen.hides_server(host));
    inspection.not_seen.extend(hidden.iter().map(|host| format!("which program of {host} is the server")));
    let cores = known.into_iter().map(|host| seen.cores(host)).filter(|cores| !cores.is_empty());
    let most = cores.map(|cores| cores.iter().map(CoreLoad::others).sum::<f64>()).reduce(f64::max);
    if let Some(share) = most {
        let showed = format!("{} of a core", percent(share));
        if share < OTHERS_MIN {
            inspection.rule_out("other programs", showed);
        } else {
            inspection.not_seen.push(format!("whether other programs hold it back ({showed})"));
        }
    }
}

/// Returns the clue of a closed load: what is in flight waits for its answers, although neither end is full.
fn waiting(seen: &TestEvidence<'_>) -> Option<String> {
    let test = seen.test;
    // That of the whole: opening a connection is a part of it.
    let median = Nanos(whole_times(seen).quantile(0.5)?);
    let is_closed = is_rate_of(test, &[count::REQUESTS, count::TRANSACTIONS]) && test.options.text("rate").is_none();
    let (what, n) = ["connections", "flows"].iter().find_map(|name| Some((name, test.options.count(name)?)))?;
    is_closed.then_some(())?;
    // In the time of usual answers, these flows would do so many times as much: the rest of it goes to few answers that are late or lost.
    let worked = main_rate(test)?.value? * median.as_secs_f64() / approximate(n.max(1));
    let each = match n {
        // The pairs share the number, and each has one at least.
        _ if test.links.len() > 1 => format!("each of its {what}"),
        1 => format!("its one {}", what.trim_end_matches('s')),
        n => format!("each of its {n} {what}"),
    };
    if test.links.len() <= 1 && worked < USUAL_MIN {
        let share = percent(worked);
        return Some(format!(
            "{each} waits {median} for a usual answer, {share} of its time: answers that are late or lost take the rest"
        ));
    }
    Some(format!("{each} waits {median} for an answer; a test with more of them shows whether they carry more"))
}

/// Returns the clue of a stream whose rate does not vary: something with a clock may pace it.
fn paced(seen: &TestEvidence<'_>) -> Option<String> {
    if !is_rate_of(seen.test, &[count::BYTES_RECEIVED, count::BYTES_MOVED, count::RECEIVED]) {
        return None;
    }
    let own = || {
        let spread = spread_of_rate(seen).filter(|spread| *spread <= STEADY)?;
        Some(format!("its rate varies by {} only", percent(spread)))
    };
    // A program reads in large parts, but what paces a sender shows at the interface.
    let at_interface = || {
        let client = seen.test.from.as_str();
        let usual = UsualRate::received(seen, client).filter(|usual| usual.is_that_of_full_path())?;
        let interface = seen.interface(client);
        unseen_server_sends(seen).then(|| {
            format!("half of the time, the rate at {interface} is within {} of its median", percent(usual.deviation))
        })
    };
    Some(format!("{}, so something with a clock may pace it: {}", own().or_else(at_interface)?, pacers(seen)))
}

/// Returns what may pace a stream: what a counter or a property of its hosts shows, and the path, of which they show nothing.
fn pacers(seen: &TestEvidence<'_>) -> String {
    fn fact<'a>(seen: &TestEvidence<'a>, host: &str, of: &str, name: &str) -> Option<&'a str> {
        seen.environment(host)?.get(of, name)
    }
    let of_host = |host: &str| {
        let queue = |device: &&str| seen.growth(host, counter::QDISC_OVERLIMITS, Some(device)) > 0;
        let queues = seen.devices(host).into_iter().filter(queue).map(|device| {
            let n = seen.growth(host, counter::QDISC_OVERLIMITS, Some(device));
            let kind = fact(seen, host, device, "qdisc").unwrap_or("discipline");
            format!("the queue {kind} on {device} of {host}, which held packets back {}", counted(n, "time"))
        });
        let stopped = Nanos(seen.growth(host, counter::CGROUP_THROTTLED_NS, None));
        let quota = (stopped > Nanos::ZERO && !seen.is_of_server(host))
            .then(|| format!("the CPU quota of {host}, which stopped it for {stopped}"));
        queues.chain(quota).collect::<Vec<_>>()
    };
    let virtual_machines = seen.machines().filter(|host| fact(seen, host, "cpu", "hypervisor") == Some("yes"));
    let hypervisors = virtual_machines.map(|host| format!("the hypervisor of {host}"));
    let known: Vec<String> = seen.hosts().flat_map(of_host).chain(hypervisors).collect();
    let path = "a shaper or policer on the path";
    if known.is_empty() { path.to_owned() } else { format!("{}; or {path}", known.join("; ")) }
}

/// Returns the standard deviation of the intervals of a rate, as a share of their mean.
fn spread_of_rate(seen: &TestEvidence<'_>) -> Option<f64> {
    let (trials, _) = seen.rates_over_time()?;
    let enough = !trials.is_empty() && trials.iter().all(|rates| rates.len() >= INTERVALS_MIN);
    let all: Vec<f64> = trials.into_iter().flatten().collect();
    Some(stdev(&all)? / mean(&all).filter(|mean| enough && *mean > 0.0)?)
}

/// Returns true if the main rate of a test counts one of these.
fn is_rate_of(test: &TestRun, counters: &[&str]) -> bool {
    let main = main_rate(test).map(|summary| &summary.metric.from);
    matches!(main, Some(Derivation::Rate { counter, .. }) if counters.contains(&counter.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use std::collections::BTreeMap;

    use fathom_model::{Bottleneck, FlowSummary, Link, names::distribution};

    fn of_first(builder: &RunBuilder) -> Option<NoCause> {
        builder.analyzed().tests[0].no_cause.clone()
    }

    #[test]
    fn a_stream_that_nothing_explains_tells_what_was_ruled_out() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[12_500_000, 12_500_000]);
        builder.wire("1000000000", "1500");
        builder.cpu("client", "cpu0", [20, 20, 1, 0]);
        builder.cpu("target", "cpu1", [10, 30, 20, 0]);
        builder.host_counter("client", (counter::TCP_OUT_SEGMENTS, ""), 100_000);
        builder.host_counter("client", (counter::TCP_RETRANS_SEGMENTS, ""), 3);
        builder.host_counter("target", (counter::TCP_RETRANS_SEGMENTS, ""), 0);
        for (host, (counter, _)) in ["client", "target"].into_iter().flat_map(|host| DROPS.map(|drop| (host, drop))) {
            builder.host_counter(host, (counter, ""), 0);
        }
        for (host, (counter, _)) in
            ["client", "target"].into_iter().flat_map(|host| NEEDED.map(|needed| (host, needed)))
        {
            builder.host_counter(host, (counter, "memory"), 0);
        }
        let found = of_first(&builder).unwrap();
        assert_eq!(found.reached.as_deref(), Some("11 % of line 941 Mbit/s"));
        let ruled_out =
            ["cores (the busiest, cpu1 of target, is busy 60 %)", "drops (0)", "retransmissions (0.0030 %)"];
        assert_eq!(found.ruled_out[..3], ruled_out, "{found:?}");
        assert!(found.not_seen.is_empty());
        let clue = found.clue.unwrap();
        assert!(
            clue.starts_with("its rate varies by 0 % only")
                && clue.ends_with("pace it: a shaper or policer on the path")
        );
        builder.series("client", (counter::QDISC_OVERLIMITS, "eth0"), &[7, 7, 7, 10]);
        builder.series("target", (counter::CGROUP_THROTTLED_NS, ""), &[7, 7, 7, 5_000_007]);
        let clue = of_first(&builder).unwrap().clue.unwrap();
        let known = "the queue discipline on eth0 of client, which held packets back 6 times; the CPU quota of target, which stopped it for 10.0 ms; or a shaper";
        assert!(clue.contains(known), "{clue}");
        builder.growth_per_interval(|interval| 1000 + 300 * (interval % 3));
        assert_eq!(of_first(&builder).unwrap().clue, None, "what varies is not paced");
        builder.run.tests[0].trials[1].lost = vec!["companion".to_owned()];
        assert_eq!(of_first(&builder), None, "a lost host took its share along");
    }

    /// A stream whose client reads in large parts, and whose interface received and sent this much in each tenth of a second.
    fn from_unseen_server(received: impl Fn(u64) -> u64, sent: u64) -> NoCause {
        let mut builder = RunBuilder::new();
        builder.foreign_stream(12_500_000);
        builder.growth_per_interval(|interval| 1000 + 300 * (interval % 3));
        let host = builder.run.tests[0].trials[0].hosts.get_mut("client").unwrap();
        host.at_ns = (1..14).map(|tenth| Nanos::from_millis(10_000 + 100 * tenth)).collect();
        let grown = |each: &dyn Fn(u64) -> u64| -> Vec<u64> {
            (0..13).scan(0, |sum, n| Some(std::mem::replace(sum, *sum + each(n)))).collect()
        };
        builder.series("client", (counter::DEV_RX_BYTES, "eth0"), &grown(&received));
        builder.series("client", (counter::DEV_TX_BYTES, "eth0"), &grown(&|_| sent));
        builder.series("client", (counter::TCP_OUT_SEGMENTS, ""), &grown(&|_| 1_000));
        builder.series("client", (counter::TCP_RETRANS_SEGMENTS, ""), &[0; 13]);
        of_first(&builder).unwrap()
    }

    #[test]
    fn nothing_is_ruled_out_of_a_server_that_is_not_seen() {
        let sends = from_unseen_server(|n| 1_250_000 + n % 2 * 300_000, 40_000);
        assert!(sends.ruled_out.contains(&"retransmissions of client (0 %)".to_owned()), "{sends:?}");
        assert!(sends.not_seen.contains(&"retransmissions of the server".to_owned()), "{sends:?}");
        assert_eq!(sends.clue, None, "it varies at the interface too");
        let acknowledges = from_unseen_server(|_| 40_000, 1_250_000);
        assert!(acknowledges.ruled_out.contains(&"retransmissions (0 %)".to_owned()), "{acknowledges:?}");
        assert_eq!(acknowledges.clue, None, "acknowledgements are even by themselves");
    }

    #[test]
    fn what_paces_a_server_that_is_not_seen_shows_at_the_interface() {
        let clue = from_unseen_server(|n| 1_250_000 + n % 2 * 1_000, 40_000).clue.unwrap();
        assert!(clue.starts_with("half of the time, the rate at eth0 is within 0.0"), "{clue}");
        assert!(clue.contains("a shaper or policer on the path"), "{clue}");
    }

    #[test]
    fn a_core_that_is_full_is_not_ruled_out() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[12_500_000, 12_500_000]);
        builder.wire("1000000000", "1500");
        builder.cpu("client", "cpu0", [45, 41, 5, 0]);
        let found = of_first(&builder).unwrap();
        assert!(found.ruled_out.iter().all(|it| !it.starts_with("cores")), "{found:?}");
        assert!(found.not_seen.iter().any(|it| it.starts_with("whether cores hold it back")), "{found:?}");
    }

    #[test]
    fn a_device_is_ruled_out_by_its_busiest_thread() {
        let of = |ran| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[12_500_000, 12_500_000]);
            builder.wire("1000000000", "1500");
            builder.device_between("dut");
            builder.spent("dut", (counter::DEVICE_CPU_NS, "balance-0"), ran);
            builder.spent("dut", (counter::DEVICE_WAIT_NS, "balance-0"), 12);
            of_first(&builder).unwrap()
        };
        let idle = "the device dut (its busiest thread, balance-0, ran 43 % of the time)".to_owned();
        assert!(of(43).ruled_out.contains(&idle), "{:?}", of(43));
        let found = of(80);
        let begins = "whether the device dut holds it back (its busiest thread, balance-0, ran 80 %";
        assert!(found.not_seen.iter().any(|text| text.starts_with(begins)), "{found:?}");
    }

    #[test]
    fn a_counter_that_was_not_sampled_rules_nothing_out() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[12_500_000, 12_500_000]);
        builder.wire("1000000000", "1500");
        builder.host_counter("client", (counter::SOFTNET_DROPPED, "cpu0"), 0);
        let found = of_first(&builder).unwrap();
        assert_eq!(found.ruled_out, ["drops (0)"]);
        let not_seen = |text: &str| found.not_seen.iter().filter(|one| *one == text).count();
        assert_eq!((not_seen("drops at the backlogs of client"), not_seen("drops at the backlogs of target")), (0, 1));
        assert_eq!((not_seen("drops at the interfaces of client"), not_seen("retransmissions of target")), (1, 1));
        assert_eq!(
            (not_seen("memory pressure of client and target"), not_seen("martian packets of client and target")),
            (1, 1)
        );
    }

    #[test]
    fn a_cause_that_a_remark_names_is_not_ruled_out() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[12_500_000, 12_500_000]);
        let waits = SenderTime { receive_window: 0.1, send_buffer: 0.3, application: 0.0, network: 0.6 };
        let flow = |held_by| FlowSummary {
            id: "a:1 b:2".to_owned(),
            sender: "client".to_owned(),
            acknowledged_bps: 1e8,
            waits,
            held_by,
        };
        builder.run.tests[0].flows = vec![flow(Bottleneck::CongestionWindow)];
        let seen_of = |run| TestEvidence::new(run, &run.tests[0], &builder.context);
        let ruled_out = |run| {
            let mut inspection = Inspection::default();
            buffers(&seen_of(run), &mut inspection);
            inspection.ruled_out
        };
        assert_eq!(ruled_out(&builder.run), ["receive window (10 % of the time)"], "a send buffer of 30 % is not");
        let remark = seen_of(&builder.run).finding("receive-window", Severity::Remark, "peer window", "a remark");
        let mut run = builder.run.clone();
        run.findings.push(remark);
        assert!(ruled_out(&run).is_empty());
    }

    #[test]
    fn a_test_with_a_cause_or_at_its_limit_needs_none() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        assert!(of_first(&builder).is_some());
        builder.cpu("target", "cpu0", [1, 2, 97, 0]);
        assert_eq!(of_first(&builder), None, "its core is the cause");
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000)]);
        builder.run.tests[0].options.set("rate", "1000/s");
        assert_eq!(of_first(&builder), None, "it got all that was asked");
    }

    #[test]
    fn a_closed_load_on_idle_hosts_waits_for_its_answers() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 32);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let mut times = fathom_model::Histogram::new();
        (1..=1_000).for_each(|n| times.record(n * 1_000));
        record.distributions.insert(distribution::SERVICE_TIME.to_owned(), times);
        let clue = of_first(&builder).unwrap().clue.unwrap();
        assert!(clue.starts_with("each of its 32 connections waits "), "{clue}");
        let link = |from: &str| Link { from: from.to_owned(), to: None, values: BTreeMap::new(), trials: Vec::new() };
        builder.run.tests[0].links = ["c1", "c2"].map(link).into();
        let clue = of_first(&builder).unwrap().clue.unwrap();
        assert!(clue.starts_with("each of its connections waits "), "several pairs: {clue}");
        builder.run.tests[0].options.set("rate", "2k/s");
        assert_eq!(of_first(&builder).and_then(|found| found.clue), None, "a schedule waits for nobody");
    }

    #[test]
    fn a_host_without_an_agent_was_not_seen() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 32);
        builder.run.tests[0].to = None;
        let found = of_first(&builder).unwrap();
        assert!(
            found.not_seen.contains(&"the host of the server, whose counters were not read".to_owned()),
            "{found:?}"
        );
    }
}
