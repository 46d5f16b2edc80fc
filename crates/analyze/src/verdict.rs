//! Whether what was promised was kept; it knows values and promises, not where they come from.

use fathom_model::{Derivation, JudgedPromise, Run, Severity, Summary, Verdict, finding::Outcome, run::TestRun};

use crate::promise::{self, Promise};

/// One promise of a test, judged.
pub(crate) struct Judged<'a> {
    /// The value that it is about, if there is one.
    pub(crate) summary: Option<&'a Summary>,
    /// Whether it was kept.
    pub(crate) outcome: Outcome,
    /// The test, the value and the bound in one line, when it was not kept.
    pub(crate) reason: String,
}

impl Judged<'_> {
    /// The value's name for a list of evidence, with the step that it is of.
    pub(crate) fn counter(&self) -> Option<String> {
        let metric = &self.summary?.metric;
        Some(match &metric.from {
            Derivation::Step { step, .. } => format!("{step} {}", metric.name),
            _ => metric.name.to_string(),
        })
    }
}

/// Every promise of a test, judged by its values alone; those of a script stand behind the others.
pub(crate) fn judged(test: &TestRun) -> Vec<Judged<'_>> {
    let mut all: Vec<Judged<'_>> = test.expect.iter().map(|(name, text)| judge(test, name, text)).collect();
    let Some(users) = &test.users else { return all };
    let of_script = users.summaries.iter().chain(&test.summaries);
    all.extend(users.promises.iter().map(|promise| of_users(promise, of_script.clone())));
    for step in &users.steps {
        all.extend(step.promises.iter().map(|promise| of_users(promise, step.summaries.iter())));
    }
    all
}

/// A promise of a script, which was judged with the steps.
fn of_users<'a>(promise: &JudgedPromise, mut among: impl Iterator<Item = &'a Summary>) -> Judged<'a> {
    let named = |summary: &&Summary| promise.metric.as_deref() == Some(&*summary.metric.name);
    Judged { summary: among.find(named), outcome: promise.outcome, reason: promise.reason.clone().unwrap_or_default() }
}

/// The value of a test that a promise names, with the promise.
pub(crate) fn promised<'a>(test: &'a TestRun, name: &str, written: &str) -> Result<(&'a Summary, Promise), String> {
    let metrics: Vec<_> = test.summaries.iter().map(|summary| summary.metric.clone()).collect();
    let metric = promise::find(&metrics, name).map_err(|error| error.to_string())?;
    let promise = promise::parse(written, metric).map_err(|error| error.to_string())?;
    let summary = test.summaries.iter().find(|summary| summary.metric.name == metric.name);
    summary.map(|summary| (summary, promise)).ok_or_else(|| "it was not measured".to_owned())
}

fn judge<'a>(test: &'a TestRun, name: &str, written: &str) -> Judged<'a> {
    let open = |summary, why: &str| Judged {
        summary,
        outcome: Outcome::Inconclusive,
        reason: format!("{} {name} was promised {written}: {why}", test.name),
    };
    if let Some(why) = &test.unavailable {
        return open(None, why);
    }
    let (summary, promise) = match promised(test, name, written) {
        Ok(found) => found,
        Err(why) => return open(None, &why),
    };
    let Some(value) = summary.value else {
        return open(Some(summary), summary.note.as_deref().unwrap_or("it was not measured"));
    };
    let (outcome, reason) = compare(&test.name, (summary, value), promise);
    Judged { summary: Some(summary), outcome, reason }
}

/// A value beside what was promised of it: the outcome, and both in a line for when it was not kept.
pub(crate) fn compare(whose: &str, (summary, value): (&Summary, f64), promise: Promise) -> (Outcome, String) {
    let metric = &summary.metric;
    let outcome = promise.judge(value, summary.confidence.as_ref());
    let (what, shown, bound) = (metric.title.as_ref(), metric.show(value), metric.show(promise.bound));
    let reason = match (outcome, &summary.confidence) {
        (Outcome::Inconclusive, Some(interval)) if summary.is_vague() => format!(
            "{whose} {what} {shown} (not known from {} rounds) leaves {} {bound} open",
            interval.n_trials,
            promise.relation.sign(),
        ),
        (Outcome::Inconclusive, Some(interval)) => format!(
            "{whose} {what} {shown} ({} to {}) leaves {} {bound} open",
            metric.show(interval.low),
            metric.show(interval.high),
            promise.relation.sign(),
        ),
        _ => format!("{whose} {what} {shown} {} {bound}", promise.relation.broken_sign()),
    };
    (outcome, reason)
}

