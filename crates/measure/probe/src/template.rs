//! Writes probes and parses the replies to them.
//!
//! It knows no socket and no clock. A probe carries a 15-bit tag in a field that its protocol returns: the source port or the
//! sequence number (TCP), the source port or the checksum (UDP), the sequence number (ICMP). The fields that routers hash to
//! choose a path are the same for all probes of a constant flow, including the ICMP checksum (Augustin et al., "Avoiding
//! traceroute anomalies with Paris traceroute", 2006).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv4Options,
    Ipv6Header, LaxIpSlice, TcpHeader, TcpOptionElement, UdpHeader,
};

use super::fragments::{RECORD_ROUTE, is_later_fragment};
use super::reply::{
    HOPS_UNKNOWN, IcmpError, IcmpErrorKind, Reply, ReplyContent, ReplyIpHeader, ReplyTcpHeader, TcpFlags,
};

/// The number of tags. Answers to probes that are further apart are ambiguous.
pub const TAGS: u16 = 1 << 15;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;

const ECHO: u8 = 8;
const ECHO_V6: u8 = 128;
/// ICMP timestamp (RFC 792); does not exist in `ICMPv6`.
pub const TIMESTAMP: u8 = 13;

/// TCP header fields of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpProbe {
    pub flags: TcpFlags,
    /// The window, unscaled.
    pub window: u16,
    /// A sequence number for all probes; `None` if it carries the tag.
    pub sequence: Option<u32>,
    /// An acknowledgment number for all probes; `None` if it carries the tag.
    pub acknowledgment: Option<u32>,
    /// The maximum segment size option.
    pub mss: Option<u16>,
    /// The timestamp option (RFC 7323), with this value.
    pub timestamp: Option<u32>,
}

/// The protocol of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    /// A TCP segment.
    Tcp(TcpProbe),
    /// A UDP datagram.
    Udp,
    /// An ICMP message with an identifier and a sequence number.
    Icmp { kind: u8, code: u8 },
    /// A packet of any protocol, without a header of its own.
    Raw {
        /// The protocol number.
        protocol: u8,
    },
}

impl ProbeKind {
    /// A TCP segment that opens a connection.
    pub const SYN: Self = Self::Tcp(TcpProbe {
        flags: TcpFlags::SYN,
        // As small as hping3's: no data will follow.
        window: 512,
        sequence: None,
        acknowledgment: None,
        mss: None,
        timestamp: None,
    });

    /// An echo request of the same IP version as the destination.
    #[must_use]
    pub const fn echo(destination: IpAddr) -> Self {
        Self::Icmp { kind: if destination.is_ipv4() { ECHO } else { ECHO_V6 }, code: 0 }
    }

    fn protocol(self, is_ipv4: bool) -> u8 {
        match self {
            Self::Tcp(_) => TCP,
            Self::Udp => UDP,
            Self::Icmp { .. } => {
                if is_ipv4 {
                    ICMP
                } else {
                    ICMP_V6
                }
            }
            Self::Raw { protocol } => protocol,
        }
    }

    fn header_length(self) -> u16 {
        match self {
            Self::Tcp(tcp) => 20 + if tcp.mss.is_some() { 4 } else { 0 } + if tcp.timestamp.is_some() { 12 } else { 0 },
            Self::Udp | Self::Icmp { .. } => 8,
            Self::Raw { .. } => 0,
        }
    }
}

/// IP header fields of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpFields {
    /// The hop limit, unless `ProbeFields` overrides it.
    pub hops: u8,
    /// The byte with DSCP and ECN.
    pub traffic_class: u8,
    /// An identification for all probes; `None` if each has its own. IPv6 has none.
    pub identification: Option<u16>,
    /// Sets DF. Routers never fragment IPv6 packets.
    pub dont_fragment: bool,
    /// Sets MF, even if no more fragments follow. IPv4 only.
    pub more_fragments: bool,
    /// The fragment offset in bytes, rounded down to a multiple of eight. IPv4 only.
    pub fragment_offset: u16,
    /// Adds a record-route option. IPv4 only.
    pub record_route: bool,
}

impl IpFields {
    /// The record-route option with room for nine addresses, and the end of the option list after it: forty bytes, the maximum.
    fn options(self) -> Ipv4Options {
        /// The pointer to the slot of the first address, counted from one.
        const FIRST: u8 = 4;
        let mut bytes = [0; 40];
        bytes[..3].copy_from_slice(&[RECORD_ROUTE, 39, FIRST]);
        if self.record_route { Ipv4Options::from(bytes) } else { Ipv4Options::default() }
    }
}

