//! What a packet is to a load balancer: its flow, and its place among the fragments of a datagram.
//!
//! Written by hand, because the packet arrives cut to the queue's copy range, and the decision needs a few fields of it at full rate.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

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
    /// Whether bytes of the packet are missing at its end.
    pub is_cut: bool,
    /// The bytes from the transport header on; empty for later fragments and ICMP errors.
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
    let datagram = network_header(bytes)?;
    let packet = |key, is_icmp_error, transport| {
        let Datagram { fragment, is_cut, .. } = datagram;
        Packet { key, fragment, is_icmp_error, is_cut, transport }
    };
    if datagram.is_later_fragment() {
        return Ok(packet(datagram.key(Ports::Absent), false, &[]));
    }
    if let Some(inside) = packet_in_icmp_error(datagram.protocol, datagram.transport)? {
        return Ok(packet(key_of_packet_inside(inside, datagram.source.is_ipv4())?, true, &[]));
    }
    let key = datagram.key(ports(datagram.protocol, datagram.transport)?);
    Ok(packet(key, false, datagram.transport))
}

/// A packet up to its transport header.
struct Datagram<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    fragment: Option<Fragment>,
    is_cut: bool,
    transport: &'a [u8],
}

impl Datagram<'_> {
    fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.offset > 0)
    }

    const fn key(&self, ports: Ports) -> FlowKey {
        FlowKey { source: self.source, destination: self.destination, protocol: self.protocol, ports }
    }
}

/// The protocol numbers of IANA that the decision knows.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// DCCP.
    pub const DCCP: u8 = 33;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// UDP-Lite.
    pub const UDP_LITE: u8 = 136;
}

/// The longest datagram, in bytes (RFC 791 section 3.1).
const DATAGRAM_MAX: usize = 65_535;

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

fn network_header(bytes: &[u8]) -> Result<Datagram<'_>, ClassifyError> {
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) => ipv4(bytes),
        Some(6) => ipv6(bytes),
        _ => Err(ClassifyError::NotIp),
    }
}

/// RFC 791 section 3.1.
fn ipv4(bytes: &[u8]) -> Result<Datagram<'_>, ClassifyError> {
    const MIN: usize = 20;
    const MORE_FRAGMENTS: u16 = 0x2000;
    let header: &[u8; MIN] = bytes.first_chunk().ok_or(ClassifyError::Truncated("IPv4 header"))?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if length < MIN {
        return Err(ClassifyError::Corrupt("length of the IPv4 header"));
    }
    let total = match usize::from(u16::from_be_bytes([header[2], header[3]])) {
        // Linux writes 0 into packets of more than 64 KiB, which it cuts into segments later (BIG TCP).
        0 => bytes.len().max(length),
        total => total,
    };
    if total < length {
        return Err(ClassifyError::Corrupt("length of the IPv4 packet"));
    }
    let rest = bytes.get(length..bytes.len().min(total)).ok_or(ClassifyError::Truncated("IPv4 options"))?;
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let (source, destination) = (address_v4(header, 12), address_v4(header, 16));
    let protocol = header[9];
    let is_last = flags & MORE_FRAGMENTS == 0;
    let offset = (flags & 0x1fff) << 3;
    let fragment = if is_last && offset == 0 {
        None
    } else {
        let id = u32::from(u16::from_be_bytes([header[4], header[5]]));
        let datagram = DatagramKey { source, destination, id, protocol };
        Some(fragment(datagram, offset, total - length, is_last)?)
    };
    Ok(Datagram { source, destination, protocol, fragment, is_cut: bytes.len() < total, transport: rest })
}

fn fragment(datagram: DatagramKey, offset: u16, length: usize, is_last: bool) -> Result<Fragment, ClassifyError> {
    if usize::from(offset) + length > DATAGRAM_MAX {
        return Err(ClassifyError::Corrupt("end of the fragment"));
    }
    let length = u16::try_from(length).expect("it is at most the longest datagram");
    Ok(Fragment { datagram, offset, length, is_last })
}

fn address_v4(header: &[u8; 20], at: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]))
}

fn address_v6(header: &[u8; 40], at: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&header[at..at + 16]);
    IpAddr::V6(Ipv6Addr::from(octets))
}

/// Returns where the identification of a fragment is; `None` for other packets.
pub(crate) fn fragment_id(bytes: &[u8]) -> Option<Range<usize>> {
    network_header(bytes).ok()?.fragment?;
    if bytes[0] >> 4 == 4 {
        return Some(4..6);
    }
    let at = extension_headers(bytes).ok()?.id_at;
    Some(at..at + 4)
}

/// RFC 8200 section 3.
fn ipv6(bytes: &[u8]) -> Result<Datagram<'_>, ClassifyError> {
    let chain = extension_headers(bytes)?;
    let (source, destination) = chain.addresses;
    let transport = chain.bytes.get(chain.at..).unwrap_or_default();
    let is_cut = bytes.len() < chain.end;
    Ok(Datagram { source, destination, protocol: chain.next, fragment: chain.fragment, is_cut, transport })
}

/// RFC 8200 section 4.
fn extension_headers(bytes: &[u8]) -> Result<ExtensionHeaders<'_>, ClassifyError> {
    const LENGTH: usize = 40;
    let header: &[u8; LENGTH] = bytes.first_chunk().ok_or(ClassifyError::Truncated("IPv6 header"))?;
    // 0 is a jumbogram (RFC 2675), which Linux also writes for packets that it cuts into segments later.
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = if payload == 0 { bytes.len() } else { LENGTH + payload };
    let mut chain = ExtensionHeaders {
        bytes: &bytes[..bytes.len().min(end)],
        at: LENGTH,
        end,
        is_length_known: payload > 0,
        next: header[6],
        fragment: None,
        id_at: 0,
        addresses: (address_v6(header, 8), address_v6(header, 24)),
    };
    while chain.step()? {}
    Ok(chain)
}

