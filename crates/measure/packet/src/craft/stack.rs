//! All headers of a frame with all their fields: those that a line sets, and defaults for the rest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    ChangePer,
    header::{CLIENT_PORTS, FieldSpec, HeaderKind, HeaderSpec, NextHeaderField, SERVER_PORTS},
    spec::{FrameSpec, LocatedFault, Payload, SpecFault, SpecHeader, TextSpan, Value},
};
use fathom_model::MacAddress;

/// The two hosts that frames go between. They provide the defaults of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameEndpoints {
    /// The sending device.
    pub source: FrameEndpoint,
    /// The destination.
    pub target: FrameEndpoint,
}

/// A host on the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameEndpoint {
    /// Its MAC address, or that of the router towards it.
    pub mac: MacAddress,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    pub port: u16,
}

impl FrameEndpoint {
    /// Its addresses, except the unspecified one.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let both = [self.ipv4.map(IpAddr::V4), self.ipv6.map(IpAddr::V6)];
        both.into_iter().flatten().filter(|address| !address.is_unspecified())
    }
}

/// The headers of a frame, each with all its fields except lengths and checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeaderStack {
    pub(super) layers: Vec<SpecHeader>,
    pub(super) payload: Payload,
    pub(super) n_flows: u32,
}

/// The most flows that a range yields if their number is not set.
const FLOWS_BY_RANGE_MAX: u64 = 65_536;
/// The default TTL of RFC 1812 section 5.3.1.
const TIME_TO_LIVE: u128 = 64;
/// For experiments on a private network (the first IEEE 802 local experimental `EtherType`).
const EXPERIMENTAL_ETHERTYPE: u16 = 0x88b5;
/// For experiments (RFC 3692 section 2.1).
const EXPERIMENTAL_PROTOCOL: u8 = 253;
/// The largest window without window scaling (RFC 9293 section 3.1).
const WINDOW: u128 = 65_535;
const SYN: u128 = 2;
/// An IPv6 option that pads six bytes (RFC 8200 section 4.2).
const PADDING: [u8; 6] = [1, 4, 0, 0, 0, 0];

impl HeaderStack {
    /// Completes a line for two hosts. Without a number of flows, there are as many as its longest range has values.
    pub(super) fn complete(
        line: &FrameSpec,
        ends: &FrameEndpoints,
        n_flows: Option<u32>,
    ) -> Result<Self, LocatedFault> {
        let mut layers = layers(line, ends);
        for pair in layers.windows(2) {
            check_order(&pair[0], &pair[1])?;
        }
        if n_flows.is_some_and(|n| n > 1) && !layers.iter().any(varies_by_flow) {
            default_ports(&mut layers);
        }
        for place in 0..layers.len() {
            fill_in(&mut layers, place, ends)?;
        }
        let n_flows = n_flows.unwrap_or_else(|| n_flows_of_ranges(&layers));
        if n_flows > 1 && !layers.iter().any(varies_by_flow) {
            return Err(SpecFault::Alike { n_flows }.at(0..line.text.len()));
        }
        let payload = line.payload.clone().unwrap_or_else(Payload::mark_only);
        Ok(Self { layers, payload, n_flows })
    }
}

/// The headers of a line, and those that it implies.
fn layers(line: &FrameSpec, ends: &FrameEndpoints) -> Vec<SpecHeader> {
    let end = line.text.len()..line.text.len();
    let mut layers: Vec<SpecHeader> = Vec::new();
    if line.layers.first().is_none_or(|first| first.header.kind != HeaderKind::Ethernet) {
        layers.extend(implied_header("eth", 0..0));
    }
    for layer in &line.layers {
        let is_below_ip = layers.last().is_some_and(|outer| {
            matches!(outer.header.next, NextHeaderField::EtherType(_) | NextHeaderField::Label(_))
        });
        if is_below_ip && layer.header.ethertype.is_none() && layer.header.protocol.is_some() {
            layers.extend(implied_header(ip_keyword(layer.header, ends), layer.span.clone()));
        }
        layers.push(layer.clone());
    }
    let is_raw = line.payload.is_some() && !line.layers.is_empty();
    let is_open = |layers: &[SpecHeader], is_ip: bool| {
        layers.last().is_some_and(|last| match last.header.next {
            NextHeaderField::EtherType(field) => !is_ip && !last.has(field),
            NextHeaderField::Label(_) => !is_ip,
            NextHeaderField::Protocol(field) => is_ip && !last.has(field),
            NextHeaderField::Nothing => false,
        })
    };
    if !is_raw && is_open(&layers, false) {
        layers.extend(implied_header(if ends.prefers_ipv4() { "ip" } else { "ip6" }, end.clone()));
    }
    if !is_raw && is_open(&layers, true) {
        layers.extend(implied_header("udp", end));
    }
    layers
}

