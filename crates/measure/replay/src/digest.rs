//! A digest by which contents are compared: XXH64, by Yann Collet.
//!
//! Every byte of every answer goes through it, and it takes 32 of them at once.

use std::hash::Hasher as _;

use twox_hash::XxHash64;

/// The digest of the bytes so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Digest(XxHash64);

impl Digest {
    pub(crate) const EMPTY: Self = Self(XxHash64::with_seed(0));

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_definition_however_the_bytes_are_split() {
        let text = "Nobody inspects the spammish repetition";
        for n in [1, 5, 31, 32, 33, text.len()] {
            let mut digest = Digest::EMPTY;
            for piece in text.as_bytes().chunks(n) {
                digest.add(piece);
                digest.add(b"");
            }
            assert_eq!((Digest::EMPTY.value(), digest.value()), (0xef46_db37_51d8_e999, 0xfbce_a83c_8a37_8bf1), "{n}");
        }
    }
}
