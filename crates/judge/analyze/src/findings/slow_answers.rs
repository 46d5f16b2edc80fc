//! Some answers are slow, and a closed load spends most of its time on them.
//!
//! Medians do not show it: if one request in ten takes 100 ms and the others 0.1 ms, each connection waits 99 % of its time for the slow ones.

use fathom_model::{
    Evidence, Finding, Histogram, Severity, Side,
    names::{distribution, host},
    units::{Nanos, approximate, percent, ratio},
};

use super::{
    FindingRule,
    other_programs::OtherPrograms,
    planned_event::PLANNED_EVENT,
    server_time::{MOST, ROUND_TRIPS_MIN, RequestTimes, SLOW, is_of_requests, uses_few_cores},
};
use crate::evidence::{TestEvidence, counter_evidence, ratio_evidence, text_evidence};

/// An answer is one of the slow ones if its first byte takes at least this many times as long as that of the median.
const TIMES_MEDIAN: u64 = 10;
/// Fewer slow answers show no habit.
const SLOW_LEAST: u64 = 10;
/// Where other programs use the cores, a thread waits for one as long, and its requests with it: some slices of 3 ms
/// (`sysctl_sched_base_slice`, kernel/sched/fair.c).
const LONGEST_CORE_WAIT: Nanos = Nanos::from_millis(20);
/// With fewer segments sent again per slow answer, most of them lost none.
const RESENT_MAX: f64 = 0.25;
/// The least time after which TCP sends a lost segment again (`TCP_RTO_MIN`, include/net/tcp.h), without the little that timers are early.
const RESENT_AFTER: Nanos = Nanos::from_millis(195);

/// Compares the time that connections spend on slow answers with all of their time.
pub(crate) struct SlowAnswers;

impl FindingRule for SlowAnswers {
    fn id(&self) -> &'static str {
        "slow-answers"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "server-time",
            "server-saturated",
            "core-saturated",
            "generator-limited",
            "other-programs",
            "local-shaper",
            "cpu-quota",
            "connect-delays",
            "errors",
            "resets",
            "latency-under-load",
            "outage",
            "retransmissions",
            "stall",
            "steal",
            "stuck-connections",
            PLANNED_EVENT,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        let Some(tail) = Tail::of(seen) else { return false };
        let is_own = match seen.time_waited_for_core() {
            Some(waited) => tail.share - waited >= MOST,
            None => uses_few_cores(seen) && tail.typical >= LONGEST_CORE_WAIT,
        };
        cause == OtherPrograms.id() && is_own
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(tail) = Tail::of(seen) else { return Vec::new() };
        let are_cores_taken = || OtherPrograms.evaluate(seen).iter().any(|found| found.severity == Severity::Disturbs);
        if tail.typical < LONGEST_CORE_WAIT && are_cores_taken() {
            return Vec::new();
        }
        let resent = seen.hosts().map(|host| seen.growth(host, host::TCP_RETRANS_SEGMENTS, None)).sum();
        if ratio(resent, tail.n).is_none_or(|share| share >= RESENT_MAX) {
            return Vec::new();
        }
        // Only the host that sends an answer counts that it was sent again.
        let is_counted = seen.hosts().count() > 1 || seen.is_server_here();
        let what = if tail.typical >= RESENT_AFTER && !is_counted {
            "the server, a queue that this load fills, or the loss of answers delays them"
        } else {
            "the server, or a queue that this load fills, delays them"
        };
        let title = format!(
            "{} of the requests wait about {} for their answers, the rest {}: these slow answers are {} of all waiting time; {what}",
            percent(tail.of_requests),
            tail.typical,
            tail.median,
            percent(tail.share)
        );
        let resent = counter_evidence(&seen.test.from, host::TCP_RETRANS_SEGMENTS, resent);
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "slow answers", title)
                .evidence(tail.evidence(&seen.test.from).into_iter().chain([resent]))
                .explains(tail.share),
        ]
    }
}

/// The slow answers of a closed load that spends most of its time on them.
struct Tail {
    n: u64,
    of_requests: f64,
    /// The median of their times to the first byte.
    typical: Nanos,
    /// The median of all times to the first byte.
    median: Nanos,
    /// The part of the time of the connections that they take without the round trip, from 0 to 1.
    share: f64,
}

