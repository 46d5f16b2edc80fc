//! The parameters of a device as pktgen keeps them: its settings applied in order to pktgen's defaults.
//!
//! The checks, the packets and the output are derived from them. The rules are those of `pktgen_if_write` in
//! `net/core/pktgen.c` of Linux 6.1. This module knows neither the kernel's files nor an engine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fathom_model::{MacAddress, units::Nanos};
use fathom_pktgen::{FLAGS, FlagState, Ipv4Range, Params, PktgenAddresses, PktgenSetting, Value, VlanTag, XmitMode};

use super::job::JobDevice;

/// pktgen's default port, discard (RFC 863).
const DISCARD: u64 = 9;
/// The first dynamic port (RFC 6335 section 6), the default source port of fathom's frames.
const SOURCE_PORT: u64 = 49_152;
/// The smallest Ethernet frame, without the frame check sequence.
const SIZE_MIN: u64 = 60;
/// The minimum of `pkt_size`: the headers of Ethernet, IPv4 and UDP.
const HEADERS: u64 = 42;
/// The flag that is always set at first, because fathom computes UDP checksums.
pub(super) const CHECKSUM: &str = "UDPCSUM";
/// The bottom-of-stack bit of the last of several labels. pktgen takes it as a request for random labels.
const BOTTOM_OF_STACK: u32 = 0x100;
/// The first number above the highest VLAN ID of IEEE 802.1Q. It removes a tag.
const REMOVES_TAG: u64 = 4096;

/// Builds the parameters from the settings.
struct ParamsBuilder {
    params: Params,
    /// Destinations and sources.
    v4: [Ipv4Range; 2],
    /// Destinations and sources: a single address, and the first and the last of a range.
    v6: [[Ipv6Addr; 3]; 2],
    is_six: bool,
}

/// Returns the parameters of a device that has this MAC address.
///
/// `clone_skb` and `burst` keep their defaults, because every packet is built separately here.
pub(super) fn params(device: &JobDevice, own: MacAddress) -> Params {
    let mut asked = ParamsBuilder {
        params: defaults(&device.name, own),
        v4: [(None, None); 2],
        v6: [[Ipv6Addr::UNSPECIFIED; 3]; 2],
        is_six: false,
    };
    device.settings.iter().for_each(|setting| asked.apply(setting));
    let ParamsBuilder { mut params, v4: [dst, src], v6: [dst6, src6], is_six } = asked;
    if is_six {
        params.addresses = PktgenAddresses::V6 { src: src6, dst: dst6 };
        switch(&mut params.flags, "IPV6", FlagState::On);
    } else {
        params.addresses = PktgenAddresses::V4 { dst, src };
    }
    if params.flows == 0 {
        // A flow order has no effect without flows.
        switch(&mut params.flags, "FLOW_SEQ", FlagState::Off);
    }
    if !device.settings.iter().any(|setting| setting.name().starts_with("udp_src_")) {
        params.udp_src = (SOURCE_PORT, SOURCE_PORT);
    }
    params
}

fn defaults(name: &str, own: MacAddress) -> Params {
    Params {
        count: 1_000,
        min_pkt_size: SIZE_MIN,
        max_pkt_size: SIZE_MIN,
        imix_weights: Vec::new(),
        frags: 0,
        delay: Nanos::ZERO,
        clone_skb: 0,
        ifname: name.to_owned(),
        flows: 0,
        flowlen: 0,
        queue_map: (0, 0),
        skb_priority: 0,
        addresses: PktgenAddresses::V4 { dst: (None, None), src: (None, None) },
        src_mac: own,
        dst_mac: MacAddress::default(),
        udp_src: (DISCARD, DISCARD),
        udp_dst: (DISCARD, DISCARD),
        src_mac_count: 0,
        dst_mac_count: 0,
        mpls: Vec::new(),
        vlan: None,
        svlan: None,
        tos: 0,
        traffic_class: 0,
        burst: 1,
        node: None,
        xmit_mode: XmitMode::StartXmit,
        flags: vec![CHECKSUM.to_owned()],
    }
}

/// Switches a flag. The flags stay in pktgen's order.
fn switch(flags: &mut Vec<String>, name: &str, to: FlagState) {
    flags.retain(|flag| flag != name);
    if to == FlagState::On {
        flags.push(name.to_owned());
        flags.sort_by_key(|flag| FLAGS.iter().position(|other| other == flag));
    }
}

