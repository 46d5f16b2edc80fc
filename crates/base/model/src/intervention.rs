//! A test that is repeated with one option changed, to see whether a cause is one.

use serde::{Deserialize, Serialize};

use crate::{finding::ProofOutcome, record::Trial, summary::Summary};

/// Trials of a test as it is and with one option changed, in the order A B B A.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Intervention {
    /// The id of the finding that is tested; absent for a test without a cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The option that was changed, such as `buffer`.
    pub option: String,
    /// Its value in the test; absent if the test does not set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its value in the changed trials.
    pub to: String,
    /// The name of the metric that shows the effect.
    pub metric: String,
    /// The smallest improvement of the metric that counts, as a share of its unchanged value: 0.5 for half of a loss.
    pub effect_min: f64,
    /// What the effect, or none, means for the cause.
    pub aim: InterventionAim,
    /// The trials without the change (A); `round` is the place of a trial in the order of all, from 0.
    pub unchanged: Vec<Trial>,
    /// The trials with the change (B).
    pub changed: Vec<Trial>,
    /// The reason why it ended early, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// The effect; absent if there are too few trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

impl Intervention {
    /// The option with its changed value, as on a command line: `--buffer 4MiB`.
    #[must_use]
    pub fn change(&self) -> String {
        format!("--{} {}", self.option, self.to)
    }
}

/// What an intervention can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InterventionAim {
    /// The cause predicts the effect: the effect proves it, and no effect refutes it.
    Verdict,
    /// The effect proves the cause; no effect leaves another explanation of the same finding.
    ProofOnly,
    /// The effect tells more about the test, and neither proves nor refutes a cause.
    Clue,
}

/// What the change of an option did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Effect {
    /// Whether the effect is the one that was looked for.
    pub outcome: ProofOutcome,
    /// The value without the change.
    pub unchanged: Summary,
    /// The value with the change.
    pub changed: Summary,
    /// The effect in one sentence.
    pub text: String,
}
