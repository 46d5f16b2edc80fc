//! Notes that the engines and the readers of the counters wrote next to their numbers.

use std::collections::BTreeMap;

use fathom_model::{Evidence, Finding, Note, Severity};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, text_evidence},
    window::host_of,
};

/// Notes that say what a host is, and nothing about the numbers: they are shown beside the others, and are no finding.
const NO_FINDING: [&str; 1] = ["port-unfiltered"];

/// Reports every kind of note once per test, with the hosts that wrote it; those about the counters of a host once per host.
pub(crate) struct EngineNotes;

impl FindingRule for EngineNotes {
    fn id(&self) -> &'static str {
        "note"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let mut by_id: BTreeMap<&str, (&Note, Vec<Evidence>)> = BTreeMap::new();
        let records = seen.test.trials.iter().flat_map(|trial| &trial.records);
        let notes = records.flat_map(|(key, record)| record.notes.iter().map(move |note| (host_of(key), note)));
        for (host, note) in notes.filter(|(_, note)| !NO_FINDING.contains(&note.id.as_str())) {
            let proof = text_evidence(host, &note.id, &note.text);
            let (_, evidence) = by_id.entry(&note.id).or_insert((note, Vec::new()));
            if !evidence.contains(&proof) {
                evidence.push(proof);
            }
        }
        let finding = |(note, evidence): (&Note, Vec<Evidence>)| {
            seen.finding(&note.id, Severity::Remark, "note", &note.text).evidence(evidence)
        };
        by_id.into_values().map(finding).chain(notes_of_hosts(seen)).collect()
    }
}

/// Returns what makes the counters of each host too small: a rule that found nothing in them may have missed it.
fn notes_of_hosts(seen: &TestEvidence<'_>) -> Vec<Finding> {
    let mut by_host: BTreeMap<(&str, &str), (&Note, Vec<Evidence>)> = BTreeMap::new();
    for (host, record) in seen.test.trials.iter().flat_map(|trial| &trial.hosts) {
        for note in &record.notes {
            let proof = text_evidence(host, &note.id, &note.text);
            let (_, evidence) = by_host.entry((host, &note.id)).or_insert((note, Vec::new()));
            if !evidence.contains(&proof) {
                evidence.push(proof);
            }
        }
    }
    let finding = |((host, id), (note, evidence)): ((&str, &str), (&Note, Vec<Evidence>))| {
        // Findings with one short name are told as one, and this host is not in the title of another.
        seen.finding(id, Severity::Remark, format!("note on {host}"), format!("{host}: {}", note.text))
            .evidence(evidence)
    };
    by_host.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_note_of_every_trial_is_told_once() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        for trial in &mut builder.run.tests[0].trials {
            let note = Note { id: "xdp-generic".to_owned(), text: "generic XDP: frames cost more".to_owned() };
            trial.records.get_mut("client").unwrap().notes.push(note);
        }
        let finding = builder.finding("xdp-generic").unwrap();
        assert_eq!((finding.severity, finding.evidence.len()), (Severity::Remark, 1));
        assert_eq!(finding.title, "generic XDP: frames cost more");
    }

    #[test]
    fn counters_that_fell_are_told_of_each_host_that_has_some() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        for trial in &mut builder.run.tests[0].trials {
            for host in ["client", "target"] {
                let text = format!("counters that fell: tcp_out_segments of {host}");
                trial.hosts.get_mut(host).unwrap().notes = vec![Note::new("counters-fell", text)];
            }
        }
        let analyzed = builder.analyzed();
        let told: Vec<_> = analyzed.findings.iter().filter(|finding| finding.id == "counters-fell").collect();
        let titles: Vec<&str> = told.iter().map(|finding| finding.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "client: counters that fell: tcp_out_segments of client",
                "target: counters that fell: tcp_out_segments of target"
            ]
        );
        assert!(told.iter().all(|finding| finding.severity == Severity::Remark && finding.evidence.len() == 1));
    }

    #[test]
    fn a_note_about_a_host_alone_is_no_finding() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        let note = Note::new(NO_FINDING[0], "no connection of a stranger came");
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().notes.push(note);
        assert_eq!(builder.finding(NO_FINDING[0]), None);
    }
}
