//! The packet filter between the reception of a frame and its routing. It is removed with the test.

use std::net::{IpAddr, Ipv4Addr};

use fathom_engine::Error;
use fathom_sys::{
    Result,
    netlink::nftables::{Chain, ChainName, Hook, Nftables, PacketMatch, Rule, RuleVerdict, Table, TableFamily},
};

/// The rules of our own table, removed on drop.
#[derive(Debug)]
pub(super) struct FilterRules {
    /// The chain that all packets pass if no rule matches.
    entry: ChainName,
}

/// An address that nobody has (RFC 5737), so no rule matches.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0));
const TABLE: Table<'_> = Table { family: TableFamily::Ipv4, name: "fathom_receive" };
const ENTRY: &str = "entry";
const COMPARED: &str = "rules";

impl FilterRules {
    /// Installs this many rules that are compared with every packet. Packets are dropped or accepted after them.
    pub(super) fn install(n_rules: u64, is_dropped: bool) -> std::result::Result<Self, Error> {
        let compare = Rule { matching: PacketMatch::Source(NOBODY), verdict: RuleVerdict::Drop };
        let compared = vec![compare; usize::try_from(n_rules).unwrap_or(usize::MAX)];
        let last = if is_dropped { RuleVerdict::Drop } else { RuleVerdict::Accept };
        let to_all = |verdict| Rule { matching: PacketMatch::Any, verdict };
        let chains = [
            Chain {
                name: ENTRY,
                hook: Some(Hook::Prerouting),
                rules: vec![to_all(RuleVerdict::Jump(COMPARED)), to_all(last)],
            },
            Chain { name: COMPARED, hook: None, rules: compared },
        ];
        let made = Nftables::open().and_then(|mut nft| {
            // From here on the table may exist. It is removed if the rest fails.
            let rules = Self { entry: Nftables::chain(TABLE, ENTRY) };
            nft.install(TABLE, &chains).map(|()| rules)
        });
        made.map_err(|cause| Error::system("make rules of nftables", "CAP_NET_ADMIN", cause))
    }

    /// The number of packets counted by the last rule, which all packets reach.
    pub(super) fn n_matched(&self) -> Result<u64> {
        let rules = Nftables::open()?.counted(&self.entry)?;
        Ok(rules.last().map_or(0, |rule| rule.n_packets))
    }
}

impl Drop for FilterRules {
    fn drop(&mut self) {
        // If this fails, the namespace is gone, and the table with it.
        let _ = Nftables::open().and_then(|mut nft| nft.remove(TABLE));
    }
}
