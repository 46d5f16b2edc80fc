//! A parsed reply to a probe.

use std::{fmt, net::IpAddr};

/// TCP flags, as the byte in the header (RFC 9293 section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push the data to the application.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);

    /// Whether all flags of another set are set here.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of two sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The TTL in a header if the kernel does not report it: a packet with a TTL of 0 never arrives (RFC 791 section 3.2).
pub(super) const HOPS_UNKNOWN: u8 = 0;

/// Fields of the IP header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyIpHeader {
    /// The remaining TTL, if known.
    pub hops_left: Option<u8>,
    /// The byte with DSCP and ECN.
    pub traffic_class: u8,
    /// The identification; `None` for IPv6.
    pub identification: Option<u16>,
    /// Whether routers may not fragment it; always true for IPv6.
    pub dont_fragment: bool,
    /// The length of the whole packet.
    pub length: u16,
}

/// Fields of the TCP header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTcpHeader {
    /// The port that answers.
    pub source_port: u16,
    pub flags: TcpFlags,
    pub sequence: u32,
    pub acknowledgment: u32,
    /// The window, unscaled.
    pub window: u16,
    pub checksum: u16,
    pub urgent: u16,
    /// The sender's clock, if the timestamp option is present (RFC 7323).
    pub timestamp: Option<u32>,
}

/// Why a router or a host did not forward or accept a probe, by ICMP (RFC 792, RFC 1812, RFC 4443).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IcmpErrorKind {
    /// The hop limit was exceeded.
    HopsExceeded,
    /// Not all fragments of the probe arrived in time.
    ReassemblyTimeExceeded,
    /// The MTU of the next link; zero if the router does not report it.
    TooBig(u32),
    /// No process listens on the port.
    PortUnreachable,
    /// The host does not support the protocol.
    ProtocolUnreachable,
    /// There is no route to the network.
    NetworkUnreachable,
    /// There is no route to the host.
    HostUnreachable,
    /// A filter forbids it.
    Prohibited,
    /// Any other error, by type and code.
    Other(u8, u8),
}

impl fmt::Display for IcmpErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HopsExceeded => "hop limit exceeded",
            Self::ReassemblyTimeExceeded => "reassembly time exceeded",
            Self::TooBig(0) => "packet too big, no MTU given",
            Self::TooBig(mtu) => return write!(f, "packet too big, MTU {mtu}"),
            Self::PortUnreachable => "port unreachable",
            Self::ProtocolUnreachable => "protocol unreachable",
            Self::NetworkUnreachable => "network unreachable",
            Self::HostUnreachable => "host unreachable",
            Self::Prohibited => "prohibited by a filter",
            Self::Other(kind, code) => return write!(f, "ICMP type {kind} code {code}"),
        })
    }
}

/// An ICMP error about a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpError {
    /// The meaning of the error.
    pub error_kind: IcmpErrorKind,
    /// The type in the ICMP header.
    pub kind: u8,
    /// The code in the ICMP header.
    pub code: u8,
    /// The source port of the quoted probe.
    pub source_port: Option<u16>,
}

/// The kind of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyContent {
    Tcp(ReplyTcpHeader),
    /// A UDP datagram.
    Udp {
        /// The port that answers.
        source_port: u16,
    },
    /// An ICMP message that answers another, such as an echo reply.
    Icmp {
        /// The sequence number, which is that of the probe.
        sequence: u16,
        /// The originate, receive and transmit time of a timestamp reply, in milliseconds since midnight UT.
        timestamps: Option<[u32; 3]>,
    },
    /// A packet of the protocol that was probed.
    Protocol(u8),
    /// An ICMP error.
    Error(IcmpError),
}

/// A packet that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The sender.
    pub from: IpAddr,
    pub ip: ReplyIpHeader,
    pub content: ReplyContent,
    /// The tag of the probe that it answers; `None` if the reply does not contain it.
    pub tag: Option<u16>,
    /// Whether it proves that the probe reached its destination.
    pub is_from_target: bool,
}

impl Reply {
    /// Returns the meaning of an ICMP error; `None` for other replies.
    #[must_use]
    pub fn icmp_error_kind(&self) -> Option<IcmpErrorKind> {
        match self.content {
            ReplyContent::Error(trouble) => Some(trouble.error_kind),
            _ => None,
        }
    }
}
