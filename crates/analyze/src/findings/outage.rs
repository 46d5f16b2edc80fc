//! For a while nothing came back.

use fathom_model::{Evidence, Finding, Severity, units::grouped};

use super::{Cause, Evidenced};

/// Tells the longest outage of a series of probes, and how many there were.
pub(crate) struct Outage;

impl Cause for Outage {
    fn id(&self) -> &'static str {
        "outage"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        // Without a single answer there is no outage but nobody, which is another finding.
        let answered = seen.probes().filter(|(_, record, _)| super::has_answers(record));
        let outages: Vec<_> =
            answered.flat_map(|(host, _, probe)| probe.outages.iter().map(move |o| (host, probe, o))).collect();
        // One that lasted to the end is longer than any.
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
