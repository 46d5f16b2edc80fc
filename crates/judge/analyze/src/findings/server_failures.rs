//! Answers that say that the server failed or refused, and connections that got none.

use std::cmp::Reverse;

use fathom_model::{
    Cause, Failure, Finding, Layer, NextStep, Severity, Side, Stage, Trial,
    names::count,
    units::{Nanos, grouped, percent, ratio, rounded},
};
use http::StatusCode;

use super::{FindingRule, planned_event::PLANNED_EVENT, server_time::is_scheduled};
use crate::{
    evidence::{TestEvidence, counter_evidence},
    summaries::main_rate,
    window::record_of,
};

/// At one in a hundred answers and above, the rate is partly that of failures or refusals, which are often cheaper to serve.
const SHARE_MIN: f64 = 0.01;
/// The share of the connections without an answer from which on the others do their work.
const STUCK_MIN: f64 = 0.1;
/// Fewer connections may have lost a segment each.
const STUCK_LEAST: u64 = 3;
/// A rate so far below a limit keeps it.
const BELOW: f64 = 0.9;
/// So many statuses are told.
const STATUSES_TOLD: usize = 3;
/// The server takes fewer requests of a client than it gets (RFC 6585 section 4).
const TOO_MANY: u16 = 429;

/// The advice that follows from statuses (RFC 9110 section 15).
const ADVICE: &[(u16, &str)] = &[
    (400, "the server takes the request for malformed: check its URL and header fields"),
    (401, "the request needs credentials (--header 'Authorization: ...')"),
    (403, "the access rules of the server do not allow it"),
    (404, "check the path of the URL"),
    (405, "check the method"),
    (502, "the server behind the proxy gives no valid answer; the logs of both say why"),
    (503, "the server limits its load, or no server behind it works; its log says which"),
    (504, "the server behind the proxy does not answer in time"),
];

/// Compares the answers of a status class with all answers (RFC 9110 section 15).
pub(crate) struct StatusClass {
    id: &'static str,
    short: &'static str,
    class: u16,
    counter: &'static str,
    /// What such answers do, and the advice if none follows from their status.
    texts: [&'static str; 2],
    /// The share of all answers from which on they lead the result; fewer, down to one in a hundred, are a remark.
    leads_from: f64,
}

/// The server says that it failed.
pub(crate) const SERVER_FAILURES: StatusClass = StatusClass {
    id: "server-failures",
    short: "server fails",
    class: 5,
    counter: count::SERVER_FAILURES,
    texts: ["are server errors", "the log of the server says why"],
    leads_from: SHARE_MIN,
};

/// The server does not want the requests, as for a wrong URL. Those of which it gets too many are told by [`RequestLimit`].
pub(crate) const REFUSED_REQUESTS: StatusClass = StatusClass {
    id: "refused-requests",
    short: "refusals",
    class: 4,
    counter: count::REFUSED_REQUESTS,
    texts: ["refuse the request", ""],
    leads_from: 0.5,
};

/// The server sends clients to another address, as a load balancer sends those of http to https, and the test measures that.
pub(crate) const REDIRECTS: StatusClass = StatusClass {
    id: "redirects",
    short: "redirects",
    class: 3,
    counter: count::REDIRECTS,
    texts: ["are redirects", "test the address that they name (Location)"],
    leads_from: 0.5,
};

impl FindingRule for StatusClass {
    fn id(&self) -> &'static str {
        self.id
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[PLANNED_EVENT]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if !is_judged_by_status(seen) {
            return Vec::new();
        }
        let statuses = statuses_of(seen, self.class);
        let too_many = statuses.iter().find(|(status, _)| *status == TOO_MANY).map_or(0, |(_, n)| *n);
        let (n, of) = (
            seen.total(Side::Initiator, self.counter).saturating_sub(too_many),
            seen.total(Side::Initiator, count::REQUESTS),
        );
        let Some(share) = ratio(n, of).filter(|share| *share >= SHARE_MIN) else { return Vec::new() };
        let told: Vec<_> = statuses.into_iter().filter(|(status, _)| *status != TOO_MANY).take(STATUSES_TOLD).collect();
        let most = told.first().map(|(status, _)| *status);
        // What did not change since the client's copy is no redirect.
        if most == Some(StatusCode::NOT_MODIFIED.as_u16()) {
            return Vec::new();
        }
        let known = most.and_then(|most| ADVICE.iter().find(|(status, _)| *status == most));
        let advice = known.map_or(self.texts[1], |(_, advice)| advice);
        let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
        let told: Vec<String> =
            told.iter().map(|(status, n)| format!("{} × {}", grouped(*n), named(*status))).collect();
        let told = if told.is_empty() { format!("{} × {}xx", grouped(n), self.class) } else { told.join(", ") };
        let title =
            format!("{} of the answers {} ({told}): the rate counts them{advice}", percent(share), self.texts[0]);
        let severity = if share >= self.leads_from { Severity::HoldsBack } else { Severity::Remark };
        let evidence = [(self.counter, n), (count::REQUESTS, of)];
        let evidence = evidence.map(|(name, n)| counter_evidence(&seen.test.from, name, n));
        vec![seen.finding(self.id, severity, self.short, title).evidence(evidence)]
    }
}

