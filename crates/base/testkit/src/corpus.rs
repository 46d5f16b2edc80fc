//! The seeds of the fuzz targets, as they are, cut off, and with each of their bytes changed.

use std::{fs, path::Path};

/// The seeds of a target, `fuzz/corpus/TARGET/*`.
///
/// # Panics
/// With fewer seeds than `n_min`, and where they cannot be read.
pub fn seeds(target: &str, n_min: usize) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let seeds: Vec<_> = fs::read_dir(folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() >= n_min, "only {} seeds of {target}", seeds.len());
    seeds
}

/// How seeds are changed.
#[derive(Debug, Clone, Copy)]
pub struct Changes {
    /// What a byte is changed to: what means something to the reader.
    pub bytes: &'static [u8],
    /// At how many places of a seed, evenly spaced.
    pub n_places_max: usize,
    /// Longer seeds are only checked as they are: their bytes are the business of the fuzzer.
    pub longest: usize,
}

impl Changes {
    /// Checks each seed of a target as it is, cut off at each place, and with the byte there changed to each of `bytes`.
    ///
    /// # Panics
    /// With fewer seeds than `n_min`; `check` panics on what it finds wrong.
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
