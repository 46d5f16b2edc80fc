//! Builds a frame from headers and their fields: offsets, lengths and checksums.

use std::ops::Range;

use super::{
    ChecksumCover, ChecksumField, FieldChange, FieldValues, FrameTemplate, ZeroChecksum,
    header::{FieldSpec, HeaderKind},
    spec::{LocatedFault, Payload, PayloadFill, SpecFault, SpecHeader, Value, ValueSequence},
    stack::HeaderStack,
};
use fathom_statistics::splitmix;
use fathom_wire::{ChecksumSum, FrameSize, Mark};

/// More than any line in use needs, and few enough to unroll in a program in the kernel.
const EDITS_MAX: usize = 16;
/// The smallest Ethernet frame without its FCS.
const SMALLEST: usize = 60;

/// The length of the FCS, which frame sizes include and Linux does not count.
const CHECKSUM: usize = 4;

/// Why a frame cannot be built, without the text of the line.
#[derive(Debug)]
pub(super) enum BuildError {
    TooSmall { size: usize, least: usize },
    Fault(LocatedFault),
}

/// A frame under construction.
struct FrameBuilder<'a> {
    stack: &'a HeaderStack,
    /// The offset of each header.
    starts: Vec<usize>,
    /// The end of the packet; only Ethernet padding follows.
    end: usize,
    bytes: Vec<u8>,
}

/// A checksum, and the byte ranges that it covers.
struct ChecksumRanges {
    at: usize,
    ranges: Vec<Range<usize>>,
    /// The part of the pseudo header that is in no header: protocol and length.
    pseudo: ChecksumSum,
    zero: ZeroChecksum,
}

impl HeaderStack {
    /// The smallest frame that holds it, without the FCS.
    pub(super) fn min_length(&self) -> usize {
        (self.headers() + self.payload.bytes.len()).max(SMALLEST)
    }

    fn headers(&self) -> usize {
        self.layers.iter().map(SpecHeader::length).sum()
    }

    /// Builds the frame of this size; without a size, the shortest one.
    pub(super) fn template(&self, size: Option<FrameSize>, seed: u64) -> Result<FrameTemplate, BuildError> {
        let length = size.map_or(self.min_length(), FrameSize::without_checksum);
        if length < self.min_length() {
            return Err(BuildError::TooSmall { size: length + CHECKSUM, least: self.min_length() + CHECKSUM });
        }
        let needed = self.headers() + self.payload.bytes.len();
        let end = if size.is_some() || self.payload.fill.is_some() { length } else { needed };
        let starts = self.layers.iter().scan(0, |next, layer| {
            let start = *next;
            *next += layer.length();
            Some(start)
        });
        let mut build = FrameBuilder { stack: self, starts: starts.collect(), end, bytes: vec![0; length] };
        build.write_constants();
        build.write_payload(seed);
        build.finish(seed).map_err(BuildError::Fault)
    }
}

