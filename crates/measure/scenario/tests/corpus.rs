//! The seeds of the fuzz targets, as they are, cut off, and with each of their bytes changed.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{fs, path::Path};

use fathom_import::Format;

#[path = "../../../../fuzz/checks/cookies.rs"]
mod cookies;
#[path = "../../../../fuzz/checks/import.rs"]
mod import;
#[path = "../../../../fuzz/checks/json.rs"]
mod json;
#[path = "../../../../fuzz/checks/message.rs"]
mod message;
#[path = "../../../../fuzz/checks/rows.rs"]
mod rows;
#[path = "../../../../fuzz/checks/scenario.rs"]
mod scenario;
#[path = "../../../../fuzz/checks/unpack.rs"]
mod unpack;

/// What a byte is changed to: what means something somewhere.
const BYTES: &[u8] = b"\n #$\"/\\}:0";
/// Longer seeds are there for what they say; their bytes are the business of the fuzzer.
const CHANGED_MAX: usize = 200;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    fs::read_dir(folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect()
}

#[test]
fn every_seed_of_scenarios_is_refused_or_says_the_same_when_it_is_formatted() {
    let seeds = seeds("scenario");
    assert!(seeds.len() >= 30, "only {} seeds", seeds.len());
    for seed in &seeds {
        scenario::scenario(seed);
        for at in (0..seed.len()).step_by(if seed.len() > CHANGED_MAX { 17 } else { 1 }) {
            scenario::scenario(&seed[..at]);
        }
        for at in 0..if seed.len() > CHANGED_MAX { 0 } else { seed.len() } {
            for byte in BYTES {
                let mut changed = seed.clone();
                changed[at] = *byte;
                scenario::scenario(&changed);
            }
        }
    }
}

/// Files of other tools are long; the fuzzer looks at the other places.
const PLACES_MAX: usize = 40;

/// Cut off at many places, and with the byte there changed.
fn check_import(format: Format) {
    let seeds = seeds(format.name());
    assert!(seeds.len() >= 20, "only {} seeds of {}", seeds.len(), format.name());
    for seed in &seeds {
        import::imported(seed, format);
        for at in (0..seed.len()).step_by(1 + seed.len() / PLACES_MAX) {
            import::imported(&seed[..at], format);
            for byte in BYTES {
                let mut changed = seed.clone();
                changed[at] = *byte;
                import::imported(&changed, format);
            }
        }
    }
}

/// As it is, cut off at each byte, and with each byte changed to those that mean something.
fn check_all(target: &str, bytes: &[u8], check: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(seeds.len() >= 15, "only {} seeds of {target}", seeds.len());
    for seed in &seeds {
        check(seed);
        let step = if seed.len() > CHANGED_MAX { 17 } else { 1 };
        for at in (0..seed.len()).step_by(step) {
            check(&seed[..at]);
            let mut changed = seed.clone();
            for byte in bytes {
                changed[at] = *byte;
                check(&changed);
            }
        }
    }
}

#[test]
fn every_seed_of_data_sets_is_refused_or_has_all_its_cells() {
    check_all("rows", b"\n,\"{}[]:\t\xff0", rows::rows);
}

#[test]
fn every_answer_is_looked_into_where_the_engine_says_that_it_is() {
    check_all("message", b"\r\n: ;,0fg\0", message::message);
}

#[test]
fn every_body_gives_the_same_values_walked_and_as_a_document() {
    check_all("json", b"{}[]\",:\\0e. \xff", json::json);
}

#[test]
fn every_cookie_goes_only_where_it_may_and_breaks_no_head() {
    check_all("cookies", b"\n\r;=./ -9\0\xff", cookies::cookies);
}

#[test]
fn every_packed_body_is_unpacked_within_its_bounds_or_refused() {
    check_all("unpack", b"\0\x01\x03\x7f\x80\xff", unpack::unpack);
}

#[test]
fn every_recording_is_refused_or_becomes_a_scenario() {
    check_import(Format::Har);
}

#[test]
fn every_plan_is_refused_or_becomes_a_scenario() {
    check_import(Format::Jmx);
}

#[test]
fn every_command_line_is_refused_or_becomes_a_scenario() {
    check_import(Format::Curl);
}
