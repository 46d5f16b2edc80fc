//! The topologies of labs, one file each.
//!
//! All addresses are from 198.18.0.0/15 and `2001:2::/48`, which RFC 2544 and RFC 5180 reserve for benchmarking, so they cannot collide
//! with a real network.

mod pair;
mod router;
mod star;
mod targets;

use crate::{
    Device, Error, Host, Options, Result,
    device::{self, FittedDevice, ProgramLoader},
    family::Family,
};

pub use pair::{DIRECT, THROUGH};
pub use star::TESTED;
pub use targets::{CLIENT, CLIENT_SOURCES, FIRST_TARGET};

/// The host of the bridge that joins all others. No test runs on it.
pub const SWITCH: &str = "switch";

/// All topologies.
pub const PRESETS: &[&Preset] = &[
    &pair::PRESET,
    &pair::PRESET_6,
    &router::PRESET,
    &star::PRESET,
    &star::PRESET_6,
    &targets::PRESET,
    &targets::PRESET_6,
];

/// How the hosts of a topology are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Two hosts, and maybe a device between them.
    Line,
    /// Any number of hosts on a switch.
    Star,
    /// A client, a device, and any number of targets behind it.
    Targets,
}

impl Shape {
    /// The numbers of hosts, or of targets, that may be chosen.
    const fn numbers(self) -> Option<std::ops::RangeInclusive<u32>> {
        match self {
            Self::Line => None,
            Self::Star => Some(star::N_HOSTS),
            Self::Targets => Some(targets::N_TARGETS),
        }
    }
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
        let refused = |device: &Device, why: String| Error::BadDevice {
            given: device.to_string(),
            why: format!("the preset {} {why}", self.name),
            known: device::forms(),
        };
        if let Some(narrow @ Device::Squeeze(mtu_bytes)) = &options.device
            && *mtu_bytes >= options.mtu_bytes
        {
            return Err(Error::BadDevice {
                given: narrow.to_string(),
                why: format!("the links carry no more than {} bytes anyway; --mtu makes them wider", options.mtu_bytes),
                known: device::forms(),
            });
        }
        match (self.shape, &self.device, &options.device) {
            (Shape::Star, _, Some(other)) => {
                Err(refused(other, "has its hosts on a switch; use the preset pair".to_owned()))
            }
            (Shape::Targets, _, Some(other)) if !other.is_before_targets() => {
                Err(refused(other, "has many targets: use router, dnat or balancer, or the preset pair".to_owned()))
            }
            (Shape::Targets, _, other) => Ok(Some(other.clone().unwrap_or(Device::Router))),
            (_, _, Some(other)) if other.needs_targets() => {
                Err(refused(other, "has no targets to divide traffic among: use the preset targets:N".to_owned()))
            }
            (_, Some(own), Some(other)) if own != other => {
                Err(refused(other, format!("has the device {own} already; use the preset pair")))
            }
            (_, own, other) => Ok(own.clone().or_else(|| other.clone())),
        }
    }

    /// Returns the names of the hosts between which tests run, without the devices that join them.
    #[must_use]
    pub fn ends(&self, options: &Options) -> Vec<String> {
        match self.shape {
            Shape::Line => ["a", "b"].map(str::to_owned).to_vec(),
            Shape::Star => star::host_names(options.n_hosts.unwrap_or(star::N_HOSTS_DEFAULT)),
            Shape::Targets => {
                let n_targets = options.n_hosts.unwrap_or(targets::N_TARGETS_DEFAULT);
                [vec![CLIENT.to_owned()], targets::target_names(n_targets)].concat()
            }
        }
    }

    /// Returns true if it joins any number of hosts, of which one is the tested one.
    #[must_use]
    pub fn has_companions(&self) -> bool {
        self.shape == Shape::Star
    }

    /// Returns true if it has a client, a device, and targets that share a virtual address.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        self.shape == Shape::Targets
    }

    pub(crate) fn build(&self, options: &Options) -> Result<Vec<Host>> {
        let mut hosts = match (self.shape, self.device(options)?) {
            (Shape::Star, _) => {
                return star::build(options.n_hosts.unwrap_or(star::N_HOSTS_DEFAULT), self.family, options);
            }
            (Shape::Targets, device) => {
                let n_targets = options.n_hosts.unwrap_or(targets::N_TARGETS_DEFAULT);
                return targets::build(n_targets, self.family, options, &device.unwrap_or(Device::Router));
            }
            (Shape::Line, Some(device)) => device::build(&device, self.family, options)?,
            (Shape::Line, None) => pair::build(self.family, options)?,
        };
        if options.has_direct_wire {
            pair::lay_direct_wire(&mut hosts, self.family, options)?;
        }
        Ok(hosts)
    }

    /// Prepares the device between the hosts that were built.
    pub(crate) fn fit(
        &self,
        hosts: &[Host],
        device: Device,
        options: &Options,
        programs: &dyn ProgramLoader,
    ) -> Result<FittedDevice> {
        if self.has_targets() {
            device::fit_before_targets(hosts, device, programs)
        } else {
            device::fit(hosts, device, options, programs)
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

/// Returns true if a text such as `pair` or `star:4` begins with the name of a topology.
#[must_use]
pub fn is_known(text: &str) -> bool {
    find(text.split(':').next().unwrap_or_default()).is_ok()
}

/// Finds a topology by a text such as `pair`, `star:4` or `targets:2`, whose number of hosts or targets it adds to the options.
///
/// # Errors
/// [`Error::UnknownPreset`]; [`Error::BadHostCount`] for a number that the topology cannot have.
pub fn chosen(text: &str, options: Options) -> Result<(&'static Preset, Options)> {
    let Some((name, number)) = text.split_once(':') else { return Ok((find(text)?, options)) };
    let preset = find(name)?;
    let range = preset.shape.numbers();
    let n_hosts = number.parse().ok().filter(|n| range.as_ref().is_some_and(|range| range.contains(n)));
    let wrong = || Error::BadHostCount { given: text.to_owned(), known: numbered() };
    Ok((preset, Options { n_hosts: Some(n_hosts.ok_or_else(wrong)?), ..options }))
}

/// The topologies that have a number, each with its range.
fn numbered() -> String {
    let form = |preset: &&Preset| {
        let range = preset.shape.numbers()?;
        Some(format!("{}:N with N from {} to {}", preset.name, range.start(), range.end()))
    };
    PRESETS.iter().filter_map(form).collect::<Vec<_>>().join(", ")
}

/// The names of all topologies.
#[must_use]
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}
