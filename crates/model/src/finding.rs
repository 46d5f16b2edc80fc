//! What holds a layer back, with the proof.

use serde::{Deserialize, Serialize};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Good to know beside the number.
    Remark,
    /// Explains what a layer lacks to its limit.
    HoldsBack,
    /// The number does not say what it seems to say.
    Invalidates,
}

/// A counter that proves a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Evidence {
    /// The host it was read on.
    pub host: String,
    /// The counter's name and instance, such as `cpu_softirq_ns cpu1`.
    pub counter: String,
    /// What it showed, with its unit, such as `97 %`.
    pub value: String,
}

/// What to try next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NextStep {
    /// A command line, or a sentence when no command does it.
    pub command: String,
    /// The host to type it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// What it should change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
}

/// A cause, what proves it, how much it explains, and what to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Finding {
    /// A stable name of the cause: `core-saturated`.
    pub id: String,
    /// Two or three words for the column of a table: `target cpu1`.
    pub short: String,
    /// The cause in one sentence.
    pub title: String,
    /// How much it matters.
    pub severity: Severity,
    /// The tests it explains.
    pub tests: Vec<String>,
    /// The counters that prove it.
    pub evidence: Vec<Evidence>,
    /// Which share of the distance to the limit it explains, where that can be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explains: Option<f64>,
    /// What to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextStep>,
}

/// Whether what was promised was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing was promised: the run measured.
    Measured,
    /// Every promise was kept.
    Pass,
    /// A promise was broken.
    Fail,
    /// A promise lies within the interval of the value.
    Inconclusive,
}

/// The outcome with its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Verdict {
    /// Whether promises were kept.
    pub outcome: Outcome,
    /// One sentence per promise that was broken or is open, such as `udp loss 0.31 % > 0 %`.
    pub reasons: Vec<String>,
}
