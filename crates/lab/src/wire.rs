//! Quiet namespaces and the wires between them: what presets are made of.

use crate::{Error, Host, Interface, Name, Options, Result};
use fathom_model::units::Bytes;
use fathom_sys::{
    namespace::{Namespaces, NetNs},
    netlink::{MacAddress, Netlink, Veth, VethEnd},
};
use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
};

/// One end of a wire.
pub(crate) struct End<'a> {
    pub(crate) host: &'a mut Host,
    /// The name that the device gets.
    pub(crate) device: &'static str,
    /// The address of the host on this wire.
    pub(crate) address: Ipv4Addr,
    /// The Ethernet address of the device.
    pub(crate) mac: MacAddress,
    /// Whether it becomes a port of a bridge, which has the address in its place.
    pub(crate) is_port: bool,
}

impl<'a> End<'a> {
    pub(crate) fn new(host: &'a mut Host, device: &'static str, address: Ipv4Addr) -> Self {
        Self { host, device, address, mac: mac_for(address), is_port: false }
    }
}

/// Makes a host with nothing but loopback, on which no frame comes on its own.
pub(crate) fn quiet_host(name: &str) -> Result<Host> {
    let name: Name = name.parse()?;
    let net = NetNs::new().map_err(Error::kernel(format!("make the network namespace of host {name}")))?;
    net.enter_with(disable_ipv6)
        .map_err(Error::kernel(format!("enter host {name}")))?
        .map_err(Error::file("switch off", "/proc/sys/net/ipv6"))?;
    Ok(Host { name, interfaces: Vec::new(), namespaces: Namespaces { user: None, net } })
}

/// Without IPv6 there is no neighbour discovery, no router solicitation and no multicast report.
fn disable_ipv6() -> io::Result<()> {
    for which in ["all", "default"] {
        match fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1") {
            // A kernel without IPv6 is quiet already.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Lets a host pass on what is not for itself.
pub(crate) fn enable_forwarding(host: &Host) -> Result<()> {
    const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
    host.enter_with(|| fs::write(SETTING, "1"))?.map_err(Error::file("write the setting", SETTING))
}

/// Joins two hosts by a veth pair with addresses and permanent neighbours, so that no ARP runs during a count.
pub(crate) fn join(near: End<'_>, far: End<'_>, prefix_len: u8, options: &Options) -> Result<()> {
    let (near_host, far_host) = lay(near, far, prefix_len, options)?;
    let last = |host: &Host| match host.interfaces.last().expect("a wire was laid").address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("wires have addresses of version 4"),
    };
    introduce(near_host, last(far_host))?;
    introduce(far_host, last(near_host))
}

/// Lays a veth pair between two hosts and brings it up, with the addresses of the ends that are no ports.
pub(crate) fn lay<'a>(near: End<'a>, far: End<'a>, prefix_len: u8, options: &Options) -> Result<(&'a Host, &'a Host)> {
    let veth_end = |end: &End<'_>| VethEnd { name: end.device, mac: Some(end.mac) };
    let veth = Veth {
        near: veth_end(&near),
        far: veth_end(&far),
        far_namespace: Some(far.host.namespaces.net.as_fd()),
        mtu_bytes: options.mtu_bytes,
        n_queues: options.n_queues,
    };
    let wire = format!("the wire {}-{}", near.host.name, far.host.name);
    open(near.host)?.add_veth(&veth).map_err(Error::kernel(format!("lay {wire}")))?;
    for end in [&near, &far] {
        bring_up(&mut open(end.host)?, end, prefix_len).map_err(Error::kernel(format!("bring up {wire}")))?;
    }
    let [near, far] = [near, far].map(|end| {
        end.host.interfaces.push(Interface {
            name: end.device.to_owned(),
            address: IpAddr::V4(end.address),
            prefix_len,
            mac: end.mac,
            mtu: Bytes(u64::from(options.mtu_bytes)),
        });
        &*end.host
    });
    Ok((near, far))
}

/// Tells a host for good who has an address on the wire that was laid last.
pub(crate) fn introduce(host: &Host, to: Ipv4Addr) -> Result<()> {
    let device = &host.interfaces.last().expect("a wire was laid").name;
    let tell = |netlink: &mut Netlink| {
        let index = netlink.link(device)?.index;
        netlink.add_neighbour(index, to.into(), mac_for(to))
    };
    tell(&mut open(host)?).map_err(Error::kernel(format!("introduce {to} to host {}", host.name)))
}

/// A socket to the routing of a host that was just made.
pub(crate) fn open(host: &Host) -> Result<Netlink> {
    host.enter_with(Netlink::open)?.map_err(Error::kernel(format!("open rtnetlink on host {}", host.name)))
}

fn bring_up(netlink: &mut Netlink, end: &End<'_>, prefix_len: u8) -> fathom_sys::Result<()> {
    let index = netlink.link(end.device)?.index;
    if !end.is_port {
        netlink.add_address(index, end.address.into(), prefix_len)?;
    }
    netlink.set_up(index)
}

/// A locally administered address that shows the IPv4 address, so that captures read well.
pub(crate) fn mac_for(address: Ipv4Addr) -> MacAddress {
    let [a, b, c, d] = address.octets();
    [0x02, 0, a, b, c, d]
}
