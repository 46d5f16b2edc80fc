//! The server closes each connection after one answer or a few, so that many requests begin with a handshake.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side,
    names::{count, distribution},
    units::{Nanos, grouped, percent, ratio, rounded},
};

use super::{FindingRule, planned_event::PLANNED_EVENT};
use crate::evidence::{TestEvidence, counter_evidence, text_evidence};

/// A server that ends nearly every connection after one answer; those in flight at the end are not closed yet.
const CLOSES: f64 = 0.9;
/// With this share, most connections had a single answer.
const NEARLY_EACH: f64 = 2.0 / 3.0;
/// A server that ends connections after so few answers that their handshakes may count: a hundred answers at most.
const CLOSES_SOME: f64 = 0.01;
/// From this share of the time of all requests on, connecting after some of them holds back.
const SOME_PART_MIN: f64 = 0.2;
/// Fewer requests are no habit.
const REQUESTS_MIN: u64 = 20;
/// Below this share of the time of a request, connecting is no part of what a test lacks.
const PART_MIN: f64 = 0.05;
/// The option that asks for few requests on a connection.
const ASKED: &str = "per-connection";

/// Compares the connections that the server closed with the requests, and the time to connect with that of a whole request.
pub(crate) struct ConnectionPerRequest;

impl FindingRule for ConnectionPerRequest {
    fn id(&self) -> &'static str {
        "connection-per-request"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["connect-delays", "generator-limited", "other-programs", PLANNED_EVENT]
    }

    fn stands_beside(&self, cause: &str, _: &TestEvidence<'_>) -> bool {
        // The handshakes are there whoever else uses the cores; only how long they take is not sure.
        cause == "other-programs"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let total = |counter| seen.total(Side::Initiator, counter);
        let (n_requests, n_closed) = (total(count::REQUESTS), total(count::CLOSED_BY_SERVER));
        let Some(closes) = share_closed(seen).filter(|_| n_requests >= REQUESTS_MIN) else { return Vec::new() };
        let mean = |name| seen.distribution(Side::Initiator, name).mean();
        let times = mean(distribution::TOTAL_TIME).zip(mean(distribution::SERVICE_TIME));
        let Some((whole, service)) = times.filter(|(whole, _)| *whole > 0.0) else { return Vec::new() };
        let (connect, share) = (Nanos(rounded((whole - service).max(0.0))), (1.0 - service / whole).max(0.0));
        let is_each = closes >= CLOSES;
        let is_nearly_each = closes >= NEARLY_EACH;
        if !is_each && share < SOME_PART_MIN {
            return Vec::new();
        }
        let opens = if is_each {
            "every request opens a new connection (the server closes it after the answer)".to_owned()
        } else if is_nearly_each {
            "nearly every request opens a new connection (the server closes it after the answer)".to_owned()
        } else {
            format!("the server closed {} connections for {} requests", grouped(n_closed), grouped(n_requests))
        };
        let has_tls = seen.distribution(Side::Initiator, distribution::TLS_TIME).count() > 0;
        let title = format!(
            "{opens}: connecting{} takes {connect} of the {} of a request ({})",
            if has_tls { ", with the TLS handshake," } else { "" },
            Nanos(rounded(whole)),
            percent(share)
        );
        // A schedule that is kept lacks no rate.
        let holds_back = share >= PART_MIN && !seen.reached_target();
        let severity = if holds_back { Severity::HoldsBack } else { Severity::Remark };
        let from = &seen.test.from;
        let evidence = [
            counter_evidence(from, count::CLOSED_BY_SERVER, n_closed),
            counter_evidence(from, count::REQUESTS, n_requests),
            text_evidence(from, "mean time to connect", connect),
        ];
        let tls = times_of_tls(seen).map(|time| text_evidence(from, "of that TLS, mean", time));
        let next = NextStep::new(&seen.run.command).expected(
            "be faster once the server keeps connections open (keep-alive; nginx: keepalive_timeout and keepalive_requests)",
        );
        vec![
            seen.finding(self.id(), severity, "reconnects", title)
                .evidence(evidence.into_iter().chain(tls))
                .explains(Some(share).filter(|_| holds_back))
                .next((holds_back && seen.run.command.starts_with("fathom ")).then_some(next)),
        ]
    }
}

