//! Runs the seeds of the fuzz targets: unchanged, truncated, and with each byte changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/access_log.rs"]
mod access_log;
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

#[test]
fn every_line_of_the_seeds_of_access_log_has_one_fate() {
    Changes { bytes: b"\0\n\"\\[ -9{\xff", n_places_max: 24, longest: usize::MAX }.check(
        "access_log",
        10,
        access_log::access_log,
    );
}
