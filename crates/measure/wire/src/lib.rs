//! Headers as they are on the wire, one file per header.
//!
//! Lengths here are those of Linux: without the four bytes of the FCS, which the device appends. Only [`FrameSize`] knows both.

mod arp;
mod checksum;
mod ethernet;
mod ipv4;
mod mark;
mod sequence;
mod size;
mod udp;

pub use arp::Arp;
pub use checksum::ChecksumSum;
pub use ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet};
pub use ethernet::{TAG_LENGTH, TAGS};
pub use ipv4::IS_FRAGMENT;
pub use ipv4::{Ipv4, PROTOCOL_UDP};
pub use mark::{Mark, MarkOffsets};
pub use sequence::{FrameSequence, SEQUENCE_WINDOW};
pub use size::{FrameSize, SizeError, line_rate};
pub use udp::Udp;