fn implied_header(word: &str, span: TextSpan) -> Option<SpecHeader> {
    HeaderSpec::find(word).map(|header| SpecHeader { header, span, fields: Vec::new(), options: Vec::new() })
}

/// Returns the IP version of an implied IP header.
fn ip_keyword(header: &HeaderSpec, ends: &FrameEndpoints) -> &'static str {
    match header.kind {
        HeaderKind::Icmpv6 | HeaderKind::Ipv6Options | HeaderKind::Ipv6Fragment => "ip6",
        HeaderKind::Icmp => "ip",
        _ if ends.prefers_ipv4() => "ip",
        _ => "ip6",
    }
}

/// Checks whether one header can be directly inside another.
fn check_order(outer: &SpecHeader, inner: &SpecHeader) -> Result<(), LocatedFault> {
    use HeaderKind::{Icmp, Icmpv6, Ipv4, Ipv6, Ipv6Fragment, Ipv6Options, Mpls};
    let (out, within) = (outer.header.kind, inner.header.kind);
    let can = match outer.header.next {
        NextHeaderField::EtherType(_) => inner.header.ethertype.is_some(),
        NextHeaderField::Label(_) => matches!(within, Mpls | Ipv4 | Ipv6),
        NextHeaderField::Protocol(_) => {
            let is_ipv4 = out == Ipv4;
            let is_stranger =
                if is_ipv4 { matches!(within, Icmpv6 | Ipv6Options | Ipv6Fragment) } else { within == Icmp };
            inner.header.protocol.is_some() && !is_stranger
        }
        NextHeaderField::Nothing => false,
    };
    let fault = SpecFault::Order { inner: inner.header.keyword, outer: outer.header.keyword };
    if can { Ok(()) } else { Err(fault.at(inner.span.clone())) }
}

/// Whether the header differs between flows.
fn varies_by_flow(layer: &SpecHeader) -> bool {
    layer.fields.iter().any(|(_, value)| value.is_range() && value.per == ChangePer::Flow)
}

/// Sets the ports that the line does not set to the ranges of RFC 4814. Without a difference there would be no flows.
fn default_ports(layers: &mut [SpecHeader]) {
    let is_transport = |layer: &&mut SpecHeader| matches!(layer.header.kind, HeaderKind::Udp | HeaderKind::Tcp);
    if let Some(layer) = layers.iter_mut().rfind(is_transport) {
        layer.set_default("src", Value::any(CLIENT_PORTS));
        layer.set_default("dst", Value::any(SERVER_PORTS));
    }
}

/// Returns the number of values of the longest stepped range, or of the longest random range if no range is stepped.
fn n_flows_of_ranges(layers: &[SpecHeader]) -> u32 {
    use super::spec::ValueSequence;
    let values = || layers.iter().flat_map(|layer| &layer.fields).map(|(_, value)| value);
    let longest = |is_random: bool| {
        let of_kind =
            |value: &&Value| value.per == ChangePer::Flow && (value.succession == ValueSequence::Random) == is_random;
        values().filter(of_kind).map(|value| value.n.get()).max().filter(|n| *n > 1)
    };
    let n = longest(false).or_else(|| longest(true)).unwrap_or(1);
    u32::try_from(n.min(FLOWS_BY_RANGE_MAX)).unwrap_or(1)
}

/// Sets all fields that the line does not set, except those that depend on lengths.
fn fill_in(layers: &mut [SpecHeader], place: usize, ends: &FrameEndpoints) -> Result<(), LocatedFault> {
    let inner = layers.get(place + 1).map(|inner| inner.header);
    let Some(layer) = layers.get_mut(place) else { return Ok(()) };
    match layer.header.next {
        NextHeaderField::EtherType(field) => {
            let number = inner.map_or(Some(EXPERIMENTAL_ETHERTYPE), |inner| inner.ethertype);
            layer.set_default(field, Value::constant(number.unwrap_or(EXPERIMENTAL_ETHERTYPE).into()));
        }
        NextHeaderField::Protocol(field) => {
            let number = inner.map_or(Some(EXPERIMENTAL_PROTOCOL), |inner| inner.protocol);
            layer.set_default(field, Value::constant(number.unwrap_or(EXPERIMENTAL_PROTOCOL).into()));
        }
        NextHeaderField::Label(field) => {
            let is_last = inner.is_none_or(|inner| inner.kind != HeaderKind::Mpls);
            layer.set_default(field, Value::constant(is_last.into()));
        }
        NextHeaderField::Nothing => {}
    }
    let constants: &[(&str, u128)] = match layer.header.kind {
        HeaderKind::Mpls => &[("ttl", TIME_TO_LIVE)],
        HeaderKind::Arp => &[("htype", 1), ("ptype", 0x0800), ("hlen", 6), ("plen", 4), ("op", 1)],
        // A packet that is a fragment may be fragmented, so DF stays clear.
        HeaderKind::Ipv4 if layer.has("mf") || layer.has("offset") => &[("version", 4), ("ttl", TIME_TO_LIVE)],
        HeaderKind::Ipv4 => &[("version", 4), ("df", 1), ("ttl", TIME_TO_LIVE)],
        HeaderKind::Ipv6 => &[("version", 6), ("hops", TIME_TO_LIVE)],
        HeaderKind::Tcp => &[("flags", SYN), ("window", WINDOW)],
        HeaderKind::Icmp => &[("type", 8)],
        HeaderKind::Icmpv6 => &[("type", 128)],
        _ => &[],
    };
    for (field, value) in constants {
        layer.set_default(field, Value::constant(*value));
    }
    layer.pad_options();
    layer.set_addresses(ends)
}

