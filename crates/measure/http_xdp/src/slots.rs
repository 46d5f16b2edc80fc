//! The addresses and ports of a load, and the slot that each belongs to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Consecutive addresses, the same block of ports at each, divided into slots of 2^`shift` ports. A slot has one connection at a time,
/// which goes through its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The first address. The last 32 bits of all addresses count on from it.
    pub first: IpAddr,
    /// The number of addresses.
    pub n_addresses: u32,
    /// The first port, a multiple of 2^`port_bits`.
    pub port_first: u16,
    /// The bits by which the ports of an address differ.
    pub port_bits: u8,
    /// The bits by which the ports of a slot differ.
    pub shift: u8,
    /// The number of slots, at most as many as the ports are enough for.
    pub n: u32,
}

impl Slots {
    /// Divides the ports among `n` slots; `None` if there are fewer ports.
    #[must_use]
    pub fn divide(first: IpAddr, n_addresses: u32, (port_first, port_bits): (u16, u8), n: u32) -> Option<Self> {
        let n_ports = u64::from(n_addresses) << port_bits;
        let shift = (0..=SHIFT_MAX.min(port_bits)).rev().find(|shift| u64::from(n) << shift <= n_ports)?;
        Some(Self { first, n_addresses, port_first, port_bits, shift, n })
    }

    /// The address and port of a slot.
    #[must_use]
    pub fn place(&self, slot: u32, port_idx: u16) -> SocketAddr {
        let number = u64::from(slot) << self.shift | u64::from(port_idx);
        let n_ports = 1 << self.port_bits;
        let offset = u32::try_from(number / n_ports).expect("there are at most 2^32 addresses");
        let port = u16::try_from(number % n_ports).expect("a block of ports has 16 bits");
        let address = match self.first {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().wrapping_add(offset)).into(),
            IpAddr::V6(first) => {
                let last = u32::from_be_bytes(*first.octets().last_chunk().expect("an address has 128 bits"));
                let upper = first.to_bits() >> 32 << 32;
                Ipv6Addr::from_bits(upper | u128::from(last.wrapping_add(offset))).into()
            }
        };
        SocketAddr::new(address, self.port_first | port)
    }

    /// The slot that an address and port belong to, and which port of the slot it is.
    #[must_use]
    pub fn find(&self, place: SocketAddr) -> Option<(u32, u16)> {
        let offset = match (place.ip(), self.first) {
            (IpAddr::V4(address), IpAddr::V4(first)) => address.to_bits().wrapping_sub(first.to_bits()),
            (IpAddr::V6(address), IpAddr::V6(first)) => {
                let [address, first] = [address, first].map(|address| address.octets());
                let low = |octets: [u8; 16]| u32::from_be_bytes(*octets.last_chunk().expect("an address has 128 bits"));
                (address[..12] == first[..12]).then(|| low(address).wrapping_sub(low(first)))?
            }
            _ => return None,
        };
        let port = place.port().checked_sub(self.port_first)?;
        if offset >= self.n_addresses || port >> self.port_bits != 0 {
            return None;
        }
        let slot = (u64::from(offset) << self.port_bits | u64::from(port)) >> self.shift;
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < self.n)?;
        Some((slot, port & self.port_mask()))
    }

    /// The number of ports of a slot, minus one.
    #[must_use]
    pub const fn port_mask(&self) -> u16 {
        (1 << self.shift) - 1
    }
}

/// A slot has at most 256 ports.
const SHIFT_MAX: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_as_many_ports_as_there_are_for_them() {
        let first: IpAddr = "10.0.0.254".parse().unwrap();
        let slots = Slots::divide(first, 2, (0x4000, 14), 4_096).unwrap();
        assert_eq!((slots.shift, slots.port_mask()), (3, 7));
        assert_eq!(slots.place(0, 0), "10.0.0.254:16384".parse().unwrap());
        assert_eq!(slots.place(2_048, 7), "10.0.0.255:16391".parse().unwrap());
        assert_eq!(Slots::divide(first, 2, (0x4000, 14), 32_769), None);
        let first = "fd00::ffff:ffff".parse().unwrap();
        let slots = Slots::divide(first, 2, (0x4000, 14), 4_096).unwrap();
        assert_eq!(slots.place(2_048, 7), "[fd00::]:16391".parse().unwrap(), "only the last 32 bits count");
        for slot in [0, 2_047, 2_048, 4_095] {
            assert_eq!(slots.find(slots.place(slot, 5)), Some((slot, 5)));
        }
        for outside in ["[fd00::ffff:ffff]:16383", "[fd00::ffff:ffff]:32768", "[fd00::1]:16384", "10.0.0.1:16384"] {
            assert_eq!(slots.find(outside.parse().unwrap()), None, "{outside}");
        }
    }
}