impl Tail {
    fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let is_closed = || seen.distribution(Side::Initiator, distribution::SCHEDULE_LAG).max().is_none();
        (is_of_requests(seen) && !seen.reached_target() && is_closed()).then_some(())?;
        let times = seen.distribution(Side::Initiator, distribution::FIRST_BYTE);
        let service = seen.distribution(Side::Initiator, distribution::SERVICE_TIME);
        let (median, connect) = (Nanos(times.quantile(0.5)?), RequestTimes::of(seen)?.connect);
        let bound = SLOW.max(connect * ROUND_TRIPS_MIN).max(median * TIMES_MEDIAN);
        let (n, sum) = above(&times, bound);
        let (n_all, n_service) = (above(&times, Nanos::ZERO).0, above(&service, Nanos::ZERO).0);
        let share = (sum - approximate(n) * approximate(connect.0)) / (service.mean()? * approximate(n_service));
        (n >= SLOW_LEAST && share >= MOST).then_some(())?;
        let typical = Nanos(times.value_at_rank(n_all - n / 2)?);
        Some(Self { n, of_requests: ratio(n, n_all)?, typical, median, share: share.min(1.0) })
    }

    fn evidence(&self, host: &str) -> Vec<Evidence> {
        vec![
            ratio_evidence(host, "requests with a slow answer", self.of_requests),
            text_evidence(host, "time to their first byte, median", self.typical),
            text_evidence(host, "time to the first byte of all, median", self.median),
            ratio_evidence(host, "their share of all waiting time", self.share),
        ]
    }
}

/// Returns how many values are not below a bound, and their sum.
fn above(times: &Histogram, bound: Nanos) -> (u64, f64) {
    let buckets = times.buckets().filter(|(low, ..)| *low >= bound.0);
    buckets.fold((0, 0.0), |(n, sum), (low, high, count)| {
        (n + count, sum + approximate(count) * f64::midpoint(approximate(low), approximate(high)))
    })
}

#[cfg(test)]
mod tests {
    use fathom_model::{Histogram, names::distribution, names::host, units::Nanos};

    use crate::run_builder::RunBuilder;

    /// A thousand requests of 0.1 ms, of which some took another time.
    fn with_slow(n: u64, slow: Nanos) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 10);
        let times = |n: u64| {
            let mut times = Histogram::new();
            times.record_n(100_000, 1_000 - n);
            times.record_n(slow.0, n);
            times
        };
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        for name in [distribution::FIRST_BYTE, distribution::SERVICE_TIME] {
            record.distributions.insert(name.to_owned(), times(n));
        }
        for name in [distribution::CONNECT_TIME, distribution::DOWNLOAD_TIME] {
            let mut fast = Histogram::new();
            fast.record_n(50_000, 10);
            record.distributions.insert(name.to_owned(), fast);
        }
        builder
    }

    #[test]
    fn slow_answers_that_take_most_of_the_time_are_named_although_the_median_is_short() {
        let finding = with_slow(100, Nanos::from_millis(100)).finding("slow-answers").unwrap();
        let words = "10 % of the requests wait about 100 ms for their answers, the rest 100 µs: these slow answers are 99 % of all waiting time";
        assert!(finding.title.starts_with(words), "{}", finding.title);
        assert!(finding.title.ends_with("the server, or a queue that this load fills, delays them"));
        assert!(finding.explains.is_some_and(|share| share > 0.98));
    }

    #[test]
    fn a_few_or_short_ones_and_lost_segments_are_not_the_servers_slow_answers() {
        assert_eq!(with_slow(9, Nanos::from_secs(1)).finding("slow-answers"), None, "few");
        assert_eq!(with_slow(100, Nanos::from_micros(900)).finding("slow-answers"), None, "short");
        assert_eq!(with_slow(10, Nanos::from_millis(4)).finding("slow-answers"), None, "a small part of the time");
        let mut lossy = with_slow(100, Nanos::from_millis(210));
        lossy.host_counter("target", (host::TCP_RETRANS_SEGMENTS, ""), 60);
        assert_eq!(lossy.finding("slow-answers"), None);
    }

    #[test]
    fn answers_that_a_server_without_an_agent_may_have_sent_again_are_told_as_that() {
        let mut alone = with_slow(100, Nanos::from_millis(210));
        alone.run.tests[0].to = None;
        alone.run.tests[0].trials[0].records.remove("target");
        alone.run.tests[0].trials[0].hosts.remove("target");
        let title = alone.finding("slow-answers").unwrap().title;
        assert!(title.ends_with("or the loss of answers delays them"), "{title}");
    }
}
