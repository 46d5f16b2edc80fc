//! Hashes of flows and of datagrams.

use std::net::IpAddr;

use fathom_statistics::splitmix;

use crate::classify::{DatagramKey, FlowKey, Ports, protocol};

/// How the fragment table spreads datagrams over its slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FragmentHash {
    /// Every bit of the key changes about half of the bits of the hash.
    #[default]
    Mixing,
    /// Bernstein's hash, 33·h + byte: consecutive identifications get related slots, so the number of slots has to be a prime.
    Djb2,
}

/// Odd numbers without a pattern: the first digits of π behind the point, as in Blowfish.
pub(crate) const PI: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

/// The two halves of a product, added without carry; it moves every bit of both factors.
#[inline]
const fn folded_product(one: u64, other: u64) -> u64 {
    let product = (one as u128) * (other as u128);
    #[expect(clippy::cast_possible_truncation, reason = "the halves are what is asked for")]
    let halves = ((product >> 64) as u64, product as u64);
    halves.0 ^ halves.1
}

/// The two halves of an address as it is on the wire, IPv4 as an IPv4-mapped address (RFC 4291 section 2.5.5.2).
#[inline]
pub(crate) const fn halves(address: IpAddr) -> (u64, u64) {
    match address {
        IpAddr::V4(address) => (0, 0xffff_0000_0000 | address.to_bits() as u64),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            #[expect(clippy::cast_possible_truncation, reason = "the halves are what is asked for")]
            let halves = ((bits >> 64) as u64, bits as u64);
            halves
        }
    }
}

#[inline]
const fn hash(addresses: (IpAddr, IpAddr), rest: u64, seed: u64) -> u64 {
    let (source, destination) = (halves(addresses.0), halves(addresses.1));
    let first = folded_product(source.0 ^ PI[0] ^ seed, source.1 ^ PI[1]);
    let second = folded_product(destination.0 ^ PI[2] ^ first, destination.1 ^ PI[3]);
    splitmix(second ^ rest, rest)
}

/// Returns the hash of a flow. All balancers have the same one, so that they agree.
///
/// SCTP is hashed by its ports alone: all paths of an association with several addresses lead to one target.
#[must_use]
#[inline]
pub const fn flow_hash(key: &FlowKey) -> u64 {
    let ports = match key.ports {
        Ports::Pair { source, destination } => (1 << 32) | (source as u64) << 16 | destination as u64,
        Ports::Echo(identifier) => (2 << 32) | identifier as u64,
        Ports::Absent => 0,
    };
    let rest = (key.protocol as u64) << 40 | ports;
    if key.protocol == protocol::SCTP && ports != 0 {
        return splitmix(PI[0], rest);
    }
    hash((key.source, key.destination), rest, 0)
}

/// Returns the hash of the addresses of a datagram alone, which all its fragments have.
#[must_use]
pub const fn address_hash(key: &DatagramKey) -> u64 {
    hash((key.source, key.destination), 0, PI[2])
}

/// The slots of a table: that of a hash is the rest of its lower half, by two multiplications in place of a division.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    n: u32,
    /// 2⁶⁴ divided by the number, rounded up; with one slot it wraps around to 0, and so does every rest.
    reciprocal: u64,
}

impl Slots {
    /// # Panics
    /// Without slots.
    pub(crate) fn new(n: u32) -> Self {
        Self { n, reciprocal: (u64::MAX / u64::from(n)).wrapping_add(1) }
    }

    /// Returns the slot of a hash: D. Lemire et al., Faster Remainder by Direct Computation (2019).
    #[inline]
    pub(crate) fn of(self, hash: u64) -> u32 {
        let fraction = self.reciprocal.wrapping_mul(hash & u64::from(u32::MAX));
        let rest = (u128::from(fraction) * u128::from(self.n)) >> 64;
        u32::try_from(rest).expect("a rest is smaller than the number of slots")
    }
}

impl FragmentHash {
    /// Returns the hash of a datagram. The seed keeps senders from choosing identifications that share a slot; Bernstein's has none.
    #[must_use]
    #[inline]
    pub fn of(self, key: &DatagramKey, seed: u64) -> u64 {
        match self {
            Self::Mixing => {
                hash((key.source, key.destination), u64::from(key.protocol) << 32 | u64::from(key.id), seed)
            }
            Self::Djb2 => djb2(key),
        }
    }
}

