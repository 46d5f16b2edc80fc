//! The seeds of the fuzz targets: unchanged, truncated, and with single bytes changed.

use std::{fs, path::Path};

/// Returns the seeds of a target, `fuzz/corpus/TARGET/*`.
///
/// # Panics
/// If there are fewer seeds than `n_min`, or if they cannot be read.
pub fn seeds(target: &str, n_min: usize) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let seeds: Vec<_> = fs::read_dir(folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() >= n_min, "only {} seeds of {target}", seeds.len());
    seeds
}

/// The changes to make to seeds.
#[derive(Debug, Clone, Copy)]
pub struct Changes {
    /// The replacement bytes: bytes with a meaning to the parser.
    pub bytes: &'static [u8],
    /// The maximum number of positions in a seed, evenly spaced.
    pub n_places_max: usize,
    /// Seeds longer than this are only checked unchanged; changes to their bytes are left to the fuzzer.
    pub longest: usize,
}

impl Changes {
    /// Checks each seed of a target unchanged, truncated at each position, and with the byte there changed to each of `bytes`.
    ///
    /// # Panics
    /// If there are fewer seeds than `n_min`; `check` panics on an error.
    pub fn check(self, target: &str, n_min: usize, check: impl Fn(&[u8])) {
        for seed in seeds(target, n_min) {
            check(&seed);
            let end = if seed.len() > self.longest { 0 } else { seed.len() };
            for at in (0..end).step_by(seed.len().div_ceil(self.n_places_max).max(1)) {
                check(&seed[..at]);
                for byte in self.bytes {
                    let mut changed = seed.clone();
                    changed[at] = *byte;
                    check(&changed);
                }
            }
        }
    }
}