impl ParamsBuilder {
    fn apply(&mut self, setting: &PktgenSetting) {
        let name = setting.name();
        match setting.value() {
            Value::Number(number) => self.number(name, *number),
            Value::Octet(octet) if name == "tos" => self.params.tos = *octet,
            Value::Octet(octet) => self.params.traffic_class = *octet,
            Value::Address(IpAddr::V4(address)) => self.address_v4(name, *address),
            Value::Address(IpAddr::V6(address)) => self.address_v6(name, *address),
            Value::Mac(mac) if name == "src_mac" => self.params.src_mac = *mac,
            Value::Mac(mac) => self.params.dst_mac = *mac,
            Value::Mode(mode) => self.params.xmit_mode = *mode,
            Value::Flag("IPV6", to) => self.is_six = *to == FlagState::On,
            Value::Flag(flag, to) => switch(&mut self.params.flags, flag, *to),
            Value::Mix(weights) => self.params.imix_weights.clone_from(weights),
            Value::Labels(labels) => self.labels(labels),
            Value::None => {}
        }
    }

    fn number(&mut self, name: &str, number: u64) {
        let params = &mut self.params;
        // Of a larger number, pktgen keeps only the low 16 bits for a port.
        let port = number & u64::from(u16::MAX);
        match name {
            "count" => params.count = number,
            "pkt_size" if number.max(HEADERS) != params.min_pkt_size => {
                (params.min_pkt_size, params.max_pkt_size) = (number.max(HEADERS), number.max(HEADERS));
            }
            "min_pkt_size" => params.min_pkt_size = number.max(HEADERS),
            "max_pkt_size" => params.max_pkt_size = number.max(HEADERS),
            "frags" => params.frags = number,
            "delay" => params.delay = Nanos(number),
            "ratep" if number > 0 => params.delay = Nanos(1_000_000_000 / number),
            "rate" if number > 0 => params.delay = Nanos(params.min_pkt_size.saturating_mul(8_000) / number),
            "src_mac_count" => params.src_mac_count = number,
            "dst_mac_count" => params.dst_mac_count = number,
            "udp_src_min" => params.udp_src.0 = port,
            "udp_src_max" => params.udp_src.1 = port,
            "udp_dst_min" => params.udp_dst.0 = port,
            "udp_dst_max" => params.udp_dst.1 = port,
            "flows" => params.flows = number,
            "flowlen" => params.flowlen = number,
            "queue_map_min" => params.queue_map.0 = number,
            "queue_map_max" => params.queue_map.1 = number,
            "skb_priority" => params.skb_priority = number,
            "node" => params.node = Some(number),
            _ => self.tag(name, number),
        }
    }

    /// Sets a tag field. A tag removes all labels; a missing tag has no priority and no CFI bit.
    fn tag(&mut self, name: &str, number: u64) {
        let Params { vlan, svlan, mpls, .. } = &mut self.params;
        let of =
            |tag: &Option<VlanTag>| VlanTag { id: number, ..tag.unwrap_or(VlanTag { id: 0, priority: 0, cfi: 0 }) };
        match (name, number) {
            ("vlan_id", ..REMOVES_TAG) => {
                *vlan = Some(of(vlan));
                mpls.clear();
            }
            ("vlan_id", _) => (*vlan, *svlan) = (None, None),
            ("svlan_id", ..REMOVES_TAG) if vlan.is_some() => {
                *svlan = Some(of(svlan));
                mpls.clear();
            }
            ("svlan_id", _) => *svlan = None,
            ("vlan_p", ..=7) => vlan.iter_mut().for_each(|tag| tag.priority = number),
            ("vlan_cfi", ..=1) => vlan.iter_mut().for_each(|tag| tag.cfi = number),
            ("svlan_p", ..=7) => svlan.iter_mut().for_each(|tag| tag.priority = number),
            ("svlan_cfi", ..=1) => svlan.iter_mut().for_each(|tag| tag.cfi = number),
            _ => {}
        }
    }

    fn labels(&mut self, labels: &[u32]) {
        self.params.mpls = labels.to_vec();
        if !labels.is_empty() {
            (self.params.vlan, self.params.svlan) = (None, None);
        }
        if labels.iter().any(|label| label & BOTTOM_OF_STACK != 0) {
            switch(&mut self.params.flags, "MPLS_RND", FlagState::On);
        }
    }

    fn address_v4(&mut self, name: &str, address: Ipv4Addr) {
        let [dst, src] = &mut self.v4;
        match name {
            "dst_max" => dst.1 = Some(address),
            "src_min" => src.0 = Some(address),
            "src_max" => src.1 = Some(address),
            // `dst` is an alias of `dst_min`.
            _ => dst.0 = Some(address),
        }
    }

