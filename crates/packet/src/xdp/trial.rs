//! Frames to try programs on, and what tests do where they may not load them.

use std::net::Ipv4Addr;

use fathom_model::units::Bytes;

use crate::wire::{Endpoint, Flow, FrameSize, MacAddress, Template};

pub(super) const PORT: u16 = 9;
pub(super) const TRIAL: u32 = 0x0bad_cafe;
pub(super) const FLOW: u16 = 0;

/// A frame that the sink takes for one of its own.
pub(super) fn frame(size: u64, number: u64) -> Vec<u8> {
    let end = |last, port| Endpoint {
        mac: MacAddress([2, 0, 0, 0, 0, last]),
        address: Ipv4Addr::new(198, 18, 0, last),
        port,
    };
    let flow = Flow { source: end(1, 40_000), destination: end(2, PORT), trial: TRIAL, number: FLOW };
    let template = Template::new(&flow, FrameSize::new(Bytes(size)).unwrap());
    let mut frame = template.bytes().to_vec();
    template.number(&mut frame, number);
    frame
}

/// The same frame with another value in one byte.
pub(super) fn changed(frame: &[u8], place: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[place] ^= 0x01;
    frame
}

/// The same frame with another type.
pub(super) fn with_type(frame: &[u8], ethertype: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame
}

/// The value, or nothing after saying loudly that a privilege is missing; where `CI` is set that is a failure.
pub(crate) fn or_skip<T>(outcome: fathom_sys::Result<T>) -> Option<T> {
    match outcome {
        Err(error) if error.is_permission() && std::env::var_os("CI").is_none() => {
            eprintln!("SKIPPED: {error}: {}", error.source);
            None
        }
        outcome => Some(outcome.unwrap()),
    }
}
