//! What the queueing disciplines of the namespace dropped: rtnetlink, as `/proc` does not say it.
//!
//! Only of the running system: under another root there is nothing to ask.

use std::{collections::BTreeMap, io, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::Netlink;

use super::{Recorder, Source};

/// The source; it stays in the network namespace of the thread that takes the first sample.
#[derive(Default)]
pub(super) struct Qdisc {
    netlink: Option<Netlink>,
    names: BTreeMap<u32, String>,
}

impl Source for Qdisc {
    fn name(&self) -> &'static str {
        "qdisc"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::QDISC_DROPPED]
    }

    fn sample(&mut self, root: &Path, out: &mut dyn Recorder) -> io::Result<()> {
        if root != Path::new("/") {
            return Ok(());
        }
        let failed = |error: fathom_sys::Error| error.source;
        let netlink = match &mut self.netlink {
            Some(netlink) => netlink,
            none => none.insert(Netlink::open().map_err(failed)?),
        };
        for (device, drops) in netlink.qdisc_drops().map_err(failed)? {
            if !self.names.contains_key(&device) {
                self.names = netlink.links().map_err(failed)?.into_iter().map(|link| (link.index, link.name)).collect();
            }
            // A device that has gone meanwhile has no name any more.
            if let Some(name) = self.names.get(&device) {
                out.value(host::QDISC_DROPPED, name, drops.into());
            }
        }
        Ok(())
    }
}
