//! A digest by which contents are compared: FNV-1a with 64 bits, by Fowler, Noll and Vo.

/// The digest of the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(u64);

/// The digest of no bytes, which the definition gives.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// The prime of the definition.
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl Digest {
    pub(crate) const EMPTY: Self = Self(BASIS);

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(PRIME));
    }

    pub(crate) const fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_definition_however_the_bytes_are_split() {
        let mut digest = Digest::EMPTY;
        for piece in ["f", "oob", "", "ar"] {
            digest.add(piece.as_bytes());
        }
        assert_eq!((Digest::EMPTY.value(), digest.value()), (0xcbf2_9ce4_8422_2325, 0x8594_4171_f739_67e8));
    }
}