/// The extension headers of a packet, up to the one that comes next.
struct ExtensionHeaders<'a> {
    bytes: &'a [u8],
    /// Where the next header begins.
    at: usize,
    /// Where the packet ends; behind the end of `bytes` if they are cut off.
    end: usize,
    is_length_known: bool,
    /// The protocol number of the next header.
    next: u8,
    fragment: Option<Fragment>,
    /// Where the identification is, in a fragment.
    id_at: usize,
    addresses: (IpAddr, IpAddr),
}

/// IANA's numbers of extension headers.
mod extension {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION_OPTIONS: u8 = 60;
    pub(super) const MOBILITY: u8 = 135;
    pub(super) const HIP: u8 = 139;
    pub(super) const SHIM6: u8 = 140;
}

impl ExtensionHeaders<'_> {
    /// Goes past one extension header; returns false where the transport header begins or the fragment is a later one.
    fn step(&mut self) -> Result<bool, ClassifyError> {
        use extension::{AUTHENTICATION, DESTINATION_OPTIONS, FRAGMENT, HIP, HOP_BY_HOP, MOBILITY, ROUTING, SHIM6};
        let kind = self.next;
        if !matches!(
            kind,
            HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY | HIP | SHIM6
        ) {
            return Ok(false);
        }
        // Every extension header has at least 8 bytes.
        let header = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<8>);
        let header = *header.ok_or(ClassifyError::Truncated("IPv6 extension header"))?;
        self.next = header[0];
        self.at += match kind {
            FRAGMENT => 8,
            // RFC 4302 section 2.2: in units of 4 bytes, less two.
            AUTHENTICATION => (usize::from(header[1]) + 2) * 4,
            // RFC 8200 section 4: in units of 8 bytes, without the first 8.
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if self.at > self.end {
            let whole = ClassifyError::Corrupt("length of an IPv6 extension header");
            return Err(if self.is_length_known { whole } else { ClassifyError::Truncated("IPv6 extension header") });
        }
        if kind == FRAGMENT {
            self.id_at = self.at - 4;
            self.fragment(header)
        } else {
            Ok(true)
        }
    }

    /// RFC 8200 section 4.5.
    fn fragment(&mut self, header: [u8; 8]) -> Result<bool, ClassifyError> {
        if self.fragment.is_some() {
            return Err(ClassifyError::Corrupt("second fragment header"));
        }
        let word = u16::from_be_bytes([header[2], header[3]]);
        let (offset, is_last) = (word & 0xfff8, word & 1 == 0);
        // A fragment that is the whole datagram is decided like one without the header (RFC 6946).
        if offset == 0 && is_last {
            return Ok(true);
        }
        let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let (source, destination) = self.addresses;
        let datagram = DatagramKey { source, destination, id, protocol: 0 };
        self.fragment = Some(fragment(datagram, offset, self.end - self.at, is_last)?);
        Ok(offset == 0)
    }
}

fn ports(protocol: u8, transport: &[u8]) -> Result<Ports, ClassifyError> {
    use protocol::{DCCP, ICMP, ICMPV6, SCTP, TCP, UDP, UDP_LITE};
    let at = |at: usize, of: &'static str| word(transport, at).ok_or(ClassifyError::Truncated(of));
    match protocol {
        TCP | UDP | UDP_LITE | SCTP | DCCP => Ok(Ports::Pair { source: at(0, "ports")?, destination: at(2, "ports")? }),
        ICMP | ICMPV6 => {
            let kind = *transport.first().ok_or(ClassifyError::Truncated("ICMP header"))?;
            let is_echo = if protocol == ICMP { [0, 8].contains(&kind) } else { [128, 129].contains(&kind) };
            if is_echo { Ok(Ports::Echo(at(4, "ICMP header")?)) } else { Ok(Ports::Absent) }
        }
        _ => Ok(Ports::Absent),
    }
}

/// Returns the bytes of the packet that an ICMP error is about; `None` for other packets.
fn packet_in_icmp_error(protocol: u8, transport: &[u8]) -> Result<Option<&[u8]>, ClassifyError> {
    const HEADER: usize = 8;
    let is_icmp = [protocol::ICMP, protocol::ICMPV6].contains(&protocol);
    if !is_icmp {
        return Ok(None);
    }
    let kind = *transport.first().ok_or(ClassifyError::Truncated("ICMP header"))?;
    // RFC 792: unreachable, source quench, redirect, time exceeded, parameter problem. RFC 4443 section 2.1: types below 128.
    let is_error = if protocol == protocol::ICMP { [3, 4, 5, 11, 12].contains(&kind) } else { kind < 128 };
    if !is_error {
        return Ok(None);
    }
    transport.get(HEADER..).map(Some).ok_or(ClassifyError::Truncated("ICMP header"))
}

/// Returns the flow of the packet in an ICMP error, turned round: the error comes back along the way of that packet.
fn key_of_packet_inside(bytes: &[u8], is_ipv4: bool) -> Result<FlowKey, ClassifyError> {
    let inside = network_header(bytes)?;
    if inside.source.is_ipv4() != is_ipv4 {
        return Err(ClassifyError::Corrupt("version of the packet in an ICMP error"));
    }
    let ports = if inside.is_later_fragment() { Ports::Absent } else { ports(inside.protocol, inside.transport)? };
    let turned = match ports {
        Ports::Pair { source, destination } => Ports::Pair { source: destination, destination: source },
        same => same,
    };
    Ok(FlowKey { source: inside.destination, destination: inside.source, protocol: inside.protocol, ports: turned })
}

#[cfg(test)]
mod tests;
