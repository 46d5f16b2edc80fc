//! Captures: their files, the connections in them with the bytes of both sides in order, and the flows of datagrams.
//!
//! Everything here is pure: it reads no clock and opens nothing, and its memory does not grow with the file. What the bytes mean
//! is known to a [`ConversationObserver`]; a [`TlsObserver`] before it decrypts them.
//!
//! # Words
//!
//! - conversation: the bytes of both sides of a connection, from a place where a request begins.
//! - `ConversationObserver`: the protocol that follows a conversation.
//! - `TrafficReader`: all connections of a capture.
//! - key log: the secrets of connections, as a client logs them (SSLKEYLOGFILE); `TlsObserver` decrypts with them.

mod connection;
mod counts;
mod datagram;
mod file;
mod ip_packet;
mod limits;
mod link;
mod observer;
mod segment;
mod stream;
mod tls;
mod traffic;

pub use counts::{ByteClass, ConnectionBegin, ConnectionEnd, PacketClass, TrafficCounts};
pub use datagram::{FlowDatagram, FlowObserver, read_datagrams};
pub use file::{CaptureFileError, CapturedFrame, is_capture, read_frames};
pub use limits::TrafficLimits;
pub use link::{ETHERNET, LinkType, NetworkPacket, RAW_IP};
pub use observer::{
    AfterMissing, ConversationBegin, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart,
};
pub use tls::{KeyLog, KeyLogError, TlsCounts, TlsFate, TlsObserver};
pub use traffic::{TrafficReader, read_traffic};
