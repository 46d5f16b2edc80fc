//! What netlink tells of links beside `/proc/net/dev`: frames missed for lack of room in a ring, frames for another Ethernet address, and changes of
//! the carrier. Also frames dropped by XDP programs, as counted by drivers: `ethtool -S`.
//!
//! Drivers choose the names of their counters. Names that end in `xdp_drops` or `xdp_drop` match (veth, `virtio_net`, mlx5), one
//! per queue or one for all queues. Works only on the running system: another root has nothing to query.

use std::{io, path::Path};

use fathom_model::names::host;
use fathom_sys::{
    Error,
    netlink::{ethtool::Device, link_counters::LinkReader},
};
use rustix::io::Errno;

use super::{
    CounterSink, SampleLosses, Source,
    socket::{Socket, cause},
};

/// The source; it stays in the network namespace of the thread that takes the first sample.
pub(super) struct Links {
    reader: Socket<LinkReader>,
    /// The devices that have had a program, with handles to query them.
    devices: Vec<(String, Device)>,
}

const SUFFIXES: [&str; 2] = ["xdp_drops", "xdp_drop"];

impl Links {
    pub(super) const fn new() -> Self {
        Self { reader: Socket::new(LinkReader::open), devices: Vec::new() }
    }
}

impl Source for Links {
    fn name(&self) -> &'static str {
        "links"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[
            host::DEV_RX_MISSED,
            host::DEV_RX_DAMAGED,
            host::DEV_RX_OTHER_HOST,
            host::DEV_CARRIER_CHANGES,
            host::DEV_XDP_DROPPED,
        ]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(reader) = self.reader.below(root)? else { return Ok(()) };
        let mut losses = SampleLosses::default();
        for link in reader.counters().map_err(cause)? {
            out.value(host::DEV_RX_MISSED, &link.name, link.rx_missed);
            out.value(host::DEV_RX_DAMAGED, &link.name, link.rx_damaged);
            if let Some(n) = link.rx_other_host {
                out.value(host::DEV_RX_OTHER_HOST, &link.name, n);
            }
            if let Some(n) = link.carrier_changes {
                out.value(host::DEV_CARRIER_CHANGES, &link.name, u64::from(n));
            }
            if link.has_xdp && !self.devices.iter().any(|(name, _)| *name == link.name) {
                match Device::open(&link.name) {
                    Ok(device) => self.devices.push((link.name, device)),
                    Err(error) => losses.add(unread(&link.name, error)),
                }
            }
        }
        for (name, device) in &self.devices {
            match xdp_drops(name, device.statistics()) {
                Ok(Some(sum)) => out.value(host::DEV_XDP_DROPPED, name, sum),
                Ok(None) => {}
                Err(why) => losses.add(why),
            }
        }
        // The count of no device is 0, unless that of some device is unknown.
        if losses.is_empty() {
            out.value(host::DEV_XDP_DROPPED, "", 0);
        }
        losses.told()
    }
}

/// Returns what XDP programs dropped on a device; `None` if it has disappeared, or why it is not known.
fn xdp_drops(device: &str, statistics: Result<Vec<(String, u64)>, Error>) -> Result<Option<u64>, String> {
    let statistics = match statistics {
        Ok(statistics) => statistics,
        Err(error) if error.errno() == Some(Errno::NODEV.raw_os_error()) => return Ok(None),
        Err(error) => return Err(unread(device, error)),
    };
    let is_drop = |name: &str| SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    let counts = statistics.iter().filter(|(name, _)| is_drop(name)).map(|(_, count)| *count);
    let sum = counts.reduce(u64::saturating_add);
    sum.map(Some).ok_or_else(|| format!("the driver of {device} does not count what an XDP program drops"))
}

fn unread(device: &str, error: Error) -> String {
    format!("cannot read the driver's statistics of {device}: {}", cause(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_that_a_driver_does_not_tell_are_no_zero() {
        let counted = |names: &[(&str, u64)]| Ok(names.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect());
        let failed = |errno: Errno| Err(Error::new("ioctl(SIOCETHTOOL)", errno));
        let of_queues = counted(&[("rx0_xdp_drops", 3), ("rx0_xdp_packets", 9), ("rx1_xdp_drops", 4)]);
        assert_eq!(xdp_drops("eth0", of_queues), Ok(Some(7)));
        assert_eq!(
            xdp_drops("eth0", counted(&[("rx_bytes", 3)])),
            Err("the driver of eth0 does not count what an XDP program drops".to_owned())
        );
        assert_eq!(
            xdp_drops("eth0", failed(Errno::PERM)),
            Err("cannot read the driver's statistics of eth0: Operation not permitted (os error 1)".to_owned())
        );
        assert_eq!(xdp_drops("eth0", failed(Errno::NODEV)), Ok(None), "the interface is told by its other counters");
    }
}
