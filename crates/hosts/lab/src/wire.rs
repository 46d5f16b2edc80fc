//! Quiet namespaces and the wires between them, the building blocks of presets.

use crate::{Error, Host, Interface, LabName, Options, Result, family::Family};
use fathom_model::{MacAddress, units::Bytes};
use fathom_sys::{
    netlink::{
        Netlink, Veth, VethEnd,
        namespace::{Namespaces, NetNs},
    },
    process::confinement::Confinement,
};
use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
};

/// The hosts that share a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// Those at the ends of a wire.
    Wire,
    /// All hosts on the switch of a star, which can be more than a /24 has.
    Star,
}

impl Network {
    /// The number of leading bits that all addresses of it share.
    const fn prefix_len(self, address: IpAddr) -> u8 {
        match (self, address) {
            (Self::Wire, IpAddr::V4(_)) => 24,
            (Self::Wire, IpAddr::V6(_)) => 64,
            (Self::Star, IpAddr::V4(_)) => 16,
            (Self::Star, IpAddr::V6(_)) => 48,
        }
    }
}

/// One end of a wire.
pub(crate) struct End<'a> {
    pub(crate) host: &'a mut Host,
    /// The name of the device.
    pub(crate) device: &'a str,
    /// The host's IPv4 address on this wire; its other addresses are derived from it.
    pub(crate) address: Ipv4Addr,
    /// The Ethernet address of the device.
    pub(crate) mac: MacAddress,
    /// Whether it becomes a port of a bridge; the bridge then has the address instead.
    pub(crate) is_port: bool,
    pub(crate) network: Network,
}

impl<'a> End<'a> {
    pub(crate) fn new(host: &'a mut Host, device: &'a str, address: Ipv4Addr) -> Self {
        Self { host, device, address, mac: mac_for(address), is_port: false, network: Network::Wire }
    }
}

/// Creates a host with only loopback, set up to send as few frames as possible on its own.
pub(crate) fn quiet_host(name: &str, family: Family) -> Result<Host> {
    let name: LabName = name.parse()?;
    let net = NetNs::new().map_err(Error::kernel(format!("make the network namespace of host {name}")))?;
    let quieten = match family {
        Family::Ipv4 => disable_ipv6,
        Family::Ipv6 => quieten_ipv6,
    };
    net.enter_with(quieten)
        .map_err(Error::kernel(format!("enter host {name}")))?
        .map_err(Error::file("change the settings in", IPV6_SETTINGS))?;
    Ok(Host {
        name,
        interfaces: Vec::new(),
        virtual_address: None,
        namespaces: Namespaces { user: None, net, confinement: Confinement::default() },
    })
}

const IPV6_SETTINGS: &str = "/proc/sys/net/ipv6/conf";

