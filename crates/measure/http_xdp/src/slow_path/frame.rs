//! What a frame that the program has handed over says. The program has checked its headers.

use std::net::{IpAddr, SocketAddr};

use crate::{frame::Layout, machine::Segment, program::LoadSetup};

/// A segment of the server, with the place that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedSegment<'a> {
    pub(crate) slot: u32,
    pub(crate) port_idx: u16,
    pub(crate) segment: Segment,
    pub(crate) payload: &'a [u8],
}

impl<'a> ReceivedSegment<'a> {
    /// Reads a frame; `None` if it is not for one of the slots.
    pub(crate) fn read(frame: &'a [u8], setup: &LoadSetup) -> Option<Self> {
        let layout = Layout::of(setup.ends.server.ip());
        let at = |offset: i16| usize::from(offset.unsigned_abs());
        let tcp = at(layout.tcp());
        let half = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let word = |at: usize| Some(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let own = frame.get(at(layout.destination)..)?;
        let address = if layout.is_v4() {
            IpAddr::from(*own.first_chunk::<4>()?)
        } else {
            IpAddr::from(*own.first_chunk::<16>()?)
        };
        let (slot, port_idx) = setup.slots.find(SocketAddr::new(address, half(tcp + 2)?))?;
        let payload_at = tcp + usize::from(*frame.get(tcp + 12)? >> 4) * 4;
        let packet_end = at(layout.tcp() - layout.counted) + usize::from(half(at(layout.length))?);
        let payload = frame.get(payload_at..packet_end)?;
        let segment = Segment {
            flags: *frame.get(tcp + 13)?,
            sequence: word(tcp + 4)?,
            acknowledgement: word(tcp + 8)?,
            length: u32::try_from(payload.len()).ok()?,
        };
        Some(Self { slot, port_idx, segment, payload })
    }
}
