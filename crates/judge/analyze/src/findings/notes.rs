//! Notes that the engines and the readers of the counters wrote next to their numbers.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{Evidence, Finding, Note, Severity, record::CounterBreak};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, text_evidence},
    window::host_of,
};

/// Notes that say what a host is, and nothing about the numbers: they are shown beside the others, and are no finding.
const NO_FINDING: [&str; 1] = ["port-unfiltered"];

/// The ids of what is told of the counters of a host.
const COUNTERS_FELL: &str = "counters-fell";
const INTERFACE_DISAPPEARED: &str = "interface-disappeared";

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
        by_id.into_values().map(finding).chain(breaks_of_hosts(seen)).collect()
    }
}

/// Returns where the counters of each host grew by more than they show: a rule that found nothing in them may have missed it. Those of interfaces
/// that the test does not use are nothing to it.
fn breaks_of_hosts(seen: &TestEvidence<'_>) -> Vec<Finding> {
    let mut by_kind: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for (host, record) in seen.test.trials.iter().flat_map(|trial| &trial.hosts) {
        let devices = seen.devices(host);
        let is_of_test = |one: &&CounterBreak| one.of.is_empty() || devices.contains(&one.of.as_str());
        for CounterBreak { of, fell } in record.breaks.iter().filter(is_of_test) {
            let (id, words) = match (fell.as_slice(), of.as_str()) {
                ([], of) => (INTERFACE_DISAPPEARED, of.to_owned()),
                (fell, "") => (COUNTERS_FELL, fell.join(", ")),
                (fell, of) => (COUNTERS_FELL, format!("{} of {of}", fell.join(", "))),
            };
            by_kind.entry((id, host)).or_default().insert(words);
        }
    }
    let finding = |((id, host), names): ((&str, &str), BTreeSet<String>)| {
        let names = names.into_iter().collect::<Vec<_>>().join("; ");
        let what = if id == COUNTERS_FELL {
            format!("counters fell and were counted anew, so that their growth is too little: {names}")
        } else {
            format!("interfaces of the test disappeared, so that the growth of their counters is too little: {names}")
        };
        // Findings with one short name are told as one, and this host is not in the title of another.
        seen.finding(id, Severity::Remark, format!("note on {host}"), format!("{host}: {what}"))
            .evidence([text_evidence(host, id, names)])
    };
    by_kind.into_iter().map(finding).collect()
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
        let of = |of: &str, fell: &[&str]| CounterBreak {
            of: of.to_owned(),
            fell: fell.iter().map(|counter| (*counter).to_owned()).collect(),
        };
        for (round, trial) in builder.run.tests[0].trials.iter_mut().enumerate() {
            for host in ["client", "target"] {
                let counter = ["tcp_timeouts", "tcp_out_segments"][round];
                trial.hosts.get_mut(host).unwrap().breaks =
                    vec![of("", &[counter]), of("eth0", &[]), of("veth7", &[]), of("veth8", &["dev_rx_bytes"])];
            }
        }
        let analyzed = builder.analyzed();
        let told = |id: &str| -> Vec<&str> {
            analyzed.findings.iter().filter(|found| found.id == id).map(|found| found.title.as_str()).collect()
        };
        let words =
            "counters fell and were counted anew, so that their growth is too little: tcp_out_segments; tcp_timeouts";
        assert_eq!(told(COUNTERS_FELL), [format!("client: {words}"), format!("target: {words}")]);
        let words = "interfaces of the test disappeared, so that the growth of their counters is too little: eth0";
        assert_eq!(told(INTERFACE_DISAPPEARED), [format!("client: {words}"), format!("target: {words}")]);
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
