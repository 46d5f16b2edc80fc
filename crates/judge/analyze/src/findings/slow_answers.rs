//! Some answers are slow. A closed load spends most of its time on them; with a schedule, they are its tail.
//!
//! Medians do not show it: if one request in ten takes 100 ms and the others 0.1 ms, each connection of a closed load waits 99 % of its time for
//! the slow ones.

use fathom_model::{
    Evidence, Finding, Histogram, NextStep, Severity, Side, Summary, Unit,
    finding::PromiseOutcome,
    names::{distribution, host},
    units::{Nanos, PerSec, approximate, percent, ratio, rounded},
};

use super::{
    FindingRule,
    other_programs::OtherPrograms,
    planned_event::PLANNED_EVENT,
    server_time::{
        MOST, ROUND_TRIPS_MIN, RequestTimes, SLOW, ServerTime, groups, is_of_requests, is_scheduled, load_option,
        server_filter, uses_few_cores,
    },
    stall::Stall,
};
use crate::{
    evidence::{TestEvidence, counter_evidence, ratio_evidence, text_evidence},
    judged_promise::judge_promises,
};

/// An answer is one of the slow ones if its first byte takes at least this many times as long as a usual one.
const TIMES_USUAL: u64 = 10;
/// A closed load loses this part of its rate, or more, to pauses of a server.
const OF_PAUSES_MIN: f64 = 0.2;
/// The percentiles of an open load show a smaller share themselves.
const SHARE_OF_OPEN_MIN: f64 = 0.005;
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
        (cause == OtherPrograms.id() && is_own) || (cause == ServerTime.id() && tail.is_group)
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(tail) = Tail::of(seen) else { return Vec::new() };
        // A short wait of a few requests is nothing that the rate of a closed load would show, so that any use of the cores may be why.
        let may_take = |found: &Finding| tail.is_open || found.severity == Severity::Disturbs;
        let are_cores_taken = || OtherPrograms.evaluate(seen).iter().any(may_take);
        if (tail.typical < LONGEST_CORE_WAIT && are_cores_taken()) || (tail.is_open && is_stall(seen)) {
            return Vec::new();
        }
        let from = seen.test.from.as_str();
        let resent: u64 = seen.hosts_of_tcp().map(|host| seen.growth(host, host::TCP_RETRANS_SEGMENTS, None)).sum();
        // What the server had already when it was sent again.
        let needless = seen.growth(from, host::TCP_DSACK_SEGMENTS, None);
        let needless = needless.min(seen.growth(from, host::TCP_RETRANS_SEGMENTS, None));
        if ratio(resent - needless, tail.n).is_none_or(|share| share >= RESENT_MAX) {
            return Vec::new();
        }
        // Only the host that sends an answer counts that it was sent again.
        let is_counted = match seen.test.server.as_deref() {
            Some(server) => seen.hosts_of_tcp().any(|host| host == server),
            None => seen.hosts().count() > 1 || seen.is_server_here(),
        };
        let is_late = tail.typical >= RESENT_AFTER;
        let had_requests = ratio(needless, tail.n).is_some_and(|share| share >= RESENT_MAX);
        let may_be_lost = is_late && (had_requests || !is_counted);
        let what = if is_late && had_requests {
            "these or their ACKs were lost or late on the way back, as the server had the requests already when TCP sent them again"
        } else if is_late && !is_counted {
            "the server, a queue that this load fills, or the loss of answers delays them"
        } else {
            "the server, or a queue that this load fills, delays them"
        };
        let waits = format!(
            "{} of the requests wait about {} for their answers, the rest {}",
            percent(tail.of_requests),
            tail.typical,
            tail.usual
        );
        let title = if tail.is_open {
            format!("{waits}: {what}")
        } else {
            format!("{waits}: these slow answers are {} of all waiting time; {what}", percent(tail.share))
        };
        let severity = if tail.is_open && !breaks_a_promise(seen) { Severity::Remark } else { Severity::HoldsBack };
        let again = [(host::TCP_RETRANS_SEGMENTS, resent), (host::TCP_DSACK_SEGMENTS, needless)];
        let again = again.into_iter().filter(|(counter, n)| *counter == host::TCP_RETRANS_SEGMENTS || *n > 0);
        let again = again.map(|(counter, n)| counter_evidence(from, counter, n));
        vec![
            seen.finding(self.id(), severity, "slow answers", title)
                .evidence(tail.evidence(&seen.test.from).into_iter().chain(again))
                .explains(Some(tail.share).filter(|_| !tail.is_open))
                .next(Some(next(seen, may_be_lost)).filter(|_| severity > Severity::Remark)),
        ]
    }
}

