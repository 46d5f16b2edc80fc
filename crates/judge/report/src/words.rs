//! The wording of values, the same in all formats. Values are selected and formatted here, not computed.

use fathom_model::{
    Benchmark, Confidence, Derivation, Estimate, Finding, Limit, LimitKind, Metric, ProofOutcome, Run, Severity,
    StepKind, StepSummary, Summary, TestRun, Unit,
    finding::PromiseOutcome,
    metric::Better,
    search::LoadCurve,
    units::{grouped, percent, rounded, significant},
};

/// The text of a cell without a value.
pub(crate) const MISSING: &str = "–";
/// The text for an interval that does not even determine the order of magnitude.
pub(crate) const NOT_KNOWN: &str = "not known";
/// The start of a note that several values of a test can have.
pub(crate) const TOO_FEW: &str = "too few samples ";
/// The number of quantiles that fit on the line below a headline.
const QUANTILES_MAX: usize = 4;
/// The quantiles of a step in the report, with the names of their metrics.
pub(crate) const TIMES: [(&str, &str); 5] = [
    ("p50", "time_ns_p50"),
    ("p90", "time_ns_p90"),
    ("p99", "time_ns_p99"),
    ("p99.9", "time_ns_p999"),
    ("max", "time_ns_max"),
];

/// The meaning of a text, which decides its color.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    #[default]
    Plain,
    /// A promise was kept.
    Kept,
    /// A promise was broken.
    Broken,
    /// A promise of which it is not certain whether it was kept.
    Open,
    Missing,
}

/// A formatted value with its interval, and its limit if it has one.
#[derive(Debug, Default)]
pub(crate) struct ValueWords {
    pub(crate) result: String,
    /// The 95 % interval.
    pub(crate) interval: String,
    pub(crate) limit: String,
    /// The used share of the limit, or whether the promise was kept.
    pub(crate) used: String,
    /// The mark of `used`.
    pub(crate) mark: Mark,
}

/// Returns the word for the outcome of an intervention, with its mark.
pub(crate) const fn proof(outcome: ProofOutcome) -> (&'static str, Mark) {
    match outcome {
        ProofOutcome::Proven => ("proven", Mark::Kept),
        ProofOutcome::Refuted => ("refuted", Mark::Plain),
        ProofOutcome::Effect => ("shown", Mark::Plain),
        ProofOutcome::NoEffect => ("no effect", Mark::Plain),
        ProofOutcome::Open => ("not clear", Mark::Open),
    }
}

/// Returns the word for the outcome of a promise, with its mark.
pub(crate) const fn promise(outcome: PromiseOutcome) -> (&'static str, Mark) {
    match outcome {
        PromiseOutcome::Kept => ("ok", Mark::Kept),
        PromiseOutcome::Broken => ("✗", Mark::Broken),
        PromiseOutcome::Open => ("unclear", Mark::Open),
    }
}

/// Returns what a promise about a test comes to, as the verdict judges it.
///
/// A number that cannot be trusted leaves it open, and a disturbed test breaks none. That nothing arrived is certain.
pub(crate) fn trusted(run: &Run, test: &TestRun, outcome: PromiseOutcome) -> PromiseOutcome {
    outcome.beside(run.spoiler_of(test))
}

/// Formats the value of a summary. Its name is omitted if `title` is that name.
pub(crate) fn value_words(run: &Run, test: &TestRun, summary: &Summary, title: &str) -> ValueWords {
    let limit = limit_of(test, summary);
    let is_named = title == summary.metric.title;
    // A value with a promise is shown even if it has too few samples.
    if is_named && limit.is_none() && is_too_few(summary) {
        return ValueWords { result: MISSING.to_owned(), ..ValueWords::default() };
    }
    let (used, mark) = limit.map_or((String::new(), Mark::Plain), |limit| used(run, test, limit, summary));
    ValueWords {
        result: match summary.value {
            None => format!("{MISSING}  {}", summary.note.as_deref().unwrap_or("not measured")),
            Some(value) if is_named => show(&summary.metric, value),
            Some(value) => headline_value(&summary.metric, value),
        },
        interval: limit_bounds(test, summary).unwrap_or_else(|| interval(summary)),
        limit: limit.map(|limit| limit.text.clone()).unwrap_or_default(),
        used,
        mark: if summary.value.is_none() { Mark::Missing } else { mark },
    }
}