/// Returns the connections that the server closed unasked as a share of the requests, if it is its habit.
fn share_closed(seen: &TestEvidence<'_>) -> Option<f64> {
    let is_asked = seen.test.options.count(ASKED).is_some() || asks_for_close(seen);
    let is_of_requests = matches!(seen.test.layer, Layer::App | Layer::Http);
    let total = |counter| seen.total(Side::Initiator, counter);
    let closes = ratio(total(count::CLOSED_BY_SERVER), total(count::REQUESTS));
    closes.filter(|closes| *closes >= CLOSES_SOME && is_of_requests && !is_asked)
}

/// Returns true if nearly each answer is the last one of its connection, and the server decides so.
pub(super) fn is_closed_by_server(seen: &TestEvidence<'_>) -> bool {
    share_closed(seen).is_some_and(|closes| closes >= NEARLY_EACH)
}

/// Returns true if the requests themselves ask for the end of their connections.
fn asks_for_close(seen: &TestEvidence<'_>) -> bool {
    let headers = seen.test.options.text("header").unwrap_or_default().to_lowercase();
    headers.lines().any(|line| line.strip_prefix("connection:").is_some_and(|value| value.contains("close")))
}

fn times_of_tls(seen: &TestEvidence<'_>) -> Option<Nanos> {
    seen.distribution(Side::Initiator, distribution::TLS_TIME).mean().map(|mean| Nanos(rounded(mean)))
}

#[cfg(test)]
mod tests {
    use fathom_model::Histogram;

    use super::*;
    use crate::run_builder::RunBuilder;

    /// A thousand requests, of which so many ended their connection, with these times to connect and to answer in microseconds.
    fn closing(n_closed: u64, connect_us: u64, service_us: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 10);
        builder.run.command = "fathom http http://198.18.0.2/".to_owned();
        builder.total("client", count::CLOSED_BY_SERVER, n_closed);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        for (name, micros) in
            [(distribution::SERVICE_TIME, service_us), (distribution::TOTAL_TIME, connect_us + service_us)]
        {
            let mut times = Histogram::new();
            times.record_n(Nanos::from_micros(micros).0, 1_000);
            record.distributions.insert(name.to_owned(), times);
        }
        builder
    }

    #[test]
    fn a_server_that_closes_each_connection_is_told_with_the_time_that_connecting_takes() {
        let finding = closing(995, 600, 400).finding("connection-per-request").unwrap();
        let words = "every request opens a new connection (the server closes it after the answer): connecting takes 600 µs of the 1.00 ms of a \
                     request (60 %)";
        assert_eq!(finding.title, words);
        assert_eq!(
            (finding.severity, finding.next.unwrap().command.as_str()),
            (Severity::HoldsBack, "fathom http http://198.18.0.2/")
        );
        let small = closing(1_000, 10, 990).finding("connection-per-request").unwrap();
        assert_eq!((small.severity, small.explains), (Severity::Remark, None));
    }

    #[test]
    fn handshakes_of_tls_are_part_of_it() {
        let mut tls = closing(1_000, 600, 400);
        let record = tls.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let times = record.distributions[distribution::SERVICE_TIME].clone();
        record.distributions.insert(distribution::TLS_TIME.to_owned(), times);
        let finding = tls.finding("connection-per-request").unwrap();
        assert!(finding.title.contains("connecting, with the TLS handshake, takes 600 µs"), "{}", finding.title);
    }

    #[test]
    fn connections_that_stay_or_were_to_be_closed_are_none_of_the_servers_habits() {
        assert_eq!(closing(5, 600, 400).finding("connection-per-request"), None);
        assert_eq!(closing(200, 100, 900).finding("connection-per-request"), None, "connecting takes a tenth");
        let some = closing(200, 600, 400).finding("connection-per-request").unwrap().title;
        assert!(some.starts_with("the server closed 200 connections for 1,000 requests: connecting takes"), "{some}");
        for (option, value) in [("per-connection", "1"), ("header", "Connection: close")] {
            let mut asked = closing(1_000, 600, 400);
            asked.run.tests[0].options.set(option, value);
            assert_eq!(asked.finding("connection-per-request"), None, "{option}");
        }
    }
}
