//! Probes went unanswered for a while.

use fathom_model::{Evidence, Finding, Severity, units::grouped};

use super::FindingRule;
use crate::evidence::{TestEvidence, has_answers};

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
        vec![Finding {
            id: self.id().to_owned(),
            short: "outage".to_owned(),
            title: format!("{} did not answer {length} from {} on{others}", probe.target, outage.from),
            severity: Severity::HoldsBack,
            tests: vec![seen.test.name.clone()],
            evidence: vec![Evidence {
                host: (*host).to_owned(),
                counter: "probes without an answer".to_owned(),
                value: format!("{} in a row", grouped(outage.n_probes)),
            }],
            explains: None,
            next: None,
        }]
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
