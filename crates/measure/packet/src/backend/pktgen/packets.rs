//! Translates frames into pktgen's parameters, or says why pktgen cannot send them.
//!
//! pktgen builds UDP over IPv4 or IPv6, optionally with tags or labels, and steps through ranges of some fields by itself. Its behavior is
//! taken from `net/core/pktgen.c` of Linux 6.1 and checked on real frames by `make test-vm`. This module knows no device and
//! no time.

use std::net::{Ipv4Addr, Ipv6Addr};

use fathom_engine::{Error, pace::WorkShare};

use super::super::unsupported;
use crate::craft::{ChangePer, FieldValues, FrameSet, FrameTemplate, interleaved};
use fathom_model::MacAddress;
use fathom_pktgen::{DevicePorts, FlagState, PktgenSetting, SizeWeight, Value};
use fathom_wire::{ChecksumSum, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, Mark, PROTOCOL_UDP, Udp};

/// Packets as pktgen builds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PktgenPackets {
    headers: PacketHeaders,
    sizes: Vec<SizeWeight>,
}

/// The common headers of all packets in front of UDP, and the offset of UDP.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PacketHeaders {
    /// IEEE 802.1Q tags, outermost first: priority, DEI bit, VLAN ID.
    tags: Vec<u16>,
    /// MPLS label stack entries without the bottom-of-stack bit, outermost first.
    labels: Vec<u32>,
    /// The offset of IP.
    ip: usize,
    family: IpVersion,
    /// The IPv4 TOS byte or the IPv6 traffic class.
    service: u8,
    /// The offset of UDP.
    udp: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IpVersion {
    V4 { has_df: bool },
    V6,
}

/// The values that one thread gives a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadValues {
    first: u64,
    n: u64,
    order: ValueOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueOrder {
    /// One after the other.
    Steps,
    Random,
}

/// A field that pktgen can change: the offset of its first byte, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FieldPosition {
    name: &'static str,
    at: usize,
    width: usize,
}

const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_MPLS: u16 = 0x8847;
const IPV4_LENGTH: usize = 20;
const IPV6_LENGTH: usize = 40;
const DO_NOT_FRAGMENT: u16 = 0x4000;
/// The MPLS bottom-of-stack bit. pktgen sets it itself; if a label includes it, pktgen makes the labels random.
const BOTTOM_OF_STACK: u32 = 0x100;
const LABELS_MAX: usize = 15;
/// The default TTL of frames, and the TTL of pktgen's packets.
const TIME_TO_LIVE: [u8; 2] = [64, 32];
/// The size of the table that pktgen draws packet sizes from.
const SHARES: u64 = 100;
const MIX_MAX: usize = 20;

/// Reads the big-endian word at `at` from headers whose length has been checked.
fn read_u16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u16::from_be_bytes(*word))
}

fn refuse<T>(what: &str) -> Result<T, Error> {
    Err(unsupported(what.to_owned()))
}

impl PktgenPackets {
    /// Returns packets equal to these frames, apart from pktgen's fixed differences, which [`PktgenPackets::remark`] describes.
    pub(super) fn of(blueprint: &FrameSet) -> Result<Self, Error> {
        let Some(first) = blueprint.templates.first() else { return refuse("there is nothing to send") };
        let headers = PacketHeaders::of(first)?;
        for shape in &blueprint.templates {
            let is_same = PacketHeaders::of(shape)? == headers && shape.changes == first.changes;
            if !is_same || shape.bytes[..12] != first.bytes[..12] {
                return refuse("it makes one kind of packet, in several sizes");
            }
        }
        headers.require_known_changes(first)?;
        Ok(Self { headers, sizes: sizes(blueprint)? })
    }

