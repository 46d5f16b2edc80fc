//! The fast path: a program before the queues, in the driver (XDP) or at the ingress of the stack (TCX), which decides by the same table and the same hash.
//!
//! It sends whole packets of TCP and UDP to their targets and passes all others up, where the queues take them as they do without it. Program,
//! maps and links belong to descriptors, so they go with the process, however it ends.

mod hook;
mod maps;
mod program;
mod ways;

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use fathom_model::MacAddress;
use fathom_sys::{
    bpf::Program,
    netlink::{Link, Netlink, ethtool::CounterGrowth},
};
use serde::Serialize;

use super::{
    DeviceError,
    settings::{DeviceSettings, DeviceTarget},
};
use crate::balancer::GroupTable;
use hook::Hook;
use maps::{Maps, Passed, TARGETS_MAX, Way};
use ways::WayFinder;

/// The counts of the fast path since the start. In JSON as they are named here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FastPathCounters {
    /// The interfaces at which it runs.
    pub interfaces: Vec<String>,
    /// Those whose frames it does not get any more: they were replaced, or have another Ethernet address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub detached: Vec<String>,
    /// Packets that it sent to a target itself. They are among the decisions.
    pub n_redirected: u64,
    /// Those of them that the links to the targets did not take, such as for a full ring; absent unless all drivers count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_not_taken: Option<u64>,
    /// Why it leaves everything to the queues now; absent if it decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_to_queue_because: Option<String>,
    /// Packets for a virtual address that it passed up to the queues, by cause.
    pub passed_up: BTreeMap<&'static str, u64>,
}

/// A program with its tables; dropping this takes it off.
#[derive(Debug)]
pub(super) struct FastPath {
    hook: Hook,
    maps: Maps,
    program: Program,
    interfaces: Vec<Interface>,
    table_size: u32,
    state: Mutex<State>,
}

/// An interface as it was when the program was made, which knows its Ethernet address.
#[derive(Debug)]
struct Interface {
    name: String,
    index: u32,
    mac: MacAddress,
}

impl Interface {
    /// `None` for a device whose frames have no Ethernet header.
    fn of(link: &Link) -> Option<Self> {
        Some(Self { name: link.name.clone(), index: link.index, mac: link.mac? })
    }

    /// Whether a link is the same interface with the same address.
    fn is(&self, link: &Link) -> bool {
        link.index == self.index && link.mac == Some(self.mac)
    }
}

/// What the program was told last.
#[derive(Debug)]
struct State {
    netlink: Netlink,
    /// Each keeps the program on an interface.
    attached: Vec<OwnedFd>,
    /// The interfaces that are not what they were.
    detached: Vec<String>,
    /// The half of the places that the program reads, 1 or 2.
    active: u64,
    /// The numbers of the targets of the table, and the targets.
    targets: Vec<(u32, DeviceTarget)>,
    /// The ways by row.
    ways: BTreeMap<u32, Way>,
    /// What the drivers of the links to targets count, by link; `None` for drivers that do not.
    losses: BTreeMap<u32, Option<CounterGrowth>>,
}

impl FastPath {
    /// Has the kernel check the program, which passes everything up until it is told a table. It is attached later.
    ///
    /// `None` if the data path has no program.
    pub(super) fn prepare(settings: &DeviceSettings, table_size: u32) -> Result<Option<Self>, DeviceError> {
        let Some(hook) = Hook::of(settings.data_path) else { return Ok(None) };
        let refused = |error: fathom_sys::Error| {
            if error.is_permission() {
                return DeviceError::NoPrograms;
            }
            DeviceError::Kernel { attempt: "load the program of the fast path", source: error }
        };
        let mut netlink = Netlink::open().map_err(|error| DeviceError::kernel("open rtnetlink", error))?;
        let mut interfaces = Vec::new();
        for name in &settings.interfaces {
            let link = netlink.link(name).map_err(|_| DeviceError::NoInterface(name.clone()))?;
            interfaces.push(Interface::of(&link).ok_or_else(|| DeviceError::NoEthernet(name.clone()))?);
        }
        let own: Vec<MacAddress> = interfaces.iter().map(|interface| interface.mac).collect();
        let maps = Maps::create(table_size).map_err(refused)?;
        let code = program::program(hook, &maps, &own, &settings.virtual_addresses, table_size);
        let program = Program::load(hook.program_type(), "fathom_balancer", &code).map_err(refused)?;
        let state = State {
            netlink,
            attached: Vec::new(),
            detached: Vec::new(),
            active: 1,
            targets: Vec::new(),
            ways: BTreeMap::new(),
            losses: BTreeMap::new(),
        };
        Ok(Some(Self { hook, maps, program, interfaces, table_size, state: Mutex::new(state) }))
    }