/// Without IPv6 there is no neighbor discovery, no router solicitation and no multicast report.
fn disable_ipv6() -> io::Result<()> {
    for which in ["all", "default"] {
        match fs::write(format!("{IPV6_SETTINGS}/{which}/disable_ipv6"), "1") {
            // A kernel without IPv6 is already quiet.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Disables all unsolicited IPv6 traffic except multicast listener reports (RFC 9777), which cannot be disabled.
fn quieten_ipv6() -> io::Result<()> {
    const ALL: [(&str, &str); 5] = [
        ("disable_ipv6", "0"),
        // Addresses are usable at once, without duplicate address detection.
        ("accept_dad", "0"),
        ("accept_ra", "0"),
        ("router_solicitations", "0"),
        // Devices get no link-local address unless one is configured.
        ("addr_gen_mode", "1"),
    ];
    let settings = ["all", "default"].into_iter().flat_map(|which| ALL.map(|setting| (which, setting)));
    settings
        .into_iter()
        .try_for_each(|(which, (name, value))| fs::write(format!("{IPV6_SETTINGS}/{which}/{name}"), value))
}

/// Enables IP forwarding on a host.
pub(crate) fn enable_forwarding(host: &Host, family: Family) -> Result<()> {
    const IPV4: &str = "/proc/sys/net/ipv4/ip_forward";
    const BOTH: &[&str] = &[IPV4, "/proc/sys/net/ipv6/conf/all/forwarding"];
    let settings = match family {
        Family::Ipv4 => &BOTH[..1],
        Family::Ipv6 => BOTH,
    };
    settings.iter().try_for_each(|setting| {
        host.enter_with(|| fs::write(setting, "1"))?.map_err(Error::file("write the setting", setting))
    })
}

/// Connects two hosts by a veth pair with addresses and permanent neighbor entries, so that no ARP runs during a count.
pub(crate) fn join(near: End<'_>, far: End<'_>, family: Family, options: &Options) -> Result<()> {
    let (near_address, far_address) = (near.address, far.address);
    let (near_host, far_host) = lay(near, far, family, options)?;
    introduce(near_host, far_address, family)?;
    introduce(far_host, near_address, family)
}

/// Creates a veth pair between two hosts and sets it up, with addresses for ends that are not bridge ports.
pub(crate) fn lay<'a>(near: End<'a>, far: End<'a>, family: Family, options: &Options) -> Result<(&'a Host, &'a Host)> {
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
        bring_up(&mut open(end.host)?, end, family).map_err(Error::kernel(format!("bring up {wire}")))?;
    }
    // Only now does either end have a carrier.
    for end in [&near, &far].into_iter().filter(|end| !end.is_port) {
        let mut netlink = open(end.host)?;
        let wait = |netlink: &mut Netlink| {
            let index = netlink.link(end.device)?.index;
            netlink.await_addresses(index)
        };
        wait(&mut netlink).map_err(Error::kernel(format!("wait for the addresses of {wire}")))?;
    }
    let [near, far] = [near, far].map(|end| {
        let address = family.addresses(end.address)[0];
        end.host.interfaces.push(Interface {
            name: end.device.to_owned(),
            address,
            prefix_len: end.network.prefix_len(address),
            mac: end.mac,
            mtu: Bytes(u64::from(options.mtu_bytes)),
        });
        &*end.host
    });
    Ok((near, far))
}

fn veth_end<'a>(end: &End<'a>) -> VethEnd<'a> {
    VethEnd { name: end.device, mac: Some(end.mac) }
}

/// Adds permanent neighbor entries on a host for a peer on the most recently created wire.
pub(crate) fn introduce(host: &Host, to: Ipv4Addr, family: Family) -> Result<()> {
    let device = &host.interfaces.last().expect("a wire was laid").name;
    let tell = |netlink: &mut Netlink| {
        let index = netlink.link(device)?.index;
        family.addresses(to).into_iter().try_for_each(|address| netlink.add_neighbour(index, address, mac_for(to)))
    };
    tell(&mut open(host)?).map_err(Error::kernel(format!("introduce {to} to host {}", host.name)))
}

/// Opens an rtnetlink socket on a new host.
pub(crate) fn open(host: &Host) -> Result<Netlink> {
    host.enter_with(Netlink::open)?.map_err(Error::kernel(format!("open rtnetlink on host {}", host.name)))
}

fn bring_up(netlink: &mut Netlink, end: &End<'_>, family: Family) -> fathom_sys::Result<()> {
    let index = netlink.link(end.device)?.index;
    if !end.is_port {
        add_addresses(netlink, index, (end.address, end.network), family)?;
    }
    netlink.set_up(index)
}

/// Adds all addresses derived from one to a device.
pub(crate) fn add_addresses(
    netlink: &mut Netlink,
    device: u32,
    (address, network): (Ipv4Addr, Network),
    family: Family,
) -> fathom_sys::Result<()> {
    let all = family.addresses(address);
    all.into_iter().try_for_each(|address| netlink.add_address(device, address, network.prefix_len(address)))
}

/// A locally administered address that contains the IPv4 address, so that captures are easy to read.
pub(crate) fn mac_for(address: Ipv4Addr) -> MacAddress {
    let [a, b, c, d] = address.octets();
    MacAddress([0x02, 0, a, b, c, d])
}
