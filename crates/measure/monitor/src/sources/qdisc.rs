//! Packets dropped by the queueing disciplines of the namespace: rtnetlink, because `/proc` does not have them.
//!
//! Works only on the running system: another root has nothing to query.

use std::{collections::BTreeMap, io, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::Netlink;

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
};

/// The source; it stays in the network namespace of the thread that takes the first sample.
pub(super) struct Qdisc {
    netlink: Socket<Netlink>,
    names: BTreeMap<u32, String>,
}

impl Qdisc {
    pub(super) const fn new() -> Self {
        Self { netlink: Socket::new(Netlink::open), names: BTreeMap::new() }
    }
}

impl Source for Qdisc {
    fn name(&self) -> &'static str {
        "qdisc"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::QDISC_DROPPED]
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(netlink) = self.netlink.below(root)? else { return Ok(()) };
        for (device, drops) in netlink.qdisc_drops().map_err(cause)? {
            if !self.names.contains_key(&device) {
                self.names = netlink.links().map_err(cause)?.into_iter().map(|link| (link.index, link.name)).collect();
            }
            // A device that has disappeared meanwhile has no name anymore.
            if let Some(name) = self.names.get(&device) {
                out.value(host::QDISC_DROPPED, name, drops.into());
            }
        }
        Ok(())
    }
}
