//! What must hold for every sequence of bytes that the balancer's classifier is given.
//!
//! Shared by the fuzz target and by the test of `balancer` that runs the corpus.

use std::sync::Arc;

use fathom_balancer::{
    Balancer, BalancerSettings, ClassifyError, DEFAULT_GROUP, Decision, Ports, Target, classify as classified,
    fragments::FragmentSettings, maglev::TableSize,
};
use fathom_model::units::Nanos;

/// Classifies the bytes, whole and cut off at each place, and has a balancer decide them.
pub(crate) fn classify(bytes: &[u8]) {
    let whole = classified(bytes);
    for end in (0..bytes.len()).rev().take(256) {
        match (classified(&bytes[..end]), &whole) {
            // What is read of a cut packet is what is read of the whole one.
            (Ok(cut), Ok(whole)) if cut.is_cut => assert_eq!((cut.key, cut.fragment), (whole.key, whole.fragment)),
            (Err(ClassifyError::Corrupt(_)), Ok(_)) => panic!("{bytes:x?} is corrupt only if it is cut at {end}"),
            _ => {}
        }
    }
    if let Ok(packet) = whole {
        if let Some(fragment) = packet.fragment {
            assert!(u32::from(fragment.offset) + u32::from(fragment.length) <= 65_535);
            assert!(fragment.offset == 0 || packet.key.ports == Ports::Absent && packet.transport.is_empty());
            assert!(fragment.offset > 0 || !fragment.is_last, "it is the whole datagram");
        }
        assert!(packet.transport.len() <= bytes.len());
        assert!(!packet.is_icmp_error || packet.transport.is_empty());
    }
    decide(bytes, whole.is_ok());
}

/// A balancer reads exactly what the classifier reads, and says the same of the same packet.
fn decide(bytes: &[u8], is_readable: bool) {
    // Small tables, because each sequence of bytes gets new ones.
    let fragments = FragmentSettings { n_slots: 3, n_buckets: 3, n_stored: 2, n_shards: 1, ..FragmentSettings::USUAL };
    let table_size = TableSize::new(7).expect("7 is a prime");
    let settings = BalancerSettings { table_size, fragments, ..BalancerSettings::default() };
    let balancer = Arc::new(Balancer::new(settings).expect("the sizes are possible"));
    balancer
        .set_target(DEFAULT_GROUP, Target { name: "t1".to_owned(), mark: 1, weight: 1 })
        .expect("one target has room");
    let mut worker = balancer.worker();
    let decision = worker.decide(bytes, Nanos::ZERO);
    assert_eq!(balancer.counters().dropped["unreadable"], u64::from(!is_readable));
    if decision == (Decision::Forward { mark: 1 }) {
        assert_eq!(worker.decide(bytes, Nanos::ZERO), decision);
    }
}
