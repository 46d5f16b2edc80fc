//! The connection table of the kernel (`nf_conntrack`) under a load of connections: what does not fit.
//!
//! A connection has an entry from its first packet until a time after its last one, which depends on how it ended. When the table is full,
//! the kernel looks at eight buckets for an entry that was never answered both ways, removes it, and otherwise drops the new connection's
//! packet. An entry leaves here at the moment at which it expires; the kernel's collector may take some seconds longer.

use std::{cmp::Reverse, collections::BinaryHeap};

use serde::Serialize;

use fathom_model::units::{Nanos, ratio, rounded};

use super::{Draws, SimulatedArrivals};

/// A load of connections on one table.
#[derive(Debug, Clone, Copy)]
pub struct ConntrackSimulation {
    /// The most entries: `net.netfilter.nf_conntrack_max`.
    pub n_max: u32,
    /// The buckets of the hash table: `net.netfilter.nf_conntrack_buckets`.
    pub n_buckets: u32,
    /// New connections per second.
    pub rate_per_sec: f64,
    /// How long the load lasts.
    pub duration: Nanos,
    /// When connections come.
    pub arrivals: SimulatedArrivals,
    /// The mean time from the first packet of a connection to its last; the distribution is exponential.
    pub lifetime: Nanos,
    /// The share of UDP flows; the others are TCP.
    pub udp_share: f64,
    /// The share of connections that nobody answers, such as those of a SYN flood.
    pub unanswered_share: f64,
    /// How long entries stay.
    pub timeouts: ConntrackTimeouts,
    /// The seed of all draws.
    pub seed: u64,
}

/// How long an entry stays after the last packet: the kernel's `net.netfilter.nf_conntrack_*_timeout*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConntrackTimeouts {
    /// `tcp_timeout_time_wait`: after both ends have closed.
    pub tcp_time_wait: Nanos,
    /// `tcp_timeout_syn_sent`: nobody answers.
    pub tcp_syn_sent: Nanos,
    /// `udp_timeout_stream`: after the last datagram of a flow that was answered.
    pub udp_stream: Nanos,
    /// `udp_timeout`: nobody answers.
    pub udp: Nanos,
}

impl ConntrackTimeouts {
    /// The kernel's own (Documentation/networking/nf_conntrack-sysctl.rst).
    pub const KERNEL: Self = Self {
        tcp_time_wait: Nanos::from_secs(120),
        tcp_syn_sent: Nanos::from_secs(120),
        udp_stream: Nanos::from_secs(120),
        udp: Nanos::from_secs(30),
    };
}

/// What became of the load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ConntrackSimulationResult {
    /// The seed of this load.
    pub seed: u64,
    /// Connections that came.
    pub n_connections: u64,
    /// Connections that found the table full: `nf_conntrack: table full, dropping packet`.
    pub n_dropped: u64,
    /// The dropped share; absent without connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Entries that had to go for others: `early_drop` of `conntrack -S`.
    pub n_early_dropped: u64,
    /// Entries that expired.
    pub n_expired: u64,
    /// The most entries at a time.
    pub n_entries_peak: u64,
    /// The mean number of entries while connections came.
    pub n_entries_mean: f64,
    /// Entries at the end.
    pub n_entries: u64,
    /// The most entries that a bucket had at a time.
    pub chain_max: u64,
    /// The memory of the table at its fullest, in bytes.
    pub memory_bytes: u64,
}

/// A load that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConntrackSimulationError {
    /// The rate is not possible.
    #[error("a rate of {0} connections per second: it is more than 0 and at most 10 M")]
    Rate(f64),
    /// A share is not from 0 to 1.
    #[error("a share of {0}: it is from 0 % to 100 %")]
    Share(f64),
    /// The table has no buckets or entries.
    #[error("{n_max} entries in {n_buckets} buckets: the table has 1 to {most} of both", most = SIZE_MAX)]
    Size {
        /// The most entries.
        n_max: u32,
        /// The buckets.
        n_buckets: u32,
    },
}

/// The largest table: its entries would need 20 GiB of the kernel's memory.
pub const SIZE_MAX: u32 = 1 << 26;
/// `struct nf_conn` as slabinfo shows it on x86-64.
const ENTRY_BYTES: u64 = 320;
/// A head of a bucket.
const BUCKET_BYTES: u64 = 8;
/// The buckets in which the kernel looks for an entry that can go (`NF_CT_EVICTION_RANGE`).
const EVICTION_BUCKETS: u32 = 8;

