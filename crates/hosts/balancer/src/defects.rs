//! The defects that can be switched on, as text and as values.
//!
//! Those of the decision (`mis-hash`, `ignore-ports` and so on) are applied by the balancer; the data path reads the others.

use std::{fmt, num::NonZeroU32, str::FromStr};

use fathom_model::units::Nanos;
use fathom_statistics::splitmix;

/// One in this many, drawn at random from a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneIn(pub NonZeroU32);

impl OneIn {
    /// Returns whether the event with this number is one of them. The same seed repeats the draw.
    #[must_use]
    pub fn hits(self, seed: u64, number: u64) -> bool {
        splitmix(seed, number).is_multiple_of(u64::from(self.0.get()))
    }
}

/// What the balancer does wrong on purpose; by default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defects {
    /// Data path: packets that are dropped without a trace in the counters of the device.
    pub drop: Option<OneIn>,
    /// Data path: packets that are forwarded twice.
    pub duplicate: Option<OneIn>,
    /// Data path: packets that are forwarded [`Defects::delay_time`] later.
    pub delay: Option<OneIn>,
    /// Data path: how long delayed packets wait.
    pub delay_time: Nanos,
    /// Data path: packets that the next one of their queue overtakes.
    pub reorder: Option<OneIn>,
    /// Packets that go to another target than their flow.
    pub mis_hash: Option<OneIn>,
    /// Ports do not take part in the hash: all flows between two addresses go to one target.
    pub ignore_ports: bool,
    /// Fragments are hashed without ports, whole packets with them.
    pub fragments_without_ports: bool,
    /// The table is emptied before it is built anew, so that packets find no target meanwhile.
    pub in_place_rebuild: bool,
    /// Datagrams whose entry in the fragment table is not written.
    pub forget_fragment: Option<OneIn>,
    /// Data path: answers of targets leave with the address of the device.
    pub wrong_source: bool,
    /// The target whose packets are dropped.
    pub blackhole: Option<String>,
    /// The size of the Maglev table in place of the configured one.
    pub tiny_table: Option<u32>,
    /// Forwarded packets for each of which an entry of memory is kept for ever.
    pub leak: Option<OneIn>,
    /// Data path: the number of bytes of a packet that the queue copies to the balancer.
    pub copy_range: Option<u32>,
    /// Data path: packets are cut into segments before the queue instead of behind it.
    pub no_gso: bool,
}
