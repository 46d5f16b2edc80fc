//! Probes went unanswered for a while.

use fathom_model::{
    Finding, Severity, Trial,
    names::count,
    units::{Nanos, grouped},
};

use super::{FindingRule, planned_event::PLANNED_EVENT};
use crate::{
    evidence::{TestEvidence, has_answers, text_evidence},
    window::host_of,
};

/// Reports the longest outage of a series of probes, and the number of outages.
pub(crate) struct Outage;

impl FindingRule for Outage {
    fn id(&self) -> &'static str {
        "outage"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Without a single answer the target is unreachable, which is a separate finding.
        let answered = seen.probes().filter(|(_, record, _)| has_answers(record));
        let outages: Vec<_> =
            answered.flat_map(|(host, _, probe)| probe.outages.iter().map(move |o| (host, probe, o))).collect();
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
        vec![seen.finding(self.id(), Severity::HoldsBack, "outage", title).evidence([text_evidence(
            host,
            "probes without an answer",
            format!("{} in a row", grouped(outage.n_probes)),
        )])]
    }
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
        &["link-down", "neighbor-unresolved", PLANNED_EVENT]
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
        vec![seen.finding(self.id(), Severity::HoldsBack, "outage", title).evidence([text_evidence(
            host,
            count::LATE_START_NS_MAX.to_owned(),
            Nanos(*late),
        )])]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        probe::{OutageRecord, ProbeRecord},
        units::Nanos,
    };

    use crate::run_builder::RunBuilder;

    #[test]
    fn a_stream_that_began_late_tells_of_an_outage() {
        let late = |nanos: Nanos| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 1000)]);
            builder.total("client", fathom_model::names::count::LATE_START_NS_MAX, nanos.0);
            builder.finding("outage")
        };
        assert_eq!(late(Nanos::from_millis(50)), None);
        let title = late(Nanos::from_millis(570)).unwrap().title;
        assert!(title.starts_with("an outage: nothing passed to or from client for 570 ms"), "{title}");
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
            builder.probed((100, 50), ProbeRecord { outages: outages[..n].to_vec(), ..ProbeRecord::default() });
            let title = builder.finding("outage").unwrap().title;
            assert!(title.contains(words), "{title}");
        }
        let mut builder = RunBuilder::new();
        builder.probed((100, 0), ProbeRecord { outages: outages.to_vec(), ..ProbeRecord::default() });
        assert!(builder.finding("outage").is_none(), "a host that is not there has no outage");
    }
}