    /// How its packets differ from the request, as a phrase that follows "the kernel's pktgen, ".
    pub(super) fn remark(&self) -> String {
        let always = match self.headers.family {
            IpVersion::V4 { has_df: true } => "with a TTL of 32, without DF and without a checksum of UDP",
            IpVersion::V4 { has_df: false } => "with a TTL of 32 and without a checksum of UDP",
            IpVersion::V6 => "with a hop limit of 32",
        };
        if self.sizes.len() == 1 {
            return always.to_owned();
        }
        let shares = shares(&self.sizes).into_iter().zip(&self.sizes);
        let shares: Vec<String> = shares.map(|(share, size)| format!("{share} % of {} B", size.size + 4)).collect();
        format!("{always}; sizes are drawn at random, {}", shares.join(", "))
    }

    /// The packet settings of one worker's thread.
    pub(super) fn settings(
        &self,
        blueprint: &FrameSet,
        share: WorkShare,
        ports: DevicePorts,
    ) -> Result<Vec<PktgenSetting>, Error> {
        let shape = &blueprint.templates[0];
        let fields = WorkerFields { template: shape, n_flows: blueprint.n_flows.into(), share };
        let mut settings = self.size_settings();
        let mac =
            |at: usize| MacAddress(shape.bytes[at..at + 6].try_into().expect("a frame begins with two addresses"));
        for (name, at) in [("dst_mac", 0), ("src_mac", 6)] {
            settings.push(PktgenSetting::new(name, mac(at)));
            let values = fields.values(FieldPosition { name: "Ethernet addresses", at, width: 6 })?;
            if values.n > 1 {
                let (count, random) =
                    if at == 0 { ("dst_mac_count", "MACDST_RND") } else { ("src_mac_count", "MACSRC_RND") };
                let first =
                    MacAddress(values.first.to_be_bytes()[2..].try_into().expect("six of eight bytes are left"));
                settings.extend([PktgenSetting::new(name, first), PktgenSetting::new(count, values.n)]);
                settings.extend(values.flag(random));
            }
        }
        settings.extend(self.headers.tag_settings());
        match self.headers.family {
            IpVersion::V4 { .. } => settings.extend(self.headers.v4_settings(&fields)?),
            IpVersion::V6 => settings.extend(self.headers.v6_settings(&fields)?),
        }
        settings.extend(self.headers.port_settings(&fields, ports)?);
        Ok(settings)
    }

    fn size_settings(&self) -> Vec<PktgenSetting> {
        match self.sizes.as_slice() {
            [one] => vec![PktgenSetting::new("pkt_size", one.size)],
            several => vec![PktgenSetting::new("imix_weights", several.to_vec())],
        }
    }
}

/// The frame lengths and their weights.
fn sizes(blueprint: &FrameSet) -> Result<Vec<SizeWeight>, Error> {
    let count = |place: usize| blueprint.order.iter().filter(|other| usize::from(**other) == place).count() as u64;
    let weight =
        |(place, shape): (usize, &FrameTemplate)| SizeWeight { size: shape.bytes.len() as u64, weight: count(place) };
    let sizes: Vec<SizeWeight> = blueprint.templates.iter().enumerate().map(weight).collect();
    if sizes.len() == 1 {
        return Ok(sizes);
    }
    let weights: Vec<(u16, u64)> = (0..).zip(&sizes).map(|(place, size)| (place, size.weight)).collect();
    if interleaved(&weights) != blueprint.order {
        return refuse("it draws sizes by their weights, and keeps no order of them");
    }
    if sizes.len() > MIX_MAX {
        return refuse("it mixes 20 sizes at most");
    }
    if shares(&sizes).contains(&0) {
        return refuse("it draws sizes in whole hundredths, and one of these is rarer");
    }
    Ok(sizes)
}

/// The number of entries of each size in pktgen's table (`fill_imix_distribution`). The last size gets the remainder.
fn shares(sizes: &[SizeWeight]) -> Vec<u64> {
    let total: u64 = sizes.iter().map(|size| size.weight).sum();
    let mut shares: Vec<u64> =
        sizes.iter().map(|size| (size.weight * SHARES).checked_div(total).unwrap_or(0)).collect();
    let others: u64 = shares.iter().rev().skip(1).sum();
    if let Some(last) = shares.last_mut() {
        *last = SHARES.saturating_sub(others);
    }
    shares
}

