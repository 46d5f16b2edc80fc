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
    /// A whole datagram behind a hop-by-hop header of so many bytes.
    HopByHop(HeaderLength),
    /// A whole datagram behind destination options of so many bytes.
    Destination(HeaderLength),
    /// Fragments, each behind a hop-by-hop header.
    HopByHopFragments(HeaderLength),
    /// Fragments of which the first begins with destination options.
    DestinationFragments(HeaderLength),
    /// Every fragment begins eight bytes before the end of the one before it.
    Overlapping,
    LastMissing,
    FirstMissing,
}

/// The length of an extension header of IPv6 in bytes: a multiple of eight (RFC 8200 section 4.3) with which a datagram fits in the least MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HeaderLength(u16);

/// The end of the words of fragments behind a header.
const FRAGMENTS: &str = "-fragments";

impl HeaderLength {
    pub(crate) const MAX: u16 = 1024;

    fn of_word(word: &str) -> Option<Self> {
        let length = word.parse().ok()?;
        ((8..=Self::MAX).contains(&length) && length % 8 == 0 && !word.starts_with('0')).then_some(Self(length))
    }

    pub(crate) fn bytes(self) -> usize {
        self.0.into()
    }
}

/// Each order with its word, in the order of sending: those that stay in the memory of a target come last.
/// Headers of other lengths have words of the same form.
const TABLE: [(Order, &str); 21] = [
    (Order::Whole, FragmentOrderRecord::WHOLE),
    (Order::Forward, "forward"),
    (Order::Reversed, "reversed"),
    (Order::Random, "random"),
    (Order::Interleaved, "interleaved"),
    (Order::Duplicate, "duplicate"),
    (Order::SameId, "same-id"),
    (Order::Atomic, "v6-atomic"),
    (Order::HopByHop(HeaderLength(8)), "v6-hbh8"),
    (Order::HopByHop(HeaderLength(16)), "v6-hbh16"),
    (Order::HopByHop(HeaderLength(64)), "v6-hbh64"),
    (Order::HopByHop(HeaderLength(256)), "v6-hbh256"),
    (Order::Destination(HeaderLength(8)), "v6-dst8"),
    (Order::Destination(HeaderLength(16)), "v6-dst16"),
    (Order::Destination(HeaderLength(64)), "v6-dst64"),
    (Order::Destination(HeaderLength(256)), "v6-dst256"),
    (Order::HopByHopFragments(HeaderLength(8)), "v6-hbh8-fragments"),
    (Order::DestinationFragments(HeaderLength(8)), "v6-dst8-fragments"),
    (Order::Overlapping, "overlapping"),
    (Order::LastMissing, "last-missing"),
    (Order::FirstMissing, "first-missing"),
];

impl Order {
    /// The orders of a test that names none, as they are sent.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(order, _)| *order)
    }

    /// Returns the order with this word.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let of_table = TABLE.iter().find(|(_, name)| *name == word).map(|(order, _)| *order);
        of_table.or_else(|| {
            let (header, rest) = word.strip_prefix("v6-")?.split_at_checked(3)?;
            let (length, is_cut) = rest.strip_suffix(FRAGMENTS).map_or((rest, false), |length| (length, true));
            let length = HeaderLength::of_word(length)?;
            match (header, is_cut) {
                ("hbh", false) => Some(Self::HopByHop(length)),
                ("hbh", true) => Some(Self::HopByHopFragments(length)),
                ("dst", false) => Some(Self::Destination(length)),
                ("dst", true) => Some(Self::DestinationFragments(length)),
                _ => None,
            }
        })
    }

    pub(crate) fn word(self) -> String {
        match self {
            Self::HopByHop(length) => format!("v6-hbh{}", length.0),
            Self::HopByHopFragments(length) => format!("v6-hbh{}{FRAGMENTS}", length.0),
            Self::Destination(length) => format!("v6-dst{}", length.0),
            Self::DestinationFragments(length) => format!("v6-dst{}{FRAGMENTS}", length.0),
            _ => TABLE.iter().find(|(order, _)| *order == self).expect("every order has a row").1.to_owned(),
        }
    }

    /// Whether the order exists for an IP version.
    pub(crate) fn is_of(self, is_ipv4: bool) -> bool {
        !is_ipv4 || !(self == Self::Atomic || self.hop_by_hop().is_some() || self.destination_options().is_some())
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
        !matches!(self, Self::Whole | Self::Atomic | Self::HopByHop(_) | Self::Destination(_))
    }

    /// Whether a device or a host that waits for the rest of a datagram keeps its fragments until it gives up.
    pub(crate) fn is_incomplete(self) -> bool {
        matches!(self, Self::LastMissing | Self::FirstMissing | Self::Overlapping)
    }

    /// The length of the hop-by-hop header.
    pub(crate) fn hop_by_hop(self) -> Option<HeaderLength> {
        match self {
            Self::HopByHop(length) | Self::HopByHopFragments(length) => Some(length),
            _ => None,
        }
    }

    /// The length of the destination options.
    pub(crate) fn destination_options(self) -> Option<HeaderLength> {
        match self {
            Self::Destination(length) | Self::DestinationFragments(length) => Some(length),
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
            assert_eq!(Order::of_word(&order.word()), Some(order));
            assert_eq!(order.is_of(true), !order.word().starts_with("v6-"), "{order:?}");
            assert!(order.is_of(false));
        }
        assert_eq!(Order::of_word("sideways"), None);
    }

    #[test]
    fn the_tables_word_of_an_order_is_its_own_and_other_lengths_have_words_too() {
        assert!(TABLE.iter().all(|(order, word)| order.word() == *word));
        for word in ["v6-hbh1024", "v6-dst24", "v6-hbh40-fragments", "v6-dst512-fragments"] {
            assert_eq!(Order::of_word(word).unwrap().word(), word);
        }
        for word in ["v6-hbh", "v6-hbh0", "v6-hbh12", "v6-hbh1032", "v6-hbh008", "v6-dst-8", "v6-xyz8", "v6-é8"] {
            assert_eq!(Order::of_word(word), None, "{word}");
        }
    }

    #[test]
    fn an_answer_to_an_incomplete_datagram_is_due_in_no_version() {
        for order in Order::all() {
            let outcomes = [order.outcome(true), order.outcome(false)];
            assert_eq!(order.is_incomplete(), !outcomes.contains(&OrderOutcome::Answered), "{order:?}");
        }
    }
}
