//! Frames to send from a capture: pcap and pcapng, as tcpdump and Wireshark write them.

use std::io::Read;

use fathom_capture::{CaptureFileError, CapturedFrame, ETHERNET, LinkType, read_frames};
use fathom_wire::Ethernet;

/// As many frames as the order of a frame set can index.
const FRAMES_MAX: u64 = 65_536;
/// The frames are kept in memory.
const BYTES_MAX: usize = 64 << 20;
/// The smallest Ethernet frame without its FCS. Captures contain sent frames before they were padded.
const SMALLEST: usize = 60;

/// Why a file holds no frames that can be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be read as a capture.
    #[error(transparent)]
    File(#[from] CaptureFileError),
    /// The link type is not Ethernet.
    #[error("it was taken on {0}, not on Ethernet")]
    LinkType(LinkType),
    /// The capture has only the beginning of a frame.
    #[error("of frame {number} only {kept} of {length} bytes were captured")]
    CutOff {
        /// The number of the frame, from 1.
        number: u64,
        /// The number of captured bytes.
        kept: usize,
        /// The original length.
        length: usize,
    },
    /// A frame is shorter than an Ethernet header.
    #[error("frame {number} has {length} bytes, which is not an Ethernet frame")]
    TooShort {
        /// The number of the frame, from 1.
        number: u64,
        length: usize,
    },
    /// A frame is too long for the device.
    #[error("frame {number} has {length} bytes, and the device takes {most}")]
    TooLong {
        /// The number of the frame, from 1.
        number: u64,
        /// The length without the FCS.
        length: usize,
        /// The longest frame that the device accepts.
        most: usize,
    },
    /// The capture exceeds the limits on memory.
    #[error("it has more than {FRAMES_MAX} frames, or more than {} MiB of them", BYTES_MAX >> 20)]
    TooMuch,
}

impl CaptureError {
    /// Returns what to do about it, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::File(error) => error.hint()?,
            Self::LinkType(_) => "capture on one Ethernet device: tcpdump -i eth0 -w FILE",
            Self::CutOff { .. } => "capture whole frames: tcpdump -s 0 -w FILE",
            Self::TooLong { .. } => {
                "raise the MTU, or capture after segmentation: ethtool -K eth0 tso off gso off gro off"
            }
            Self::TooMuch => "cut it: editcap -r IN OUT 1-10000",
            Self::TooShort { .. } => return None,
        };
        Some(text.to_owned())
    }
}

/// Returns the frames of a capture in order, each padded to the minimum length of Ethernet.
///
/// # Errors
/// Names the frame that cannot be sent, or the fault of the file.
pub fn read_capture(file: impl Read + Send, longest: usize) -> Result<Vec<Vec<u8>>, CaptureError> {
    let mut taken = SendableFrames { frames: Vec::new(), n_bytes: 0, longest };
    read_frames(file, |frame| taken.take(frame))?;
    if taken.frames.is_empty() { Err(CaptureFileError::Empty.into()) } else { Ok(taken.frames) }
}

/// The frames of a partly read capture.
struct SendableFrames {
    frames: Vec<Vec<u8>>,
    n_bytes: usize,
    longest: usize,
}

impl SendableFrames {
    fn take(&mut self, frame: CapturedFrame<'_>) -> Result<(), CaptureError> {
        let CapturedFrame { number, bytes, original_length: length, .. } = frame;
        if frame.link != ETHERNET {
            return Err(CaptureError::LinkType(frame.link));
        }
        let kept = bytes.len();
        if kept < length {
            return Err(CaptureError::CutOff { number, kept, length });
        }
        if kept < Ethernet::LENGTH {
            return Err(CaptureError::TooShort { number, length });
        }
        let most = self.longest + vlan_tag_length(bytes);
        if kept > most {
            return Err(CaptureError::TooLong { number, length, most });
        }
        self.n_bytes += kept.max(SMALLEST);
        if number > FRAMES_MAX || self.n_bytes > BYTES_MAX {
            return Err(CaptureError::TooMuch);
        }
        let mut frame = bytes.to_vec();
        frame.resize(kept.max(SMALLEST), 0);
        self.frames.push(frame);
        Ok(())
    }
}

