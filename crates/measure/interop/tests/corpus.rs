//! Runs the seeds of the fuzz targets: unchanged, truncated, and with each byte changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/iperf.rs"]
mod iperf;
#[path = "../../../../fuzz/checks/iperf3.rs"]
mod iperf3;
#[path = "../../../../fuzz/checks/netperf.rs"]
mod netperf;

#[test]
fn every_seed_of_control_messages_is_refused_or_taken_within_its_ranges() {
    let changes = Changes { bytes: b"\0\xff\"{}[],:-9et", n_places_max: 1000, longest: usize::MAX };
    changes.check("iperf3", 15, iperf3::message);
}

#[test]
fn every_seed_of_messages_of_netperf_is_read_and_the_same_when_it_is_sent_on() {
    let changes = Changes { bytes: b"\0\xff\x7f\x80", n_places_max: 200, longest: usize::MAX };
    changes.check("netperf", 14, netperf::message);
}

#[test]
fn every_seed_of_iperf_2_is_refused_or_taken_within_its_ranges() {
    let changes = Changes { bytes: b"\0\x01\x7f\x80\xff@\xc0", n_places_max: 200, longest: usize::MAX };
    changes.check("iperf", 15, iperf::message);
}
