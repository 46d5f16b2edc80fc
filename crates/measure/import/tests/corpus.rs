//! The seeds of the fuzz targets: unchanged, truncated, and with each of their bytes changed.

use fathom_import::Format;
use fathom_testkit::corpus::Changes;

#[path = "../../../../fuzz/checks/import.rs"]
mod import;

/// Files of other tools are long; the fuzzer covers the other places.
const CHANGES: Changes = Changes { bytes: b"\n #$\"/\\}:0", n_places_max: 20, longest: usize::MAX };

fn check(format: Format) {
    CHANGES.check(format.name(), 20, |seed| import::imported(seed, format));
}

#[test]
fn every_recording_is_refused_or_becomes_a_scenario() {
    check(Format::Har);
}

#[test]
fn every_plan_is_refused_or_becomes_a_scenario() {
    check(Format::Jmx);
}

#[test]
fn every_command_line_is_refused_or_becomes_a_scenario() {
    check(Format::Curl);
}
