//! The request: complete, and identical whether it came from a command line, a drop-in tool or a file.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use crate::{
    comparison::SweepPoint,
    kubernetes::KubernetesHost,
    reach::{ExecHost, InventoryReference, SshHost},
    settings::Settings,
    units::Nanos,
};

/// The version of the plan format that this build reads and writes.
pub const SCHEMA: &str = "fathom.plan/1";

/// How to reach a host of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum HostReach {
    /// A child process on this machine, in the namespace that fathom was started in.
    #[serde(rename = "self")]
    This,
    /// Like `self`, but at one of this machine's own addresses instead of 127.0.0.1, such as `::1`.
    At(IpAddr),
    /// A host of the plan's lab, by its name there.
    Lab(String),
    /// A lab that is already up: its name and the host's name in it.
    #[serde(rename = "lab-up")]
    LabUp(String, String),
    /// A `fathom serve` at this address and port.
    Tls {
        /// The listening address.
        address: String,
        /// The fingerprint of its certificate and the secret token; omitted when a plan is printed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// Its address on the path under test; absent if that is the listening address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<IpAddr>,
    },
    /// An agent that the system's `ssh` starts.
    Ssh(SshHost),
    /// An agent that any other command starts.
    Exec(ExecHost),
    /// An agent that is a pod of a Kubernetes cluster.
    Kubernetes(Box<KubernetesHost>),
    /// A host of an inventory; replaced by one of the others before a plan is checked.
    Inventory(InventoryReference),
}

impl HostReach {
    /// Whether it is a host of a lab.
    #[must_use]
    pub const fn is_of_lab(&self) -> bool {
        matches!(self, Self::Lab(_) | Self::LabUp(..))
    }

    /// Whether the host shares the processors of the machine that fathom runs on.
    #[must_use]
    pub const fn is_on_this_machine(&self) -> bool {
        match self {
            Self::This | Self::At(_) | Self::Lab(_) | Self::LabUp(..) => true,
            Self::Tls { .. } | Self::Ssh(_) | Self::Exec(_) | Self::Kubernetes(_) | Self::Inventory(_) => false,
        }
    }

    /// The address of the host on the path under test, if the plan sets one.
    #[must_use]
    pub const fn data(&self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(*address),
            Self::Tls { data, .. } => *data,
            Self::Ssh(host) => host.data,
            Self::Exec(host) => host.data,
            Self::Kubernetes(host) => host.data,
            Self::This | Self::Lab(_) | Self::LabUp(..) | Self::Inventory(_) => None,
        }
    }
}

/// Which hosts of a test talk to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// Every host of one side with the single host of the other side.
    Star,
    /// Every host with the next one, and the last one with the first.
    Ring,
    /// Every host of one side with every host of the other side; without another side, every host with all others.
    Mesh,
}

/// What the loss of a host means for a trial of several hosts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// The trial ends, and so does the run.
    #[default]
    Fail,
    /// The others go on without it.
    Continue,
}

impl OnLoss {
    /// Whether it is the default, which a plan leaves out.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A search for the highest rate that keeps an objective, instead of a measurement at one rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchPlan {
    /// The objective, such as `latency_ns_p99 < 20ms`.
    pub objective: String,
    /// The option of the kind that sets the rate; `rate` when it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<String>,
    /// The lowest rate to offer, where the search begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<String>,
    /// The highest rate to offer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<String>,
    /// The target distance between the ends of the interval, such as `2.5%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// The confidence of the interval, such as `95%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<String>,
    /// The maximum number of trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<u32>,
}

/// Benchmarking methods to run at one frame size, instead of a measurement at one rate.
///
/// Absent values are filled in when the plan is completed: with short trials, or with `conform` at the durations of the RFCs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkPlan {
    /// The methods in their order: `throughput`, `mlrsearch`, `loss`, `back-to-back` and so on.
    pub methods: Vec<String>,
    /// Whether trials, waits and repetitions have the durations and counts of the RFCs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conform: bool,
    /// The highest rate to offer; absent for the line rate or the tool's own maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rate: Option<String>,
    /// The lowest rate of a search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rate: Option<String>,
    /// The goals of `mlrsearch`: `ndr`, `pdr`, or `LOSS:TRIAL:SUM:EXCEED` such as `0.5%:1s:21s:50%`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<String>,
    /// The target distance between the bounds of a search, such as `0.5%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// The length of a trial stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<String>,
    /// The wait after each trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<String>,
    /// The time limit of one search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_time: Option<String>,
    /// The step between the loads of a loss curve, in percent of the maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_step: Option<String>,
    /// The longest burst of `back-to-back`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_max: Option<String>,
    /// The resolution of the burst search, in frames.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_step: Option<u64>,
    /// The number of repetitions of the search for the longest burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_searches: Option<u32>,
    /// The length of a stream for measuring latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_trial: Option<String>,
    /// The number of such streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_runs: Option<u32>,
    /// The number of overload runs to measure the recovery time of a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_runs: Option<u32>,
    /// How long frames are sent while the device is reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_trial: Option<String>,
}

