//! What an impairment did, counted.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fathom_model::{names::host, units::Nanos};
use fathom_sys::clock;

/// The names of the two directions: from the first host of the lab to the last, and back.
pub(super) const DIRECTIONS: [&str; 2] = ["forward", "back"];

/// The counts of one direction; only its thread adds to them.
#[derive(Debug, Default)]
pub(super) struct HopCounters {
    counts: [AtomicU64; host::OF_IMPAIRMENTS.len()],
    /// The number of its thread; 0 before it runs.
    thread: AtomicU32,
    /// How long the thread was awake only to wait, in nanoseconds.
    awake_ns: AtomicU64,
}

impl HopCounters {
    /// Adds one to a counter, which is one of [`host::OF_IMPAIRMENTS`].
    pub(super) fn add(&self, counter: &str) {
        self.add_all(counter, 1);
    }

    /// Adds a number to a counter, which is one of [`host::OF_IMPAIRMENTS`].
    pub(super) fn add_all(&self, counter: &str, n: u64) {
        self.counts[place(counter)].fetch_add(n, Ordering::Relaxed);
    }

    /// All counters with their values.
    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        host::OF_IMPAIRMENTS.into_iter().zip(&self.counts).map(|(name, value)| (name, value.load(Ordering::Relaxed)))
    }

    /// Returns the value of a counter.
    #[cfg(test)]
    pub(super) fn value(&self, counter: &str) -> u64 {
        self.counts[place(counter)].load(Ordering::Relaxed)
    }

    /// Makes the calling thread that of this direction.
    pub(super) fn runs_here(&self) {
        self.thread.store(clock::this_thread().cast_unsigned(), Ordering::Relaxed);
    }

    /// The number of the thread; 0 before it runs.
    pub(super) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Adds a time in which the thread ran and did nothing but wait.
    pub(super) fn add_awake(&self, span: Nanos) {
        self.awake_ns.fetch_add(span.0, Ordering::Relaxed);
    }

    /// How long the thread was awake only to wait.
    pub(super) fn awake(&self) -> Nanos {
        Nanos(self.awake_ns.load(Ordering::Relaxed))
    }
}

fn place(counter: &str) -> usize {
    host::OF_IMPAIRMENTS.iter().position(|name| *name == counter).expect("a counter of impairments")
}
