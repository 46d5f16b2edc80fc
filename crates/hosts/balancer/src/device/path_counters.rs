//! What the data path of one queue counts, beside the decisions.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// The counts of one thread; only it adds to them.
#[derive(Debug, Default)]
pub(super) struct PathCounters {
    pub(super) packets: AtomicU64,
    pub(super) with_segments: AtomicU64,
    pub(super) cut: AtomicU64,
    pub(super) receives: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) injected: AtomicU64,
    pub(super) not_injected: AtomicU64,
}

/// The counts of one queue since the start. In JSON as they are named here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounters {
    /// The number of the queue.
    pub queue: u16,
    /// Packets that came.
    pub n_packets: u64,
    /// Those of them with several segments.
    pub n_with_segments: u64,
    /// Those of them that were longer than what was copied.
    pub n_cut: u64,
    /// Receive calls that brought packets.
    pub n_receives: u64,
    /// Messages with verdicts.
    pub n_verdict_messages: u64,
    /// Packets that were sent into the host again: held fragments and duplicates.
    pub n_injected: u64,
    /// Packets that the host did not take again.
    pub n_not_injected: u64,
}

/// Adds to a counter that has one writer.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl PathCounters {
    /// The counts now.
    pub(super) fn read(&self, queue: u16) -> QueueCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        QueueCounters {
            queue,
            n_packets: value(&self.packets),
            n_with_segments: value(&self.with_segments),
            n_cut: value(&self.cut),
            n_receives: value(&self.receives),
            n_verdict_messages: value(&self.messages),
            n_injected: value(&self.injected),
            n_not_injected: value(&self.not_injected),
        }
    }
}
