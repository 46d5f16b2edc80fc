//! The limits that the values of a test are compared with: line rate, promise, requested rate, ideal of a window, own ceiling, layer below.

use std::net::IpAddr;

use fathom_model::{
    Better, Derivation, Layer, Limit, LimitKind, Metric, Run, Side, StepKind, Summary, Unit,
    metric::{UsersValue, used},
    names::{count, distribution},
    run::TestRun,
    units::{BitsPerSec, Bytes, PerSec, approximate, rounded},
};
use fathom_statistics::{ETHERNET_OVERHEAD, Headers, best_goodput, frame_rate};

use crate::{
    context::AnalysisContext,
    judged_promise::find_promise,
    path::{PathLink, hosts_of, link_of, mtu},
    summaries::main_rate,
    window::{record_of, usable_trials},
};

/// A rate that was asked for is kept from this share on.
pub(crate) const KEPT: f64 = 0.98;
/// A test that reaches this share of a limit lacks nothing that has to be explained.
pub(crate) const REACHED: f64 = 0.9;

pub(crate) fn headers(run: &Run, test: &TestRun) -> Headers {
    let address = hosts_of(test).find_map(|host| run.hosts.get(host)?.address.clone());
    let v6 = address.and_then(|address| address.parse::<IpAddr>().ok()).is_some_and(|address| address.is_ipv6());
    match (test.layer == Layer::Udp, v6) {
        (true, false) => Headers::UdpV4,
        (true, true) => Headers::UdpV6,
        (false, false) => Headers::TcpV4,
        (false, true) => Headers::TcpV6,
    }
}

/// Returns true for a rate of which more is better.
pub(crate) fn is_rate(metric: &Metric) -> bool {
    matches!(metric.from, Derivation::Rate { .. }) && metric.better == Better::Higher
}

fn limit(kind: LimitKind, summary: &Summary, value: f64, word: &str) -> Limit {
    let text = format!("{word} {}", summary.metric.show(value));
    let used = summary.value.and_then(|measured| used(measured, value));
    Limit { kind, metric: summary.metric.name.to_string(), value, text, used }
}

/// Returns all limits that the values of a test are compared with, the nearest first.
pub(crate) fn limits(run: &Run, test: &TestRun, context: &AnalysisContext) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut rates = test.summaries.iter().filter(|summary| is_rate(&summary.metric));
    let of_line = rates.find_map(|rate| Some((rate, wire_limit(run, test, &rate.metric)?)));
    limits.extend(of_line.map(|(rate, most)| limit(LimitKind::LineRate, rate, most, "line")));
    limits.extend(own_ceiling(test, context));
    limits.extend(requested_rate(run, test));
    limits.extend(ideal_rate(test));
    limits.extend(layer_below(run, test));
    for (name, written) in &test.expect {
        if let Ok((summary, promise)) = find_promise(test, name, written) {
            let of_promise = limit(LimitKind::Promise, summary, promise.bound, "");
            let words = format!("{} {}", promise.relation.sign(), summary.metric.show(promise.bound));
            limits.push(Limit { text: words, ..of_promise });
        }
    }
    let nearness = |limit: &Limit| limit.used.unwrap_or(-1.0);
    limits.sort_by(|a, b| nearness(b).total_cmp(&nearness(a)));
    limits
}

/// Returns the best rate of fathom itself on this machine. A value above it is not limited by it.
fn own_ceiling(test: &TestRun, context: &AnalysisContext) -> Option<Limit> {
    // The ceiling is that of one pair on one machine.
    let main = main_rate(test).filter(|_| test.links.is_empty())?;
    let most = context.ceilings.get(&test.name)?.get(main.metric.name.as_ref())?;
    Some(limit(LimitKind::OwnCeiling, main, *most, "ceiling")).filter(|limit| limit.used.is_none_or(|used| used <= 1.0))
}

