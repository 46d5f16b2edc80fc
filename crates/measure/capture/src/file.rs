//! Reads the frames of a file one after the other: pcap and pcapng, as tcpdump and Wireshark write them.

use std::io::Read;

use pcap_parser::{
    Block, InterfaceDescriptionBlock, PcapBlockOwned, PcapError, PcapHeader, SecretsType, create_reader,
    traits::PcapNGPacketBlock,
};

use fathom_model::units::{Bytes, Nanos, grouped};

use crate::LinkType;

/// The start of a pcapng file: the type of a section header, the same in both byte orders.
const SECTION: &[u8] = &[0x0a, 0x0d, 0x0d, 0x0a];
/// The type of a block, and its length twice.
const BLOCK_MIN: u32 = 12;
/// Longer than any block with a frame, and than the names and comments that programs write.
const BLOCK_MAX: usize = 1 << 20;
/// The flag in the link type word that FCS bytes are present. The four highest bits give their number in 16-bit words
/// (pcap-savefile(5)).
const HAS_CHECKSUM: u32 = 1 << 26;
const NANOS_PER_SEC: u64 = 1_000_000_000;
/// Interfaces are kept in memory; no file of a program has as many.
const INTERFACES_MAX: usize = 4096;

/// Whether a file that begins with these bytes is a capture.
#[must_use]
pub fn is_capture(begin: &[u8]) -> bool {
    /// The magic numbers of pcap, with microseconds and with nanoseconds.
    const MAGICS: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];
    let pcap =
        MAGICS.iter().any(|magic| begin.starts_with(&magic.to_le_bytes()) || begin.starts_with(&magic.to_be_bytes()));
    pcap || begin.starts_with(SECTION)
}

/// Why a file cannot be read further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureFileError {
    /// Reading failed.
    #[error("{0}")]
    Unreadable(String),
    /// The file does not start like a capture.
    #[error("it is neither pcap nor pcapng")]
    Unknown,
    /// The file is empty.
    #[error("there is no frame in it")]
    Empty,
    /// The file ends in the middle, or the data after this many frames is not part of a capture.
    #[error("it is damaged or cut off after frame {}", grouped(*.0))]
    Damaged(u64),
    /// A block is longer than any frame.
    #[error("after frame {} is a block of more than {}", grouped(*.0), Bytes(BLOCK_MAX as u64))]
    Block(u64),
}

impl CaptureFileError {
    /// Returns what to do about it, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unknown => Some("tcpdump -w and Wireshark write such files; a compressed one must be unpacked first"),
            _ => None,
        }
    }
}

/// A frame as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapturedFrame<'a> {
    /// Its number in the file, from 1.
    pub number: u64,
    /// The time since 1970; absent in blocks without one, which pcapng allows.
    pub time: Option<Nanos>,
    /// The link type of its interface.
    pub link: LinkType,
    /// The captured bytes, without an FCS.
    pub bytes: &'a [u8],
    /// The length on the wire, without an FCS.
    pub original_length: usize,
}

