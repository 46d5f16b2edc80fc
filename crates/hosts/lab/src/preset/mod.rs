//! The topologies that a lab can have, one file each.
//!
//! All addresses are from 198.18.0.0/15 and `2001:2::/48`, which RFC 2544 and RFC 5180 set aside for measuring: they can collide with
//! nobody's network.

mod pair;
mod router;

use crate::{Device, Error, Host, Result, device, family::Family};
use serde::{Deserialize, Serialize};

/// Every topology.
pub const PRESETS: &[&Preset] = &[&pair::PRESET, &pair::PRESET_6, &router::PRESET];

/// A topology by name.
#[derive(Debug)]
pub struct Preset {
    /// The name on the command line.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// The names of its hosts, in the order of traffic, without the device of the options.
    pub hosts: &'static [&'static str],
    /// The device that it has in any case.
    pub(crate) device: Option<Device>,
    family: Family,
}

/// What can be chosen about a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The MTU of every wire, 68 to 65535 bytes.
    pub mtu_bytes: u32,
    /// The queues of every device, each way, 1 to 64.
    pub n_queues: u32,
    /// What stands between the hosts; a wire when absent.
    pub device: Option<Device>,
    /// The core that the device is to run on; absent for wherever frames are sent to it.
    pub device_core: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        // What Ethernet has, and what one core can serve.
        Self { mtu_bytes: 1500, n_queues: 1, device: None, device_core: None }
    }
}

impl Options {
    /// Checks the ranges, before anything is touched.
    ///
    /// # Errors
    /// [`Error::BadOption`] for the first that is outside.
    pub fn validate(&self) -> Result<()> {
        if !(68..=65_535).contains(&self.mtu_bytes) {
            return Err(Error::BadOption { option: "MTU", given: self.mtu_bytes, range: "68 to 65535 bytes" });
        }
        if !(1..=64).contains(&self.n_queues) {
            return Err(Error::BadOption { option: "queue count", given: self.n_queues, range: "1 to 64" });
        }
        Ok(())
    }
}

impl Preset {
    /// The device between its hosts, by the options or its own.
    ///
    /// # Errors
    /// [`Error::BadDevice`] when both name one.
    pub fn device(&self, options: &Options) -> Result<Option<Device>> {
        match (self.device, options.device) {
            (Some(own), Some(other)) if own != other => Err(Error::BadDevice {
                given: other.to_string(),
                why: format!("the preset {} has the device {own} already; use the preset pair", self.name),
                known: device::forms(),
            }),
            (own, other) => Ok(own.or(other)),
        }
    }

    pub(crate) fn build(&self, options: &Options) -> Result<Vec<Host>> {
        match self.device(options)? {
            Some(device) => device::build(device, self.family, options),
            None => pair::build(self.family, options),
        }
    }
}

/// Looks a topology up by name.
///
/// # Errors
/// [`Error::UnknownPreset`], whose hint names them all.
pub fn find(name: &str) -> Result<&'static Preset> {
    let found = PRESETS.iter().copied().find(|preset| preset.name == name);
    found.ok_or_else(|| Error::UnknownPreset { given: name.to_owned(), known: names() })
}

/// The names of all topologies.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}
