//! Requests of a schedule left late because their own host had no time for them.

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::{count, distribution},
    units::{Nanos, percent, ratio},
};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, counter_evidence, text_evidence},
    gap::HALF,
};

/// Fewer late requests than this share of all are told by the table alone.
const SHARE_MIN: f64 = 0.01;
/// Fewer are none at all.
const LATE_MIN: u64 = 10;
/// If more waited for a connection, the 99th percentile of the lag is theirs.
const WAITED_MAX: f64 = 0.01;
/// Any machine is late by less at times, so that it is a remark.
const DISTURBS: Nanos = Nanos::from_millis(10);
/// A shorter lag is the precision of a schedule.
const LAG_MIN: Nanos = Nanos::from_millis(1);

/// Looks for times that are those of the client: a schedule that it does not keep delays what the target answers at once.
///
/// Silent where requests waited for a connection, which the target makes them do, and where the lag is less than half of the 99th percentile of
/// the response times.
pub(crate) struct LateRequests;

impl FindingRule for LateRequests {
    fn id(&self) -> &'static str {
        "late-requests"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "cpu-quota",
            "other-programs",
            "low-frequency",
            "generator-limited",
            "offered-too-little",
            "overload",
            "core-saturated",
            "steal",
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Users who come late have a row of their own, a search judges each of its trials, and a replay tells how it kept its recording.
        let is_replay = seen.records(Side::Initiator).any(|record| record.replay.is_some());
        if seen.test.users.is_some() || seen.test.curve.is_some() || is_replay {
            return Vec::new();
        }
        let total = |counter| seen.total(Side::Initiator, counter);
        let (n_late, n_waited) = (total(count::LATE_OWN_CPU), total(count::LATE_NO_CONNECTION));
        let of_all = |n| ratio(n, total(count::INTENDED)).unwrap_or(0.0);
        let share = of_all(n_late);
        let p99 = |name| seen.distribution(Side::Initiator, name).quantile(0.99).map(Nanos);
        let times = p99(distribution::SCHEDULE_LAG).zip(p99(distribution::RESPONSE_TIME));
        let Some((lag, response)) =
            times.filter(|_| n_late >= LATE_MIN && share >= SHARE_MIN && of_all(n_waited) < WAITED_MAX)
        else {
            return Vec::new();
        };
        if lag < LAG_MIN || ratio(lag.0, response.0).is_none_or(|part| part < HALF) {
            return Vec::new();
        }
        let from = seen.test.from.as_str();
        let severity = if lag >= DISTURBS { Severity::Disturbs } else { Severity::Remark };
        let title = format!(
            "{} of the requests left late because {from} had no time for them: the p99 of the delay before sending is {lag}, and that of the \
             response times {response}",
            percent(share)
        );
        vec![
            seen.finding(self.id(), severity, "sent late", title)
                .evidence([
                    counter_evidence(from, count::LATE_OWN_CPU, n_late),
                    text_evidence(from, format!("{} p99", distribution::SCHEDULE_LAG), lag),
                    text_evidence(from, format!("{} p99", distribution::RESPONSE_TIME), response),
                ])
                .next(NextStep::new("top").on(from).expected(
                    "show which programs use its cores; give fathom cores of its own, or ask for a lower rate",
                )),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::Histogram;

    /// The title about a thousand requests that left and were answered after these times.
    fn told(lag: Nanos, response: Nanos, (late, waited): (u64, u64)) -> Option<String> {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        for (name, n) in [(count::INTENDED, 1_000), (count::LATE_OWN_CPU, late), (count::LATE_NO_CONNECTION, waited)] {
            builder.total("client", name, n);
        }
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        for (name, time) in [(distribution::SCHEDULE_LAG, lag), (distribution::RESPONSE_TIME, response)] {
            let mut times = Histogram::new();
            times.record_n(time.0, 1_000);
            record.distributions.insert(name.to_owned(), times);
        }
        builder.finding("late-requests").map(|finding| finding.title)
    }

    #[test]
    fn times_that_passed_before_requests_left_are_those_of_the_client() {
        let (lag, response) = (Nanos::from_millis(40), Nanos::from_millis(48));
        let title = told(lag, response, (290, 5)).unwrap();
        assert!(title.starts_with("29 % of the requests left late because client had no time for them"), "{title}");
        assert_eq!(told(lag, response, (290, 30)), None, "those that waited for a connection may be the latest");
        assert_eq!(told(lag, response, (5, 0)), None, "few of them");
        assert_eq!(told(lag, Nanos::from_millis(100), (290, 10)), None, "the target took longer");
        assert_eq!(
            told(Nanos::from_micros(60), Nanos::from_micros(90), (290, 10)),
            None,
            "as precise as a schedule is"
        );
    }
}