impl PacketHeaders {
    fn of(shape: &FrameTemplate) -> Result<Self, Error> {
        let bytes = shape.bytes.as_slice();
        let BelowIp { tags, labels, ethertype, ip } = below_ip(bytes)?;
        let packet = bytes.get(ip..).unwrap_or_default();
        let (family, service, length) = match ethertype {
            ETHERTYPE_IPV4 => v4(packet)?,
            ETHERTYPE_IPV6 => v6(packet)?,
            _ => return refuse("it makes UDP over IPv4 and IPv6 only"),
        };
        if packet.len() != length {
            return refuse("its packets fill their frames, and have no other length");
        }
        let udp = ip + if family == IpVersion::V6 { IPV6_LENGTH } else { IPV4_LENGTH };
        let payload = udp + Udp::LENGTH;
        if usize::from(read_u16(bytes, udp + 4)) != bytes.len() - udp
            || !shape.checksums.iter().any(|sum| sum.at == udp + 6)
        {
            return refuse("lengths and checksums of UDP are its own");
        }
        let rest = bytes.get(payload + Mark::LENGTH..).unwrap_or_default();
        if shape.mark_at != Some(payload) || rest.iter().any(|byte| *byte != 0) {
            return refuse("after UDP it has its own header and zeros, and no other payload");
        }
        Ok(Self { tags, labels, ip, family, service, udp })
    }

    /// The position of the IP source address.
    fn source(&self) -> FieldPosition {
        let what = "source addresses";
        match self.family {
            IpVersion::V4 { .. } => FieldPosition { name: what, at: self.ip + 12, width: 4 },
            // Only the lower half of an IPv6 address changes.
            IpVersion::V6 => FieldPosition { name: what, at: self.ip + 16, width: 8 },
        }
    }

    fn destination(&self) -> FieldPosition {
        let FieldPosition { at, width, .. } = self.source();
        let full = if self.family == IpVersion::V6 { 16 } else { width };
        FieldPosition { name: "destination addresses", at: at + full, width }
    }

    fn source_port(&self) -> FieldPosition {
        FieldPosition { name: "source ports", at: self.udp, width: 2 }
    }

    fn destination_port(&self) -> FieldPosition {
        FieldPosition { name: "destination ports", at: self.udp + 2, width: 2 }
    }

    /// Returns an error if a field changes that pktgen cannot change.
    fn require_known_changes(&self, shape: &FrameTemplate) -> Result<(), Error> {
        let mac = |at| FieldPosition { name: "", at, width: 6 };
        let places = [mac(0), mac(6), self.source(), self.destination(), self.source_port(), self.destination_port()];
        let is_known = |at: usize, width: usize| places.iter().any(|place| (place.at, place.width) == (at, width));
        if shape.changes.iter().all(|edit| is_known(edit.at, edit.width)) {
            return Ok(());
        }
        refuse("it changes addresses and ports from packet to packet, and nothing else")
    }

    fn tag_settings(&self) -> Vec<PktgenSetting> {
        let mut settings = Vec::new();
        // The inner tag first: pktgen accepts an outer tag only after it.
        let names = [["vlan_id", "vlan_p", "vlan_cfi"], ["svlan_id", "svlan_p", "svlan_cfi"]];
        for (tag, [id, priority, bit]) in self.tags.iter().rev().zip(names) {
            settings.push(PktgenSetting::new(id, u64::from(tag & 0x0fff)));
            settings.push(PktgenSetting::new(priority, u64::from(tag >> 13)));
            settings.push(PktgenSetting::new(bit, u64::from(tag >> 12 & 1)));
        }
        if !self.labels.is_empty() {
            settings.push(PktgenSetting::new("mpls", self.labels.clone()));
        }
        settings
    }