/// Returns true if the status of an answer says whether the server did what it was asked. Answers that are compared with a recording are judged by
/// it: it may have such answers too.
fn is_judged_by_status(seen: &TestEvidence<'_>) -> bool {
    let mut replays = seen.records(Side::Initiator).filter_map(|record| record.replay.as_ref());
    seen.test.layer == Layer::Http && !replays.any(|replay| replay.compared.is_some())
}

/// Returns the statuses of a class with the number of their answers, the most frequent one first.
fn statuses_of(seen: &TestEvidence<'_>, class: u16) -> Vec<(u16, u64)> {
    let codes = 100 * class..100 * (class + 1);
    let counted = codes.map(|status| (status, seen.total(Side::Initiator, &count::of_status(status))));
    let mut statuses: Vec<_> = counted.filter(|(_, n)| *n > 0).collect();
    statuses.sort_by_key(|(_, n)| Reverse(*n));
    statuses
}

/// Returns a status with its words, such as `404 Not Found`.
fn named(status: u16) -> String {
    StatusCode::from_u16(status).map_or_else(|_| status.to_string(), |status| status.to_string())
}

/// The server takes only so many requests of a client (`429 Too Many Requests`).
pub(crate) struct RequestLimit;

impl FindingRule for RequestLimit {
    fn id(&self) -> &'static str {
        "request-limit"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if !is_judged_by_status(seen) {
            return Vec::new();
        }
        let (n, of) =
            (seen.total(Side::Initiator, &count::of_status(TOO_MANY)), seen.total(Side::Initiator, count::REQUESTS));
        let Some(share) = ratio(n, of).filter(|share| *share >= SHARE_MIN) else { return Vec::new() };
        let taken = main_rate(seen.test).and_then(|rate| rate.value).map(|rate| rate * (1.0 - share));
        let taken = taken.filter(|taken| *taken >= 1.0);
        let limit = taken.map_or(String::new(), |taken| format!(" to about {} a second", grouped(rounded(taken))));
        let title = format!(
            "the server limits the requests of this client{limit}: {} of the answers are {} ({})",
            percent(share),
            named(TOO_MANY),
            grouped(n)
        );
        let slower = taken.filter(|_| !is_scheduled(seen)).and_then(|taken| {
            let command =
                NextStep::new(seen.repeat_test_command(&format!("--rate {}", (BELOW * taken).max(1.0).floor()))?);
            Some(command.expected("get no more of these answers if the limit is one of the rate"))
        });
        let evidence = [(count::of_status(TOO_MANY), n), (count::REQUESTS.to_owned(), of)];
        let evidence = evidence.map(|(name, n)| counter_evidence(&seen.test.from, &name, n));
        vec![seen.finding(self.id(), Severity::HoldsBack, "rate limit", title).evidence(evidence).next(slower)]
    }
}

/// Compares the connections whose requests waited in vain, at the end or until their timeout, with all connections.
pub(crate) struct StuckConnections;

