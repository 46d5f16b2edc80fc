//! A stream is faster than the ideal of its window, so the ideal is wrong.

use fathom_model::{Finding, LimitKind, Severity, units::percent};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// A goodput above the ideal by more than this is no noise of it.
const NOISE: f64 = 1.1;
/// An ideal of at least this share of the bandwidth is the path's; a smaller one is that of the window and the round trip.
const OF_PATH: f64 = 0.9;

/// Compares the goodput with the ideal (RFC 6349 section 3.3), which follows from a bandwidth and a round trip that were given or measured
/// before. It is a remark about the other values of the test, which compare with the ideal too.
pub(crate) struct IdealExceeded;

impl FindingRule for IdealExceeded {
    fn id(&self) -> &'static str {
        "ideal-exceeded"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let ideal = seen.test.limits.iter().find(|limit| limit.kind == LimitKind::Ideal);
        let Some((ideal, used)) = ideal.and_then(|ideal| Some((ideal, ideal.used.filter(|used| *used > NOISE)?)))
        else {
            return Vec::new();
        };
        let options = &seen.test.options;
        let Some((bandwidth, baseline)) = options.bit_rate("bandwidth").zip(options.span("baseline-rtt")) else {
            return Vec::new();
        };
        let (why, evidence) = if ideal.value >= OF_PATH * bandwidth.get() {
            let why = format!("the path is faster than the assumed bandwidth of {bandwidth} (--bandwidth)");
            (why, ("bandwidth", bandwidth.to_string()))
        } else {
            let why = format!("round trips are shorter than the assumed {baseline} (--baseline-rtt)");
            (why, ("baseline-rtt", baseline.to_string()))
        };
        let title = format!("goodput is {} of the ideal: {why}", percent(used));
        vec![seen.finding(self.id(), Severity::Remark, "above ideal", title).evidence([text_evidence(
            &seen.test.from,
            evidence.0,
            evidence.1,
        )])]
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_goodput_above_the_ideal_names_the_assumption_that_is_wrong() {
        let title = |ideal: u64, bandwidth: &str| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_250_000]);
            builder.ideal(ideal);
            builder.run.tests[0].options.set("bandwidth", bandwidth);
            builder.run.tests[0].options.set("baseline-rtt", "20ms");
            builder.finding("ideal-exceeded").map(|finding| (finding.title, finding.evidence[0].value.clone()))
        };
        let (of_path, bandwidth) = title(5_000_000, "5.2M").unwrap();
        assert!(of_path.starts_with("goodput is 200 % of the ideal: the path is faster"), "{of_path}");
        assert_eq!(bandwidth, "5.20 Mbit/s");
        assert!(title(5_000_000, "100M").unwrap().0.contains("round trips are shorter"));
        assert_eq!(title(9_600_000, "10M"), None, "the ideal varies");
    }
}
