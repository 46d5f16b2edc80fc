//! The host of a run on which a server runs that is not fathom's.

use std::{collections::BTreeMap, net::IpAddr};

use fathom_model::{Layer, Plan, run::Host};
use fathom_sys::policy::ResolvedNames;

use super::checked_plan::CheckedTest;

/// Returns the host of a run that all connections or datagrams of a test without a responder reach: at the address of the interface that is
/// tested there. `None` if there is none or an address is not known, and for a test of a path, whose addresses are those of a device.
pub(super) fn server_host(
    test: &CheckedTest,
    plan: &Plan,
    hosts: &BTreeMap<String, Host>,
    resolved: &ResolvedNames,
) -> Option<String> {
    let has_server = matches!(test.kind.layer(), Layer::App | Layer::Http | Layer::Tcp | Layer::Udp);
    if !has_server || test.to.is_some() || test.path.is_some() {
        return None;
    }
    let takes_part = |name: &str| test.initiating_hosts().any(|from| from == name) || plan.via.as_deref() == Some(name);
    let others: Vec<_> = hosts.iter().filter(|(name, _)| !takes_part(name)).collect();
    let at = |address: &IpAddr| others.iter().find(|(_, host)| has_address(host, *address)).map(|(name, _)| *name);
    let targets = test.kind.destinations(&test.options).ok()?;
    let mut reached: Option<&String> = None;
    for target in &targets {
        // A zone belongs to the host that sends.
        let literal: Option<IpAddr> = target.host.split('%').next().and_then(|host| host.parse().ok());
        let addresses = literal.map_or_else(|| resolved.get(&target.host).cloned(), |address| Some(vec![address]))?;
        for address in addresses {
            let host = at(&address)?;
            if reached.replace(host).is_some_and(|before| before != host) {
                return None;
            }
        }
    }
    reached.cloned()
}

/// Returns true if the tested interface of a host has this address.
fn has_address(host: &Host, address: IpAddr) -> bool {
    let addresses = host.interface.as_deref().and_then(|interface| host.environment.get(interface, "addresses"));
    addresses.is_some_and(|all| all.split(' ').any(|one| one.parse() == Ok(address)))
}
