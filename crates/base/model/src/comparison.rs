//! Paths that are compared under the same work: what one costs against another, with its interval.

use serde::{Deserialize, Serialize};

use crate::summary::Confidence;

/// The result of a comparison of paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Comparison {
    /// Its name in the plan.
    pub name: String,
    /// The path that the others are compared with.
    pub reference: String,
    /// The test of that path.
    pub test: String,
    /// The value of a sweep that it was measured at; absent without a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<SweepPoint>,
    /// The tests that are compared with that of the reference, in the order of the plan.
    pub arms: Vec<ComparedArm>,
    /// The reason why there is no number, in one sentence: a precondition does not hold. Then there are no arms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
}

/// A test of a comparison beside that of the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ComparedArm {
    /// The path.
    pub path: String,
    /// Its test.
    pub test: String,
    /// Whether it is the reference once more: what it differs by is noise.
    pub is_null: bool,
    /// The number of rounds in which both tests ran to their end.
    pub n_pairs: usize,
    /// The compared values, the most important first.
    pub values: Vec<PairedValue>,
}

/// A value of two paths, compared round by round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PairedValue {
    /// The name of the metric.
    pub metric: String,
    /// The mean over the pairs on the reference, in the unit of the metric.
    pub reference: f64,
    /// The mean over the pairs on the other path.
    pub value: f64,
    /// The value as a multiple of the reference: the geometric mean of the pairs. Absent for a share, and if a value is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Estimate>,
    /// The value minus the reference: the mean of the pairs, in the unit of the metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<Estimate>,
    /// What the comparison shows.
    pub outcome: CostOutcome,
    /// The same in words, such as `costs 38 ± 2 %`.
    pub text: String,
}

/// A value with the interval that contains the truth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The interval; absent with fewer than three pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
}

/// What a comparison of a value shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CostOutcome {
    /// The path is worse than the reference.
    Costs,
    /// The path is better than the reference.
    Gains,
    /// The two differ, in a value that is neither better nor worse.
    Differs,
    /// The two differ by no more than the reference differs from itself.
    NoDifference,
    /// The pairs are too few or differ too much.
    Inconclusive,
}

/// A value of a swept parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepPoint {
    /// The name of the parameter, such as `rules`.
    pub parameter: String,
    /// Its value.
    pub value: String,
}

/// A value of all paths over a swept parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sweep {
    /// The name of the parameter.
    pub parameter: String,
    /// The kind of the tests.
    pub kind: String,
    /// The name of the metric.
    pub metric: String,
    /// One curve per path, the reference first.
    pub curves: Vec<SweepCurve>,
}

/// A value of one path over a swept parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SweepCurve {
    /// The path.
    pub path: String,
    /// The points, in the order of the parameter.
    pub points: Vec<SweptValue>,
    /// The value of the parameter at which the curve bends; absent for a line without a bend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<String>,
    /// Up to which value of the parameter the loss stays within each bound; empty for other metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loss_bounds: Vec<LossBound>,
}

/// How far a swept parameter goes without a higher loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LossBound {
    /// The highest loss, as a part of what was sent.
    pub loss_ratio: f64,
    /// The highest of the values up to which no point loses more; absent if the first one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// A point of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SweptValue {
    /// The value of the parameter, as in the plan.
    pub at: String,
    /// The same as a number.
    pub number: f64,
    /// The test.
    pub test: String,
    /// The measured value, in the unit of the metric.
    pub value: f64,
    /// The interval around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// The value as a multiple of the reference at the same point; absent for the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Estimate>,
}
