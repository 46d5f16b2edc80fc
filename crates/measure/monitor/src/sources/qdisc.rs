//! Drops, delays and queues of the queueing disciplines of the namespace: rtnetlink, because `/proc` does not have them.
//!
//! Works only on the running system: another root has nothing to query.

use std::{collections::BTreeMap, io, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::{
    Netlink,
    qdisc::{Qdisc as Discipline, QdiscPlace},
};

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
    wrapping_counter::WrappingCounter,
};

/// The source; it stays in the network namespace of the thread that takes the first sample.
pub(super) struct Qdisc {
    netlink: Socket<Netlink>,
    names: BTreeMap<u32, String>,
    /// The extended counters of each discipline, by device, parent and handle: one that takes the place of another has another handle.
    counted: BTreeMap<(u32, u32, u32), DisciplineCounters>,
}

impl Qdisc {
    pub(super) const fn new() -> Self {
        Self { netlink: Socket::new(Netlink::open), names: BTreeMap::new(), counted: BTreeMap::new() }
    }
}

impl Source for Qdisc {
    fn name(&self) -> &'static str {
        "qdisc"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::QDISC_DROPPED, host::QDISC_OVERLIMITS, host::QDISC_BACKLOG_BYTES, host::QDISC_IN_DROPPED]
    }

    /// An interface that is down has no discipline.
    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(netlink) = self.netlink.below(root)? else { return Ok(()) };
        let mut devices: BTreeMap<u32, DeviceTotals> = BTreeMap::new();
        for discipline in netlink.qdiscs().map_err(cause)? {
            let Discipline { device, parent, handle, .. } = discipline;
            let counted = self.counted.entry((device, parent, handle)).or_default();
            devices.entry(discipline.device).or_default().add(&discipline, counted);
        }
        for (device, totals) in devices {
            if !self.names.contains_key(&device) {
                self.names = netlink.links().map_err(cause)?.into_iter().map(|link| (link.index, link.name)).collect();
            }
            // A device that has disappeared meanwhile has no name anymore.
            let Some(name) = self.names.get(&device) else { continue };
            out.value(host::QDISC_DROPPED, name, totals.dropped);
            out.value(host::QDISC_OVERLIMITS, name, totals.overlimits);
            out.value(host::QDISC_BACKLOG_BYTES, name, totals.backlog_bytes);
            if let Some(dropped) = totals.in_dropped {
                out.value(host::QDISC_IN_DROPPED, name, dropped);
            }
        }
        Ok(())
    }
}

/// The counters of one discipline.
#[derive(Default)]
struct DisciplineCounters {
    dropped: WrappingCounter,
    overlimits: WrappingCounter,
}

/// The counters of one device.
#[derive(Default)]
struct DeviceTotals {
    dropped: u64,
    overlimits: u64,
    backlog_bytes: u64,
    /// `None` without a discipline on the way in.
    in_dropped: Option<u64>,
}

impl DeviceTotals {
    fn add(&mut self, discipline: &Discipline, counted: &mut DisciplineCounters) {
        let dropped = counted.dropped.follow(discipline.n_dropped);
        if discipline.place == QdiscPlace::Ingress {
            self.in_dropped = Some(dropped);
            return;
        }
        // The root counts the drops and the queues of its children too, but not what they held back.
        self.overlimits += counted.overlimits.follow(discipline.n_overlimits);
        if discipline.place == QdiscPlace::Root {
            self.dropped = dropped;
            self.backlog_bytes = discipline.backlog_bytes.into();
        }
    }
}
