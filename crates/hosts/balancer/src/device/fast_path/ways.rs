//! Where the targets are: the link to each, and the Ethernet addresses of frames there, as the kernel knows them.

use std::{collections::BTreeMap, net::IpAddr};

use fathom_sys::netlink::{
    Link, NeighbourEntry, Netlink,
    ethtool::Device,
    xdp_features::{XdpFeatures, xdp_features},
};

use super::{super::DeviceError, maps::Way};

/// The bytes of an Ethernet header.
const ETHERNET: u32 = 14;

/// Finds ways by the routes, neighbors and links of a moment.
pub(super) struct WayFinder<'a> {
    netlink: &'a mut Netlink,
    links: Vec<Link>,
    neighbours: Vec<NeighbourEntry>,
    /// Whether each link takes redirected frames.
    taking: BTreeMap<u32, bool>,
}

impl<'a> WayFinder<'a> {
    pub(super) fn new(netlink: &'a mut Netlink) -> Result<Self, DeviceError> {
        let failed = |error| DeviceError::kernel("look at links and neighbors", error);
        let (links, neighbours) = (netlink.links().map_err(failed)?, netlink.neighbours().map_err(failed)?);
        Ok(Self { netlink, links, neighbours, taking: BTreeMap::new() })
    }

    /// The links of this moment.
    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link on which an address is, if it is on a link itself.
    fn link(&mut self, address: IpAddr) -> Option<Link> {
        let hop = self.netlink.next_hop(address).ok().filter(|hop| hop.gateway.is_none())?;
        self.links.iter().find(|link| link.index == hop.link).cloned()
    }

    fn takes_frames(&mut self, link: u32) -> bool {
        // Before Linux 6.3 the kernel does not tell.
        let ask = || xdp_features(link).ok().flatten().is_none_or(XdpFeatures::takes_redirected);
        *self.taking.entry(link).or_insert_with(ask)
    }

    /// The way to an address; `None` while its Ethernet address is not known, or if its link takes no redirected frames.
    pub(super) fn way(&mut self, address: IpAddr) -> Option<Way> {
        let link = self.link(address)?;
        let is_it = |entry: &&NeighbourEntry| entry.link == link.index && entry.address == address;
        let destination = self.neighbours.iter().find(is_it)?.mac;
        let source = link.mac?;
        let is_usable = link.is_up && self.takes_frames(link.index);
        is_usable.then(|| Way {
            link: link.index,
            frame_max: link.mtu_bytes.saturating_add(ETHERNET),
            destination,
            source,
        })
    }

    /// The counter of frames that the driver of a link did not take, from now on.
    pub(super) fn losses(&self, link: u32) -> Option<DriverLosses> {
        let link = self.links.iter().find(|known| known.index == link)?;
        DriverLosses::open(&link.name)
    }

    /// The name of the link to an address if it takes no redirected frames.
    pub(super) fn deaf_link(&mut self, address: IpAddr) -> Option<String> {
        let link = self.link(address)?;
        (!self.takes_frames(link.index)).then_some(link.name)
    }
}

/// What a driver counts as redirected frames that it did not take, such as for a full ring.
#[derive(Debug)]
pub(super) struct DriverLosses {
    device: Device,
    /// The count when it was opened.
    before: u64,
}

impl DriverLosses {
    /// `None` if the driver does not count them.
    fn open(name: &str) -> Option<Self> {
        let device = Device::open(name).ok()?;
        Some(Self { before: not_taken(&device)?, device })
    }

    /// The frames since it was opened.
    pub(super) fn count(&self) -> u64 {
        // A link that is gone loses nothing more.
        not_taken(&self.device).map_or(0, |now| now.saturating_sub(self.before))
    }
}

/// The sum over the queues of a veth; other drivers have names of their own.
fn not_taken(device: &Device) -> Option<u64> {
    let statistics = device.statistics().ok()?;
    let counts = statistics.iter().filter(|(name, _)| name.ends_with("xdp_xmit_errors")).map(|(_, count)| *count);
    counts.reduce(u64::saturating_add)
}