impl Default for IpFields {
    /// The defaults of Linux.
    fn default() -> Self {
        Self {
            hops: 64,
            traffic_class: 0,
            identification: None,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            record_route: false,
        }
    }
}

/// Whether probes share the fields that routers choose a path by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowRule {
    /// All probes belong to one flow.
    Constant,
    /// All have the same source port. The payloads are not adjusted.
    SamePort,
    /// Each has its own source port, like a new client.
    PerProbe,
}

/// The checksum of TCP and UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumMode {
    /// The correct checksum.
    Valid,
    /// A wrong checksum, so that receivers which check it drop the probe.
    Invalid,
}

impl ChecksumMode {
    fn of(self, right: u16) -> u16 {
        match self {
            Self::Valid => right,
            // Zero would mean that there is no checksum (RFC 768).
            Self::Invalid => right.checked_add(1).unwrap_or(1),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbePorts {
    /// The destination port, unless `ProbeFields` overrides it.
    pub destination: u16,
    /// The source port of the first probe.
    pub source: u16,
}

/// The fields of a single probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbeFields {
    /// The tag, below [`TAGS`].
    pub tag: u16,
    /// The hop limit.
    pub hops: Option<u8>,
    /// The length of the whole packet.
    pub length: Option<u16>,
    /// The destination port.
    pub port: Option<u16>,
    /// For an ICMP timestamp: the time of day in UT, in milliseconds.
    pub originate: Option<u32>,
    /// The source address.
    pub source: Option<IpAddr>,
    /// The index of its payload, modulo their number.
    pub payload: usize,
}

/// The common fields of all probes to one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTemplate {
    /// The source address.
    pub source: IpAddr,
    /// The destination address, of the same IP version.
    pub destination: IpAddr,
    pub kind: ProbeKind,
    pub ip: IpFields,
    pub ports: ProbePorts,
    pub flow: FlowRule,
    /// The secret that marks our probes. Identifiers and the first sequence number are derived from it.
    pub secret: u32,
    /// The payloads, used in turn; empty for none.
    pub payloads: Vec<Vec<u8>>,
    pub checksum: ChecksumMode,
}

impl ProbeTemplate {
    /// The shortest packet that can be written.
    #[must_use]
    pub fn shortest(&self) -> u16 {
        self.headers() + self.payload_min()
    }

    fn headers(&self) -> u16 {
        let ip = if self.destination.is_ipv4() { 20 + u16::from(self.ip.options().len_u8()) } else { 40 };
        self.kind.header_length() + ip
    }

    /// The payload needs room for the word that keeps the checksum constant.
    fn payload_min(&self) -> u16 {
        match (self.flow, self.kind) {
            (FlowRule::Constant, ProbeKind::Udp | ProbeKind::Icmp { .. }) => 2,
            _ => 0,
        }
    }

    /// Sets the ICMP identifier to one that the kernel has chosen.
    pub fn set_identifier(&mut self, identifier: u16) {
        self.secret = self.secret >> 16 << 16 | u32::from(identifier);
    }

    /// The ICMP identifier.
    fn identifier(&self) -> u16 {
        low_half(self.secret)
    }

    fn source_port(&self, tag: u16) -> u16 {
        match self.flow {
            FlowRule::Constant | FlowRule::SamePort => self.ports.source,
            FlowRule::PerProbe => self.ports.source.wrapping_add(tag),
        }
    }

    /// Overwrites `packet` with a probe.
    pub fn write(&self, order: ProbeFields, packet: &mut Vec<u8>) {
        let given = self.payloads.get(order.payload % self.payloads.len().max(1)).map_or(&[][..], Vec::as_slice);
        let least = self.payload_min().max(u16::try_from(given.len()).unwrap_or(u16::MAX));
        let length = order.length.map_or(least, |length| length.saturating_sub(self.headers()).max(self.payload_min()));
        let mut payload = given.to_vec();
        payload.resize(length.into(), 0);
        let segment = match self.kind {
            ProbeKind::Tcp(tcp) => self.tcp(tcp, order, &payload),
            ProbeKind::Udp => self.udp(order, &mut payload),
            ProbeKind::Icmp { kind, code } => self.icmp((kind, code), order, &mut payload),
            ProbeKind::Raw { .. } => Vec::new(),
        };
        packet.clear();
        packet.extend_from_slice(&self.ip_header(order, segment.len() + payload.len()));
        packet.extend_from_slice(&segment);
        packet.extend_from_slice(&payload);
    }