impl ConntrackSimulation {
    /// Checks the load.
    ///
    /// # Errors
    /// If the table or the load is not possible.
    pub fn check(&self) -> Result<(), ConntrackSimulationError> {
        let sizes = 1..=SIZE_MAX;
        if !sizes.contains(&self.n_max) || !sizes.contains(&self.n_buckets) {
            return Err(ConntrackSimulationError::Size { n_max: self.n_max, n_buckets: self.n_buckets });
        }
        if !(0.001..=1e7).contains(&self.rate_per_sec) {
            return Err(ConntrackSimulationError::Rate(self.rate_per_sec));
        }
        let wrong = [self.udp_share, self.unanswered_share].into_iter().find(|share| !(0.0..=1.0).contains(share));
        wrong.map_or(Ok(()), |share| Err(ConntrackSimulationError::Share(share)))
    }

    /// The time after which as many entries leave as come, without a limit: the mean lifetime and the longest timeout.
    #[must_use]
    pub fn fill_time(&self) -> Nanos {
        let (udp, unanswered) = (self.udp_share, self.unanswered_share);
        let timeouts = [
            ((1.0 - udp) * (1.0 - unanswered), self.timeouts.tcp_time_wait),
            ((1.0 - udp) * unanswered, self.timeouts.tcp_syn_sent),
            (udp * (1.0 - unanswered), self.timeouts.udp_stream),
            (udp * unanswered, self.timeouts.udp),
        ];
        let used = timeouts.into_iter().filter(|(share, _)| *share > 0.0).map(|(_, timeout)| timeout);
        self.lifetime + used.max().unwrap_or(Nanos::ZERO)
    }

    /// Plays the load on an empty table.
    ///
    /// # Errors
    /// If the table or the load is not possible.
    pub fn run(&self) -> Result<ConntrackSimulationResult, ConntrackSimulationError> {
        self.check()?;
        let mut table = ConntrackTable::new(self.n_buckets);
        let mut draws = Draws::new(self.seed);
        let mean = Nanos(rounded(1e9 / self.rate_per_sec).max(1));
        let (mut now, mut n_connections, mut n_dropped) = (Nanos::ZERO, 0, 0);
        loop {
            let gap = self.arrivals.gap(&mut draws, mean, n_connections);
            if now + gap > self.duration {
                table.expire(self.duration);
                break;
            }
            now += gap;
            table.expire(now);
            n_connections += 1;
            let connection = self.connection(&mut draws, now);
            let bucket = draws.below(u64::from(self.n_buckets));
            let bucket = u32::try_from(bucket).unwrap_or(0);
            if table.n_entries >= u64::from(self.n_max) && !table.evict(bucket, now) {
                n_dropped += 1;
                continue;
            }
            table.insert(bucket, connection);
        }
        Ok(ConntrackSimulationResult {
            seed: self.seed,
            n_connections,
            n_dropped,
            loss: ratio(n_dropped, n_connections),
            n_early_dropped: table.n_evicted,
            n_expired: table.n_expired,
            n_entries_peak: table.n_entries_peak,
            n_entries_mean: table.entry_seconds(self.duration) / self.duration.as_secs_f64().max(f64::MIN_POSITIVE),
            n_entries: table.n_entries,
            chain_max: table.chain_max.into(),
            memory_bytes: table.n_entries_peak * ENTRY_BYTES + u64::from(self.n_buckets) * BUCKET_BYTES,
        })
    }

    /// Draws a connection that begins now.
    fn connection(&self, draws: &mut Draws, now: Nanos) -> Connection {
        let is_udp = draws.share() < self.udp_share;
        let is_answered = draws.share() >= self.unanswered_share;
        let timeouts = &self.timeouts;
        let stays = match (is_udp, is_answered) {
            (true, true) => draws.exponential(self.lifetime) + timeouts.udp_stream,
            (false, true) => draws.exponential(self.lifetime) + timeouts.tcp_time_wait,
            (true, false) => timeouts.udp,
            (false, false) => timeouts.tcp_syn_sent,
        };
        Connection { begins: now, expires: now + stays, is_assured: is_answered }
    }
}

