//! The promises of a test together with the values that they refer to.

use fathom_model::{Derivation, JudgedPromise, Summary, finding::PromiseOutcome, run::TestRun};

use crate::promise::{self, Promise};

pub(crate) struct PromiseResult<'a> {
    /// The value that the promise refers to, if there is one.
    pub(crate) summary: Option<&'a Summary>,
    pub(crate) outcome: PromiseOutcome,
    /// The test, the value and the bound in one line, if the promise was not kept.
    pub(crate) reason: String,
}

impl PromiseResult<'_> {
    /// Returns the name of the value for a list of evidence, including its step.
    pub(crate) fn counter(&self) -> Option<String> {
        let metric = &self.summary?.metric;
        Some(match &metric.from {
            Derivation::Step { step, .. } => format!("{step} {}", metric.name),
            _ => metric.name.to_string(),
        })
    }
}

/// Judges every promise of a test by its values alone. Promises of a script come last.
pub(crate) fn judge_promises(test: &TestRun) -> Vec<PromiseResult<'_>> {
    let mut all: Vec<PromiseResult<'_>> =
        test.expect.iter().map(|(name, text)| judge_promise(test, name, text)).collect();
    let Some(users) = &test.users else { return all };
    let of_script = users.summaries.iter().chain(&test.summaries);
    all.extend(users.promises.iter().map(|promise| script_promise_result(promise, of_script.clone())));
    for step in &users.steps {
        all.extend(step.promises.iter().map(|promise| script_promise_result(promise, step.summaries.iter())));
    }
    all
}

/// Returns a promise of a script, which was judged together with the steps.
fn script_promise_result<'a>(
    promise: &JudgedPromise,
    mut among: impl Iterator<Item = &'a Summary>,
) -> PromiseResult<'a> {
    let named = |summary: &&Summary| promise.metric.as_deref() == Some(&*summary.metric.name);
    PromiseResult {
        summary: among.find(named),
        outcome: promise.outcome,
        reason: promise.reason.clone().unwrap_or_default(),
    }
}

/// Returns the value of a test that a promise names, together with the promise.
pub(crate) fn find_promise<'a>(test: &'a TestRun, name: &str, written: &str) -> Result<(&'a Summary, Promise), String> {
    let metrics: Vec<_> = test.summaries.iter().map(|summary| summary.metric.clone()).collect();
    let metric = promise::find(&metrics, name).map_err(|error| error.to_string())?;
    let promise = promise::parse(written, metric).map_err(|error| error.to_string())?;
    let summary = test.summaries.iter().find(|summary| summary.metric.name == metric.name);
    summary.map(|summary| (summary, promise)).ok_or_else(|| "it was not measured".to_owned())
}

fn judge_promise<'a>(test: &'a TestRun, name: &str, written: &str) -> PromiseResult<'a> {
    let open = |summary, why: &str| PromiseResult {
        summary,
        outcome: PromiseOutcome::Open,
        reason: format!("{} {name} was promised {written}: {why}", test.full_name()),
    };
    if let Some(why) = &test.unavailable {
        return open(None, why);
    }
    let (summary, promise) = match find_promise(test, name, written) {
        Ok(found) => found,
        Err(why) => return open(None, &why),
    };
    let Some(value) = summary.value else {
        return open(Some(summary), summary.note.as_deref().unwrap_or("it was not measured"));
    };
    let (outcome, reason) = compare(&test.full_name(), summary, value, promise);
    PromiseResult { summary: Some(summary), outcome, reason }
}

/// Compares a value with its promise. Returns the outcome and a line with both, for use if the promise was not kept.
pub(crate) fn compare(whose: &str, summary: &Summary, value: f64, promise: Promise) -> (PromiseOutcome, String) {
    let metric = &summary.metric;
    let outcome = promise.judge(value, summary.confidence.as_ref());
    let (what, shown, bound) = (metric.title.as_ref(), metric.show(value), metric.show(promise.bound));
    let reason = match (outcome, &summary.confidence) {
        (PromiseOutcome::Open, Some(interval)) if summary.is_vague() => format!(
            "{whose} {what}: cannot tell yet: {} rounds differ too much to judge {} {bound} (more --rounds needed)",
            interval.n_trials,
            promise.relation.sign(),
        ),
        (PromiseOutcome::Open, Some(interval)) => format!(
            "{whose} {what}: cannot tell yet: {shown} ({} to {}) includes {bound} (more --rounds needed)",
            metric.show(interval.low),
            metric.show(interval.high),
        ),
        _ => format!("{whose} {what} {shown} {} {bound}", promise.relation.broken_sign()),
    };
    (outcome, reason)
}
