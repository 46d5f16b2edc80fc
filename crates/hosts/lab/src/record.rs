//! A lab as its holder describes it to others.

use fathom_sys::{
    netlink::namespace::is_first_user_namespace,
    process::{ProcessIdentity, may_administer_network},
};
use serde::{Deserialize, Serialize};

use crate::{DeviceRecord, Interface, LabName};

/// The name of the run whose journal stands for a lab that is up.
pub(crate) const RUN_PREFIX: &str = "lab-";

/// How [`ProcessIdentity`] looks in the file.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ProcessIdentity")]
pub(crate) struct IdentityText {
    pid: u32,
    start_ticks: u64,
}

/// With which rights the hosts of a lab exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabState {
    /// Those of root: everything works.
    Root,
    /// Those of root in a container, which the machine does not take for root.
    Contained,
    /// Those of a user namespace made for the lab.
    Rootless,
}

impl LabState {
    /// What this process can give to a lab.
    #[must_use]
    pub fn of_this_process() -> Self {
        match (may_administer_network(), is_first_user_namespace()) {
            (true, true) => Self::Root,
            (true, false) => Self::Contained,
            (false, _) => Self::Rootless,
        }
    }
}

/// Something that does not work in a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingFeature {
    /// What is lost.
    pub what: &'static str,
    /// Why, and what takes its place.
    pub why: &'static str,
}

/// A setting that a fresh network namespace has otherwise than this machine: reported, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingDifference {
    /// The path below `/proc/sys/net`.
    pub setting: String,
    /// What this machine has.
    pub machine: String,
    /// What the hosts of the lab have.
    pub lab: String,
}

/// A lab as its holder describes it to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabRecord {
    /// The preset that it was built from.
    pub preset: String,
    /// The process that holds it.
    #[serde(with = "IdentityText")]
    pub holder: ProcessIdentity,
    /// With which rights its hosts exist.
    pub standing: LabState,
    /// Its hosts, in the order of the preset.
    pub hosts: Vec<HostRecord>,
    pub(crate) differences: Vec<SettingDifference>,
    /// The device between its hosts.
    #[serde(default)]
    pub device: Option<DeviceRecord>,
}

/// A host as its holder describes it to others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// The name within its lab.
    pub name: LabName,
    /// Its devices besides loopback.
    pub interfaces: Vec<Interface>,
    /// The descriptor of the holder that keeps the namespace: `/proc/PID/fd/N` can be entered by any tool.
    pub descriptor: i32,
}

/// What is lost without root; a container loses all but the last.
pub(crate) const LOSSES: &[MissingFeature] = &[
    MissingFeature {
        what: "XDP programs and AF_XDP",
        why: "the kernel takes programs only from CAP_BPF outside a user namespace; frames are counted by AF_PACKET",
    },
    MissingFeature {
        what: "settings of the whole machine",
        why: "net.core.rmem_max and the like belong to root, so socket buffers keep their limits",
    },
    MissingFeature {
        what: "work inside a host from this process",
        why: "a process with threads cannot enter a user namespace; a child is started for it",
    },
];
