//! Runs the seeds of the fuzz target: unchanged, truncated, and with many of their bytes changed.

use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/recorded.rs"]
mod recorded;

#[test]
fn the_log_of_every_recording_can_be_imported() {
    Changes { bytes: b"\0\n :=/\"<\xff", n_places_max: 60, longest: usize::MAX }.check(
        "recorded",
        9,
        recorded::recorded,
    );
}
