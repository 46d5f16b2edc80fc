//! The effect of one option, from tests that measured several values of it.

use std::collections::BTreeSet;

use fathom_model::{Bottleneck, Finding, Severity, Summary, run::TestRun, units::Bytes};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, text_evidence},
    summaries::main_rate,
};

/// A value within this share of the best one counts as equal. Rounds of the same test differ by as much.
const AS_GOOD: f64 = 0.95;
/// The option matters if the value grows by at least this factor over the whole scan.
const MATTERS: f64 = 1.2;
/// If the last step gains at least this share of what it adds, there is no plateau yet.
const STILL_GROWS: f64 = 0.5;

/// Two points show a difference, but not where it levels off.
const POINTS_MIN: usize = 3;

/// Compares tests of one kind between the same hosts that differ in a single option.
pub(crate) struct OptionScan;

impl FindingRule for OptionScan {
    fn id(&self) -> &'static str {
        "scan"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let options: BTreeSet<&str> =
            seen.run.tests.iter().flat_map(|test| test.options.0.keys().map(String::as_str)).collect();
        options.into_iter().filter_map(|option| self.compare_values(seen, option)).collect()
    }
}

/// A value of the option with the result of its test.
struct ScanPoint<'a> {
    text: String,
    at: f64,
    test: &'a TestRun,
    value: &'a Summary,
    mean: f64,
}

impl OptionScan {
    /// Returns the finding for one option. It is reported with the last of the tests.
    fn compare_values(&self, seen: &TestEvidence<'_>, option: &str) -> Option<Finding> {
        let points = points(seen, option);
        let (first, last) = (points.first()?, points.last()?);
        if points.len() < POINTS_MIN || !std::ptr::eq(last.test, seen.test) {
            return None;
        }
        let best = points.iter().max_by(|a, b| a.mean.total_cmp(&b.mean))?;
        let knee = points.iter().find(|point| point.mean >= AS_GOOD * best.mean)?;
        let what = &best.value.metric.title;
        let shown =
            |point: &ScanPoint<'_>| format!("{} at {option}={}", point.value.metric.show(point.mean), point.text);
        let grows = best.mean >= MATTERS * first.mean;
        let title = match (grows, option == "flows") {
            (false, true) => format!(
                "{} carries as much as {}: what limits {what} is shared by all flows ({})",
                flows(first),
                flows(last),
                shown(best)
            ),
            (true, true) => format!(
                "{what} grows with the flows from {} to {}, {}: a single flow has a limit of its own{}",
                shown(first),
                shown(best),
                plateau_text(&points, knee),
                bottleneck_text(first)
            ),
            (_, false) => format!("{what} is best with {}, {}", shown(best), plateau_text(&points, knee)),
        };
        let proof = |point: &ScanPoint<'_>| {
            text_evidence(
                &seen.test.from,
                format!("{} at {option}={}", point.value.metric.name, point.text),
                point.value.metric.show(point.mean),
            )
        };
        Some(
            seen.finding(self.id(), Severity::Remark, format!("knee at {}", knee.text), title)
                .tests(points.iter().map(|point| point.test.name.clone()))
                .evidence(points.iter().map(proof)),
        )
    }
}

/// Returns the tests that differ from this one only in this option, sorted by its value.
fn points<'a>(seen: &TestEvidence<'a>, option: &str) -> Vec<ScanPoint<'a>> {
    let others = |test: &TestRun| {
        let mut options = test.options.clone();
        options.0.remove(option);
        options
    };
    let here = others(seen.test);
    let is_like = |test: &&TestRun| {
        let ends = |test: &TestRun| (test.kind.clone(), test.from.clone(), test.to.clone());
        // Tests of several paths are compared with each other, and a sweep has a curve of each path.
        test.path.is_none() && ends(test) == ends(seen.test) && others(test) == here
    };
    let mut points: Vec<ScanPoint<'a>> = (seen.run.tests.iter().filter(is_like))
        .filter_map(|test| {
            let (text, value) = (test.options.text(option)?, main_rate(test)?);
            // A bare number also parses as a volume in bytes, so one parser serves counts and sizes.
            let at = fathom_model::units::approximate(text.parse::<Bytes>().ok()?.0);
            Some(ScanPoint { at, test, value, mean: value.value?, text })
        })
        .collect();
    points.sort_by(|a, b| a.at.total_cmp(&b.at));
    points
}

fn flows(point: &ScanPoint<'_>) -> String {
    if point.text == "1" { "one flow".to_owned() } else { format!("{} flows", point.text) }
}

/// Describes where the value levels off, or that it does not.
fn plateau_text(points: &[ScanPoint<'_>], knee: &ScanPoint<'_>) -> String {
    let [.., before, last] = points else { return String::new() };
    let gained = last.mean / before.mean - 1.0;
    let added = last.at / before.at - 1.0;
    if std::ptr::eq(knee, last) && gained >= STILL_GROWS * added {
        return "and still grows there".to_owned();
    }
    format!("and within 5 % of it from {} on", knee.text)
}

/// Returns the most frequent bottleneck of a test's connections, if most agree.
fn bottleneck_text(point: &ScanPoint<'_>) -> String {
    let flows = &point.test.flows;
    let held = |by: Bottleneck| flows.iter().filter(|flow| flow.held_by == by).count();
    let most = flows.iter().map(|flow| flow.held_by).max_by_key(|by| held(*by));
    most.map_or(String::new(), |by| format!(" ({})", by.short()))
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    fn scanned(option: &str, results: &[(&str, u64)]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        for (value, rate) in results {
            builder.tcp_stream(&[*rate, *rate]);
            let test = builder.run.tests.last_mut().unwrap();
            test.options.set(option, *value);
            test.name = format!("{option}={value}");
        }
        builder
    }

    #[test]
    fn flows_that_add_up_are_each_held_back_by_themselves() {
        let builder = scanned("flows", &[("1", 1_000), ("2", 1_980), ("4", 3_000), ("8", 3_020)]);
        let finding = builder.finding("scan").unwrap();
        assert_eq!(finding.short, "knee at 4");
        assert!(finding.title.contains("a single flow has a limit of its own"), "{}", finding.title);
        assert_eq!((finding.tests.len(), finding.evidence.len()), (4, 4));
    }

    #[test]
    fn flows_that_add_nothing_share_their_limit() {
        let title = scanned("flows", &[("1", 1_000), ("8", 1_010), ("2", 990)]).finding("scan").unwrap().title;
        assert!(title.starts_with("one flow carries as much as 8 flows"), "{title}");
    }

    #[test]
    fn a_scan_that_ends_while_it_grows_says_so() {
        let title = scanned("flows", &[("1", 1_000), ("2", 2_000), ("4", 3_900)]).finding("scan").unwrap().title;
        assert!(title.contains("still grows there"), "{title}");
    }

    #[test]
    fn of_another_option_the_best_value_is_told() {
        let builder = scanned("write", &[("16KiB", 1_000), ("1MiB", 2_000), ("256KiB", 2_200)]);
        let finding = builder.finding("scan").unwrap();
        assert!(finding.title.contains("at write=256KiB"), "{}", finding.title);
        assert_eq!(finding.short, "knee at 256KiB");
    }

    #[test]
    fn one_test_or_two_are_no_scan() {
        assert_eq!(scanned("flows", &[("1", 1_000)]).finding("scan"), None);
        assert_eq!(scanned("flows", &[("1", 1_000), ("32", 20_000)]).finding("scan"), None);
    }
}
