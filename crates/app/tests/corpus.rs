//! The seeds of the fuzz targets, as they are, cut off, and with each of their bytes changed.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{fs, path::Path};

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