/// Returns the limit of a value.
pub(crate) fn limit_of<'a>(test: &'a TestRun, summary: &Summary) -> Option<&'a Limit> {
    test.limits.iter().find(|limit| limit.metric == summary.metric.name)
}

fn used(run: &Run, test: &TestRun, limit: &Limit, summary: &Summary) -> (String, Mark) {
    if limit.kind != LimitKind::Promise {
        return (limit.used.map(used_share).unwrap_or_default(), Mark::Plain);
    }
    let Some(value) = summary.value else { return (MISSING.to_owned(), Mark::Missing) };
    let (word, mark) = promise(trusted(run, test, outcome(limit, summary, value)));
    (word.to_owned(), mark)
}

/// Formats the used share of a limit. The rest of a percent is noise.
pub(crate) fn used_share(used: f64) -> String {
    percent(if (0.995..1.0).contains(&used) { 1.0 } else { used })
}

/// Judges a value by the bound of a promise: it is kept or broken if the whole interval says so.
fn outcome(limit: &Limit, summary: &Summary, value: f64) -> PromiseOutcome {
    let (low, high) = summary.confidence.map_or((value, value), |c| (c.low, c.high));
    // The good and the bad end of the interval, as distances from the bound.
    let (best, worst) = match summary.metric.better {
        Better::Higher => (high - limit.value, low - limit.value),
        Better::Lower | Better::Neither => (limit.value - low, limit.value - high),
    };
    match (worst >= 0.0, best < 0.0) {
        (true, _) => PromiseOutcome::Kept,
        (_, true) => PromiseOutcome::Broken,
        _ => PromiseOutcome::Open,
    }
}

/// Returns the bounds of a search limit that is not certain: `1.96 – 2.97`.
fn limit_bounds(test: &TestRun, summary: &Summary) -> Option<String> {
    let curve = test.curve.as_ref().filter(|_| summary.metric.from == Derivation::Limit)?;
    if summary.confidence.is_some() {
        return None;
    }
    let show = |rate: f64| summary.metric.show(rate);
    match (curve.kept.map(show), curve.broken.map(show)) {
        (Some(low), Some(high)) => Some(range(&low, &high, &low)),
        (Some(low), None) => Some(format!("≥ {}", split(&low).0)),
        (None, Some(high)) => Some(format!("< {high}")),
        (None, None) => None,
    }
}

/// Splits a text into a number and its unit.
fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once(' ').map_or((text, None), |(number, unit)| (number, Some(unit)))
}

/// Formats a range. The units are omitted if they are the same as that of the value next to it.
fn range(low: &str, high: &str, value: &str) -> String {
    // What is below a bound is also below the end of a range, and a range from next to nothing begins at zero.
    let low = if low.starts_with("< ") { "0" } else { low };
    let (high, value) = (high.trim_start_matches("< "), value.trim_start_matches("< "));
    let ((low_number, low_unit), (high_number, high_unit), (_, unit)) = (split(low), split(high), split(value));
    // Zero needs no unit.
    if high_unit == unit && (low == "0" || low_unit == unit) {
        return format!("{low_number} – {high_number}");
    }
    format!("{low} – {high}")
}

