//! A client, a device, and the targets among which the device divides what comes for a virtual address.
//!
//! ```text
//!   a eth0 ── eth0 dut eth1 ──┐
//!   a eth1 ───────────────────┤ switch ── eth0 t1, t2, …
//!                             └──────────── eth0 lb1, lb2, …
//! ```
//!
//! The balancers lb1, lb2, … are there if the device has a second tier.
//!
//! The client reaches the virtual address by the device, and each target also directly, by its second interface. Every target has the virtual
//! address on its loopback device. Targets answer straight to the client (direct server return), unless the device translates addresses: then
//! the answers go back through it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
};

use fathom_sys::netlink::{BridgeIndex, LocalNetwork, Netlink, RouteEntry};

use super::{Preset, SWITCH, Shape};
use crate::{
    Device, Error, Host, Options, Result, device,
    family::Family,
    wire::{End, enable_forwarding, introduce, join, lay, mac_for, open, quiet_host},
};

/// The client of the targets.
pub const CLIENT: &str = "a";
/// The networks of further addresses of the client, for flows from many of them.
pub const CLIENT_SOURCES: [&str; 2] = ["198.18.16.0/20", "2001:2:0:10::/64"];
/// The first of the targets; a router sends everything there.
pub const FIRST_TARGET: &str = "t1";
/// Enough to see how evenly a device divides.
pub(super) const N_TARGETS_DEFAULT: u32 = 4;
/// All targets know the client and the device by permanent entries, and their addresses fit beside those of these two.
pub(super) const N_TARGETS: std::ops::RangeInclusive<u32> = 1..=64;

/// The address that the device divides: outside all networks of the lab.
const VIRTUAL: Ipv4Addr = Ipv4Addr::new(198, 18, 8, 1);
/// The networks whose addresses all belong to the client, beside those of its interfaces: [`CLIENT_SOURCES`].
const SOURCES: Ipv4Addr = Ipv4Addr::new(198, 18, 16, 0);
const SOURCES_PREFIX: u8 = 20;
const SOURCES_PREFIX_6: u8 = 64;
const CLIENT_NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const DEVICE_NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 254);
const CLIENT_FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 253);
const DEVICE_FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 254);

pub(super) const PRESET: Preset = Preset {
    name: "targets",
    about: "a client a, a device dut and targets t1, t2, … behind it, which a also reaches directly; targets:N has N targets, 4 by default",
    hosts: &[CLIENT, device::HOST, FIRST_TARGET, "t2", "t3", "t4", SWITCH],
    device: None,
    shape: Shape::Targets,
    family: Family::Ipv4,
};

pub(super) const PRESET_6: Preset =
    Preset { name: "targets6", about: "the same, by IPv6", family: Family::Ipv6, ..PRESET };

/// The names of the targets.
pub(super) fn target_names(n_targets: u32) -> Vec<String> {
    (1..=n_targets).map(|n| format!("t{n}")).collect()
}

/// The address of a target, by its number from 1.
fn target_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 1, u8::try_from(number).expect("there are at most 64 targets"))
}

/// The address from which the Ethernet address of a port of the switch is derived. The port itself has none.
fn port_address(place: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 19, 1, u8::try_from(place).expect("a switch has at most 74 ports"))
}

/// The balancers of a second tier are on the network of the targets, behind all of these.
fn balancer_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 1, u8::try_from(200 + number).expect("there are at most eight of them"))
}

/// Builds the hosts for a device in front of the targets.
pub(super) fn build(n_targets: u32, family: Family, options: &Options, device: &Device) -> Result<Vec<Host>> {
    let mut hosts = TargetHosts::new(n_targets, family, device)?;
    hosts.connect(options)?;
    hosts.introduce()?;
    hosts.route(device)?;
    give_sources(&hosts.client, family)?;
    Ok(hosts.into_list())
}

/// The hosts around a device in front of targets.
struct TargetHosts {
    client: Host,
    dut: Host,
    /// The balancers of the second tier.
    behind: Vec<Host>,
    targets: Vec<Host>,
    switch: Host,
    family: Family,
}

