//! The memory of a program: its context, its stack, its frame and the rows of its maps, each with addresses of its own.

use std::{collections::BTreeMap, os::fd::AsFd};

use super::{super::syscall::descriptor, Offence, Outcome, Run};

/// The free bytes before a frame (`XDP_PACKET_HEADROOM`).
pub const HEAD_ROOM: usize = 256;
/// The bytes of them that the kernel keeps for itself (`struct xdp_frame`).
pub(super) const KEPT_HEAD_ROOM: usize = 40;
/// `MAX_BPF_STACK`
const STACK: usize = 512;
/// What is in the room around a frame, which the kernel clears or not.
const LEFT_OVER: u8 = 0xa5;

/// Where an address of 64 bits is: a kind of memory in the upper 8, the map in 8, the row or the age of the frame in 24, and the place in
/// the lower 24. What is added to an address leads to no memory that it does not belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Address {
    Context(i64),
    /// From its upper end, as `R10` points there.
    Stack(i64),
    Frame {
        age: u64,
        place: i64,
    },
    Row {
        map: usize,
        row: usize,
        place: i64,
    },
    /// The map itself, which only helpers take.
    Map(usize),
    Nothing(u64),
}

const PLACE_BITS: u32 = 24;
/// A place is counted from the middle, so that places before the start are the same memory.
const MIDDLE: u64 = 1 << (PLACE_BITS - 1);
const NUMBER: u64 = (1 << 24) - 1;

const fn joined(kind: u64, map: u64, number: u64) -> u64 {
    kind << 56 | map << 48 | (number & NUMBER) << PLACE_BITS | MIDDLE
}

impl Address {
    pub(super) const CONTEXT: u64 = joined(1, 0, 0);
    pub(super) const STACK_END: u64 = joined(2, 0, 0);

    pub(super) fn of(address: u64) -> Self {
        let place = (address & ((1 << PLACE_BITS) - 1)).cast_signed() - MIDDLE.cast_signed();
        let number = address >> PLACE_BITS & NUMBER;
        let index = |value: u64| usize::try_from(value).expect("addresses have at least 32 bits");
        let map = index(address >> 48 & 0xff);
        match address >> 56 {
            1 => Self::Context(place),
            2 => Self::Stack(place),
            3 => Self::Frame { age: number, place },
            4 => Self::Row { map, row: index(number), place },
            5 if place == 0 => Self::Map(map),
            _ => Self::Nothing(address),
        }
    }

    pub(super) fn is_shareable(self) -> bool {
        matches!(self, Self::Row { .. } | Self::Stack(_))
    }
}

/// A frame with the room before and behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameMemory {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    age: u64,
}

impl FrameMemory {
    /// A frame with so many free bytes before and behind it, as its driver leaves them.
    #[must_use]
    pub fn new(frame: &[u8], (head_room, tail_room): (usize, usize)) -> Self {
        let mut buffer = vec![LEFT_OVER; head_room];
        buffer.extend(frame);
        buffer.resize(buffer.len() + tail_room, LEFT_OVER);
        Self { buffer, start: head_room, end: head_room + frame.len(), age: 0 }
    }

    /// The frame as it is now.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Moves the start and the end of the frame, if the bounds allow it; pointers into it are stale in any case.
    pub(super) fn resize(&mut self, (first, start): (usize, i64), end: i64) -> bool {
        self.age += 1;
        let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) else { return false };
        if start < first || end > self.buffer.len() || start + ETHERNET > end {
            return false;
        }
        if end > self.end {
            self.buffer[self.end..end].fill(0);
        }
        (self.start, self.end) = (start, end);
        true
    }

    pub(super) fn bounds(&self) -> (i64, i64) {
        let signed = |at: usize| i64::try_from(at).expect("a frame is short");
        (signed(self.start), signed(self.end))
    }

    fn address(&self, at: usize) -> u64 {
        joined(3, 0, self.age) + u64::try_from(at).expect("a frame is short")
    }
}

/// A frame keeps at least its Ethernet header.
const ETHERNET: usize = 14;

/// The rows of maps, by the descriptors that stand for the maps in the code. A per-CPU array has one copy.
#[derive(Debug, Clone, Default)]
pub struct MapMemory(BTreeMap<u32, Rows>);

#[derive(Debug, Clone)]
struct Rows {
    idx: usize,
    row_size: usize,
    bytes: Vec<u8>,
}

