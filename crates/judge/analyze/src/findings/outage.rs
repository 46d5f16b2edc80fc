//! Nothing passed for a while: probes had no answer, and streams brought nothing.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side, Trial,
    names::count,
    units::{Nanos, approximate, grouped, ratio, rounded},
};
use fathom_statistics::mean;

use super::{
    FindingRule, link_down::LINK_DOWN, lost_probes::outages, neighbor_changes::NEIGHBOR_CHANGES,
    other_programs::OtherPrograms, planned_event::PLANNED_EVENT,
};
use crate::{
    evidence::{TestEvidence, has_answers, ratio_evidence, text_evidence},
    flows::least_round_trip,
    gap,
    resent::most_resent,
    window::{MeasuredWindow, host_of, rates, record_of},
};

/// Reports the longest outage of a series of probes, and the number of outages.
pub(crate) struct Outage;

impl FindingRule for Outage {
    fn id(&self) -> &'static str {
        "outage"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // A place that counts about as many drops tells more.
        &[
            LINK_DOWN,
            NEIGHBOR_CHANGES,
            "neighbor-unresolved",
            "filter-drops",
            "ingress-filter-drops",
            "reverse-path-filter",
            "martian-packets",
            "other-mac",
            "qdisc-drops",
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Without a single answer the target is unreachable, which is a separate finding.
        let answered = seen.probes().filter(|(_, record, _)| has_answers(record));
        let outages: Vec<_> =
            answered.flat_map(|(host, record, probe)| outages(record, probe).map(move |o| (host, probe, o))).collect();
        // An outage that lasted to the end counts as the longest.
        let longest = outages.iter().max_by_key(|(_, _, outage)| (outage.length_ns.is_none(), outage.length_ns));
        let Some((host, probe, outage)) = longest else { return Vec::new() };
        let length = outage.length_ns.map_or_else(|| "to the end".to_owned(), |length| format!("for {length}"));
        let others = match outages.len() {
            1 => String::new(),
            n => format!("; {n} outages in all"),
        };
        let of = if seen.test.links.is_empty() { String::new() } else { format!(" {host}") };
        let title = format!("{} did not answer{of} {length} from {} on{others}", probe.target, outage.from);
        let in_a_row = format!("{} in a row", grouped(outage.n_probes));
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "outage", title)
                .evidence([text_evidence(host, "probes without an answer", in_a_row)])
                .next(watch_changes(host)),
        ]
    }
}

/// Suggests to wait for the next outage with an eye on what changes at a host. When it is over, no command shows what it was.
fn watch_changes(host: &str) -> NextStep {
    NextStep::new("ip -ts monitor link route neigh").on(host).expected(
        "show, with its time, what changes here as the next one begins: a carrier, a route, a neighbor; if nothing does, look at the logs of the devices on the \
         way for that time",
    )
}

/// From this delay on, the handshake of a stream waited for something other than the path and the hosts.
const LATE_START: Nanos = Nanos::from_millis(300);

/// Reports a stream of datagrams that began late, because nothing passed when its receiver asked for it.
pub(crate) struct LateStart;

impl FindingRule for LateStart {
    fn id(&self) -> &'static str {
        "outage"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["link-down", NEIGHBOR_CHANGES, "neighbor-unresolved", PLANNED_EVENT]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        fn late(trial: &Trial) -> Option<(&str, u64)> {
            let of = trial
                .records
                .iter()
                .filter_map(|(key, record)| Some((host_of(key), *record.totals.get(count::LATE_START_NS_MAX)?)));
            of.max_by_key(|(_, late)| *late)
        }
        let all: Vec<_> = seen.test.trials.iter().filter_map(late).collect();
        let most = all.iter().max_by_key(|(_, late)| *late).filter(|(_, late)| Nanos(*late) >= LATE_START);
        let Some((host, late)) = most else { return Vec::new() };
        let n_late = all.iter().filter(|(_, late)| Nanos(*late) >= LATE_START).count();
        let title = format!(
            "an outage: nothing passed to or from {host} for {} when the stream was to begin ({n_late} of {} rounds)",
            Nanos(*late),
            all.len()
        );
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "outage", title)
                .evidence([text_evidence(host, count::LATE_START_NS_MAX, Nanos(*late))])
                .next(watch_changes(host)),
        ]
    }
}