impl TargetHosts {
    fn new(n_targets: u32, family: Family, device: &Device) -> Result<Self> {
        let host = |name: &str| -> Result<Host> {
            let host = quiet_host(name, family)?;
            accept_any_way(&host)?;
            Ok(host)
        };
        let hosts = Self {
            client: host(CLIENT)?,
            dut: host(device::HOST)?,
            switch: host(SWITCH)?,
            targets: target_names(n_targets).iter().map(|name| host(name)).collect::<Result<_>>()?,
            behind: device.names_behind().iter().map(|name| host(name)).collect::<Result<_>>()?,
            family,
        };
        for host in [&hosts.dut].into_iter().chain(&hosts.behind) {
            enable_forwarding(host, family)?;
        }
        hosts.behind.iter().try_for_each(send_no_redirects)?;
        Ok(hosts)
    }

    /// Joins the client with the device, and puts both, the second tier and the targets on one switch.
    fn connect(&mut self, options: &Options) -> Result<()> {
        let Self { client, dut, behind, targets, switch, family } = self;
        join(End::new(client, "eth0", CLIENT_NEAR), End::new(dut, "eth0", DEVICE_NEAR), *family, options)?;
        let far = [(client, "eth1", CLIENT_FAR), (dut, "eth1", DEVICE_FAR)];
        let of_targets = targets.iter_mut().zip(1..).map(|(target, number)| (target, "eth0", target_address(number)));
        let of_balancers = behind.iter_mut().zip(1..).map(|(host, number)| (host, "eth0", balancer_address(number)));
        lay_switched(switch, far.into_iter().chain(of_balancers).chain(of_targets), *family, options)
    }

    /// Tells each host the Ethernet addresses of those that it sends to.
    fn introduce(&self) -> Result<()> {
        let targets = self.target_addresses();
        let balancers: Vec<Ipv4Addr> = (1..=self.behind.len()).map(balancer_address).collect();
        let know =
            |host: &Host, others: &[Ipv4Addr]| others.iter().try_for_each(|other| introduce(host, *other, self.family));
        know(&self.client, &[&targets[..], &[DEVICE_FAR]].concat())?;
        know(&self.dut, &[&targets[..], &balancers, &[CLIENT_FAR]].concat())?;
        let of_balancer = [&targets[..], &[CLIENT_FAR, DEVICE_FAR]].concat();
        self.behind.iter().try_for_each(|host| know(host, &of_balancer))?;
        self.targets.iter().try_for_each(|target| know(target, &[CLIENT_FAR, DEVICE_FAR]))
    }

    /// Leads the virtual address to the device, and answers back to the client.
    fn route(&mut self, device: &Device) -> Result<()> {
        let family = self.family;
        for host in &self.behind {
            // Errors of the kernel there, such as "packet too big", reach the client.
            route(host, family.routes_by(CLIENT_FAR))?;
            drop_unrouted(host, family)?;
        }
        let way_back = if device.translates() { DEVICE_FAR } else { CLIENT_FAR };
        for target in &mut self.targets {
            give_virtual_address(target, family)?;
            route(target, family.routes_by(way_back))?;
        }
        // The client may send from any address, and answers find it there.
        route(&self.dut, family.routes_by(CLIENT_NEAR))?;
        route(&self.client, routes_to_virtual(family, DEVICE_NEAR))?;
        match device {
            Device::Router => route(&self.dut, routes_to_virtual(family, target_address(1))),
            // What the device does not divide must not go back to the client, which would send it here again.
            _ => drop_unrouted(&self.dut, family),
        }
    }

    fn target_addresses(&self) -> Vec<Ipv4Addr> {
        (1..=self.targets.len()).map(target_address).collect()
    }

    fn into_list(self) -> Vec<Host> {
        let Self { client, dut, behind, targets, switch, .. } = self;
        [client, dut].into_iter().chain(behind).chain(targets).chain([switch]).collect()
    }
}

/// Gives the client addresses for many flows: all of a network, by which the targets and the device answer it.
fn give_sources(client: &Host, family: Family) -> Result<()> {
    let add = |network: IpAddr| {
        let prefix_len = if network.is_ipv4() { SOURCES_PREFIX } else { SOURCES_PREFIX_6 };
        LocalNetwork::add(network, prefix_len).map(LocalNetwork::keep)
    };
    let added = client.enter_with(|| family.addresses(SOURCES).into_iter().try_for_each(add))?;
    added.map_err(Error::kernel(format!("give host {} its sources", client.name)))
}

/// Answers come by another wire than the one by which their address is reached: none may be refused for that (`rp_filter`).
fn accept_any_way(host: &Host) -> Result<()> {
    ["all", "default"].iter().try_for_each(|which| {
        let setting = format!("/proc/sys/net/ipv4/conf/{which}/rp_filter");
        host.enter_with(|| fs::write(&setting, "0"))?.map_err(Error::file("write the setting", setting))
    })
}