    fn v4_settings(&self, fields: &WorkerFields<'_>) -> Result<Vec<PktgenSetting>, Error> {
        let mut settings = vec![PktgenSetting::new("tos", Value::Octet(self.service))];
        let ends = [
            (self.source(), ["src_min", "src_max"], "IPSRC_RND"),
            (self.destination(), ["dst_min", "dst_max"], "IPDST_RND"),
        ];
        for (place, [min, max], random) in ends {
            let values = fields.values(place)?;
            // Random addresses exclude the maximum; stepped addresses include it.
            let last = values.first + if values.is_random() { values.n } else { values.n - 1 };
            let Ok(last) = u32::try_from(last) else { return refuse("no random address is its last, 255.255.255.255") };
            let first = u32::try_from(values.first).unwrap_or(u32::MAX);
            for (name, address) in [(min, first), (max, last)] {
                settings.push(PktgenSetting::new(name, Value::Address(Ipv4Addr::from(address).into())));
            }
            settings.extend(values.flag(random));
        }
        Ok(settings)
    }

    fn v6_settings(&self, fields: &WorkerFields<'_>) -> Result<Vec<PktgenSetting>, Error> {
        let whole = |place: FieldPosition, low: u64| {
            let mut octets = [0; 16];
            octets[..8].copy_from_slice(&fields.template.bytes[place.at - 8..place.at]);
            octets[8..].copy_from_slice(&low.to_be_bytes());
            Value::Address(Ipv6Addr::from(octets).into())
        };
        let (from, to) = (self.source(), self.destination());
        let source = fields.values(from)?;
        if source.n > 1 {
            return refuse("over IPv6 its source address is always the same");
        }
        let destination = fields.values(to)?;
        let mut settings = vec![
            PktgenSetting::new("dst6", whole(to, destination.first)),
            PktgenSetting::new("src6", whole(from, source.first)),
            PktgenSetting::new("traffic_class", Value::Octet(self.service)),
            // A UDP datagram over IPv6 needs its checksum (RFC 8200 section 8.1).
            PktgenSetting::new("flag", Value::Flag("UDPCSUM", FlagState::On)),
        ];
        if destination.n > 1 {
            // pktgen computes (random | lowest) & highest. This covers a whole network, and no other range.
            let is_network = destination.n.is_power_of_two() && destination.first.is_multiple_of(destination.n);
            if !destination.is_random() || !is_network {
                return refuse("over IPv6 its destinations are one, or random ones of a whole network");
            }
            settings.push(PktgenSetting::new("dst6_min", whole(to, destination.first)));
            settings.push(PktgenSetting::new("dst6_max", whole(to, destination.first + destination.n - 1)));
        }
        Ok(settings)
    }

    fn port_settings(&self, fields: &WorkerFields<'_>, ports: DevicePorts) -> Result<Vec<PktgenSetting>, Error> {
        let first = u64::from(ports.first) + u64::from(ports.each) * fields.share.idx as u64;
        // The receiver has chosen the source ports; only their order remains to be set.
        let order = fields.values(self.source_port())?.order;
        let source = ThreadValues { first, n: ports.each.into(), order };
        let destination = fields.values(self.destination_port())?;
        let ends = [
            (source, ["udp_src_min", "udp_src_max"], "UDPSRC_RND"),
            (destination, ["udp_dst_min", "udp_dst_max"], "UDPDST_RND"),
        ];
        let mut settings = Vec::new();
        for (values, [min, max], random) in ends {
            // pktgen never sends the last port of a range.
            let last = if values.n > 1 { values.first + values.n } else { values.first };
            if last > u16::MAX.into() {
                return refuse("it leaves out the last port of a range, and no port is above 65535");
            }
            settings.extend([PktgenSetting::new(min, values.first), PktgenSetting::new(max, last)]);
            settings.extend(values.flag(random));
        }
        Ok(settings)
    }
}

