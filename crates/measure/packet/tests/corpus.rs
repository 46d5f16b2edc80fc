//! The seeds of the fuzz targets, as they are, cut off, and with each of their bytes changed.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{fs, path::Path};

#[path = "../../../../fuzz/checks/capture.rs"]
mod capture;
#[path = "../../../../fuzz/checks/frame_line.rs"]
mod frame_line;
#[path = "../../../../fuzz/checks/pktgen.rs"]
mod pktgen;
#[path = "../../../../fuzz/checks/replies.rs"]
mod replies;

/// What a byte is changed to: what means something somewhere.
const BYTES: &[u8] = b" /\">?-+09a\\\xff\0\nf:,.\x45";
/// Longer seeds are there for what they say; their bytes are the business of the fuzzer.
const CHANGED_MAX: usize = 400;

fn check(target: &str, holds: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let seeds: Vec<Vec<u8>> =
        fs::read_dir(folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() >= 12, "only {} seeds of {target}", seeds.len());
    for seed in &seeds {
        holds(seed);
        for at in 0..seed.len().min(CHANGED_MAX) {
            holds(&seed[..at]);
            for byte in BYTES {
                let mut changed = seed.clone();
                changed[at] = *byte;
                holds(&changed);
            }
        }
    }
}

#[test]
fn every_seed_of_lines_is_refused_or_makes_frames_that_are_the_same_each_time() {
    check("frame_line", frame_line::frame_line);
}

#[test]
fn every_seed_of_captures_is_refused_or_has_frames_that_can_be_sent() {
    check("capture", capture::capture);
}

#[test]
fn every_seed_of_pktgen_is_printed_as_it_was_understood() {
    check("pktgen", pktgen::pktgen);
}

#[test]
fn every_seed_of_replies_is_read_or_left_alone() {
    check("replies", replies::replies);
}