    fn ip_header(&self, order: ProbeFields, payload_length: usize) -> Vec<u8> {
        let hops = order.hops.unwrap_or(self.ip.hops);
        let protocol = IpNumber(self.kind.protocol(self.destination.is_ipv4()));
        let payload_length = u16::try_from(payload_length).unwrap_or(u16::MAX);
        match (order.source.unwrap_or(self.source), self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let options = self.ip.options();
                let mut header = Ipv4Header {
                    dscp: IpDscp::try_new(self.ip.traffic_class >> 2).unwrap_or_default(),
                    ecn: IpEcn::try_new(self.ip.traffic_class & 3).unwrap_or_default(),
                    total_len: payload_length.saturating_add(20 + u16::from(options.len_u8())),
                    identification: self.identification(order.tag),
                    dont_fragment: self.ip.dont_fragment,
                    more_fragments: self.ip.more_fragments,
                    fragment_offset: IpFragOffset::try_new(self.ip.fragment_offset / 8).unwrap_or_default(),
                    time_to_live: hops,
                    protocol,
                    header_checksum: 0,
                    source: source.octets(),
                    destination: destination.octets(),
                    options,
                };
                header.header_checksum = header.calc_header_checksum();
                header.to_bytes().to_vec()
            }
            (source, destination) => {
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                let header = Ipv6Header {
                    traffic_class: self.ip.traffic_class,
                    payload_length,
                    next_header: protocol,
                    hop_limit: hops,
                    source: octets(source),
                    destination: octets(destination),
                    ..Ipv6Header::default()
                };
                header.to_bytes().to_vec()
            }
        }
    }

    /// The identification. It must not be zero, because the kernel would replace that.
    fn identification(&self, tag: u16) -> u16 {
        self.ip.identification.unwrap_or(TAGS | tag)
    }

