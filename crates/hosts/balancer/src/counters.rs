//! What the balancer counts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fragments::FragmentCounters;

/// All counters since the start, summed over the workers. In JSON as they are named here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BalancerCounters {
    /// Packets that were decided.
    pub n_packets: u64,
    /// Packets forwarded to a target.
    pub n_forwarded: u64,
    /// Packets forwarded to another balancer of the same tier.
    pub n_to_balancer: u64,
    /// Packets that belong to no flow and were let through.
    pub n_passed: u64,
    /// Fragments that wait for the first one of their datagram.
    pub n_held: u64,
    /// Held fragments that were given back for another round.
    pub n_released: u64,
    /// Dropped packets by cause, each cause by its word.
    pub dropped: BTreeMap<&'static str, u64>,
    /// ICMP errors that were decided by the packet inside.
    pub n_icmp_errors: u64,
    /// Forwarded packets by target.
    pub targets: BTreeMap<String, u64>,
    /// Matched packets by flow rule.
    pub flows: BTreeMap<String, u64>,
    /// What defects did, each by its word: the truth that a tester is compared with.
    pub defects: BTreeMap<&'static str, u64>,
    /// The state of the fragment table.
    pub fragments: FragmentCounters,
    /// How many times the tables were replaced.
    pub n_changes: u64,
}
