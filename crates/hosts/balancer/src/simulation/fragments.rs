//! The fragment table under a load of datagrams: what is lost because it is too small.

use std::net::{IpAddr, Ipv6Addr};

use serde::Serialize;

use fathom_model::units::{Nanos, ratio, rounded};

use super::{Draws, SimulatedArrivals};
use crate::{
    classify::{DatagramKey, Fragment},
    fragments::{
        FirstFragment, FragmentCounters, FragmentSettings, FragmentSettingsError, FragmentShard, LaterFragment,
        Released,
    },
    hash::Slots,
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
    #[serde(skip_serializing_if = "Option::is_none")]
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

/// Datagrams that are drawn, then hashed, then given to the table. Their hashes wait neither for each other then, nor for what the processor has just
/// written, nor for its wrong guess about the slot of the one before.
const BATCH: usize = 64;

/// A load that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FragmentSimulationError {
    /// The table is not possible.
    #[error(transparent)]
    Table(#[from] FragmentSettingsError),
    /// The rate is not possible.
    #[error("a rate of {0} datagrams per second: it is more than 0 and at most 1 G")]
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
        let mut arriving = Arriving::new(self);
        let mut released = Released::default();
        let mut order: Vec<u16> = (0..self.n_fragments).collect();
        let mut batch = Vec::with_capacity(BATCH);
        let (mut n_datagrams, mut n_lost) = (0, 0);
        while !arriving.are_over {
            arriving.draw(&mut batch);
            for Drawn { datagram, hash, at } in &batch {
                n_datagrams += 1;
                let is_lost = if self.n_fragments == 1 {
                    let fragment = self.fragment(*datagram, 0);
                    shard.first((&fragment, *hash), 0, *at, &mut released) != FirstFragment::Known
                } else {
                    self.order.apply(&mut order, &mut arriving.draws);
                    self.is_datagram_lost(&mut shard, (*datagram, *hash), (&order, *at), &mut released)
                };
                n_lost += u64::from(is_lost);
            }
        }
        let now = arriving.now;
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
        (datagram, hash): (DatagramKey, u64),
        (order, begin): (&[u16], Nanos),
        released: &mut Released,
    ) -> bool {
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

/// A datagram that comes.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    datagram: DatagramKey,
    hash: u64,
    at: Nanos,
}

/// The datagrams that come, in their order.
struct Arriving<'a> {
    load: &'a FragmentSimulation,
    draws: Draws,
    senders: Senders<'a>,
    mean: Nanos,
    /// When the last one came.
    now: Nanos,
    n_drawn: u64,
    /// Whether the last one came behind the end of the load.
    are_over: bool,
}

impl<'a> Arriving<'a> {
    fn new(load: &'a FragmentSimulation) -> Self {
        let mut draws = Draws::new(load.seed);
        let senders = Senders::new(load, &mut draws);
        let mean = Nanos(rounded(1e9 / load.rate_per_sec).max(1));
        Self { load, draws, senders, mean, now: Nanos::ZERO, n_drawn: 0, are_over: false }
    }

    /// Draws the next datagrams with their hashes, in place of those of the batch.
    #[inline]
    fn draw(&mut self, batch: &mut Vec<Drawn>) {
        batch.clear();
        // The order of several fragments is drawn between two datagrams.
        let n = if self.load.n_fragments == 1 { BATCH } else { 1 };
        while batch.len() < n {
            self.now += self.load.arrivals.gap(&mut self.draws, self.mean, self.n_drawn);
            if self.now > self.load.duration {
                self.are_over = true;
                break;
            }
            self.n_drawn += 1;
            batch.push(Drawn { datagram: self.senders.next(&mut self.draws), hash: 0, at: self.now });
        }
        for drawn in batch {
            drawn.hash = self.load.table.hash.of(&drawn.datagram, self.load.table.seed);
        }
    }
}

/// The addresses that send, and how far each has counted.
struct Senders<'a> {
    load: &'a FragmentSimulation,
    slots: Slots,
    /// One count, or one for each source.
    ids: Vec<u32>,
}

