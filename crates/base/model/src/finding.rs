//! The causes that limit a layer, with evidence.

use serde::{Deserialize, Serialize};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Background information for the number.
    Remark,
    /// Explains why a layer stays below its limit.
    HoldsBack,
    /// Something outside the test changed the number.
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
    /// The value of the counter with its unit, such as `97 %`.
    pub value: String,
}

/// The next thing to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NextStep {
    /// A command line, or a sentence if there is no command for it.
    pub command: String,
    /// The host to run it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The expected effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
}

impl NextStep {
    /// A command that may run anywhere, or a sentence if there is no command for the step.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), on: None, expected: None }
    }

    /// The same step on a host.
    #[must_use]
    pub fn on(self, host: &str) -> Self {
        Self { on: Some(host.to_owned()), ..self }
    }

    /// The same step with its effect, which follows "to": `show its rate`.
    #[must_use]
    pub fn expected(self, effect: impl Into<String>) -> Self {
        Self { expected: Some(effect.into()), ..self }
    }
}

/// Whether an intervention proved a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProofOutcome {
    /// The change had the effect that the cause predicts, beyond chance.
    Proven,
    /// An effect as large as the cause predicts is excluded, so this is not the cause.
    Refuted,
    /// The change had an effect that tells more about the test, but proves no cause.
    Effect,
    /// The change had no effect worth mentioning; that refutes no cause.
    NoEffect,
    /// The trials cannot tell.
    Open,
}

/// What changing one option of a test showed about a cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Proof {
    /// Whether the change proved the cause.
    pub outcome: ProofOutcome,
    /// The test that was repeated; its trials and values are among the interventions of that test.
    pub test: String,
    /// The option with its changed value, as on a command line: `--buffer 4MiB`.
    pub change: String,
    /// The effect in one sentence.
    pub text: String,
}

/// A cause with its evidence, the share that it explains, and the next step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Finding {
    /// A stable name of the cause, such as `core-saturated`.
    pub id: String,
    /// Two or three words for a table column, such as `target cpu1`.
    pub short: String,
    /// The cause in one sentence.
    pub title: String,
    /// The severity.
    pub severity: Severity,
    /// The tests it explains.
    pub tests: Vec<String>,
    /// The counters that prove it.
    pub evidence: Vec<Evidence>,
    /// The share of the distance to the limit that it explains, if that can be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explains: Option<f64>,
    /// The outcome of an intervention; absent if none was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// The next thing to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextStep>,
}

/// The id of the finding that a test did nothing.
pub const NOTHING_DONE: &str = "nothing-done";

impl Finding {
    /// Whether a test with this finding says nothing about a promise that it seems to break. That nothing was done is certain.
    #[must_use]
    pub fn spoils_promises(&self) -> bool {
        self.severity >= Severity::Disturbs && self.id != NOTHING_DONE
    }

    /// The same finding about other tests.
    #[must_use]
    pub fn tests(self, names: impl IntoIterator<Item = String>) -> Self {
        Self { tests: names.into_iter().collect(), ..self }
    }

    /// The same finding with the counters that prove it.
    #[must_use]
    pub fn evidence(self, counters: impl IntoIterator<Item = Evidence>) -> Self {
        Self { evidence: counters.into_iter().collect(), ..self }
    }

    /// The same finding with the share of the distance to the limit that it explains, from 0 to 1.
    #[must_use]
    pub fn explains(self, share: impl Into<Option<f64>>) -> Self {
        Self { explains: share.into(), ..self }
    }

    /// The same finding with the next thing to try.
    #[must_use]
    pub fn next(self, step: impl Into<Option<NextStep>>) -> Self {
        Self { next: step.into(), ..self }
    }
}

/// What is known about a test that no finding explains.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NoCause {
    /// How much of its nearest limit it reaches, such as `20 % of line 10.0 Gbit/s`; absent if no limit is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<String>,
    /// The causes that are known to explain less than half of what it lacks, each with its share, such as `cpu quota 31 %`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// What does not hold it back, with the number that says so, such as `cores (the busiest is busy 41 %)`.
    pub ruled_out: Vec<String>,
    /// What could not be looked at, such as `the host of the server`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_seen: Vec<String>,
    /// What points to a cause without proving it, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clue: Option<String>,
}

/// The outcome of one promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PromiseOutcome {
    /// The promise was kept.
    #[serde(alias = "pass")]
    Kept,
    /// The promise was broken.
    #[serde(alias = "fail")]
    Broken,
    /// The bound lies inside the interval of the value, or there is no trustworthy value.
    #[serde(alias = "inconclusive")]
    Open,
}

impl PromiseOutcome {
    /// Returns what a promise comes to beside the finding that spoils it, if there is one ([`Finding::spoils_promises`]): an untrustworthy number
    /// leaves it open, and a disturbed test breaks none.
    #[must_use]
    pub fn beside(self, spoiler: Option<&Finding>) -> Self {
        match spoiler.map(|finding| finding.severity) {
            Some(Severity::Invalidates) => Self::Open,
            Some(_) if self == Self::Broken => Self::Open,
            _ => self,
        }
    }
}

/// The state of a run in one word; every output and the exit code agree with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VerdictState {
    /// The run was measured; nothing was promised.
    #[default]
    Measured,
    /// Every promise was kept.
    #[serde(alias = "pass")]
    Kept,
    /// A promise was broken.
    #[serde(alias = "fail")]
    Broken,
    /// At least one promise can be called neither kept nor broken with certainty.
    #[serde(alias = "inconclusive")]
    Open,
    /// Something outside the test changed most of the numbers.
    Disturbed,
    /// Part of the run failed or did nothing; the measured data is kept.
    Incomplete,
    /// None of its numbers can be trusted, or nothing was run.
    Invalid,
}

impl VerdictState {
    /// The word shown to people.
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
    /// The state of the run.
    #[serde(alias = "outcome")]
    pub state: VerdictState,
    /// The reasons, one sentence each, such as `udp stream: lost 0.31 % > 0 %`; empty if no reason is needed.
    pub reasons: Vec<String>,
    /// The names of the tests whose numbers cannot be trusted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<String>,
}
