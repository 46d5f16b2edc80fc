//! Frames for tests of programs, and a helper for tests that may not load programs.

use std::net::Ipv4Addr;

use fathom_model::{MacAddress, units::Bytes};

use crate::craft::{FrameContext, FrameEndpoint, FrameEndpoints, FrameSet, FrameSpec, SizeMix};
use fathom_wire::{FrameSize, Mark};

pub(super) const PORT: u16 = 9;
pub(super) const TRIAL: u32 = 0x0bad_cafe;
pub(super) const FLOW: u16 = 0;

/// A frame that the sink counts.
pub(super) fn frame(size: u64, number: u64) -> Vec<u8> {
    let end = |last: u8, port| {
        let ipv4 = Some(Ipv4Addr::new(198, 18, 0, last));
        FrameEndpoint { mac: MacAddress([2, 0, 0, 0, 0, last]), ipv4, ipv6: None, port }
    };
    let setup = FrameContext {
        ends: FrameEndpoints { source: end(1, 40_000), target: end(2, PORT) },
        mtu_bytes: 9000,
        seed: 0,
    };
    let sizes = SizeMix::of_size(Some(FrameSize::new(Bytes(size)).unwrap()));
    let blueprint = FrameSet::from_spec(&FrameSpec::read("").unwrap(), sizes, None, &setup).unwrap();
    let mark = Mark { tag: Mark::tag_of(TRIAL), flow: FLOW.into(), sequence: number, sent: 0 };
    let shape = &blueprint.templates[0];
    let mut frame = shape.bytes.clone();
    shape.write(&mut frame, &blueprint.frame_index(FLOW.into(), number, mark.bytes()));
    frame
}

/// The same frame with one byte changed.
pub(super) fn changed(frame: &[u8], place: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[place] ^= 0x01;
    frame
}

/// The same frame with another `EtherType`.
pub(super) fn with_type(frame: &[u8], ethertype: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame
}

pub(crate) fn or_skip<T>(outcome: fathom_sys::Result<T>) -> Option<T> {
    fathom_testkit::or_skip(outcome, fathom_sys::Error::is_permission)
}
