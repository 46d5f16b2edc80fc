//! The seeds of the fuzz targets, and what fuzzing found worth keeping.

use std::{fs, path::Path};

use fathom_http::responder::fuzz_request;

#[test]
fn every_seed_of_the_request_reader_is_read_the_same_wherever_it_is_cut() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/request");
    let mut n_seeds = 0;
    for seed in fs::read_dir(folder).unwrap() {
        fuzz_request(&fs::read(seed.unwrap().path()).unwrap());
        n_seeds += 1;
    }
    assert!(n_seeds >= 28, "only {n_seeds} seeds");
}
