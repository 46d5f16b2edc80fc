//! The device and the Ethernet address by which packets reach the server.

use std::net::IpAddr;

use fathom_engine::Error;
use fathom_model::{MacAddress, units::Nanos};
use fathom_sys::{
    clock,
    netlink::{Link, Netlink},
    socket,
};

use super::{
    error::{SOCKETS, refusal},
    target::Target,
};

/// How long a driver may take to bring its link up again after a program was attached.
const LINK_RETURNS: Nanos = Nanos::from_secs(5);
const STEP: Nanos = Nanos::from_millis(5);

/// A device that leads to the server.
#[derive(Debug)]
pub(super) struct Route {
    netlink: Netlink,
    pub(super) link: Link,
    pub(super) mac: MacAddress,
    /// The address that the kernel itself would send from.
    pub(super) own_address: IpAddr,
    /// The host that gets the frames: the server, or the router towards it.
    next_host: IpAddr,
}

impl Route {
    /// Asks the kernel how it would reach the server. Nothing is sent.
    pub(super) fn find(target: &Target) -> Result<Self, Error> {
        let to = target.server.ip();
        let failed = |cause| Error::System { what: format!("find the way to {to}"), cause };
        let mut netlink = Netlink::open().map_err(failed)?;
        let hop = netlink.next_hop(to).map_err(failed)?;
        let link = netlink.links().map_err(failed)?.into_iter().find(|link| link.index == hop.link);
        let link = link.ok_or_else(|| refusal(format!("the way to {to} leads through no device of this host")))?;
        let name = &link.name;
        if name == LOOPBACK {
            let what = format!("{to} is an address of this host itself, and nothing goes over a device to it");
            return Err(Error::Unsupported { what, hint: Some(format!("{SOCKETS}, or try it in a lab: --lab pair")) });
        }
        let mac = link.mac.ok_or_else(|| refusal(format!("{name} has no Ethernet address")))?;
        let own_address = socket::source_towards(&target.destination).map_err(failed)?;
        let route = Self { netlink, mac, own_address, next_host: hop.gateway.unwrap_or(to), link };
        route.require_carrier()?;
        Ok(route)
    }

    /// The Ethernet address of the next host, which is known once something was exchanged with the server.
    pub(super) fn next_hop(&mut self) -> Result<MacAddress, Error> {
        let (host, name) = (self.next_host, &self.link.name);
        let failed = |cause| Error::System { what: format!("ask for the Ethernet address of {host}"), cause };
        let mac = self.netlink.neighbour(self.link.index, host).map_err(failed)?;
        mac.ok_or_else(|| Error::Unsupported {
            what: format!("the Ethernet address of {host} is not known on {name}"),
            hint: Some(format!("ping -c 1 {host}")),
        })
    }

    /// All addresses of this host.
    pub(super) fn host_addresses(&mut self) -> Result<Vec<IpAddr>, Error> {
        let failed = |cause| Error::System { what: "find the addresses of this host".to_owned(), cause };
        Ok(self.netlink.addresses().map_err(failed)?.into_iter().map(|(_, address)| address).collect())
    }

    /// Waits until the link is back after a program was attached.
    pub(super) fn wait_for_carrier(&mut self) -> Result<(), Error> {
        let deadline = clock::now() + LINK_RETURNS;
        loop {
            let name = self.link.name.clone();
            let failed = |cause| Error::System { what: format!("look at {name}"), cause };
            self.link = self.netlink.link(&name).map_err(failed)?;
            if self.link.has_carrier || clock::now() >= deadline {
                return self.require_carrier();
            }
            clock::sleep_until(clock::now() + STEP);
        }
    }

    fn require_carrier(&self) -> Result<(), Error> {
        let name = &self.link.name;
        if self.link.is_up && self.link.has_carrier {
            return Ok(());
        }
        let what = format!("{name}, which leads to the server, has no carrier");
        Err(Error::Unsupported { what, hint: Some("check the cable, or set the other end up".to_owned()) })
    }
}

/// The kernel's loopback device, which has no driver.
const LOOPBACK: &str = "lo";