/// Formats the interval of a value: `± 0.4 %` if it is symmetric and higher is better, otherwise both ends.
///
/// An interval that does not determine the order of magnitude has no figures, because they would only pretend precision.
pub(crate) fn interval(summary: &Summary) -> String {
    let (Some(value), Some(Confidence { low, high, n_trials, .. })) = (summary.value, summary.confidence) else {
        let alone = summary.value.is_some() && summary.trials.len() == 1;
        return if alone { "one round".to_owned() } else { String::new() };
    };
    if summary.is_vague() {
        return format!("{NOT_KNOWN} from {n_trials} rounds");
    }
    let (below, above) = (value - low, high - value);
    let symmetric = below.min(above) * 2.0 >= below.max(above);
    if summary.metric.better == Better::Higher && symmetric && value > 0.0 && summary.metric.unit != Unit::Ratio {
        return format!("± {}", percent(below.max(above) / value));
    }
    let [shown_low, shown_high, shown] = [low, high, value].map(|value| show(&summary.metric, value));
    range(if low == 0.0 { "0" } else { &shown_low }, &shown_high, &shown)
}

/// Formats a value in its unit. A mean of large counts has no decimals, because they are meaningless.
pub(crate) fn show(metric: &Metric, value: f64) -> String {
    if metric.unit == Unit::Count && value >= 100.0 { grouped(rounded(value)) } else { metric.show(value) }
}

/// Formats a value that is shown without its metric's name. A rate needs no name; other values get theirs.
pub(crate) fn headline_value(metric: &Metric, value: f64) -> String {
    let shown = metric.show(value);
    match metric.from {
        Derivation::Rate { .. } | Derivation::RateOfBoth { .. } => shown,
        // `1.50 k users/s`: the title names the thing that is counted.
        Derivation::Users { .. } if metric.unit == Unit::PerSec => {
            let count = shown.trim_end_matches("/s").trim_end();
            format!("{count} {}/s", metric.title.trim_end_matches("/s"))
        }
        Derivation::Quantile { .. } => format!("{shown} {}", metric.title),
        _ => format!("{} {shown}", metric.title),
    }
}

/// Returns the quantiles of a test's first distribution that have no limit, for display next to the headline.
pub(crate) fn quantiles<'a>(test: &'a TestRun, headline: &Summary) -> Vec<&'a Summary> {
    let of = |summary: &Summary| match &summary.metric.from {
        Derivation::Quantile { distribution, .. } => Some(distribution.clone()),
        _ => None,
    };
    let first = test.summaries.iter().find_map(of);
    let plain = |summary: &&Summary| {
        summary.value.is_some()
            && first.is_some()
            && of(summary) == first
            && summary.metric.name != headline.metric.name
            && limit_of(test, summary).is_none()
    };
    test.summaries.iter().filter(plain).take(QUANTILES_MAX).collect()
}

/// Formats a quantile. One from too few samples is omitted, because it would change with every run; a note says so.
pub(crate) fn quantile_value(summary: &Summary) -> Option<String> {
    let value = summary.metric.show(summary.value?);
    Some(if is_too_few(summary) { MISSING.to_owned() } else { value })
}

/// Returns true if a value comes from fewer samples than it needs.
pub(crate) fn is_too_few(summary: &Summary) -> bool {
    summary.note.as_deref().is_some_and(|note| note.starts_with(TOO_FEW))
}

/// Joins titles. If the words before their last word are the same, they are written once.
pub(crate) fn with_common_start(titles: &[&str]) -> String {
    let start = titles.first().and_then(|title| title.rfind(' ').map(|end| &title[..=end])).unwrap_or_default();
    let rest: Option<Vec<&str>> = titles.iter().map(|title| title.strip_prefix(start)).collect();
    rest.map_or_else(|| titles.join(" · "), |rest| format!("{start}{}", rest.join(" · ")))
}

/// Joins values. A common unit is written once, after the last known value; missing values follow.
pub(crate) fn with_common_unit(values: &[String]) -> String {
    let (known, missing) = values.split_at(values.iter().take_while(|value| *value != MISSING).count());
    let split: Vec<(&str, &str)> = known.iter().filter_map(|value| value.split_once(' ')).collect();
    let together = match split.first() {
        Some((_, unit)) if split.len() == known.len() && split.iter().all(|(_, other)| other == unit) => {
            let numbers: Vec<&str> = split.iter().map(|(number, _)| *number).collect();
            vec![format!("{} {unit}", numbers.join(" · "))]
        }
        _ => known.to_vec(),
    };
    [together.as_slice(), missing].concat().join(" · ")
}

