//! What is counted: every packet once, every connection once, every byte of payload once.

use std::collections::BTreeMap;

use fathom_model::units::Nanos;
use serde::Serialize;

use crate::ConversationSide;

/// What a packet was to its connection. Each packet has one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketClass {
    /// It brought bytes of a client that nobody had brought before.
    ClientData,
    /// The same of a server.
    ServerData,
    /// A SYN, or the answer to one.
    Handshake,
    /// It acknowledges, and nothing more.
    Acknowledgement,
    /// A FIN or a reset, without payload.
    Close,
    /// It brought only bytes that were known, or nothing that was new.
    Repeated,
    /// The capture has only a part of its payload.
    CutPayload,
    /// The capture has not even its headers whole.
    CutHeader,
    /// Its payload belongs to no conversation: the capture has not the beginning of one, or lost bytes before.
    Unattributed,
    /// It came after the end of its connection.
    AfterEnd,
    /// Its sequence number is not near those of its connection.
    OutOfWindow,
    /// A fragment of an IP packet.
    Fragment,
    /// An IP packet without TCP.
    NotTcp,
    /// The same without UDP, where datagrams are followed.
    NotUdp,
    /// Of a connection that is not followed.
    NotChosen,
    /// A frame without an IP packet, such as ARP.
    NotIp,
    /// Its link type is unknown here.
    UnknownLink,
    /// Its headers contradict themselves.
    Malformed,
}

/// How a connection comes into the capture. Each connection has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionBegin {
    /// With its handshake.
    Handshake,
    /// It was open before the capture began, or its handshake was not captured.
    Middle,
}

/// How a connection leaves the capture. Each connection has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionEnd {
    /// Both sides closed it.
    Closed,
    /// One side reset it.
    Reset,
    /// Another connection began with the same addresses and ports.
    Reused,
    /// The capture ended first.
    CaptureEnded,
    /// More connections were open than are kept; it was the one without packets for the longest time.
    Evicted,
}

/// What became of a captured byte of TCP payload. Each byte has one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ByteClass {
    /// It is part of what a client sent in a conversation.
    Client,
    /// It is part of what a server sent in a conversation.
    Server,
    /// The same place was captured before; the first copy counts.
    Repeated,
    /// It belongs to no conversation.
    Unattributed,
}

/// Everything that was counted in a capture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TrafficCounts {
    /// Packets by class; the sum is the number of frames.
    pub packets: BTreeMap<PacketClass, u64>,
    /// Connections by their begin.
    pub begins: BTreeMap<ConnectionBegin, u64>,
    /// Connections by their end; the sum is that of `begins`.
    pub ends: BTreeMap<ConnectionEnd, u64>,
    /// Connections in which no conversation was found.
    pub n_silent_connections: u64,
    /// Captured bytes of TCP payload by what became of them.
    pub bytes: BTreeMap<ByteClass, u64>,
    /// Bytes of conversations that were sent and are not in the capture, by their sender.
    pub missing_bytes: BTreeMap<ConversationSide, u64>,
    /// The time of the first packet, since 1970.
    #[serde(rename = "first_ns")]
    pub first: Option<Nanos>,
    /// The time of the last packet.
    #[serde(rename = "last_ns")]
    pub last: Option<Nanos>,
}

impl TrafficCounts {
    pub(crate) fn add_bytes(&mut self, class: ByteClass, n: usize) {
        if n > 0 {
            *self.bytes.entry(class).or_default() += n as u64;
        }
    }
}
