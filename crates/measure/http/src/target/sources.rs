//! Source addresses, used in turn.
//!
//! A pair of addresses has some 28,000 ports (`net.ipv4.ip_local_port_range`), and a test may need more connections than that.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use fathom_model::settings::SettingError;
use fathom_sys::socket::{self, error_of};
use ipnet::IpNet;

use super::TargetConfigError;

/// Consecutive addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressBlock {
    first: IpAddr,
    /// The number of addresses. It saturates, because nobody uses 2^64 addresses.
    n: u64,
}

impl AddressBlock {
    /// The addresses of a network that hosts can have.
    fn of(net: IpNet) -> Self {
        let n_bits = u32::from(net.max_prefix_len() - net.prefix_len());
        let n = 1u64.checked_shl(n_bits).unwrap_or(u64::MAX);
        match net.network() {
            // The first address names the network and the last is its broadcast address (RFC 919); networks of two addresses have
            // neither (RFC 3021).
            IpAddr::V4(first) if n_bits > 1 => Self { first: Ipv4Addr::from(u32::from(first) + 1).into(), n: n - 2 },
            first => Self { first, n },
        }
    }

    fn address(self, idx: u64) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => {
                let offset = u32::try_from(idx).expect("an IPv4 block has no more addresses than 32 bits count");
                Ipv4Addr::from(u32::from(first) + offset).into()
            }
            IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) + u128::from(idx)).into(),
        }
    }
}

/// The blocks of one family.
#[derive(Debug, Clone, Default)]
struct AddressBlocks {
    blocks: Vec<AddressBlock>,
    n: u64,
}

impl AddressBlocks {
    fn new(blocks: impl Iterator<Item = AddressBlock>) -> Self {
        let blocks: Vec<AddressBlock> = blocks.collect();
        Self { n: blocks.iter().fold(0, |sum, block| sum.saturating_add(block.n)), blocks }
    }
}

/// All source addresses of a test; clones share them.
#[derive(Debug, Clone)]
pub struct SourceAddresses {
    four: Arc<AddressBlocks>,
    six: Arc<AddressBlocks>,
}

impl SourceAddresses {
    /// Parses addresses and networks, separated by commas.
    ///
    /// # Errors
    /// A part is neither; the error names it.
    pub fn parse(text: &str) -> Result<Self, TargetConfigError> {
        let mut blocks = Vec::new();
        for part in text.split(',').map(str::trim) {
            let net = part.parse::<IpNet>().ok().or_else(|| part.parse::<IpAddr>().ok().map(IpNet::from));
            let net = net.ok_or_else(|| SettingError::NotAllowed {
                name: "source".to_owned(),
                expected: "addresses and networks such as 10.0.0.2,10.0.1.0/24".to_owned(),
                given: part.to_owned(),
            })?;
            blocks.push(AddressBlock::of(net));
        }
        Ok(Self::new(&blocks))
    }

    fn new(blocks: &[AddressBlock]) -> Self {
        let of = |is_wanted: fn(&IpAddr) -> bool| {
            Arc::new(AddressBlocks::new(blocks.iter().copied().filter(|block| is_wanted(&block.first))))
        };
        Self { four: of(IpAddr::is_ipv4), six: of(IpAddr::is_ipv6) }
    }

    /// Whether any address can send to `target`.
    #[must_use]
    pub fn can_reach(&self, target: IpAddr) -> bool {
        self.blocks(target).n > 0
    }

    fn blocks(&self, target: IpAddr) -> &AddressBlocks {
        if target.is_ipv4() { &self.four } else { &self.six }
    }

    /// Verifies that the first and the last address of every block can be bound.
    ///
    /// # Errors
    /// [`TargetConfigError::Source`] with the first one that cannot.
    pub fn check(&self) -> Result<(), TargetConfigError> {
        for block in self.four.blocks.iter().chain(&self.six.blocks) {
            for address in [block.address(0), block.address(block.n - 1)] {
                let place = SocketAddr::new(address, 0);
                let bound = socket::stream(place).and_then(|own| own.bind(&place.into()).map_err(error_of("bind")));
                bound.map_err(|cause| TargetConfigError::Source { address, cause })?;
            }
        }
        Ok(())
    }

