//! A packet filter that drops packets without counting them, which more than one rule names as the place of a loss.

use fathom_model::{Evidence, NextStep, names::host};

use crate::evidence::{TestEvidence, counter_evidence};

/// Fewer packets explain nothing: some for nobody, such as those of a multicast group, come to every host.
const PACKETS_MIN: u64 = 10;

/// Such a filter, with what it dropped.
pub(super) struct UncountedFilter<'a> {
    pub(super) host: &'a str,
    pub(super) n_dropped: u64,
}

impl UncountedFilter<'_> {
    /// What it dropped.
    pub(super) fn evidence(&self) -> Evidence {
        counter_evidence(self.host, host::IP_UNDELIVERED, self.n_dropped)
    }
}

/// Returns the filter that dropped about as many packets as a test lost.
pub(super) fn uncounted_filter<'a>(seen: &TestEvidence<'a>, n_lost: u64) -> Option<UncountedFilter<'a>> {
    let of_host = |host| UncountedFilter { host, n_dropped: seen.growth(host, host::IP_UNDELIVERED, None) };
    let about_as_many = n_lost / 2..=n_lost.saturating_mul(2);
    let is_enough = |of: &UncountedFilter<'_>| of.n_dropped >= PACKETS_MIN && about_as_many.contains(&of.n_dropped);
    seen.hosts().map(of_host).find(is_enough)
}

/// Shows the rules of a packet filter.
pub(super) fn show_rules(host: &str) -> NextStep {
    NextStep::new("nft list ruleset")
        .on(host)
        .expected("show the rule that drops them, if it is one of nftables; else look at iptables-legacy-save")
}
