//! The frames to send, made from options, from a line of text or from a capture.
//!
//! A [`FrameSet`] holds everything that a sender needs to write any frame of a trial, so no decisions remain while frames leave.
//! This module knows neither devices nor sockets.

mod build;
mod capture;
mod error;
mod header;
mod mix;
mod policy;
mod settings;
mod spec;
mod stack;
mod template;

pub use capture::{CaptureError, read_capture};
pub use error::CraftError;
pub(crate) use mix::interleaved;
pub use mix::{SizeMix, SizeMixError};
pub use policy::{FrameRefusal, check_policy};
pub use settings::{
    ADDRESSES, CAPTURE, FLOWS, FRAME, FrameContext, FrameOutline, MIX, MPLS, OPTIONS, PAYLOAD, PORTS, SIZE,
    SourcePorts, TOS, TRANSPORT, TTL, VLAN, from_settings, outline, title,
};
pub use spec::{FrameSpec, FrameSpecError, SpecFault, TextSpan};
pub use stack::{FrameEndpoint, FrameEndpoints};
pub use template::{
    ChangePer, ChecksumCover, ChecksumField, FieldChange, FieldValues, FrameIndex, FrameSet, FrameTemplate,
    ZeroChecksum,
};
