//! The fragment table under a load of datagrams: what is lost because it is too small.

use std::net::{IpAddr, Ipv6Addr};

use serde::Serialize;

use fathom_model::units::{Nanos, ratio, rounded};

use super::{Draws, SimulatedArrivals};
use crate::{
    classify::{DatagramKey, Fragment},
    fragments::{FirstFragment, FragmentCounters, FragmentSettings, FragmentSettingsError, FragmentShard, LaterFragment, Released},
};

/// How senders number their datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IdModel {
    /// One count for all of them, as if all came from one host with one counter.
    #[default]
    Sequential,
    /// A count for each source, which begins anywhere.
    PerFlow,
    /// At random (RFC 7739).
    Random,
    /// By one who knows the hash without its seed, and wants a hundredth of the slots to take everything.
    Adversarial,
}

/// The order in which the fragments of a datagram come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FragmentOrder {
    /// As they were sent.
    #[default]
    Forward,
    /// The last one first.
    Reversed,
    /// At random.
    Shuffled,
}

/// A load of datagrams on one table.
#[derive(Debug, Clone, Copy)]
pub struct FragmentSimulation {
    /// The table; it is simulated as one part.
    pub table: FragmentSettings,
    /// Datagrams per second.
    pub rate_per_sec: f64,
    /// How long the load lasts.
    pub duration: Nanos,
    /// When datagrams come.
    pub arrivals: SimulatedArrivals,
    /// How they are numbered.
    pub ids: IdModel,
    /// The number of addresses that send.
    pub n_sources: u32,
    /// The fragments of each datagram; with 1, first fragments alone.
    pub n_fragments: u16,
    /// The order of the fragments.
    pub order: FragmentOrder,
    /// The seed of all draws.
    pub seed: u64,
}

/// What became of the load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FragmentSimulationResult {
    /// The seed of this load.
    pub seed: u64,
    /// Datagrams that came.
    pub n_datagrams: u64,
    /// Datagrams of which at least one fragment was lost.
    pub n_lost: u64,
    /// The lost share; absent without datagrams.
    pub loss: Option<f64>,
    /// Entries at the end that are not old.
    pub n_active: u64,
    /// Entries at the end that are old.
    pub n_stale: u64,
    /// What the table counted.
    pub table: FragmentCounters,
}

/// The bytes of a fragment's data: a packet of 1500 bytes.
const FRAGMENT_BYTES: u16 = 1448;
/// The distance of fragments of one datagram: 1500 bytes at 1 Gbit/s.
const SPACING: Nanos = Nanos(12_000);

/// A load that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FragmentSimulationError {
    /// The table is not possible.
    #[error(transparent)]
    Table(#[from] FragmentSettingsError),
    /// The rate is not possible.
    #[error("a rate of {0} datagrams per second: it is from 0.001 to 1 G")]
    Rate(f64),
    /// There are no fragments, or more than a datagram can have.
    #[error("{0} fragments: a datagram of at most 65535 bytes has 1 to 45 of {FRAGMENT_BYTES} bytes")]
    Fragments(u16),
    /// There are no sources.
    #[error("datagrams come from at least one source")]
    Sources,
}

impl FragmentSimulation {
    /// Checks the load.
    ///
    /// # Errors
    /// If the table or the load is not possible.
    pub fn check(&self) -> Result<(), FragmentSimulationError> {
        self.table.check()?;
        if !(0.001..=1e9).contains(&self.rate_per_sec) {
            return Err(FragmentSimulationError::Rate(self.rate_per_sec));
        }
        if !(1..=65_535 / FRAGMENT_BYTES).contains(&self.n_fragments) {
            return Err(FragmentSimulationError::Fragments(self.n_fragments));
        }
        if self.n_sources == 0 {
            return Err(FragmentSimulationError::Sources);
        }
        Ok(())
    }

    /// Plays the load on an empty table.
    ///
    /// # Errors
    /// If the table or the load is not possible.
    pub fn run(&self) -> Result<FragmentSimulationResult, FragmentSimulationError> {
        self.check()?;
        let mut shard = FragmentShard::new(FragmentSettings { n_shards: 1, ..self.table })?;
        let mut draws = Draws::new(self.seed);
        let mut senders = Senders::new(self, &mut draws);
        let mean = Nanos(rounded(1e9 / self.rate_per_sec).max(1));
        let mut released = Released::default();
        let mut order: Vec<u16> = (0..self.n_fragments).collect();
        let (mut now, mut n_datagrams, mut n_lost) = (Nanos::ZERO, 0, 0);
        loop {
            now += self.arrivals.gap(&mut draws, mean, n_datagrams);
            if now > self.duration {
                break;
            }
            n_datagrams += 1;
            let datagram = senders.next(&mut draws);
            let is_lost = if self.n_fragments == 1 {
                let fragment = self.fragment(datagram, 0);
                let hash = self.table.hash.of(&datagram, self.table.seed);
                shard.first((&fragment, hash), 0, now, &mut released) != FirstFragment::Known
            } else {
                self.order.apply(&mut order, &mut draws);
                self.is_datagram_lost(&mut shard, datagram, (&order, now), &mut released)
            };
            n_lost += u64::from(is_lost);
        }
        let table = shard.counters();
        let n_stale = shard.n_stale(now);
        let n_active = table.n_entries - n_stale;
        let loss = ratio(n_lost, n_datagrams);
        Ok(FragmentSimulationResult { seed: self.seed, n_datagrams, n_lost, loss, n_active, n_stale, table })
    }