/// Suggests what tells the server from the path: whether it sends answers again, the same requests with a smaller load, or a capture.
fn next(seen: &TestEvidence<'_>, may_be_lost: bool) -> NextStep {
    let from = &seen.test.from;
    if may_be_lost {
        return NextStep::new("ss -tin state established").expected(
            "show, on the host of the server and while the test runs, whether it sends its answers again (retrans): then they, or their ACKs, are lost on the way",
        );
    }
    if let Some(command) = with_less_load(seen) {
        return NextStep::new(command)
            .expected("tell work from waiting: a server that is as often slow under this load is slow itself");
    }
    NextStep::new(format!("tcpdump -ni any {}", server_filter(seen))).on(from).expected(
        "show, beside the same capture at the server, where the time of a slow request passes: in the server, or on one of the two ways",
    )
}

/// Returns the command that repeats the test with one connection or user, or at half the rate.
fn with_less_load(seen: &TestEvidence<'_>) -> Option<String> {
    if is_scheduled(seen) {
        let half = seen.test.options.rate("rate").map(PerSec::get).filter(|rate| *rate >= 2.0)? / 2.0;
        return seen.repeat_with_option("rate", &rounded(half).to_string());
    }
    let (option, _) = load_option(seen).filter(|(_, n)| *n > 1)?;
    seen.repeat_with_option(option, "1")
}

/// Returns true if a time of the test is longer than was promised: then its tail is what holds it back.
fn breaks_a_promise(seen: &TestEvidence<'_>) -> bool {
    let is_time = |summary: &Summary| summary.metric.unit == Unit::Nanos;
    let promises = judge_promises(seen.test);
    promises.iter().any(|judged| judged.outcome == PromiseOutcome::Broken && judged.summary.is_some_and(is_time))
}

/// Returns true if nobody was answered for a while: then the slow answers are those that waited for its end.
fn is_stall(seen: &TestEvidence<'_>) -> bool {
    !Stall.evaluate(seen).is_empty()
}

/// The slow answers of a closed load that spends most of its time on them, or of an open one.
struct Tail {
    is_open: bool,
    /// Whether they are a group apart from the others.
    is_group: bool,
    n: u64,
    of_requests: f64,
    /// The median of their times to the first byte.
    typical: Nanos,
    /// The median of the others, or of all if they are few.
    usual: Nanos,
    /// The part of the time of the connections that they take without the round trip, from 0 to 1.
    share: f64,
}

impl Tail {
    fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let is_open = is_scheduled(seen);
        // A schedule that is kept says nothing of its tail.
        (is_of_requests(seen) && (is_open || !seen.reached_target())).then_some(())?;
        let times = seen.distribution(Side::Initiator, distribution::FIRST_BYTE);
        let service = seen.distribution(Side::Initiator, distribution::SERVICE_TIME);
        let (median, connect) = (Nanos(times.quantile(0.5)?), RequestTimes::of(seen)?.connect);
        let groups = groups(seen);
        let usual = groups.map_or(median, |groups| groups.fast);
        let bound = SLOW.max(connect * ROUND_TRIPS_MIN).max(usual * TIMES_USUAL);
        let (n, sum) = above(&times, bound);
        let (n_all, n_service) = (above(&times, Nanos::ZERO).0, above(&service, Nanos::ZERO).0);
        let share = (sum - approximate(n) * approximate(connect.0)) / (service.mean()? * approximate(n_service));
        let of_requests = ratio(n, n_all)?;
        let typical = Nanos(times.value_at_rank(n_all - n / 2)?);
        // No thread of a machine with free cores waits so long for one.
        let is_pause = typical >= LONGEST_CORE_WAIT && share >= OF_PAUSES_MIN;
        let matters = if is_open { of_requests >= SHARE_OF_OPEN_MIN } else { share >= MOST || is_pause };
        (n >= SLOW_LEAST && matters).then_some(())?;
        Some(Self { is_open, is_group: groups.is_some(), n, of_requests, typical, usual, share: share.min(1.0) })
    }

    fn evidence(&self, host: &str) -> Vec<Evidence> {
        vec![
            ratio_evidence(host, "requests with a slow answer", self.of_requests),
            text_evidence(host, "time to their first byte, median", self.typical),
            text_evidence(host, "usual time to the first byte", self.usual),
            ratio_evidence(host, "their share of all waiting time", self.share),
        ]
    }
}

