//! Requests on a schedule become due faster than they are answered.
//!
//! A closed load cannot show that: it asks as often as it is answered.

use fathom_model::{
    Cause, Derivation, Evidence, Finding, Layer, NextStep, Severity, Side,
    names::count,
    units::{Nanos, counted, ratio, rounded},
};

use super::{
    FindingRule,
    planned_event::PLANNED_EVENT,
    server_time::{MOST, RequestTimes, ServerTime},
};
use crate::{
    evidence::{TestEvidence, counter_evidence, text_evidence},
    summaries::main_rate,
};

/// From this share of the due requests on, the answers keep up: those in flight at both ends of the measured part differ a little.
const KEEPS_UP: f64 = 0.95;
/// The part of the answered rate that a server which is full carries without a queue that grows.
const ROOM: f64 = 0.8;
/// How many more connections than a rate needs on average are hardly ever all busy.
const SPARE: f64 = 1.5;

/// Compares the requests that became due with those that were answered. It is that gap itself, so that it explains no part of it.
pub(crate) struct Overload;

impl FindingRule for Overload {
    fn id(&self) -> &'static str {
        "overload"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "server-saturated",
            "core-saturated",
            "generator-limited",
            "other-programs",
            "paced-answers",
            "delayed-ack",
            "local-shaper",
            "path-full",
            "cpu-quota",
            "connect-delays",
            "retransmissions",
            "resets",
            "ports",
            "descriptors",
            "no-listener",
            "filter-drops",
            "link-down",
            "outage",
            "stall",
            "stuck-connections",
            "steal",
            PLANNED_EVENT,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        ServerTime.stands_beside(cause, seen)
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(load) = Lag::of(seen) else { return Vec::new() };
        let from = &seen.test.from;
        let evidence = [
            counter_evidence(from, count::INTENDED, load.n_due),
            counter_evidence(from, count::REQUESTS, load.n_answered),
            counter_evidence(from, count::LATE_NO_CONNECTION, load.n_without_connection),
            counter_evidence(from, count::LATE_OWN_CPU, load.n_by_worker),
        ];
        let title = format!("only {} of the {} that are due are answered: {}", load.answered, load.due, load.why(seen));
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "overload", title)
                .evidence(evidence.into_iter().chain(load.service_evidence(from)))
                .next(load.next(seen)),
        ]
    }
}

/// What keeps the answers from keeping up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// The threads that send start requests too late.
    Worker,
    /// Each connection is busy all the time, most of it with a round trip on the path.
    Path,
    /// Each connection is busy all the time, and waits for the server.
    Connections,
    /// Connections are free, and the answers do not come.
    Server,
}

/// An open load whose answers do not keep up with it.
struct Lag {
    n_due: u64,
    n_answered: u64,
    /// Requests that started late, or never, because no connection was free.
    n_without_connection: u64,
    n_by_worker: u64,
    /// Per second.
    answered_rate: f64,
    due_rate: f64,
    /// Both rates, with their unit.
    answered: String,
    due: String,
    /// The median time from a request to its answer.
    service: Option<Nanos>,
    keeps: Keeps,
}

