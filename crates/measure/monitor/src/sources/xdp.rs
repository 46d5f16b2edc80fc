//! What XDP programs dropped, as the drivers of their devices count it: `ethtool -S`.
//!
//! Drivers name their counters as they like: those that end in `xdp_drops` or `xdp_drop` are meant (veth, `virtio_net`, mlx5), one
//! per queue or one for all. Only of the running system: under another root there is nothing to ask.

use std::{io, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::{Netlink, ethtool::Device};

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
};

/// The source; it stays in the network namespace of the thread that takes the first sample.
pub(super) struct Xdp {
    netlink: Socket<Netlink>,
    /// The devices that have had a program, with the way to ask them.
    devices: Vec<(String, Device)>,
}

const SUFFIXES: [&str; 2] = ["xdp_drops", "xdp_drop"];

impl Xdp {
    pub(super) const fn new() -> Self {
        Self { netlink: Socket::new(Netlink::open), devices: Vec::new() }
    }
}

impl Source for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::DEV_XDP_DROPPED]
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(netlink) = self.netlink.below(root)? else { return Ok(()) };
        for link in netlink.links().map_err(cause)? {
            if link.has_xdp && !self.devices.iter().any(|(name, _)| *name == link.name) {
                let device = Device::open(&link.name).map_err(cause)?;
                self.devices.push((link.name, device));
            }
        }
        // Nothing is dropped where there is no program, and that is known.
        out.value(host::DEV_XDP_DROPPED, "", 0);
        for (name, device) in &self.devices {
            // A device that has gone meanwhile stays at what it showed last.
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