/// The headers in front of a packet.
struct BelowIp {
    /// Of VLANs.
    tags: Vec<u16>,
    /// Of MPLS.
    labels: Vec<u32>,
    /// The `EtherType` of the packet.
    ethertype: u16,
    /// The offset of the packet.
    ip: usize,
}

fn below_ip(bytes: &[u8]) -> Result<BelowIp, Error> {
    let (mut tags, mut labels) = (Vec::new(), Vec::new());
    let (mut ethertype, mut at) = (read_u16(bytes, 12), Ethernet::LENGTH);
    while ethertype == ETHERTYPE_VLAN {
        tags.push(read_u16(bytes, at));
        ethertype = read_u16(bytes, at + 2);
        at += 4;
    }
    if ethertype == ETHERTYPE_MPLS {
        loop {
            let word = u32::from(read_u16(bytes, at)) << 16 | u32::from(read_u16(bytes, at + 2));
            labels.push(word & !BOTTOM_OF_STACK);
            at += 4;
            if word & BOTTOM_OF_STACK != 0 || at >= bytes.len() {
                break;
            }
        }
        ethertype = if bytes.get(at).is_some_and(|byte| byte >> 4 == 6) { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    }
    match (tags.len(), labels.len()) {
        (0..=2, 0) | (0, 0..=LABELS_MAX) if ethertype == 0x88a8 => {
            refuse("both its tags are of 802.1Q (0x8100): `vlan 5 / vlan 7`")
        }
        (0..=2, 0) | (0, 0..=LABELS_MAX) => Ok(BelowIp { tags, labels, ethertype, ip: at }),
        (0, _) => refuse("it puts 15 labels before a packet at most"),
        (_, 0) => refuse("it puts two tags before a packet at most"),
        _ => refuse("it puts tags before a packet or labels, not both"),
    }
}

fn v4(packet: &[u8]) -> Result<(IpVersion, u8, usize), Error> {
    let Some((header, _)) = packet.split_first_chunk::<IPV4_LENGTH>() else {
        return refuse("it makes whole headers only");
    };
    let fragment = read_u16(header, 6);
    if header[0] != 0x45 || header[9] != PROTOCOL_UDP {
        return refuse("it makes UDP over IPv4 without options only");
    }
    if fragment & !DO_NOT_FRAGMENT != 0 || read_u16(header, 4) != 0 {
        return refuse("it makes no fragments, and numbers packets itself");
    }
    require_time_to_live(header[8])?;
    if ChecksumSum::default().add_bytes(header).checksum() != 0 {
        return refuse("lengths and checksums of IP are its own");
    }
    let family = IpVersion::V4 { has_df: fragment & DO_NOT_FRAGMENT != 0 };
    Ok((family, header[1], read_u16(header, 2).into()))
}

fn v6(packet: &[u8]) -> Result<(IpVersion, u8, usize), Error> {
    let Some((header, _)) = packet.split_first_chunk::<IPV6_LENGTH>() else {
        return refuse("it makes whole headers only");
    };
    let first = read_u16(header, 0);
    if header[6] != PROTOCOL_UDP {
        return refuse("it makes UDP over IPv6 without further headers only");
    }
    if first >> 12 != 6 || first & 0xf != 0 || read_u16(header, 2) != 0 {
        return refuse("it gives packets of IPv6 no flow label");
    }
    require_time_to_live(header[7])?;
    let [_, service] = (first >> 4).to_be_bytes();
    Ok((IpVersion::V6, service, IPV6_LENGTH + usize::from(read_u16(header, 4))))
}

fn require_time_to_live(value: u8) -> Result<(), Error> {
    if TIME_TO_LIVE.contains(&value) { Ok(()) } else { refuse("its TTL or hop limit is always 32") }
}

/// The source of the field values of one worker's packets.
struct WorkerFields<'a> {
    template: &'a FrameTemplate,
    n_flows: u64,
    share: WorkShare,
}

