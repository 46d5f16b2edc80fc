//! The fragment table: where the fragments without ports go, and those that wait for the first one of their datagram.
//!
//! The first fragment of a datagram shows its ports; what was decided for it is kept for the later ones. Memory is bounded: slots, buckets and
//! stored fragments come from pools. Old entries are removed when their slot is touched; no timer runs.

mod pieces;
mod released;
mod shard;
mod stored;

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use fathom_model::units::Nanos;

use crate::{classify::Fragment, hash::FragmentHash};

pub use released::Released;
pub use shard::FragmentShard;

/// The size and the rules of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentSettings {
    /// The slots of the hash table; each has room for one entry.
    pub n_slots: u32,
    /// The entries for slots that are taken.
    pub n_buckets: u32,
    /// The fragments that can wait for the first one of their datagram.
    pub n_stored: u32,
    /// The longest fragment that can wait, in bytes.
    pub stored_bytes_max: u32,
    /// How long an entry lives after the last fragment of its datagram.
    pub ttl: Nanos,
    /// The slots that are searched for old entries when no bucket is left, and for each fragment that waits.
    pub n_swept: u32,
    /// What happens to an entry when its datagram is complete.
    pub completion: Completion,
    /// The hash that spreads datagrams over the slots.
    pub hash: FragmentHash,
    /// The seed of the hash.
    pub seed: u64,
    /// The parts of the table, each with a lock and a share of the pools.
    pub n_shards: u32,
}

/// What happens to the entry of a datagram all of whose fragments were forwarded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Completion {
    /// It stays until it is old, as it costs nothing to know its parts.
    #[default]
    Keep,
    /// It is removed at once, by the list of holes of RFC 815.
    Remove,
}

/// The most entries of a table, and the most stored fragments: more than 1 GiB.
const ENTRIES_MAX: u32 = 16_000_000;
/// The longest IP packet, in bytes.
const PACKET_BYTES_MAX: u32 = 65_575;

impl FragmentSettings {
    /// The table of a device: room for 10000 datagrams in any 200 ms.
    pub const USUAL: Self = Self {
        n_slots: 20_011,
        n_buckets: 20_011,
        n_stored: 1024,
        stored_bytes_max: 2048,
        ttl: Nanos::from_millis(200),
        n_swept: 64,
        completion: Completion::Keep,
        hash: FragmentHash::Mixing,
        seed: 0,
        n_shards: 16,
    };

    /// Checks the sizes.
    ///
    /// # Errors
    /// If one of them is out of range.
    pub fn check(&self) -> Result<(), FragmentSettingsError> {
        use FragmentSettingsError::{Buckets, Shards, Slots, Stored, StoredBytes, Ttl};
        let faults = [
            ((1..=ENTRIES_MAX).contains(&self.n_slots), Slots(self.n_slots)),
            (self.n_buckets <= ENTRIES_MAX, Buckets(self.n_buckets)),
            (self.n_stored <= ENTRIES_MAX, Stored(self.n_stored)),
            (self.stored_bytes_max <= PACKET_BYTES_MAX, StoredBytes(self.stored_bytes_max)),
            (self.ttl > Nanos::ZERO, Ttl),
            ((1..=self.n_slots).contains(&self.n_shards), Shards { n_shards: self.n_shards, n_slots: self.n_slots }),
        ];
        faults.into_iter().find(|(is_good, _)| !is_good).map_or(Ok(()), |(_, fault)| Err(fault))
    }
}

/// A size of the fragment table that is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FragmentSettingsError {
    /// The number of slots.
    #[error("{0} slots: a fragment table has 1 to {ENTRIES_MAX}")]
    Slots(u32),
    /// The number of buckets.
    #[error("{0} buckets: a fragment table has at most {ENTRIES_MAX}")]
    Buckets(u32),
    /// The number of stored fragments.
    #[error("{0} stored fragments: a fragment table has at most {ENTRIES_MAX}")]
    Stored(u32),
    /// The length of stored fragments.
    #[error("stored fragments of {0} bytes: an IP packet has at most {PACKET_BYTES_MAX}")]
    StoredBytes(u32),
    /// The time to live.
    #[error("the time to live of a fragment table is longer than 0")]
    Ttl,
    /// The number of parts.
    #[error("{n_shards} parts of {n_slots} slots: each part needs a slot, and there is at least one part")]
    Shards {
        /// The asked number of parts.
        n_shards: u32,
        /// The number of slots.
        n_slots: u32,
    },
}

/// What became of the first fragment of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstFragment {
    /// The later fragments follow it.
    Known,
    /// There is no room for its entry, so the later ones are lost.
    TableFull,
    /// A later fragment, which came before it, was lost.
    Incomplete,
}

