//! The orders in which the fragments of a datagram are sent.

use fathom_model::probe::{FragmentOrderRecord, OrderOutcome};

/// One way to send a datagram: whole, or in fragments of some order, number and overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Order {
    /// A short datagram in one packet. Its answers show the target of its flow.
    Whole,
    Forward,
    Reversed,
    /// Shuffled by the seed of the test.
    Random,
    /// The fragments of several flows in turn.
    Interleaved,
    /// Every fragment but the last twice.
    Duplicate,
    /// Two flows from two sources in turn, with one identification.
    SameId,
    /// A whole datagram with a fragment header (RFC 6946).
    Atomic,
    /// A whole datagram behind a hop-by-hop header of eight bytes.
    HopByHop8,
    HopByHop16,
    /// A whole datagram behind destination options of eight bytes.
    Destination8,
    Destination16,
    /// Fragments, each behind a hop-by-hop header.
    HopByHopFragments,
    /// Fragments of which the first begins with destination options.
    DestinationFragments,
    /// Every fragment begins eight bytes before the end of the one before it.
    Overlapping,
    LastMissing,
    FirstMissing,
}

/// The IP versions that an order exists for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Versions {
    Both,
    V6,
}

/// Each order with its word and its versions, in the order of sending: those that stay in the memory of a target come last.
const TABLE: [(Order, &str, Versions); 17] = [
    (Order::Whole, FragmentOrderRecord::WHOLE, Versions::Both),
    (Order::Forward, "forward", Versions::Both),
    (Order::Reversed, "reversed", Versions::Both),
    (Order::Random, "random", Versions::Both),
    (Order::Interleaved, "interleaved", Versions::Both),
    (Order::Duplicate, "duplicate", Versions::Both),
    (Order::SameId, "same-id", Versions::Both),
    (Order::Atomic, "v6-atomic", Versions::V6),
    (Order::HopByHop8, "v6-hbh8", Versions::V6),
    (Order::HopByHop16, "v6-hbh16", Versions::V6),
    (Order::Destination8, "v6-dst8", Versions::V6),
    (Order::Destination16, "v6-dst16", Versions::V6),
    (Order::HopByHopFragments, "v6-hbh8-fragments", Versions::V6),
    (Order::DestinationFragments, "v6-dst8-fragments", Versions::V6),
    (Order::Overlapping, "overlapping", Versions::Both),
    (Order::LastMissing, "last-missing", Versions::Both),
    (Order::FirstMissing, "first-missing", Versions::Both),
];

impl Order {
    /// All orders, as they are sent.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(order, ..)| *order)
    }

    /// Returns the order with this word.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        TABLE.iter().find(|(_, name, _)| *name == word).map(|(order, ..)| *order)
    }

    fn row(self) -> &'static (Self, &'static str, Versions) {
        TABLE.iter().find(|(order, ..)| *order == self).expect("every order has a row")
    }

    pub(crate) fn word(self) -> &'static str {
        self.row().1
    }

    /// Whether the order exists for an IP version.
    pub(crate) fn is_of(self, is_ipv4: bool) -> bool {
        self.row().2 == Versions::Both || !is_ipv4
    }

    /// What the target does with its datagrams.
    ///
    /// RFC 8200 section 4.5 drops overlapping fragments of IPv6; RFC 791 section 3.2 puts those of IPv4 together.
    pub(crate) fn outcome(self, is_ipv4: bool) -> OrderOutcome {
        match self {
            Self::Overlapping if is_ipv4 => OrderOutcome::Either,
            Self::Overlapping | Self::LastMissing | Self::FirstMissing => OrderOutcome::Dropped,
            _ => OrderOutcome::Answered,
        }
    }

    /// Whether its datagrams are sent in more than one fragment.
    pub(crate) fn is_cut(self) -> bool {
        !matches!(
            self,
            Self::Whole | Self::Atomic | Self::HopByHop8 | Self::HopByHop16 | Self::Destination8 | Self::Destination16
        )
    }

    /// Whether a device or a host that waits for the rest of a datagram keeps its fragments until it gives up.
    pub(crate) fn is_incomplete(self) -> bool {
        matches!(self, Self::LastMissing | Self::FirstMissing | Self::Overlapping)
    }

    /// The length of the hop-by-hop header in bytes.
    pub(crate) fn hop_by_hop(self) -> Option<u8> {
        match self {
            Self::HopByHop8 | Self::HopByHopFragments => Some(8),
            Self::HopByHop16 => Some(16),
            _ => None,
        }
    }

    /// The length of the destination options in bytes.
    pub(crate) fn destination_options(self) -> Option<u8> {
        match self {
            Self::Destination8 | Self::DestinationFragments => Some(8),
            Self::Destination16 => Some(16),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_one_word_and_ipv4_has_those_without_extension_headers() {
        for order in Order::all() {
            assert_eq!(Order::of_word(order.word()), Some(order));
            assert_eq!(order.is_of(true), !order.word().starts_with("v6-"), "{order:?}");
            assert!(order.is_of(false));
        }
        assert_eq!(Order::of_word("sideways"), None);
    }

    #[test]
    fn an_answer_to_an_incomplete_datagram_is_due_in_no_version() {
        for order in Order::all() {
            let outcomes = [order.outcome(true), order.outcome(false)];
            assert_eq!(order.is_incomplete(), !outcomes.contains(&OrderOutcome::Answered), "{order:?}");
        }
    }
}
