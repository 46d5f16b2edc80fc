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
    /// Something beside the test changed the number.
    Disturbs,
    /// The number cannot be trusted.
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

/// Whether one promise was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PromiseOutcome {
    /// It was kept.
    #[serde(alias = "pass")]
    Kept,
    /// It was broken.
    #[serde(alias = "fail")]
    Broken,
    /// It lies within the interval of the value, or there is no value to trust.
    #[serde(alias = "inconclusive")]
    Open,
}

/// One word for what became of a run; every output and the exit code say the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VerdictState {
    /// It was measured; nothing was promised.
    #[default]
    Measured,
    /// Every promise was kept.
    #[serde(alias = "pass")]
    Kept,
    /// A promise was broken.
    #[serde(alias = "fail")]
    Broken,
    /// A promise is neither kept nor broken for sure.
    #[serde(alias = "inconclusive")]
    Open,
    /// Something beside the test changed most of the numbers.
    Disturbed,
    /// Something was lost or did nothing; what was measured is kept.
    Incomplete,
    /// No number of it can be trusted, or nothing was done.
    Invalid,
}

impl VerdictState {
    /// The word that people read.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Measured => "MEASURED",
            Self::Kept => "KEPT",
            Self::Broken => "BROKEN",
            Self::Open => "OPEN",
            Self::Disturbed => "DISTURBED",
            Self::Incomplete => "INCOMPLETE",
            Self::Invalid => "INVALID",
        }
    }
}

/// The state of a run with its reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Verdict {
    /// What became of the run.
    #[serde(alias = "outcome")]
    pub state: VerdictState,
    /// Why, a sentence each: `udp stream: lost 0.31 % > 0 %`; empty where nothing needs a reason.
    pub reasons: Vec<String>,
    /// The tests whose numbers cannot be trusted, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<String>,
}