impl FrameBuilder<'_> {
    fn layers(&self) -> impl DoubleEndedIterator<Item = (usize, &SpecHeader)> + ExactSizeIterator {
        self.starts.iter().copied().zip(&self.stack.layers)
    }

    /// Writes options, constant fields, and the lengths that the line does not set.
    fn write_constants(&mut self) {
        for (start, layer) in self.starts.iter().copied().zip(&self.stack.layers) {
            let (length, rest) = (layer.length(), self.end - start);
            let (header, _) = self.bytes[start..].split_at_mut(length);
            header[layer.header.length..].copy_from_slice(&layer.options);
            let lengths: &[(&str, usize)] = match layer.header.kind {
                HeaderKind::Ipv4 => &[("ihl", length / 4), ("length", rest)],
                HeaderKind::Ipv6 => &[("length", rest - length)],
                HeaderKind::Ipv6Options => &[("length", length / 8 - 1)],
                HeaderKind::Udp => &[("length", rest)],
                HeaderKind::Tcp => &[("offset", length / 4)],
                _ => &[],
            };
            for (word, value) in lengths.iter().filter(|(word, _)| !layer.has(word)) {
                if let Some(field) = layer.header.field(word) {
                    field.put(header, *value as u128);
                }
            }
            for (field, value) in layer.fields.iter().filter(|(_, value)| !value.is_range()) {
                field.put(header, value.first);
            }
        }
    }

    fn write_payload(&mut self, seed: u64) {
        let Payload { bytes, fill, .. } = &self.stack.payload;
        let start = self.stack.headers();
        let behind = start + bytes.len();
        self.bytes[start..behind].copy_from_slice(bytes);
        let room = &mut self.bytes[behind..self.end];
        match fill.unwrap_or(PayloadFill::Byte(0)) {
            PayloadFill::Byte(byte) => room.fill(byte),
            PayloadFill::Random => {
                for (number, chunk) in (0..).zip(room.chunks_mut(8)) {
                    chunk.copy_from_slice(&splitmix(!seed, number).to_le_bytes()[..chunk.len()]);
                }
            }
        }
    }

    /// Extracts the fields that change, sums up the rest, and writes the first frame.
    fn finish(mut self, seed: u64) -> Result<FrameTemplate, LocatedFault> {
        let coverings = self.checksum_ranges();
        let mark_at = self.stack.payload.mark_at.map(|at| self.stack.headers() + at);
        let mut edits = Vec::new();
        for (start, layer) in self.starts.clone().into_iter().zip(&self.stack.layers) {
            for (field, value) in layer.fields.iter().filter(|(_, value)| value.is_range()) {
                edits.push(self.extract_change(start, field, value, seed));
                if edits.len() > EDITS_MAX {
                    return Err(SpecFault::TooManyChanges(EDITS_MAX).at(layer.span.clone()));
                }
            }
        }
        let mut shape = FrameTemplate { mark_at, changes: edits, ..FrameTemplate::fixed(Vec::new()) };
        for covering in coverings {
            let is_covered = |at: usize| covering.ranges.iter().any(|range| range.contains(&at));
            let sum =
                covering.ranges.iter().fold(covering.pseudo, |sum, range| sum.add_bytes(&self.bytes[range.clone()]));
            if !mark_at.is_some_and(is_covered) && !shape.changes.iter().any(|edit| is_covered(edit.at)) {
                let written = covering.zero.checksum_of(sum.value().into());
                self.bytes[covering.at..covering.at + 2].copy_from_slice(&written.to_be_bytes());
                continue;
            }
            if shape.checksums.len() == FrameTemplate::CHECKSUMS_MAX {
                return Err(SpecFault::TooManyChecksums(FrameTemplate::CHECKSUMS_MAX).at(0..0));
            }
            let bit = 1 << shape.checksums.len();
            shape.checksums.push(ChecksumField { at: covering.at, base: sum, zero: covering.zero });
            for edit in shape.changes.iter_mut().filter(|edit| is_covered(edit.at)) {
                edit.cover.0 |= bit;
            }
            if mark_at.is_some_and(is_covered) {
                shape.mark_cover.0 |= bit;
            }
        }
        let first = super::FrameIndex { flow: 0, number: 0, mark: [0; Mark::LENGTH] };
        shape.write(&mut self.bytes, &first);
        shape.bytes = self.bytes;
        Ok(shape)
    }

    /// Makes a `FieldChange` of a field, and leaves zeros in its bytes.
    fn extract_change(&mut self, start: usize, field: &FieldSpec, value: &Value, seed: u64) -> FieldChange {
        let (from, to) = field.byte_range();
        let end = start + to;
        // Only the lower half of an IPv6 address changes; the upper half is constant.
        let width = (to - from).min(size_of::<u64>());
        let at = end - width;
        if to - from > width {
            field.put(&mut self.bytes[start..], value.first);
        } else {
            field.put(&mut self.bytes[start..], 0);
        }
        let bytes = &mut self.bytes[at..end];
        let around = bytes.iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        bytes.fill(0);
        let fixed = if to - from > width { 0 } else { around };
        let first = low_half(value.first);
        let change = match value.succession {
            ValueSequence::Step(by) => FieldValues::Step { first, by, n: value.n },
            // Each field has its own seed: ports that change in step would give few distinct flows.
            ValueSequence::Random => FieldValues::Random { first, n: value.n, seed: splitmix(seed, at as u64) },
        };
        let shift = u8::try_from(to * 8 - field.bit - field.bits).unwrap_or(0);
        FieldChange { at, width, fixed, shift, values: change, per: value.per, cover: ChecksumCover::default() }
    }

    /// The checksums that the line does not set.
    fn checksum_ranges(&self) -> Vec<ChecksumRanges> {
        let mut coverings = Vec::new();
        let mut ip = None;
        for (start, layer) in self.layers() {
            let kind = layer.header.kind;
            if matches!(kind, HeaderKind::Ipv4 | HeaderKind::Ipv6) {
                ip = Some((start, kind));
            }
            let Some(field) = layer.header.field("checksum").filter(|field| !layer.has(field.keyword)) else {
                continue;
            };
            let own = if kind == HeaderKind::Ipv4 { start..start + layer.length() } else { start..self.end };
            let mut covering = ChecksumRanges {
                at: start + field.bit / 8,
                ranges: vec![own],
                pseudo: ChecksumSum::default(),
                zero: ZeroChecksum::AsIs,
            };
            if matches!(kind, HeaderKind::Udp | HeaderKind::Tcp | HeaderKind::Icmpv6) {
                let addresses = match ip {
                    Some((start, HeaderKind::Ipv4)) => Some(start + 12..start + 20),
                    Some((start, _)) => Some(start + 8..start + 40),
                    None => None,
                };
                covering.ranges.extend(addresses);
                let length = u16::try_from(self.end - start).unwrap_or(u16::MAX);
                let protocol = layer.header.protocol.unwrap_or(0);
                covering.pseudo = ChecksumSum::default().add_word(protocol.into()).add_word(length);
            }
            if kind == HeaderKind::Udp {
                covering.zero = ZeroChecksum::AsOnes;
            }
            coverings.push(covering);
        }
        coverings
    }
}

/// The lower 64 bits.
fn low_half(value: u128) -> u64 {
    u64::try_from(value & u128::from(u64::MAX)).unwrap_or(u64::MAX)
}