/// How far a frame may exceed the MTU for its VLAN tag: Linux allows one tag.
pub(super) fn vlan_tag_length(frame: &[u8]) -> usize {
    if frame.get(12..14) == Some(&[0x81, 0x00]) { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use fathom_testkit::traffic::pcapng_block as block;

    use super::*;

    /// A classic pcap capture in host byte order with frames of these lengths.
    fn pcap(link: u32, frames: &[(usize, u32)]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link] {
            file.extend(u32::to_le_bytes(word));
        }
        for (kept, length) in frames {
            for word in [0, 0, u32::try_from(*kept).unwrap(), *length] {
                file.extend(u32::to_le_bytes(word));
            }
            file.extend((0..*kept).map(|byte| u8::try_from(byte % 251).unwrap()));
        }
        file
    }

    #[test]
    fn checksums_of_the_wire_behind_frames_are_left_away() {
        let frames = read_capture(&pcap(0x2400_0001, &[(68, 68), (104, 104)])[..], 1514).unwrap();
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [64, 100]);
        let error = read_capture(&pcap(0x2400_0001, &[(68, 104)])[..], 1514).unwrap_err();
        assert_eq!(error, CaptureError::CutOff { number: 1, kept: 64, length: 100 });
    }

    /// A pcapng capture in big-endian order, with a block of an unknown type in it.
    fn pcapng(link: u16) -> Vec<u8> {
        let section = [&[0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0][..], &[0xff; 8]].concat();
        let interface = [&link.to_be_bytes()[..], &[0, 0, 0, 0, 0, 0]].concat();
        let frame = [&[0; 12][..], &[0, 0, 0, 62, 0, 0, 0, 62], &[7; 62]].concat();
        [block(0x0a0d_0d0a, &section), block(1, &interface), block(0x0bad, &[1, 2, 3]), block(6, &frame)].concat()
    }

    #[test]
    fn a_block_that_is_shorter_than_any_can_be_is_damage_in_either_order_of_bytes() {
        for length in [8_u32.to_be_bytes(), 8_u32.to_le_bytes()] {
            let file = [&pcapng(1)[..], &0x8000_0001_u32.to_be_bytes(), &length].concat();
            assert_eq!(read_capture(&file[..], 1514), Err(CaptureFileError::Damaged(1).into()), "{length:?}");
        }
    }

    #[test]
    fn frames_of_both_formats_are_read_and_short_ones_filled_up() {
        let frames = read_capture(&pcap(1, &[(42, 42), (100, 100)])[..], 1514).unwrap();
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [60, 100]);
        assert_eq!((frames[0][41], frames[0][42]), (41, 0));
        assert_eq!(read_capture(&pcapng(1)[..], 1514).unwrap(), [vec![7; 62]]);
    }

    #[test]
    fn other_links_than_ethernet_are_named() {
        let error = read_capture(&pcap(113, &[(42, 42)])[..], 1514).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it was taken on Linux cooked (all devices at once), link type 113, not on Ethernet"
        );
        assert_eq!(read_capture(&pcapng(276)[..], 1514), Err(CaptureError::LinkType(LinkType(276))));
    }

    #[test]
    fn frames_that_cannot_be_sent_are_named_by_their_number() {
        let read = |frames: &[(usize, u32)]| read_capture(&pcap(1, frames)[..], 1514).unwrap_err();
        assert_eq!(read(&[(60, 60), (1515, 1515)]), CaptureError::TooLong { number: 2, length: 1515, most: 1514 });
        assert_eq!(read(&[(60, 60), (96, 1514)]), CaptureError::CutOff { number: 2, kept: 96, length: 1514 });
        assert_eq!(read(&[(13, 13)]), CaptureError::TooShort { number: 1, length: 13 });
        assert_eq!(read(&vec![(14, 14); 65_537]), CaptureError::TooMuch);
    }

    #[test]
    fn a_file_that_is_none_or_not_whole_is_refused() {
        assert_eq!(read_capture(&b""[..], 1514), Err(CaptureFileError::Empty.into()));
        assert_eq!(
            read_capture(&b"GIF89a, certainly no capture at all"[..], 1514),
            Err(CaptureFileError::Unknown.into())
        );
        assert_eq!(read_capture(&pcap(1, &[])[..], 1514), Err(CaptureFileError::Empty.into()));
        let whole = pcap(1, &[(60, 60), (60, 60)]);
        for end in [whole.len() - 1, whole.len() - 60, whole.len() - 70] {
            assert_eq!(read_capture(&whole[..end], 1514), Err(CaptureFileError::Damaged(1).into()), "{end}");
        }
    }
}
