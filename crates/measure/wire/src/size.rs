//! The size of a frame, and how many frames a link carries.

use std::{fmt, str::FromStr};

use fathom_model::units::{BitsPerSec, Bytes, PerSec, UnitError};

/// The frame check sequence (FCS) at the end of each frame, which Linux neither shows nor accepts.
const CHECKSUM: u16 = 4;

/// The length of a frame on the wire including its FCS, as in RFC 2544: 64 to 16,000 bytes.
///
/// Jumbo frames have 9018 bytes; the longest frame with a name is that of RFC 6985.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameSize(u16);

/// Why a number of bytes is not the size of a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It is outside the bounds of Ethernet.
    #[error("a frame has 64 to 16000 bytes with its checksum, not {}", .0.0)]
    OutOfRange(Bytes),
    /// It is not a number of bytes.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl FrameSize {
    /// The smallest Ethernet frame.
    pub const MIN: Self = Self(64);
    /// The longest frame with a name: letter j of a genome (RFC 6985).
    pub const MAX: Self = Self(16_000);

    /// Creates a size from the length on the wire, FCS included.
    ///
    /// # Errors
    /// Below 64 and above 16,000 bytes.
    pub fn new(with_checksum: Bytes) -> Result<Self, SizeError> {
        let bytes = u16::try_from(with_checksum.0).ok().filter(|bytes| (Self::MIN.0..=Self::MAX.0).contains(bytes));
        bytes.map(Self).ok_or(SizeError::OutOfRange(with_checksum))
    }

    /// The length on the wire.
    #[must_use]
    pub fn with_checksum(self) -> Bytes {
        Bytes(self.0.into())
    }

    /// The length as Linux counts it.
    #[must_use]
    pub fn without_checksum(self) -> usize {
        usize::from(self.0 - CHECKSUM)
    }
}

impl fmt::Display for FrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

impl FromStr for FrameSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        Self::new(text.parse()?)
    }
}

/// The most frames of a size per second that a link of this bit rate carries.
///
/// A device without a wire, such as veth, has no line rate, whatever speed it claims.
///
/// # Panics
/// Never: no frame is empty.
#[must_use]
pub fn line_rate(link: BitsPerSec, size: FrameSize) -> PerSec {
    fathom_statistics::frame_rate(link, size.with_checksum()).expect("a frame has at least 64 bytes")
}

#[cfg(test)]
mod tests {
    use fathom_model::units::rounded;

    use super::*;

    /// RFC 2544 section 9.1 has the sizes; the rates of 1 and 10 Gbit/s are those of the tables in RFC 2544 testers' manuals.
    #[test]
    fn links_carry_as_many_frames_as_the_tables_of_testers_say() {
        let sizes = [64, 128, 256, 512, 1024, 1280, 1518, 9018];
        let table = [
            (1e9, [1_488_095, 844_595, 452_899, 234_962, 119_732, 96_154, 81_274, 13_830]),
            (2.5e9, [3_720_238, 2_111_486, 1_132_246, 587_406, 299_330, 240_385, 203_186, 34_576]),
            (10e9, [14_880_952, 8_445_946, 4_528_986, 2_349_624, 1_197_318, 961_538, 812_744, 138_305]),
            (25e9, [37_202_381, 21_114_865, 11_322_464, 5_874_060, 2_993_295, 2_403_846, 2_031_860, 345_762]),
            (100e9, [148_809_524, 84_459_459, 45_289_855, 23_496_241, 11_973_180, 9_615_385, 8_127_438, 1_383_049]),
        ];
        for (bits, rates) in table {
            for (size, rate) in sizes.into_iter().zip(rates) {
                let link = BitsPerSec::new(bits).unwrap();
                let actual = line_rate(link, FrameSize::new(Bytes(size)).unwrap());
                assert_eq!(rounded(actual.get()), rate, "{size} bytes at {link}");
            }
        }
    }

    #[test]
    fn sizes_are_counted_with_the_checksum_and_handed_to_linux_without() {
        assert_eq!("64".parse::<FrameSize>().unwrap().without_checksum(), 60);
        assert_eq!("1518".parse::<FrameSize>().unwrap().without_checksum(), 1514);
        for text in ["63", "16001", "0", "big"] {
            assert!(text.parse::<FrameSize>().is_err(), "{text}");
        }
    }
}