/// A balancer of the second tier sends packets on by the wire by which they came: nobody has to be told of a shorter way.
fn send_no_redirects(host: &Host) -> Result<()> {
    ["all", "default"].iter().try_for_each(|which| {
        let setting = format!("/proc/sys/net/ipv4/conf/{which}/send_redirects");
        host.enter_with(|| fs::write(&setting, "0"))?.map_err(Error::file("write the setting", setting))
    })
}

/// Joins hosts by a bridge, each with a device of this name and address.
fn lay_switched<'a>(
    switch: &mut Host,
    ends: impl Iterator<Item = (&'a mut Host, &'static str, Ipv4Addr)>,
    family: Family,
    options: &Options,
) -> Result<()> {
    let failed = || Error::kernel("make the bridge of host switch");
    let mut netlink = open(switch)?;
    netlink.add_bridge("br0", mac_for(Ipv4Addr::new(198, 19, 255, 254))).map_err(failed())?;
    let bridge = netlink.link("br0").map_err(failed())?.index;
    for ((host, device, address), place) in ends.zip(1..) {
        let name = format!("p{place}");
        let port = End { is_port: true, ..End::new(switch, &name, port_address(place)) };
        lay(End::new(host, device, address), port, family, options)?;
        let port = netlink.link(&name).map_err(failed())?.index;
        netlink.add_port(BridgeIndex(bridge), port).map_err(failed())?;
        // A target that only receives would otherwise have its frames flooded to all others.
        netlink.add_bridge_entry(port, mac_for(address)).map_err(failed())?;
    }
    netlink.set_up(bridge).map_err(failed())
}

fn give_virtual_address(target: &mut Host, family: Family) -> Result<()> {
    let addresses = family.addresses(VIRTUAL);
    target.virtual_address = addresses.first().copied();
    let add = |netlink: &mut Netlink| {
        let loopback = netlink.link("lo")?.index;
        addresses.iter().try_for_each(|address| netlink.add_address(loopback, *address, bits_of(*address)))
    };
    add(&mut open(target)?).map_err(Error::kernel(format!("give {VIRTUAL} to host {}", target.name)))
}

/// The length of the prefix of a single address.
const fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The routes to the virtual address by a gateway: destination and gateway.
fn routes_to_virtual(family: Family, gateway: Ipv4Addr) -> Vec<(IpAddr, IpAddr)> {
    family.addresses(VIRTUAL).into_iter().zip(family.addresses(gateway)).collect()
}

fn drop_unrouted(dut: &Host, family: Family) -> Result<()> {
    let mut netlink = open(dut)?;
    let drop = |address| netlink.add_black_hole(address);
    family.addresses(VIRTUAL).into_iter().try_for_each(drop).map_err(Error::kernel(format!("route host {}", dut.name)))
}

/// Adds routes to an address or, if it is not specified, to all addresses.
fn route(host: &Host, routes: Vec<(IpAddr, IpAddr)>) -> Result<()> {
    let mut netlink = open(host)?;
    routes.into_iter().try_for_each(|(destination, gateway)| {
        let prefix_len = if destination.is_unspecified() { 0 } else { bits_of(destination) };
        let route = RouteEntry { destination, prefix_len, gateway: Some(gateway), device: None };
        netlink.add_route(&route).map_err(Error::kernel(format!("route host {} by {gateway}", host.name)))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_sources_of_the_client_are_told_as_they_are() {
        let [v6, v4] = Family::Ipv6.addresses(SOURCES).try_into().unwrap();
        let told = [format!("{v4}/{SOURCES_PREFIX}"), format!("{v6}/{SOURCES_PREFIX_6}")];
        assert_eq!(told, CLIENT_SOURCES);
    }

    #[test]
    fn every_host_and_every_port_has_an_address_of_its_own() {
        let n = usize::try_from(*N_TARGETS.end()).unwrap();
        let all: BTreeSet<Ipv4Addr> = (1..=n)
            .map(target_address)
            .chain((1..=8).map(balancer_address))
            .chain((1..=n + 10).map(port_address))
            .chain([CLIENT_NEAR, CLIENT_FAR, DEVICE_NEAR, DEVICE_FAR, VIRTUAL])
            .collect();
        assert_eq!(all.len(), 2 * n + 8 + 10 + 5);
    }
}
