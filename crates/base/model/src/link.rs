//! Tests of several pairs of hosts: the pairs with their values, and how the work divides among them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::summary::Confidence;

/// A pair of hosts between which a test of several hosts runs, with its values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Link {
    /// The initiating host.
    pub from: String,
    /// The responding host; absent if the target runs no fathom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The mean of each metric over the trials, by the name of the metric, in its unit. Quantiles come from merged distributions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, f64>,
    /// The main rate in each trial that has one, in the unit of its metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<f64>,
}

/// How evenly several hosts or flows share a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Spread {
    /// The number of hosts or flows.
    pub n: u64,
    /// The smallest share, in the unit of the metric.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The largest share.
    pub max: f64,
    /// Jain's index: 1 if all are equal, 1/n if one has everything (Jain, Chiu and Hawe, DEC-TR-301, 1984).
    pub jain: f64,
}

/// How the work of a test divides among its hosts and flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sharing {
    /// The name of the rate that is divided.
    pub metric: String,
    /// The rate of each host that has one, over its pairs.
    pub by_host: BTreeMap<String, f64>,
    /// The spread of the hosts at the ends that differ; absent for a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Spread>,
    /// The spread of the connections that the kernel described, in bits per second; absent for fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Spread>,
    /// The hosts that were lost in some trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// The host at the center of a star, by its own counters; absent for other tests and for a host that was not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<TestedHost>,
    /// How the rate grew up to this number of companions; absent if no other test of the run differs only in that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// The interface of a tested host and what works for it, while all pairs measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TestedHost {
    /// Its name.
    pub host: String,
    /// Its interface on the path under test.
    pub interface: String,
    /// Frames received per second (`/proc/net/dev`), as the other rates the mean over the trials.
    pub rx_frames_per_sec: f64,
    /// Frames sent per second.
    pub tx_frames_per_sec: f64,
    /// Bytes received per second, without FCS.
    pub rx_bytes_per_sec: f64,
    /// Bytes sent per second.
    pub tx_bytes_per_sec: f64,
    /// The queues of the interface, the busiest first; empty for a device without interrupts of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueShare>,
    /// The cores, the one with the most packets first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<CoreShare>,
}

/// A queue of an interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct QueueShare {
    /// Its interrupt and its name in `/proc/interrupts`.
    pub name: String,
    /// The number of the core that took most of its newest interrupts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u64>,
    /// Its part of the interrupts of all queues, 0 to 1.
    pub share: f64,
}

/// A core of a tested host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CoreShare {
    /// Its name, such as `cpu0`.
    pub core: String,
    /// Its part of the packets that all cores took from devices, 0 to 1 (`/proc/net/softnet_stat`).
    pub packets: f64,
    /// The part of the time that it was busy, 0 to 1; absent if it was not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
}

/// How a rate grows with the number of companions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Growth {
    /// The name of the rate.
    pub metric: String,
    /// One point per test, the fewest companions first.
    pub points: Vec<GrowthPoint>,
    /// The number of companions from which on more of them add hardly anything; absent if the rate still grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<u64>,
}

/// The rate with a number of companions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GrowthPoint {
    /// The number of companions.
    pub n_hosts: u64,
    /// The name of the test.
    pub test: String,
    /// The rate, in the unit of its metric.
    pub value: f64,
    /// The interval around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
}
