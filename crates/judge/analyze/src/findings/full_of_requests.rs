//! Requests or their answers fill the path.

use fathom_model::{
    Evidence, Finding, Layer, NextStep, Part, Severity, Side,
    names::{
        count, distribution,
        host::{DEV_RX_BYTES, TCP_RETRANS_SEGMENTS, TCP_SYN_RETRANS},
        reception,
    },
    units::{BitsPerSec, Nanos, approximate, percent, ratio},
};

use super::{
    FindingRule,
    paced_answers::TIMES_BEGIN,
    rule::{DEVICE_CORE_FULL, FIRST_FLIGHT},
    server_time::FASTEST,
};
use crate::{
    cores::CoreLoad,
    evidence::{TestEvidence, ratio_evidence, text_evidence},
    flat::UsualRate,
    flows::{QUEUE_MIN, QUEUE_PART},
    reception::SeenReception,
    resent::{LOSS_MATTERS, most_resent},
    same_way::carries_more,
};

/// With more bytes in a transaction, the window of the receiver may divide it into round trips (RFC 1122, section 4.2.3.3: without scaling).
const WINDOW: u64 = 64 << 10;

/// Looks for a host that receives at a steady rate while packets are lost, or wait in a queue: the path passes no more. With
/// losses at random, the rate of requests varies as much as the number of connections that wait for a timeout.
///
/// Flat alone says nothing: a server that takes the same time for each request has as flat a rate. Where nothing is lost, the queue has to be known.
/// What a full path explains is not told: its rate is that of whole frames and of all programs, which no limit of the test is.
pub(crate) struct FullOfRequests;

impl FindingRule for FullOfRequests {
    fn id(&self) -> &'static str {
        "path-full"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", "latency-under-load", "outage", DEVICE_CORE_FULL]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let arrival = Arrival::of(seen);
        let is_of_requests = matches!(seen.test.layer, Layer::App | Layer::Http | Layer::Tcp | Layer::Udp)
            && (seen.one_way().is_none() || arrival.is_some())
            && !seen.reached_target()
            && !seen.keeps_asked_rate();
        let is_full = |host: &str| seen.cores(host).first().is_some_and(CoreLoad::is_full_of_own_work);
        let received = seen.hosts_of_tcp().filter_map(|host| Some((host, UsualRate::received(seen, host)?)));
        let most = received.max_by(|a, b| a.1.rate.total_cmp(&b.1.rate));
        let Some((at, usual)) = most.filter(|(_, usual)| is_of_requests && usual.is_that_of_full_path()) else {
            return Vec::new();
        };
        let sign = Losses::of(seen).map(Sign::Losses).or_else(|| Queue::of(seen).map(Sign::Queue));
        let sign = sign.or(arrival.map(Sign::Arrival));
        let is_full_elsewhere = seen.hosts().any(is_full) || carries_more(seen, usual.rate * 8.0);
        let Some(sign) = sign.filter(|_| !is_full_elsewhere) else { return Vec::new() };
        let Some(rate) = BitsPerSec::new(usual.rate * 8.0) else { return Vec::new() };
        let differs = percent(usual.deviation);
        let title = format!("the path is full: {at} received a steady {rate} (± {differs}), and {}", sign.text());
        let evidence = [text_evidence(at, DEV_RX_BYTES, rate), text_evidence(at, "deviation, median", differs)];
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "path full", title)
                .evidence(evidence.into_iter().chain(sign.evidence(&seen.test.from)))
                .next(next(seen)),
        ]
    }
}

/// Returns the next step: the same test with half as much in flight.
fn next(seen: &TestEvidence<'_>) -> Option<NextStep> {
    let options = ["connections", "flows", "users"];
    let (option, n) = options.into_iter().find_map(|option| Some((option, seen.test.options.count(option)?)))?;
    let command = (n > 1).then(|| seen.repeat_with_option(option, &(n / 2).to_string()))??;
    Some(NextStep::new(command).expected("carry as many bytes, with less loss and shorter waits"))
}

/// The proof that a path passes no more.
enum Sign<'a> {
    Losses(Losses<'a>),
    Queue(Queue),
    Arrival(Arrival),
}

impl Sign<'_> {
    fn text(&self) -> String {
        match self {
            Self::Losses(losses) => losses.text(),
            Self::Queue(Queue { idle, loaded }) => {
                format!("a round trip takes {loaded} under this load, and {idle} without it")
            }
            Self::Arrival(Arrival::Queue { queue, of }) => {
                format!("of a round trip of {of}, data spends {queue} in a queue before it arrives")
            }
            Self::Arrival(Arrival::Gaps(share)) => {
                format!("{} of the segments arrived out of order, behind lost ones", percent(*share))
            }
        }
    }

    fn evidence(&self, from: &str) -> Vec<Evidence> {
        match self {
            Self::Losses(losses) => vec![losses.evidence()],
            Self::Queue(Queue { idle, loaded }) => vec![
                text_evidence(from, "round trip without load", idle),
                text_evidence(from, "round trip under load, median", loaded),
            ],
            Self::Arrival(Arrival::Queue { queue, of }) => vec![
                text_evidence(from, format!("{} p50", reception::ROUND_TRIP), of),
                text_evidence(from, "in a queue", queue),
            ],
            Self::Arrival(Arrival::Gaps(share)) => {
                vec![ratio_evidence(from, reception::SEGMENTS_BEHIND_GAPS, *share)]
            }
        }
    }
}

