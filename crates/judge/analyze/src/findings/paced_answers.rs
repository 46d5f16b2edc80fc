//! Answers that begin at once and come slowly: in parts, or at the same pace on each connection.

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::{count, distribution},
    units::{BitsPerSec, Nanos, approximate, grouped, percent, ratio},
};

use super::{
    FindingRule,
    planned_event::PLANNED_EVENT,
    rule::FIRST_FLIGHT,
    server_time::{MOST, RESENT_MAX, RequestTimes, SLOW, is_of_requests, is_pause, resent_per_request},
};
use crate::evidence::{TestEvidence, counter_evidence, text_evidence};

/// The bytes of an answer that fit in one segment on every path (RFC 8200, section 5: an MTU of 1280 bytes): nothing but the sender divides it.
const ONE_SEGMENT: u64 = 1_200;
/// A connection that only begins takes at most this many times as long as its round trips.
pub(super) const TIMES_BEGIN: f64 = 3.0;
/// The largest distance between the 10 % shortest and the 10 % longest downloads of one pace, as a share of the median. Connections that
/// compete for a link differ by more.
const ONE_PACE: f64 = 0.03;
/// Fewer answers show no pace.
const ANSWERS_MIN: u64 = 20;

/// Looks at the time from the first byte of an answer to the last.
pub(crate) struct PacedAnswers;

impl FindingRule for PacedAnswers {
    fn id(&self) -> &'static str {
        "paced-answers"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "server-saturated",
            "core-saturated",
            "generator-limited",
            "other-programs",
            "local-shaper",
            "path-full",
            "rate-limit",
            "receive-window",
            "congestion-window",
            "data-gaps",
            "sender-limited",
            "cpu-quota",
            "latency-under-load",
            "retransmissions",
            "stall",
            "steal",
            PLANNED_EVENT,
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(answers) = SlowDownload::of(seen) else { return Vec::new() };
        let title = if answers.bytes <= ONE_SEGMENT {
            answers.parts_title()
        } else if let Some(title) = answers.pace_title(seen) {
            title
        } else {
            return Vec::new();
        };
        let from = &seen.test.from;
        let evidence = [
            counter_evidence(from, "bytes of an answer, mean", answers.bytes),
            text_evidence(from, "first_byte_ns p50", answers.times.first_byte),
            text_evidence(from, "download_time_ns p50", answers.times.download),
        ];
        let half = seen.test.options.count("connections").filter(|n| *n > 1 && answers.bytes > ONE_SEGMENT);
        let next = half.and_then(|n| seen.repeat_with_option("connections", &(n / 2).to_string())).map(|command| {
            NextStep::new(command).expected(
                "take as long for each answer if each connection has a limit, and half as long if they share a link",
            )
        });
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "paced answers", title)
                .evidence(evidence)
                .explains(ratio(answers.times.download.0, answers.times.service.0).map(|share| share.min(1.0)))
                .next(next),
        ]
    }
}

/// Answers whose time passes after their first byte, although nothing on the way is full: the first byte comes early.
struct SlowDownload {
    times: RequestTimes,
    /// Bytes of an answer, mean.
    bytes: u64,
}