/// Bernstein's hash, in 32 bits, of the addresses and of the identification as a number of 64 bits, lowest byte first.
fn djb2(key: &DatagramKey) -> u64 {
    let octets = |address: IpAddr| {
        let (high, low) = halves(address);
        [high.to_be_bytes(), low.to_be_bytes()]
    };
    let (source, destination) = (octets(key.source), octets(key.destination));
    let id = u64::from(key.id).to_le_bytes();
    let bytes = [source[0], source[1], destination[0], destination[1], id].into_iter().flatten();
    let hash = bytes.fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
    hash.into()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn a_slot_is_the_rest_of_a_division() {
        for n_slots in [1, 2, 3, 499, 2000, 20_011, 65_537, u32::MAX - 1, u32::MAX] {
            let slots = Slots::new(n_slots);
            let edges = [0, 1, u64::from(n_slots) - 1, n_slots.into(), u64::from(n_slots) + 1, u64::MAX];
            for hash in edges.into_iter().chain((0..2000).map(|n| splitmix(7, n))) {
                let lower = u32::try_from(hash & u64::from(u32::MAX)).unwrap();
                assert_eq!(slots.of(hash), lower % n_slots, "{hash} of {n_slots}");
            }
        }
    }

    fn key(last: u8, source_port: u16) -> FlowKey {
        let source = Ipv4Addr::new(198, 18, 0, last).into();
        let ports = Ports::Pair { source: source_port, destination: 80 };
        FlowKey { source, destination: Ipv4Addr::new(198, 18, 8, 1).into(), protocol: protocol::TCP, ports }
    }

    /// The χ² statistic of hashes over 100 cells.
    fn chi_square(hashes: impl Iterator<Item = u64>) -> f64 {
        let mut cells = [0_u32; 100];
        for hash in hashes {
            cells[usize::try_from(hash % 100).unwrap()] += 1;
        }
        let mean = f64::from(cells.iter().sum::<u32>()) / 100.0;
        cells.iter().map(|n| (f64::from(*n) - mean).powi(2) / mean).sum()
    }

    /// Hashes that are drawn at random exceed it in one of 10000 cases: χ² with 99 degrees of freedom.
    const CHI_SQUARE_MAX: f64 = 161.3;

    #[test]
    fn related_flows_and_datagrams_spread_like_draws() {
        let source = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1).into();
        let datagram = |id| DatagramKey { source, destination: source, id, protocol: 0 };
        assert!(chi_square((0..20_000).map(|port| flow_hash(&key(1, port)))) < CHI_SQUARE_MAX);
        assert!(
            chi_square((0..=255).flat_map(|last| (0..80).map(move |port| flow_hash(&key(last, port)))))
                < CHI_SQUARE_MAX
        );
        assert!(chi_square((0..20_000).map(|id| FragmentHash::Mixing.of(&datagram(id), 1))) < CHI_SQUARE_MAX);
    }

    #[test]
    fn each_field_of_a_flow_takes_part_in_its_hash() {
        let flow = key(1, 1);
        let others = [
            FlowKey { source: Ipv4Addr::new(198, 18, 0, 2).into(), ..flow },
            FlowKey { destination: Ipv4Addr::new(198, 18, 8, 2).into(), ..flow },
            FlowKey { protocol: protocol::UDP, ..flow },
            FlowKey { ports: Ports::Pair { source: 1, destination: 81 }, ..flow },
            FlowKey { ports: Ports::Absent, ..flow },
            FlowKey { ports: Ports::Echo(1), ..flow },
        ];
        for other in others {
            assert_ne!(flow_hash(&flow), flow_hash(&other), "{other:?}");
        }
    }

    #[test]
    fn sctp_is_hashed_by_its_ports_alone() {
        let of = |last, port| flow_hash(&FlowKey { protocol: protocol::SCTP, ..key(last, port) });
        assert_eq!(of(1, 7), of(2, 7));
        assert_ne!(of(1, 7), of(1, 8));
    }

    #[test]
    fn bernsteins_hash_is_that_of_its_definition() {
        let zero = Ipv6Addr::UNSPECIFIED.into();
        let of = |id| djb2(&DatagramKey { source: zero, destination: zero, id, protocol: 0 });
        let zeros = (0..40).fold(5381_u32, |hash, _| hash.wrapping_mul(33));
        assert_eq!(of(0), u64::from(zeros));
        // The lowest byte of the identification comes first of eight, so it is multiplied seven times.
        assert_eq!(of(1), u64::from(zeros.wrapping_add(33_u32.wrapping_pow(7))));
    }
}
