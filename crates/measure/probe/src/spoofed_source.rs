//! Spoofed source addresses of probes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fathom_statistics::splitmix;

/// The upper half of a pseudorandom number from a seed and an index.
pub(crate) fn pseudo_random(seed: u64, number: u64) -> u32 {
    u32::try_from(splitmix(seed, number) >> 32).expect("32 bits are left")
}

/// Returns a pseudorandom unicast address of the same IP version as the destination.
///
/// Hosts drop packets from loopback, unspecified and multicast addresses, so none of these is returned.
///
/// # Panics
/// Never: most addresses are unicast.
#[must_use]
pub fn random_source(seed: u64, destination: IpAddr) -> IpAddr {
    let words = (0..).map(|nth| pseudo_random(splitmix(seed, 0), nth));
    let is_host = |address: &Ipv4Addr| !matches!(address.octets()[0], 0 | 127 | 224..);
    match destination {
        IpAddr::V4(_) => {
            let mut addresses = words.map(Ipv4Addr::from_bits).filter(is_host);
            addresses.next().expect("most addresses are those of hosts").into()
        }
        IpAddr::V6(_) => {
            let bits = words.take(4).fold(0, |bits, word| bits << 32 | u128::from(word));
            // The block of global unicast addresses, 2000::/3 (RFC 4291 section 2.4).
            Ipv6Addr::from_bits(bits >> 3 | 1 << 125).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_sources_are_addresses_of_single_hosts_and_the_same_for_the_same_seed() {
        for destination in ["192.0.2.1", "2001:db8::1"] {
            let destination: IpAddr = destination.parse().unwrap();
            let sources: Vec<IpAddr> = (0..2_000).map(|seed| random_source(seed, destination)).collect();
            for source in &sources {
                assert!(source.is_ipv4() == destination.is_ipv4() && !source.is_loopback() && !source.is_multicast());
                assert!(!source.is_unspecified() && *source != IpAddr::V4(Ipv4Addr::BROADCAST), "{source}");
            }
            assert_eq!(sources[7], random_source(7, destination));
            assert_ne!(sources[7], sources[8]);
        }
    }
}