impl MapMemory {
    /// Adds an array of zeroed rows of so many bytes. Any open file can stand for it.
    #[must_use]
    pub fn with(mut self, map: &impl AsFd, (n_rows, row_size): (usize, usize)) -> Self {
        let idx = self.0.len();
        self.0.insert(descriptor(map), Rows { idx, row_size, bytes: vec![0; n_rows * row_size] });
        self
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such map, or no such row.
    #[must_use]
    pub fn row(&self, map: &impl AsFd, idx: usize) -> &[u8] {
        let rows = self.0.get(&descriptor(map)).expect("the map was added");
        rows.bytes.chunks_exact(rows.row_size).nth(idx).expect("the map has the row")
    }

    /// A row, to write it.
    ///
    /// # Panics
    /// If there is no such map, or no such row.
    pub fn row_mut(&mut self, map: &impl AsFd, idx: usize) -> &mut [u8] {
        let rows = self.0.get_mut(&descriptor(map)).expect("the map was added");
        rows.bytes.chunks_exact_mut(rows.row_size).nth(idx).expect("the map has the row")
    }

    pub(super) fn handle(&self, descriptor: u32) -> Outcome<u64> {
        let rows = self.0.get(&descriptor).ok_or(Offence::NoMap(descriptor))?;
        Ok(joined(5, number(rows.idx), 0))
    }

    /// The address of the only row of a map.
    pub(super) fn only_row(&self, descriptor: u32) -> Outcome<u64> {
        let rows = self.0.get(&descriptor).filter(|rows| rows.bytes.len() == rows.row_size);
        rows.map(|rows| joined(4, number(rows.idx), 0)).ok_or(Offence::NoMap(descriptor))
    }

    /// The address of a row, or zero if there is no such row.
    pub(super) fn look_up(&self, map: usize, idx: u32) -> u64 {
        let rows = self.0.values().find(|rows| rows.idx == map).expect("the handle was made here");
        let has_row = u64::from(idx) < number(rows.bytes.len() / rows.row_size);
        if has_row { joined(4, number(map), idx.into()) } else { 0 }
    }

    fn memory(&mut self, map: usize, row: usize) -> Option<&mut [u8]> {
        let rows = self.0.values_mut().find(|rows| rows.idx == map)?;
        rows.bytes.get_mut(row * rows.row_size..(row + 1) * rows.row_size)
    }
}

fn number(value: usize) -> u64 {
    u64::try_from(value).expect("a size has at most 64 bits")
}

/// The stack, which has no values until they are written.
pub(super) struct Stack {
    bytes: [u8; STACK],
    is_written: [bool; STACK],
}

impl Default for Stack {
    fn default() -> Self {
        Self { bytes: [0; STACK], is_written: [false; STACK] }
    }
}

impl Run<'_> {
    pub(super) fn load(&mut self, address: u64, width: usize) -> Outcome<u64> {
        if let Address::Context(place) = Address::of(address) {
            return self.load_context(place, width);
        }
        if let Address::Stack(place) = Address::of(address) {
            let range = inside(STACK, place + 512, width, "the stack")?;
            if !self.stack.is_written[range].iter().all(|is_written| *is_written) {
                return Err(Offence::UnwrittenStack(place));
            }
        }
        let bytes = self.memory(address, width)?;
        Ok(match *bytes {
            [byte] => byte.into(),
            [first, second] => u16::from_ne_bytes([first, second]).into(),
            ref bytes => match bytes.try_into() {
                Ok(word) => u32::from_ne_bytes(word).into(),
                Err(_) => u64::from_ne_bytes((*bytes).try_into().expect("a load has 1, 2, 4 or 8 bytes")),
            },
        })
    }

    pub(super) fn write(&mut self, address: u64, width: usize, value: u64) -> Outcome<()> {
        if let Address::Stack(place) = Address::of(address) {
            let range = inside(STACK, place + 512, width, "the stack")?;
            self.stack.is_written[range].fill(true);
        }
        let bytes = value.to_ne_bytes();
        let low = if cfg!(target_endian = "little") { &bytes[..width] } else { &bytes[8 - width..] };
        self.memory(address, width)?.copy_from_slice(low);
        Ok(())
    }

    /// `data` and `data_end` of `struct xdp_md`, words that give whole pointers, and `rx_queue_index`.
    fn load_context(&self, place: i64, width: usize) -> Outcome<u64> {
        match (place, width) {
            (0, 4) => Ok(self.frame.address(self.frame.start)),
            (4, 4) => Ok(self.frame.address(self.frame.end)),
            (16, 4) => Ok(0),
            _ => Err(Offence::NoContext(width, place)),
        }
    }

    /// The bytes at an address that may be read and written.
    fn memory(&mut self, address: u64, width: usize) -> Outcome<&mut [u8]> {
        match Address::of(address) {
            Address::Stack(place) => {
                if place % i64::try_from(width).expect("a width is small") != 0 {
                    return Err(Offence::UnalignedStack(width, place));
                }
                let range = inside(STACK, place + 512, width, "the stack")?;
                Ok(&mut self.stack.bytes[range])
            }
            Address::Frame { age, .. } if age != self.frame.age & NUMBER => Err(Offence::StalePointer),
            Address::Frame { place, .. } => {
                let start = self.frame.bounds().0;
                let frame = &mut self.frame.buffer[self.frame.start..self.frame.end];
                let range = inside(frame.len(), place - start, width, "the frame")?;
                Ok(&mut frame[range])
            }
            Address::Row { map, row, place } => {
                let row = self.surroundings.maps.memory(map, row).ok_or(Offence::NoMemory(address))?;
                let range = inside(row.len(), place, width, "the row")?;
                Ok(&mut row[range])
            }
            Address::Context(_) => Err(Offence::ReadOnly("the context")),
            Address::Map(_) | Address::Nothing(_) => Err(Offence::NoMemory(address)),
        }
    }
}

/// The range of so many bytes at a place, if it is inside.
fn inside(n_bytes: usize, place: i64, width: usize, what: &'static str) -> Outcome<std::ops::Range<usize>> {
    let start = usize::try_from(place).ok().filter(|start| start + width <= n_bytes);
    start.map(|start| start..start + width).ok_or(Offence::Outside(width, place, what))
}