/// What a capture has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureItem<'a> {
    Frame(CapturedFrame<'a>),
    /// A key log of TLS, as a block of pcapng has it (draft-ietf-opsawg-pcapng section 4.7).
    Secrets(&'a [u8]),
}

/// Gives the frames of a capture in order to `take`. Returns their number.
///
/// # Errors
/// The error of `take`, or a fault of the file; all frames before the fault were given.
pub fn read_frames<E: From<CaptureFileError>>(
    file: impl Read + Send,
    mut take: impl FnMut(CapturedFrame<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    read_items(file, |item| match item {
        CaptureItem::Frame(frame) => take(frame),
        CaptureItem::Secrets(_) => Ok(()),
    })
}

/// The same with the secrets between the frames.
///
/// # Errors
/// As [`read_frames`].
pub(crate) fn read_items<E: From<CaptureFileError>>(
    file: impl Read + Send,
    mut take: impl FnMut(CaptureItem<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut reader = create_reader(BLOCK_MAX, file).map_err(|error| match error {
        PcapError::Eof => CaptureFileError::Empty,
        PcapError::ReadError => CaptureFileError::Unreadable("it cannot be read".to_owned()),
        _ => CaptureFileError::Unknown,
    })?;
    let is_ng = reader.data().starts_with(SECTION);
    let mut blocks = Blocks::default();
    loop {
        if is_ng && is_too_short(reader.data()) {
            return Err(CaptureFileError::Damaged(blocks.n_frames).into());
        }
        match reader.next() {
            Ok((length, block)) => {
                blocks.read(&block, &mut take)?;
                // What is left of the buffer moves when it is filled again, and not after each half of it too.
                reader.consume_noshift(length);
            }
            Err(PcapError::Incomplete(_)) => {
                let before = reader.data().len();
                let unreadable = |_| CaptureFileError::Unreadable("it cannot be read to its end".to_owned());
                reader.refill().map_err(unreadable)?;
                if reader.data().len() == before {
                    return Ok(blocks.end(reader.data())?);
                }
            }
            Err(PcapError::Eof) => return Ok(blocks.n_frames),
            Err(PcapError::UnexpectedEof) => return Ok(blocks.end(reader.data())?),
            Err(PcapError::BufferTooSmall) => return Err(CaptureFileError::Block(blocks.n_frames).into()),
            Err(_) => return Err(CaptureFileError::Damaged(blocks.n_frames).into()),
        }
    }
}

/// Returns the units of a second that `if_tsresol` stands for: a power of ten, or of two with the highest bit set.
///
/// The parser's own function knows powers of ten alone.
fn per_second(resolution: u8) -> Option<u64> {
    match resolution {
        0..0x80 => 10_u64.checked_pow(u32::from(resolution)),
        _ => 1_u64.checked_shl(u32::from(resolution & 0x7f)),
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

/// What the blocks so far say of those that follow.
#[derive(Debug, Default)]
struct Blocks {
    /// The interfaces of this section.
    interfaces: Vec<Interface>,
    /// Whether the numbers of this section are in big-endian order.
    is_big_endian: bool,
    n_frames: u64,
}

/// How the frames of one interface are read.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link: LinkType,
    /// The number of FCS bytes after each frame.
    n_checksum: usize,
    /// Units of a stamp in a second; absent if the file gives a resolution that does not fit 64 bits.
    per_second: Option<u64>,
    /// Seconds to add to each stamp.
    offset_s: i64,
}

impl Interface {
    /// The only interface of a classic pcap file.
    fn classic(header: &PcapHeader) -> Self {
        let word = header.network.0.cast_unsigned();
        let n_words = if word & HAS_CHECKSUM == 0 { 0 } else { word >> 28 };
        Self {
            link: LinkType(i32::from(u16::try_from(word & 0xffff).expect("16 bits are left"))),
            n_checksum: usize::try_from(2 * n_words).expect("it is less than 32"),
            per_second: Some(if header.is_nanosecond_precision() { NANOS_PER_SEC } else { 1_000_000 }),
            offset_s: 0,
        }
    }

    fn described(block: &InterfaceDescriptionBlock<'_>, is_big_endian: bool) -> Self {
        let offset_s = block.ts_offset();
        Self {
            link: LinkType(block.linktype.0),
            n_checksum: 0,
            per_second: per_second(block.if_tsresol),
            // The parser reads the offset as little-endian whatever the order of the section.
            offset_s: if is_big_endian { offset_s.swap_bytes() } else { offset_s },
        }
    }

    /// Returns the time of a stamp since 1970, if it is one of this age of the world.
    fn time(&self, seconds: u64, units: u64) -> Option<Nanos> {
        let per_second = self.per_second?;
        let seconds = seconds.checked_add(units / per_second)?.checked_add_signed(self.offset_s)?;
        let below = u128::from(units % per_second) * u128::from(NANOS_PER_SEC) / u128::from(per_second);
        seconds.checked_mul(NANOS_PER_SEC)?.checked_add(u64::try_from(below).ok()?).map(Nanos)
    }
}

impl Blocks {
    fn read<E: From<CaptureFileError>>(
        &mut self,
        block: &PcapBlockOwned<'_>,
        take: &mut impl FnMut(CaptureItem<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut take_frame = |frame| take(CaptureItem::Frame(frame));
        match block {
            PcapBlockOwned::LegacyHeader(header) => self.interfaces = vec![Interface::classic(header)],
            PcapBlockOwned::Legacy(frame) => {
                let stamp = (u64::from(frame.ts_sec), u64::from(frame.ts_usec));
                take_frame(self.frame(0, Some(stamp), frame.data, frame.origlen)?)?;
            }
            PcapBlockOwned::NG(Block::SectionHeader(section)) => {
                self.interfaces.clear();
                self.is_big_endian = section.big_endian();
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(_)) if self.interfaces.len() == INTERFACES_MAX => {
                return Err(CaptureFileError::Damaged(self.n_frames).into());
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
                self.interfaces.push(Interface::described(block, self.is_big_endian));
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(frame)) => {
                let units = u64::from(frame.ts_high) << 32 | u64::from(frame.ts_low);
                take_frame(self.frame(frame.if_id, Some((0, units)), frame.packet_data(), frame.origlen)?)?;
            }
            PcapBlockOwned::NG(Block::SimplePacket(frame)) => {
                take_frame(self.frame(0, None, frame.packet_data(), frame.origlen)?)?;
            }
            PcapBlockOwned::NG(Block::DecryptionSecrets(block)) if block.secrets_type == SecretsType::TlsKeyLog => {
                let length = usize::try_from(block.secrets_len).unwrap_or(usize::MAX).min(block.data.len());
                take(CaptureItem::Secrets(&block.data[..length]))?;
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(())
    }

    /// Counts a frame. `stamp` is its time in seconds and units of its interface.
    fn frame<'a>(
        &mut self,
        interface: u32,
        stamp: Option<(u64, u64)>,
        bytes: &'a [u8],
        original_length: u32,
    ) -> Result<CapturedFrame<'a>, CaptureFileError> {
        let described = usize::try_from(interface).ok().and_then(|interface| self.interfaces.get(interface));
        let interface = described.ok_or(CaptureFileError::Damaged(self.n_frames))?;
        let without = |length: usize| length.saturating_sub(interface.n_checksum);
        self.n_frames += 1;
        Ok(CapturedFrame {
            number: self.n_frames,
            time: stamp.and_then(|(seconds, units)| interface.time(seconds, units)),
            link: interface.link,
            bytes: &bytes[..without(bytes.len())],
            original_length: without(usize::try_from(original_length).unwrap_or(usize::MAX)),
        })
    }

    /// Returns the number of frames, unless `rest` was cut off.
    fn end(&self, rest: &[u8]) -> Result<u64, CaptureFileError> {
        if rest.is_empty() { Ok(self.n_frames) } else { Err(CaptureFileError::Damaged(self.n_frames)) }
    }
}

#[cfg(test)]
mod tests {
    use fathom_testkit::traffic::pcapng_block as block;

    use super::*;
    use crate::ETHERNET;

    /// A frame that outlives its file: time, link, bytes and original length.
    type Kept = (Option<Nanos>, LinkType, Vec<u8>, usize);

    fn read(file: &[u8]) -> (Vec<Kept>, Result<u64, CaptureFileError>) {
        let mut frames = Vec::new();
        let end = read_frames(file, |frame| {
            assert_eq!(frame.number, frames.len() as u64 + 1);
            frames.push((frame.time, frame.link, frame.bytes.to_vec(), frame.original_length));
            Ok(())
        });
        (frames, end)
    }

    /// A classic pcap capture with a frame of three bytes, cut to two, at 10 s and 7 units.
    fn classic(magic: u32, word: fn(u32) -> [u8; 4]) -> Vec<u8> {
        let versions = if word(1) == 1_u32.to_be_bytes() { 0x0002_0004 } else { 0x0004_0002 };
        let words = [magic, versions, 0, 0, 262_144, 1, 10, 7, 2, 3];
        let mut file: Vec<u8> = words.into_iter().flat_map(word).collect();
        file.extend([1, 2]);
        file
    }

    #[test]
    fn classic_files_are_read_in_both_byte_orders_with_micro_and_nanoseconds() {
        for word in [u32::to_le_bytes, u32::to_be_bytes] {
            for (magic, time) in [(0xa1b2_c3d4, Nanos(10_000_007_000)), (0xa1b2_3c4d, Nanos(10_000_000_007))] {
                let (frames, end) = read(&classic(magic, word));
                assert_eq!((frames, end), (vec![(Some(time), ETHERNET, vec![1, 2], 3)], Ok(1)));
            }
        }
    }

    fn section() -> Vec<u8> {
        block(0x0a0d_0d0a, &[&[0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0][..], &[0xff; 8]].concat())
    }

    #[test]
    fn each_interface_of_a_section_has_its_own_link_and_clock() {
        // Nanoseconds (10^-9) and an offset of 100 s.
        let options = [0, 9, 0, 1, 9, 0, 0, 0, 0, 14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0];
        let cooked = [&[0, 113, 0, 0, 0, 0, 0, 0][..], &options].concat();
        let enhanced = |interface: u8| {
            [&[0, 0, 0, interface, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 4][..], &[7; 4]].concat()
        };
        let simple = [&[0, 0, 0, 4][..], &[9; 4]].concat();
        let file = [
            section(),
            block(1, &[0, 1, 0, 0, 0, 0, 0, 0]),
            block(1, &cooked),
            block(6, &enhanced(0)),
            block(6, &enhanced(1)),
            block(3, &simple),
            section(),
            block(6, &enhanced(0)),
        ]
        .concat();
        let (frames, end) = read(&file);
        let expected = [
            (Some(Nanos(5_000)), ETHERNET, vec![7; 4], 4),
            (Some(Nanos(100_000_000_005)), LinkType(113), vec![7; 4], 4),
            (None, ETHERNET, vec![9; 4], 4),
        ];
        assert_eq!(frames, expected);
        assert_eq!(end, Err(CaptureFileError::Damaged(3)), "the new section describes no interface");
    }

    #[test]
    fn resolutions_are_powers_of_ten_and_of_two() {
        let cases = [(0, Some(1)), (6, Some(1_000_000)), (19, Some(10_u64.pow(19))), (20, None)];
        let binary = [(0x80, Some(1)), (0x8a, Some(1024)), (0xbf, Some(1 << 63)), (0xc0, None)];
        for (resolution, expected) in cases.into_iter().chain(binary) {
            assert_eq!(per_second(resolution), expected, "{resolution:#x}");
        }
    }

    #[test]
    fn the_frames_before_damage_are_given() {
        let whole = classic(0xa1b2_c3d4, u32::to_le_bytes);
        let twice = [&whole[..], &whole[24..]].concat();
        for cut in [1, 2, 10, 17] {
            let (frames, end) = read(&twice[..twice.len() - cut]);
            assert_eq!((frames.len(), end), (1, Err(CaptureFileError::Damaged(1))), "{cut}");
        }
        assert_eq!(read(b"").1, Err(CaptureFileError::Empty));
        assert_eq!(read(&whole[..24]).1, Ok(0));
        assert_eq!(read(b"GIF89a, certainly no capture at all").1, Err(CaptureFileError::Unknown));
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_to_its_end() {
        let mut file = classic(0xa1b2_c3d4, u32::to_le_bytes);
        file.truncate(24);
        for number in 0..200_u32 {
            file.extend([number, 0, 60_000, 60_000].into_iter().flat_map(u32::to_le_bytes));
            file.extend(vec![7; 60_000]);
        }
        let (frames, end) = read(&file);
        assert_eq!((frames.len(), end), (200, Ok(200)));
        assert_eq!(frames[199].0, Some(Nanos::from_secs(199)));
    }
}