/// An entry as it was drawn.
#[derive(Debug, Clone, Copy)]
struct Connection {
    begins: Nanos,
    expires: Nanos,
    /// Whether both sides have spoken, so that it does not go for others.
    is_assured: bool,
}

#[derive(Debug)]
struct Slot {
    connection: Connection,
    bucket: u32,
    /// How many connections had this slot, so that an expiry of an earlier one is not taken for that of this one.
    generation: u32,
    is_taken: bool,
}

/// Entries in buckets, and the times at which they expire.
#[derive(Debug)]
struct ConntrackTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The slots of each bucket.
    buckets: Vec<Vec<u32>>,
    expiries: BinaryHeap<Reverse<(Nanos, u32, u32)>>,
    n_entries: u64,
    n_entries_peak: u64,
    n_evicted: u64,
    n_expired: u64,
    chain_max: u32,
    /// The sum over all entries that left of the seconds that they were in the table.
    left_seconds: f64,
}

fn index(place: u32) -> usize {
    usize::try_from(place).expect("addresses have at least 32 bits")
}

impl ConntrackTable {
    fn new(n_buckets: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            buckets: vec![Vec::new(); index(n_buckets)],
            expiries: BinaryHeap::new(),
            n_entries: 0,
            n_entries_peak: 0,
            n_evicted: 0,
            n_expired: 0,
            chain_max: 0,
            left_seconds: 0.0,
        }
    }

    fn insert(&mut self, bucket: u32, connection: Connection) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { connection, bucket, generation: 0, is_taken: false });
            u32::try_from(self.slots.len() - 1).expect("a table has at most 2^26 entries")
        });
        let taken = &mut self.slots[index(slot)];
        let generation = taken.generation + 1;
        *taken = Slot { connection, bucket, generation, is_taken: true };
        self.expiries.push(Reverse((connection.expires, slot, generation)));
        let chain = &mut self.buckets[index(bucket)];
        chain.push(slot);
        self.chain_max = self.chain_max.max(u32::try_from(chain.len()).unwrap_or(u32::MAX));
        self.n_entries += 1;
        self.n_entries_peak = self.n_entries_peak.max(self.n_entries);
    }

    fn remove(&mut self, slot: u32, at: Nanos) {
        let entry = &mut self.slots[index(slot)];
        entry.is_taken = false;
        self.buckets[index(entry.bucket)].retain(|other| *other != slot);
        self.left_seconds += at.since(entry.connection.begins).as_secs_f64();
        self.free.push(slot);
        self.n_entries -= 1;
    }

    /// The sum over all entries of the seconds that they were in the table until now.
    fn entry_seconds(&self, now: Nanos) -> f64 {
        let stayed = self.slots.iter().filter(|slot| slot.is_taken);
        self.left_seconds + stayed.map(|slot| now.since(slot.connection.begins).as_secs_f64()).sum::<f64>()
    }

    /// Removes what has expired.
    fn expire(&mut self, now: Nanos) {
        while let Some(Reverse((at, slot, generation))) = self.expiries.peek().copied() {
            if at > now {
                return;
            }
            self.expiries.pop();
            let entry = &self.slots[index(slot)];
            if entry.is_taken && entry.generation == generation {
                self.remove(slot, at);
                self.n_expired += 1;
            }
        }
    }

    /// Removes an entry that was never answered from the buckets at and behind this one.
    fn evict(&mut self, bucket: u32, now: Nanos) -> bool {
        let n = u32::try_from(self.buckets.len()).unwrap_or(u32::MAX);
        for step in 0..EVICTION_BUCKETS.min(n) {
            let chain = &self.buckets[index((bucket + step) % n)];
            let found = chain.iter().copied().find(|slot| !self.slots[index(*slot)].connection.is_assured);
            if let Some(slot) = found {
                self.remove(slot, now);
                self.n_evicted += 1;
                return true;
            }
        }
        false
    }
}