/// The outcome of a run, from its promises and from the findings that make a value say nothing.
pub(crate) fn verdict(run: &Run) -> Verdict {
    let invalid = |test: &TestRun| {
        let of_test = run.findings.iter().filter(|finding| finding.tests.contains(&test.name));
        of_test.into_iter().find(|finding| finding.severity == Severity::Invalidates)
    };
    let mut outcomes = Vec::new();
    let mut reasons = Vec::new();
    for test in &run.tests {
        for mut judged in judged(test) {
            if let Some(finding) = invalid(test) {
                judged.outcome = Outcome::Inconclusive;
                judged.reason = format!("{} says nothing about its promise: {}", test.name, finding.title);
            }
            outcomes.push(judged.outcome);
            if judged.outcome != Outcome::Pass {
                reasons.push(judged.reason);
            }
        }
    }
    reasons.dedup();
    let outcome = match &outcomes[..] {
        [] => Outcome::Measured,
        all if all.contains(&Outcome::Fail) => Outcome::Fail,
        all if all.contains(&Outcome::Inconclusive) => Outcome::Inconclusive,
        _ => Outcome::Pass,
    };
    Verdict { outcome, reasons }
}

#[cfg(test)]
mod tests {
    use crate::story::Story;
    use fathom_model::{finding::Outcome, units::Nanos};

    fn promise(story: &mut Story, metric: &str, text: &str) {
        story.run.tests[0].expect.insert(metric.to_owned(), text.to_owned());
    }

    #[test]
    fn a_run_without_a_promise_only_measures() {
        let mut story = Story::new();
        story.tcp_stream(&[1000, 1000]);
        assert_eq!(story.analyzed().verdict.outcome, Outcome::Measured);
    }

    #[test]
    fn a_broken_promise_fails_with_value_and_bound() {
        let mut story = Story::new();
        story.udp_stream(&[(100_000, 99_690)]);
        promise(&mut story, "loss", "0 %");
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.outcome, Outcome::Fail);
        assert_eq!(verdict.reasons, ["udp_stream loss 0.31 % > 0 %"]);
    }

    #[test]
    fn a_kept_promise_passes_and_one_within_the_interval_is_open() {
        let mut story = Story::new();
        story.tcp_stream(&[1000, 1000, 1000]);
        promise(&mut story, "throughput_bps", ">= 7k");
        assert_eq!(story.analyzed().verdict.outcome, Outcome::Pass);
        let mut story = Story::new();
        story.tcp_stream(&[900, 1000, 1100]);
        promise(&mut story, "throughput_bps", ">= 8.1k");
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.outcome, Outcome::Inconclusive);
        assert!(verdict.reasons[0].contains("leaves >= 8.10 kbit/s open"), "{:?}", verdict.reasons);
    }

    #[test]
    fn rounds_that_differ_too_much_leave_a_promise_open_without_figures() {
        let mut story = Story::new();
        story.tcp_stream(&[100, 5000]);
        promise(&mut story, "throughput_bps", ">= 8.1k");
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.outcome, Outcome::Inconclusive);
        assert!(
            verdict.reasons[0].ends_with("(not known from 2 rounds) leaves >= 8.10 kbit/s open"),
            "{:?}",
            verdict.reasons
        );
    }

    #[test]
    fn a_promise_of_a_test_that_could_not_run_is_open() {
        let mut story = Story::new();
        story.tcp_stream(&[1000]);
        story.run.tests[0].unavailable = Some("needs CAP_NET_RAW".to_owned());
        promise(&mut story, "throughput_bps", ">= 7k");
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.outcome, Outcome::Inconclusive);
        assert!(verdict.reasons[0].ends_with("needs CAP_NET_RAW"), "{:?}", verdict.reasons);
    }

    #[test]
    fn a_value_that_says_nothing_cannot_break_a_promise() {
        let mut story = Story::new();
        story.tcp_stream(&[1000, 1000]);
        promise(&mut story, "throughput_bps", ">= 9k");
        assert_eq!(story.analyzed().verdict.outcome, Outcome::Fail);
        story.stolen("target", Nanos::from_millis(600));
        assert_eq!(story.analyzed().verdict.outcome, Outcome::Inconclusive);
    }
}
