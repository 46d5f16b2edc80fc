//! What netlink tells of links beside `/proc/net/dev`: frames missed for lack of room in a ring, frames for another Ethernet address, and changes of
//! the carrier. Also frames dropped by XDP programs, as counted by drivers: `ethtool -S`.
//!
//! Drivers choose the names of their counters. Names that end in `xdp_drops` or `xdp_drop` match (veth, `virtio_net`, mlx5), one
//! per queue or one for all queues. Works only on the running system: another root has nothing to query.

use std::{io, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::{ethtool::Device, link_counters::LinkReader};

use super::{
    CounterSink, Source,
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
                let device = Device::open(&link.name).map_err(cause)?;
                self.devices.push((link.name, device));
            }
        }
        // Without a program the count is known to be zero.
        out.value(host::DEV_XDP_DROPPED, "", 0);
        for (name, device) in &self.devices {
            // A device that has disappeared meanwhile keeps its last value.
            let Ok(statistics) = device.statistics() else { continue };
            let is_drop = |name: &str| SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
            let counts = statistics.iter().filter(|(name, _)| is_drop(name)).map(|(_, count)| *count);
            if let Some(sum) = counts.reduce(u64::saturating_add) {
                out.value(host::DEV_XDP_DROPPED, name, sum);
            }
        }
        Ok(())
    }
}
