//! An index of rules: for each field, the set of rules that a value of it matches, as bits in the order of the rules.
//!
//! The rules of a packet are the intersection of one set for each field. A field whose values have an order is cut where the ranges of rules
//! begin and end; between two cuts the set is the same.

use std::net::IpAddr;

use ipnet::IpNet;

use super::rule::{FlowRule, PortRange};
use crate::classify::{FlowKey, Ports};

/// The index of a list of rules.
#[derive(Debug, Clone)]
pub(super) struct Index {
    n_words: usize,
    /// For each protocol number a set.
    protocols: Vec<u64>,
    sources: AddressField,
    destinations: AddressField,
    source_ports: Field<u16>,
    destination_ports: Field<u16>,
    /// The rules without a condition on ports.
    without_ports: Vec<u64>,
}

impl Index {
    pub(super) fn new(rules: &[FlowRule]) -> Self {
        let n_words = rules.len().div_ceil(64);
        let mut protocols = Vec::with_capacity(256 * n_words);
        for number in 0..=u8::MAX {
            let is_match =
                |rule: &FlowRule| rule.protocols.is_empty() || rule.protocols.iter().any(|of| of.0 == number);
            protocols.extend(set(rules, n_words, is_match));
        }
        let ports = |of: fn(&FlowRule) -> &[PortRange]| {
            Field::new(n_words, u16::MIN, rules.iter().map(|rule| or_all(of(rule).iter().map(|range| range.ends()))))
        };
        Self {
            n_words,
            protocols,
            sources: AddressField::new(n_words, &rules.iter().map(|rule| rule.sources.as_slice())),
            destinations: AddressField::new(n_words, &rules.iter().map(|rule| rule.destinations.as_slice())),
            source_ports: ports(|rule| &rule.source_ports),
            destination_ports: ports(|rule| &rule.destination_ports),
            without_ports: set(rules, n_words, |rule| {
                rule.source_ports.is_empty() && rule.destination_ports.is_empty()
            }),
        }
    }

    /// The places of the rules whose addresses, protocol and ports are those of a flow, first rule first.
    pub(super) fn candidates(&self, key: &FlowKey) -> impl Iterator<Item = usize> {
        let protocol = usize::from(key.protocol) * self.n_words;
        let (source_ports, destination_ports) = match key.ports {
            Ports::Pair { source, destination } => {
                (self.source_ports.set(source), self.destination_ports.set(destination))
            }
            Ports::Echo(_) | Ports::Absent => (self.without_ports.as_slice(), self.without_ports.as_slice()),
        };
        let sets = [
            &self.protocols[protocol..protocol + self.n_words],
            self.sources.set(key.source),
            self.destinations.set(key.destination),
            source_ports,
            destination_ports,
        ];
        let words = (0..self.n_words).map(move |idx| (idx, sets.iter().fold(u64::MAX, |word, set| word & set[idx])));
        words.flat_map(|(idx, word)| Bits(word).map(move |bit| idx * 64 + bit))
    }
}

/// The places of the bits of a word, lowest first.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < u64::BITS).then(|| usize::try_from(bit).expect("it is less than 64"))
    }
}

fn set(rules: &[FlowRule], n_words: usize, is_match: impl Fn(&FlowRule) -> bool) -> Vec<u64> {
    let mut words = vec![0; n_words];
    for (place, _) in rules.iter().enumerate().filter(|(_, rule)| is_match(rule)) {
        words[place / 64] |= 1 << (place % 64);
    }
    words
}

/// The ranges of one rule; `None` if it matches every value.
type Ranges<T> = Option<Vec<(T, T)>>;

fn or_all<T>(ranges: impl ExactSizeIterator<Item = (T, T)>) -> Ranges<T> {
    (ranges.len() > 0).then(|| ranges.collect())
}

/// A value that a field is ordered by.
trait Value: Copy + Ord {
    /// The next higher value; `None` after the highest.
    fn next(self) -> Option<Self>;
}

impl Value for u16 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
}

impl Value for u128 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
}

/// A field whose values have an order.
#[derive(Debug, Clone)]
struct Field<T> {
    n_words: usize,
    /// Where each interval begins, the lowest value first.
    begins: Vec<T>,
    /// One set for each interval.
    sets: Vec<u64>,
}

impl<T: Value> Field<T> {
    fn new(n_words: usize, lowest: T, rules: impl Iterator<Item = Ranges<T>>) -> Self {
        let mut current = vec![0; n_words];
        // Where a rule begins or ends to match: an interval that it is in changes its bit twice.
        let mut turns: Vec<(T, usize)> = Vec::new();
        for (place, ranges) in rules.enumerate() {
            match ranges {
                None => current[place / 64] |= 1 << (place % 64),
                Some(ranges) => {
                    for (first, last) in joined(ranges) {
                        turns.push((first, place));
                        turns.extend(last.next().map(|end| (end, place)));
                    }
                }
            }
        }
        turns.sort_unstable();
        let mut field = Self { n_words, begins: vec![lowest], sets: Vec::new() };
        for (at, place) in turns {
            if field.begins.last().is_some_and(|begin| *begin < at) {
                field.sets.extend(&current);
                field.begins.push(at);
            }
            current[place / 64] ^= 1 << (place % 64);
        }
        field.sets.extend(&current);
        field
    }

    /// The set of rules that match a value.
    fn set(&self, value: T) -> &[u64] {
        let interval = self.begins.partition_point(|begin| *begin <= value) - 1;
        &self.sets[interval * self.n_words..][..self.n_words]
    }
}

/// Joins ranges that overlap or touch each other.
fn joined<T: Value>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut joined: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(before) if before.1.next().is_none_or(|end| first <= end) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// Addresses of either version, each version with an order of its own.
#[derive(Debug, Clone)]
struct AddressField {
    v4: Field<u128>,
    v6: Field<u128>,
}

impl AddressField {
    fn new<'a>(n_words: usize, rules: &(impl Iterator<Item = &'a [IpNet]> + Clone)) -> Self {
        let of_version = |is_v4: bool| {
            // A rule with networks of the other version alone matches no address of this one.
            let ranges = move |networks: &[IpNet]| {
                let of_version = networks.iter().filter(|network| network.addr().is_ipv4() == is_v4);
                let ranges = of_version.map(|network| (bits(network.network()), bits(network.broadcast())));
                (!networks.is_empty()).then(|| ranges.collect())
            };
            Field::new(n_words, 0, rules.clone().map(ranges))
        };
        Self { v4: of_version(true), v6: of_version(false) }
    }

    fn set(&self, address: IpAddr) -> &[u64] {
        if address.is_ipv4() { self.v4.set(bits(address)) } else { self.v6.set(bits(address)) }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