impl SpecHeader {
    /// Whether a field is set.
    pub(super) fn has(&self, word: &str) -> bool {
        self.fields.iter().any(|(field, _)| field.keyword == word)
    }

    /// The first value of a field that is set.
    fn first(&self, word: &str) -> Option<u128> {
        self.fields.iter().find(|(field, _)| field.keyword == word).map(|(_, value)| value.first)
    }

    /// The length in bytes, options included.
    pub(super) fn length(&self) -> usize {
        self.header.length + self.options.len()
    }

    /// Sets a field, unless it or an overlapping field is set.
    fn set_default(&mut self, word: &str, value: Value) {
        let Some(field) = self.header.field(word) else { return };
        let overlaps = |other: &FieldSpec| other.bit < field.bit + field.bits && field.bit < other.bit + other.bits;
        if !self.fields.iter().any(|(other, _)| overlaps(other)) {
            self.fields.push((field, value));
        }
    }

    /// Pads the options to a length that the header can express.
    fn pad_options(&mut self) {
        let unit = match self.header.kind {
            HeaderKind::Ipv4 | HeaderKind::Tcp => 4,
            HeaderKind::Ipv6Options => 8,
            _ => return,
        };
        if self.header.kind == HeaderKind::Ipv6Options && self.options.is_empty() {
            self.options.extend(PADDING);
        }
        // Zero ends the options of IPv4 and TCP, and is one byte of padding in IPv6.
        let length = self.length().next_multiple_of(unit);
        self.options.resize(length - self.header.length, 0);
    }

    /// Sets the addresses that the line does not set to those of the two hosts.
    fn set_addresses(&mut self, ends: &FrameEndpoints) -> Result<(), LocatedFault> {
        let (source, target) = (&ends.source, &ends.target);
        let mac = |mac: MacAddress| Some(mac.0.iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte)));
        let v4 = |end: &FrameEndpoint| end.ipv4.map(|address| u128::from(address.to_bits()));
        let v6 = |end: &FrameEndpoint| end.ipv6.map(Ipv6Addr::to_bits);
        let is_reply = self.first("op") == Some(2);
        let wanted: Vec<(&str, Option<u128>)> = match self.header.kind {
            HeaderKind::Ethernet => vec![("src", mac(source.mac)), ("dst", mac(target.mac))],
            HeaderKind::Arp => {
                let asked = if is_reply { mac(target.mac) } else { Some(0) };
                vec![("sha", mac(source.mac)), ("spa", v4(source)), ("tha", asked), ("tpa", v4(target))]
            }
            HeaderKind::Ipv4 => vec![("src", v4(source)), ("dst", v4(target))],
            HeaderKind::Ipv6 => vec![("src", v6(source)), ("dst", v6(target))],
            HeaderKind::Udp | HeaderKind::Tcp => {
                vec![("src", Some(source.port.into())), ("dst", Some(target.port.into()))]
            }
            _ => vec![],
        };
        for (word, address) in wanted.into_iter().filter(|(word, _)| !self.has(word)).collect::<Vec<_>>() {
            let what = if self.header.kind == HeaderKind::Ipv6 { "an IPv6 address" } else { "an IPv4 address" };
            let missing = || SpecFault::NoAddress { header: self.header.keyword, what }.at(self.span.clone());
            let address = address.ok_or_else(missing)?;
            self.set_default(word, Value::constant(address));
        }
        Ok(())
    }
}

impl FrameEndpoints {
    /// Whether both hosts have an IPv4 address, or one of them lacks an IPv6 address.
    fn prefers_ipv4(&self) -> bool {
        let has_both = self.source.ipv4.is_some() && self.target.ipv4.is_some();
        has_both || self.source.ipv6.is_none() || self.target.ipv6.is_none()
    }
}
