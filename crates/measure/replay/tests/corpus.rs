//! Runs the seeds of the fuzz targets: unchanged, truncated, and with each byte changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/access_log.rs"]
mod access_log;
#[path = "../../../../fuzz/checks/http2.rs"]
mod http2;
#[path = "../../../../fuzz/checks/raw.rs"]
mod raw;
#[path = "../../../../fuzz/checks/tls.rs"]
mod tls;
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
fn every_datagram_of_a_client_in_the_seeds_of_raw_is_a_message() {
    Changes { bytes: b"\0\x01\x11\x7f\xff\x45", n_places_max: 256, longest: usize::MAX }.check("raw", 11, raw::raw);
}

#[test]
fn every_line_of_the_seeds_of_access_log_has_one_fate() {
    Changes { bytes: b"\0\n\"\\[ -9{\xff", n_places_max: 24, longest: usize::MAX }.check(
        "access_log",
        10,
        access_log::access_log,
    );
}

#[test]
fn every_seed_of_http2_becomes_requests_that_http_1_can_say() {
    Changes { bytes: b"\0\x01\x05\x09\x7f\x88\xff\r", n_places_max: 256, longest: usize::MAX }.check(
        "http2",
        5,
        http2::http2,
    );
}

#[test]
fn every_byte_of_the_seeds_of_tls_has_one_place() {
    Changes { bytes: b"\0\x01\x16\xff", n_places_max: 128, longest: usize::MAX }.check("tls", 4, tls::tls);
}