    const fn fragment(&self, datagram: DatagramKey, number: u16) -> Fragment {
        let is_last = number + 1 == self.n_fragments;
        Fragment { datagram, offset: number * FRAGMENT_BYTES, length: FRAGMENT_BYTES, is_last }
    }

    /// Plays the fragments of a datagram in an order. What was held comes again as it is released.
    fn is_datagram_lost(
        &self,
        shard: &mut FragmentShard<u32>,
        datagram: DatagramKey,
        (order, begin): (&[u16], Nanos),
        released: &mut Released,
    ) -> bool {
        let hash = self.table.hash.of(&datagram, self.table.seed);
        let mut held = Vec::new();
        let mut now = begin;
        let mut n_forwarded = 0;
        for number in order {
            let fragment = self.fragment(datagram, *number);
            if *number == 0 {
                released.clear();
                let outcome = shard.first((&fragment, hash), 0, now, released);
                n_forwarded += usize::from(outcome == FirstFragment::Known);
                for number in held.drain(..released.packets().len().min(held.len())) {
                    let again = self.fragment(datagram, number);
                    let outcome = shard.later((&again, hash), None, now);
                    n_forwarded += usize::from(matches!(outcome, LaterFragment::Known(_)));
                }
            } else {
                match shard.later((&fragment, hash), Some(&[]), now) {
                    LaterFragment::Known(_) => n_forwarded += 1,
                    LaterFragment::Held => held.push(*number),
                    LaterFragment::TableFull | LaterFragment::StoreFull | LaterFragment::Incomplete => {}
                }
            }
            now += SPACING;
        }
        n_forwarded < order.len()
    }
}

impl FragmentOrder {
    fn apply(self, order: &mut [u16], draws: &mut Draws) {
        match self {
            Self::Forward => {}
            Self::Reversed => order.sort_unstable_by(|one, other| other.cmp(one)),
            Self::Shuffled => draws.shuffle(order),
        }
    }
}

/// The addresses that send, and how far each has counted.
struct Senders<'a> {
    load: &'a FragmentSimulation,
    /// One count, or one for each source.
    ids: Vec<u32>,
}

impl<'a> Senders<'a> {
    fn new(load: &'a FragmentSimulation, draws: &mut Draws) -> Self {
        let ids = match load.ids {
            IdModel::PerFlow => (0..load.n_sources).map(|_| upper_half(draws.any())).collect(),
            IdModel::Sequential | IdModel::Random | IdModel::Adversarial => vec![0],
        };
        Self { load, ids }
    }

    fn next(&mut self, draws: &mut Draws) -> DatagramKey {
        let source = if self.load.n_sources == 1 { 0 } else { draws.below(u64::from(self.load.n_sources)) };
        let place = usize::try_from(source).unwrap_or(0);
        let key = |id| DatagramKey { source: address(source), destination: DESTINATION, id, protocol: 0 };
        match self.load.ids {
            IdModel::Random => key(upper_half(draws.any())),
            IdModel::Sequential | IdModel::PerFlow => {
                let count = if self.ids.len() == 1 { &mut self.ids[0] } else { &mut self.ids[place] };
                *count = count.wrapping_add(1);
                key(*count)
            }
            IdModel::Adversarial => loop {
                self.ids[0] = self.ids[0].wrapping_add(1);
                let key = key(self.ids[0]);
                let slot = self.load.table.hash.of(&key, 0) % u64::from(self.load.table.n_slots);
                if slot < u64::from(self.load.table.n_slots.div_ceil(100)) {
                    return key;
                }
            },
        }
    }
}

fn upper_half(number: u64) -> u32 {
    u32::try_from(number >> 32).expect("half of the bits are left")
}

/// The addresses of RFC 5180 for measurements.
const DESTINATION: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 8, 0, 0, 0, 1));

const fn address(source: u64) -> IpAddr {
    let network = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0).to_bits();
    IpAddr::V6(Ipv6Addr::from_bits(network | (source as u128 + 1)))
}
