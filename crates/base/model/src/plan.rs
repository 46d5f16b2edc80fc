//! What was asked: complete, and the same whether it came from a command line, a drop-in tool or a file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// The version of the plan format that this build reads and writes.
pub const SCHEMA: &str = "fathom.plan/1";

/// How to reach a host of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum HostReach {
    /// A child process on this machine, in the namespace that fathom was started in.
    #[serde(rename = "self")]
    This,
    /// The same at one of this machine's own addresses in place of 127.0.0.1, such as `::1`.
    At(std::net::IpAddr),
    /// A host of the plan's lab, by its name there.
    Lab(String),
    /// A lab that is up already: its name and the host's name there.
    #[serde(rename = "lab-up")]
    LabUp(String, String),
    /// A `fathom serve` at this address and port.
    Tls {
        /// Where it listens.
        address: String,
        /// The fingerprint of its certificate and the secret token; left out when a plan is printed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
}

impl HostReach {
    /// Whether the host shares the processors of the machine that fathom runs on.
    #[must_use]
    pub const fn is_on_this_machine(&self) -> bool {
        match self {
            Self::This | Self::At(_) | Self::Lab(_) | Self::LabUp(..) => true,
            Self::Tls { .. } => false,
        }
    }
}

/// The highest rate that keeps an objective is to be found, in place of measuring at one rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchPlan {
    /// What is to be kept: `latency_ns_p99 < 20ms`.
    pub objective: String,
    /// The option of the kind that sets the rate; `rate` when it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    /// The lowest rate that may be offered, where the search begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<String>,
    /// The highest rate that may be offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<String>,
    /// How far apart the ends of the interval may be in the end, such as `2.5%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// How sure the interval is to be, such as `95%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<String>,
    /// The most trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<u32>,
}

/// Benchmarking methods are to be carried out at one frame size, in place of measuring at one rate.
///
/// What is absent is filled in when the plan is completed: with short trials, or with the lengths of the RFCs by `conform`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkPlan {
    /// The methods in their order: `throughput`, `mlrsearch`, `loss`, `back-to-back` and so on.
    pub methods: Vec<String>,
    /// Whether trials, waits and repetitions are as long and as many as the RFCs say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conform: bool,
    /// The highest rate that may be offered; the line rate or the tool's own maximum where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<String>,
    /// The lowest rate that a search goes down to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<String>,
    /// The goals of `mlrsearch`: `ndr`, `pdr`, or `LOSS:TRIAL:SUM:EXCEED` such as `0.5%:1s:21s:50%`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<String>,
    /// How far apart the bounds of a search may be in the end, such as `0.5%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// How long a trial of a stream is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<String>,
    /// How long is waited after each trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<String>,
    /// How long one search may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_time: Option<String>,
    /// How much less each load of a loss curve is, in percent of the maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_step: Option<String>,
    /// The longest burst of `back-to-back`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_max: Option<String>,
    /// How finely bursts are searched, in frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_step: Option<u64>,
    /// How often the search for the longest burst is repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_searches: Option<u32>,
    /// How long a stream is of which the latency is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_trial: Option<String>,
    /// How many such streams there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_runs: Option<u32>,
    /// How often a device is overloaded to see how long it takes to recover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_runs: Option<u32>,
    /// How long frames are sent while the device is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_trial: Option<String>,
}

/// One test between two hosts, or of a target that needs nothing of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestPlan {
    /// Its name in results and in `expect`; unique in a plan.
    pub name: String,
    /// The kind of test.
    pub kind: String,
    /// The host that begins.
    pub from: String,
    /// The host that answers; none when the target is an address in the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The test of the plan that this one is made together with, from the same instant on: the same test, the other way. It is part of
    /// each trial of that one. Absent for a test on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// The longest warm-up, such as `500ms`.
    pub warmup: String,
    /// The time measured in each round, such as `2s`.
    pub duration: String,
    /// The kind's options.
    #[serde(default)]
    pub options: Settings,
    /// The search for a limit that this test is; absent for a test at one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchPlan>,
    /// The methods that this test carries out; absent for a test at one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<BenchmarkPlan>,
    /// What was promised, by metric: `throughput_bps = ">= 10G"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expect: BTreeMap<String, String>,
}

/// A lab that a run builds and takes down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LabPlan {
    /// The name of the topology.
    pub preset: String,
    /// The MTU of its links in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<u32>,
    /// What stands between its hosts, such as `router` or `policer:200k,512`; a wire when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// Everything that a run does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`SCHEMA`].
    pub schema: String,
    /// A line for people.
    pub title: String,
    /// How often the list of tests is gone through; each time is one trial of each test.
    pub rounds: u32,
    /// How wide the interval of each test's first value may be to either side, such as `2%`: the rounds end early when all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ci: Option<String>,
    /// The seed of everything random.
    #[serde(default)]
    pub seed: u64,
    /// The lab, if one is to be built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<LabPlan>,
    /// The hosts by name.
    pub hosts: BTreeMap<String, HostReach>,
    /// The host between the two sides of every test: a device under test, whose counters are read beside theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The tests, in the order of a round.
    pub tests: Vec<TestPlan>,
}
