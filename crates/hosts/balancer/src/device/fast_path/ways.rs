//! Where the targets are: the link to each, and the Ethernet addresses of frames there, as the kernel knows them.

use std::{collections::BTreeMap, net::IpAddr};

use fathom_sys::netlink::{
    Link, NeighbourEntry, Netlink,
    ethtool::CounterGrowth,
    xdp_features::{XdpFeatures, xdp_features},
};

use super::{super::DeviceError, hook::Hook, maps::Way};

/// The end of the name that veth has for redirected frames which it did not take; other drivers have names of their own.
const NOT_TAKEN: &[&str] = &["xdp_xmit_errors"];

/// The bytes of an Ethernet header.
const ETHERNET: u32 = 14;

/// Finds ways by the routes, neighbors and links of a moment.
pub(super) struct WayFinder<'a> {
    hook: Hook,
    netlink: &'a mut Netlink,
    links: Vec<Link>,
    neighbours: Vec<NeighbourEntry>,
    /// Whether each link takes redirected frames.
    taking: BTreeMap<u32, bool>,
}

impl<'a> WayFinder<'a> {
    pub(super) fn new(hook: Hook, netlink: &'a mut Netlink) -> Result<Self, DeviceError> {
        let failed = |error| DeviceError::kernel("look at links and neighbors", error);
        let (links, neighbours) = (netlink.links().map_err(failed)?, netlink.neighbours().map_err(failed)?);
        Ok(Self { hook, netlink, links, neighbours, taking: BTreeMap::new() })
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
        // Every link takes what comes from the stack. Before Linux 6.3 the kernel does not tell about frames from drivers.
        if self.hook == Hook::Ingress {
            return true;
        }
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

    /// The counter of frames that the driver of a link did not take, from now on. What comes from the stack is counted by the stack.
    pub(super) fn losses(&self, link: u32) -> Option<CounterGrowth> {
        (self.hook == Hook::Driver).then_some(())?;
        let link = self.links.iter().find(|known| known.index == link)?;
        CounterGrowth::open(&link.name, NOT_TAKEN)
    }

    /// The name of the link to an address if it takes no redirected frames.
    pub(super) fn deaf_link(&mut self, address: IpAddr) -> Option<String> {
        let link = self.link(address)?;
        (!self.takes_frames(link.index)).then_some(link.name)
    }
}
