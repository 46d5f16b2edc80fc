//! Captures: their files, and the packets in their frames.
//!
//! Everything here is pure: it reads no clock and opens nothing, and its memory does not grow with the file.

mod file;
mod link;

pub use file::{CaptureFileError, CapturedFrame, read_frames};
pub use link::{ETHERNET, LinkType, NetworkPacket};