/// Returns the most that the wire can carry, counting 20 extra bytes per frame.
fn wire_limit(run: &Run, test: &TestRun, metric: &Metric) -> Option<f64> {
    let PathLink::Wire { speed, mtu } = link_of(run, test)? else { return None };
    let headers = headers(run, test);
    let size = test.options.size("size");
    let datagram = || Some(Bytes((size? + headers.length() + ETHERNET_OVERHEAD).0.max(64)));
    match (test.layer, metric.unit) {
        (Layer::Frames, Unit::FramesPerSec) => frame_rate(speed, size?).map(PerSec::get),
        (Layer::Udp, Unit::FramesPerSec) => frame_rate(speed, datagram()?).map(PerSec::get),
        (Layer::Udp, Unit::BitsPerSec) => Some((frame_rate(speed, datagram()?)? * size?).get()),
        (Layer::App | Layer::Http | Layer::Tcp, Unit::BitsPerSec) => {
            best_goodput(speed, mtu?, headers).map(BitsPerSec::get)
        }
        _ => None,
    }
}

/// The options that request a rate.
const RATES: [&str; 2] = ["rate", "pps"];
/// The option that changes the rate during the test, so that no single rate was requested.
const LATER_RATE: &str = "step-rate";

/// Returns the rate that was requested of the generator. The unit of the option decides which rate it is.
fn requested_rate(run: &Run, test: &TestRun) -> Option<Limit> {
    let is_given = |name: &&str| test.options.text(name).is_some();
    let option = RATES.into_iter().find(is_given).filter(|_| !is_given(&LATER_RATE))?;
    let n_wholes = approximate(n_wholes(run, test));
    let bits = test.options.bit_rate(option).map(BitsPerSec::get);
    let events = test.options.rate(option).map(PerSec::get);
    // The option requests a rate of users. The script decides how many requests they make.
    let of_users = |metric: &Metric| matches!(metric.from, Derivation::Users { of: UsersValue::Begun });
    let is_asked = |metric: &Metric| if test.layer == Layer::App { of_users(metric) } else { is_rate(metric) };
    let mut rates = test.summaries.iter().filter(|summary| is_asked(&summary.metric));
    // A bare number can be read as either unit; it then means the first rate of the test.
    let (summary, most) = rates.find_map(|summary| {
        let asked = if summary.metric.unit == Unit::BitsPerSec { bits } else { events };
        Some((summary, asked.filter(|asked| *asked > 0.0)? * n_wholes))
    })?;
    Some(limit(LimitKind::Asked, summary, most, "asked"))
}

/// Returns the ideal of a stream whose window is part of the question (RFC 6349 section 3.3).
fn ideal_rate(test: &TestRun) -> Option<Limit> {
    let ideal = test.summaries.iter().find(|summary| summary.metric.name == "ideal_bps")?.value?;
    Some(limit(LimitKind::Ideal, main_rate(test)?, ideal, "ideal"))
}

/// How often the totals of a test apply: once, or once for each of its pairs.
pub(crate) fn n_wholes(run: &Run, test: &TestRun) -> u64 {
    let is_each = run.plan.tests.iter().any(|planned| planned.name == test.name && planned.each);
    if is_each { u64::try_from(test.links.len()).unwrap_or(u64::MAX).max(1) } else { 1 }
}

/// How a value of the layer below converts to a value of the layer above.
#[derive(Clone, Copy)]
enum RateConversion {
    /// One unit above needs at least one unit below.
    OneToOne,
    /// Each frame carries at most its own packet, and the MTU, without headers, in bits.
    FullFrames,
}

/// The Ethernet header and the FCS of a frame.
const FRAME_OVERHEAD: Bytes = Bytes(18);

