//! The checksum of IP, UDP and TCP (RFC 1071).

/// A one's complement sum of 16-bit words, not yet inverted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChecksumSum(u16);

impl ChecksumSum {
    /// Adds bytes. An odd last byte counts as the upper half of a word.
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        let words = bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        words.fold(self, Self::add_word)
    }

    /// Adds one word.
    #[must_use]
    pub fn add_word(self, word: u16) -> Self {
        let (sum, carry) = self.0.overflowing_add(word);
        // With a carry the sum is at most 0xfffe, so the addition does not overflow again.
        Self(sum + u16::from(carry))
    }

    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }

    /// The checksum for a header: the inverted sum.
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_has_its_sum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(ChecksumSum::default().add_bytes(&bytes).checksum(), !0xddf2);
    }

    #[test]
    fn an_odd_byte_is_padded_with_zero_behind_it() {
        assert_eq!(ChecksumSum::default().add_bytes(&[1, 2, 3]), ChecksumSum::default().add_bytes(&[1, 2, 3, 0]));
    }
}