    /// The rotation of one worker, which starts at its part of the addresses.
    #[must_use]
    pub fn rotation(&self, idx: u64, n_parts: u64) -> SourceRotation {
        let start = |blocks: &AddressBlocks| blocks.n / n_parts.max(1) * idx;
        SourceRotation { next: [start(&self.four), start(&self.six)], sources: self.clone() }
    }
}

/// Rotates through the addresses of each family.
#[derive(Debug)]
pub struct SourceRotation {
    sources: SourceAddresses,
    next: [u64; 2],
}

impl SourceRotation {
    /// The next source address for `target`, if there is one of its family.
    pub fn next_for(&mut self, target: IpAddr) -> Option<IpAddr> {
        let next = &mut self.next[usize::from(target.is_ipv6())];
        let blocks = if target.is_ipv4() { &self.sources.four } else { &self.sources.six };
        if blocks.n == 0 {
            return None;
        }
        let mut idx = *next;
        *next = if idx + 1 >= blocks.n { 0 } else { idx + 1 };
        // There are usually one or a few blocks.
        for block in &blocks.blocks {
            if idx < block.n {
                return Some(block.address(idx));
            }
            idx -= block.n;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const SIX: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    fn turns(text: &str, target: IpAddr, n: usize) -> Vec<String> {
        let mut turns = SourceAddresses::parse(text).unwrap().rotation(0, 1);
        (0..n).map(|_| turns.next_for(target).unwrap().to_string()).collect()
    }

    #[test]
    fn a_network_gives_the_addresses_that_hosts_can_have() {
        assert_eq!(turns("10.0.0.77/30", FOUR, 3), ["10.0.0.77", "10.0.0.78", "10.0.0.77"]);
        assert_eq!(turns("10.0.0.4/31", FOUR, 3), ["10.0.0.4", "10.0.0.5", "10.0.0.4"]);
        assert_eq!(turns("10.0.0.4/32,10.0.0.9", FOUR, 3), ["10.0.0.4", "10.0.0.9", "10.0.0.4"]);
        assert_eq!(turns("2001:db8::/126", SIX, 5)[3..], ["2001:db8::3", "2001:db8::"]);
        assert_eq!(SourceAddresses::parse("0.0.0.0/0").unwrap().four.n, (1 << 32) - 2);
        assert_eq!(SourceAddresses::parse("::/0").unwrap().six.n, u64::MAX);
    }

    #[test]
    fn families_take_turns_of_their_own() {
        let mut turns = SourceAddresses::parse("10.0.0.1, ::5 ,10.0.0.2").unwrap().rotation(0, 1);
        let given = [FOUR, SIX, FOUR, SIX, FOUR].map(|target| turns.next_for(target).unwrap().to_string());
        assert_eq!(given, ["10.0.0.1", "::5", "10.0.0.2", "::5", "10.0.0.1"]);
        let only_four = SourceAddresses::parse("10.0.0.1").unwrap();
        assert!(!only_four.can_reach(SIX) && only_four.can_reach(FOUR));
        assert_eq!(only_four.rotation(0, 1).next_for(SIX), None);
    }

    #[test]
    fn workers_begin_at_their_parts() {
        let sources = SourceAddresses::parse("10.0.0.0/24").unwrap();
        let starts = [0, 1].map(|idx| sources.rotation(idx, 2).next_for(FOUR).unwrap().to_string());
        assert_eq!(starts, ["10.0.0.1", "10.0.0.128"]);
    }

    #[test]
    fn what_is_no_address_is_named() {
        for part in ["10.0.0.0/33", "10.0.0", "eth0", ""] {
            let error = SourceAddresses::parse(&format!("10.0.0.1,{part}")).unwrap_err().to_string();
            assert!(error.ends_with(&format!("not `{part}`")), "{error}");
        }
    }

    #[test]
    fn an_address_of_another_host_is_found_before_the_load() {
        SourceAddresses::parse("127.0.0.0/8").unwrap().check().unwrap();
        // TEST-NET-1 (RFC 5737) belongs to nobody.
        let error = SourceAddresses::parse("127.0.0.1,192.0.2.1").unwrap().check().unwrap_err();
        assert!(matches!(error, TargetConfigError::Source { address, .. } if address.to_string() == "192.0.2.1"));
    }
}
