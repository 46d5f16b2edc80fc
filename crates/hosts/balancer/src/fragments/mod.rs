//! The fragment table: which target the fragments without ports go to.

use serde::Serialize;

use fathom_model::units::Nanos;

/// The size of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentSettings {
    /// Slots of the hash table; each holds one entry.
    pub n_slots: u32,
    /// Entries for slots that are taken.
    pub n_buckets: u32,
    /// Fragments that wait for the first one of their datagram.
    pub n_stored: u32,
    /// The longest fragment that is stored, in bytes.
    pub stored_bytes_max: u32,
    /// How long an entry lives after its last fragment.
    pub ttl: Nanos,
}

/// What happened in the table, and its state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FragmentCounters {
    /// Entries that were asked for.
    pub n_inserts: u64,
    /// Entries for which there was no bucket.
    pub n_rejected: u64,
    /// Inserts whose slot was taken.
    pub n_collisions: u64,
    /// Fragments that looked for their entry.
    pub n_lookups: u64,
    /// Entries that were removed because they were too old.
    pub n_expired: u64,
    /// Entries that were removed because their datagram was complete.
    pub n_completed: u64,
    /// Entries in the table now, old ones included.
    pub n_entries: u64,
    /// Buckets in use now.
    pub n_buckets: u64,
    /// The most buckets that were in use at a time.
    pub n_buckets_peak: u64,
    /// Stored fragments now.
    pub n_stored: u64,
    /// Fragments that were stored.
    pub n_stored_total: u64,
    /// Stored fragments that were discarded.
    pub n_discarded: u64,
}
