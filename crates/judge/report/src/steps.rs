//! What users did, step by step: picked and put into words, the same in text and HTML.

use fathom_model::{
    Example, JudgedPromise, StepKind, StepSummary, Summary, TestRun, UsersSummary,
    finding::PromiseOutcome,
    units::{grouped, percent, significant},
};

use crate::view::{self, MISSING, RowMark};

/// What stands before the name of a transaction.
pub(crate) const TRANSACTION: &str = "Σ";
/// What that means, for those who see it for the first time.
pub(crate) const TRANSACTION_WORDS: &str =
    "Σ  a transaction: its steps together, without what users think between them";

/// The quantiles of a step that are shown, by the names of their metrics.
pub(crate) const TIMES: [(&str, &str); 5] = [
    ("p50", "time_ns_p50"),
    ("p90", "time_ns_p90"),
    ("p99", "time_ns_p99"),
    ("p99.9", "time_ns_p999"),
    ("max", "time_ns_max"),
];

/// A value of a step as a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepCell {
    /// The value, or why there is none as a dash.
    pub(crate) text: String,
    /// The 95 % interval.
    pub(crate) interval: String,
    /// Whether it comes from fewer samples than it needs.
    pub(crate) few: bool,
}

/// A promise as it stands in a table.
#[derive(Debug, Clone)]
pub(crate) struct PromiseCell<'a> {
    /// As it was written.
    pub(crate) text: &'a str,
    /// The value that it is about.
    pub(crate) summary: Option<&'a Summary>,
    /// `ok`, `✗`, `open`.
    pub(crate) word: &'static str,
    /// The distance to the bound: `20 %`, `−50 %`; `63 ×` for a value that many times it.
    pub(crate) margin: String,
    /// The same as a number.
    pub(crate) margin_ratio: Option<f64>,
    /// How it is to be looked at.
    pub(crate) mark: RowMark,
    /// Why it was not kept.
    pub(crate) reason: Option<&'a str>,
}

impl PromiseCell<'_> {
    /// The value that it is about, as people read it.
    pub(crate) fn value(&self) -> String {
        let value = self.summary.and_then(|summary| Some(view::show(&summary.metric, summary.value?)));
        value.unwrap_or_else(|| MISSING.to_owned())
    }

    /// Why it could not be judged, without saying again what was promised; what was broken is plain from the numbers.
    pub(crate) fn short_reason(&self) -> &str {
        let reason = self.reason.filter(|_| self.mark == RowMark::Open).unwrap_or_default();
        reason.split_once(&format!("{}: ", self.text)).map_or(reason, |(_, why)| why)
    }
}

/// A step, or all of them together, as a line.
#[derive(Debug)]
pub(crate) struct StepLine<'a> {
    /// The name, with the sign of a transaction.
    pub(crate) name: String,
    /// What it is; nothing for all steps together.
    pub(crate) kind: Option<StepKind>,
    /// How often it was reached.
    pub(crate) reached: String,
    /// Of the visits that began.
    pub(crate) share: String,
    /// The share that failed.
    pub(crate) errors: StepCell,
    /// The quantiles in the order of [`TIMES`].
    pub(crate) times: Vec<StepCell>,
    /// What was promised.
    pub(crate) promises: Vec<PromiseCell<'a>>,
}

/// One cause of one step.
#[derive(Debug)]
pub(crate) struct StepErrorCause<'a> {
    /// The step.
    pub(crate) step: &'a str,
    /// The cause.
    pub(crate) cause: &'a str,
    /// How often.
    pub(crate) n: u64,
    /// A request and its answer.
    pub(crate) example: Option<&'a Example>,
}

fn named<'a>(summaries: &'a [Summary], name: &str) -> Option<&'a Summary> {
    summaries.iter().find(|summary| summary.metric.name == name)
}

fn cell(summary: Option<&Summary>) -> StepCell {
    let known = summary.and_then(|summary| Some((summary, summary.value?)));
    let Some((summary, value)) = known else {
        return StepCell { text: MISSING.to_owned(), interval: String::new(), few: false };
    };
    let few = view::is_too_few(summary);
    // How many rounds there were stands above the table; here it would only widen every column.
    let interval = if summary.is_vague() { view::NOT_KNOWN.to_owned() } else { view::interval(summary) };
    StepCell { text: summary.metric.show(value), interval, few }
}

