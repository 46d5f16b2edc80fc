//! The seeds of the fuzz target of replies, and what fuzzing found worth keeping.

use std::{fs, path::Path};

#[path = "../../../fuzz/checks/replies.rs"]
mod check;

#[test]
fn every_seed_of_replies_is_read_or_left_alone() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/replies");
    let mut n_seeds = 0;
    for seed in fs::read_dir(folder).unwrap() {
        let bytes = fs::read(seed.unwrap().path()).unwrap();
        // Damaged in every byte, and cut off everywhere, they are what fuzzing begins with.
        (0..=bytes.len()).for_each(|end| check::replies(&bytes[..end]));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            check::replies(&damaged);
        }
        n_seeds += 1;
    }
    assert!(n_seeds >= 12, "only {n_seeds} seeds");
}
