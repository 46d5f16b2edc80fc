//! A packet filter that dropped packets of a test where no counter of its rules was read, which more than one rule names as the place of a loss.

use fathom_model::{
    Evidence, Layer, NextStep, Side,
    names::{count::TRANSACTIONS_LOST, host},
    units::rounded,
};

use super::drops::PACKETS_MIN;
use crate::evidence::{TestEvidence, counter_evidence};

/// Packets for nobody come to every host: those of multicast groups, and those that the filter of a public host drops. So many in a second are no news.
const OF_OTHERS_PER_SEC: f64 = 2.0;

/// Such a filter, with what it dropped.
pub(super) struct PacketFilter<'a> {
    pub(super) host: &'a str,
    pub(super) n_dropped: u64,
}

impl<'a> PacketFilter<'a> {
    /// Returns the filter of a host that dropped more than comes to every host; `None` if the host is no end of the test: a device may pass packets on
    /// from a hook of its filter, and so may a host that is judged without a test.
    pub(super) fn of(seen: &TestEvidence<'a>, host: &'a str) -> Option<Self> {
        let mut records = seen.trials().iter().flat_map(|trial| trial.records.values());
        let n_dropped = seen.undelivered(host).filter(|_| records.any(|record| !record.totals.is_empty()))?;
        let of_others = seen.sampled_time(host)?.as_secs_f64() * OF_OTHERS_PER_SEC;
        let least = PACKETS_MIN.max(rounded(of_others));
        (n_dropped >= least).then_some(Self { host, n_dropped })
    }

    /// What it dropped.
    pub(super) fn evidence(&self) -> Evidence {
        counter_evidence(self.host, host::IP_UNDELIVERED, self.n_dropped)
    }

    /// Shows its rules.
    pub(super) fn next(&self) -> NextStep {
        show_rules(self.host)
    }
}

/// Returns the filter that dropped about as many datagrams, or probes, as a test lost. Super-buffers (`--gso`) count once, so that it is not found there.
pub(super) fn filter_of_datagrams<'a>(seen: &TestEvidence<'a>, n_lost: u64) -> Option<PacketFilter<'a>> {
    if seen.test.layer != Layer::Udp && seen.probes_lost().is_none() {
        return None;
    }
    let about_as_many = n_lost / 2..=n_lost.saturating_mul(2);
    // Of requests and answers, both ends receive some.
    let receiver = seen.one_way().filter(|_| seen.total(Side::Initiator, TRANSACTIONS_LOST) == 0);
    let receiver = receiver.and_then(|(_, to)| seen.host_of(to));
    let hosts = seen.hosts().filter(|host| receiver.is_none_or(|receiver| receiver == *host));
    let filters = hosts.filter_map(|host| PacketFilter::of(seen, host));
    filters.filter(|of| about_as_many.contains(&of.n_dropped)).min_by_key(|of| of.n_dropped.abs_diff(n_lost))
}

/// Shows the rules of the packet filter of a host.
pub(super) fn show_rules(host: &str) -> NextStep {
    NextStep::new("nft list ruleset")
        .on(host)
        .expected("show the rule, or the policy of a chain, that drops them; else look at iptables-legacy-save")
}
