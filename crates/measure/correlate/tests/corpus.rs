//! The seeds of the fuzz target: unchanged, truncated, and with many of their bytes changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/correlate.rs"]
mod correlate;

const CHANGES: Changes = Changes { bytes: b"\"\\<>= &0", n_places_max: 24, longest: usize::MAX };

#[test]
fn every_pair_of_recordings_is_refused_or_becomes_a_scenario() {
    CHANGES.check("correlate", 10, correlate::correlated);
}