impl WorkerFields<'_> {
    /// The values of the packets of all threads at this position.
    fn of_threads(&self, place: FieldPosition) -> Result<ThreadValues, Error> {
        let Some(edit) = self.template.changes.iter().find(|edit| edit.at == place.at) else {
            let bytes = &self.template.bytes[place.at..place.at + place.width];
            let first = bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
            return Ok(ThreadValues { first, n: 1, order: ValueOrder::Steps });
        };
        match edit.values {
            FieldValues::Step { first, by, n } if by == 1 || n.get() == 1 => {
                Ok(ThreadValues { first, n: n.get(), order: ValueOrder::Steps })
            }
            FieldValues::Step { .. } => Err(unsupported(format!("it goes through {} one by one", place.name))),
            FieldValues::Random { first, n, .. } if edit.per == ChangePer::Frame => {
                Ok(ThreadValues { first, n: n.get(), order: ValueOrder::Random })
            }
            FieldValues::Random { .. } if self.n_flows == 1 => {
                let first = edit.values.at(0);
                Ok(ThreadValues { first, n: 1, order: ValueOrder::Steps })
            }
            FieldValues::Random { .. } => Err(unsupported(format!(
                "it keeps no random {} for each flow: a range that flows go through, such as --ports '1024-2047 > 9', it can",
                place.name
            ))),
        }
    }

    /// The values of this worker's packets: its flows are consecutive, and so are their values.
    fn values(&self, place: FieldPosition) -> Result<ThreadValues, Error> {
        let all = self.of_threads(place)?;
        let per = self.template.changes.iter().find(|edit| edit.at == place.at).map(|edit| edit.per);
        if per != Some(ChangePer::Flow) || all.n == 1 {
            return Ok(all);
        }
        let (idx, of) = (self.share.idx as u64, self.share.of as u64);
        let each = self.n_flows / of;
        let start = each * idx % all.n;
        let is_even = self.n_flows.is_multiple_of(of);
        if is_even && each.is_multiple_of(all.n) {
            Ok(all)
        } else if is_even && start + each <= all.n {
            Ok(ThreadValues { first: all.first + start, n: each, ..all })
        } else {
            let Self { n_flows, .. } = self;
            Err(unsupported(format!(
                "{n_flows} flows go through {} {} unevenly, {of} threads of it at a time",
                all.n, place.name
            )))
        }
    }
}

impl ThreadValues {
    fn is_random(self) -> bool {
        self.order == ValueOrder::Random && self.n > 1
    }

