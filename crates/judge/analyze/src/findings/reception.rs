//! The data of a server whose host is not seen arrives behind gaps, fills the client's window, or is little in each round trip.

use fathom_model::{Evidence, Finding, NextStep, Severity, names::reception, units::percent};

use super::{FindingRule, planned_event::PLANNED_EVENT, rule::DEVICE_CORE_FULL};
use crate::{
    evidence::{TestEvidence, ratio_evidence, text_evidence},
    gap,
    reception::{SeenReception, transfer_share},
};

/// What makes data come late and with gaps.
const OF_PATH: &[&str] = &[
    "local-shaper",
    "path-full",
    "filter-drops",
    "ingress-filter-drops",
    "backlog-overflow",
    "outage",
    // A host that counts what it sent again tells more.
    "retransmissions",
    DEVICE_CORE_FULL,
    PLANNED_EVENT,
];

/// What makes data come slowly.
const CAUSES: &[&str] = &[
    "server-saturated",
    "core-saturated",
    "generator-limited",
    "local-shaper",
    "path-full",
    "cpu-quota",
    "filter-drops",
    "ingress-filter-drops",
    "backlog-overflow",
    "outage",
    "link-full",
    DEVICE_CORE_FULL,
    PLANNED_EVENT,
    "retransmissions",
];

/// What makes a server pause, or tells of its pauses with more words.
const PAUSES: &[&str] = &[
    "paced-answers",
    "delayed-ack",
    "server-time",
    "slow-answers",
    "overload",
    "stall",
    "server-saturated",
    "core-saturated",
    "generator-limited",
    "local-shaper",
    "path-full",
    "receive-window",
    "cpu-quota",
    "outage",
    "steal",
    DEVICE_CORE_FULL,
    PLANNED_EVENT,
    "retransmissions",
];

fn evidence(seen: &TestEvidence<'_>, found: &SeenReception) -> Vec<Evidence> {
    let from = seen.test.from.as_str();
    let window = found.window.map(|window| text_evidence(from, format!("{} p50", reception::WINDOW), window));
    let always = [
        ratio_evidence(from, reception::SEGMENTS_BEHIND_GAPS, found.behind_gaps),
        text_evidence(from, format!("{} p50", reception::IN_FLIGHT), found.in_flight),
        text_evidence(from, format!("{} p50", reception::ROUND_TRIP), found.round_trip),
        text_evidence(from, reception::SHORTEST_ROUND_TRIP, found.shortest),
    ];
    always.into_iter().chain(window).collect()
}

fn finding(
    seen: &TestEvidence<'_>,
    (id, short): (&'static str, &'static str),
    found: &SeenReception,
    (title, next): (String, NextStep),
) -> Vec<Finding> {
    vec![
        seen.finding(id, Severity::HoldsBack, short, title)
            .evidence(evidence(seen, found))
            .explains(gap::explained_by_time(seen, transfer_share(seen)))
            .next(next),
    ]
}

/// Segments arrive before others that precede them.
pub(crate) struct DataGaps;

impl FindingRule for DataGaps {
    fn id(&self) -> &'static str {
        "data-gaps"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        OF_PATH
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(found) = SeenReception::of(seen).filter(SeenReception::has_gaps) else { return Vec::new() };
        let title = format!(
            "{} of the segments from the server arrived out of order: earlier ones were lost or late, and the server slows down",
            percent(found.behind_gaps)
        );
        let next = NextStep::new("ss -tin state established; tc -s qdisc show").expected(
            "show on the server's host whether it sent segments again (retrans) that had arrived (dsack_dups), and whether its own queue drops",
        );
        finding(seen, (self.id(), "data gaps"), &found, (title, next))
    }
}

/// The client offers a window that is full.
pub(crate) struct ClientWindow;

