//! What is sent: frames made from options, from a line of text or from a capture.
//!
//! A [`Blueprint`] holds all that a sender needs to write any frame of a trial, so nothing is decided while frames leave. It knows
//! neither devices nor sockets.

mod blueprint;
mod build;
mod capture;
mod error;
mod header;
mod judge;
mod line;
mod mix;
mod settings;
mod stack;

pub use blueprint::{Blueprint, Change, Checksum, Cover, Edit, Per, Shape, Turn, Zero, mix};
pub use capture::{CaptureError, LinkType, read_capture};
pub use error::CraftError;
pub use judge::{Refusal, judge};
pub use line::{Fault, Line, LineError, Span};
pub(crate) use mix::interleaved;
pub use mix::{GenomeError, Mix};
pub use settings::{
    ADDRESSES, CAPTURE, FLOWS, FRAME, MIX, MPLS, OPTIONS, Outline, PAYLOAD, PORTS, SIZE, Setup, SourcePorts, TOS,
    TRANSPORT, TTL, VLAN, from_settings, outline, title,
};
pub use stack::{End, Ends};