/// How the data of a server arrives whose host is not seen.
enum Arrival {
    /// Behind a queue, in a round trip of this length.
    Queue { queue: Nanos, of: Nanos },
    /// This share of its segments behind a gap.
    Gaps(f64),
}

impl Arrival {
    fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let found = SeenReception::of(seen)?;
        let queue = found.queue().map(|queue| Self::Queue { queue, of: found.round_trip });
        queue.or_else(|| found.has_gaps().then_some(Self::Gaps(found.behind_gaps)))
    }
}

/// The packets that did not arrive.
struct Losses<'a> {
    share: f64,
    of: &'static str,
    host: &'a str,
    are: &'static str,
}

impl<'a> Losses<'a> {
    fn of(seen: &TestEvidence<'a>) -> Option<Self> {
        let losses = if seen.test.layer == Layer::Udp {
            let total = |counter| seen.total(Side::Initiator, counter);
            let share = ratio(total(count::TRANSACTIONS_LOST), total(count::SENT))?;
            Self { share, of: "requests", host: &seen.test.from, are: "had no answer" }
        } else {
            let (host, share) = most_resent(seen)?;
            // SYNs that a full accept queue drops say nothing about the path.
            let resent = |counter| seen.growth(host, counter, None);
            if 2 * resent(TCP_SYN_RETRANS) > resent(TCP_RETRANS_SEGMENTS) {
                return None;
            }
            Self { share, of: "segments", host, are: "were retransmitted" }
        };
        Some(losses).filter(|losses| losses.share > LOSS_MATTERS)
    }

    fn text(&self) -> String {
        format!("{} of the {} of {} {}", percent(self.share), self.of, self.host, self.are)
    }

    fn evidence(&self) -> Evidence {
        ratio_evidence(self.host, format!("{} that {}", self.of, self.are), self.share)
    }
}

/// Round trips of the path alone, without and with load.
struct Queue {
    idle: Nanos,
    loaded: Nanos,
}

impl Queue {
    fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        // A round trip is longer while the threads at its ends wait for a core.
        if seen.hosts().any(|host| seen.waits_for_core(host)) {
            return None;
        }
        let connects = seen.distribution(Side::Initiator, distribution::CONNECT_TIME);
        let total = |counter| seen.total(Side::Initiator, counter);
        let n_units = total(count::REQUESTS) + total(count::TRANSACTIONS);
        let asked = ["request", "response"].map(|option| seen.test.options.size(option).map_or(0, |size| size.0));
        let counted = (total(count::BYTES_SENT) + total(count::BYTES_RECEIVED)).checked_div(n_units)?;
        let bytes = counted.max(asked.into_iter().sum());
        // Each request has a handshake of its own, which meets the queue, and no program takes part in it.
        let queue = if 2 * connects.count() >= n_units {
            Self { idle: Nanos(connects.min()?), loaded: Nanos(connects.quantile(0.5)?) }
        } else {
            let idle = Nanos(connects.quantile(FASTEST)?);
            let loaded = between_programs(seen).filter(|_| bytes <= WINDOW)?;
            // Bytes beyond the first flight take more round trips.
            let n_trips = (approximate(bytes) / FIRST_FLIGHT + 1.0).log2().ceil().max(1.0);
            let is_long = approximate(loaded.0) >= TIMES_BEGIN * n_trips * approximate(idle.0);
            is_long.then_some(Self { idle, loaded })?
        };
        let waited = queue.loaded.since(queue.idle);
        (waited >= QUEUE_MIN && approximate(waited.0) > QUEUE_PART * approximate(queue.loaded.0)).then_some(queue)
    }
}