/// One test between two hosts, or of a target that runs no fathom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestPlan {
    /// Its name in results and in `expect`; unique in a plan.
    pub name: String,
    /// The kind of test.
    pub kind: String,
    /// The initiating host, or a group of them.
    pub from: String,
    /// The responding host, or a group of them; absent if the target is an address in the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Which hosts of the groups talk to each other. Absent for two hosts, and for a star.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Whether each pair of hosts gets the whole of rates, flows, connections and users, and not a part of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each: bool,
    /// Whether the run does without it where its hosts cannot begin it, such as for want of a privilege.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// The test of the plan that this one runs together with, from the same start: the same test in the other direction. It is part of each
    /// trial of that test. Absent for a test on its own.
    #[serde(default, rename = "beside", skip_serializing_if = "Option::is_none")]
    pub paired_with: Option<String>,
    /// The longest warm-up, such as `500ms`.
    pub warmup: String,
    /// The measured time in each round, such as `2s`.
    pub duration: String,
    /// The kind's options.
    #[serde(default)]
    pub options: Settings,
    /// The search parameters if this test is a search for a limit; absent for a test at one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchPlan>,
    /// The methods if this test is a benchmark; absent for a test at one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<BenchmarkPlan>,
    /// The path that it takes, by its name in `paths`; absent for the addresses of the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The comparison that it belongs to, by its name in `comparisons`. The first test of a comparison is its reference; another one of
    /// the same path shows the noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<String>,
    /// What happens during each trial: a time since its start and a command, or a built-in event of a lab. They run on the machine of the
    /// controller, or on the host of a lab that `on=HOST` names.
    #[serde(default, rename = "at", skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Commands that run after each trial that had events, even after one that was interrupted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub afterwards: Vec<String>,
    /// The promises by metric, such as `throughput_bps = ">= 10G"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expect: BTreeMap<String, String>,
}

/// A way between the hosts of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathPlan {
    /// Its name, such as `direct`.
    pub name: String,
    /// Where each host is on this path: an address, or the name of the interface that has it. Other hosts keep their address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at: BTreeMap<String, String>,
    /// The device that its packets pass; absent for none. It is the host of `via`, and its counters are compared with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The hosts whose usual address the device translates into the one that they have here: they listen here, and the others send there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub translated: Vec<String>,
}

/// Tests of several paths with the same work, which take turns in every round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComparisonPlan {
    /// Its name; unique in a plan.
    pub name: String,
    /// The value of a sweep that it measures at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<SweepPoint>,
    /// The command that sets this value on the device, before its trials of each round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
}

/// The commands of a device under test, which `sh -c` runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceCommands {
    /// The host of the lab on which they run; absent for this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Starts the device, before the first trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Stops it, after the last trial and whenever the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Prints its counters as one JSON object of numbers, before and after each trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<String>,
    /// The maps of its eBPF programs that are counters, read before and after each trial: a pinned path, an id or a name, and after a colon
    /// the names of keys, such as `xdp_stats:1=dropped,2=passed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<String>,
}

impl DeviceCommands {
    /// Whether there is none, which a plan leaves out.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The times of each trial of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialTimes {
    /// The longest warm-up.
    pub warmup: Nanos,
    /// The measured time.
    pub duration: Nanos,
}

impl TestPlan {
    /// A test of this kind from a host, named like the kind: without another host, options, promises and further goals.
    #[must_use]
    pub fn new(kind: &str, times: TrialTimes, from: &str) -> Self {
        Self {
            name: kind.to_owned(),
            kind: kind.to_owned(),
            from: from.to_owned(),
            to: None,
            topology: None,
            each: false,
            optional: false,
            paired_with: None,
            warmup: times.warmup.exact(),
            duration: times.duration.exact(),
            options: Settings::default(),
            search: None,
            benchmark: None,
            path: None,
            comparison: None,
            events: Vec::new(),
            afterwards: Vec::new(),
            expect: BTreeMap::new(),
        }
    }
}

impl Plan {
    /// One round of these tests, with the seed 0 and without hosts.
    #[must_use]
    pub fn new(title: impl Into<String>, tests: Vec<TestPlan>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            title: title.into(),
            rounds: 1,
            until_ci: None,
            prove: false,
            seed: 0,
            lab: None,
            via: None,
            paths: Vec::new(),
            comparisons: Vec::new(),
            device: DeviceCommands::default(),
            hosts: BTreeMap::new(),
            groups: BTreeMap::new(),
            on_loss: OnLoss::Fail,
            heads: None,
            tests,
        }
    }
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
    /// The device between its hosts, such as `router` or `policer:200k,512`; absent for a wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Whether a second wire joins the hosts directly, beside the device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct_wire: bool,
}

/// The complete description of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`SCHEMA`].
    pub schema: String,
    /// A one-line title for people.
    pub title: String,
    /// The number of passes through the list of tests; each pass is one trial of each test.
    pub rounds: u32,
    /// The maximum half-width of the interval of each test's first value, such as `2%`: the rounds end early once all intervals are this
    /// narrow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ci: Option<String>,
    /// Whether the tests are repeated after the rounds with one option changed, to prove or refute the causes that were found.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prove: bool,
    /// The seed of all random numbers.
    #[serde(default)]
    pub seed: u64,
    /// The lab, if the run builds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<LabPlan>,
    /// The hosts by name.
    pub hosts: BTreeMap<String, HostReach>,
    /// The groups of hosts that tests may name, in the order of their links.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Vec<String>>,
    /// What the loss of a host means for a test of several hosts.
    #[serde(default, skip_serializing_if = "OnLoss::is_default")]
    pub on_loss: OnLoss,
    /// The number of groups in which the hosts of several pairs are connected: one host of each is the head of the others, which are reached
    /// through it. Absent if all are connected directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<u32>,
    /// The host between the two sides of every test: a device under test, whose counters are read in addition to theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The ways between the hosts that tests may take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathPlan>,
    /// The comparisons that tests may belong to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<ComparisonPlan>,
    /// The commands of the device under test.
    #[serde(default, skip_serializing_if = "DeviceCommands::is_default")]
    pub device: DeviceCommands,
    /// The tests, in the order of a round.
    pub tests: Vec<TestPlan>,
}
