//! The accounting of a flow whose datagrams the caller received, such as those of many senders at one socket.

use fathom_model::units::Nanos;

use super::{SequenceCounts, SequenceTracker, jitter::Jitter, sequence::ArrivalKind};

/// The numbers and the times of one flow.
#[derive(Debug, Default)]
pub struct FlowAccount {
    sequence: SequenceTracker,
    jitter: Jitter,
}

impl FlowAccount {
    /// Accounts for a datagram by its number from 0; returns whether it is the first copy.
    ///
    /// The times, sent and received, may be of different clocks that run at the same rate.
    pub fn arrived(&mut self, number: u64, times: Option<(Nanos, Nanos)>) -> bool {
        let is_first = matches!(self.sequence.arrived(number), ArrivalKind::InOrder | ArrivalKind::Reordered);
        if let Some(times) = times.filter(|_| is_first) {
            self.jitter.arrived(number, times);
        }
        is_first
    }

    /// The highest number so far plus one.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.sequence.next()
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> SequenceCounts {
        self.sequence.counts()
    }

    /// The jitter so far, if consecutive datagrams arrived with their times.
    #[must_use]
    pub fn jitter(&self) -> Option<Nanos> {
        self.jitter.estimate()
    }
}
