//! Each new connection waits until the name of the server is looked up.

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::distribution::DNS_TIME,
    units::{Nanos, percent, rounded},
};

use super::FindingRule;
use crate::{
    closed_load::ClosedLoad,
    evidence::{TestEvidence, text_evidence},
};

/// From this share of the time of a load on, name look-ups hold it back.
const HOLDS_BACK: f64 = 0.2;

/// Compares the time of the name look-ups of a closed load with all of its time. The latency of a request does not have them.
pub(crate) struct NameLookup;

impl FindingRule for NameLookup {
    fn id(&self) -> &'static str {
        "name-lookup"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let lookups = seen.distribution(Side::Initiator, DNS_TIME);
        let mean = lookups.mean().map(|mean| Nanos(rounded(mean)));
        let Some((mean, load)) = mean.zip(ClosedLoad::of(seen)) else { return Vec::new() };
        let Some(share) = load.share_of(mean, load.connects).filter(|share| *share >= HOLDS_BACK) else {
            return Vec::new();
        };
        let from = &seen.test.from;
        let title = format!(
            "{from} looks up the name of the server for new connections, which takes {mean} each time and {} of the time of this load",
            percent(share)
        );
        let slowest = lookups.quantile(0.99).map(|p99| text_evidence(from, format!("{DNS_TIME} p99"), Nanos(p99)));
        let evidence = [text_evidence(from, DNS_TIME, mean)];
        let next = seen.repeat_test_command("--dns once").map(NextStep::new);
        let expected =
            "be faster by that much; a name server that is nearer, or a cache on this host, helps all programs";
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "name lookup", title)
                .evidence(evidence.into_iter().chain(slowest))
                .explains(Some(share))
                .next(next.map(|next| next.on(from).expected(expected))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        Histogram,
        names::{count, distribution::SERVICE_TIME},
    };

    use super::*;
    use crate::run_builder::RunBuilder;

    /// Ten connections with a hundred requests each in a second; so many of all begin with a look-up of 6 ms.
    fn with_lookups(n: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 10);
        builder.run.command = "fathom http http://web/ --dns connection".to_owned();
        let n_requests = builder.run.tests[0].trials[0].records["client"].totals[count::REQUESTS];
        builder.total("client", count::CONNECTIONS, 10 + n_requests * n / 1_000);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        for (name, time, n) in [(DNS_TIME, 6, n), (SERVICE_TIME, 1, 1_000)] {
            let mut times = Histogram::new();
            times.record_n(Nanos::from_millis(time).0, n);
            record.distributions.insert(name.to_owned(), times);
        }
        builder
    }

    #[test]
    fn name_lookups_that_take_most_of_the_time_of_a_load_are_told() {
        assert_eq!(with_lookups(0).finding("name-lookup"), None);
        assert_eq!(with_lookups(200).finding("name-lookup"), None, "12 % of the time");
        let finding = with_lookups(1_000).finding("name-lookup").unwrap();
        assert_eq!(finding.explains.map(|share| (share * 100.0).round()), Some(60.0));
        assert_eq!(finding.next.unwrap().command, "fathom http http://web/ --dns once");
    }
}
