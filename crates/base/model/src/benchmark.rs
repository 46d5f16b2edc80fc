//! What the benchmarking methods of RFC 2544 and its successors found at one frame size.

use serde::{Deserialize, Serialize};

use crate::{metric::Metric, units::Nanos};

/// What the rates of a benchmark are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reference {
    /// The most that the link carries at this frame size.
    LineRate,
    /// The highest rate that was allowed.
    Asked,
    /// The most that the tool itself sends; of a device without a line rate.
    OwnMaximum,
}

impl Reference {
    /// What it is, in words for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::LineRate => "line rate",
            Self::Asked => "the rate that was asked for",
            Self::OwnMaximum => "fathom's own maximum",
        }
    }
}

/// What the tool itself sends into a sink that loses nothing, as it was measured before the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OwnMaximum {
    /// Frames per second that it sends as they are due.
    pub rate: f64,
    /// Frames per second that it sends flat out.
    pub flat_out: f64,
    /// What the sink missed at that rate, as a share of what was sent.
    pub loss_ratio: f64,
    /// What was not sent at that rate, as a share of what was due.
    pub unsent_ratio: f64,
    /// The most by which a frame left later than it was due at that rate.
    #[serde(default)]
    pub lag_ns: Nanos,
}

/// One value of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BenchmarkResult {
    /// What it is; the source names its definition.
    pub metric: Metric,
    /// The value; absent with a note that says why.
    pub value: Option<f64>,
    /// The lower end of what encloses it.
    pub low: Option<f64>,
    /// The upper end.
    pub high: Option<f64>,
    /// Whether it is an irregular result of RFC 9971, or an invalid one of RFC 9004.
    #[serde(default)]
    pub is_irregular: bool,
    /// What must be said beside it.
    pub note: Option<String>,
}

/// What was lost at a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LossPoint {
    /// Frames per second that were intended.
    pub rate: f64,
    /// How many trials there were.
    pub n_trials: u64,
    /// What was lost of what was offered: the median of the trials.
    pub loss_ratio: f64,
}

/// One trial, in the order of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BenchmarkTrial {
    /// What it was made for.
    pub what: String,
    /// Frames per second that were intended.
    pub rate: f64,
    /// How long frames were to be sent.
    pub duration_ns: Nanos,
    /// Frames that were due.
    pub n_intended: u64,
    /// Frames that the device accepted.
    pub n_offered: u64,
    /// Frames that arrived.
    pub n_received: u64,
}

/// Everything that the methods found at one frame size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Benchmark {
    /// The length of a frame with its checksum.
    pub size_bytes: u64,
    /// Frames per second that are 100 %.
    pub max_rate: f64,
    /// What these 100 % are.
    pub reference: Reference,
    /// The most that the link carries at this size, where it is one of a wire.
    pub line_rate: Option<f64>,
    /// What the tool itself sends, as far as it could be measured.
    pub own: Option<OwnMaximum>,
    /// The values, in the order of the methods.
    pub results: Vec<BenchmarkResult>,
    /// The frame loss curve of RFC 2544, from the highest rate down.
    pub loss: Vec<LossPoint>,
    /// What the search lost at its rates, ascending.
    pub searched: Vec<LossPoint>,
    /// What must be said of all of it: which lengths of the RFC were shortened.
    pub remarks: Vec<String>,
    /// Why not all methods came to their end.
    pub cut: Option<String>,
    /// Every trial.
    pub trials: Vec<BenchmarkTrial>,
}