/// A stream that brings nothing for so long waits for more than one retransmission (RFC 6298: 200 ms at least, in Linux).
const SILENCE: Nanos = Nanos::from_millis(250);
/// At least so much would have come in this time: a slow or paced stream comes in segments of up to 64 KiB, with nothing between them.
const EXPECTED_MIN: f64 = 65_536.0;
/// Where more is lost than this, the loss itself makes a stream fall silent.
const LOSS_MAX: f64 = 0.02;

/// Reports a TCP stream to which nothing came for a while in most rounds, though little of it was lost.
pub(crate) struct SilentStream;

impl FindingRule for SilentStream {
    fn id(&self) -> &'static str {
        "outage"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // A reader that pauses closes the window of its sender.
        &[
            "link-down",
            NEIGHBOR_CHANGES,
            "neighbor-unresolved",
            "other-programs",
            "cpu-quota",
            "local-shaper",
            "receive-window",
            "acks-lost",
            PLANNED_EVENT,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // Other programs take many short times. A long silence in every round is not theirs.
        let is_in_every_round = |all: &[Silence<'_>]| all.len() > 1 && all.iter().all(|one| one.longest >= SILENCE);
        cause == OtherPrograms.id() && is_in_every_round(&Silence::of_rounds(seen))
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let all = Silence::of_rounds(seen);
        let least = least_silence(seen);
        let n_silent = all.iter().filter(|silence| silence.longest >= least).count();
        let is_loss = most_resent(seen).is_some_and(|(_, share)| share > LOSS_MAX);
        let longest = all.iter().max_by_key(|silence| silence.longest);
        let Some(longest) = longest.filter(|_| 2 * n_silent > all.len() && !is_loss) else { return Vec::new() };
        let title = format!(
            "an outage: nothing arrived at {} for {} ({n_silent} of {} rounds had one)",
            longest.host,
            longest.longest,
            all.len()
        );
        let share = mean(&all.iter().map(|silence| silence.share).collect::<Vec<_>>()).unwrap_or(0.0);
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "outage", title)
                .evidence([
                    text_evidence(longest.host, "nothing received for", longest.longest),
                    ratio_evidence(longest.host, "time of the longest outage of each round", share),
                ])
                .explains(gap::explained_by_time(seen, share))
                .next(watch_changes(longest.host)),
        ]
    }
}

/// Returns the time from which on silence is an outage: behind a lost segment, a long path brings nothing to its reader for two round trips.
fn least_silence(seen: &TestEvidence<'_>) -> Nanos {
    const ROUND_TRIPS: u64 = 3;
    let sides = [Side::Initiator, Side::Responder].into_iter().flat_map(|side| seen.measured_flows(side));
    let longest = sides.filter_map(|(_, samples)| least_round_trip(samples)).max();
    SILENCE.max(Nanos(longest.unwrap_or(0)) * ROUND_TRIPS)
}

/// The longest time of a trial in which a stream brought nothing.
struct Silence<'a> {
    host: &'a str,
    longest: Nanos,
    /// Of the measured time.
    share: f64,
}

impl<'a> Silence<'a> {
    /// Those of the rounds of a stream from one host to another.
    fn of_rounds(seen: &TestEvidence<'a>) -> Vec<Self> {
        let one_way = seen.one_way().filter(|_| seen.test.layer == Layer::Tcp && seen.test.links.is_empty());
        let Some((_, side)) = one_way else { return Vec::new() };
        seen.trials().iter().filter_map(|trial| Self::of(seen, trial, side)).collect()
    }

    fn of(seen: &TestEvidence<'_>, trial: &'a Trial, side: Side) -> Option<Self> {
        let (host, record) = record_of(trial, side)?;
        let (from, to) = MeasuredWindow::common(trial, &seen.run.hosts)?.in_record(&seen.run.hosts, host, record);
        let rates = rates(&record.timeline, count::BYTES_RECEIVED, (from, to));
        let n_silent = rates.split(|rate| *rate > 0.0).map(<[f64]>::len).max()?;
        let share = ratio(u64::try_from(n_silent).ok()?, u64::try_from(rates.len()).ok()?)?;
        let longest = Nanos(rounded(approximate((to - from).0) * share));
        // Without a byte at all, nothing arrives, which is another finding.
        (mean(&rates)? * SILENCE.as_secs_f64() >= EXPECTED_MIN).then_some(Self { host, longest, share })
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        names::{
            count,
            host::{TCP_OUT_SEGMENTS, TCP_RETRANS_SEGMENTS},
            tcp,
        },
        probe::{OutageRecord, ProbeRecord},
        units::Nanos,
    };

