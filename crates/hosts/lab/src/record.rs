//! The description of a lab by its holder.

use std::net::IpAddr;

use fathom_sys::{
    netlink::namespace::is_first_user_namespace,
    process::{ProcessIdentity, may_administer_network},
};
use serde::{Deserialize, Serialize};

use crate::{DeviceRecord, Interface, LabName};

/// The prefix of the run whose journal belongs to a lab that is up.
pub(crate) const RUN_PREFIX: &str = "lab-";

/// The file format of a [`ProcessIdentity`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "ProcessIdentity")]
pub(crate) struct IdentityText {
    pid: u32,
    start_ticks: u64,
}

/// The privileges of the hosts of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabState {
    /// Root: everything works.
    Root,
    /// Root in a container, which is not root on the machine.
    Contained,
    /// A user namespace created for the lab.
    Rootless,
}

impl LabState {
    /// The privileges that this process can give to a lab.
    #[must_use]
    pub fn of_this_process() -> Self {
        match (may_administer_network(), is_first_user_namespace()) {
            (true, true) => Self::Root,
            (true, false) => Self::Contained,
            (false, _) => Self::Rootless,
        }
    }
}

/// A feature that does not work in a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingFeature {
    /// The feature.
    pub what: &'static str,
    /// The reason, and the alternative.
    pub why: &'static str,
}

/// A setting that differs between a new network namespace and this machine: reported, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingDifference {
    /// The path below `/proc/sys/net`.
    pub setting: String,
    /// The value on this machine.
    pub machine: String,
    /// The value on the hosts of the lab.
    pub lab: String,
}

/// The description of a lab by its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabRecord {
    /// The preset that it was built from.
    pub preset: String,
    /// The process that holds it.
    #[serde(with = "IdentityText")]
    pub holder: ProcessIdentity,
    /// The privileges of its hosts.
    pub standing: LabState,
    /// Its hosts, in the order of the preset.
    pub hosts: Vec<HostRecord>,
    pub(crate) differences: Vec<SettingDifference>,
    /// The device between its hosts.
    #[serde(default)]
    pub device: Option<DeviceRecord>,
}

/// The description of a host by its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// The name within its lab.
    pub name: LabName,
    /// Its network devices other than loopback.
    pub interfaces: Vec<Interface>,
    /// The address that it shares with the other targets of a device.
    #[serde(default)]
    pub virtual_address: Option<IpAddr>,
    /// The holder's descriptor that keeps the namespace alive: any tool can enter `/proc/PID/fd/N`.
    pub descriptor: i32,
}

/// The features missing without root; a container lacks all but the last.
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
