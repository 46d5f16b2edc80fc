//! Runs the seeds of the fuzz target: unchanged, truncated, and with each byte changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/traffic.rs"]
mod traffic;

#[test]
fn every_seed_of_traffic_is_counted_whole() {
    Changes { bytes: b"\0\x01\x7f\xff\x45\r\n 0GH", n_places_max: 512, longest: usize::MAX }.check(
        "traffic",
        10,
        traffic::traffic,
    );
}