impl<'a> Senders<'a> {
    fn new(load: &'a FragmentSimulation, draws: &mut Draws) -> Self {
        let ids = match load.ids {
            IdModel::PerFlow => (0..load.n_sources).map(|_| upper_half(draws.any())).collect(),
            IdModel::Sequential | IdModel::Random | IdModel::Adversarial => vec![0],
        };
        Self { load, slots: Slots::new(load.table.n_slots), ids }
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
                if self.slots.of(self.load.table.hash.of(&key, 0)) < self.load.table.n_slots.div_ceil(100) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::FragmentHash;

    /// First fragments alone, one source, identifications in sequence, entries removed only when their slot is touched.
    fn load((n_slots, n_buckets): (u32, u32), rate_per_sec: f64, secs: u64, hash: FragmentHash) -> FragmentSimulation {
        let table = FragmentSettings { n_slots, n_buckets, n_swept: 0, hash, n_shards: 1, ..FragmentSettings::USUAL };
        FragmentSimulation {
            table,
            rate_per_sec,
            duration: Nanos::from_secs(secs),
            arrivals: SimulatedArrivals::Uniform,
            ids: IdModel::Sequential,
            n_sources: 1,
            n_fragments: 1,
            order: FragmentOrder::Forward,
            seed: 1,
        }
    }

    fn loss(load: &FragmentSimulation) -> f64 {
        load.run().unwrap().loss.unwrap()
    }

    #[test]
    fn the_figures_that_the_size_rule_came_from_are_repeated() {
        // Published with the rule "twice rate times time to live, a prime": size, buckets, rate, seconds, loss.
        for ((n_slots, n_buckets), rate, secs, expected, tolerance) in [
            ((223, 223), 1000.0, 300, 0.0, 0.000_5),
            ((1999, 1999), 10_000.0, 60, 0.0, 0.000_5),
            ((4001, 4001), 10_000.0, 60, 0.0, 0.000_5),
            ((2000, 2000), 10_000.0, 60, 0.139, 0.01),
            ((499, 100), 2500.0, 20, 0.234, 0.01),
        ] {
            let loss = loss(&load((n_slots, n_buckets), rate, secs, FragmentHash::Djb2));
            assert!((loss - expected).abs() < tolerance, "{n_slots}/{n_buckets}: {loss}, not {expected}");
        }
    }

    #[test]
    fn with_a_hash_that_mixes_a_prime_is_worth_nothing() {
        let of = |size| loss(&load((size, size), 10_000.0, 60, FragmentHash::Mixing));
        let (prime, other) = (of(1999), of(2000));
        assert!(prime < 0.02 && other < 0.02 && (prime - other).abs() < 0.003, "{prime} and {other}");
    }

    #[test]
    fn sweeping_for_old_entries_saves_what_lazy_removal_loses() {
        let lazy = load((499, 100), 2500.0, 20, FragmentHash::Mixing);
        let table = FragmentSettings { n_swept: 64, ..lazy.table };
        let swept = FragmentSimulation { table, ..lazy };
        assert!(loss(&swept) < loss(&lazy) - 0.05, "{} and {}", loss(&swept), loss(&lazy));
    }

    #[test]
    fn fragments_in_any_order_are_lost_only_for_want_of_room() {
        for order in [FragmentOrder::Forward, FragmentOrder::Reversed, FragmentOrder::Shuffled] {
            let many = FragmentSimulation {
                n_fragments: 4,
                order,
                ids: IdModel::Random,
                n_sources: 50,
                ..load((5003, 5003), 2000.0, 10, FragmentHash::Mixing)
            };
            let result = many.run().unwrap();
            assert_eq!((result.n_lost, result.table.n_rejected), (0, 0), "{order:?}: {result:?}");
            let table = FragmentSettings { n_stored: 0, ..many.table };
            let without = FragmentSimulation { table, ..many }.run().unwrap();
            let is_all_lost = without.n_lost == without.n_datagrams;
            assert_eq!(is_all_lost, order == FragmentOrder::Reversed, "{order:?}: {without:?}");
        }
    }

    #[test]
    fn one_who_knows_the_hash_fills_a_table_that_others_do_not() {
        let honest = load((2003, 50), 1000.0, 5, FragmentHash::Mixing);
        let hostile = FragmentSimulation { ids: IdModel::Adversarial, ..honest };
        let table = FragmentSettings { seed: 99, ..honest.table };
        let unknown = FragmentSimulation { table, ..hostile };
        assert!(loss(&honest) < 0.1 && loss(&hostile) > 0.5, "{} {}", loss(&honest), loss(&hostile));
        assert!(loss(&unknown) < 0.1, "the seed is worth that: {}", loss(&unknown));
    }

    #[test]
    fn the_same_seed_repeats_and_every_insert_is_accounted_for() {
        let load = FragmentSimulation {
            ids: IdModel::PerFlow,
            n_sources: 7,
            ..load((499, 100), 2500.0, 5, FragmentHash::Mixing)
        };
        let result = load.run().unwrap();
        assert_eq!(load.run().unwrap(), result);
        assert_eq!(result.n_datagrams, result.table.n_inserts);
        assert_eq!(
            result.table.n_inserts,
            result.table.n_rejected + result.table.n_expired + result.n_active + result.n_stale
        );
        assert_ne!(FragmentSimulation { seed: 2, ..load }.run().unwrap(), result);
    }

    #[test]
    fn loads_that_are_not_possible_are_refused() {
        let good = load((499, 100), 2500.0, 5, FragmentHash::Mixing);
        let run = |load: FragmentSimulation| load.run().unwrap_err();
        assert_eq!(run(FragmentSimulation { rate_per_sec: 0.0, ..good }), FragmentSimulationError::Rate(0.0));
        assert_eq!(run(FragmentSimulation { n_fragments: 46, ..good }), FragmentSimulationError::Fragments(46));
        assert_eq!(run(FragmentSimulation { n_sources: 0, ..good }), FragmentSimulationError::Sources);
    }
}
