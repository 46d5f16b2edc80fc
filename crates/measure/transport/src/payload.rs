//! The payload: incompressible bytes, the same for the same seed.

/// The alignment of buffers, so that a copy never begins in the middle of a page.
const PAGE: usize = 4096;

/// A page-aligned buffer whose pages are all resident.
#[derive(Debug)]
pub struct Payload {
    storage: Vec<u8>,
    start: usize,
    length: usize,
}

impl Payload {
    /// Creates `length` pseudo-random bytes.
    #[must_use]
    pub fn random(length: usize, seed: u64) -> Self {
        let storage = vec![0; length + PAGE];
        let start = storage.as_ptr().align_offset(PAGE);
        let mut payload = Self { storage, start, length };
        fill(payload.bytes_mut(), seed);
        payload
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.storage[self.start..][..self.length]
    }

    /// The bytes, to receive into.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..][..self.length]
    }
}

/// Fills with the output of splitmix64 (Steele, Lea and Flood, 2014), eight bytes at a time.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_begins_on_a_page_and_depends_on_the_seed_alone() {
        for length in [1, 1400, 131_072] {
            let payload = Payload::random(length, 7);
            assert_eq!(payload.bytes().as_ptr().align_offset(PAGE), 0);
            assert_eq!(payload.bytes().len(), length);
            assert_eq!(payload.bytes(), Payload::random(length, 7).bytes());
        }
        assert_ne!(Payload::random(64, 7).bytes(), Payload::random(64, 8).bytes());
    }

    #[test]
    fn every_byte_value_is_about_as_frequent() {
        let payload = Payload::random(256 * 1000, 1);
        let mut counts = [0_u32; 256];
        payload.bytes().iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