/// A pair of rates that are compared across layers.
struct LayerComparison {
    /// The layer above and the counter of its rate.
    upper: (Layer, &'static str),
    /// The layer below and the name of its main metric.
    lower: (Layer, &'static str),
    /// The test below in words.
    words: &'static str,
    conversion: RateConversion,
}

/// All pairs of rates that are compared.
const LAYER_COMPARISONS: &[LayerComparison] = &[
    LayerComparison {
        upper: (Layer::App, count::REQUESTS),
        lower: (Layer::Http, "requests_per_sec"),
        words: "http",
        conversion: RateConversion::OneToOne,
    },
    LayerComparison {
        upper: (Layer::Http, count::REQUESTS),
        lower: (Layer::Tcp, "transactions_per_sec"),
        words: "tcp rr",
        conversion: RateConversion::OneToOne,
    },
    LayerComparison {
        upper: (Layer::Tcp, count::BYTES_RECEIVED),
        lower: (Layer::Frames, "received_per_sec"),
        words: "frames",
        conversion: RateConversion::FullFrames,
    },
];

/// Returns the number of requests or transactions in flight at the same time.
///
/// Users think between requests, so there are more users than requests in flight. By Little's law, the average number in flight
/// is the sum of all step times divided by the measured time.
fn concurrency(test: &TestRun) -> u64 {
    let records =
        || usable_trials(&test.trials).into_iter().filter_map(|trial| Some(record_of(trial, Side::Initiator)?.1));
    let steps = records().filter_map(|record| record.users.as_ref()).flat_map(|users| &users.steps);
    let single = steps.filter(|step| step.kind == StepKind::Step);
    let waited: f64 = single.map(|step| step.times.mean().unwrap_or(0.0) * approximate(step.times.count())).sum();
    let measured: f64 = records().map(|record| approximate((record.measured_ns.1 - record.measured_ns.0).0)).sum();
    if waited > 0.0 && measured > 0.0 {
        return rounded((waited / measured).ceil()).max(1);
    }
    ["connections", "flows"].iter().find_map(|name| test.options.count(name)).unwrap_or(1)
}

/// Returns true if two layers have a similar number in flight. One flow says nothing about a hundred.
fn comparable(upper: &TestRun, lower: &TestRun, conversion: RateConversion) -> bool {
    if upper.is_without_sockets() || lower.is_without_sockets() {
        return false;
    }
    let same_path =
        lower.path == upper.path && lower.from == upper.from && (upper.to.is_none() || lower.to == upper.to);
    let (high, low) = (concurrency(upper), concurrency(lower));
    // Users with think time have less in flight than the layer below, but the rate below is still their maximum.
    let fewer = low <= 2 * high || upper.layer == Layer::App;
    let alike = matches!(conversion, RateConversion::FullFrames) || (high <= 2 * low && fewer);
    same_path && alike && lower.unavailable.is_none()
}

fn counts(summary: &Summary, wanted: &str) -> bool {
    matches!(&summary.metric.from, Derivation::Rate { counter, .. } if counter == wanted)
}

/// Returns true if requests were sent on a schedule: then the rate is the one that was asked for, and not the most that the layer does.
fn is_scheduled(test: &TestRun) -> bool {
    let mut records = test.trials.iter().flat_map(|trial| trial.records.values());
    records.any(|record| record.distributions.contains_key(distribution::SCHEDULE_LAG))
}

/// Returns the rate of the layer below on the same path.
///
/// A rate above it is not limited by it: segmentation offload lets streams exceed the rate of single frames.
fn layer_below(run: &Run, test: &TestRun) -> Option<Limit> {
    let main = main_rate(test)?;
    let LayerComparison { lower, words, conversion, .. } = LAYER_COMPARISONS
        .iter()
        .find(|LayerComparison { upper, .. }| upper.0 == test.layer && counts(main, upper.1))?;
    let (mtu, headers) = (mtu(run, test), headers(run, test).length());
    let factor = |other: &TestRun| match conversion {
        RateConversion::OneToOne => Some(1.0),
        RateConversion::FullFrames => {
            let size = other.options.size("size").map(|size| size - FRAME_OVERHEAD);
            let packet = mtu.into_iter().chain(size).min()?;
            Some(approximate((packet - headers).0) * 8.0)
        }
    };
    let is_candidate =
        |other: &&TestRun| other.layer == lower.0 && !is_scheduled(other) && comparable(test, other, *conversion);
    let reached = run.tests.iter().filter(is_candidate).filter_map(|other| {
        let below = main_rate(other).filter(|below| below.metric.name == lower.1)?;
        Some((below.value? * factor(other)?, below))
    });
    let (most, below) = reached.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let text = format!("{words} {}", below.metric.show(below.value?));
    let limit = Limit { text, ..limit(LimitKind::LayerBelow, main, most, "") };
    limit.used.is_some_and(|used| used <= 1.0).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{RunBuilder, step, visits};

    #[test]
    fn a_wire_limits_a_stream_to_its_best_goodput() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[500_000_000]);
        builder.wire("1000000000", "1500");
        let run = builder.analyzed();
        let limit = &run.tests[0].limits[0];
        assert_eq!((limit.kind, limit.text.as_str()), (LimitKind::LineRate, "line 941 Mbit/s"));
        assert!((limit.used.unwrap() - 4.0 / 0.9415).abs() < 0.01, "{limit:?}");
    }