/// Describes the rounds that a test lacks.
pub(crate) fn rounds_missing(run: &Run, test: &TestRun) -> Option<String> {
    // A search makes as many trials as it needs.
    if test.curve.is_some() || test.benchmark.is_some() {
        return None;
    }
    let planned = usize::try_from(run.plan.rounds).unwrap_or(usize::MAX);
    (test.trials.len() < planned).then(|| format!("{} of {planned} rounds", test.trials.len()))
}

/// Returns the finding that a row points at: one of the test's own, or else the first that names the test.
pub(crate) fn finding_of<'a>(run: &'a Run, test: &TestRun) -> Option<&'a Finding> {
    let names = |finding: &&Finding| finding.severity != Severity::Remark && finding.tests.contains(&test.name);
    let own = |finding: &&Finding| names(finding) && test.findings.contains(&finding.id);
    run.findings.iter().find(own).or_else(|| run.findings.iter().find(names))
}

/// Returns the metric of a search's objective.
pub(crate) fn objective_metric<'a>(test: &'a TestRun, curve: &LoadCurve) -> Option<&'a Metric> {
    test.summaries.iter().map(|summary| &summary.metric).find(|metric| metric.name == curve.metric.as_str())
}

/// Returns the objective of a search with the title of its metric: `p99 < 20ms`.
pub(crate) fn objective(test: &TestRun, curve: &LoadCurve) -> String {
    let bound = curve.objective.strip_prefix(curve.metric.as_str());
    match (objective_metric(test, curve), bound) {
        (Some(metric), Some(bound)) => format!("{} {}", metric.title, bound.trim()),
        _ => curve.objective.clone(),
    }
}

/// Returns the tests with benchmarks, in order.
pub(crate) fn benchmarks(run: &Run) -> impl Iterator<Item = (&TestRun, &Benchmark)> {
    run.tests.iter().filter_map(|test| Some((test, test.benchmark.as_ref()?)))
}

/// Returns the name of a step. Transactions get a sign in front.
pub(crate) fn step_name(step: &StepSummary) -> String {
    match step.kind {
        StepKind::Step => step.name.clone(),
        StepKind::Transaction => format!("Σ {}", step.name),
    }
}

