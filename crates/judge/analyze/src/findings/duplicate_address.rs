//! A host has the address of the other one.

use std::net::IpAddr;

use fathom_model::{Finding, Layer, NextStep, Severity};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, text_evidence},
    path::place_on_path,
};

/// The id of this finding.
pub(super) const DUPLICATE_ADDRESS: &str = "duplicate-address";

/// Compares the address of each host with the interfaces of the others.
///
/// A kernel sends nothing to an address of its own, and takes a packet from one for a forgery, so that nothing passes between the two. It is a
/// remark where something passed: the test used other addresses. Hosts that share all their addresses share their network namespace.
pub(crate) struct DuplicateAddress;

impl FindingRule for DuplicateAddress {
    fn id(&self) -> &'static str {
        DUPLICATE_ADDRESS
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.test.layer == Layer::Frames {
            return Vec::new();
        }
        let own = |host: &str| place_on_path(seen.run, seen.test, host).0?.parse::<IpAddr>().ok();
        let has = |host: &str, address: Option<IpAddr>| address.and_then(|address| interface_with(seen, host, address));
        let of_host = |owner| {
            // The address of a service, which is translated on its way, is on no interface of its owner.
            let address =
                own(owner).filter(|address| !address.is_loopback() && has(owner, Some(*address)).is_some())?;
            let is_twin = |host: &&str| *host != owner && has(owner, own(host)).is_none();
            seen.hosts().filter(is_twin).find_map(|host| Some((owner, host, address, has(host, Some(address))?)))
        };
        let Some((owner, host, address, interface)) = seen.hosts().find_map(of_host) else { return Vec::new() };
        let is_cause = seen.got_nothing_through();
        let so =
            if is_cause { format!(": it sends nothing to {owner} and takes nothing from it") } else { String::new() };
        let title = format!("{host} has the address of {owner}, {address}, on its {interface} too{so}");
        let severity = if is_cause { Severity::HoldsBack } else { Severity::Remark };
        vec![
            seen.finding(self.id(), severity, "same address", title)
                .evidence([text_evidence(host, format!("addresses {interface}"), address)])
                .next(NextStep::new("ip address").on(host).expected("show the address; remove it from one of the two")),
        ]
    }
}

/// Returns the interface of a host that has an address.
fn interface_with<'a>(seen: &TestEvidence<'a>, host: &str, address: IpAddr) -> Option<&'a str> {
    let has = |addresses: &&str| addresses.split(' ').any(|one| one.parse() == Ok(address));
    let of = |(name, facts): (&'a String, &'a std::collections::BTreeMap<String, String>)| {
        facts.get("addresses").map(String::as_str).filter(has).map(|_| name.as_str())
    };
    seen.environment(host)?.0.iter().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_host_with_the_address_of_the_other_gets_nothing_from_it() {
        let found = |per_second: u64, (client, target): (&str, &str)| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(per_second, 1);
            for (host, address, all) in [("client", "198.18.0.1", client), ("target", "198.18.0.2", target)] {
                let host = builder.run.hosts.get_mut(host).unwrap();
                host.address = Some(address.to_owned());
                host.environment.note("lo", "addresses", all);
            }
            builder.finding(DUPLICATE_ADDRESS)
        };
        let alone = "127.0.0.1 198.18.0.1";
        let finding = found(0, (alone, "127.0.0.1 198.18.0.1 198.18.0.2")).unwrap();
        assert_eq!(
            finding.title,
            "target has the address of client, 198.18.0.1, on its lo too: it sends nothing to client and takes nothing from it"
        );
        assert_eq!(finding.severity, Severity::Invalidates, "nothing was measured");
        assert_eq!(found(1_000, (alone, "198.18.0.1 198.18.0.2")).unwrap().severity, Severity::Remark);
        assert_eq!(found(0, (alone, "198.18.0.2")), None);
        assert_eq!(found(0, ("127.0.0.1", "198.18.0.1 198.18.0.2")), None, "a service, whose address is translated");
        assert_eq!(found(0, ("198.18.0.1 198.18.0.2", "198.18.0.1 198.18.0.2")), None, "one network namespace");
    }
}
