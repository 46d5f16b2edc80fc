//! Reads frames from a capture: pcap and pcapng, as tcpdump and Wireshark write them.

use std::{fmt, io::Read};

use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader, traits::PcapNGPacketBlock};

use fathom_wire::Ethernet;

/// As many frames as the order of a frame set can index.
const FRAMES_MAX: usize = 65_536;
/// The frames are kept in memory.
const BYTES_MAX: usize = 64 << 20;
/// The start of a pcapng file: the type of a section header, the same in both byte orders.
const SECTION: &[u8] = &[0x0a, 0x0d, 0x0d, 0x0a];
/// The type of a block, and its length twice.
const BLOCK_MIN: u32 = 12;
/// Longer than any block with a frame that can be sent, and than the names and comments that programs write.
const BLOCK_MAX: usize = 1 << 20;
/// The smallest Ethernet frame without its FCS. Captures contain sent frames before they were padded.
const SMALLEST: usize = 60;
/// The link type of Ethernet (the tcpdump group's list).
const ETHERNET: i32 = 1;

/// Why a file holds no frames that can be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The file does not start like a capture.
    #[error("it is neither pcap nor pcapng")]
    Unknown,
    /// The link type is not Ethernet.
    #[error("it was taken on {0}, not on Ethernet")]
    LinkType(LinkType),
    /// The file ends in the middle, or the data after this many frames is not part of a capture.
    #[error("it is damaged or cut off after frame {0}")]
    Damaged(usize),
    /// A block is longer than any frame.
    #[error("after frame {0} is a block of more than {BLOCK_MAX} bytes")]
    Block(usize),
    /// The capture has only the beginning of a frame.
    #[error("of frame {number} only {kept} of {length} bytes were captured")]
    CutOff {
        /// The number of the frame, from 1.
        number: usize,
        /// The number of captured bytes.
        kept: usize,
        /// The original length.
        length: usize,
    },
    /// A frame is shorter than an Ethernet header.
    #[error("frame {number} has {length} bytes, which is not an Ethernet frame")]
    TooShort {
        /// The number of the frame, from 1.
        number: usize,
        length: usize,
    },
    /// A frame is too long for the device.
    #[error("frame {number} has {length} bytes, and the device takes {most}")]
    TooLong {
        /// The number of the frame, from 1.
        number: usize,
        /// The length without the FCS.
        length: usize,
        /// The longest frame that the device accepts.
        most: usize,
    },
    /// The capture exceeds the limits on memory.
    #[error("it has more than {FRAMES_MAX} frames, or more than {} MiB of them", BYTES_MAX >> 20)]
    TooMuch,
    /// The capture has no frame.
    #[error("there is no frame in it")]
    Empty,
}

/// The link type of a capture, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkType(pub i32);

/// Common link types (the tcpdump group's list of link-layer header types).
const LINK_TYPES: &[(i32, &str)] = &[
    (0, "BSD loopback"),
    (12, "raw IP"),
    (101, "raw IP"),
    (105, "IEEE 802.11"),
    (113, "Linux cooked (all devices at once)"),
    (127, "IEEE 802.11 with radiotap"),
    (228, "raw IPv4"),
    (229, "raw IPv6"),
    (249, "USB"),
    (276, "Linux cooked v2 (all devices at once)"),
];

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match LINK_TYPES.iter().find(|(number, _)| *number == self.0) {
            Some((number, name)) => write!(f, "{name}, link type {number}"),
            None => write!(f, "link type {}", self.0),
        }
    }
}

impl CaptureError {
    /// Returns what to do about it, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::LinkType(_) => "capture on one Ethernet device: tcpdump -i eth0 -w FILE",
            Self::CutOff { .. } => "capture whole frames: tcpdump -s 0 -w FILE",
            Self::TooLong { .. } => {
                "raise the MTU, or capture after segmentation: ethtool -K eth0 tso off gso off gro off"
            }
            Self::TooMuch => "cut it: editcap -r IN OUT 1-10000",
            Self::Unknown => "tcpdump -w and Wireshark write such files; a compressed one must be unpacked first",
            _ => return None,
        };
        Some(text.to_owned())
    }
}

/// Returns the frames of a capture in order, each padded to the minimum length of Ethernet.
///
/// # Errors
/// Names the frame that cannot be sent, or the fault of the file.
pub fn read_capture(file: impl Read + Send, longest: usize) -> Result<Vec<Vec<u8>>, CaptureError> {
    let mut reader = create_reader(BLOCK_MAX, file).map_err(|error| match error {
        PcapError::Eof => CaptureError::Empty,
        PcapError::ReadError => CaptureError::Unreadable("it cannot be read".to_owned()),
        _ => CaptureError::Unknown,
    })?;
    let is_ng = reader.data().starts_with(SECTION);
    let mut taken = CaptureReader { links: Vec::new(), n_checksum: 0, frames: Vec::new(), n_bytes: 0, longest };
    loop {
        if is_ng && is_too_short(reader.data()) {
            return Err(CaptureError::Damaged(taken.frames.len()));
        }
        match reader.next() {
            Ok((length, block)) => {
                taken.read_block(&block)?;
                reader.consume(length);
            }
            Err(PcapError::Incomplete(_)) => {
                let before = reader.data().len();
                reader.refill().map_err(|_| CaptureError::Unreadable("it cannot be read to its end".to_owned()))?;
                if reader.data().len() == before {
                    return taken.end(reader.data().is_empty());
                }
            }
            Err(PcapError::Eof) => return taken.end(true),
            Err(PcapError::UnexpectedEof) => {
                let is_at_end = reader.data().is_empty();
                return taken.end(is_at_end);
            }
            Err(PcapError::BufferTooSmall) => return Err(CaptureError::Block(taken.frames.len())),
            Err(_) => return Err(CaptureError::Damaged(taken.frames.len())),
        }
    }
}