/// What becomes of a later fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaterFragment<V> {
    /// It follows the first one.
    Known(V),
    /// It waits for the first one.
    Held,
    /// There is no room for an entry.
    TableFull,
    /// There is no room for it to wait; the datagram is lost.
    StoreFull,
    /// An earlier fragment of the datagram was lost.
    Incomplete,
}

/// What happened in the table since it was made, and what is in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FragmentCounters {
    /// Entries that were asked for.
    pub n_inserts: u64,
    /// Entries for which there was no room.
    pub n_rejected: u64,
    /// Inserts whose slot was taken.
    pub n_collisions: u64,
    /// Fragments that looked for their entry without bringing it.
    pub n_lookups: u64,
    /// Entries that were removed because they were old.
    pub n_expired: u64,
    /// Entries that were removed because their datagram was complete.
    pub n_completed: u64,
    /// Entries in the table, old ones included.
    pub n_entries: u64,
    /// The most entries at a time.
    pub n_entries_peak: u64,
    /// Buckets that are taken.
    pub n_buckets: u64,
    /// The most buckets that were taken at a time.
    pub n_buckets_peak: u64,
    /// Fragments that wait.
    pub n_stored: u64,
    /// Fragments that have waited, or still do.
    pub n_stored_total: u64,
    /// Fragments that waited in vain.
    pub n_discarded: u64,
}

impl FragmentCounters {
    /// The sum with another part of the table.
    fn plus(self, other: Self) -> Self {
        Self {
            n_inserts: self.n_inserts + other.n_inserts,
            n_rejected: self.n_rejected + other.n_rejected,
            n_collisions: self.n_collisions + other.n_collisions,
            n_lookups: self.n_lookups + other.n_lookups,
            n_expired: self.n_expired + other.n_expired,
            n_completed: self.n_completed + other.n_completed,
            n_entries: self.n_entries + other.n_entries,
            n_entries_peak: self.n_entries_peak + other.n_entries_peak,
            n_buckets: self.n_buckets + other.n_buckets,
            n_buckets_peak: self.n_buckets_peak + other.n_buckets_peak,
            n_stored: self.n_stored + other.n_stored,
            n_stored_total: self.n_stored_total + other.n_stored_total,
            n_discarded: self.n_discarded + other.n_discarded,
        }
    }
}

/// A table that several threads use: its parts have a lock each.
#[derive(Debug)]
pub struct FragmentTable<V> {
    settings: FragmentSettings,
    shards: Box<[Mutex<FragmentShard<V>>]>,
}

impl<V: Copy> FragmentTable<V> {
    /// Makes an empty table.
    ///
    /// # Errors
    /// If a size is out of range.
    pub fn new(settings: FragmentSettings) -> Result<Self, FragmentSettingsError> {
        settings.check()?;
        let n = settings.n_shards;
        let share = |whole: u32| whole.div_ceil(n);
        let part = FragmentSettings {
            n_slots: share(settings.n_slots),
            n_buckets: share(settings.n_buckets),
            n_stored: share(settings.n_stored),
            n_shards: 1,
            ..settings
        };
        let shards = (0..n).map(|_| Ok(Mutex::new(FragmentShard::new(part)?))).collect::<Result<_, _>>()?;
        Ok(Self { settings, shards })
    }

    /// The part of a datagram, and its hash. The hash's upper bits choose the part, as its lower ones choose the slot.
    fn shard(&self, fragment: &Fragment) -> (MutexGuard<'_, FragmentShard<V>>, u64) {
        let hash = self.settings.hash.of(&fragment.datagram, self.settings.seed);
        let shard = (hash >> 32) % u64::from(self.settings.n_shards);
        let shard = &self.shards[usize::try_from(shard).expect("it is less than the number of parts")];
        (shard.lock().unwrap_or_else(PoisonError::into_inner), hash)
    }

    /// Writes what was decided for a first fragment, and adds the fragments that waited for it to `released`.
    pub fn first(&self, fragment: &Fragment, value: V, now: Nanos, released: &mut Released) -> FirstFragment {
        let (mut shard, hash) = self.shard(fragment);
        shard.first((fragment, hash), value, now, released)
    }

    /// Looks up a later fragment. Its bytes are kept if it has to wait; one whose bytes are not whole cannot.
    pub fn later(&self, fragment: &Fragment, bytes: Option<&[u8]>, now: Nanos) -> LaterFragment<V> {
        let (mut shard, hash) = self.shard(fragment);
        shard.later((fragment, hash), bytes, now)
    }

    /// The sums over all parts.
    pub fn counters(&self) -> FragmentCounters {
        let of = |shard: &Mutex<FragmentShard<V>>| shard.lock().unwrap_or_else(PoisonError::into_inner).counters();
        self.shards.iter().map(of).fold(FragmentCounters::default(), FragmentCounters::plus)
    }
}

#[cfg(test)]
mod tests;
