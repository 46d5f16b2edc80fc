//! What came back for a probe, as it was read off the wire.

use std::{fmt, net::IpAddr};

/// Flags of a TCP header, as the byte that holds them (RFC 9293 section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Hand the data on.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number counts.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer counts.
    pub const URG: Self = Self(0x20);

    /// Whether all flags of another are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and those of another.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a header says where the kernel has kept its hops to itself: a packet with none left is gone (RFC 791 section 3.2).
pub(super) const HOPS_UNKNOWN: u8 = 0;

/// What stood in the IP header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyIpHeader {
    /// How many more routers it could have passed, where that is known.
    pub hops_left: Option<u8>,
    /// The byte of differentiated services and congestion notification.
    pub traffic_class: u8,
    /// The identification; IPv6 has none.
    pub identification: Option<u16>,
    /// Whether routers may not cut it; in IPv6 they never may.
    pub dont_fragment: bool,
    /// The length of the whole packet.
    pub length: u16,
}

/// What stood in the TCP header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTcpHeader {
    /// The port that answers.
    pub source_port: u16,
    /// The flags.
    pub flags: TcpFlags,
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgment number.
    pub acknowledgment: u32,
    /// The window, unscaled.
    pub window: u16,
    /// The checksum.
    pub checksum: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The sender's clock, where the option came along (RFC 7323).
    pub timestamp: Option<u32>,
}

/// Why a router or a host did not pass a probe on, by ICMP (RFC 792, RFC 1812, RFC 4443).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IcmpErrorKind {
    /// The probe had passed as many routers as it was allowed to.
    HopsExceeded,
    /// Fragments of the probe did not all arrive in time.
    ReassemblyTimeExceeded,
    /// The next link takes at most that many bytes; zero where the router does not say.
    TooBig(u32),
    /// Nobody listens on the port.
    PortUnreachable,
    /// The host does not speak the protocol.
    ProtocolUnreachable,
    /// There is no way to the network.
    NetworkUnreachable,
    /// There is no way to the host.
    HostUnreachable,
    /// A filter forbids it.
    Prohibited,
    /// Anything else, by type and code.
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
    /// What it complains of.
    pub error_kind: IcmpErrorKind,
    /// The type in the ICMP header.
    pub kind: u8,
    /// The code in the ICMP header.
    pub code: u8,
    /// The port that the quoted probe came from.
    pub source_port: Option<u16>,
}

/// What a reply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyContent {
    /// A TCP segment.
    Tcp(ReplyTcpHeader),
    /// A datagram.
    Udp {
        /// The port that answers.
        source_port: u16,
    },
    /// An ICMP message that answers another, such as an echo reply.
    Icmp {
        /// The sequence number, which is that of the probe.
        sequence: u16,
        /// Originate, receive and transmit time in milliseconds since midnight UT, of a timestamp reply.
        timestamps: Option<[u32; 3]>,
    },
    /// A packet of the protocol that was probed.
    Protocol(u8),
    /// An ICMP error.
    Error(IcmpError),
}

/// One packet that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Who sent it.
    pub from: IpAddr,
    /// Its IP header.
    pub ip: ReplyIpHeader,
    /// What it is.
    pub content: ReplyContent,
    /// The tag of the probe that it is about; nothing where nothing in it tells.
    pub tag: Option<u16>,
    /// Whether it proves that the probe came to the host that it was for.
    pub is_from_target: bool,
}

impl Reply {
    /// What it complains of, if it is an ICMP error.
    #[must_use]
    pub fn icmp_error_kind(&self) -> Option<IcmpErrorKind> {
        match self.content {
            ReplyContent::Error(trouble) => Some(trouble.error_kind),
            _ => None,
        }
    }
}
