//! The seeds of the fuzz target of the classifier.

#[path = "../../../../fuzz/checks/classify.rs"]
mod check;

use fathom_balancer::classify;
use fathom_testkit::corpus::Changes;

/// Versions, header lengths, protocols, extension headers, and bytes of fragment fields.
const BYTES: &[u8] = &[0, 1, 6, 17, 43, 44, 51, 58, 60, 0x45, 0x60, 0x20, 0x3f, 0xff];

#[test]
fn every_seed_and_every_change_of_it_is_read_or_refused() {
    Changes { bytes: BYTES, n_places_max: 64, longest: 256 }.check("classify", 12, check::classify);
}

#[test]
fn the_seeds_hold_fragments_and_icmp_errors_of_both_versions() {
    let seeds = fathom_testkit::corpus::seeds("classify", 12);
    let packets: Vec<_> = seeds.iter().filter_map(|seed| classify(seed).ok()).collect();
    for is_ipv4 in [true, false] {
        let of_version = || packets.iter().filter(move |packet| packet.key.source.is_ipv4() == is_ipv4);
        assert!(of_version().any(|packet| packet.fragment.is_some_and(|fragment| fragment.offset == 0)));
        assert!(of_version().any(|packet| packet.fragment.is_some_and(|fragment| fragment.offset > 0)));
        assert!(of_version().any(|packet| packet.is_icmp_error));
    }
}