    /// Puts the program on its interfaces.
    pub(super) fn attach(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        for Interface { name, index, .. } in &self.interfaces {
            state.attached.push(self.hook.attach(&self.program, *index, name)?);
        }
        Ok(())
    }

    /// Takes the program off.
    pub(super) fn detach(&self) {
        self.state().attached.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a target whose link takes no redirected frames, because these would vanish.
    pub(super) fn check(&self, target: &DeviceTarget) -> Result<(), DeviceError> {
        let mut state = self.state();
        let mut finder = WayFinder::new(self.hook, &mut state.netlink)?;
        let deaf = target.addresses.iter().find_map(|address| finder.deaf_link(*address));
        deaf.map_or(Ok(()), |interface| Err(DeviceError::NoRedirect { target: target.name.clone(), interface }))
    }

    /// Tells the program a table, and its targets by mark; without a table it passes everything up.
    pub(super) fn publish(
        &self,
        table: Option<&GroupTable>,
        known: &BTreeMap<u32, DeviceTarget>,
    ) -> Result<(), DeviceError> {
        let mut state = self.state();
        let failed = |error| DeviceError::kernel("tell the program its table", error);
        let Some(table) = table else { return self.maps.active.set(0, &[0]).map_err(failed) };
        let placed = || table.targets.iter().map(|placed| (placed.counter_idx, known.get(&placed.target.mark)));
        let is_known = |(number, target): &(u32, Option<&DeviceTarget>)| *number < TARGETS_MAX && target.is_some();
        state.targets = placed().filter_map(|(number, target)| Some((number, target?.clone()))).collect();
        state.targets.retain(|(number, _)| *number < TARGETS_MAX);
        self.find_ways(&mut state)?;
        // The number of the target of each place from one.
        let values: Vec<[u64; 1]> =
            placed().map(|one| if is_known(&one) { [u64::from(one.0) + 1] } else { [0] }).collect();
        let mut places: Vec<[u64; 1]> = table.table.places().iter().map(|idx| values[usize::from(*idx)]).collect();
        places.resize(usize::try_from(self.table_size).expect("addresses have at least 32 bits"), [0]);
        let next = 3 - state.active;
        let first = if next == 1 { 0 } else { self.table_size };
        self.maps.places.set_from(first, &places).map_err(failed)?;
        self.maps.active.set(0, &[next]).map_err(failed)?;
        state.active = next;
        Ok(())
    }

    /// Looks again where the targets are; returns whether the way to each is known.
    pub(super) fn refresh(&self) -> Result<bool, DeviceError> {
        self.find_ways(&mut self.state())
    }

    fn find_ways(&self, state: &mut State) -> Result<bool, DeviceError> {
        let State { netlink, targets, ways, losses, detached, .. } = state;
        let mut finder = WayFinder::new(self.hook, netlink)?;
        let is_other = |interface: &&Interface| !finder.links().iter().any(|link| interface.is(link));
        *detached = self.interfaces.iter().filter(is_other).map(|interface| interface.name.clone()).collect();
        let mut is_complete = true;
        for (number, target) in targets {
            for address in &target.addresses {
                let row = 2 * *number + u32::from(address.is_ipv6());
                let way = finder.way(*address);
                is_complete &= way.is_some();
                if ways.get(&row) == way.as_ref() {
                    continue;
                }
                let failed = |error| DeviceError::kernel("tell the program a way", error);
                self.maps.ways.set(row, &Way::row(way.as_ref())).map_err(failed)?;
                if let Some(way) = way {
                    losses.entry(way.link).or_insert_with(|| finder.losses(way.link));
                    ways.insert(row, way);
                } else {
                    ways.remove(&row);
                }
            }
        }
        Ok(is_complete)
    }

    /// The packets that it sent to the target with this number.
    pub(super) fn n_redirected(&self, number: usize) -> u64 {
        let row = u32::try_from(number).ok().filter(|number| *number < TARGETS_MAX);
        row.and_then(|row| self.maps.target_counts.sum(row).ok()).map_or(0, |[n]| n)
    }

    /// The counts but for [`FastPathCounters::n_redirected`] and what is left to the queues.
    pub(super) fn counters(&self) -> FastPathCounters {
        let of = |why: Passed| self.maps.passed.sum(why as u32).map_or(0, |[n]| n);
        let state = self.state();
        let names = self.interfaces.iter().map(|interface| interface.name.clone());
        let n_lost: Option<u64> = state.losses.values().map(|losses| losses.as_ref().map(CounterGrowth::count)).sum();
        FastPathCounters {
            interfaces: names.filter(|name| !state.detached.contains(name)).collect(),
            detached: state.detached.clone(),
            left_to_queue_because: None,
            n_redirected: 0,
            n_not_taken: n_lost.filter(|_| !state.losses.is_empty()),
            passed_up: Passed::ALL.iter().map(|why| (why.word(), of(*why))).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