impl FindingRule for ClientWindow {
    fn id(&self) -> &'static str {
        "receive-window"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        CAUSES
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let found = SeenReception::of(seen).and_then(|found| Some((found.full_window()?, found)));
        let Some((window, found)) = found else { return Vec::new() };
        let from = seen.test.from.as_str();
        let title = format!(
            "the receive window of {from} is {window}: the server fills it in each round trip of {}, and waits for the next",
            found.round_trip
        );
        let next = NextStep::new("sysctl net.ipv4.tcp_rmem").on(from).expected(
            "show the largest receive buffer (the third number): a window is half of it, and a round trip carries one window at most",
        );
        finding(seen, (self.id(), "own window"), &found, (title, next))
    }
}

/// The server has little under way, and nothing on the way asks for that.
pub(crate) struct SenderLimited;

impl FindingRule for SenderLimited {
    fn id(&self) -> &'static str {
        "sender-limited"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        CAUSES
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(found) = SeenReception::of(seen).filter(SeenReception::is_limited_by_sender) else {
            return Vec::new();
        };
        let from = &seen.test.from;
        // An older kernel does not tell its window.
        let (room, or_window) = match found.window {
            Some(_) => (format!("the path and the receive window of {from} have room"), String::new()),
            None => ("the path has room".to_owned(), format!("the receive window of {from}, ")),
        };
        let title = format!(
            "the server keeps {} under way in each round trip of {}, and {room}: {or_window}its congestion window, its send buffer or its program \
             holds it back",
            found.in_flight, found.round_trip
        );
        let next = NextStep::new("ss -tin state established").expected(
            "show on the server's host which: cwnd in segments, sndbuf_limited, or app_limited if its program writes no faster",
        );
        finding(seen, (self.id(), "sender limited"), &found, (title, next))
    }
}

/// The server sends in bursts.
pub(crate) struct SenderPauses;