/// A judged promise in words, with the value that it is about among those given.
pub(crate) fn promised<'a>(
    promise: &'a JudgedPromise,
    mut among: impl Iterator<Item = &'a Summary>,
) -> PromiseCell<'a> {
    let (word, mark) = match promise.outcome {
        PromiseOutcome::Kept => ("ok", RowMark::Kept),
        PromiseOutcome::Broken => ("✗", RowMark::Broken),
        PromiseOutcome::Open => ("open", RowMark::Open),
    };
    let margin = |margin: f64| match margin {
        // Far from a bound, how many times it the value is says more than a percentage.
        beyond if beyond < -1.0 => format!("{} ×", significant(1.0 - beyond)),
        beyond if beyond < 0.0 => format!("−{}", percent(-beyond)),
        much if much > 1.0 => format!("{} ×", significant(1.0 + much)),
        room => percent(room),
    };
    PromiseCell {
        text: &promise.text,
        summary: among.find(|summary| promise.metric.as_deref() == Some(&*summary.metric.name)),
        word,
        margin: promise.margin.map(margin).unwrap_or_default(),
        margin_ratio: promise.margin,
        mark,
        reason: promise.reason.as_deref(),
    }
}

/// What was promised of all steps together; it may be about what the test measures beside them.
fn script_promises<'a>(test: &'a TestRun, users: &'a UsersSummary) -> Vec<PromiseCell<'a>> {
    let among = users.summaries.iter().chain(&test.summaries);
    users.promises.iter().map(|promise| promised(promise, among.clone())).collect()
}

fn step_promises(step: &StepSummary) -> Vec<PromiseCell<'_>> {
    step.promises.iter().map(|promise| promised(promise, step.summaries.iter())).collect()
}

/// Every promise of a script with its step: first what was promised of all steps together.
pub(crate) fn promises(test: &TestRun) -> Vec<(Option<&StepSummary>, PromiseCell<'_>)> {
    let Some(users) = &test.users else { return Vec::new() };
    let of_all = script_promises(test, users).into_iter().map(|promise| (None, promise));
    let of_steps =
        users.steps.iter().flat_map(|step| step_promises(step).into_iter().map(move |promise| (Some(step), promise)));
    of_all.chain(of_steps).collect()
}

/// The name of a step with the sign of what it is.
pub(crate) fn name(step: &StepSummary) -> String {
    match step.kind {
        StepKind::Step => step.name.clone(),
        StepKind::Transaction => format!("{TRANSACTION} {}", step.name),
    }
}

/// A line per step in the order of the script, and one for all of them together.
pub(crate) fn step_lines<'a>(test: &'a TestRun, users: &'a UsersSummary) -> Vec<StepLine<'a>> {
    let mut lines: Vec<StepLine<'_>> = users.steps.iter().map(step_line).collect();
    if users.steps.len() > 1 || !users.promises.is_empty() {
        lines.push(all_steps_line(test, users));
    }
    lines
}

fn step_line(step: &StepSummary) -> StepLine<'_> {
    StepLine {
        name: name(step),
        kind: Some(step.kind),
        reached: grouped(step.n_reached),
        share: step.reached_ratio.map_or(MISSING.to_owned(), percent),
        errors: cell(named(&step.summaries, "errors_ratio")),
        times: TIMES.iter().map(|(_, name)| cell(named(&step.summaries, name))).collect(),
        promises: step_promises(step),
    }
}

/// All steps together; of what is reached there is no whole to take a share of.
fn all_steps_line<'a>(test: &'a TestRun, users: &'a UsersSummary) -> StepLine<'a> {
    let single = users.steps.iter().filter(|step| step.kind == StepKind::Step);
    StepLine {
        name: "all steps".to_owned(),
        kind: None,
        reached: grouped(single.map(|step| step.n_reached).sum()),
        share: String::new(),
        errors: cell(named(&users.summaries, "errors_ratio")),
        times: TIMES.iter().map(|(_, name)| cell(named(&users.summaries, name))).collect(),
        promises: script_promises(test, users),
    }
}

