//! Captures: their files, the connections in them, and the bytes of both sides in order.
//!
//! Everything here is pure: it reads no clock and opens nothing, and its memory does not grow with the file. What the bytes mean
//! is known to a [`ConversationObserver`].

mod connection;
mod counts;
mod file;
mod limits;
mod link;
mod observer;
mod segment;
mod stream;
mod traffic;

pub use counts::{ByteClass, ConnectionBegin, ConnectionEnd, PacketClass, TrafficCounts};
pub use file::{CaptureFileError, CapturedFrame, is_capture, read_frames};
pub use limits::TrafficLimits;
pub use link::{ETHERNET, LinkType, NetworkPacket, RAW_IP};
pub use observer::{
    AfterMissing, ConversationBegin, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart,
};
pub use traffic::{TrafficReader, read_traffic};