impl SlowDownload {
    fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let times = (is_of_requests(seen) && !seen.reached_target()).then(|| RequestTimes::of(seen))??;
        let total = |counter| seen.total(Side::Initiator, counter);
        let bytes = total(count::BYTES_RECEIVED).checked_div(total(count::REQUESTS))?;
        let is_most = ratio(times.download.0, times.service.0).is_some_and(|share| share >= MOST);
        let no_queue = times.first_byte.since(times.connect) < SLOW;
        let n_trips = (approximate(bytes) / FIRST_FLIGHT + 1.0).log2().ceil().max(1.0);
        let is_slow = times.download >= SLOW
            && approximate(times.download.0) >= TIMES_BEGIN * n_trips * approximate(times.connect.0);
        let n = total(count::REQUESTS);
        (is_most && no_queue && is_slow && n >= ANSWERS_MIN && !is_pause(seen)).then_some(())?;
        (resent_per_request(seen) < RESENT_MAX).then_some(Self { times, bytes })
    }

    fn parts_title(&self) -> String {
        format!(
            "the server sends each {}-byte answer in parts: the last byte comes {} after the first, and a request takes {}",
            grouped(self.bytes),
            self.times.download,
            self.times.service
        )
    }

    /// The title if all connections have the same pace.
    fn pace_title(&self, seen: &TestEvidence<'_>) -> Option<String> {
        seen.test.options.count("connections").filter(|n| *n > 1)?;
        let downloads = seen.distribution(Side::Initiator, distribution::DOWNLOAD_TIME);
        let (short, long) = (Nanos(downloads.quantile(0.1)?), Nanos(downloads.quantile(0.9)?));
        let spread = ratio(long.since(short).0, self.times.download.0).filter(|spread| *spread <= ONE_PACE)?;
        let pace = BitsPerSec::new(approximate(self.bytes) * 8.0 / self.times.download.as_secs_f64())?;
        Some(format!(
            "answers come at {pace} on each connection, and take {} after the first byte (± {}): the server or the path limits each connection, or a full \
             link is shared evenly",
            self.times.download,
            percent(spread / 2.0)
        ))
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Histogram, names::count, names::distribution, units::Nanos};

    use crate::run_builder::RunBuilder;

    /// A thousand answers of this many bytes that begin after 0.2 ms and take this long from then on, on ten connections.
    fn with_downloads(bytes: u64, downloads: impl Fn(u64) -> Nanos) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 10);
        builder.total("client", count::REQUESTS, 1_000);
        builder.total("client", count::BYTES_RECEIVED, bytes * 1_000);
        builder.run.command = "fathom http http://198.18.0.2/".to_owned();
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let mut add = |name: &str, time: &dyn Fn(u64) -> Nanos| {
            let mut times = Histogram::new();
            (0..1_000).for_each(|index| times.record(time(index).0));
            record.distributions.insert(name.to_owned(), times);
        };
        let begin = Nanos::from_micros(200);
        add(distribution::CONNECT_TIME, &|_| Nanos::from_micros(100));
        add(distribution::FIRST_BYTE, &|_| begin);
        add(distribution::DOWNLOAD_TIME, &downloads);
        add(distribution::SERVICE_TIME, &|index| begin + downloads(index));
        builder
    }

    #[test]
    fn an_answer_of_one_segment_that_takes_long_is_sent_in_parts() {
        let finding = with_downloads(540, |_| Nanos::from_millis(60)).finding("paced-answers").unwrap();
        let words = "the server sends each 540-byte answer in parts: the last byte comes 60.0 ms after the first";
        assert!(finding.title.starts_with(words), "{}", finding.title);
        assert_eq!(finding.next, None);
    }

    #[test]
    fn answers_of_one_pace_on_all_connections_have_a_limit_each() {
        let finding = with_downloads(100_000, |_| Nanos::from_millis(400)).finding("paced-answers").unwrap();
        assert!(finding.title.starts_with("answers come at 2.00 Mbit/s on each connection"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "fathom http http://198.18.0.2/ --connections 5");
    }

    #[test]
    fn downloads_that_differ_or_that_are_short_for_their_length_have_no_pace() {
        let varied = with_downloads(100_000, |index| Nanos::from_millis(300 + index % 100));
        assert_eq!(varied.finding("paced-answers"), None, "they compete");
        assert_eq!(with_downloads(540, |_| Nanos::from_micros(1_500)).finding("paced-answers"), None, "short");
        let mut far = with_downloads(100_000, |_| Nanos::from_millis(400));
        let record = far.run.tests[0].trials[0].records.get_mut("client").unwrap();
        for name in [distribution::CONNECT_TIME, distribution::FIRST_BYTE] {
            let mut times = Histogram::new();
            times.record_n(Nanos::from_millis(100).0, 1_000);
            record.distributions.insert(name.to_owned(), times);
        }
        assert_eq!(far.finding("paced-answers"), None, "three round trips of a connection that begins");
    }
}
