//! The activity of users who follow a script, step by step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{finding::PromiseOutcome, histogram::Histogram, summary::Summary, units::Nanos};

/// The activity of the users on one side of one trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UsersRecord {
    /// Users who started, including during the warm-up.
    pub n_started: u64,
    /// Users who finished their script; a user who starts again counts each time.
    pub n_finished: u64,
    /// Users who gave up at a step.
    pub n_gave_up: u64,
    /// The maximum number of concurrent users, over all workers together.
    pub n_most: u64,
    /// The visits in the measured phase; absent if they were not counted separately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Visits>,
    /// The promises for the script as a whole: `users/s > 100`, `p99 < 300ms`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<String>,
    /// Steps and transactions, in the order of the script.
    pub steps: Vec<StepRecord>,
}

/// Visits of users to a script; a user who starts again counts again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Visits {
    /// The number of visits that began.
    pub n_begun: u64,
    /// The number of visits that finished the script.
    pub n_finished: u64,
    /// The number of visits that gave up at a step.
    pub n_gave_up: u64,
}

/// The type of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// One request, including the redirects that it follows.
    #[default]
    Step,
    /// Several steps under one name; the user's think time between them is not part of its time.
    Transaction,
}

/// The results of one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StepRecord {
    /// Its name, unique in a record, such as `login`.
    pub name: String,
    /// The type of the step.
    pub kind: StepKind,
    /// How often users reached it in the measured phase.
    pub n_reached: u64,
    /// How many of those attempts had the expected result.
    pub n_passed: u64,
    /// The number of failures by cause, such as `status 500, expected 200`.
    pub errors: BTreeMap<String, u64>,
    /// One example of each cause, as far as there is room.
    pub examples: Vec<Example>,
    /// The times of the attempts with the expected result, in nanoseconds.
    pub times: Histogram,
    /// The promises for it in the script: `p99 < 300ms`, `errors < 0.1%`.
    pub promises: Vec<String>,
}

/// A request with an unexpected result, and its response; secrets are redacted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Example {
    /// The cause, as it appears among the errors of its step.
    pub cause: String,
    /// The time since the start of the trial.
    pub at_ns: Nanos,
    /// The request as sent, cut off after 4 KiB.
    pub request: String,
    /// The response as received, cut off after 4 KiB; empty if there was none.
    pub answer: String,
}

/// The activity of scripted users over all trials of a test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UsersSummary {
    /// Users who started, including during the warm-up.
    pub n_started: u64,
    /// Users who finished the script.
    pub n_finished: u64,
    /// Users who gave up at a step.
    pub n_gave_up: u64,
    /// The maximum number of concurrent users in a trial.
    pub n_most: u64,
    /// Values for the script as a whole: users per second, the share that gave up.
    pub summaries: Vec<Summary>,
    /// The judged promises for the script as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<JudgedPromise>,
    /// The steps and transactions, in the order of the script.
    pub steps: Vec<StepSummary>,
}

/// The results of one step over all trials of a test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StepSummary {
    /// Its name.
    pub name: String,
    /// The type of the step.
    pub kind: StepKind,
    /// How often users reached it.
    pub n_reached: u64,
    /// The number of attempts with the expected result.
    pub n_passed: u64,
    /// The number of times it was reached per visit that began: the funnel; more than 1 for a step in a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached_ratio: Option<f64>,
    /// The share of failures, the passes per second, and the times.
    pub summaries: Vec<Summary>,
    /// The judged promises for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promises: Vec<JudgedPromise>,
    /// The number of failures by cause.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// One example of each cause, if one was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Example>,
}

/// A promise of a script with its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct JudgedPromise {
    /// The text as written by the user.
    pub text: String,
    /// The name of the metric that it is about; absent if the promise cannot be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// The bound in the metric's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// The distance of the value from the bound on the good side, as a share of the bound; negative on the other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// The outcome.
    pub outcome: PromiseOutcome,
    /// The reason why it was broken or could not be judged, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
