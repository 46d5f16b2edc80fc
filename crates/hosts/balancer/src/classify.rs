//! What a packet is to a load balancer: its flow, and its place among the fragments of a datagram.
//!
//! Written by hand, because the packet arrives cut to the queue's copy range, and the decision needs a few fields of it at full rate.

use std::net::IpAddr;

/// The ports of a packet, or what stands in their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    /// The ports of TCP, UDP, UDP-Lite, SCTP or DCCP.
    Pair {
        /// The port of the sender.
        source: u16,
        /// The port of the receiver.
        destination: u16,
    },
    /// The identifier of an ICMP echo, the same in request and reply.
    Echo(u16),
    /// Later fragments and other protocols have none.
    Absent,
}

/// The addresses, the protocol and the ports of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The address of the sender.
    pub source: IpAddr,
    /// The address of the receiver.
    pub destination: IpAddr,
    /// The IP protocol number of the payload.
    pub protocol: u8,
    /// The ports, if the packet shows them.
    pub ports: Ports,
}

/// What all fragments of a datagram have in common (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramKey {
    /// The address of the sender.
    pub source: IpAddr,
    /// The address of the receiver.
    pub destination: IpAddr,
    /// The identification: 16 bits in IPv4, 32 in IPv6.
    pub id: u32,
    /// The protocol in IPv4. It is 0 in IPv6, where it does not belong to the key.
    pub protocol: u8,
}

/// One fragment of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// The datagram that it is part of.
    pub datagram: DatagramKey,
    /// The place of its data in the datagram, in bytes; 0 in the first fragment.
    pub offset: u16,
    /// The number of bytes of data.
    pub length: u16,
    /// Whether it ends the datagram.
    pub is_last: bool,
}

/// An IP packet as the balancer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The flow. Of an ICMP error: the flow of the packet inside, turned round, so that the error goes where the flow goes.
    pub key: FlowKey,
    /// The fragment that the packet is; absent for whole datagrams.
    pub fragment: Option<Fragment>,
    /// Whether the packet is an ICMP error, and the key that of the packet inside.
    pub is_icmp_error: bool,
    /// The bytes from the transport header on; empty for later fragments.
    pub transport: &'a [u8],
}

/// Why bytes are not a packet that can be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClassifyError {
    /// The version is neither 4 nor 6.
    #[error("it is not an IP packet")]
    NotIp,
    /// The bytes end within a header.
    #[error("it ends within the {0}")]
    Truncated(&'static str),
    /// A length or an offset contradicts the others.
    #[error("the {0} is not possible")]
    Corrupt(&'static str),
}

/// Classifies the bytes of an IP packet, from its IP header on. They may end early, such as at the queue's copy range.
///
/// # Errors
/// If the headers that the decision needs are cut off or contradict each other.
pub fn classify(bytes: &[u8]) -> Result<Packet<'_>, ClassifyError> {
    todo!()
}