impl FindingRule for StuckConnections {
    fn id(&self) -> &'static str {
        "stuck-connections"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["stall", "outage", "connect-delays", "retransmissions", "cpu-quota", "steal", PLANNED_EVENT]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(connections) = seen.test.options.count("connections") else { return Vec::new() };
        let trials = seen.trials().iter().copied();
        let Some(worst) = trials.filter_map(|trial| Starved::of(seen, trial)).max_by_key(Starved::n) else {
            return Vec::new();
        };
        let Some(share) = ratio(worst.n(), connections).filter(|share| *share >= STUCK_MIN) else { return Vec::new() };
        if worst.n() < STUCK_LEAST {
            return Vec::new();
        }
        let when = if seen.trials().len() > 1 { format!("round {}", worst.round + 1) } else { "the test".to_owned() };
        let (n, all) = (grouped(worst.n()), grouped(connections));
        let title = if worst.at_end >= worst.in_vain && 2 * worst.unserved >= worst.at_end {
            format!(
                "{n} of {all} connections never got an answer until the end of {when}: the server did not accept them, or does not read from them; \
                 the others did the work"
            )
        } else if worst.at_end >= worst.in_vain {
            format!(
                "{n} of {all} connections were still waiting for an answer at the end of {when}, more than ten times as long as answers take: the \
                 others did the work"
            )
        } else {
            format!(
                "{} requests timed out after {}: {} of the time of the {all} connections in {when}",
                grouped(worst.n_timeouts),
                timeout(seen),
                percent(share.min(1.0))
            )
        };
        let from = &seen.test.from;
        let timeouts = counter_evidence(from, "requests without an answer in time", worst.n_timeouts);
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "no answers", title)
                .evidence([counter_evidence(from, count::STUCK, worst.at_end), timeouts]),
        ]
    }
}

/// The connections of a trial whose requests had no answer, while others had.
struct Starved {
    round: u32,
    /// Connections that waited at the end.
    at_end: u64,
    /// Those of them that had no answer since they were opened.
    unserved: u64,
    /// The time that requests waited until their timeout, as a number of connections that did nothing else.
    in_vain: u64,
    n_timeouts: u64,
}

impl Starved {
    fn of(seen: &TestEvidence<'_>, trial: &Trial) -> Option<Self> {
        let record = record_of(trial, Side::Initiator)?.1;
        let at_end = *record.totals.get(count::STUCK)?;
        let unserved = record.totals.get(count::STUCK_UNSERVED).copied().unwrap_or(0);
        // If nobody had an answer, there are no others.
        record.totals.get(count::REQUESTS).filter(|n| **n > 0)?;
        // A connection that is not open yet has no request.
        let waits = |failure: &Failure| {
            failure.cause == Cause::Timeout && matches!(failure.stage, Stage::Send | Stage::Read | Stage::Parse)
        };
        let n_timeouts = record.errors.iter().filter(|(failure, _)| waits(failure)).map(|(_, n)| *n).sum();
        // Errors of the warm-up are counted too.
        let span = record.measured_ns.1;
        let at_once = seen.test.options.count("pipeline").unwrap_or(1).max(1);
        let in_vain = (timeout(seen) * n_timeouts).0.checked_div(span.0.saturating_mul(at_once))?;
        Some(Self { round: trial.round, at_end, unserved, in_vain, n_timeouts })
    }

    fn n(&self) -> u64 {
        self.at_end.max(self.in_vain)
    }
}

/// The time that a request waits for its answer.
fn timeout(seen: &TestEvidence<'_>) -> Nanos {
    seen.test.options.span("timeout").unwrap_or(Nanos::from_secs(5))
}

#[cfg(test)]
mod tests {
    use fathom_model::{ReplayRecord, replay::ComparedAnswers};

    use super::*;
    use crate::run_builder::RunBuilder;

