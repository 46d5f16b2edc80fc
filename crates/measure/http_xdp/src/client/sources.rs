//! Where the connections of a load come from: addresses, and the ports at each.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use fathom_model::settings::SettingError;
use ipnet::IpNet;

use crate::slots::Slots;

/// A block of ports: the first one, and the bits by which they differ.
pub(super) type PortBlock = (u16, u8);

/// The ports at addresses that nobody else has.
pub(super) const PORTS_OF_SOURCES: PortBlock = (1 << 15, 15);
/// The bits of the largest and of the smallest block at an address that the kernel uses too.
const BLOCK_BITS: RangeInclusive<u8> = 10..=14;
/// The most ports of a slot, as a power of two. More addresses than that needs would stay unused.
const SLOT_BITS_MAX: u8 = 8;

/// The largest block of ports from which the kernel takes none for its own connections.
pub(super) fn block_beside(kernels: &RangeInclusive<u16>) -> Option<PortBlock> {
    let blocks = BLOCK_BITS.rev().flat_map(|bits| (1..=u16::MAX >> bits).map(move |number| (number << bits, bits)));
    let is_free = |(first, bits): &PortBlock| {
        let last = first | ((1 << bits) - 1);
        last < *kernels.start() || first > kernels.end()
    };
    blocks.into_iter().find(is_free)
}

/// Consecutive addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceNetwork {
    /// As the user wrote it.
    pub(super) net: IpNet,
    pub(super) first: IpAddr,
    /// How many hosts can have; it saturates.
    n: u32,
}

impl SourceNetwork {
    /// Reads an address or a network.
    pub(crate) fn parse(text: &str) -> Result<Self, SettingError> {
        let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let net =
            net.filter(|net| !net.addr().is_multicast() && !net.addr().is_loopback() && !net.addr().is_unspecified());
        let net = net.ok_or_else(|| SettingError::NotAllowed {
            name: "source".to_owned(),
            expected: "one address or network that nobody has, such as 198.18.1.0/24".to_owned(),
            given: text.to_owned(),
        })?;
        let n_bits = u32::from(net.max_prefix_len() - net.prefix_len());
        let n = 1_u32.checked_shl(n_bits).unwrap_or(u32::MAX);
        // The first address is that of the network or of any of its routers, and the last one of IPv4 is its broadcast address (RFC 919,
        // RFC 4291 section 2.6.1).
        let (first, n) = match net.network() {
            IpAddr::V4(first) if n_bits > 1 => (Ipv4Addr::from_bits(first.to_bits() + 1).into(), n - 2),
            IpAddr::V6(first) if n_bits > 1 => (Ipv6Addr::from_bits(first.to_bits() + 1).into(), n - 1),
            first => (first, n),
        };
        Ok(Self { net, first, n })
    }

    /// Divides as many addresses as help among that many slots; `None` if there are too few.
    pub(super) fn slots(&self, n: u32) -> Option<Slots> {
        let n_useful = (u64::from(n) << SLOT_BITS_MAX).div_ceil(1 << PORTS_OF_SOURCES.1);
        let n_addresses = self.n.min(u32::try_from(n_useful).unwrap_or(u32::MAX));
        Slots::divide(self.first, n_addresses, PORTS_OF_SOURCES, n)
    }
}

/// All addresses of the slots.
pub(super) fn addresses(slots: &Slots) -> impl Iterator<Item = IpAddr> + use<> {
    let first = slots.first;
    (0..slots.n_addresses).map(move |idx| match first {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + idx).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() + u128::from(idx)).into(),
    })
}

/// Whether an address is one of the slots'.
pub(super) fn has_address(slots: &Slots, address: IpAddr) -> bool {
    let distance = match (slots.first, address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => u128::from(address.to_bits().wrapping_sub(first.to_bits())),
        (IpAddr::V6(first), IpAddr::V6(address)) => address.to_bits().wrapping_sub(first.to_bits()),
        _ => return false,
    };
    distance < u128::from(slots.n_addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_ports_are_none_that_the_kernel_takes() {
        assert_eq!(block_beside(&(32_768..=60_999)), Some((16_384, 14)));
        assert_eq!(block_beside(&(1_024..=49_000)), Some((49_152, 14)));
        assert_eq!(block_beside(&(10_000..=60_000)), Some((4_096, 12)));
        assert_eq!(block_beside(&(1_024..=65_535)), None);
    }

    #[test]
    fn a_network_gives_the_addresses_that_hosts_can_have_and_no_more_than_help() {
        let of = |text: &str, n| SourceNetwork::parse(text).unwrap().slots(n);
        let slots = of("198.18.1.0/24", 1_000).unwrap();
        assert_eq!((slots.first, slots.n_addresses, slots.shift), ("198.18.1.1".parse().unwrap(), 8, 8));
        let slots = of("198.18.1.0/27", 1_000_000 - 20_000).unwrap();
        assert_eq!((slots.n_addresses, slots.shift), (30, 0));
        assert_eq!(of("198.18.1.0/27", 1_000_000), None);
        let slots = of("2001:db8::/64", 1 << 20).unwrap();
        assert_eq!((slots.first, slots.n_addresses, slots.shift), ("2001:db8::1".parse().unwrap(), 8_192, 8));
        assert_eq!(of("198.18.1.7", 1).unwrap().n_addresses, 1);
    }

    #[test]
    fn what_hosts_cannot_have_is_refused() {
        for text in ["", "eth0", "198.18.0.0/33", "224.0.0.0/8", "127.0.0.1", "::", "198.18.0.1,198.18.0.2"] {
            assert!(SourceNetwork::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_is_known_as_one_of_the_slots() {
        let slots = Slots::divide("10.0.0.254".parse().unwrap(), 3, PORTS_OF_SOURCES, 1).unwrap();
        let all: Vec<String> = addresses(&slots).map(|address| address.to_string()).collect();
        assert_eq!(all, ["10.0.0.254", "10.0.0.255", "10.0.1.0"]);
        for (text, is_ours) in
            [("10.0.0.253", false), ("10.0.0.254", true), ("10.0.1.0", true), ("10.0.1.1", false), ("::1", false)]
        {
            assert_eq!(has_address(&slots, text.parse().unwrap()), is_ours, "{text}");
        }
    }
}