    fn tcp(&self, ask: TcpProbe, order: ProbeFields, payload: &[u8]) -> Vec<u8> {
        let source = order.source.unwrap_or(self.source);
        let is_acknowledging = ask.flags.has(TcpFlags::ACK);
        let numbered = self.first_sequence().wrapping_add(u32::from(order.tag) << 16);
        let acknowledgment = ask.acknowledgment.unwrap_or(if is_acknowledging { numbered } else { 0 });
        let mut header = TcpHeader::new(
            self.source_port(order.tag),
            order.port.unwrap_or(self.ports.destination),
            ask.sequence.unwrap_or(numbered),
            ask.window,
        );
        header.acknowledgment_number = acknowledgment;
        header.fin = ask.flags.has(TcpFlags::FIN);
        header.syn = ask.flags.has(TcpFlags::SYN);
        header.rst = ask.flags.has(TcpFlags::RST);
        header.psh = ask.flags.has(TcpFlags::PSH);
        header.ack = is_acknowledging;
        header.urg = ask.flags.has(TcpFlags::URG);
        header.ece = ask.flags.has(TcpFlags(0x40));
        header.cwr = ask.flags.has(TcpFlags(0x80));
        let mut options = Vec::new();
        options.extend(ask.mss.map(TcpOptionElement::MaximumSegmentSize));
        if let Some(value) = ask.timestamp {
            options.extend([TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(value, 0)]);
        }
        header.set_options(&options).expect("two options fit into a header");
        let checksum = match (source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                header.calc_checksum_ipv4_raw(source.octets(), destination.octets(), payload)
            }
            _ => header.calc_checksum_ipv6_raw(octets_v6(source), octets_v6(self.destination), payload),
        };
        header.checksum = self.checksum.of(checksum.expect("a packet is shorter than 65,536 bytes"));
        header.to_bytes().to_vec()
    }

    fn udp(&self, order: ProbeFields, payload: &mut [u8]) -> Vec<u8> {
        let source = order.source.unwrap_or(self.source);
        let length = u16::try_from(payload.len() + 8).unwrap_or(u16::MAX);
        let mut header = UdpHeader {
            source_port: self.source_port(order.tag),
            destination_port: order.port.unwrap_or(self.ports.destination),
            length,
            checksum: 0,
        };
        let sum = |header: &UdpHeader, payload: &[u8]| {
            match (source, self.destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    header.calc_checksum_ipv4_raw(source.octets(), destination.octets(), payload)
                }
                _ => header.calc_checksum_ipv6_raw(octets_v6(source), octets_v6(self.destination), payload),
            }
            .expect("a packet is shorter than 65,536 bytes")
        };
        if self.flow == FlowRule::Constant {
            payload[..2].fill(0);
            // The word that turns the checksum into the tag. Tags are encoded from one, because zero would mean no checksum.
            let word = ones_complement_add(!(order.tag + 1), sum(&header, payload));
            payload[..2].copy_from_slice(&word.to_be_bytes());
        }
        header.checksum = self.checksum.of(sum(&header, payload));
        header.to_bytes().to_vec()
    }

    fn icmp(&self, (kind, code): (u8, u8), order: ProbeFields, payload: &mut Vec<u8>) -> Vec<u8> {
        // Originate, receive and transmit time follow; the first is that of the requester.
        if kind == TIMESTAMP && self.destination.is_ipv4() {
            payload.resize(payload.len().max(12), 0);
            payload[..4].copy_from_slice(&order.originate.unwrap_or(0).to_be_bytes());
        } else if self.flow == FlowRule::Constant {
            payload[..2].copy_from_slice(&(!order.tag).to_be_bytes());
        }
        let mut rest = [0; 4];
        rest[..2].copy_from_slice(&self.identifier().to_be_bytes());
        rest[2..].copy_from_slice(&order.tag.to_be_bytes());
        if self.destination.is_ipv4() {
            let message = Icmpv4Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest };
            return Icmpv4Header::with_checksum(message, payload).to_bytes().to_vec();
        }
        let message = Icmpv6Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest };
        let (source, destination) = (octets_v6(order.source.unwrap_or(self.source)), octets_v6(self.destination));
        let header = Icmpv6Header::with_checksum(message, source, destination, payload);
        header.expect("a packet is shorter than 65,536 bytes").to_bytes().to_vec()
    }

    fn first_sequence(&self) -> u32 {
        self.secret & 0x7fff_0000
    }

    /// Returns the tag of one of our own probes, to recognize the kernel's copy of it.
    #[must_use]
    pub fn own_tag(&self, packet: &[u8]) -> Option<u16> {
        let (ip, _) = LaxIpSlice::from_slice(packet).ok()?;
        self.tag_of(&ip)
    }

    /// Returns the tag in a probe, or in the part of it that an ICMP error quotes.
    fn tag_of(&self, ip: &LaxIpSlice<'_>) -> Option<u16> {
        if (ip.source_addr(), ip.destination_addr()) != (self.source, self.destination) {
            return None;
        }
        let is_ipv4 = self.destination.is_ipv4();
        if ip.payload_ip_number().0 != self.kind.protocol(is_ipv4) {
            return None;
        }
        // Only the first fragment of a packet starts with its header, unless our probes set another offset themselves.
        let offset = ip.ipv4().map_or(0, |ip| ip.header().fragments_offset().value());
        if offset != self.ip.fragment_offset / 8 {
            return None;
        }
        let bytes = ip.payload().payload;
        let word = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let tag = match (self.kind, self.flow) {
            (ProbeKind::Tcp(ask), FlowRule::PerProbe) => {
                let tag = word(0)?.wrapping_sub(self.ports.source);
                let sequence = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?);
                // Other programs may talk to the same host from a port in our range.
                if ask.sequence.is_none() && self.tag_of_sequence(sequence) != tag {
                    return None;
                }
                tag
            }
            (ProbeKind::Udp, FlowRule::PerProbe) => word(0)?.wrapping_sub(self.ports.source),
            (ProbeKind::Tcp(_) | ProbeKind::Udp, _) if word(0)? != self.ports.source => return None,
            (ProbeKind::Tcp(TcpProbe { sequence: None, .. }), _) => {
                let sequence = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?);
                self.tag_of_sequence(sequence)
            }
            (ProbeKind::Tcp(_) | ProbeKind::Raw { .. }, _) | (ProbeKind::Udp, FlowRule::SamePort) => {
                let identification = ip.ipv4().filter(|_| self.ip.identification.is_none())?.header().identification();
                identification ^ self.identification(0)
            }
            (ProbeKind::Udp, FlowRule::Constant) => word(6)?.wrapping_sub(1),
            (ProbeKind::Icmp { kind, .. }, _) => {
                let is_ours = *bytes.first()? == kind && word(4)? == self.identifier();
                if is_ours { word(6)? } else { return None }
            }
        };
        (tag < TAGS).then_some(tag)
    }

    fn tag_of_sequence(&self, number: u32) -> u16 {
        high_half(number.wrapping_sub(self.first_sequence())) & (TAGS - 1)
    }

    /// Parses an incoming packet; `None` if it does not answer one of these probes.
    #[must_use]
    pub fn read(&self, packet: &[u8]) -> Option<Reply> {
        let (ip, _) = LaxIpSlice::from_slice(packet).ok()?;
        if ip.destination_addr() != self.source || is_later_fragment(packet) {
            return None;
        }
        let (from, bytes) = (ip.source_addr(), ip.payload().payload);
        let protocol = ip.payload_ip_number().0;
        let is_icmp = protocol == ProbeKind::echo(self.destination).protocol(self.destination.is_ipv4());
        if is_icmp && let Some((trouble, tag)) = self.icmp_error(bytes) {
            let is_final =
                matches!(trouble.error_kind, IcmpErrorKind::PortUnreachable | IcmpErrorKind::ProtocolUnreachable);
            let is_from_target = from == self.destination && is_final;
            return Some(Reply {
                from,
                ip: reply_ip_header(&ip, packet),
                content: ReplyContent::Error(trouble),
                tag,
                is_from_target,
            });
        }
        if protocol != self.kind.protocol(self.destination.is_ipv4()) {
            return None;
        }
        // Members of a group answer from their own addresses.
        let is_group = is_group(self.destination);
        if from != self.destination && !is_group {
            return None;
        }
        let (what, tag) = match self.kind {
            ProbeKind::Tcp(ask) => self.tcp_reply(ask, bytes)?,
            ProbeKind::Udp => self.udp_reply(bytes)?,
            ProbeKind::Icmp { kind, .. } => self.icmp_reply(kind, bytes)?,
            // On loopback our own probe arrives here too.
            ProbeKind::Raw { .. } if self.source == self.destination => return None,
            ProbeKind::Raw { protocol } => (ReplyContent::Protocol(protocol), None),
        };
        Some(Reply { from, ip: reply_ip_header(&ip, packet), content: what, tag, is_from_target: true })
    }

    /// Whether a port is a source port of our probes.
    fn is_ours(&self, port: u16) -> bool {
        match self.flow {
            FlowRule::Constant | FlowRule::SamePort => port == self.ports.source,
            FlowRule::PerProbe => port.wrapping_sub(self.ports.source) < TAGS,
        }
    }

    /// Returns the tag of the probe with this source port, if each has its own.
    fn tag_of_port(&self, port: u16) -> Option<u16> {
        let tag = port.wrapping_sub(self.ports.source);
        (self.flow == FlowRule::PerProbe && tag < TAGS).then_some(tag)
    }

    /// Whether an ICMP error quotes nothing that differs between probes.
    fn is_untagged(&self) -> bool {
        match self.kind {
            ProbeKind::Tcp(ask) => ask.sequence.is_some() && self.flow != FlowRule::PerProbe,
            ProbeKind::Udp => self.flow == FlowRule::SamePort,
            ProbeKind::Raw { .. } => true,
            ProbeKind::Icmp { .. } => false,
        }
    }

    fn tcp_reply(&self, ask: TcpProbe, bytes: &[u8]) -> Option<(ReplyContent, Option<u16>)> {
        let (header, _) = TcpHeader::from_slice(bytes).ok()?;
        // On loopback our own probe arrives here too.
        let is_own = self.source == self.destination && self.is_ours(header.source_port);
        if is_own || !self.is_ours(header.destination_port) {
            return None;
        }
        let by_port = self.tag_of_port(header.destination_port);
        let by_number = if header.ack {
            ask.sequence.is_none().then(|| self.tag_of_sequence(header.acknowledgment_number))
        } else {
            let is_told = ask.acknowledgment.is_none() && ask.flags.has(TcpFlags::ACK);
            is_told.then(|| self.tag_of_sequence(header.sequence_number))
        };
        let tag = match (by_port, by_number) {
            // Other programs may talk to the same host from a port in our range.
            (Some(by_port), Some(by_number)) if by_port != by_number => return None,
            (by_port, by_number) => by_port.or(by_number),
        };
        let timestamp = header.options_iterator().filter_map(Result::ok).find_map(|option| match option {
            TcpOptionElement::Timestamp(value, _) => Some(value),
            _ => None,
        });
        let seen = ReplyTcpHeader {
            source_port: header.source_port,
            flags: TcpFlags(bytes[13]),
            sequence: header.sequence_number,
            acknowledgment: header.acknowledgment_number,
            window: header.window_size,
            checksum: header.checksum,
            urgent: header.urgent_pointer,
            timestamp,
        };
        Some((ReplyContent::Tcp(seen), tag))
    }

    fn udp_reply(&self, bytes: &[u8]) -> Option<(ReplyContent, Option<u16>)> {
        let (header, payload) = UdpHeader::from_slice(bytes).ok()?;
        let is_own = self.source == self.destination && self.is_ours(header.source_port);
        if is_own || !self.is_ours(header.destination_port) {
            return None;
        }
        let by_port = self.tag_of_port(header.destination_port);
        // An echo service returns the word that determined the checksum of the probe.
        let by_echo = || {
            let word = u16::from_be_bytes(*payload.first_chunk()?);
            (0..TAGS).find(|tag| self.word_of(*tag, payload) == Some(word))
        };
        let is_marked = self.flow == FlowRule::Constant;
        let tag = by_port.or_else(|| if is_marked { by_echo() } else { None });
        Some((ReplyContent::Udp { source_port: header.source_port }, tag))
    }

    /// Returns the first payload word of a UDP probe of a constant flow with the same length as `payload`.
    fn word_of(&self, tag: u16, payload: &[u8]) -> Option<u16> {
        let mut blank = payload.to_vec();
        let _ = self.udp(ProbeFields { tag, ..ProbeFields::default() }, &mut blank);
        blank.first_chunk().map(|word| u16::from_be_bytes(*word))
    }

    fn icmp_reply(&self, asked: u8, bytes: &[u8]) -> Option<(ReplyContent, Option<u16>)> {
        let word = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let time = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let answer = match asked {
            ECHO if self.destination.is_ipv4() => 0,
            // For all other types, the reply follows the request: RFC 792, RFC 950, RFC 4443.
            asked => asked.checked_add(1)?,
        };
        let sequence = word(6)?;
        if *bytes.first()? != answer || word(4)? != self.identifier() {
            return None;
        }
        let is_stamped = asked == TIMESTAMP && self.destination.is_ipv4();
        let timestamps = if is_stamped { Some([time(8)?, time(12)?, time(16)?]) } else { None };
        Some((ReplyContent::Icmp { sequence, timestamps }, Some(sequence).filter(|tag| *tag < TAGS)))
    }

    /// Parses an ICMP error about one of our probes, and returns its tag.
    fn icmp_error(&self, bytes: &[u8]) -> Option<(IcmpError, Option<u16>)> {
        let (kind, code) = (*bytes.first()?, *bytes.get(1)?);
        let (complaint, quoted) = icmp_error_about(bytes, self.destination.is_ipv4())?;
        if (quoted.source_addr(), quoted.destination_addr()) != (self.source, self.destination)
            || quoted.payload_ip_number().0 != self.kind.protocol(self.destination.is_ipv4())
        {
            return None;
        }
        let tag = self.tag_of(&quoted);
        // An error that does not identify a probe may be about another program's packet to the same host.
        let has_ports = matches!(self.kind, ProbeKind::Tcp(_) | ProbeKind::Udp);
        let port = quoted.payload().payload.first_chunk().map(|port| u16::from_be_bytes(*port)).filter(|_| has_ports);
        let is_near = self.is_untagged() && port.is_none_or(|port| self.is_ours(port));
        let is_ours = tag.is_some() || is_near;
        is_ours.then_some((IcmpError { error_kind: complaint, kind, code, source_port: port }, tag))
    }
}

