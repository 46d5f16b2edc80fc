//! An interface of a host on a real network: a macvlan on an interface of this machine.
//!
//! The host then has an Ethernet address of its own on that wire, and reaches other machines on it. It cannot reach this machine through it: the
//! kernel passes no frames between a macvlan and the interface below (`drivers/net/macvlan.c`).

use std::{fmt, net::IpAddr, os::fd::AsFd as _, str::FromStr};

use fathom_model::units::Bytes;
use fathom_sys::netlink::{Macvlan, Netlink};
use serde::{Deserialize, Serialize};

use crate::{Error, Host, Interface, LabName, Result};

/// The name of an uplink on its host.
pub const UPLINK: &str = "uplink";

/// A host of the lab, the interface whose network it joins, and its address there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uplink {
    /// The host of the lab.
    pub host: LabName,
    /// The interface of this machine.
    pub interface: String,
    /// The address of the host on that network.
    pub address: IpAddr,
    /// The number of leading bits that all addresses of that network share.
    pub prefix_len: u8,
}

impl FromStr for Uplink {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |why: &str| {
            let fix = "use HOST=INTERFACE,ADDRESS/PREFIX, such as dut=eth1,192.0.2.10/24";
            Error::BadUplink { given: text.to_owned(), why: why.to_owned(), fix }
        };
        let lacks = |what: &str| refused(&format!("it has no {what}"));
        let (host, rest) = text.split_once('=').ok_or_else(|| lacks("host"))?;
        let (interface, network) = rest.split_once(',').ok_or_else(|| lacks("address"))?;
        if interface.is_empty() {
            return Err(lacks("interface"));
        }
        let (address, bits) = network.split_once('/').ok_or_else(|| lacks("prefix length"))?;
        let address: IpAddr = address.parse().map_err(|_| refused(&format!("{address} is not an IP address")))?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = bits.parse().ok().filter(|bits| (1..=bits_max).contains(bits));
        let prefix_len = prefix_len.ok_or_else(|| refused(&format!("the prefix length must be 1 to {bits_max}")))?;
        Ok(Self { host: host.parse()?, interface: interface.to_owned(), address, prefix_len })
    }
}

impl TryFrom<String> for Uplink {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Uplink> for String {
    fn from(uplink: Uplink) -> Self {
        uplink.to_string()
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={},{}/{}", self.host, self.interface, self.address, self.prefix_len)
    }
}

impl Uplink {
    /// The error in a lab without root.
    pub(crate) fn needs_root(&self) -> Error {
        self.refused("a lab without root cannot use the interfaces of this machine", "run it as root")
    }

    /// Joins the host to the network. The calling thread is in the namespace of the interface.
    pub(crate) fn join(&self, hosts: &mut [Host]) -> Result<()> {
        let known = hosts.iter().map(|host| host.name.to_string()).collect();
        let found = hosts.iter_mut().find(|host| host.name == self.host);
        let host = found.ok_or_else(|| Error::UnknownHost { host: self.host.to_string(), known })?;
        let failed = || Error::kernel(format!("join host {} to the network of {}", host.name, self.interface));
        let mut here = Netlink::open().map_err(failed())?;
        let has_none = |_| self.refused("this machine has no such interface", "ip link    # its interfaces");
        let parent = here.link(&self.interface).map_err(has_none)?;
        let namespace = host.namespaces.net.as_fd();
        here.add_macvlan(&Macvlan { name: UPLINK, parent: parent.index, namespace }).map_err(failed())?;
        let mut netlink = host.enter_with(Netlink::open)?.map_err(failed())?;
        let link = netlink.link(UPLINK).map_err(failed())?;
        netlink.add_address(link.index, self.address, self.prefix_len).map_err(|error| {
            let has_no_ipv6 = self.address.is_ipv6() && error.source.raw_os_error() == Some(EACCES);
            if has_no_ipv6 {
                self.refused("the hosts of this topology have no IPv6", "use pair6, star6 or targets6")
            } else {
                failed()(error)
            }
        })?;
        netlink.set_up(link.index).map_err(failed())?;
        netlink.await_addresses(link.index).map_err(failed())?;
        let mac = link.mac.unwrap_or_default();
        let mtu = Bytes(u64::from(link.mtu_bytes));
        let (address, prefix_len) = (self.address, self.prefix_len);
        host.interfaces.push(Interface { name: UPLINK.to_owned(), address, prefix_len, mac, mtu });
        Ok(())
    }

    fn refused(&self, why: &str, fix: &'static str) -> Error {
        Error::BadUplink { given: self.to_string(), why: why.to_owned(), fix }
    }
}

/// errno(3): the kernel's answer to an IPv6 address on a device on which IPv6 is disabled.
const EACCES: i32 = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_uplink_is_read_and_written_alike() {
        for text in ["dut=eth1,192.0.2.10/24", "a=enp3s0,2001:db8::7/64"] {
            assert_eq!(text.parse::<Uplink>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_uplink_without_one_of_its_parts_is_refused_by_name() {
        for (bad, reason) in [
            ("dut", "no host"),
            ("dut=eth1", "no address"),
            ("dut=,192.0.2.1/24", "no interface"),
            ("dut=eth1,192.0.2.10", "no prefix length"),
            ("dut=eth1,x/24", "x is not an IP address"),
            ("dut=eth1,192.0.2.10/33", "1 to 32"),
        ] {
            let error = bad.parse::<Uplink>().unwrap_err().to_string();
            assert!(error.contains(reason), "{bad:?}: {error}");
        }
    }
}
