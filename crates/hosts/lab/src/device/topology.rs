//! The wires of a device: two networks connected by a router, or one network with a bridge.

use std::net::Ipv4Addr;

use fathom_sys::netlink::{BridgeIndex, RouteEntry};

use super::{Device, HOST};
use crate::{
    Error, Host, Options, Result,
    family::Family,
    wire::{End, Network, add_addresses, enable_forwarding, introduce, join, lay, mac_for, open, quiet_host},
};

const A: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const TOWARDS_A: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 254);
const TOWARDS_B: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 254);
const B: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// The address of B on A's network.
const B_BRIDGED: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The bridge's own address, which sends nothing.
const BRIDGE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 254);
/// The ports' Ethernet addresses are derived from these; the ports have no other address.
const PORTS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 252), Ipv4Addr::new(198, 18, 0, 253)];

/// Builds the hosts a and b with the device between them, in the order of traffic.
pub(crate) fn build(device: &Device, family: Family, options: &Options) -> Result<Vec<Host>> {
    let hosts = [quiet_host("a", family)?, quiet_host(HOST, family)?, quiet_host("b", family)?];
    match device {
        Device::Bridge => bridged(hosts, family, options),
        Device::Impairment(_) => passed_on(hosts, family, options),
        Device::Squeeze(mtu_bytes) => {
            let hosts = routed(hosts, family, options)?;
            squeeze(&hosts[1], family, *mtu_bytes)?;
            Ok(hosts)
        }
        Device::Router | Device::Filter(_) | Device::Redirect | Device::Policer(_) => routed(hosts, family, options),
        Device::Translation | Device::Balancer(_) => {
            unreachable!("a preset without targets takes no device that needs them")
        }
    }
}

fn routed([mut a, mut dut, mut b]: [Host; 3], family: Family, options: &Options) -> Result<Vec<Host>> {
    enable_forwarding(&dut, family)?;
    join(End::new(&mut a, "eth0", A), End::new(&mut dut, "eth0", TOWARDS_A), family, options)?;
    join(End::new(&mut dut, "eth1", TOWARDS_B), End::new(&mut b, "eth0", B), family, options)?;
    send_everything_by(&a, TOWARDS_A, family)?;
    send_everything_by(&b, TOWARDS_B, family)?;
    Ok(vec![a, dut, b])
}

/// Makes the middle of the way between two hosts narrower than both ends: the router forwards packets of up to this length to either.
fn squeeze(dut: &Host, family: Family, mtu_bytes: u32) -> Result<()> {
    let mut netlink = open(dut)?;
    let mut narrow = |device, neighbor| {
        let device = netlink.link(device)?.index;
        let addresses = family.addresses(neighbor).into_iter();
        let routes = addresses.map(|address| RouteEntry::to_neighbor(address, device));
        routes.into_iter().try_for_each(|route| netlink.add_narrow_route(&route, mtu_bytes))
    };
    [("eth0", A), ("eth1", B)]
        .into_iter()
        .try_for_each(|(device, neighbor)| narrow(device, neighbor))
        .map_err(Error::kernel(format!("limit the packets that host {} forwards", dut.name)))
}

fn send_everything_by(host: &Host, gateway: Ipv4Addr, family: Family) -> Result<()> {
    let mut netlink = open(host)?;
    family.routes_by(gateway).into_iter().try_for_each(|(destination, gateway)| {
        let default = RouteEntry { destination, prefix_len: 0, gateway: Some(gateway), device: None };
        netlink.add_route(&default).map_err(Error::kernel(format!("route host {} by {gateway}", host.name)))
    })
}

fn port<'a>(bridge: &'a mut Host, device: &'static str, mac_from: Ipv4Addr) -> End<'a> {
    End { mac: mac_for(mac_from), is_port: true, ..End::new(bridge, device, BRIDGE) }
}

/// Lays two wires of one network that nothing connects but the threads of the device: its kernel drops what is for other hosts.
fn passed_on([mut a, mut dut, mut b]: [Host; 3], family: Family, options: &Options) -> Result<Vec<Host>> {
    two_wires([&mut a, &mut dut, &mut b], family, options)?;
    introduce(&a, B_BRIDGED, family)?;
    introduce(&b, A, family)?;
    Ok(vec![a, dut, b])
}

fn two_wires([a, dut, b]: [&mut Host; 3], family: Family, options: &Options) -> Result<()> {
    lay(End::new(a, "eth0", A), port(dut, "eth0", PORTS[0]), family, options)?;
    lay(port(dut, "eth1", PORTS[1]), End::new(b, "eth0", B_BRIDGED), family, options)?;
    Ok(())
}

fn bridged([mut a, mut dut, mut b]: [Host; 3], family: Family, options: &Options) -> Result<Vec<Host>> {
    two_wires([&mut a, &mut dut, &mut b], family, options)?;
    let failed = || Error::kernel("make the bridge of host dut");
    let mut netlink = open(&dut)?;
    netlink.add_bridge("br0", mac_for(BRIDGE)).map_err(failed())?;
    let bridge = netlink.link("br0").map_err(failed())?.index;
    for name in ["eth0", "eth1"] {
        let port = netlink.link(name).map_err(failed())?.index;
        netlink.add_port(BridgeIndex(bridge), port).map_err(failed())?;
    }
    add_addresses(&mut netlink, bridge, (BRIDGE, Network::Wire), family).map_err(failed())?;
    netlink.set_up(bridge).map_err(failed())?;
    introduce(&a, B_BRIDGED, family)?;
    introduce(&b, A, family)?;
    Ok(vec![a, dut, b])
}