/// Parses an ICMP error, and returns its meaning with the packet that it is about.
fn icmp_error_about(bytes: &[u8], is_ipv4: bool) -> Option<(IcmpErrorKind, LaxIpSlice<'_>)> {
    let (kind, code) = (*bytes.first()?, *bytes.get(1)?);
    let number = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?);
    let kind = if is_ipv4 { icmp_error_kind_v4(kind, code, number) } else { icmp_error_kind_v6(kind, code, number) }?;
    let (quoted, _) = LaxIpSlice::from_slice(bytes.get(8..)?).ok()?;
    Some((kind, quoted))
}

/// Returns the meaning of a packet that is an ICMP error about one to this destination.
pub(super) fn icmp_error_to(ip: &LaxIpSlice<'_>, destination: IpAddr) -> Option<IcmpErrorKind> {
    let is_ipv4 = destination.is_ipv4();
    let is_icmp = ip.payload_ip_number().0 == ProbeKind::echo(destination).protocol(is_ipv4);
    let (kind, quoted) = icmp_error_about(ip.payload().payload, is_ipv4).filter(|_| is_icmp)?;
    (quoted.destination_addr() == destination).then_some(kind)
}

fn is_group(address: IpAddr) -> bool {
    // The broadcast address of a network looks like that of a host. Its members answer anyway.
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Codes of RFC 792 and RFC 1812 section 5.2.7.1.
fn icmp_error_kind_v4(kind: u8, code: u8, number: u32) -> Option<IcmpErrorKind> {
    Some(match (kind, code) {
        (3, 4) => IcmpErrorKind::TooBig(number & 0xffff),
        (3, 3) => IcmpErrorKind::PortUnreachable,
        (3, 2) => IcmpErrorKind::ProtocolUnreachable,
        (3, 0 | 6 | 8 | 11) => IcmpErrorKind::NetworkUnreachable,
        (3, 1 | 5 | 7 | 12) => IcmpErrorKind::HostUnreachable,
        (3, 9 | 10 | 13) => IcmpErrorKind::Prohibited,
        (11, 0) => IcmpErrorKind::HopsExceeded,
        (11, 1) => IcmpErrorKind::ReassemblyTimeExceeded,
        (3 | 4 | 5 | 11 | 12, _) => IcmpErrorKind::Other(kind, code),
        _ => return None,
    })
}

/// Codes of RFC 4443 section 3.
fn icmp_error_kind_v6(kind: u8, code: u8, number: u32) -> Option<IcmpErrorKind> {
    Some(match (kind, code) {
        (2, _) => IcmpErrorKind::TooBig(number),
        (1, 0) => IcmpErrorKind::NetworkUnreachable,
        (1, 1 | 5 | 6) => IcmpErrorKind::Prohibited,
        (1, 2 | 3) => IcmpErrorKind::HostUnreachable,
        (1, 4) => IcmpErrorKind::PortUnreachable,
        (3, 0) => IcmpErrorKind::HopsExceeded,
        (3, 1) => IcmpErrorKind::ReassemblyTimeExceeded,
        (4, 1) => IcmpErrorKind::ProtocolUnreachable,
        (1 | 3 | 4, _) => IcmpErrorKind::Other(kind, code),
        _ => return None,
    })
}

fn known_hops(hops: u8) -> Option<u8> {
    Some(hops).filter(|hops| *hops != HOPS_UNKNOWN)
}

fn reply_ip_header(ip: &LaxIpSlice<'_>, packet: &[u8]) -> ReplyIpHeader {
    let whole = u16::try_from(packet.len()).unwrap_or(u16::MAX);
    match (ip.ipv4(), ip.ipv6()) {
        (Some(ip), _) => {
            let header = ip.header();
            ReplyIpHeader {
                hops_left: known_hops(header.ttl()),
                traffic_class: header.dcp().value() << 2 | header.ecn().value(),
                identification: Some(header.identification()),
                dont_fragment: header.dont_fragment(),
                length: header.total_len(),
            }
        }
        (None, ip) => {
            let header = ip.map(etherparse::LaxIpv6Slice::header);
            ReplyIpHeader {
                hops_left: header.and_then(|header| known_hops(header.hop_limit())),
                traffic_class: header.map_or(0, |header| header.traffic_class()),
                identification: None,
                dont_fragment: true,
                length: header.map_or(whole, |header| header.payload_length().saturating_add(40)),
            }
        }
    }
}

fn octets_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => Ipv6Addr::octets(&address),
    }
}