    #[test]
    fn the_ideal_of_its_window_limits_a_stream() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000_000]);
        builder.ideal(16_000_000);
        let limit = &builder.analyzed().tests[0].limits[0];
        assert_eq!((limit.kind, limit.text.as_str(), limit.used), (LimitKind::Ideal, "ideal 16.0 Mbit/s", Some(0.5)));
    }

    #[test]
    fn veth_has_no_line_rate_whatever_it_reports() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[500]);
        builder.wire("10000000000", "1500");
        builder.driver("veth");
        let run = builder.analyzed();
        assert!(run.tests[0].limits.is_empty());
        let remark = run.findings.iter().find(|finding| finding.id == "no-line-rate").unwrap();
        assert!(remark.title.contains("veth"), "{}", remark.title);
    }

    #[test]
    fn a_device_that_tells_no_speed_has_no_line_rate() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[500]);
        builder.driver("virtio_net");
        assert!(builder.analyzed().tests[0].limits.is_empty());
    }

    #[test]
    fn what_was_asked_limits_the_rate_of_its_unit() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000)]);
        builder.run.tests[0].options.set("rate", "2k/s");
        let run = builder.analyzed();
        let limit = &run.tests[0].limits[0];
        assert_eq!((limit.kind, limit.metric.as_str(), limit.value), (LimitKind::Asked, "packets_pps", 2000.0));
    }

    #[test]
    fn a_test_whose_rate_changes_was_asked_for_no_single_rate() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000)]);
        builder.run.tests[0].options.set("rate", "2k/s");
        builder.run.tests[0].options.set("step-rate", "4k/s");
        assert!(builder.analyzed().tests[0].limits.is_empty());
    }

    #[test]
    fn datagrams_per_second_are_asked_for_by_their_own_option() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000)]);
        builder.run.tests[0].options.set("pps", "1250/s");
        assert_eq!(builder.analyzed().tests[0].limits[0].used, Some(0.8));
    }

    #[test]
    fn requests_are_compared_with_transactions_of_as_many_flows() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 100);
        builder.tcp_rr(5000, 1);
        assert!(builder.analyzed().tests[0].limits.is_empty(), "one flow says nothing about a hundred");
        builder.tcp_rr(4000, 100);
        let run = builder.analyzed();
        let limit = &run.tests[0].limits[0];
        assert_eq!((limit.kind, limit.used), (LimitKind::LayerBelow, Some(0.25)));
        assert_eq!(limit.text, "tcp rr 4.00 k/s");
    }

    #[test]
    fn what_needs_no_sockets_is_no_layer_above_those_that_do() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 100);
        builder.tcp_rr(4000, 100);
        builder.run.tests[0].options.set("xdp", "native");
        assert!(builder.analyzed().tests[0].limits.is_empty());
    }

    #[test]
    fn users_are_compared_with_the_requests_of_as_many_connections_as_they_wait_on() {
        let waiting = |nanos: u64| visits((1_000, 0), vec![step("home", (1_000, 0), nanos)]);
        let mut builder = RunBuilder::new();
        // The times of a thousand answers, 1 to 1,000 times a base time, within one second.
        builder.users(&[waiting(20_000)]);
        builder.http(4_000, 4);
        builder.run.tests[1].kind = "http_closed".to_owned();
        builder.run.tests[1].name = "http".to_owned();
        builder.context.metrics.insert("http_closed".to_owned(), builder.context.metrics["http"].clone());
        assert!(builder.analyzed().tests[0].limits.is_empty(), "ten wait at once, and four connections say less");
        builder.run.tests[1].options.set("connections", "32");
        let run = builder.analyzed();
        let limit = &run.tests[0].limits[0];
        assert_eq!((limit.kind, limit.used), (LimitKind::LayerBelow, Some(0.25)));
        assert_eq!(limit.text, "http 4.00 k req/s");
    }

    #[test]
    fn a_rate_that_users_are_asked_for_at_is_one_of_users() {
        let mut builder = RunBuilder::new();
        builder.users(&[visits((500, 0), vec![step("home", (500, 0), 1)])]);
        builder.run.tests[0].options.set("rate", "2k/s");
        assert!(builder.analyzed().tests[0].limits.is_empty(), "requests were not asked for");
        builder.context.metrics.get_mut("shop").unwrap().push(crate::steps::script_metrics(&[]).remove(0));
        let run = builder.analyzed();
        let limit = &run.tests[0].limits[0];
        assert_eq!((limit.kind, limit.metric.as_str(), limit.used), (LimitKind::Asked, "users_per_sec", Some(0.25)));
    }

    #[test]
    fn each_companion_that_is_asked_for_the_whole_rate_adds_to_what_was_asked() {
        for (each, used) in [(false, 1.0), (true, 0.5)] {
            let mut builder = RunBuilder::new();
            builder.star(&[("c1", &[1_000]), ("c2", &[1_000])]);
            builder.run.tests[0].options.set("rate", "16k");
            builder.plan_last_test(each);
            let run = builder.analyzed();
            assert_eq!(run.tests[0].limits[0].used, Some(used), "each: {each}");
        }
    }

    #[test]
    fn the_wire_of_the_tested_host_limits_a_star() {
        let mut builder = RunBuilder::new();
        builder.star(&[("c1", &[25_000_000]), ("c2", &[25_000_000])]);
        builder.wire("1000000000", "1500");
        builder.run.hosts.get_mut("c1").unwrap().environment.note("eth0", "speed_bps", "100000000");
        let run = builder.analyzed();
        assert_eq!(run.tests[0].limits[0].text, "line 941 Mbit/s");
    }

    #[test]
    fn the_nearest_limit_comes_first() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 100);
        builder.tcp_rr(4000, 100);
        builder.context.ceilings.insert("http".to_owned(), [("requests_per_sec".to_owned(), 1250.0)].into());
        let run = builder.analyzed();
        let kinds: Vec<LimitKind> = run.tests[0].limits.iter().map(|limit| limit.kind).collect();
        assert_eq!(kinds, [LimitKind::OwnCeiling, LimitKind::LayerBelow]);
    }

    #[test]
    fn a_promise_is_a_limit_too() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.run.tests[0].expect.insert("throughput_bps".to_owned(), "16k".to_owned());
        let run = builder.analyzed();
        let limit = &run.tests[0].limits[0];
        assert_eq!((limit.text.as_str(), limit.used), (">= 16.0 kbit/s", Some(0.5)));
    }
}
