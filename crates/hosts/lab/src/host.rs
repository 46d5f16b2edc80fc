//! A host of a lab: a network namespace with named interfaces.

use crate::{Error, LabName, Result};
use fathom_model::{MacAddress, units::Bytes};
use fathom_sys::{
    netlink::namespace::Namespaces,
    process::{ParentBond, ProcessPlace, ProcessSpec, confinement::Confinement},
};
use serde::{Deserialize, Serialize};
use std::{
    net::IpAddr,
    process::{Child, Command},
};

/// A network device of a host, as built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The name of the device, such as `eth0`.
    pub name: String,
    /// The address of the host on this wire.
    pub address: IpAddr,
    /// The number of leading bits shared by all addresses of the wire.
    pub prefix_len: u8,
    /// The Ethernet address.
    pub mac: MacAddress,
    /// The MTU of the device.
    #[serde(rename = "mtu_bytes")]
    pub mtu: Bytes,
}

/// A network namespace that represents a machine.
///
/// It has no hardware of its own: all hosts of a lab share the cores, the clock and the file system of this machine.
#[derive(Debug)]
pub struct Host {
    pub(crate) name: LabName,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) virtual_address: Option<IpAddr>,
    pub(crate) namespaces: Namespaces,
}

impl Host {
    /// The name within its lab, such as `a`.
    #[must_use]
    pub fn name(&self) -> &LabName {
        &self.name
    }

    /// Its network devices other than loopback, at least one.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the first address, at which tests reach the host.
    ///
    /// # Panics
    /// Never: a preset gives every host an interface.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.interfaces.first().expect("a host has an interface").address
    }

    /// Returns the address that this host shares with the other targets of a device, through which it is reached there.
    #[must_use]
    pub fn virtual_address(&self) -> Option<IpAddr> {
        self.virtual_address
    }

    /// The namespaces that a process has to enter to be on this host.
    #[must_use]
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Starts a process on this host, with the limits of its faults; it is killed when this process exits.
    ///
    /// The caller chooses its standard streams.
    ///
    /// # Errors
    /// If the program cannot be started or the host cannot be entered.
    pub fn start(&self, command: Command) -> Result<Child> {
        self.start_in(&self.namespaces, command, ParentBond::DiesWithParent)
    }

    /// Starts a process on this host without the limits of its faults.
    pub(crate) fn start_unconfined(&self, command: Command) -> Result<Child> {
        self.start_under(Confinement::default(), command, ParentBond::DiesWithParent)
    }

    /// Starts a process on this host with these limits instead of those of its faults.
    pub(crate) fn start_under(&self, limits: Confinement, command: Command, bond: ParentBond) -> Result<Child> {
        self.start_in(&self.with_limits(limits)?, command, bond)
    }

    fn with_limits(&self, confinement: Confinement) -> Result<Namespaces> {
        let namespaces = self.namespaces.try_clone().map_err(Error::kernel(format!("enter host {}", self.name)))?;
        Ok(Namespaces { confinement, ..namespaces })
    }

    fn start_in(&self, namespaces: &Namespaces, command: Command, bond: ParentBond) -> Result<Child> {
        let attempt = format!("start {} on host {}", command.get_program().display(), self.name);
        let start = ProcessSpec { command, place: ProcessPlace::In(namespaces), bond };
        start.spawn().map_err(Error::kernel(attempt))
    }

    /// Runs `work` in a thread on this host; a socket returned by `work` stays on the host.
    ///
    /// # Errors
    /// [`Error::NeedsProcess`] in a rootless lab, which only a separate process can enter.
    pub fn enter_with<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        if self.namespaces.user.is_some() {
            return Err(Error::NeedsProcess(self.name.as_str().to_owned()));
        }
        self.namespaces.net.enter_with(work).map_err(Error::kernel(format!("enter host {}", self.name)))
    }
}
