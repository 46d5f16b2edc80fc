//! Translates pktgen's packets into the frame language: a pktgen block as options of the kind `frames`.
//!
//! pktgen's changes from packet to packet follow `mod_cur_headers` in `net/core/pktgen.c` of Linux 6.1. Each packet has the
//! next value of every range, or a random one, so all packets belong to one flow. This module knows no device and no engine.

use std::net::{Ipv4Addr, Ipv6Addr};

use fathom_model::{
    MacAddress, Settings,
    units::{Nanos, approximate},
};
use fathom_packet::craft::{SizeMix, SizeMixError};
use fathom_pktgen::{Ipv4Range, Params, PktgenAddresses, SizeWeight, VlanTag, XmitMode};
use fathom_wire::{Ethernet, Mark, Udp};

use super::device_params::CHECKSUM;

/// Packets in the terms of the engine.
#[derive(Debug, Clone)]
pub(super) struct EnginePackets {
    /// The frame line: UDP and the headers before it.
    pub(super) line: String,
    /// Sources and destinations, like the other pairs. Without a source, the device's own address is used.
    addresses: AddressPair,
    macs: (PktgenValues, PktgenValues),
    ports: (PktgenValues, PktgenValues),
    sizes: PacketSizes,
    /// A remark if something differs from the request.
    pub(super) remark: Option<String>,
}

/// A parameter that the engine does not support, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnsupportedParameter {
    pub(super) parameter: &'static str,
    pub(super) why: String,
}

