//! The topologies of labs, one file each.
//!
//! All addresses are from 198.18.0.0/15 and `2001:2::/48`, which RFC 2544 and RFC 5180 reserve for benchmarking, so they cannot collide
//! with a real network.

mod pair;
mod router;
mod star;

use crate::{Device, Error, Host, Options, Result, device, family::Family};

pub use pair::{DIRECT, THROUGH};
pub use star::{SWITCH, TESTED};

/// All topologies.
pub const PRESETS: &[&Preset] = &[&pair::PRESET, &pair::PRESET_6, &router::PRESET, &star::PRESET, &star::PRESET_6];

/// How the hosts of a topology are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Two hosts, and maybe a device between them.
    Line,
    /// Any number of hosts on a switch.
    Star,
}

/// A topology by name.
#[derive(Debug)]
pub struct Preset {
    /// The name on the command line.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// The names of its hosts, in the order of traffic, without a device or a number chosen by option.
    pub hosts: &'static [&'static str],
    /// The built-in device.
    pub(crate) device: Option<Device>,
    shape: Shape,
    family: Family,
}

impl Preset {
    /// Returns the device between its hosts: the built-in one or the one in the options.
    ///
    /// # Errors
    /// [`Error::BadDevice`] if both specify a device and they differ.
    pub fn device(&self, options: &Options) -> Result<Option<Device>> {
        match (self.device, options.device) {
            (_, Some(other)) if self.shape == Shape::Star => Err(Error::BadDevice {
                given: other.to_string(),
                why: format!("the hosts of the preset {} are joined by a switch; use the preset pair", self.name),
                known: device::forms(),
            }),
            (Some(own), Some(other)) if own != other => Err(Error::BadDevice {
                given: other.to_string(),
                why: format!("the preset {} has the device {own} already; use the preset pair", self.name),
                known: device::forms(),
            }),
            (own, other) => Ok(own.or(other)),
        }
    }

    /// Returns the names of the hosts between which tests run, without the devices that join them.
    #[must_use]
    pub fn ends(&self, options: &Options) -> Vec<String> {
        match self.shape {
            Shape::Line => ["a", "b"].map(str::to_owned).to_vec(),
            Shape::Star => star::host_names(options.n_hosts.unwrap_or(star::N_HOSTS_DEFAULT)),
        }
    }

    /// Returns true if it joins any number of hosts, of which one is the tested one.
    #[must_use]
    pub fn has_companions(&self) -> bool {
        self.shape == Shape::Star
    }

    pub(crate) fn build(&self, options: &Options) -> Result<Vec<Host>> {
        if self.shape == Shape::Star {
            return star::build(options.n_hosts.unwrap_or(star::N_HOSTS_DEFAULT), self.family, options);
        }
        let mut hosts = match self.device(options)? {
            Some(device) => device::build(device, self.family, options)?,
            None => pair::build(self.family, options)?,
        };
        if options.has_direct_wire {
            pair::lay_direct_wire(&mut hosts, self.family, options)?;
        }
        Ok(hosts)
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

/// Finds a topology by a text such as `pair` or `star:4`, whose number of hosts it adds to the options.
///
/// # Errors
/// [`Error::UnknownPreset`]; [`Error::BadHostCount`] for a number that the topology cannot have.
pub fn chosen(text: &str, options: Options) -> Result<(&'static Preset, Options)> {
    let Some((name, number)) = text.split_once(':') else { return Ok((find(text)?, options)) };
    let preset = find(name)?;
    let n_hosts = number.parse().ok().filter(|n| preset.has_companions() && star::N_HOSTS.contains(n));
    let wrong = || Error::BadHostCount { given: text.to_owned(), range: star::N_HOSTS };
    Ok((preset, Options { n_hosts: Some(n_hosts.ok_or_else(wrong)?), ..options }))
}

/// The names of all topologies.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}