/// Formats a factor with its interval: `× 0.62 (0.60 – 0.64)`.
pub(crate) fn factor(of: Estimate) -> String {
    let interval =
        of.confidence.map(|interval| format!(" ({} – {})", significant(interval.low), significant(interval.high)));
    format!("× {}{}", significant(of.value), interval.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use fathom_model::Side;

    use super::*;

    fn summary(unit: Unit, better: Better, (value, low, high): (f64, f64, f64)) -> Summary {
        let from = Derivation::Rate { side: Side::Initiator, counter: "sent".into() };
        let (name, title, source) = ("rate".into(), "rate".into(), "RFC 2544".into());
        Summary {
            metric: Metric { name, title, unit, better, source, from, inapplicable: None },
            value: Some(value),
            confidence: Some(Confidence { low, high, level: 0.95, n_trials: 5 }),
            trials: vec![value; 5],
            n_above: None,
            n_samples: None,
            note: None,
        }
    }

    #[test]
    fn an_interval_is_a_percentage_where_it_is_symmetric_and_both_ends_elsewhere() {
        let cases = [
            (Unit::BitsPerSec, Better::Higher, (9.1e9, 9.06e9, 9.14e9), "± 0.44 %"),
            (Unit::BitsPerSec, Better::Higher, (9.1e9, 8.0e9, 9.2e9), "8.00 – 9.20"),
            (Unit::Nanos, Better::Lower, (48_200.0, 47_900.0, 48_600.0), "47.9 – 48.6"),
            (Unit::Nanos, Better::Lower, (990_000.0, 900_000.0, 1_100_000.0), "900 µs – 1.10 ms"),
            (Unit::Ratio, Better::Lower, (0.0031, 0.0029, 0.0033), "0.29 – 0.33"),
            (Unit::Ratio, Better::Lower, (1.4e-9, 0.0, 2.7e-9), "0 – 0.0001"),
            (Unit::Ratio, Better::Lower, (1e-6, 2e-9, 1.9e-6), "0 – 0.0002"),
        ];
        for (unit, better, values, text) in cases {
            assert_eq!(interval(&summary(unit, better, values)), text);
        }
        let alone =
            Summary { confidence: None, trials: vec![1.0], ..summary(Unit::Count, Better::Higher, (1.0, 1.0, 1.0)) };
        assert_eq!(interval(&alone), "one round");
    }

    #[test]
    fn an_interval_that_says_nothing_is_told_so_without_figures() {
        let vague = |unit, values| interval(&summary(unit, Better::Lower, values));
        // Two rounds with a 99th percentile of 84 µs and 84 ms.
        assert_eq!(vague(Unit::Nanos, (2_656_000.0, 1e-13, 1.8e26)), "not known from 5 rounds");
        assert_eq!(vague(Unit::Nanos, (2e6, 5e5, 1.9e7)), "500 µs – 19.0 ms");
        // Two rounds, one of them with zero: the interval of the mean reaches from zero to fourteen times the mean.
        assert_eq!(vague(Unit::PerSec, (1.0, 0.0, 13.7)), "not known from 5 rounds");
        assert_eq!(vague(Unit::Ratio, (0.5, 0.0, 1.0)), "not known from 5 rounds");
        // A share of at most 3 % is known to be small.
        assert_eq!(vague(Unit::Ratio, (0.001, 0.0, 0.03)), "0 – 3.0");
    }

    #[test]
    fn a_promise_is_kept_or_broken_only_when_the_whole_interval_says_so() {
        let promised = |value: f64| Limit {
            kind: LimitKind::Promise,
            metric: "rate".to_owned(),
            value,
            text: String::new(),
            used: None,
        };
        let rate = summary(Unit::BitsPerSec, Better::Higher, (9.1e9, 9.0e9, 9.2e9));
        let outcomes = [8e9, 9.1e9, 10e9].map(|bound| outcome(&promised(bound), &rate, 9.1e9));
        assert_eq!(outcomes, [PromiseOutcome::Kept, PromiseOutcome::Open, PromiseOutcome::Broken]);
        let no_loss = summary(Unit::Ratio, Better::Lower, (0.0, 0.0, 0.0));
        assert_eq!(outcome(&promised(0.0), &no_loss, 0.0), PromiseOutcome::Kept);
    }

    #[test]
    fn users_are_counted_by_their_name() {
        let from = Derivation::Users { of: fathom_model::metric::UsersValue::Begun };
        let (name, title, source) = ("users_per_sec".into(), "users/s".into(), "docs/methods/steps.md".into());
        let (unit, better) = (Unit::PerSec, Better::Higher);
        let users = Metric { name, title, unit, better, source, from, inapplicable: None };
        assert_eq!(headline_value(&users, 1_498.0), "1.50 k users/s");
        assert_eq!(headline_value(&users, 812.0), "812 users/s");
    }

    #[test]
    fn a_unit_is_written_once_when_all_values_have_it() {
        let join = |values: &[&str]| with_common_unit(&values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>());
        assert_eq!(join(&["0.51 ms", "1.9 ms"]), "0.51 · 1.9 ms");
        assert_eq!(join(&["510 µs", "1.9 ms"]), "510 µs · 1.9 ms");
        assert_eq!(join(&[]), "");
    }
}
