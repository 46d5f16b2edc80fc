//! The place that dropped the first packets of connections that never opened.

use fathom_model::{NextStep, names::host, units::grouped};

use super::{
    connect_delays::{
        PACKETS_PER_SYN, is_of_device, is_of_listener, most_without_way_back, next_at, show_route, without_way_back,
    },
    drops::PACKETS_MIN,
    host_drops::before_connections,
    other_mac::{compare_addresses, frames_for_others},
    packet_filter::show_rules,
    retransmissions::most_dropped,
};
use crate::evidence::TestEvidence;

/// Where the first packets of connections went, as far as counters say.
pub(crate) struct LostConnects {
    pub(crate) what: String,
    pub(crate) next: NextStep,
}

/// Returns the place that dropped about as many packets as SYNs were sent again. A few packets of others come to every host, so that some places are
/// no proof and are told as possible.
pub(crate) fn lost_connects(seen: &TestEvidence<'_>, n_syns: u64) -> Option<LostConnects> {
    let about_as_many = n_syns.div_ceil(2)..=n_syns.saturating_mul(PACKETS_PER_SYN);
    let is_enough = |n: u64| about_as_many.contains(&n);
    let counted = seen.hosts().flat_map(|host| before_connections(seen, host)).filter(|(_, n, _)| is_enough(*n));
    if let Some((what, n, next)) = counted.max_by_key(|(_, n, _)| *n) {
        // So few may have come from a stranger.
        let perhaps = if n < PACKETS_MIN { ", perhaps those of this test" } else { "" };
        return Some(LostConnects { what: format!("{what}: {} packets{perhaps}", grouped(n)), next });
    }
    let most = most_dropped(seen, *about_as_many.end(), |drops| !is_of_device(drops) && is_enough(drops.n));
    let no_way_back = most_without_way_back(seen, n_syns).filter(|_| most.as_ref().is_none_or(is_of_listener));
    if let Some((host, n)) = no_way_back {
        let next = show_route(seen, host, &seen.test.from);
        return Some(LostConnects { what: without_way_back(host, &seen.test.from, n), next });
    }
    if let Some(drops) = most {
        let what = format!("{} dropped {} packets {}", drops.host, grouped(drops.n), drops.place);
        return Some(LostConnects { what, next: next_at(seen, drops.host, drops.counter).on(drops.host) });
    }
    seen.hosts().find_map(|host| for_others(seen, host, is_enough).or_else(|| filtered(seen, host, is_enough)))
}

/// The frames that reached an interface of a host for another Ethernet address.
fn for_others(seen: &TestEvidence<'_>, host: &str, is_enough: impl Fn(u64) -> bool) -> Option<LostConnects> {
    let grown = seen.growth_by_instance(host, host::DEV_RX_OTHER_HOST);
    let (interface, n) = grown.into_iter().find(|(_, n)| is_enough(*n))?;
    let what = format!("{} {}, perhaps those of this test", grouped(n), frames_for_others(host, interface));
    Some(LostConnects { what, next: compare_addresses(interface).on(host) })
}

/// The packets that IP of a host received and that went nowhere.
fn filtered(seen: &TestEvidence<'_>, host: &str, is_enough: impl Fn(u64) -> bool) -> Option<LostConnects> {
    let n = seen.undelivered(host).filter(|n| is_enough(*n))?;
    let what =
        format!("{host} received {} packets that it gave to no program: a packet filter may drop them", grouped(n));
    Some(LostConnects { what, next: show_rules(host) })
}
