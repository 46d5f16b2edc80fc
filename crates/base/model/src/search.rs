//! The search for a limit: what one trial says of a rate, and the load curve that comes of all of them.

use serde::{Deserialize, Serialize};

use crate::{metric::Unit, summary::Confidence, units::Nanos};

/// Why a trial did not keep an objective at its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MissReason {
    /// The value of the objective lies on the wrong side of its bound.
    Objective,
    /// Less was achieved than was sent.
    FellBehind,
    /// The tool did not offer what it was asked for, or was late by its own doing: nothing is known of the target.
    Generator,
}

/// What one trial says of its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "vote", content = "cause")]
pub enum Vote {
    /// The objective was kept.
    Kept,
    /// It was not.
    Broken(MissReason),
    /// The trial says nothing, such as one that did not come to its end.
    Void,
}

/// What a trial of a search was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// To find a rate that is kept and one that is broken, far apart.
    Bracket,
    /// To bring them together.
    Narrow,
    /// To be sure of both ends: only these trials count for the confidence.
    Confirm,
    /// To draw the curve below the limit.
    Curve,
}

impl Purpose {
    /// What is done, in a word for people.
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

/// What the search says of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Not above the highest rate that was found to keep the objective.
    Kept,
    /// Not below the lowest rate that was found to break it.
    Broken,
    /// Between them.
    Undecided,
}

/// One trial of a search, as it was judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SearchTrial {
    /// Its number in the search, from 0: the order in time.
    pub n: u32,
    /// What it was made for.
    pub purpose: Purpose,
    /// What the tool really offered, in the unit of the rate; absent when it is not counted.
    pub sent: Option<f64>,
    /// What was achieved, in the unit of the rate.
    pub achieved: Option<f64>,
    /// The value of the objective's metric.
    pub value: Option<f64>,
    /// The median latency, where latencies are measured.
    pub median_ns: Option<f64>,
    /// What it says of the rate.
    #[serde(flatten)]
    pub vote: Vote,
    /// How long it took, with its preparation.
    pub took_ns: Nanos,
}

/// A rate with its trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CurvePoint {
    /// The rate that was asked for.
    pub offered: f64,
    /// What the search says of it.
    pub decision: Decision,
    /// Why it is broken: the most frequent cause among its trials.
    pub cause: Option<MissReason>,
    /// What was achieved: the median of the trials.
    pub achieved: Option<f64>,
    /// The value of the objective's metric: the median of the trials.
    pub value: Option<f64>,
    /// The median latency: the median of the trials.
    pub median_ns: Option<f64>,
    /// Its trials, in the order of time.
    pub trials: Vec<SearchTrial>,
}

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// Both ends of the interval are confirmed.
    Found,
    /// The highest rate that was allowed keeps the objective.
    AllKept,
    /// The lowest rate that was allowed breaks it.
    AllBroken,
    /// The trials or the time that were allowed are used up; what is known is not confirmed.
    OutOfBudget,
    /// Trials contradict each other at all rates that were tried for an end, so that none of them can be confirmed.
    Unsettled,
    /// It was interrupted, or a trial failed.
    Stopped,
}

/// The highest rate that keeps an objective, and everything that was measured to find it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LoadCurve {
    /// The objective as it was completed: `latency_ns_p99 < 20ms`.
    pub objective: String,
    /// The name of the objective's metric.
    pub metric: String,
    /// The bound in the metric's unit.
    pub bound: f64,
    /// The option that sets the rate.
    pub option: String,
    /// What one of the rate is.
    pub unit: Unit,
    /// How it ended.
    pub ending: Ending,
    /// The highest rate that keeps the objective.
    pub kept: Option<f64>,
    /// The lowest rate that breaks it.
    pub broken: Option<f64>,
    /// The interval that contains the limit; absent when not both ends are confirmed.
    pub confidence: Option<Confidence>,
    /// The rate at which throughput / median latency is highest (`docs/methods/find_limit.md`).
    pub knee: Option<f64>,
    /// The rates, ascending.
    pub points: Vec<CurvePoint>,
}

impl LoadCurve {
    /// The point at the highest rate that keeps the objective.
    #[must_use]
    pub fn at_limit(&self) -> Option<&CurvePoint> {
        let kept = self.kept?;
        self.points.iter().find(|point| point.offered.total_cmp(&kept).is_eq())
    }

    /// Why the lowest broken rate is broken.
    #[must_use]
    pub fn cause(&self) -> Option<MissReason> {
        let broken = self.broken?;
        self.points.iter().find(|point| point.offered.total_cmp(&broken).is_eq())?.cause
    }
}