impl Lag {
    fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let is_replay = seen.records(Side::Initiator).any(|record| record.replay.is_some());
        let is_load = seen.test.layer == Layer::Http && seen.test.users.is_none() && seen.test.curve.is_none();
        (is_load && !is_replay).then_some(())?;
        let total = |counter| seen.total(Side::Initiator, counter);
        let (n_due, n_answered) = (total(count::INTENDED), total(count::REQUESTS));
        let rate = main_rate(seen.test)?;
        let answered_rate = rate.value.filter(|rate| *rate > 0.0)?;
        let due_rate = rate_of(seen, count::INTENDED).or_else(|| Some(answered_rate / ratio(n_answered, n_due)?))?;
        (answered_rate < KEEPS_UP * due_rate).then_some(())?;
        // Requests that failed at once are told by their errors. Those that nobody answered in time are what an overload leaves.
        (2 * n_failed(seen) <= n_due.saturating_sub(n_answered)).then_some(())?;
        let n_without_connection = total(count::LATE_NO_CONNECTION) + total(count::NOT_STARTED);
        let n_by_worker = total(count::LATE_OWN_CPU);
        let times = RequestTimes::of(seen);
        let is_of_path = times.as_ref().and_then(|times| ratio(times.connect.0, times.service.0)) >= Some(MOST);
        let keeps = match () {
            () if n_by_worker > n_without_connection && 2 * n_by_worker >= n_due => Keeps::Worker,
            () if 2 * n_without_connection < n_due => Keeps::Server,
            () if is_of_path => Keeps::Path,
            () => Keeps::Connections,
        };
        Some(Self {
            n_due,
            n_answered,
            n_without_connection,
            n_by_worker,
            answered_rate,
            due_rate,
            answered: rate.metric.show(answered_rate),
            due: rate.metric.show(due_rate),
            service: times.map(|times| times.service),
            keeps,
        })
    }

    /// What the requests wait for, as the end of the title.
    fn why(&self, seen: &TestEvidence<'_>) -> String {
        let connections = seen.test.options.count("connections");
        let connections = connections.map_or("all connections".to_owned(), |n| match n {
            1 => "the one connection".to_owned(),
            n => format!("all {}", counted(n, "connection")),
        });
        let takes = self.service.map_or(String::new(), |service| format!(", {service} for an answer"));
        match self.keeps {
            Keeps::Worker => format!("the sending threads of {} start them too late", seen.test.from),
            Keeps::Path => {
                format!(
                    "{connections} are busy{takes}, most of which is the way there and back, and the rest of the requests wait for a free one"
                )
            }
            Keeps::Connections => {
                format!("{connections} wait for the server{takes}, and the rest of the requests for a free one")
            }
            Keeps::Server => format!("the server does not keep up{takes}, and the rest of the requests wait in it"),
        }
    }

    fn service_evidence(&self, host: &str) -> Option<Evidence> {
        self.service.map(|service| text_evidence(host, "service_time_ns p50", service))
    }

    /// A lower rate shows the latency of a server that is not overloaded; on a long path, more connections carry more.
    fn next(&self, seen: &TestEvidence<'_>) -> Option<NextStep> {
        if self.keeps == Keeps::Worker {
            return Some(NextStep::new("top").on(&seen.test.from).expected("show what uses the cores of the sender"));
        }
        if self.keeps == Keeps::Path {
            let needed = rounded((self.due_rate * self.service?.as_secs_f64() * SPARE).ceil());
            let command = seen.repeat_with_option("connections", &needed.to_string())?;
            return Some(
                NextStep::new(command).expected("answer all, as each connection carries one request at a time"),
            );
        }
        seen.test.options.text("rate")?;
        let lower = round_down(self.answered_rate * ROOM);
        let command = seen.repeat_with_option("rate", &lower.to_string())?;
        let expected = if self.keeps == Keeps::Connections {
            "answer all; if an answer takes as long there, the server is not full, and more --connections carry more"
        } else {
            "answer all, and show the latency of a server that is not overloaded"
        };
        Some(NextStep::new(command).expected(expected))
    }
}

/// Returns the rate of a counter in the measured part.
fn rate_of(seen: &TestEvidence<'_>, wanted: &str) -> Option<f64> {
    let is_wanted = |from: &Derivation| matches!(from, Derivation::Rate { counter, .. } if counter == wanted);
    seen.test.summaries.iter().find(|summary| is_wanted(&summary.metric.from))?.value
}

/// Returns the number of requests that failed by something else than a wait.
fn n_failed(seen: &TestEvidence<'_>) -> u64 {
    let is_wait = |cause: &Cause| matches!(cause, Cause::Timeout | Cause::Unanswered | Cause::Incomplete);
    let errors = seen.records(Side::Initiator).flat_map(|record| record.errors.iter());
    errors.filter(|(failure, _)| !is_wait(&failure.cause)).map(|(_, n)| *n).sum()
}

