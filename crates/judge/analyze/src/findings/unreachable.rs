//! A host did not answer any probe.

use std::collections::BTreeSet;

use fathom_model::{
    Finding, NextStep, Record, Severity,
    names::count,
    probe::ProbeRecord,
    units::{Nanos, counted, grouped},
};

use super::{FindingRule, nothing_done::NOTHING_DONE_BY};
use crate::evidence::{TestEvidence, has_answers, text_evidence};

/// The time for which a Linux router tries to resolve a host's address before it reports the host as unreachable.
const ROUTER_ASKS: Nanos = Nanos::from_secs(3);

/// Reports that a host answered no probe, and the error messages of other hosts about it.
pub(crate) struct Unreachable;

/// The host that sent probes and the one that they went to.
fn ends<'a>((host, _, probe): &(&'a str, &'a Record, &'a ProbeRecord)) -> (&'a str, &'a str) {
    (host, &probe.target)
}

impl FindingRule for Unreachable {
    fn id(&self) -> &'static str {
        "unreachable"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        NOTHING_DONE_BY
    }

    fn stands_beside(&self, _: &str, seen: &TestEvidence<'_>) -> bool {
        // Between other pairs of hosts, something passed: what kept these from it is not known to keep all.
        !seen.test.links.is_empty() && !seen.got_nothing_through()
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let probes: Vec<_> =
            seen.probes().filter(|(_, record, _)| record.totals.contains_key(count::RECEIVED)).collect();
        let answered: BTreeSet<_> = probes.iter().filter(|of| has_answers(of.1)).map(ends).collect();
        let silent: Vec<_> = probes.iter().filter(|of| !answered.contains(&ends(of))).collect();
        let Some((host, record, probe)) = silent.first().copied() else { return Vec::new() };
        let n_sent = record.totals.get(count::SENT).copied().unwrap_or(0);
        let most = record.errors.iter().max_by_key(|(_, n)| **n).map(|(complaint, _)| complaint.to_string());
        let timeout = seen.test.options.span("timeout").unwrap_or(Nanos::from_secs(1));
        let nothing = if timeout > ROUTER_ASKS {
            "nothing came back at all"
        } else {
            "nothing came back in time (a router reports a missing host after about 3 s: try --timeout 4s)"
        };
        let why = most.as_deref().unwrap_or(nothing);
        let next = NextStep::new(format!("fathom probe {} --test route", probe.target));
        let (of_pairs, next) = match silent.iter().map(|of| ends(of)).collect::<BTreeSet<_>>().len() {
            _ if seen.test.links.is_empty() => (String::new(), next),
            1 => (format!(" of {host}"), next.on(host)),
            n => {
                (format!(" of {host}, and {} got no answer either", counted(n as u64 - 1, "other pair")), next.on(host))
            }
        };
        let title = format!("{} answered none of {} probes{of_pairs}: {why}", probe.target, grouped(n_sent));
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "unreachable", title)
                .evidence([text_evidence(host, count::RECEIVED.to_owned(), format!("0 of {}", grouped(n_sent)))])
                .next(next.expected("show how far packets come")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::probe::ProbeRecord;

    use crate::run_builder::RunBuilder;

    #[test]
    fn a_host_that_answers_once_is_there() {
        for (answered, is_there) in [(0_u32, false), (1, true), (10, true)] {
            let mut builder = RunBuilder::new();
            builder.probed(
                (10, answered.into()),
                ProbeRecord { target: "192.0.2.7".to_owned(), ..ProbeRecord::default() },
            );
            let found = builder.finding("unreachable");
            assert_eq!(found.is_none(), is_there, "{answered} answers");
            let interval = builder.analyzed().tests[0].summaries[0].confidence.unwrap();
            assert!(interval.low <= 1.0 - f64::from(answered) / 10.0 && interval.high - interval.low > 0.2);
            let title = found.map(|finding| finding.title);
            assert!(title.is_none_or(|title| title.starts_with("192.0.2.7 answered none of 10 probes: nothing came")));
        }
    }

    #[test]
    fn of_several_pairs_those_without_an_answer_are_counted() {
        let title = |answered: [u64; 3]| {
            let mut builder = RunBuilder::new();
            let pairs = [("a", "b"), ("b", "c"), ("a", "c")];
            let pair = |((from, to), n)| (from, to, (10, n), ProbeRecord::default());
            builder.probed_by(&pairs.into_iter().zip(answered).map(pair).collect::<Vec<_>>());
            builder.finding("unreachable").map(|finding| finding.title)
        };
        assert_eq!(title([10, 1, 9]), None);
        let one = title([10, 0, 9]).unwrap();
        assert!(one.starts_with("address of c answered none of 10 probes of b: nothing"), "{one}");
        let two = title([10, 0, 0]).unwrap();
        assert!(two.contains("probes of b, and 1 other pair got no answer either: nothing"), "{two}");
    }

    #[test]
    fn silence_is_told_as_such_only_after_a_router_had_the_time_to_complain() {
        let title = |timeout: &str| {
            let mut builder = RunBuilder::new();
            builder.probed((10, 0), ProbeRecord { target: "192.0.2.7".to_owned(), ..ProbeRecord::default() });
            builder.run.tests[0].options.set("timeout", timeout);
            builder.finding("unreachable").unwrap().title
        };
        assert!(title("1s").ends_with(": try --timeout 4s)"));
        assert!(title("4s").ends_with("nothing came back at all"));
    }
}