/// The values of a field from packet to packet.
#[derive(Debug, Clone, Copy)]
struct PktgenValues {
    first: u128,
    last: u128,
    order: PktgenOrder,
    show: fn(u128) -> String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PktgenOrder {
    InTurn,
    Random,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PacketSizes {
    /// The size that the headers and the sequence number need.
    least: u64,
    /// The sizes in order, then again from the first, without the frame check sequence.
    cycle: Vec<u64>,
    /// The size mix in the engine's syntax, if there are several sizes.
    mix: Option<String>,
}

/// The frame check sequence. pktgen does not count it, but the kind does.
const FRAME_CHECKSUM: u64 = 4;
/// The time to live, or hop limit, of pktgen's packets.
const TIME_TO_LIVE: u8 = 32;
/// The maximum number of sizes in a mix ([`fathom_model::mix`]).
const SIZES_MAX: usize = 10_000;
/// The length of a tag or a label.
const SHIM_BYTES: u64 = 4;
/// Random destinations that pktgen draws again: addresses without a host, loopback, multicast, and the broadcast address.
const REDRAWN_RANGES: [(u32, u32); 4] =
    [(0, 0x00ff_ffff), (0x7f00_0000, 0x7fff_ffff), (0xe000_0000, 0xefff_ffff), (u32::MAX, u32::MAX)];

fn unsupported<T>(parameter: &'static str, why: &str) -> Result<T, UnsupportedParameter> {
    Err(UnsupportedParameter { parameter, why: why.to_owned() })
}

/// Returns the frame length as the kind counts it. Impossible lengths stay impossible.
const fn on_wire(size: u64) -> u64 {
    size.saturating_add(FRAME_CHECKSUM)
}

fn number(value: u128) -> String {
    value.to_string()
}

fn v4(value: u128) -> String {
    Ipv4Addr::from_bits(u32::try_from(value).unwrap_or(u32::MAX)).to_string()
}

fn v6(value: u128) -> String {
    Ipv6Addr::from_bits(value).to_string()
}

fn mac(value: u128) -> String {
    let [_, _, _, _, _, _, _, _, _, _, octets @ ..] = value.to_be_bytes();
    MacAddress(octets).to_string()
}

fn order(params: &Params, random: &str) -> PktgenOrder {
    if has_flag(params, random) { PktgenOrder::Random } else { PktgenOrder::InTurn }
}

fn has_flag(params: &Params, name: &str) -> bool {
    params.flags.iter().any(|flag| flag == name)
}

impl PktgenValues {
    /// Returns the values in the syntax of the frame language.
    fn text(&self) -> String {
        let random = if self.order == PktgenOrder::Random { "?" } else { "" };
        let (first, last) = ((self.show)(self.first), (self.show)(self.last));
        if self.first == self.last { first } else { format!("{first}-{last}{random} each") }
    }

    /// Returns the value of a packet, counted from 0. For random values, the lowest.
    fn at(&self, packet: u64) -> u128 {
        match self.order {
            PktgenOrder::InTurn => self.first + u128::from(packet) % (self.last - self.first + 1),
            PktgenOrder::Random => self.first,
        }
    }

    /// A range of ports. pktgen never sends the last of several.
    fn ports((min, max): (u64, u64), order: PktgenOrder) -> Self {
        let last = if max > min { max - 1 } else { min };
        Self { first: min.into(), last: last.into(), order, show: number }
    }

    /// A range of IPv4 addresses. The last one is included in order, but not at random.
    fn v4(first: Ipv4Addr, end: Option<Ipv4Addr>, order: PktgenOrder) -> Self {
        let (first, end) = (first.to_bits(), end.map_or(0, Ipv4Addr::to_bits));
        let last = if end <= first { first } else { end - u32::from(order == PktgenOrder::Random) };
        Self { first: first.into(), last: last.into(), order, show: v4 }
    }

    /// A range of consecutive MAC addresses. pktgen counts only in the last five bytes.
    fn macs(
        MacAddress(octets): MacAddress,
        count: (&'static str, u64),
        order: PktgenOrder,
    ) -> Result<Self, UnsupportedParameter> {
        const COUNTED: u128 = (1 << 40) - 1;
        let first = octets.iter().fold(0, |all, octet| all << 8 | u128::from(*octet));
        let (parameter, n) = count;
        let more = u128::from(n.saturating_sub(1));
        if (first & COUNTED) + more > COUNTED || n > 1 << 32 {
            return unsupported(parameter, "the addresses go beyond the end of their last five bytes");
        }
        Ok(Self { first, last: first + more, order, show: mac })
    }

    /// IPv6 addresses: a single one, or (random | lowest) & highest. Only ranges that are a whole network are supported.
    fn v6([one, min, max]: [Ipv6Addr; 3]) -> Result<Self, UnsupportedParameter> {
        let (order, show) = (PktgenOrder::Random, v6 as fn(u128) -> String);
        if min.is_unspecified() {
            return Ok(Self { first: one.to_bits(), last: one.to_bits(), order, show });
        }
        let (first, last) = (min.to_bits(), max.to_bits());
        let hosts = first ^ last;
        let is_network = hosts <= u32::MAX.into() && hosts & (hosts + 1) == 0 && first & hosts == 0;
        if !is_network {
            return unsupported("dst6_max", "random IPv6 destinations come from one network, a /96 or a smaller one");
        }
        Ok(Self { first, last, order, show })
    }
}

impl PacketSizes {
    /// Returns the requested sizes, but none below `least`.
    fn of(params: &Params, least: u64) -> Result<Self, SizeMixError> {
        let (min, max) = (params.min_pkt_size, params.max_pkt_size);
        let part = |size: u64, weight: u64| format!("{}:{weight}", on_wire(size.max(least)));
        let parts: Vec<String> = if min < max {
            // At random, the largest size is never sent.
            let last = if has_flag(params, "TXSIZE_RND") { max - 1 } else { max };
            // One more than the maximum of a mix is enough to fail.
            (min..=last).take(SIZES_MAX + 1).map(|size| part(size, 1)).collect()
        } else {
            params.imix_weights.iter().map(|SizeWeight { size, weight }| part(*size, *weight)).collect()
        };
        if parts.is_empty() {
            return Ok(Self { least, cycle: vec![min.max(least)], mix: None });
        }
        let text = parts.join(",");
        let SizeMix { sizes, order } = SizeMix::read(&text, 0)?;
        let length = |place: &u16| sizes[usize::from(*place)].map_or(least, |size| size.without_checksum() as u64);
        Ok(Self { least, cycle: order.iter().map(length).collect(), mix: Some(text) })
    }

    /// Returns the size of a packet, counted from 0.
    fn at(&self, packet: u64) -> u64 {
        let length = self.cycle.len() as u64;
        self.cycle[usize::try_from(packet % length).expect("a place in a list fits")]
    }

    /// Returns the sum of a function over the sizes of the first packets.
    fn sum(&self, packets: u64, each: impl Fn(u64) -> u64) -> u64 {
        let length = self.cycle.len() as u64;
        let rest = usize::try_from(packets % length).expect("a place in a list fits");
        let part = |sizes: &[u64]| sizes.iter().map(|size| each(*size)).sum::<u64>();
        part(&self.cycle) * (packets / length) + part(&self.cycle[..rest])
    }
}

/// Sources, unless they are the device's own address, and destinations.
type AddressPair = (Option<PktgenValues>, PktgenValues);

/// Returns the IP header and its addresses.
fn ip(params: &Params) -> Result<(AddressPair, String), UnsupportedParameter> {
    let (ends, rest) = match params.addresses {
        PktgenAddresses::V4 { dst, src } => {
            (ends_v4(params, [dst, src])?, format!("tos {} ttl {TIME_TO_LIVE} df 0", params.tos))
        }
        PktgenAddresses::V6 { src, dst } => {
            let source = Some(src[0]).filter(|source| !source.is_unspecified());
            let source = source.map(|source| PktgenValues::v6([source, Ipv6Addr::UNSPECIFIED, source])).transpose()?;
            ((source, PktgenValues::v6(dst)?), format!("class {} hops {TIME_TO_LIVE}", params.traffic_class))
        }
    };
    let word = if matches!(params.addresses, PktgenAddresses::V4 { .. }) { "ip" } else { "ip6" };
    let from = ends.0.map(|source| source.text() + " ").unwrap_or_default();
    Ok((ends, format!("{word} {from}> {} {rest}", ends.1.text())))
}

fn ends_v4(params: &Params, [dst, src]: [Ipv4Range; 2]) -> Result<AddressPair, UnsupportedParameter> {
    let source = src.0.map(|first| PktgenValues::v4(first, src.1, order(params, "IPSRC_RND")));
    let first = dst.0.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let destination = PktgenValues::v4(first, dst.1, order(params, "IPDST_RND"));
    let is_drawn_again =
        |(low, high): &(u32, u32)| destination.first <= u128::from(*high) && destination.last >= u128::from(*low);
    if destination.order == PktgenOrder::Random
        && destination.first < destination.last
        && REDRAWN_RANGES.iter().any(is_drawn_again)
    {
        return unsupported(
            "dst_max",
            "the range contains multicast, loopback or other addresses that are not of a host; a random choice leaves them out",
        );
    }
    Ok((source, destination))
}

/// Returns the unicast MAC address for the kind. A group destination appears only in the frame line.
pub(super) fn single(params: &Params) -> MacAddress {
    if params.dst_mac.is_group() { params.src_mac } else { params.dst_mac }
}

/// Returns tags and labels, the outermost first.
fn tags_and_labels(params: &Params) -> Result<Vec<String>, UnsupportedParameter> {
    if has_flag(params, "MPLS_RND") && !params.mpls.is_empty() {
        return unsupported(
            "mpls",
            "labels cannot be random; the last one is marked automatically, without 00000100 in it",
        );
    }
    let tag = |(tag, random): (Option<VlanTag>, &str)| {
        let VlanTag { id, priority, cfi } = tag?;
        let id = if has_flag(params, random) { "? each".to_owned() } else { id.to_string() };
        Some(format!("vlan {id} prio {priority} dei {cfi}"))
    };
    // Both of pktgen's tags are 802.1Q tags.
    let tags = [(params.svlan, "SVID_RND"), (params.vlan, "VID_RND")].into_iter().filter_map(tag);
    let label = |word: &u32| format!("mpls {} tc {} ttl {}", word >> 12, word >> 9 & 7, word & 0xff);
    Ok(tags.chain(params.mpls.iter().map(label)).collect())
}

/// Returns the size of the shortest packet with these headers and fathom's mark after them.
fn size_min(params: &Params, n_shims: u64) -> u64 {
    let ip = if matches!(params.addresses, PktgenAddresses::V4 { .. }) { 20 } else { 40 };
    (Ethernet::LENGTH + Udp::LENGTH + Mark::LENGTH) as u64 + ip + SHIM_BYTES * n_shims
}

/// The position in the packet sequence after the sent packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PacketPosition {
    /// The source, if it is not the device's own address, and the destination of the next packet.
    pub(super) addresses: (Option<String>, String),
    /// Destination and source.
    pub(super) mac_offsets: (u64, u64),
    /// Destination and source.
    pub(super) ports: (u64, u64),
    pub(super) imix_size_counts: Vec<SizeWeight>,
    /// The size of the last packet.
    pub(super) size_bytes: u64,
    /// The total size of all packets, if they have several sizes.
    pub(super) mixed_bytes: Option<u64>,
}

impl EnginePackets {
    /// Returns the packets for a block.
    pub(super) fn of(params: &Params) -> Result<Self, UnsupportedParameter> {
        let macs = (
            PktgenValues::macs(params.src_mac, ("src_mac_count", params.src_mac_count), order(params, "MACSRC_RND"))?,
            PktgenValues::macs(params.dst_mac, ("dst_mac_count", params.dst_mac_count), order(params, "MACDST_RND"))?,
        );
        let ports = (
            PktgenValues::ports(params.udp_src, order(params, "UDPSRC_RND")),
            PktgenValues::ports(params.udp_dst, order(params, "UDPDST_RND")),
        );
        let (addresses, ip) = ip(params)?;
        let checksum = if has_flag(params, CHECKSUM) { "" } else { " checksum 0" };
        let shims = tags_and_labels(params)?;
        let mut layers = vec![format!("eth {} > {}", macs.0.text(), macs.1.text())];
        layers.extend_from_slice(&shims);
        layers.push(ip);
        layers.push(format!("udp {} > {}{checksum}", ports.0.text(), ports.1.text()));
        let least = size_min(params, shims.len() as u64);
        let is_range = params.min_pkt_size < params.max_pkt_size;
        let sizes = PacketSizes::of(params, least).map_err(|error| {
            let many = "a sequence has at most 10000 sizes, of up to 15996 bytes";
            let (parameter, why) =
                if is_range { ("max_pkt_size", many.to_owned()) } else { ("imix_weights", error.to_string()) };
            UnsupportedParameter { parameter, why }
        })?;
        let shortest = params.imix_weights.iter().map(|weight| weight.size).min();
        let shortest = shortest.filter(|_| !is_range).unwrap_or(params.min_pkt_size);
        let remark = (shortest < least).then(|| {
            format!("packets of {shortest} bytes have {least}: so much is needed for their headers and number")
        });
        Ok(Self { line: layers.join(" / "), addresses, macs, ports, sizes, remark })
    }

    /// Returns the options for the kind.
    pub(super) fn settings(&self, params: &Params) -> Settings {
        let mut settings = Settings::default().with("frame", self.line.clone()).with("mac", single(params).to_string());
        match &self.sizes.mix {
            Some(mix) => settings.set("mix", mix.clone()),
            None => settings.set("size", on_wire(self.sizes.at(0)).to_string()),
        }
        if params.count > 0 {
            settings.set("count", params.count.to_string());
        }
        if params.delay > Nanos::ZERO {
            settings.set("rate", format!("{}pps", 1e9 / approximate(params.delay.0)));
        }
        if params.xmit_mode == XmitMode::QueueXmit {
            settings.set("qdisc", "true");
        }
        settings
    }

    /// Returns the position after the given number of packets.
    pub(super) fn after(&self, packets: u64, params: &Params) -> PacketPosition {
        let shown = |values: &PktgenValues| (values.show)(values.at(packets));
        let low = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        let offset = |values: &PktgenValues| low(values.at(packets) - values.first);
        let port = |values: &PktgenValues| low(values.at(packets));
        let count = |weight: &SizeWeight| {
            let size = weight.size.max(self.sizes.least);
            SizeWeight { weight: self.sizes.sum(packets, |other| u64::from(other == size)), ..*weight }
        };
        PacketPosition {
            addresses: (self.addresses.0.as_ref().map(shown), shown(&self.addresses.1)),
            mac_offsets: (offset(&self.macs.1), offset(&self.macs.0)),
            ports: (port(&self.ports.1), port(&self.ports.0)),
            imix_size_counts: params.imix_weights.iter().map(count).collect(),
            size_bytes: self.sizes.at(packets.saturating_sub(1)),
            mixed_bytes: self.sizes.mix.as_ref().map(|_| self.sizes.sum(packets, |size| size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_packet::craft::{self, FrameContext, FrameEndpoint, FrameSet};

    use super::{
        super::device_params::{
            self,
            tests::{OWN, device},
        },
        *,
    };

    /// Returns the packets for these settings, in addition to the settings of every job.
    fn packets(lines: &[&str]) -> Result<(EnginePackets, Params), UnsupportedParameter> {
        let params =
            device_params::params(&device(&[&["dst 10.0.0.2", "dst_mac 02:00:00:00:00:02"], lines].concat()), OWN);
        Ok((EnginePackets::of(&params)?, params))
    }

    fn hosts() -> craft::FrameEndpoints {
        let end = |last: u8, port| FrameEndpoint {
            mac: MacAddress([2, 0, 0, 0, 0, last]),
            ipv4: Some(Ipv4Addr::new(10, 0, 0, last)),
            ipv6: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())),
            port,
        };
        craft::FrameEndpoints { source: end(1, 49_152), target: end(2, 9) }
    }

    /// Returns the frames that the engine builds from the packets. This also checks the syntax of the frame line.
    fn blueprint((packets, params): &(EnginePackets, Params)) -> FrameSet {
        let setup = FrameContext { ends: hosts(), mtu_bytes: 1500, seed: 7 };
        craft::from_settings(&packets.settings(params), &setup).unwrap()
    }

    fn lacking(lines: &[&str]) -> &'static str {
        packets(lines).unwrap_err().parameter
    }

    const ETH: &str = "eth 02:00:00:00:00:01 > 02:00:00:00:00:02";
    const IP: &str = "ip > 10.0.0.2 tos 0 ttl 32 df 0";
    const UDP: &str = "udp 49152 > 9";

    #[test]
    fn the_plainest_job_is_a_line_and_its_options() {
        let lines = ["count 5", "pkt_size 64", "delay 10000", "xmit_mode queue_xmit"];
        let (made, params) = packets(&lines).unwrap();
        let expected = Settings::default()
            .with("frame", format!("{ETH} / {IP} / {UDP}"))
            .with("mac", "02:00:00:00:00:02")
            .with("size", "68")
            .with("count", "5")
            .with("rate", "100000pps")
            .with("qdisc", "true");
        assert_eq!(made.settings(&params), expected);
        assert_eq!(made.remark, None);
        let (made, params) = packets(&["count 0"]).unwrap();
        assert_eq!(made.settings(&params).text("count"), None);
    }

    #[test]
    fn every_setting_has_its_place_in_the_line() {
        let cases: &[(&[&str], [&str; 3])] = &[
            (&["flag !UDPCSUM"], [ETH, IP, "udp 49152 > 9 checksum 0"]),
            (&["tos b8"], [ETH, "ip > 10.0.0.2 tos 184 ttl 32 df 0", UDP]),
            (
                &["vlan_id 5", "vlan_p 3", "vlan_cfi 1"],
                [ETH, "vlan 5 prio 3 dei 1 / ip > 10.0.0.2 tos 0 ttl 32 df 0", UDP],
            ),
            (
                &["vlan_id 5", "svlan_id 7", "flag SVID_RND"],
                [ETH, "vlan ? each prio 0 dei 0 / vlan 5 prio 0 dei 0 / ip > 10.0.0.2 tos 0 ttl 32 df 0", UDP],
            ),
            (
                &["mpls 0001060a,00020040"],
                [ETH, "mpls 16 tc 3 ttl 10 / mpls 32 tc 0 ttl 64 / ip > 10.0.0.2 tos 0 ttl 32 df 0", UDP],
            ),
            (&["udp_src_min 1000", "udp_src_max 1008"], [ETH, IP, "udp 1000-1007 each > 9"]),
            (&["udp_dst_min 9", "udp_dst_max 100", "flag UDPDST_RND"], [ETH, IP, "udp 49152 > 9-99? each"]),
            (&["udp_dst_min 20", "udp_dst_max 21"], [ETH, IP, "udp 49152 > 20"]),
            (&["udp_dst_min 20", "udp_dst_max 10"], [ETH, IP, "udp 49152 > 20"]),
            (&["src_min 10.0.0.7"], [ETH, "ip 10.0.0.7 > 10.0.0.2 tos 0 ttl 32 df 0", UDP]),
            (
                &["src_min 10.0.0.7", "src_max 10.0.0.9", "dst_max 10.0.0.4", "flag IPDST_RND"],
                [ETH, "ip 10.0.0.7-10.0.0.9 each > 10.0.0.2-10.0.0.3? each tos 0 ttl 32 df 0", UDP],
            ),
            (&["src_mac_count 4"], ["eth 02:00:00:00:00:01-02:00:00:00:00:04 each > 02:00:00:00:00:02", IP, UDP]),
            (
                &["src_mac 02:00:00:00:01:00", "dst_mac_count 256", "flag MACDST_RND"],
                ["eth 02:00:00:00:01:00 > 02:00:00:00:00:02-02:00:00:00:01:01? each", IP, UDP],
            ),
            (&["dst6 fd00::2", "traffic_class b8"], [ETH, "ip6 > fd00::2 class 184 hops 32", UDP]),
            (
                &["src6 fd00::7", "dst6 fd00::2", "dst6_min fd00::10", "dst6_max fd00::1f"],
                [ETH, "ip6 fd00::7 > fd00::10-fd00::1f? each class 0 hops 32", UDP],
            ),
        ];
        for (lines, layers) in cases {
            let made = packets(lines).unwrap();
            assert_eq!(made.0.line, layers.join(" / "), "{lines:?}");
            // All packets belong to one flow, so that one thread sends all values.
            assert_eq!(blueprint(&made).n_flows, 1, "{lines:?}");
        }
    }

    #[test]
    fn outside_labs_the_engine_judges_what_leaves() {
        let is_let_out = |lines: &[&str]| craft::check_policy(&blueprint(&packets(lines).unwrap()), &hosts()).is_ok();
        let ports = ["udp_src_min 1000", "udp_src_max 2000", "flag UDPSRC_RND"];
        for lines in
            [&[][..], &["vlan_id 5", "svlan_id 7", "flag VID_RND"], &["mpls 0001000a"], &ports, &["dst6 fd00::2"]]
        {
            assert!(is_let_out(lines), "{lines:?}");
        }
        for lines in [
            &["dst_max 10.0.0.4"][..],
            &["src_min 10.0.0.7"],
            &["src_mac 02:00:00:00:00:07"],
            &["dst_mac_count 2"],
            &["dst_mac ff:ff:ff:ff:ff:ff"],
            &["mpls 0001000a", "dst 10.0.0.7"],
            &["dst6 fd00::2", "src6 fd00::7"],
            &["dst6_min fd00::2", "dst6_max fd00::3"],
        ] {
            assert!(!is_let_out(lines), "{lines:?}");
        }
    }

    #[test]
    fn sizes_go_round_and_short_ones_are_as_long_as_headers_and_number_need() {
        let sizes = |lines: &[&str]| {
            let made = packets(lines).unwrap();
            let order = blueprint(&made);
            let lengths: Vec<usize> =
                order.order.iter().map(|place| order.templates[usize::from(*place)].bytes.len()).collect();
            let told: Vec<usize> =
                (0..).map(|packet| usize::try_from(made.0.sizes.at(packet)).unwrap()).take(lengths.len()).collect();
            assert_eq!(told, lengths, "{lines:?}");
            (lengths, made.0.remark)
        };
        assert_eq!(sizes(&["pkt_size 1514"]), (vec![1514], None));
        assert_eq!(sizes(&["min_pkt_size 60", "max_pkt_size 62"]), (vec![60, 61, 62], None));
        assert_eq!(sizes(&["max_pkt_size 62", "flag TXSIZE_RND"]), (vec![60, 61], None));
        let (mixed, _) = sizes(&["imix_weights 60,7 566,4 1514,1"]);
        assert_eq!([60, 566, 1514].map(|size| mixed.iter().filter(|other| **other == size).count()), [7, 4, 1]);
        let (tagged, remark) = sizes(&["vlan_id 5"]);
        assert_eq!(tagged, [64]);
        assert_eq!(remark.unwrap(), "packets of 60 bytes have 64: so much is needed for their headers and number");
        assert_eq!(sizes(&["dst6 fd00::1", "min_pkt_size 79", "max_pkt_size 82"]).0, [80, 80, 81, 82]);
    }

    #[test]
    fn where_packets_are_follows_from_how_many_have_left() {
        let lines = [
            "udp_src_min 1000",
            "udp_src_max 1004",
            "udp_dst_min 10",
            "udp_dst_max 20",
            "flag UDPDST_RND",
            "dst_max 10.0.0.4",
            "src_mac_count 5",
            "imix_weights 60,2 100,1",
        ];
        let (made, params) = packets(&lines).unwrap();
        let progress = made.after(7, &params);
        assert_eq!((progress.addresses, progress.ports), ((None, "10.0.0.3".to_owned()), (10, 1003)));
        assert_eq!(progress.mac_offsets, (0, 2));
        assert_eq!(
            progress.imix_size_counts,
            [SizeWeight { size: 60, weight: 5 }, SizeWeight { size: 100, weight: 2 }]
        );
        assert_eq!((progress.mixed_bytes, progress.size_bytes), (Some(500), 60));
    }

    #[test]
    fn what_the_engine_does_not_make_is_named() {
        for (lines, parameter) in [
            (&["mpls 0001010a"][..], "mpls"),
            (&["dst_mac ff:ff:ff:ff:ff:fe", "dst_mac_count 4"], "dst_mac_count"),
            (&["src_mac_count 4294967297"], "src_mac_count"),
            (&["dst6_min fd00::1", "dst6_max fd00::9"], "dst6_max"),
            (&["dst6_min fd00::", "dst6_max fd00::ffff:ffff:ffff"], "dst6_max"),
            (&["dst6_min fd00::1"], "dst6_max"),
            (&["max_pkt_size 15000"], "max_pkt_size"),
            (&["max_pkt_size 4294967295"], "max_pkt_size"),
            (&["imix_weights 60,1 20000,1"], "imix_weights"),
            (&["imix_weights 60,10000 70,1"], "imix_weights"),
            (&["dst 127.0.0.1", "dst_max 127.0.0.9", "flag IPDST_RND"], "dst_max"),
            (&["dst 198.18.0.0", "dst_max 239.0.0.0", "flag IPDST_RND"], "dst_max"),
        ] {
            assert_eq!(lacking(lines), parameter, "{lines:?}");
        }
    }
}
