//! The place that dropped the first packets of connections that never opened.

use fathom_model::{NextStep, names::host};

use super::{
    host_drops::before_connections,
    other_mac::{compare_addresses, frames_for_others},
    uncounted_filter::show_rules,
};
use crate::evidence::TestEvidence;

/// For each SYN that the initiator sends again, its peer may send a SYN-ACK up to so many times.
const PACKETS_PER_SYN: u64 = 4;

/// Returns the place that dropped about as many packets as SYNs were sent again: its description, the number, and the next step.
pub(crate) fn dropped_connects(seen: &TestEvidence<'_>, n_syns: u64) -> Option<(String, u64, NextStep)> {
    let about_as_many = n_syns.div_ceil(2)..=n_syns.saturating_mul(PACKETS_PER_SYN);
    let is_enough = |of: &(String, u64, NextStep)| about_as_many.contains(&of.1);
    let counted = seen.hosts().flat_map(|host| before_connections(seen, host).chain(for_others(seen, host)));
    let uncounted = seen.hosts().map(|host| {
        let what = format!("a packet filter on {host} drops packets and does not count them");
        (what, seen.growth(host, host::IP_UNDELIVERED, None), show_rules(host))
    });
    counted.filter(is_enough).max_by_key(|of| of.1).or_else(|| uncounted.into_iter().find(is_enough))
}

/// The frames that reached an interface of a host for another Ethernet address.
fn for_others(seen: &TestEvidence<'_>, host: &str) -> Option<(String, u64, NextStep)> {
    let (interface, n) = *seen.growth_by_instance(host, host::DEV_RX_OTHER_HOST).first()?;
    Some((frames_for_others(host, interface), n, compare_addresses(interface).on(host)))
}
