//! Return routability: an address gets payload only after it has returned a challenge sent to it (RFC 9000 section 8).
//!
//! A datagram may claim any source. Without this check, a few bytes with a forged source would send many to a victim.

use std::{collections::HashSet, hash::BuildHasher as _, hash::RandomState, net::IpAddr, net::SocketAddr};

/// Creates the challenges of one trial; a clone creates the same ones.
///
/// A challenge is a keyed hash of the address, so that no state is kept for an address that never returns it. The key comes from
/// the operating system's randomness and not from the trial's seed, which the other side knows.
#[derive(Debug, Clone, Default)]
pub struct Challenges(RandomState);

impl Challenges {
    /// The challenge that an address has to return.
    pub fn of(&self, address: SocketAddr) -> u64 {
        self.0.hash_one((address.ip(), address.port()))
    }
}

/// The addresses that have been validated for one socket.
#[derive(Debug, Default)]
pub struct ValidatedAddresses {
    all: HashSet<IpAddr>,
    /// The address of the last lookup, which is nearly always the next one too.
    last: Option<IpAddr>,
}

impl ValidatedAddresses {
    pub fn add(&mut self, address: IpAddr) {
        self.all.insert(address);
    }

    #[inline]
    pub fn contains(&mut self, address: IpAddr) -> bool {
        if self.last != Some(address) {
            self.last = self.all.contains(&address).then_some(address);
        }
        self.last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_of_one_address_and_one_trial() {
        let (ours, others) = (Challenges::default(), Challenges::default());
        let [one, two]: [SocketAddr; 2] = ["198.18.0.1:7", "198.18.0.1:8"].map(|text| text.parse().unwrap());
        assert_eq!(ours.of(one), ours.clone().of(one));
        assert_ne!(ours.of(one), ours.of(two));
        assert_ne!(ours.of(one), others.of(one));
    }

    #[test]
    fn only_addresses_that_were_added_have_proved_themselves() {
        let [one, two]: [IpAddr; 2] = ["198.18.0.1", "fd00::1"].map(|text| text.parse().unwrap());
        let mut proved = ValidatedAddresses::default();
        assert!(!proved.contains(one));
        proved.add(one);
        assert!(proved.contains(one) && !proved.contains(two) && proved.contains(one));
    }
}