/// Returns a rate with two digits that is not above this one.
fn round_down(rate: f64) -> u64 {
    let mut unit = 1.0;
    while rate / unit >= 100.0 {
        unit *= 10.0;
    }
    rounded((rate / unit).floor() * unit).max(1)
}

#[cfg(test)]
mod tests {
    use fathom_model::{Histogram, Severity, names::count, names::distribution, units::Nanos};

    use crate::run_builder::RunBuilder;

    /// One second at 700 requests per second, of which 400 are answered over 20 connections.
    fn overloaded(connect_us: u64, service_us: u64, (without_connection, by_worker): (u64, u64)) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(400, 20);
        builder.run.command = "fathom http http://198.18.0.2/ --rate 700 --connections 20".to_owned();
        builder.run.tests[0].options.set("rate", "700/s");
        for (counter, n) in
            [(count::INTENDED, 700), (count::LATE_NO_CONNECTION, without_connection), (count::LATE_OWN_CPU, by_worker)]
        {
            builder.total("client", counter, n);
        }
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        for (name, micros) in [
            (distribution::CONNECT_TIME, connect_us),
            (distribution::FIRST_BYTE, service_us),
            (distribution::DOWNLOAD_TIME, 0),
            (distribution::SERVICE_TIME, service_us),
            (distribution::SCHEDULE_LAG, 300_000),
        ] {
            let mut times = Histogram::new();
            times.record_n(Nanos::from_micros(micros).0, 400);
            record.distributions.insert(name.to_owned(), times);
        }
        builder
    }

    #[test]
    fn a_server_that_answers_less_than_is_due_leads_and_a_lower_rate_is_proposed() {
        let run = overloaded(100, 50_000, (690, 5)).analyzed();
        let first = &run.findings[0];
        let words = "only 400 req/s of the 700 req/s that are due are answered: all 20 connections wait for the server, 50.0 ms for an answer, \
                     and the rest of the requests for a free one";
        assert_eq!((first.id.as_str(), first.title.as_str()), ("overload", words));
        let next = first.next.as_ref().unwrap();
        assert_eq!(next.command, "fathom http http://198.18.0.2/ --connections 20 --rate 320");
        let server = run.findings.iter().find(|finding| finding.id == "server-time").unwrap();
        assert_eq!((server.severity, &server.next), (Severity::Remark, &None), "the time is that of the overload");
    }

    #[test]
    fn on_a_long_path_more_connections_are_proposed() {
        let finding = overloaded(48_000, 50_000, (690, 5)).finding("overload").unwrap();
        assert!(finding.title.contains("most of which is the way there and back"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "fathom http http://198.18.0.2/ --rate 700 --connections 53");
    }

    #[test]
    fn where_connections_are_free_requests_wait_in_the_server_and_late_threads_are_told() {
        let title = |late| overloaded(100, 50_000, late).finding("overload").unwrap().title;
        assert!(title((0, 5)).contains("the server does not keep up"), "{}", title((0, 5)));
        assert!(title((50, 600)).ends_with("the sending threads of client start them too late"));
    }

    #[test]
    fn what_keeps_up_or_failed_otherwise_is_no_overload() {
        let mut keeps_up = overloaded(100, 50_000, (690, 5));
        keeps_up.total("client", count::INTENDED, 405);
        assert_eq!(keeps_up.finding("overload"), None);
        let mut failed = overloaded(100, 50_000, (0, 5));
        let record = failed.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("read: closed before the answer", 290);
        assert_eq!(failed.finding("overload"), None);
    }

    #[test]
    fn a_rate_is_rounded_down_to_two_digits() {
        assert_eq!([0.4, 7.9, 47.6, 333.3, 12_345.0].map(super::round_down), [1, 7, 47, 330, 12_000]);
    }
}
