//! What one thread decides packets with.

use std::sync::{Arc, atomic::Ordering};

use fathom_model::units::Nanos;
use fathom_statistics::splitmix;

use super::{
    Balancer, Unmatched,
    tables::{Fate, GroupTable, Tables},
};
use crate::{
    classify::{FlowKey, Fragment, Packet, Ports, classify},
    counters::{FixedCounters, StripedCounter},
    decision::{Decision, DropCause},
    defects::{Defect, OneIn},
    fragments::{FirstFragment, LaterFragment, Released},
    hash::flow_hash,
};

/// The bytes that the defect `leak` keeps for a packet: as many as an entry of the kernel's connection table has.
const LEAKED_BYTES: usize = 256;
/// The most that a worker leaks, so that the defect does not harm the machine: 64 MiB.
const LEAKS_MAX: usize = (64 << 20) / LEAKED_BYTES;

/// One thread's counters, and the tables as of its last packet.
#[derive(Debug)]
pub struct BalancerWorker {
    balancer: Arc<Balancer>,
    tables: Arc<Tables>,
    generation: u64,
    /// The number of the worker.
    worker: usize,
    /// The seed of its draws.
    seed: u64,
    /// The number of its last packet.
    number: u64,
    released: Released,
    leaked: Vec<[u8; LEAKED_BYTES]>,
}

impl BalancerWorker {
    pub(super) fn new(balancer: Arc<Balancer>, worker: usize) -> Self {
        let generation = balancer.generation.load(Ordering::Acquire);
        Self {
            tables: balancer.tables(),
            generation,
            worker,
            seed: splitmix(balancer.settings.seed, u64::try_from(worker).unwrap_or(u64::MAX)),
            number: 0,
            released: Released::default(),
            leaked: Vec::new(),
            balancer,
        }
    }

    /// Decides a packet, given from its IP header on. `now` is a monotonic time, of the same clock in all workers.
    pub fn decide(&mut self, bytes: &[u8], now: Nanos) -> Decision {
        self.refresh();
        self.released.clear();
        self.number += 1;
        self.count(|counters| &counters.packets);
        let packet = match classify(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.settle(Fate::Drop(DropCause::Unreadable(error))),
        };
        if packet.is_icmp_error {
            self.count(|counters| &counters.icmp_errors);
        }
        if let Some(balancer) = self.tables.tier.as_ref().and_then(|tier| tier.other_balancer(&packet)) {
            balancer.counter.add(self.worker, 1);
            return Decision::Forward { mark: balancer.mark };
        }
        let Some(fragment) = packet.fragment else {
            let fate = self.fate_of_whole(&packet);
            return self.settle(fate);
        };
        if fragment.offset == 0 {
            let fate = self.fate_of_first(&packet, &fragment, now);
            return self.settle(fate);
        }
        let bytes = (!packet.is_cut).then_some(bytes);
        let fate = match self.balancer.fragments.later(&fragment, bytes, now) {
            LaterFragment::Held => {
                self.count(|counters| &counters.held);
                return Decision::Hold;
            }
            LaterFragment::Known(fate) => fate,
            LaterFragment::TableFull => Fate::Drop(DropCause::TableFull),
            LaterFragment::StoreFull => Fate::Drop(DropCause::StoreFull),
            LaterFragment::Incomplete => Fate::Drop(DropCause::Incomplete),
        };
        self.settle(fate)
    }

    /// The packets that waited for the fragment that was decided last. They have to be decided again, so the device sends them into its own
    /// input.
    pub fn released(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.released.packets()
    }

    /// Returns whether the data path harms this packet, and counts it if so.
    pub fn draw(&self, defect: Defect, one_in: Option<OneIn>) -> bool {
        let is_hit = one_in.is_some_and(|one_in| one_in.hits(defect, self.seed, self.number));
        if is_hit {
            self.count_defect(defect);
        }
        is_hit
    }

