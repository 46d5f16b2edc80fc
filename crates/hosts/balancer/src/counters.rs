//! What the balancer counts.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use serde::Serialize;

use crate::{defects::DEFECTS, fragments::FragmentCounters};

/// All counters since the start, summed over the workers. In JSON as they are named here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BalancerCounters {
    /// Packets that were decided.
    pub n_packets: u64,
    /// Packets forwarded to a target.
    pub n_forwarded: u64,
    /// Packets sent on to another balancer of the tier.
    pub n_to_balancer: u64,
    /// Packets that belong to no flow and were let through.
    pub n_passed: u64,
    /// Fragments that had to wait for the first one of their datagram.
    pub n_held: u64,
    /// Fragments that have waited and were given back, to be decided again.
    pub n_released: u64,
    /// Dropped packets by cause.
    pub dropped: BTreeMap<&'static str, u64>,
    /// ICMP errors that were decided by the packet inside.
    pub n_icmp_errors: u64,
    /// Forwarded packets by target, each as GROUP/NAME.
    pub targets: BTreeMap<String, u64>,
    /// Packets by flow rule.
    pub flows: BTreeMap<String, u64>,
    /// Packets sent on to each other balancer of the tier.
    pub balancers: BTreeMap<String, u64>,
    /// How often each defect that is drawn, or that drops, was at work: the truth that a tester is compared with.
    pub defects: BTreeMap<&'static str, u64>,
    /// The fragment table.
    pub fragments: FragmentCounters,
    /// How many times the tables were replaced.
    pub n_changes: u64,
}

/// As many workers as can count without sharing a line of the cache; those beyond share.
const STRIPES: usize = 8;

/// A number on a cache line of its own (64 bytes on x86-64 and on most ARM cores).
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// A counter that several workers add to.
#[derive(Debug, Default)]
pub(crate) struct StripedCounter([Stripe; STRIPES]);

impl StripedCounter {
    pub(crate) fn add(&self, worker: usize, n: u64) {
        self.0[worker % STRIPES].0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

/// The counters of a balancer that belong to no target and no rule.
#[derive(Debug, Default)]
pub(crate) struct FixedCounters {
    pub(crate) packets: StripedCounter,
    pub(crate) forwarded: StripedCounter,
    pub(crate) passed: StripedCounter,
    pub(crate) held: StripedCounter,
    pub(crate) released: StripedCounter,
    pub(crate) icmp_errors: StripedCounter,
    /// By cause, in the order of its words.
    pub(crate) dropped: [StripedCounter; N_CAUSES],
    /// By defect, in the order of their table.
    pub(crate) defects: [StripedCounter; DEFECTS.len()],
}

/// The number of causes for which packets are dropped.
pub(crate) const N_CAUSES: usize = 7;
