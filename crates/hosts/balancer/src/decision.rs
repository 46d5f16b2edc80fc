//! What a balancer says about a packet.

use crate::{classify::ClassifyError, counters::N_CAUSES};

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Let it pass with this firewall mark, which routes it to its target.
    Forward {
        /// The mark of the target, or of another balancer of the tier.
        mark: u32,
    },
    /// Drop it.
    Drop(DropCause),
    /// Drop this copy: the balancer keeps its own until the first fragment comes.
    Hold,
    /// Let it pass as it is.
    Pass,
}

/// Why a packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropCause {
    /// The packet cannot be classified.
    Unreadable(ClassifyError),
    /// No rule matches.
    NoFlow,
    /// The group has no target.
    NoTarget,
    /// There is no room in the fragment table.
    TableFull,
    /// There is no room for a fragment that came before the first one of its datagram.
    StoreFull,
    /// Another fragment of the datagram was dropped.
    Incomplete,
    /// The defect `blackhole`.
    Blackhole,
}

/// The words of the causes, in the order of their counters.
pub(crate) const CAUSES: [&str; N_CAUSES] =
    ["unreadable", "no_flow", "no_target", "table_full", "store_full", "incomplete", "blackhole"];

impl DropCause {
    /// Its place among the counters.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Unreadable(_) => 0,
            Self::NoFlow => 1,
            Self::NoTarget => 2,
            Self::TableFull => 3,
            Self::StoreFull => 4,
            Self::Incomplete => 5,
            Self::Blackhole => 6,
        }
    }

    /// The word of its counter.
    #[must_use]
    pub const fn word(self) -> &'static str {
        CAUSES[self.index()]
    }
}
