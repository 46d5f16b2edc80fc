//! The topologies of labs, one file each.
//!
//! All addresses are from 198.18.0.0/15 and `2001:2::/48`, which RFC 2544 and RFC 5180 reserve for benchmarking, so they cannot collide
//! with a real network.

mod pair;
mod router;

use crate::{Device, Error, Host, Options, Result, device, family::Family};

/// All topologies.
pub const PRESETS: &[&Preset] = &[&pair::PRESET, &pair::PRESET_6, &router::PRESET];

/// A topology by name.
#[derive(Debug)]
pub struct Preset {
    /// The name on the command line.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// The names of its hosts, in the order of traffic, without a device chosen by option.
    pub hosts: &'static [&'static str],
    /// The built-in device.
    pub(crate) device: Option<Device>,
    family: Family,
}

impl Preset {
    /// Returns the device between its hosts: the built-in one or the one in the options.
    ///
    /// # Errors
    /// [`Error::BadDevice`] if both specify a device and they differ.
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

/// Finds a topology by name.
///
/// # Errors
/// [`Error::UnknownPreset`], whose hint lists all names.
pub fn find(name: &str) -> Result<&'static Preset> {
    let found = PRESETS.iter().copied().find(|preset| preset.name == name);
    found.ok_or_else(|| Error::UnknownPreset { given: name.to_owned(), known: names() })
}

/// The names of all topologies.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}