    /// Takes the tables of the last change.
    fn refresh(&mut self) {
        let generation = self.balancer.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.tables = self.balancer.tables();
            self.generation = generation;
        }
    }

    fn count(&self, of: impl Fn(&FixedCounters) -> &StripedCounter) {
        of(&self.balancer.counters).add(self.worker, 1);
    }

    fn count_defect(&self, defect: Defect) {
        self.count(|counters| &counters.defects[defect as usize]);
    }

    /// Counts a decision.
    fn settle(&mut self, fate: Fate) -> Decision {
        match fate {
            Fate::Forward { mark, counter_idx } => {
                self.count(|counters| &counters.forwarded);
                let place = usize::try_from(counter_idx).expect("addresses have at least 32 bits");
                // Another worker may have chosen it for a datagram by tables that are newer than these.
                if let Some(counter) = self.tables.target_counters.get(place) {
                    counter.add(self.worker, 1);
                } else {
                    self.balancer.tables().target_counters[place].add(self.worker, 1);
                }
                self.leak();
                Decision::Forward { mark }
            }
            Fate::Pass => {
                self.count(|counters| &counters.passed);
                Decision::Pass
            }
            Fate::Drop(cause) => {
                self.count(|counters| &counters.dropped[cause.index()]);
                if cause == DropCause::Blackhole {
                    self.count_defect(Defect::Blackhole);
                }
                Decision::Drop(cause)
            }
        }
    }

    fn leak(&mut self) {
        let one_in = self.balancer.settings.defects.leak;
        if one_in.is_some() && self.leaked.len() < LEAKS_MAX && self.draw(Defect::Leak, one_in) {
            // Zeros would not take memory before they are written.
            self.leaked.push([0xff; LEAKED_BYTES]);
        }
    }

    fn fate_of_whole(&self, packet: &Packet<'_>) -> Fate {
        let ports = if self.balancer.settings.defects.ignore_ports { Ports::Absent } else { packet.key.ports };
        self.choose(packet, ports)
    }

    /// Decides a first fragment, and keeps that for the later ones.
    fn fate_of_first(&mut self, packet: &Packet<'_>, fragment: &Fragment, now: Nanos) -> Fate {
        let defects = &self.balancer.settings.defects;
        let is_without_ports = defects.ignore_ports || defects.fragments_without_ports;
        let forget = defects.forget_fragment;
        let ports = if is_without_ports { Ports::Absent } else { packet.key.ports };
        let fate = self.choose(packet, ports);
        if self.draw(Defect::ForgetFragment, forget) {
            return fate;
        }
        match self.balancer.fragments.first(fragment, fate, now, &mut self.released) {
            FirstFragment::Known => {
                let n = u64::try_from(self.released.packets().len()).unwrap_or(u64::MAX);
                self.balancer.counters.released.add(self.worker, n);
                fate
            }
            FirstFragment::TableFull => Fate::Drop(DropCause::TableFull),
            FirstFragment::Incomplete => Fate::Drop(DropCause::Incomplete),
        }
    }

    /// Chooses the target of a flow that shows these ports.
    fn choose(&self, packet: &Packet<'_>, ports: Ports) -> Fate {
        let Some(found) = self.tables.group_of(packet) else {
            return match self.balancer.settings.unmatched {
                Unmatched::Pass => Fate::Pass,
                Unmatched::Drop => Fate::Drop(DropCause::NoFlow),
            };
        };
        if let Some(counter) = found.rule {
            counter.add(self.worker, 1);
        }
        let key = FlowKey { ports, ..packet.key };
        let place = found.group.and_then(|group| Some((group, group.table.lookup(flow_hash(&key))?)));
        let Some((group, place)) = place else { return Fate::Drop(DropCause::NoTarget) };
        let target = &group.targets[self.mis_hashed(group, place)];
        if target.is_blackhole {
            return Fate::Drop(DropCause::Blackhole);
        }
        Fate::Forward { mark: target.target.mark, counter_idx: target.counter_idx }
    }

    /// The place of another target, if the defect hits this packet and there is one.
    fn mis_hashed(&self, group: &GroupTable, place: usize) -> usize {
        let n = group.targets.len();
        if n < 2 || !self.draw(Defect::MisHash, self.balancer.settings.defects.mis_hash) {
            return place;
        }
        let others = u64::try_from(n - 1).expect("a group has at most ten thousand targets");
        let step = splitmix(self.seed ^ self.number, 1) % others + 1;
        (place + usize::try_from(step).expect("it is less than the number of targets")) % n
    }
}
