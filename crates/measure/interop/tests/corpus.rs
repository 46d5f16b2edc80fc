//! The seeds of the fuzz target for iperf3's control messages, as they are, cut off, and with each of their bytes changed.

use std::{fs, path::Path};

#[path = "../../../../fuzz/checks/iperf3.rs"]
mod iperf3;

/// What a byte is changed to: what means something somewhere.
const BYTES: &[u8] = b"\0\xff\"{}[],:-9et";

#[test]
fn every_seed_of_control_messages_is_refused_or_taken_within_its_ranges() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/iperf3");
    let seeds: Vec<Vec<u8>> =
        fs::read_dir(folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() >= 15, "only {} seeds", seeds.len());
    for seed in &seeds {
        iperf3::message(seed);
        (0..seed.len()).for_each(|at| iperf3::message(&seed[..at]));
        for at in 0..seed.len() {
            for byte in BYTES {
                let mut changed = seed.clone();
                changed[at] = *byte;
                iperf3::message(&changed);
            }
        }
    }
}