/// Why steps failed, the most frequent cause first; those of transactions are the causes of their steps.
pub(crate) fn failures(users: &UsersSummary) -> Vec<StepErrorCause<'_>> {
    let of_step = |step: &StepSummary| step.kind == StepKind::Step;
    let mut all: Vec<StepErrorCause<'_>> = Vec::new();
    for step in users.steps.iter().filter(|step| of_step(step)) {
        for (cause, n) in &step.errors {
            let example = step.examples.iter().find(|example| example.cause == *cause);
            all.push(StepErrorCause { step: &step.name, cause, n: *n, example });
        }
    }
    all.sort_by_key(|failure| std::cmp::Reverse(failure.n));
    all
}

/// An example on one line: what was asked, and the first line of the answer.
pub(crate) fn shortened(example: &Example) -> String {
    let first = |text: &str| text.lines().next().unwrap_or_default().trim().to_owned();
    let answer = first(&example.answer);
    let answer = if answer.is_empty() { "no answer" } else { &answer };
    format!("{}  →  {answer}", first(&example.request).trim_end_matches(" HTTP/1.1"))
}

/// Who came and what became of them: `24 users came, at most 8 at once; 2,178 visits to the end (740 /s), 12 given up (0.55 %)`.
pub(crate) fn users_sentence(users: &UsersSummary) -> String {
    let value = |name: &str| named(&users.summaries, name).and_then(|s| Some(s.metric.show(s.value?)));
    let aside = |name: &str| value(name).map(|value| format!(" ({value})")).unwrap_or_default();
    format!(
        "{} {} came, at most {} at once; {} {} to the end{}, {} given up{}",
        grouped(users.n_started),
        if users.n_started == 1 { "user" } else { "users" },
        grouped(users.n_most),
        grouped(users.n_finished),
        if users.n_finished == 1 { "visit" } else { "visits" },
        aside("finished_per_sec"),
        grouped(users.n_gave_up),
        if users.n_gave_up > 0 { aside("gave_up_ratio") } else { String::new() },
    )
}

/// Which quantiles come from too few samples, in a sentence.
pub(crate) fn too_few_sentence(lines: &[StepLine<'_>], shown: &[usize]) -> Option<String> {
    let of_line = |line: &StepLine<'_>| {
        let titles: Vec<&str> = shown.iter().filter(|c| line.times[**c].few).map(|c| TIMES[*c].0).collect();
        (!titles.is_empty()).then(|| format!("{} of {}", titles.join(", "), line.name))
    };
    let all: Vec<String> = lines.iter().filter_map(of_line).collect();
    (!all.is_empty()).then(|| format!("{}for {}", view::TOO_FEW, all.join("; ")))
}

#[cfg(test)]
mod tests {
    use fathom_model::units::Nanos;

    use super::*;

    #[test]
    fn an_example_is_shortened_to_what_was_asked_and_what_came() {
        let example = |answer: &str| Example {
            cause: String::new(),
            at_ns: Nanos::ZERO,
            request: "POST /login HTTP/1.1\r\nHost: shop\r\n\r\nname=a".to_owned(),
            answer: answer.to_owned(),
        };
        assert_eq!(shortened(&example("HTTP/1.1 500 Oops\r\n\r\nstack")), "POST /login  →  HTTP/1.1 500 Oops");
        assert_eq!(shortened(&example("")), "POST /login  →  no answer");
    }

    #[test]
    fn a_margin_has_its_sign_and_a_bound_of_nothing_has_none() {
        let promise = |margin| JudgedPromise {
            text: "p99 < 300ms".to_owned(),
            metric: None,
            bound: None,
            margin,
            outcome: PromiseOutcome::Broken,
            reason: None,
        };
        assert_eq!(promised(&promise(Some(-0.5)), [].iter()).margin, "−50 %");
        assert_eq!(promised(&promise(Some(0.2)), [].iter()).margin, "20 %");
        assert_eq!(promised(&promise(Some(-62.7)), [].iter()).margin, "63.7 ×");
        assert_eq!(promised(&promise(Some(741.0)), [].iter()).margin, "742 ×");
        assert_eq!(promised(&promise(None), [].iter()).margin, "");
    }
}