fn low_half(number: u32) -> u16 {
    u16::try_from(number & 0xffff).expect("16 bits are left")
}

fn high_half(number: u32) -> u16 {
    u16::try_from(number >> 16).expect("16 bits are left")
}

/// The one's complement sum of two words (RFC 1071).
fn ones_complement_add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(ask: ProbeKind, destination: &str) -> ProbeTemplate {
        let destination: IpAddr = destination.parse().unwrap();
        ProbeTemplate {
            source: if destination.is_ipv4() { Ipv4Addr::new(192, 0, 2, 9).into() } else { Ipv6Addr::LOCALHOST.into() },
            destination,
            kind: ask,
            ip: IpFields::default(),
            ports: ProbePorts { destination: 9, source: 20_000 },
            flow: FlowRule::PerProbe,
            secret: 7,
            payloads: vec![b"one".to_vec(), b"two".to_vec()],
            checksum: ChecksumMode::Valid,
        }
    }

    /// Whether the TCP or UDP checksum of a packet is correct: the sum over the segment and its pseudo header is zero.
    fn is_right(packet: &[u8]) -> bool {
        let (ip, _) = LaxIpSlice::from_slice(packet).unwrap();
        let payload = ip.payload().payload;
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let pseudo = [
            octets(ip.source_addr()),
            octets(ip.destination_addr()),
            vec![0, ip.payload_ip_number().0],
            length.to_vec(),
        ];
        let mut all = [&pseudo.concat()[..], payload].concat();
        all.resize(all.len().next_multiple_of(2), 0);
        all.chunks_exact(2).fold(0, |sum, word| ones_complement_add(sum, u16::from_be_bytes([word[0], word[1]])))
            == 0xffff
    }

    #[test]
    fn a_probe_from_elsewhere_says_so_and_its_checksum_holds_for_the_address_that_it_says() {
        for (destination, foreign) in [("192.0.2.1", "203.0.113.5"), ("2001:db8::1", "2001:db8::5")] {
            let foreign: IpAddr = foreign.parse().unwrap();
            for ask in [ProbeKind::SYN, ProbeKind::Udp] {
                let mut packet = Vec::new();
                let order = ProbeFields { tag: 3, source: Some(foreign), ..ProbeFields::default() };
                let mut conversation = conversation(ask, destination);
                conversation.write(order, &mut packet);
                assert_eq!(LaxIpSlice::from_slice(&packet).unwrap().0.source_addr(), foreign);
                assert!(is_right(&packet), "{ask:?} {destination}");
                conversation.checksum = ChecksumMode::Invalid;
                conversation.write(order, &mut packet);
                assert!(!is_right(&packet), "{ask:?} {destination}");
            }
        }
    }

    #[test]
    fn hops_that_the_kernel_keeps_to_itself_are_unknown_and_not_zero() {
        let v4 = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into());
        let v6 = (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        for (ends, hops_left) in [(v4, None), (v6, None), (v4, Some(64)), (v6, Some(1))] {
            let packet = crate::echo::ip_header(IpNumber::UDP, ends, 0, hops_left);
            let (ip, _) = LaxIpSlice::from_slice(&packet).unwrap();
            assert_eq!(reply_ip_header(&ip, &packet).hops_left, hops_left, "{ends:?}");
        }
    }

    #[test]
    fn payloads_take_turns() {
        let conversation = conversation(ProbeKind::Udp, "192.0.2.1");
        let mut packet = Vec::new();
        let mut ends = Vec::new();
        for payload in 0..3 {
            conversation.write(ProbeFields { payload, ..ProbeFields::default() }, &mut packet);
            ends.push(String::from_utf8(packet[28..].to_vec()).unwrap());
        }
        assert_eq!(ends, ["one", "two", "one"]);
    }

    #[test]
    fn a_probe_that_records_its_route_has_room_for_nine_addresses_and_is_found_again() {
        let mut conversation = conversation(ProbeKind::echo(Ipv4Addr::LOCALHOST.into()), "192.0.2.1");
        conversation.ip.record_route = true;
        let mut packet = Vec::new();
        conversation.write(ProbeFields { tag: 5, length: Some(100), ..ProbeFields::default() }, &mut packet);
        assert_eq!((packet.len(), packet[0], &packet[20..24]), (100, 0x4f, &[7, 39, 4, 0][..]));
        assert_eq!(crate::recorded_route(&packet), Some(Vec::new()));
        assert_eq!(conversation.own_tag(&packet), Some(5));
        assert_eq!(conversation.shortest(), 68);
    }

    #[test]
    fn only_the_fragment_that_begins_with_the_header_is_taken_for_a_probe() {
        let mut conversation = conversation(ProbeKind::echo(Ipv4Addr::LOCALHOST.into()), "192.0.2.1");
        let mut packet = Vec::new();
        conversation.write(ProbeFields { tag: 5, ..ProbeFields::default() }, &mut packet);
        packet[7] = 2;
        assert_eq!(conversation.own_tag(&packet), None);
        conversation.ip = IpFields { fragment_offset: 16, more_fragments: true, ..conversation.ip };
        conversation.write(ProbeFields { tag: 5, ..ProbeFields::default() }, &mut packet);
        assert_eq!((&packet[6..8], conversation.own_tag(&packet)), (&[0x20, 2][..], Some(5)));
    }
}