/// Returns the time of a usual transaction between the programs of both ends, if no program of another's takes part of it.
fn between_programs(seen: &TestEvidence<'_>) -> Option<Nanos> {
    // A responder of fathom answers at once, unless it was told to wait.
    let waits = ["delay", "stall"].iter().any(|option| seen.test.options.text(option).is_some());
    let is_own = seen.test.to.is_some() && !waits;
    let part = |part: Part| {
        let anatomy = seen.test.anatomy.as_ref()?;
        anatomy.parts.iter().find(|one| one.part == part).map(|one| one.median_ns)
    };
    let answered = || Some(part(Part::BaselineRtt)? + part(Part::Server)?);
    let whole = || seen.distribution(Side::Initiator, distribution::ROUND_TRIP).quantile(0.5).map(Nanos);
    part(Part::Path).or_else(|| answered().or_else(whole).filter(|_| is_own))
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        Histogram, Severity,
        names::{
            count, distribution,
            host::{DEV_RX_BYTES, TCP_OUT_SEGMENTS, TCP_RETRANS_SEGMENTS},
        },
        units::Nanos,
    };

    use crate::run_builder::RunBuilder;

    /// Requests of 20 connections whose answers arrive at this many bytes per sample, while the server sends segments again.
    fn with_received(bytes: impl Fn(u64) -> u64, n_resent: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 20);
        builder.run.command = "fathom http http://198.18.0.2/".to_owned();
        let client = builder.run.tests[0].trials[0].hosts.get_mut("client").unwrap();
        client.at_ns = (1..14).map(|tenth| Nanos::from_millis(10_000 + 100 * tenth)).collect();
        let values: Vec<u64> = (0..13).map(|n: u64| (0..n).map(&bytes).sum()).collect();
        builder.series("client", (DEV_RX_BYTES, "eth0"), &values);
        builder.host_counter("target", (TCP_OUT_SEGMENTS, ""), 100_000);
        builder.host_counter("target", (TCP_RETRANS_SEGMENTS, ""), n_resent);
        builder
    }

    #[test]
    fn a_host_that_receives_as_much_at_any_time_while_segments_are_lost_is_behind_a_full_path() {
        let builder = with_received(|idx| 625_000 + idx % 3 * 1_000, 5_000);
        let finding = builder.finding("path-full").unwrap();
        let words = "the path is full: client received a steady 50.1 Mbit/s (± 0.16 %), and 4.8 % of the segments of target were retransmitted";
        assert_eq!(finding.title, words);
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert_eq!(finding.next.unwrap().command, "fathom http http://198.18.0.2/ --connections 10");
        assert_eq!(builder.finding("retransmissions").unwrap().severity, Severity::Remark);
        let mut kept = builder;
        kept.run.tests[0].options.set("rate", "1000");
        assert_eq!(kept.finding("path-full"), None, "the rate that was asked for is steady by itself");
        kept.run.tests[0].options.set("rate", "2000");
        assert!(kept.finding("path-full").is_some());
    }

    #[test]
    fn handshakes_under_load_and_answers_of_fathom_show_a_queue_that_loses_nothing() {
        let with_times = |n_connects: u64, connect: &dyn Fn(u64) -> u64, round_trip: u64| {
            let mut builder = with_received(|_| 625_000, 0);
            builder.total("client", count::REQUESTS, 1_000);
            builder.total("client", count::BYTES_RECEIVED, 5_000_000);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            let mut times = Histogram::new();
            (0..n_connects).for_each(|n| times.record(Nanos::from_micros(connect(n)).0));
            record.distributions.insert(distribution::CONNECT_TIME.to_owned(), times);
            let mut times = Histogram::new();
            times.record_n(Nanos::from_micros(round_trip).0, 1_000);
            record.distributions.insert(distribution::ROUND_TRIP.to_owned(), times);
            builder
        };
        let title = |builder: &RunBuilder| builder.finding("path-full").map(|finding| finding.title);
        let busy_path = |n| 300 + n * 10;
        let said = title(&with_times(1_000, &busy_path, 0)).unwrap();
        assert!(said.ends_with("and a round trip takes 5.28 ms under this load, and 300 µs without it"), "{said}");
        assert_eq!(title(&with_times(1_000, &|n| 300 + n % 200, 50_000)), None, "handshakes meet no queue: the server");
        let kept = with_times(20, &|_| 300, 5_000);
        assert!(title(&kept).is_some());
        for option in ["delay", "stall"] {
            let mut slow = with_times(20, &|_| 300, 5_000);
            slow.run.tests[0].options.set(option, "5ms");
            assert_eq!(title(&slow), None);
        }
        let mut foreign = kept;
        foreign.run.tests[0].to = None;
        assert_eq!(title(&foreign), None, "its server may be slow");
        assert_eq!(title(&with_times(20, &|_| 1_700, 5_000)), None, "three round trips of a long path");
    }

    #[test]
    fn a_rate_that_varies_or_that_loses_nothing_fills_no_path() {
        assert_eq!(with_received(|idx| 625_000 + idx % 3 * 10_000, 5_000).finding("path-full"), None, "varies");
        assert_eq!(with_received(|_| 625_000, 0).finding("path-full"), None, "loses nothing");
        let mut busy = with_received(|_| 625_000, 5_000);
        busy.cpu("target", "cpu0", [10, 80, 10, 0]);
        assert_eq!(busy.finding("path-full"), None, "a server without a core has one rate too");
    }

    #[test]
    fn requests_by_datagrams_that_had_no_answer_are_losses() {
        let mut builder = with_received(|_| 625_000, 0);
        builder.run.tests[0].layer = fathom_model::Layer::Udp;
        builder.total("client", count::SENT, 1_000);
        builder.total("client", count::TRANSACTIONS, 980);
        builder.total("client", count::TRANSACTIONS_LOST, 20);
        let title = builder.finding("path-full").unwrap().title;
        assert!(title.ends_with("and 2.0 % of the requests of client had no answer"), "{title}");
    }
}
