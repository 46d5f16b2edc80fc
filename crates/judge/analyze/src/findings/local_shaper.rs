//! A queueing discipline of a host of the test kept its traffic to a rate.

use fathom_model::{
    Evidence, Finding, Layer, NextStep, Severity,
    names::host,
    units::{BitsPerSec, approximate, counted, percent, ratio},
};

use super::FindingRule;
use crate::{
    change::{Change, lower_rate, lower_rate_against, lower_stream_rate},
    evidence::{TestEvidence, counter_evidence, text_evidence},
    gap,
};

/// If packets waited for the rate in at least this share of the measured time, the discipline paces the test.
const PACES: f64 = 0.5;
/// A queue stands if what it holds takes about as long to leave as the median packet is under way. Of short bursts the queue holds, on average, far more
/// than a median packet finds.
const STANDS: std::ops::Range<f64> = 0.5..2.0;

/// If less than this part of the rate of a hierarchy leaves, packets waited for the rate of one of its classes.
const CLASS_BELOW: f64 = 0.5;

/// A discipline of which less than this part of the rate is used holds little back.
const RATE_USED: f64 = 0.5;

/// A connection goes at the rate of its discipline if its payload is this part of it: of a frame of 1,514 bytes, 1,448 are payload.
const AT_FLOW_RATE: std::ops::Range<f64> = 0.92..1.0;

pub(crate) const LOCAL_SHAPER: &str = "local-shaper";

/// Looks for disciplines that held packets back most of the time.
pub(crate) struct LocalShaper;

impl FindingRule for LocalShaper {
    fn id(&self) -> &'static str {
        LOCAL_SHAPER
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        places(seen).filter_map(|place| at_interface(seen, place).or_else(|| of_each_flow(seen, place))).collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        // What waits in a queue is delayed, and lost only where the sender does not wait. Some senders keep even the delay short.
        let delay = lower_rate_against(seen, delay_metric(seen)).or_else(|| lower_stream_rate(seen, "rtt_ns_p50"));
        delay.map(Change::without_refutation).or_else(|| lower_rate(seen))
    }
}

/// The interfaces whose queue may hold the test back, with their hosts.
fn places<'a>(seen: &TestEvidence<'a>) -> impl Iterator<Item = (&'a str, &'a str)> {
    let devices = |host| seen.devices(host).into_iter().chain(seen.redirects(host));
    let of_ends = seen.hosts().flat_map(move |host| devices(host).map(move |device| (host, device)));
    // A device has an interface towards each end.
    let of_device = |device| {
        let interfaces = seen.growth_by_instance(device, host::QDISC_OVERLIMITS);
        interfaces.into_iter().map(move |(interface, _)| (device, interface))
    };
    of_ends.chain(seen.via().into_iter().flat_map(of_device))
}