/// Returns whether a block claims to be shorter than any block can be; the parser does not notice this.
///
/// The length is read in both byte orders. A length that is valid in one order is too short in the other only if it exceeds the
/// longest block that is accepted.
fn is_too_short(block: &[u8]) -> bool {
    let length = block.get(4..).and_then(|rest| rest.first_chunk());
    length.is_some_and(|bytes| u32::from_le_bytes(*bytes).min(u32::from_be_bytes(*bytes)) < BLOCK_MIN)
}

/// A partly read capture.
struct CaptureReader {
    /// The link types of the interfaces of this section.
    links: Vec<i32>,
    /// The number of FCS bytes after each frame.
    n_checksum: usize,
    frames: Vec<Vec<u8>>,
    n_bytes: usize,
    longest: usize,
}

/// The flag in the link type word that FCS bytes are present. The four highest bits give their number in 16-bit words
/// (pcap-savefile(5)).
const HAS_CHECKSUM: u32 = 1 << 26;

impl CaptureReader {
    /// Reads the only interface of a classic pcap file: its link type, and the length of the FCS.
    fn interface(&mut self, word: u32) {
        self.links = vec![i32::from(u16::try_from(word & 0xffff).expect("16 bits are left"))];
        let n_words = if word & HAS_CHECKSUM == 0 { 0 } else { word >> 28 };
        self.n_checksum = usize::try_from(2 * n_words).expect("it is less than 32");
    }

    fn read_block(&mut self, block: &PcapBlockOwned<'_>) -> Result<(), CaptureError> {
        let length = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        match block {
            PcapBlockOwned::LegacyHeader(header) => self.interface(header.network.0.cast_unsigned()),
            PcapBlockOwned::Legacy(frame) => {
                let without = |length: usize| length.saturating_sub(self.n_checksum);
                self.frame(0, &frame.data[..without(frame.data.len())], without(length(frame.origlen)))?;
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.links.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => self.links.push(interface.linktype.0),
            PcapBlockOwned::NG(Block::EnhancedPacket(frame)) => {
                self.frame(length(frame.if_id), frame.packet_data(), length(frame.origlen))?;
            }
            PcapBlockOwned::NG(Block::SimplePacket(frame)) => {
                self.frame(0, frame.packet_data(), length(frame.origlen))?;
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(())
    }

    fn frame(&mut self, interface: usize, bytes: &[u8], length: usize) -> Result<(), CaptureError> {
        let number = self.frames.len() + 1;
        match self.links.get(interface) {
            Some(&ETHERNET) => {}
            Some(&other) => return Err(CaptureError::LinkType(LinkType(other))),
            None => return Err(CaptureError::Damaged(number - 1)),
        }
        let kept = bytes.len();
        if kept < length {
            return Err(CaptureError::CutOff { number, kept, length });
        }
        if kept < Ethernet::LENGTH {
            return Err(CaptureError::TooShort { number, length });
        }
        if kept > self.longest + vlan_tag_length(bytes) {
            return Err(CaptureError::TooLong { number, length, most: self.longest + vlan_tag_length(bytes) });
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

    fn end(self, is_whole: bool) -> Result<Vec<Vec<u8>>, CaptureError> {
        if !is_whole {
            return Err(CaptureError::Damaged(self.frames.len()));
        }
        if self.frames.is_empty() { Err(CaptureError::Empty) } else { Ok(self.frames) }
    }
}

/// How far a frame may exceed the MTU for its VLAN tag: Linux allows one tag.
pub(super) fn vlan_tag_length(frame: &[u8]) -> usize {
    if frame.get(12..14) == Some(&[0x81, 0x00]) { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
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

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len().next_multiple_of(4) + 12).unwrap().to_be_bytes();
        let mut bytes = [&kind.to_be_bytes()[..], &length, body].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(length);
        bytes
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
            assert_eq!(read_capture(&file[..], 1514), Err(CaptureError::Damaged(1)), "{length:?}");
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
        assert_eq!(read(&vec![(14, 14); FRAMES_MAX + 1]), CaptureError::TooMuch);
    }

    #[test]
    fn a_file_that_is_none_or_not_whole_is_refused() {
        assert_eq!(read_capture(&b""[..], 1514), Err(CaptureError::Empty));
        assert_eq!(read_capture(&b"GIF89a, certainly no capture at all"[..], 1514), Err(CaptureError::Unknown));
        assert_eq!(read_capture(&pcap(1, &[])[..], 1514), Err(CaptureError::Empty));
        let whole = pcap(1, &[(60, 60), (60, 60)]);
        for end in [whole.len() - 1, whole.len() - 60, whole.len() - 70] {
            assert_eq!(read_capture(&whole[..end], 1514), Err(CaptureError::Damaged(1)), "{end}");
        }
    }
}
