//! Address ranges.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// An address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    pub(super) address: IpAddr,
    pub(super) prefix: u32,
}

/// The text is not a valid address range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address or an address range such as 10.0.0.0/8")]
pub struct NetworkError(pub String);

impl Network {
    /// The IPv4 loopback range.
    pub const LOOPBACK_V4: Self = Self { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 };
    /// The IPv6 loopback address.
    pub const LOOPBACK_V6: Self = Self { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 };

    /// The address that it was made of; only its first [`Self::prefix`] bits count.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of leading bits that all its addresses share.
    #[must_use]
    pub const fn prefix(&self) -> u32 {
        self.prefix
    }

    /// Its first address in 32-bit words; IPv4 uses only the first word.
    pub(super) fn bits(&self) -> [u32; 4] {
        match self.address {
            IpAddr::V4(address) => [address.to_bits(), 0, 0, 0],
            IpAddr::V6(address) => {
                let bits = address.to_bits().to_be_bytes();
                std::array::from_fn(|n| {
                    u32::from_be_bytes([bits[4 * n], bits[4 * n + 1], bits[4 * n + 2], bits[4 * n + 3]])
                })
            }
        }
    }

    /// Returns whether its addresses reach many hosts at once: multicast or limited broadcast.
    #[must_use]
    pub fn is_group(&self) -> bool {
        self.address.is_multicast() || self.address == IpAddr::V4(Ipv4Addr::BROADCAST)
    }

    /// Returns whether it contains all of another range.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    /// Returns whether it contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(32 - self.prefix).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(128 - self.prefix).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = if self.address.is_ipv4() { 32 } else { 128 };
        match self.prefix {
            prefix if prefix == longest => self.address.fmt(f),
            prefix => write!(f, "{}/{prefix}", self.address),
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Parses `10.0.0.0/8`, `fd00::/8`, or a single address.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address = address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical();
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(longest), str::parse).map_err(|_| wrong())?;
        if prefix > longest { Err(wrong()) } else { Ok(Self { address, prefix }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_what_shares_their_prefix() {
        let cases = [
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "10.0.0.1", false),
            ("::/0", "2001:db8::1", true),
        ];
        for (range, address, expected) in cases {
            let range: Network = range.parse().unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), expected, "{range:?} {address}");
        }
        for text in ["10.0.0.0/33", "10/8", "", "10.0.0.0/", "x", "fd00::/129"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
