//! The search for a limit: the vote of one trial on a rate, and the load curve from all trials.

use serde::{Deserialize, Serialize};

use crate::{metric::Unit, summary::Confidence, units::Nanos};

/// Why a trial missed the objective at its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MissReason {
    /// The value of the objective is on the wrong side of its bound.
    Objective,
    /// The achieved rate was lower than the sent rate.
    FellBehind,
    /// The tool did not offer the requested load, or was late itself: this says nothing about the target.
    Generator,
}

/// The vote of one trial on its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "vote", content = "cause")]
pub enum Vote {
    /// The objective was kept.
    Kept,
    /// The objective was missed.
    Broken(MissReason),
    /// The trial says nothing, for example because it did not finish.
    Void,
}

/// The purpose of a trial of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// To find one rate that is kept and one that is broken, far apart.
    Bracket,
    /// To narrow the interval between them.
    Narrow,
    /// To confirm both ends: only these trials count for the confidence.
    Confirm,
    /// To draw the curve below the limit.
    Curve,
}

impl Purpose {
    /// The activity in one word for people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bracket => "bracketing",
            Self::Narrow => "narrowing",
            Self::Confirm => "confirming",
            Self::Curve => "drawing the curve",
        }
    }
}

/// The decision of the search about a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// At or below the highest rate known to keep the objective.
    Kept,
    /// At or above the lowest rate known to break it.
    Broken,
    /// Between the two.
    Undecided,
}

/// One judged trial of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SearchTrial {
    /// Its number in the search, from 0, in chronological order.
    pub n: u32,
    /// The purpose of the trial.
    pub purpose: Purpose,
    /// The rate that the tool actually offered, in the unit of the rate; absent if it is not counted.
    pub sent: Option<f64>,
    /// The achieved rate, in the unit of the rate.
    pub achieved: Option<f64>,
    /// The value of the objective's metric.
    pub value: Option<f64>,
    /// The median latency, if latencies are measured.
    pub median_ns: Option<f64>,
    /// The vote on the rate.
    #[serde(flatten)]
    pub vote: Vote,
    /// The duration, including preparation.
    pub took_ns: Nanos,
}

/// A rate with its trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CurvePoint {
    /// The requested rate.
    pub offered: f64,
    /// The decision of the search about the rate.
    pub decision: Decision,
    /// The most frequent cause among its trials if the rate is broken.
    pub cause: Option<MissReason>,
    /// The achieved rate: the median of the trials.
    pub achieved: Option<f64>,
    /// The value of the objective's metric: the median of the trials.
    pub value: Option<f64>,
    /// The median latency: the median of the trials' medians.
    pub median_ns: Option<f64>,
    /// Its trials, in chronological order.
    pub trials: Vec<SearchTrial>,
}

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Both ends of the interval are confirmed.
    Found,
    /// The highest allowed rate keeps the objective.
    AllKept,
    /// The lowest allowed rate breaks it.
    AllBroken,
    /// The allowed trials or the allowed time are used up; the results are not confirmed.
    OutOfBudget,
    /// Trials contradict each other at all rates tried for an end, so none of them can be confirmed.
    Unsettled,
    /// The search was interrupted, or a trial failed.
    Stopped,
}

/// The highest rate that keeps an objective, with all measurements behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LoadCurve {
    /// The completed objective, such as `latency_ns_p99 < 20ms`.
    pub objective: String,
    /// The name of the objective's metric.
    pub metric: String,
    /// The bound in the metric's unit.
    pub bound: f64,
    /// The option that sets the rate.
    pub option: String,
    /// The unit of the rate.
    pub unit: Unit,
    /// How the search ended.
    pub ending: Ending,
    /// The highest rate that keeps the objective.
    pub kept: Option<f64>,
    /// The lowest rate that breaks it.
    pub broken: Option<f64>,
    /// The interval that contains the limit; absent unless both ends are confirmed.
    pub confidence: Option<Confidence>,
    /// The rate at which throughput / median latency is highest (`docs/methods/find_limit.md`).
    pub knee: Option<f64>,
    /// The rates, in ascending order.
    pub points: Vec<CurvePoint>,
}

impl LoadCurve {
    /// Returns why the lowest broken rate is broken.
    #[must_use]
    pub fn cause(&self) -> Option<MissReason> {
        let broken = self.broken?;
        self.points.iter().find(|point| point.offered.total_cmp(&broken).is_eq())?.cause
    }
}