/// Returns the delay that shows the queue: the median where the queue stands, which a single stall of a host does not change, else the tail.
fn delay_metric(seen: &TestEvidence<'_>) -> &'static str {
    const MEDIAN: &str = "one_way_delay_ns_p50";
    const TAIL: &str = "one_way_delay_ns_p99";
    let median =
        seen.test.summaries.iter().find(|summary| summary.metric.name == MEDIAN).and_then(|summary| summary.value);
    let queued = |(host, interface): (&str, &str)| {
        let bytes = seen.mean_value(host, host::QDISC_BACKLOG_BYTES, interface)?;
        Some(approximate(bytes) * 8.0 / rate_of(seen, (host, interface))?.get() * 1e9)
    };
    let is_most = |median: f64| places(seen).filter_map(queued).any(|queued| STANDS.contains(&(queued / median)));
    if median.is_some_and(is_most) { MEDIAN } else { TAIL }
}

/// Returns the rate that the discipline of an interface is set to, if it tells.
fn rate_of(seen: &TestEvidence<'_>, (host, interface): (&str, &str)) -> Option<BitsPerSec> {
    seen.environment(host)?.get(interface, "qdisc_rate_bps")?.parse().ok().and_then(BitsPerSec::new)
}

fn at_interface(seen: &TestEvidence<'_>, (host, interface): (&str, &str)) -> Option<Finding> {
    let n = seen.growth(host, host::QDISC_OVERLIMITS, Some(interface));
    let share = seen.growing_time(host, host::QDISC_OVERLIMITS, interface).filter(|share| *share >= PACES)?;
    let fact = |name: &str| seen.environment(host)?.get(interface, name);
    let kind = fact("qdisc").unwrap_or("discipline").rsplit(", ").next().unwrap_or_default();
    // A hierarchy may have a class of another rate for this traffic.
    let is_of_class = |rate: &BitsPerSec| kind == "htb" && left_at(seen, (host, interface)) < CLASS_BELOW * rate.get();
    let rate = rate_of(seen, (host, interface)).filter(|rate| !is_of_class(rate));
    // Each burst waits a little for a rate that is not used up, as the ACKs of a download do. What waits for an unknown rate stands in the queue.
    let holds_back = match rate {
        Some(rate) => left_at(seen, (host, interface)) >= RATE_USED * rate.get(),
        None => seen.mean_value(host, host::QDISC_BACKLOG_BYTES, interface).is_none_or(|bytes| bytes > 0),
    };
    if !holds_back || is_queue_of_others(seen, (host, interface)) {
        return None;
    }
    let rate_text = rate.map_or_else(String::new, |rate| format!(" to {rate}"));
    let title = format!(
        "the queue {kind} on {interface} of {host} limits what {}{rate_text}: packets waited for it {} of the time",
        if seen.redirects(host).contains(&interface) { "it receives" } else { "leaves" },
        percent(share)
    );
    let shown = if rate.is_none() && kind == "htb" { "tc -s class show dev" } else { "tc -s qdisc show dev" };
    Some(
        seen.finding(LOCAL_SHAPER, Severity::HoldsBack, kind.chars().take(6).collect::<String>() + " queue", title)
            .evidence(evidence(seen, (host, interface), n))
            .explains(rate.and_then(|rate| gap::explained_by_rate(seen, rate)).or(Some(share)))
            .next(
                NextStep::new(format!("{shown} {interface}"))
                    .on(host)
                    .expected("show its rate and its queue; remove it or raise the rate"),
            ),
    )
}

/// Reports a discipline that keeps each connection to a rate (`maxrate` of tc-fq(8)), if most connections of the host went at it. It counts no
/// packets that waited for it.
fn of_each_flow(seen: &TestEvidence<'_>, (host, interface): (&str, &str)) -> Option<Finding> {
    let rate: f64 = seen.environment(host)?.get(interface, "qdisc_flow_rate_bps")?.parse().ok()?;
    let each = BitsPerSec::new(rate)?;
    let flows: Vec<_> = seen.test.flows.iter().filter(|flow| flow.sender == host).collect();
    let n_paced = flows.iter().filter(|flow| AT_FLOW_RATE.contains(&(flow.acknowledged_bps / rate))).count();
    if seen.reached_target() || n_paced == 0 || 2 * n_paced < flows.len() {
        return None;
    }
    let title = format!(
        "the queue fq on {interface} of {host} keeps each connection to {each}: {n_paced} of {} went at that rate",
        counted(flows.len() as u64, "connection")
    );
    let all = BitsPerSec::new(rate * approximate(flows.len() as u64))?;
    Some(
        seen.finding(LOCAL_SHAPER, Severity::HoldsBack, "fq rate", title)
            .evidence([text_evidence(host, format!("qdisc_flow_rate_bps {interface}"), each)])
            .explains(gap::explained_by_rate(seen, all))
            .next(
                NextStep::new(format!("tc -s qdisc show dev {interface}"))
                    .on(host)
                    .expected("show its maxrate; raise it, or use more connections"),
            ),
    )
}

/// Returns true if the packets of the test were under way for far less time than the queue of an interface needs to send what it holds: they did not
/// stand in it. A hierarchy has a queue for each of its classes, and counts the packets of all of them.
fn is_queue_of_others(seen: &TestEvidence<'_>, place: (&str, &str)) -> bool {
    // A mean queue is longer than the one that a usual packet of bursts finds.
    const PASSED_BY: f64 = 0.1;
    const UNDER_WAY: [&str; 3] = ["one_way_delay_ns_p50", "rtt_ns_p50", "latency_ns_p50"];
    // The median of several hosts says nothing about one of them.
    if !seen.test.links.is_empty() {
        return false;
    }
    let summaries = || seen.test.summaries.iter();
    let median = |name| summaries().find(|summary| summary.metric.name == name).and_then(|summary| summary.value);
    let Some(under_way) = UNDER_WAY.into_iter().find_map(median) else { return false };
    let held = seen.mean_value(place.0, host::QDISC_BACKLOG_BYTES, place.1).unwrap_or(0);
    let left = left_at(seen, place);
    left > 0.0 && under_way < PASSED_BY * approximate(held) * 8.0 / left * 1e9
}

/// Returns the rate at which an interface sent, in bits per second; without a limit if it does not count that.
fn left_at(seen: &TestEvidence<'_>, (host, interface): (&str, &str)) -> f64 {
    let time = seen.sampled_time(host).filter(|_| seen.has_counter_of(host, host::DEV_TX_BYTES, interface));
    let sent = approximate(seen.growth(host, host::DEV_TX_BYTES, Some(interface)).saturating_mul(8));
    time.map_or(f64::INFINITY, |time| sent / time.as_secs_f64())
}

fn evidence(seen: &TestEvidence<'_>, (host, interface): (&str, &str), n: u64) -> Vec<Evidence> {
    let dropped = seen.growth(host, host::QDISC_DROPPED, Some(interface));
    let sent = seen.growth(host, host::DEV_TX_FRAMES, Some(interface));
    let backlog = seen.mean_value(host, host::QDISC_BACKLOG_BYTES, interface);
    let mut all = vec![counter_evidence(host, format!("{} {interface}", host::QDISC_OVERLIMITS), n)];
    if let Some(backlog) = backlog.filter(|bytes| *bytes > 0) {
        all.push(counter_evidence(host, format!("{} {interface}", host::QDISC_BACKLOG_BYTES), backlog));
    }
    if let Some(share) = ratio(dropped, dropped + sent).filter(|_| approximate(dropped) > 0.0) {
        let text = format!("{dropped} ({})", percent(share));
        let counter = format!("{} {interface}", host::QDISC_DROPPED);
        all.push(text_evidence(host, counter, text));
    }
    all
}

#[cfg(test)]
mod tests {
    use fathom_model::{Bottleneck, FlowSummary, SenderTime};

    use super::*;
    use crate::run_builder::RunBuilder;

    /// A stream of 10 Mbit/s for which 20 Mbit/s were asked, beside a queue that lets a rate pass.
    fn shaped(rate: &str) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_250_000]);
        builder.run.tests[0].options.set("rate", "20M");
        builder.host_counter("client", (host::QDISC_OVERLIMITS, "eth0"), 1_000);
        let client = builder.run.hosts.get_mut("client").unwrap();
        client.environment.note("eth0", "qdisc", "tbf");
        client.environment.note("eth0", "qdisc_rate_bps", rate);
        builder
    }

    #[test]
    fn a_queue_explains_what_its_rate_lacks_of_what_was_asked() {
        let finding = shaped("10500000").finding(LOCAL_SHAPER).unwrap();
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, Some(0.95)));
        let run = shaped("19000000").analyzed();
        let finding = run.findings.iter().find(|finding| finding.id == LOCAL_SHAPER).unwrap();
        assert_eq!((finding.severity, finding.explains), (Severity::Remark, Some(0.1)));
        let no_cause = run.tests[0].no_cause.as_ref().unwrap();
        assert_eq!(no_cause.parts, ["tbf queue 10 %"]);
    }

    #[test]
    fn a_rate_of_each_connection_is_told_where_connections_go_at_it() {
        let told = |maxrate: &str| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_250_000]);
            let client = builder.run.hosts.get_mut("client").unwrap();
            client.environment.note("eth0", "qdisc", "fq");
            client.environment.note("eth0", "qdisc_flow_rate_bps", maxrate);
            let mut run = builder.analyzed();
            let flow = FlowSummary {
                id: "client:1 target:2".to_owned(),
                sender: "client".to_owned(),
                acknowledged_bps: 9_560_000.0,
                waits: SenderTime::default(),
                held_by: Bottleneck::CongestionWindow,
            };
            run.tests[0].flows = vec![flow];
            let seen = TestEvidence::new(&run, &run.tests[0], &builder.context);
            LocalShaper.evaluate(&seen).pop().map(|finding| finding.title)
        };
        let title = told("10000000").unwrap();
        let words =
            "the queue fq on eth0 of client keeps each connection to 10.0 Mbit/s: 1 of 1 connection went at that rate";
        assert_eq!(title, words);
        assert_eq!((told("100000000"), told("5000000")), (None, None));
    }

    #[test]
    fn a_class_of_a_hierarchy_is_not_told_with_the_rate_of_another() {
        let told = |rate: &str| {
            let mut builder = shaped(rate);
            builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "qdisc", "htb");
            builder.host_counter("client", (host::DEV_TX_BYTES, "eth0"), 1_300_000);
            let finding = builder.finding(LOCAL_SHAPER).unwrap();
            (finding.title.contains(" to "), finding.next.unwrap().command)
        };
        assert_eq!(told("10500000"), (true, "tc -s qdisc show dev eth0".to_owned()));
        assert_eq!(told("5000000000"), (false, "tc -s class show dev eth0".to_owned()));
    }

    #[test]
    fn a_standing_queue_is_shown_by_the_median_and_bursts_by_the_tail() {
        // At 10 Mbit/s, 25 kB are 20 ms.
        let metric = |median_ms: f64, backlog| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, 1_000)]);
            builder.series("client", (host::QDISC_BACKLOG_BYTES, "eth0"), &[backlog]);
            builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "qdisc_rate_bps", "10000000");
            let mut run = builder.analyzed();
            let mut median = run.tests[0].summaries[0].clone();
            (median.metric.name, median.value) = ("one_way_delay_ns_p50".into(), Some(median_ms * 1e6));
            run.tests[0].summaries.push(median);
            delay_metric(&TestEvidence::new(&run, &run.tests[0], &builder.context))
        };
        assert_eq!(metric(22.0, 25_000), "one_way_delay_ns_p50");
        assert_eq!((metric(1.0, 25_000), metric(1.0, 0)), ("one_way_delay_ns_p99", "one_way_delay_ns_p99"));
    }

    #[test]
    fn a_queue_that_the_packets_of_the_test_pass_by_holds_others() {
        // 100 kB need 80 ms at the 10 Mbit/s that leave.
        let found = |under_way_ms: f64| {
            let mut builder = shaped("");
            builder.host_counter("client", (host::DEV_TX_BYTES, "eth0"), 1_250_000);
            builder.series("client", (host::QDISC_BACKLOG_BYTES, "eth0"), &[100_000; 4]);
            let mut run = builder.analyzed();
            let mut median = run.tests[0].summaries[0].clone();
            (median.metric.name, median.value) = ("rtt_ns_p50".into(), Some(under_way_ms * 1e6));
            run.tests[0].summaries.insert(0, median);
            !LocalShaper.evaluate(&TestEvidence::new(&run, &run.tests[0], &builder.context)).is_empty()
        };
        assert_eq!((found(40.0), found(0.05)), (true, false));
    }

    #[test]
    fn a_queue_of_what_a_host_receives_is_found_if_the_test_passed_it() {
        let found = |passed: u64| {
            let mut builder = shaped("10500000");
            builder.host_counter("client", (host::QDISC_OVERLIMITS, "eth0"), 0);
            let target = &mut builder.run.hosts.get_mut("target").unwrap().environment;
            target.note("ifb0", "driver", "ifb");
            target.note("ifb0", "qdisc", "tbf");
            target.note("ifb0", "qdisc_rate_bps", "10500000");
            builder.host_counter("target", (host::QDISC_OVERLIMITS, "ifb0"), 1_000);
            builder.host_counter("target", (host::DEV_RX_BYTES, "ifb0"), passed);
            builder.host_counter("target", (host::DEV_TX_BYTES, "ifb0"), passed);
            builder.finding(LOCAL_SHAPER).map(|finding| finding.title)
        };
        let title = found(1_300_000).unwrap();
        let told = "the queue tbf on ifb0 of target limits what it receives to 10.5 Mbit/s";
        assert!(title.starts_with(told), "{title}");
        assert_eq!(found(900_000), None, "the test received more");
    }

    #[test]
    fn a_queue_of_the_device_below_the_interface_is_found() {
        let mut builder = shaped("10500000");
        let client = builder.run.hosts.get_mut("client").unwrap();
        client.interface = Some("mv0".to_owned());
        assert_eq!(builder.finding(LOCAL_SHAPER), None, "another interface");
        builder.run.hosts.get_mut("client").unwrap().environment.note("mv0", "lower", "eth0");
        let finding = builder.finding(LOCAL_SHAPER).unwrap();
        assert!(finding.title.starts_with("the queue tbf on eth0 of client limits what leaves"), "{}", finding.title);
    }

    #[test]
    fn a_queue_whose_rate_is_hardly_used_or_that_never_stands_holds_nothing_back() {
        let found = |rate: &str, counters: &[(&str, u64)]| {
            let mut builder = shaped(rate);
            for (counter, n) in counters {
                builder.host_counter("client", (counter, "eth0"), *n);
            }
            builder.finding(LOCAL_SHAPER).is_some()
        };
        // The stream lasts for a little more than a second.
        let sent = |bytes| [(host::DEV_TX_BYTES, bytes)];
        assert!(found("20000000", &sent(2_400_000)));
        assert!(!found("20000000", &sent(200_000)), "ACKs of a download wait for a moment");
        let mut builder = shaped("");
        builder.series("client", (host::QDISC_BACKLOG_BYTES, "eth0"), &[0; 4]);
        assert_eq!(builder.finding(LOCAL_SHAPER), None, "nothing waits for an unknown rate");
    }
}