    fn answered(n_failed: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 40);
        builder.total("client", count::SERVER_FAILURES, n_failed);
        builder
    }

    #[test]
    fn answers_that_say_that_the_server_failed_are_a_finding_from_one_in_a_hundred() {
        assert_eq!(answered(9).finding("server-failures"), None);
        let finding = answered(100).finding("server-failures").unwrap();
        let words =
            "10 % of the answers are server errors (100 × 5xx): the rate counts them; the log of the server says why";
        assert!(finding.title.starts_with(words), "{}", finding.title);
        assert_eq!(finding.severity, Severity::HoldsBack);
    }

    #[test]
    fn answers_of_a_replay_are_judged_by_their_status_unless_they_are_compared() {
        let found = |compared: Option<ComparedAnswers>| {
            let mut builder = answered(100);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.replay = Some(ReplayRecord { compared, ..ReplayRecord::default() });
            builder.finding("server-failures").is_some()
        };
        assert!(found(None) && !found(Some(ComparedAnswers::default())));
    }

    #[test]
    fn answers_that_refuse_the_request_are_told_and_lead_if_they_are_most() {
        let found = |n: u64| {
            let mut builder = answered(0);
            builder.total("client", count::REFUSED_REQUESTS, n);
            builder.finding("refused-requests").map(|finding| finding.severity)
        };
        assert_eq!([9, 300, 1_000].map(found), [None, Some(Severity::Remark), Some(Severity::HoldsBack)]);
    }

    #[test]
    fn a_server_that_fails_always_leads_with_its_status() {
        let mut builder = answered(1_000);
        for (status, n) in [(500, 3), (502, 990), (504, 5), (503, 2)] {
            builder.total("client", &count::of_status(status), n);
        }
        let first = builder.analyzed().findings.remove(0);
        assert_eq!(first.id, "server-failures");
        let told = "(990 × 502 Bad Gateway, 5 × 504 Gateway Timeout, 3 × 500 Internal Server Error): the rate counts them; the server behind the proxy";
        assert!(first.title.contains(told), "{}", first.title);
    }

    #[test]
    fn a_server_that_gets_too_many_requests_limits_them() {
        let found = |id, n: u64, n_others: u64| {
            let mut builder = answered(0);
            builder.total("client", count::REFUSED_REQUESTS, n + n_others);
            builder.total("client", &count::of_status(TOO_MANY), n);
            builder.total("client", &count::of_status(404), n_others);
            builder.finding(id)
        };
        let limit = found("request-limit", 600, 0).unwrap();
        assert!(limit.title.ends_with(": 60 % of the answers are 429 Too Many Requests (600)"), "{}", limit.title);
        assert_eq!(limit.severity, Severity::HoldsBack);
        assert_eq!([found("refused-requests", 600, 5), found("request-limit", 9, 0)], [None, None]);
        let refused = found("refused-requests", 300, 200).unwrap();
        assert!(
            refused.title.starts_with("20 % of the answers refuse the request (200 × 404 Not Found): "),
            "{}",
            refused.title
        );
    }

    #[test]
    fn connections_whose_requests_end_at_their_timeout_have_no_answer_although_none_waits_at_the_end() {
        let starved = |n_timeouts: u64| {
            let mut builder = answered(0);
            builder.run.tests[0].options.set("connections", "40");
            builder.run.tests[0].options.set("timeout", "100ms");
            builder.total("client", count::STUCK, 0);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            let per_connection = record.measured_ns.1.0 / Nanos::from_millis(100).0;
            let timeout = Failure { stage: Stage::Read, cause: Cause::Timeout };
            record.errors.add(timeout, n_timeouts * per_connection);
            builder
        };
        let severity = |builder: &RunBuilder, id| builder.finding(id).map(|finding| finding.severity);
        assert_eq!(starved(3).finding("stuck-connections"), None, "less than one in ten");
        let mut builder = starved(30);
        let title = builder.finding("stuck-connections").unwrap().title;
        assert!(
            title.ends_with("timed out after 100 ms: 75 % of the time of the 40 connections in the test"),
            "{title}"
        );
        assert_eq!(severity(&builder, "errors"), Some(Severity::Remark), "they are what it tells");
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("read: closed before the answer", 50);
        assert_eq!(severity(&builder, "errors"), Some(Severity::HoldsBack), "they are not all");
    }

    #[test]
    fn connections_that_got_no_answer_are_told_from_one_in_ten() {
        let stuck = |n: u64| {
            let mut builder = answered(0);
            builder.run.tests[0].options.set("connections", if n < STUCK_LEAST { "4" } else { "40" });
            builder.total("client", count::STUCK, n);
            builder.finding("stuck-connections")
        };
        assert_eq!(stuck(3), None);
        assert_eq!(stuck(2), None, "each may have lost a segment");
        let finding = stuck(33).unwrap();
        assert!(
            finding.title.starts_with("33 of 40 connections were still waiting for an answer at the end of the test"),
            "{}",
            finding.title
        );
        assert_eq!(finding.severity, Severity::HoldsBack);
        let mut unserved = answered(0);
        unserved.run.tests[0].options.set("connections", "40");
        unserved.total("client", count::STUCK, 30);
        unserved.total("client", count::STUCK_UNSERVED, 30);
        let title = unserved.finding("stuck-connections").unwrap().title;
        assert!(title.starts_with("30 of 40 connections never got an answer until the end of the test"), "{title}");
    }

    #[test]
    fn redirects_lead_if_they_are_most_unless_they_say_that_nothing_changed() {
        let found = |n: u64, status: u16| {
            let mut builder = answered(0);
            builder.total("client", count::REDIRECTS, n);
            builder.total("client", &count::of_status(status), n);
            builder.finding("redirects").map(|finding| finding.severity)
        };
        assert_eq!([9, 300, 1_000].map(|n| found(n, 301)), [None, Some(Severity::Remark), Some(Severity::HoldsBack)]);
        assert_eq!(found(1_000, 304), None);
    }
}
