//! The device under test of one host: its properties, and the counters of the device and the host.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use fathom_engine::Error;
use fathom_model::{
    MacAddress, Record, Role,
    names::count::VETH_RING_DROPPED,
    names::host::{
        DEV_RX_DROPPED, DEV_RX_ERRORS, DEV_RX_FIFO, DEV_RX_FRAMES, DEV_TX_DROPPED, DEV_TX_ERRORS, DEV_TX_FRAMES,
        SOFTNET_DROPPED,
    },
    units::Nanos,
};
use fathom_sys::{
    clock,
    netlink::{Link, LinkStats, Netlink, ethtool},
};

use super::{super::addresses::HostAddresses, NAME};

/// How long all counters must be stable to be final.
const QUIET: Nanos = Nanos::from_millis(50);
/// How long frames may take to arrive after the last was sent (RFC 2544 section 23).
const RESIDUE: Nanos = Nanos::from_secs(2);
/// How long a driver may take to bring the link up again after an XDP program was attached.
const LINK_RETURNS: Nanos = Nanos::from_secs(5);
const STEP: Nanos = Nanos::from_millis(5);

/// A device that is up, with a netlink socket for questions about it.
#[derive(Debug)]
pub(super) struct TestDevice {
    netlink: Netlink,
    /// Its driver, which has more counters than the kernel.
    driver: ethtool::Device,
    link: Link,
    pub(super) mac: MacAddress,
    /// The host's address on it.
    pub(super) address: Ipv4Addr,
    /// The host's IPv6 address on it; the link-local one if it has no other.
    pub(super) address_v6: Option<Ipv6Addr>,
}

/// Counters of a device and of its host's backlog at one time.
pub(super) type DeviceCounts = BTreeMap<&'static str, u64>;

fn unsupported(what: String, hint: &str) -> Error {
    Error::Unsupported { what, hint: Some(hint.to_owned()) }
}

impl TestDevice {
    /// Finds the device of a role. It must be up and have an Ethernet and an IPv4 address.
    pub(super) fn find(role: &Role) -> Result<Self, Error> {
        let Some(name) = &role.interface else {
            return Err(unsupported(format!("{NAME} needs an interface"), "name one: fathom packet IFACE"));
        };
        let system = |cause| Error::system(format!("find the device {name}"), "CAP_NET_ADMIN", cause);
        let mut netlink = Netlink::open().map_err(system)?;
        let link = netlink.link(name).map_err(system)?;
        let Some(mac) = link.mac else {
            return Err(unsupported(format!("{name} has no Ethernet address"), "choose an Ethernet device"));
        };
        let driver = ethtool::Device::open(name).map_err(system)?;
        let addresses = HostAddresses::of(role, &mut netlink, link.index).map_err(system)?;
        let Some(address) = addresses.v4 else {
            return Err(unsupported(format!("{NAME} needs an IPv4 address on {name}"), "set one: ip address add"));
        };
        let device = Self { netlink, driver, link, mac, address, address_v6: addresses.v6 };
        device.require_carrier()?;
        Ok(device)
    }

    pub(super) fn index(&self) -> u32 {
        self.link.index
    }

    pub(super) fn name(&self) -> &str {
        &self.link.name
    }

    /// Returns the number of receive queues.
    pub(super) fn n_rx_queues(&self) -> u32 {
        self.link.n_rx_queues.unwrap_or(1).max(1)
    }

    fn require_carrier(&self) -> Result<(), Error> {
        let name = self.name();
        if !self.link.is_up {
            return Err(unsupported(format!("{name} is down"), &format!("ip link set {name} up")));
        }
        if !self.link.has_carrier {
            return Err(unsupported(format!("{name} has no carrier"), "check the cable, or set the peer up"));
        }
        Ok(())
    }

    /// Waits until the link is back after a change that may have reset it.
    pub(super) fn wait_for_carrier(&mut self) -> Result<(), Error> {
        let deadline = clock::now() + LINK_RETURNS;
        loop {
            self.refresh().map_err(|cause| self.read_error(cause))?;
            if self.link.has_carrier || clock::now() >= deadline {
                return self.require_carrier();
            }
            clock::sleep_until(clock::now() + STEP);
        }
    }

    /// Returns the MTU: the longest packet that the device accepts.
    pub(super) fn mtu_bytes(&self) -> u32 {
        self.link.mtu_bytes
    }

    /// Returns the error for frames of this size, which need an MTU larger than that of the device.
    pub(super) fn too_small_mtu(&self, size: usize, needed: usize) -> Error {
        let (name, mtu) = (self.name(), self.link.mtu_bytes);
        let what = format!("frames of {size} bytes need an MTU of {needed}, and that of {name} is {mtu}");
        unsupported(what, &format!("ip link set {name} mtu {needed}, on both ends"))
    }

    /// Returns the MAC address of the router towards a host; `None` if the host is on the link itself.
    pub(super) fn router_to(&mut self, host: IpAddr) -> Result<Option<MacAddress>, Error> {
        let failed = |cause| Error::System { what: format!("find the way to {host}"), cause };
        let hop = self.netlink.next_hop(host).map_err(failed)?;
        hop.gateway.map(|_| self.neighbour_towards(host)).transpose()
    }

    /// Returns the MAC address that this host itself would use to reach a host by this device.
    pub(super) fn neighbour_towards(&mut self, host: IpAddr) -> Result<MacAddress, Error> {
        neighbour_towards(&mut self.netlink, self.link.index, &self.link.name, host)
    }

