//! What users who follow a script did, step by step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{finding::PromiseOutcome, histogram::Histogram, summary::Summary, units::Nanos};

/// What users of one side of one trial did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UsersRecord {
    /// Users who came, warm-up included.
    pub n_started: u64,
    /// Users who went through their script to its end; each time, if they begin again.
    pub n_finished: u64,
    /// Users who gave up at a step.
    pub n_gave_up: u64,
    /// The most who were there at once, all workers together.
    pub n_most: u64,
    /// What of that happened in the measured part; absent when it was not told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Visits>,
    /// What was promised of the script as a whole: `users/s > 100`, `p99 < 300ms`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<String>,
    /// Steps and transactions, in the order of the script.
    pub steps: Vec<StepRecord>,
}

/// Users on their way through a script; one who begins again counts again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Visits {
    /// How often one began.
    pub n_begun: u64,
    /// How often one came to the end.
    pub n_finished: u64,
    /// How often one gave up at a step.
    pub n_gave_up: u64,
}

/// What a step is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// One request, with redirects that it follows.
    #[default]
    Step,
    /// Several steps under one name; the time between them that a user thinks is not part of its time.
    Transaction,
}

/// What happened at one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StepRecord {
    /// Its name, once in a record: `login`.
    pub name: String,
    /// What it is.
    pub kind: StepKind,
    /// How often users came to it in the measured part.
    pub n_reached: u64,
    /// How often it went as expected, of those.
    pub n_passed: u64,
    /// Why it did not, such as `status 500, expected 200`, with how often.
    pub errors: BTreeMap<String, u64>,
    /// An example of each cause, as far as there is room for them.
    pub examples: Vec<Example>,
    /// How long it took when it went as expected, in nanoseconds.
    pub times: Histogram,
    /// What was promised of it in the script: `p99 < 300ms`, `errors < 0.1%`.
    pub promises: Vec<String>,
}

/// A request that did not go as expected, with its answer; secrets are blacked out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Example {
    /// The cause among the errors of its step.
    pub cause: String,
    /// Counted from the start of the trial.
    pub at_ns: Nanos,
    /// The request as it was sent, cut off after 4 KiB.
    pub request: String,
    /// The answer as it came, cut off after 4 KiB; empty when none came.
    pub answer: String,
}

/// What scripted users did over all trials of a test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UsersSummary {
    /// Users who came, warm-up included.
    pub n_started: u64,
    /// Users who came to the end of the script.
    pub n_finished: u64,
    /// Users who gave up at a step.
    pub n_gave_up: u64,
    /// The most who were there at once in a trial.
    pub n_most: u64,
    /// Values of the script as a whole: users per second, the share that gave up.
    pub summaries: Vec<Summary>,
    /// What was promised of the script as a whole, judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<JudgedPromise>,
    /// The steps and transactions, in the order of the script.
    pub steps: Vec<StepSummary>,
}

/// What happened at one step over all trials of a test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StepSummary {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: StepKind,
    /// How often users came to it.
    pub n_reached: u64,
    /// How often it went as expected.
    pub n_passed: u64,
    /// How often it was reached for each visit that began: the funnel; more than 1 for a step of a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached_ratio: Option<f64>,
    /// The share that failed, how many passed per second, and the times.
    pub summaries: Vec<Summary>,
    /// What was promised of it, judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<JudgedPromise>,
    /// Why it did not go as expected, with how often.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// One example of each cause, as far as one was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Example>,
}

/// A promise of a script with what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct JudgedPromise {
    /// As it was written.
    pub text: String,
    /// The name of the metric that it is about; absent when it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// The bound in the metric's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// How far the value lies on the good side of the bound, as a share of the bound; negative on the other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// Whether it was kept.
    pub outcome: PromiseOutcome,
    /// Why it was not kept or could not be judged, in a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
