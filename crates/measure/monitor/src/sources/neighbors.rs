//! How often the Ethernet addresses of neighbors changed, and which neighbors do not answer: rtnetlink, because `/proc` has no neighbors over IPv6.
//!
//! The kernel keeps no count, so what is counted is the difference between two samples. Works only on the running system: another root
//! has nothing to query.

use std::{collections::BTreeMap, io, net::IpAddr, path::Path};

use fathom_model::{MacAddress, names::host};
use fathom_sys::netlink::{NeighbourEntry, NeighbourTable, Netlink};

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
};

/// More neighbors than a test has hosts; those beyond are left out, so that a large network does not displace other counters.
const NEIGHBORS_MAX: usize = 256;
/// After a look at this many entries the next sample is left out, and so on: the look takes about a microsecond for each.
const ENTRIES_PER_PAUSE: usize = 256;

/// The source; it stays in the network namespace of the thread that takes the first sample.
pub(super) struct Neighbors {
    netlink: Socket<Netlink>,
    known: BTreeMap<(u32, IpAddr), Neighbor>,
    /// The neighbors that nobody answered for in some sample, with the number of such samples.
    unanswered: BTreeMap<(u32, IpAddr), (String, u64)>,
    /// The samples to leave out.
    n_left_out: usize,
}

struct Neighbor {
    /// The interface and the address: `eth0 198.18.0.2`.
    of: String,
    mac: MacAddress,
    n_changes: u64,
}

impl Neighbors {
    pub(super) const fn new() -> Self {
        Self { netlink: Socket::new(Netlink::open), known: BTreeMap::new(), unanswered: BTreeMap::new(), n_left_out: 0 }
    }

    fn follow(&mut self, entry: &NeighbourEntry, names: &BTreeMap<u32, String>) {
        let key = (entry.link, entry.address);
        if let Some(neighbor) = self.known.get_mut(&key) {
            neighbor.n_changes += u64::from(neighbor.mac != entry.mac);
            neighbor.mac = entry.mac;
        } else if let Some(name) = names.get(&entry.link).filter(|_| self.known.len() < NEIGHBORS_MAX) {
            let of = format!("{name} {}", entry.address);
            self.known.insert(key, Neighbor { of, mac: entry.mac, n_changes: 0 });
        }
    }
}

impl Neighbors {
    /// Counts this sample for a neighbor that nobody answers for.
    fn count_unanswered(&mut self, key: (u32, IpAddr), names: &BTreeMap<u32, String>) {
        if let Some((_, n)) = self.unanswered.get_mut(&key) {
            *n += 1;
        } else if let Some(name) = names.get(&key.0).filter(|_| self.unanswered.len() < NEIGHBORS_MAX) {
            self.unanswered.insert(key, (format!("{name} {}", key.1), 1));
        }
    }
}

impl Source for Neighbors {
    fn name(&self) -> &'static str {
        "neighbors"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::NEIGHBOR_CHANGES, host::NEIGHBOR_FAILED]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(netlink) = self.netlink.below(root)? else { return Ok(()) };
        if self.n_left_out > 0 {
            self.n_left_out -= 1;
        } else {
            let NeighbourTable { known: entries, unanswered } = netlink.neighbour_table().map_err(cause)?;
            let is_new = |entry: &NeighbourEntry| !self.known.contains_key(&(entry.link, entry.address));
            let has_new = self.known.len() < NEIGHBORS_MAX && entries.iter().any(is_new);
            let is_unanswered_new = self.unanswered.len() < NEIGHBORS_MAX
                && unanswered.iter().any(|key| !self.unanswered.contains_key(key));
            let names: BTreeMap<u32, String> = if has_new || is_unanswered_new {
                netlink.links().map_err(cause)?.into_iter().map(|link| (link.index, link.name)).collect()
            } else {
                BTreeMap::new()
            };
            self.n_left_out = entries.len() / ENTRIES_PER_PAUSE;
            for entry in &entries {
                self.follow(entry, &names);
            }
            for key in unanswered {
                self.count_unanswered(key, &names);
            }
        }
        for neighbor in self.known.values() {
            out.value(host::NEIGHBOR_CHANGES, &neighbor.of, neighbor.n_changes);
        }
        for (of, n) in self.unanswered.values() {
            out.value(host::NEIGHBOR_FAILED, of, *n);
        }
        if self.unanswered.is_empty() {
            out.value(host::NEIGHBOR_FAILED, "", 0);
        }
        // Without neighbors the count is known to be zero.
        if self.known.is_empty() {
            out.value(host::NEIGHBOR_CHANGES, "", 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_another_ethernet_address_than_before_has_changed() {
        let names = [(2, "eth0".to_owned())].into();
        let entry = |link, last| NeighbourEntry {
            link,
            address: [198, 18, 0, 2].into(),
            mac: MacAddress([2, 0, 0, 0, 0, last]),
        };
        let mut neighbors = Neighbors::new();
        for (link, last) in [(2, 1), (2, 1), (2, 9), (2, 1), (7, 5)] {
            neighbors.follow(&entry(link, last), &names);
        }
        let seen: Vec<_> =
            neighbors.known.values().map(|neighbor| (neighbor.of.as_str(), neighbor.n_changes)).collect();
        assert_eq!(seen, [("eth0 198.18.0.2", 2)], "a link without a name is gone");
    }

    #[test]
    fn a_network_with_thousands_of_hosts_is_watched_in_part() {
        let names = [(2, "eth0".to_owned())].into();
        let mut neighbors = Neighbors::new();
        for n in 0..5_000_u16 {
            let [high, low] = n.to_be_bytes();
            let entry = NeighbourEntry { link: 2, address: [10, 0, high, low].into(), mac: MacAddress([2; 6]) };
            neighbors.follow(&entry, &names);
        }
        assert_eq!(neighbors.known.len(), NEIGHBORS_MAX);
    }
}