    fn read_error(&self, cause: fathom_sys::Error) -> Error {
        Error::System { what: format!("read the counters of {}", self.name()), cause }
    }

    fn refresh(&mut self) -> fathom_sys::Result<()> {
        self.link = self.netlink.link(&self.link.name)?;
        Ok(())
    }

    fn counts(&mut self) -> fathom_sys::Result<DeviceCounts> {
        self.refresh()?;
        let backlog = softnet_dropped().map(|n| (SOFTNET_DROPPED, n));
        let ring = ring_dropped(&self.driver).map(|n| (VETH_RING_DROPPED, n));
        Ok(of_device(&self.link.stats).into_iter().chain(backlog).chain(ring).collect())
    }

    /// Reads the counters before the start.
    pub(super) fn initial_counts(&mut self) -> Result<DeviceCounts, Error> {
        self.counts().map_err(|cause| self.read_error(cause))
    }

    /// Reads the counters once they are stable, or when the time for late frames is over.
    fn final_counts(&mut self) -> fathom_sys::Result<DeviceCounts> {
        let mut counts = self.counts()?;
        let mut settling = QuietWait::begin();
        while settling.keeps_waiting(counts[DEV_TX_FRAMES] + counts[DEV_RX_FRAMES]) {
            counts = self.counts()?;
        }
        Ok(counts)
    }

    /// Adds the growth of the counters to a record's totals. Returns the error if the device is gone.
    pub(super) fn record_growth(&mut self, record: &mut Record, before: &DeviceCounts) -> Option<fathom_sys::Error> {
        let after = match self.final_counts() {
            Ok(after) => after,
            Err(error) => return Some(error),
        };
        let growth = |(name, now): (&'static str, u64)| Some((name.to_owned(), now.saturating_sub(*before.get(name)?)));
        record.totals.extend(after.into_iter().filter_map(growth));
        None
    }
}

/// Returns the MAC address that this host would use to reach another one, which must be by this device.
///
/// # Errors
/// If packets to the host take another path or reach more than one host, or if its MAC address is not known yet.
pub fn neighbour_towards(netlink: &mut Netlink, device: u32, name: &str, host: IpAddr) -> Result<MacAddress, Error> {
    let failed = |cause| Error::System { what: format!("find the way to {host}"), cause };
    let hop = netlink.next_hop(host).map_err(failed)?;
    if !hop.is_single {
        return Err(unsupported(format!("{host} is an address of many hosts"), "try it in a lab: --lab pair"));
    }
    if hop.link != device {
        let what = format!("{name} does not lead to {host}: this host sends to it by another device");
        return Err(unsupported(what, &format!("ip route get {host}")));
    }
    if host.is_loopback() {
        return Ok(MacAddress::default());
    }
    let next = hop.gateway.unwrap_or(host);
    let mac = netlink.neighbour(device, next).map_err(failed)?;
    mac.ok_or_else(|| {
        let what = format!("the Ethernet address of {next}, on the way to {host}, is not known on {name}");
        unsupported(what, &format!("ping -c 1 {next}"))
    })
}

/// Adds these errors to the record and, if there are any, marks it incomplete.
pub(super) fn note_unavailable(record: &mut Record, losses: &[fathom_sys::Error]) {
    for error in losses {
        record.errors.count(error);
    }
    record.complete &= losses.is_empty();
}

/// Waits until a count is stable.
#[derive(Debug)]
pub(super) struct QuietWait {
    count: Option<u64>,
    since: Nanos,
    deadline: Nanos,
}

impl QuietWait {
    pub(super) fn begin() -> Self {
        let now = clock::now();
        Self { count: None, since: now, deadline: now + RESIDUE }
    }

    /// Sleeps a short time and returns true, until the count has been stable for long enough or the time is over.
    pub(super) fn keeps_waiting(&mut self, count: u64) -> bool {
        let now = clock::now();
        if self.count.replace(count) != Some(count) {
            self.since = now;
        }
        let go_on = now - self.since < QUIET && now < self.deadline;
        if go_on {
            clock::sleep_until(now + STEP);
        }
        go_on
    }
}

fn of_device(stats: &LinkStats) -> DeviceCounts {
    BTreeMap::from([
        (DEV_TX_FRAMES, stats.tx_packets),
        (DEV_TX_DROPPED, stats.tx_dropped),
        (DEV_TX_ERRORS, stats.tx_errors),
        (DEV_RX_FRAMES, stats.rx_packets),
        (DEV_RX_DROPPED, stats.rx_dropped + stats.rx_missed_errors),
        (DEV_RX_ERRORS, stats.rx_errors),
        (DEV_RX_FIFO, stats.rx_fifo_errors),
    ])
}

/// Frames that all processors have dropped because of a full backlog; `None` if that cannot be read.
fn softnet_dropped() -> Option<u64> {
    let text = fs::read_to_string("/proc/net/softnet_stat").ok()?;
    text.lines().map(|line| u64::from_str_radix(line.split_ascii_whitespace().nth(1)?, 16).ok()).sum()
}

/// Redirected frames that the other end of a veth had no room for; `None` if the driver does not count them.
fn ring_dropped(driver: &ethtool::Device) -> Option<u64> {
    let counters = driver.statistics().ok()?;
    let is_ring = |name: &str| name.starts_with("tx_queue_") && name.ends_with("_xdp_xmit_errors");
    counters.into_iter().filter(|(name, _)| is_ring(name)).map(|(_, count)| count).reduce(|sum, count| sum + count)
}
