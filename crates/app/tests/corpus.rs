//! The seeds of the fuzz targets, as they are, cut off, and with each of their bytes changed.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{fs, path::Path};

use fathom_app::import::Format;

#[path = "../../../fuzz/checks/import.rs"]
mod import;
#[path = "../../../fuzz/checks/rows.rs"]
mod rows;
#[path = "../../../fuzz/checks/scenario.rs"]
mod scenario;

/// What a byte is changed to: what means something somewhere.
const BYTES: &[u8] = b"\n #$\"/\\}:0";
/// Longer seeds are there for what they say; their bytes are the business of the fuzzer.
const CHANGED_MAX: usize = 200;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
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

#[test]
fn every_seed_of_data_sets_is_refused_or_has_all_its_cells() {
    let seeds = seeds("rows");
    assert!(seeds.len() >= 15, "only {} seeds", seeds.len());
    for seed in &seeds {
        for at in 0..=seed.len() {
            rows::rows(&seed[..at]);
        }
        for at in 0..seed.len() {
            for byte in b"\n,\"{}[]:\t\xff0" {
                let mut changed = seed.clone();
                changed[at] = *byte;
                rows::rows(&changed);
            }
        }
    }
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