/// Returns how many values are not below a bound, and their sum.
pub(super) fn above(times: &Histogram, bound: Nanos) -> (u64, f64) {
    let buckets = times.buckets().filter(|(low, ..)| *low >= bound.0);
    buckets.fold((0, 0.0), |(n, sum), (low, high, count)| {
        (n + count, sum + approximate(count) * f64::midpoint(approximate(low), approximate(high)))
    })
}

#[cfg(test)]
mod tests {
    use fathom_model::{Histogram, Severity, names::distribution, names::host, units::Nanos};

    use crate::run_builder::{RunBuilder, p999};

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
    fn pauses_that_take_a_part_of_the_time_are_named() {
        // Beside ten thousand requests of 0.1 ms, which take a second.
        let found = |n, ms| {
            let mut builder = with_slow(n, Nanos::from_millis(ms));
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            for name in [distribution::FIRST_BYTE, distribution::SERVICE_TIME] {
                record.distributions.get_mut(name).unwrap().record_n(100_000, 9_000);
            }
            builder.finding("slow-answers").map(|finding| (finding.severity, finding.explains.is_some()))
        };
        assert_eq!(found(10, 30), Some((Severity::Remark, true)), "23 %: they explain less than half");
        assert_eq!(found(40, 10), None, "29 %, but a thread may have waited for a core");
        assert_eq!(found(10, 20), None, "17 %");
    }

    #[test]
    fn a_smaller_load_tells_a_slow_server_from_a_queue_and_a_capture_one_from_the_path() {
        let mut builder = with_slow(100, Nanos::from_millis(100));
        let command = |builder: &RunBuilder| builder.finding("slow-answers").unwrap().next.unwrap().command;
        assert_eq!(command(&builder), "tcpdump -ni any tcp", "this command takes no other load");
        builder.run.command = "fathom http http://198.18.0.2/ --connections 10".to_owned();
        assert_eq!(command(&builder), "fathom http http://198.18.0.2/ --connections 1");
        builder.run.tests[0].options.set("connections", "1");
        assert_eq!(command(&builder), "tcpdump -ni any tcp", "it is the smallest load");
    }

    #[test]
    fn slow_answers_of_an_open_load_are_a_remark_unless_they_break_a_promise() {
        let mut open = with_slow(20, Nanos::from_millis(200));
        open.run.tests[0].options.set("rate", "1000/s");
        let record = open.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let times = record.distributions[distribution::SERVICE_TIME].clone();
        record.distributions.insert(distribution::SCHEDULE_LAG.to_owned(), times);
        let finding = open.finding("slow-answers").unwrap();
        let words =
            "2.0 % of the requests wait about 200 ms for their answers, the rest 100 µs: the server, or a queue";
        assert!(finding.title.starts_with(words), "{}", finding.title);
        assert_eq!((finding.severity, finding.explains, finding.next), (Severity::Remark, None, None));
        open.run.command = "fathom http http://198.18.0.2/ --rate 1000".to_owned();
        open.context.metrics.get_mut("http").unwrap().push(p999());
        open.run.tests[0].expect.insert("latency_ns_p999".to_owned(), "<= 10ms".to_owned());
        let finding = open.finding("slow-answers").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert_eq!(finding.next.unwrap().command, "fathom http http://198.18.0.2/ --rate 500");
    }

    #[test]
    fn slow_answers_that_are_a_group_of_their_own_are_told_whichever_group_has_the_median() {
        for n in [480, 520] {
            let run = with_slow(n, Nanos::from_millis(20)).analyzed();
            let severity = |id: &str| run.findings.iter().find(|finding| finding.id == id).map(|found| found.severity);
            assert_eq!(severity("slow-answers"), Some(Severity::HoldsBack), "{n}");
            assert_ne!(severity("server-time"), Some(Severity::HoldsBack), "its time is that of one group: {n}");
        }
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
        let finding = alone.finding("slow-answers").unwrap();
        assert!(finding.title.ends_with("or the loss of answers delays them"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "ss -tin state established");
    }
}