    fn flag(self, name: &'static str) -> Option<PktgenSetting> {
        self.is_random().then(|| PktgenSetting::new("flag", Value::Flag(name, FlagState::On)))
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::Settings;

    use super::*;
    use crate::craft::{self, FrameContext, FrameEndpoint, FrameEndpoints};

    /// Options as names and values.
    type Options = &'static [(&'static str, &'static str)];

    const ALONE: WorkShare = WorkShare { idx: 0, of: 1 };
    const ONE: DevicePorts = DevicePorts { first: 50_000, each: 1 };

    fn blueprint(options: &[(&str, &str)]) -> FrameSet {
        let end = |last: u8, port| FrameEndpoint {
            mac: MacAddress([2, 0, 0, 0, 0, last]),
            ipv4: Some(Ipv4Addr::new(198, 18, 0, last)),
            ipv6: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())),
            port,
        };
        let setup = FrameContext {
            ends: FrameEndpoints { source: end(1, 49_152), target: end(2, 9) },
            mtu_bytes: 9000,
            seed: 7,
        };
        let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
        craft::from_settings(&settings, &setup).unwrap()
    }

    fn lines(options: &[(&str, &str)], share: WorkShare, ports: DevicePorts) -> Result<Vec<String>, String> {
        let blueprint = blueprint(options);
        let packets = PktgenPackets::of(&blueprint).map_err(|error| error.to_string())?;
        let settings = packets.settings(&blueprint, share, ports).map_err(|error| error.to_string())?;
        Ok(settings.iter().map(PktgenSetting::to_string).collect())
    }

    /// Returns the lines that the plainest packet does not have.
    fn beside(options: &[(&str, &str)], share: WorkShare, ports: DevicePorts) -> Vec<String> {
        let plain = lines(&[], ALONE, ONE).unwrap();
        lines(options, share, ports).unwrap().into_iter().filter(|line| !plain.contains(line)).collect()
    }

    fn why_not(options: &[(&str, &str)]) -> String {
        lines(options, ALONE, ONE).unwrap_err()
    }

    #[test]
    fn the_plainest_packet_is_written_line_by_line() {
        let expected = [
            "pkt_size 60",
            "dst_mac 02:00:00:00:00:02",
            "src_mac 02:00:00:00:00:01",
            "tos 00",
            "src_min 198.18.0.1",
            "src_max 198.18.0.1",
            "dst_min 198.18.0.2",
            "dst_max 198.18.0.2",
            "udp_src_min 50000",
            "udp_src_max 50000",
            "udp_dst_min 9",
            "udp_dst_max 9",
        ];
        assert_eq!(lines(&[], ALONE, ONE).unwrap(), expected);
        let remark = PktgenPackets::of(&blueprint(&[])).unwrap().remark();
        assert_eq!(remark, "with a TTL of 32, without DF and without a checksum of UDP");
    }

    #[test]
    fn sizes_tags_labels_and_service_become_parameters() {
        let cases: [(Options, &[&str]); 7] = [
            (&[("size", "1518")], &["pkt_size 1514"]),
            (&[("mix", "imix")], &["imix_weights 60,7 566,4 1514,1"]),
            (&[("tos", "0xb8"), ("ttl", "32")], &["tos b8"]),
            (&[("vlan", "5")], &["pkt_size 64", "vlan_id 5", "vlan_p 0", "vlan_cfi 0"]),
            (
                &[("frame", "vlan 7 / vlan 5 prio 3")],
                &["pkt_size 68", "vlan_id 5", "vlan_p 3", "vlan_cfi 0", "svlan_id 7", "svlan_p 0", "svlan_cfi 0"],
            ),
            // Label 16 and label 17, 64 routers each; pktgen itself marks the last.
            (&[("mpls", "16,17")], &["pkt_size 68", "mpls 00010040,00011040"]),
            (
                &[("transport", "udp6"), ("tos", "0xb8")],
                &["pkt_size 80", "dst6 fd00::2", "src6 fd00::1", "traffic_class b8", "flag UDPCSUM"],
            ),
        ];
        for (options, expected) in cases {
            assert_eq!(beside(options, ALONE, ONE), expected, "{options:?}");
        }
        let remark =
            PktgenPackets::of(&blueprint(&[("mix", "128:7,570:4,1518:1"), ("transport", "udp6")])).unwrap().remark();
        let expected = "with a hop limit of 32; sizes are drawn at random, 58 % of 128 B, 33 % of 570 B, 9 % of 1518 B";
        assert_eq!(remark, expected);
    }

    #[test]
    fn ranges_are_gone_through_or_drawn_from_with_the_ends_that_pktgen_means() {
        let cases: [(Options, &[&str]); 6] = [
            (&[("addresses", "> 198.18.0.2-198.18.0.9")], &["dst_max 198.18.0.9"]),
            (&[("addresses", "198.18.0.1-198.18.0.4? each > 198.18.0.2")], &["src_max 198.18.0.5", "flag IPSRC_RND"]),
            (&[("ports", "> 1000-1007")], &["udp_dst_min 1000", "udp_dst_max 1008"]),
            (&[("ports", "> 1000-1007? each")], &["udp_dst_min 1000", "udp_dst_max 1008", "flag UDPDST_RND"]),
            (&[("frame", "eth src 02:00:00:00:00:01-02:00:00:00:00:08")], &["src_mac_count 8"]),
            (
                &[("frame", "ip6 > fd00::10-fd00::1f? each")],
                &[
                    "pkt_size 80",
                    "dst6 fd00::10",
                    "src6 fd00::1",
                    "traffic_class 00",
                    "flag UDPCSUM",
                    "dst6_min fd00::10",
                    "dst6_max fd00::1f",
                ],
            ),
        ];
        for (options, expected) in cases {
            assert_eq!(beside(options, ALONE, ONE), expected, "{options:?}");
        }
    }

    #[test]
    fn flows_are_shared_out_among_threads_in_rows() {
        let ports = DevicePorts { first: 1024, each: 4 };
        let options = [("ports", "1024-1031 > 9")];
        let second = WorkShare { idx: 1, of: 2 };
        assert_eq!(beside(&options, second, ports), ["udp_src_min 1028", "udp_src_max 1032"]);
        let both = [("frame", "ip > 10.0.0.0-10.0.0.7 / udp 1024-1031 > 9")];
        let expected = ["dst_min 10.0.0.4", "dst_max 10.0.0.7", "udp_src_min 1028", "udp_src_max 1032"];
        assert_eq!(beside(&both, second, ports), expected);
        let random = [("ports", "1024-1031? each > 9")];
        let expected = ["udp_src_min 1028", "udp_src_max 1032", "flag UDPSRC_RND"];
        assert_eq!(beside(&random, second, ports), expected);
        let uneven = lines(&[("addresses", "> 10.0.0.1-10.0.0.7")], second, ONE).unwrap_err();
        assert!(uneven.starts_with("7 flows go through 7 destination addresses unevenly, 2 threads"), "{uneven}");
    }

    #[test]
    fn what_it_cannot_make_is_refused_with_the_reason() {
        let cases: [(Options, &str); 21] = [
            (&[("transport", "tcp")], "it makes UDP over IPv4 without options only"),
            (&[("transport", "icmp6")], "it makes UDP over IPv6 without further headers only"),
            (&[("frame", "arp")], "it makes UDP over IPv4 and IPv6 only"),
            (&[("ttl", "3")], "its TTL or hop limit is always 32"),
            (&[("vlan", "5,7")], "both its tags are of 802.1Q (0x8100)"),
            (&[("frame", "vlan 1 / vlan 2 / vlan 3")], "it puts two tags before a packet at most"),
            (&[("frame", "vlan 1 / mpls 16")], "it puts tags before a packet or labels, not both"),
            (&[("frame", "ip id 5")], "it makes no fragments, and numbers packets itself"),
            (&[("frame", "ip6 label 5")], "it gives packets of IPv6 no flow label"),
            (&[("frame", "ip checksum 5")], "lengths and checksums of IP are its own"),
            (&[("frame", "udp checksum 5")], "lengths and checksums of UDP are its own"),
            (&[("size", "100"), ("payload", "fill 0xff")], "after UDP it has its own header and zeros"),
            (&[("mix", "aaab")], "it draws sizes by their weights, and keeps no order of them"),
            (&[("mix", "128:1,64:199")], "it draws sizes in whole hundredths, and one of these is rarer"),
            (&[("flows", "8")], "it keeps no random source ports for each flow"),
            (&[("ports", "> 65528-65535")], "it leaves out the last port of a range"),
            (&[("addresses", "> 255.255.255.248-255.255.255.255? each")], "no random address is its last"),
            (&[("frame", "vlan 1-8")], "it changes addresses and ports from packet to packet, and nothing else"),
            (&[("frame", "ip > 10.0.0.0-10.0.0.8+2")], "it goes through destination addresses one by one"),
            (&[("frame", "ip6 > fd00::1-fd00::8")], "over IPv6 its destinations are one, or random ones"),
            (&[("frame", "ip6 fd00::1-fd00::8")], "over IPv6 its source address is always the same"),
        ];
        for (options, expected) in cases {
            let reason = why_not(options);
            assert!(reason.starts_with(expected), "{options:?}: {reason}");
        }
    }
}