    /// Sets an IPv6 address. Any of them makes all packets IPv6.
    fn address_v6(&mut self, name: &str, address: Ipv6Addr) {
        self.is_six = true;
        let [dst, src] = &mut self.v6;
        match name {
            "dst6_min" => dst[1] = address,
            "dst6_max" => dst[2] = address,
            "src6" => src[0] = address,
            _ => dst[0] = address,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use fathom_pktgen::AppliedValue;

    use super::*;

    pub(crate) const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    pub(crate) fn device(lines: &[&str]) -> JobDevice {
        let settings = lines.iter().map(|line| line.parse().unwrap()).collect();
        JobDevice { name: "e@0".to_owned(), thread: 0, settings }
    }

    fn asked(lines: &[&str]) -> Params {
        params(&device(lines), OWN)
    }

    #[test]
    fn what_is_asked_stands_in_the_block() {
        let lines = [
            "count 5",
            "pkt_size 64",
            "max_pkt_size 128",
            "imix_weights 64,7 570,4",
            "frags 2",
            "delay 500",
            "dst 10.0.0.2",
            "dst_max 10.0.0.9",
            "src_min 10.0.0.1",
            "src_max 10.0.0.3",
            "dst_mac 02:00:00:00:00:02",
            "src_mac 02:00:00:00:00:03",
            "src_mac_count 4",
            "dst_mac_count 5",
            "udp_src_min 10",
            "udp_src_max 20",
            "udp_dst_min 30",
            "udp_dst_max 40",
            "flows 8",
            "flowlen 2",
            "queue_map_min 0",
            "queue_map_max 1",
            "skb_priority 3",
            "tos 28",
            "traffic_class b8",
            "vlan_id 5",
            "vlan_p 3",
            "vlan_cfi 1",
            "svlan_id 7",
            "svlan_p 2",
            "svlan_cfi 0",
            "node 0",
            "xmit_mode queue_xmit",
            "flag IPSRC_RND",
            "flag !UDPCSUM",
        ];
        let params = asked(&lines);
        for setting in device(&lines).settings.iter().filter(|setting| setting.name() != "pkt_size") {
            assert_eq!(setting.applied_value(&params), AppliedValue::AsRequested, "{setting}");
        }
        let six = ["dst6 fd00::2", "dst6_min fd00::10", "dst6_max fd00::1f", "src6 fd00::1", "mpls 0001000a,0002000a"];
        let params = asked(&six);
        for setting in device(&six).settings {
            assert_eq!(setting.applied_value(&params), AppliedValue::AsRequested, "{setting}");
        }
        assert_eq!(params.flags, ["IPV6", "UDPCSUM"]);
    }

    #[test]
    fn of_several_words_for_one_thing_the_last_counts() {
        let v4 = |lines: &[&str]| match asked(lines).addresses {
            PktgenAddresses::V4 { dst, src } => [dst.0, dst.1, src.0].map(|end| end.map(|address| address.octets()[3])),
            PktgenAddresses::V6 { .. } => panic!("{lines:?} are of IPv4"),
        };
        assert_eq!(v4(&["dst_min 10.0.0.2", "dst 10.0.0.3"]), [Some(3), None, None]);
        assert_eq!(v4(&["dst6 fd00::1", "dst 10.0.0.3", "flag !IPV6"]), [Some(3), None, None]);
        assert!(matches!(asked(&["dst 10.0.0.3", "src6 fd00::1"]).addresses, PktgenAddresses::V6 { .. }));
        let tagged = asked(&["mpls 0001000a", "vlan_id 5", "svlan_id 6"]);
        assert_eq!((tagged.mpls.len(), tagged.vlan.unwrap().id, tagged.svlan.unwrap().id), (0, 5, 6));
        let labelled = asked(&["vlan_id 5", "svlan_id 6", "mpls 0001000a"]);
        assert_eq!((labelled.mpls.len(), labelled.vlan, labelled.svlan), (1, None, None));
        assert_eq!(asked(&["vlan_id 5", "svlan_id 6", "vlan_id 9999"]).svlan, None);
        assert_eq!((asked(&["svlan_id 6"]).svlan, asked(&["vlan_p 3"]).vlan), (None, None));
        assert_eq!(asked(&["vlan_id 5", "vlan_p 8"]).vlan, Some(VlanTag { id: 5, priority: 0, cfi: 0 }));
        let ports = |lines: &[&str]| (asked(lines).udp_src, asked(lines).udp_dst);
        assert_eq!(ports(&[]), ((49_152, 49_152), (9, 9)));
        assert_eq!(ports(&["udp_src_min 1000", "udp_dst_min 65545"]), ((1_000, 9), (9, 9)));
        assert_eq!(asked(&["pkt_size 10"]).max_pkt_size, 42);
        assert_eq!(asked(&["mpls 0001010a"]).flags, ["UDPCSUM", "MPLS_RND"]);
    }

    #[test]
    fn rates_become_whole_nanoseconds() {
        assert_eq!(asked(&["pkt_size 60", "rate 480M"]).delay, Nanos::from_micros(1));
        assert_eq!(asked(&["ratep 3000000"]).delay, Nanos(333));
        assert_eq!(asked(&["rate 0", "ratep 0"]).delay, Nanos::ZERO);
    }
}
