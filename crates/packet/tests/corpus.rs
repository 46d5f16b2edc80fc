//! The seeds of the fuzz targets, as they are and with each of their bytes changed.

use std::{fs, path::Path};

#[path = "../../../fuzz/checks/pktgen.rs"]
mod pktgen;

/// What a byte is changed to: what means something somewhere.
const BYTES: &[u8] = b"\0\n 0f:,.\x45\xff";

#[test]
fn every_seed_of_pktgen_is_printed_as_it_was_understood() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pktgen");
    let seeds: Vec<Vec<u8>> =
        fs::read_dir(folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() >= 20, "only {} seeds", seeds.len());
    for seed in seeds {
        pktgen::pktgen(&seed);
        for at in 0..seed.len() {
            for byte in BYTES {
                let mut changed = seed.clone();
                changed[at] = *byte;
                pktgen::pktgen(&changed);
            }
        }
    }
}