impl FindingRule for SenderPauses {
    fn id(&self) -> &'static str {
        "sender-pauses"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        PAUSES
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(found) = SeenReception::of(seen).filter(SeenReception::is_mostly_silent) else { return Vec::new() };
        let title = format!(
            "the server pauses within its answers: in {} of the samples nothing had arrived for two round trips, although no segment was missing and the \
             receive window had room",
            percent(found.silent)
        );
        let next = NextStep::new("ss -tin state established").expected(
            "show on the server's host app_limited: its program limits the rate of an answer, or waits for its data",
        );
        finding(seen, (self.id(), "sender pauses"), &found, (title, next))
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Histogram, names::distribution, units::Nanos};

    use super::*;
    use crate::run_builder::RunBuilder;

    /// How data arrived: silent samples and segments behind gaps of a hundred, the round trip and the shortest one in µs, the window and what arrived in a
    /// round trip in bytes.
    #[derive(Clone, Copy)]
    struct Arrived {
        silent: u64,
        behind_gaps: u64,
        rtt_us: u64,
        rtt_min_us: u64,
        window: u64,
        in_flight: u64,
    }

    /// A server 10 ms away that fills a quarter of the window.
    const GOOD: Arrived =
        Arrived { silent: 0, behind_gaps: 0, rtt_us: 10_100, rtt_min_us: 10_000, window: 400_000, in_flight: 100_000 };

    /// Answers that take 100 ms, of which their transfer takes this much.
    fn with(arrived: Arrived, download_ms: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(100, 10);
        builder.run.tests[0].to = None;
        let totals = [
            (reception::SAMPLES, 100),
            (reception::SILENT_SAMPLES, arrived.silent),
            (reception::SEGMENTS, 100),
            (reception::SEGMENTS_BEHIND_GAPS, arrived.behind_gaps),
        ];
        for (name, n) in totals {
            builder.total("client", name, n);
        }
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let values = [
            (reception::ROUND_TRIP, arrived.rtt_us * 1_000),
            (reception::SHORTEST_ROUND_TRIP, arrived.rtt_min_us * 1_000),
            (reception::WINDOW, arrived.window),
            (reception::IN_FLIGHT, arrived.in_flight),
            (distribution::DOWNLOAD_TIME, Nanos::from_millis(download_ms).0),
            (distribution::SERVICE_TIME, Nanos::from_millis(100).0),
        ];
        for (name, value) in values {
            let mut values = Histogram::new();
            values.record_n(value, 100);
            record.distributions.insert(name.to_owned(), values);
        }
        builder.cpu("client", "cpu0", [30, 10, 10, 0]);
        builder
    }

    /// The findings of these rules, by their ids.
    fn found(builder: &RunBuilder) -> Vec<&'static str> {
        let ids = ["data-gaps", "receive-window", "sender-limited", "sender-pauses"];
        ids.into_iter().filter(|id| builder.finding(id).is_some_and(|it| it.severity > Severity::Remark)).collect()
    }

    #[test]
    fn each_way_of_arriving_has_one_cause() {
        let cases = [
            (GOOD, "sender-limited"),
            (Arrived { behind_gaps: 2, ..GOOD }, "data-gaps"),
            (Arrived { in_flight: 300_000, ..GOOD }, "receive-window"),
            (Arrived { silent: 80, rtt_us: 90_000, ..GOOD }, "sender-pauses"),
        ];
        for (arrived, cause) in cases {
            assert_eq!(found(&with(arrived, 90)), [cause]);
        }
    }

    #[test]
    fn a_short_path_a_queue_and_a_server_that_takes_the_time_itself_are_not_the_windows() {
        let short = Arrived { rtt_us: 110, rtt_min_us: 100, ..GOOD };
        let queued = Arrived { rtt_us: 60_000, ..GOOD };
        for (arrived, download) in [(short, 90), (queued, 90), (GOOD, 10), (Arrived { behind_gaps: 2, ..GOOD }, 10)] {
            assert_eq!(found(&with(arrived, download)), [""; 0], "{} {download}", arrived.rtt_us);
        }
    }

    #[test]
    fn a_few_gaps_of_a_path_of_memory_are_made_by_threads_that_change_their_core() {
        let over = |driver: &str, behind_gaps| {
            let mut builder = with(Arrived { behind_gaps, rtt_us: 60, rtt_min_us: 50, ..GOOD }, 90);
            builder.driver(driver);
            found(&builder)
        };
        assert_eq!(over("veth", 5), [""; 0]);
        assert_eq!(over("veth", 40), ["data-gaps"]);
        assert_eq!(over("ice", 5), ["data-gaps"]);
    }

    #[test]
    fn a_window_that_the_kernel_does_not_tell_may_be_the_cause_and_is_not_said_to_have_room() {
        let without_window = |arrived| {
            let mut builder = with(arrived, 90);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.distributions.remove(reception::WINDOW);
            builder
        };
        let title = without_window(GOOD).finding("sender-limited").unwrap().title;
        assert!(title.contains("the path has room: the receive window of client, its congestion window"), "{title}");
        assert_eq!(found(&without_window(Arrived { silent: 80, ..GOOD })), [""; 0]);
    }

    #[test]
    fn a_server_whose_host_is_seen_is_judged_by_its_own_counters() {
        let mut builder = with(Arrived { behind_gaps: 50, ..GOOD }, 90);
        builder.run.tests[0].to = Some("target".to_owned());
        assert_eq!(found(&builder), [""; 0]);
    }

    #[test]
    fn the_title_tells_what_arrived_and_the_share_is_that_of_the_transfer() {
        let finding = with(Arrived { behind_gaps: 2, ..GOOD }, 80).finding("data-gaps").unwrap();
        assert!(
            finding.title.starts_with("2.0 % of the segments from the server arrived out of order"),
            "{}",
            finding.title
        );
        assert!(finding.explains.is_some_and(|share| (share - 0.9).abs() < 0.01), "{:?}", finding.explains);
        let title = with(GOOD, 90).finding("sender-limited").unwrap().title;
        assert!(
            title
                .starts_with("the server keeps 97.7 KiB under way in each round trip of 10.1 ms, and the path and the"),
            "{title}"
        );
    }
}
