//! What users who follow a script did, step by step.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{histogram::Histogram, units::Nanos};

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
    /// Steps and transactions, in the order of the script.
    pub steps: Vec<StepRecord>,
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