/// The entries that a load has on average without a limit (Little's law): rate times the time that a connection has an entry.
#[must_use]
pub fn expected_entries(load: &ConntrackSimulation) -> f64 {
    let (udp, unanswered) = (load.udp_share, load.unanswered_share);
    let secs = |time: Nanos| time.as_secs_f64();
    let answered =
        secs(load.lifetime) + udp * secs(load.timeouts.udp_stream) + (1.0 - udp) * secs(load.timeouts.tcp_time_wait);
    let silent = udp * secs(load.timeouts.udp) + (1.0 - udp) * secs(load.timeouts.tcp_syn_sent);
    load.rate_per_sec * ((1.0 - unanswered) * answered + unanswered * silent)
}

#[cfg(test)]
mod tests {
    use fathom_model::units::approximate;

    use super::*;

    fn load() -> ConntrackSimulation {
        ConntrackSimulation {
            n_max: 1 << 20,
            n_buckets: 4096,
            rate_per_sec: 100.0,
            duration: Nanos::from_secs(1000),
            arrivals: SimulatedArrivals::Poisson,
            lifetime: Nanos::from_secs(10),
            udp_share: 0.25,
            unanswered_share: 0.2,
            timeouts: ConntrackTimeouts::KERNEL,
            seed: 1,
        }
    }

    #[test]
    fn a_table_that_is_never_full_has_as_many_entries_as_littles_law_says() {
        let result = load().run().unwrap();
        let expected = expected_entries(&load());
        // 80 % stay 130 s, 5 % 30 s and 15 % 120 s: 12350 entries once the first have expired.
        assert!((expected - 12_350.0).abs() < 1e-6, "{expected}");
        let n = approximate(result.n_entries);
        assert!((n / expected - 1.0).abs() < 0.05, "{n} of {expected}");
        assert_eq!((result.n_dropped, result.n_early_dropped), (0, 0));
        assert_eq!(result.n_connections, result.n_expired + result.n_entries);
    }

    #[test]
    fn a_full_table_drops_new_connections_and_never_has_more_entries() {
        let result = ConntrackSimulation { n_max: 6000, unanswered_share: 0.0, ..load() }.run().unwrap();
        assert_eq!((result.n_entries_peak, result.n_early_dropped), (6000, 0));
        // It fills within 60 s of 1000.
        assert!((5700.0..6000.0).contains(&result.n_entries_mean), "{result:?}");
        // Once it is full, as many begin as expire: 6000 in about 130 s, 46 of 100 in a second.
        let loss = result.loss.unwrap();
        assert!((0.4..0.55).contains(&loss), "{loss}");
        assert_eq!(result.n_connections, result.n_dropped + result.n_expired + result.n_entries);
    }

    #[test]
    fn a_table_fills_for_the_lifetime_and_the_longest_timeout_in_use() {
        assert_eq!(load().fill_time(), Nanos::from_secs(130));
        let silent = ConntrackSimulation { udp_share: 1.0, unanswered_share: 1.0, ..load() };
        assert_eq!(silent.fill_time(), Nanos::from_secs(40));
    }

    #[test]
    fn connections_that_nobody_answers_go_first() {
        let result = ConntrackSimulation { n_max: 8000, unanswered_share: 0.5, ..load() }.run().unwrap();
        assert!(result.n_early_dropped > 1000 && result.n_dropped < result.n_early_dropped, "{result:?}");
        assert!(result.n_entries_mean > 7000.0, "{result:?}");
        let parts = result.n_dropped + result.n_expired + result.n_early_dropped + result.n_entries;
        assert_eq!(result.n_connections, parts);
    }

    #[test]
    fn the_same_seed_repeats_and_another_one_does_not() {
        let short = ConntrackSimulation { duration: Nanos::from_secs(50), ..load() };
        assert_eq!(short.run(), short.run());
        assert_ne!(short.run(), ConntrackSimulation { seed: 2, ..short }.run());
    }

    #[test]
    fn what_is_not_possible_is_refused() {
        assert_eq!(ConntrackSimulation { udp_share: 1.5, ..load() }.run(), Err(ConntrackSimulationError::Share(1.5)));
        assert_eq!(ConntrackSimulation { rate_per_sec: 0.0, ..load() }.run(), Err(ConntrackSimulationError::Rate(0.0)));
        let size = ConntrackSimulationError::Size { n_max: 0, n_buckets: 4096 };
        assert_eq!(ConntrackSimulation { n_max: 0, ..load() }.run(), Err(size));
    }
}