    use crate::run_builder::RunBuilder;

    #[test]
    fn a_stream_that_began_late_tells_of_an_outage() {
        let late = |nanos: Nanos| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 1000)]);
            builder.total("client", count::LATE_START_NS_MAX, nanos.0);
            builder.finding("outage")
        };
        assert_eq!(late(Nanos::from_millis(50)), None);
        let found = late(Nanos::from_millis(570)).unwrap();
        assert!(found.title.starts_with("an outage: nothing passed to or from client for 570 ms"), "{}", found.title);
        let next = found.next.unwrap();
        let told = (next.command.as_str(), next.on.as_deref());
        assert_eq!(told, ("ip -ts monitor link route neigh", Some("client")));
    }

    #[test]
    fn a_stream_that_brings_nothing_for_a_while_had_an_outage_unless_it_lost_much() {
        let of = |bytes_per_sec: u64, n_intervals: [usize; 2], resent: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[bytes_per_sec; 2]);
            for (trial, n) in builder.run.tests[0].trials.iter_mut().zip(n_intervals) {
                let timeline = &mut trial.records.get_mut("target").unwrap().timeline;
                timeline.counters.get_mut(count::BYTES_RECEIVED).unwrap()[4..4 + n].fill(0);
            }
            builder.host_counter("client", (TCP_OUT_SEGMENTS, ""), 100_000);
            builder.host_counter("client", (TCP_RETRANS_SEGMENTS, ""), resent);
            builder.finding("outage").map(|finding| finding.title)
        };
        let silent = |n_intervals, resent| of(12_500_000, n_intervals, resent);
        let title = silent([8, 6], 100).unwrap();
        assert_eq!(title, "an outage: nothing arrived at target for 400 ms (2 of 2 rounds had one)");
        assert_eq!(of(25_000, [8, 6], 100), None, "a slow stream comes in bursts");
        assert_eq!(silent([8, 2], 100), None, "one round alone may have met anything");
        assert_eq!(silent([8, 6], 5_000), None, "so many losses make it fall silent");
    }

    #[test]
    fn the_longest_outage_is_told_and_one_that_lasts_is_the_longest() {
        let outage = |from: &str, length: Option<u64>| OutageRecord {
            from_ns: Nanos::ZERO,
            from: from.to_owned(),
            length_ns: length.map(Nanos::from_secs),
            n_probes: 5,
        };
        let outages = [outage("one", Some(1)), outage("two", Some(3)), outage("three", None)];
        let told =
            [(1, "for 1.00 s from one on"), (2, "for 3.00 s from two on; 2"), (3, "to the end from three on; 3")];
        for (n, words) in told {
            let mut builder = RunBuilder::new();
            let n_lost = 5 * u64::try_from(n).unwrap();
            builder
                .probed((100, 100 - n_lost), ProbeRecord { outages: outages[..n].to_vec(), ..ProbeRecord::default() });
            let title = builder.finding("outage").unwrap().title;
            assert!(title.contains(words), "{title}");
        }
        let mut builder = RunBuilder::new();
        builder.probed((100, 0), ProbeRecord { outages: outages.to_vec(), ..ProbeRecord::default() });
        assert!(builder.finding("outage").is_none(), "a host that is not there has no outage");
    }

    #[test]
    fn on_a_long_path_silence_is_no_outage_before_three_round_trips() {
        assert_eq!(least_silence_of(100), Nanos::from_millis(300));
        assert_eq!(least_silence_of(1), super::SILENCE);
    }

    /// The least silence of a stream with this round trip in milliseconds.
    fn least_silence_of(rtt: u64) -> Nanos {
        let mut builder = RunBuilder::new();
        builder.windowed_stream(64_000, &[]);
        let flows = &mut builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows;
        for sample in &mut flows[0].samples {
            sample.values.insert(tcp::RTT_MIN_NS.to_owned(), Nanos::from_millis(rtt).0);
        }
        let context = crate::AnalysisContext::default();
        super::least_silence(&crate::evidence::TestEvidence::new(&builder.run, &builder.run.tests[0], &context))
    }
}
