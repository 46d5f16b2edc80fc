//! Parses frames with an independent parser, and compares them with independently computed bytes.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    fs::File,
    io::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use fathom_model::{MacAddress, Settings};
use fathom_packet::craft::{
    CraftError, FrameContext, FrameEndpoint, FrameEndpoints, FrameSet, FrameSpec, FrameTemplate, SizeMix, from_settings,
};
use proptest::prelude::*;

fn setup() -> FrameContext {
    let end = |last: u8, port| FrameEndpoint {
        mac: MacAddress([2, 0, 0, 0, 0, last]),
        ipv4: Some(Ipv4Addr::new(198, 18, 0, last)),
        ipv6: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())),
        port,
    };
    FrameContext { ends: FrameEndpoints { source: end(1, 49_152), target: end(2, 9) }, mtu_bytes: 1500, seed: 42 }
}

fn draw(line: &str) -> FrameSet {
    FrameSet::from_spec(&FrameSpec::read(line).unwrap(), SizeMix::of_size(None), None, &setup()).unwrap()
}

fn asked(options: &[(&str, &str)]) -> Result<FrameSet, CraftError> {
    let settings = options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
    from_settings(&settings.complete(fathom_packet::craft::OPTIONS).unwrap(), &setup())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Writes a frame of a flow over another frame.
fn frame(blueprint: &FrameSet, flow: u32, sequence: u64, mark: [u8; 18]) -> Vec<u8> {
    let shape = blueprint.template(flow, sequence);
    let mut frame = shape.bytes.clone();
    shape.write(&mut frame, &blueprint.frame_index(flow + 1, !sequence, [0xa5; 18]));
    shape.write(&mut frame, &blueprint.frame_index(flow, sequence, mark));
    frame
}

/// The expected bytes come from a few lines of Python that pack the same fields as in the diagrams of the RFCs.
#[test]
fn frames_have_exactly_the_bytes_that_the_rfcs_give_them() {
    for (line, bytes) in [
        (
            "vlan 100 prio 3 / ip tos 0xb8 id 7 ttl 3 / udp 1024 > 53 / \"hello\" unmarked",
            "02000000000202000000000181006064080045b80021000740000311eae5c6120001c612000204000035000d2ba568656c6c6f000000000000000000",
        ),
        (
            "ip6 label 0x12345 / tcp 40000 > 443 seq 0x01020304 mss 1440 sackok nop wscale 7 / unmarked",
            "02000000000202000000000186dd6001234500200640fd000000000000000000000000000001fd0000000000000000000000000000029c4001bb01020304000000008002ffffd4200000020405a00402010303070000",
        ),
        (
            "icmp id 0x1234 seq 1 / \"abc\" unmarked",
            "02000000000202000000000108004500001f000040004001aeb6c6120001c61200020800216812340001616263000000000000000000000000000000",
        ),
        (
            "arp / unmarked",
            "02000000000202000000000108060001080006040001020000000001c6120001000000000000c6120002000000000000000000000000000000000000",
        ),
        (
            "mpls 16 / mpls 17 tc 3 ttl 9 / ip / udp 7 > 9 / unmarked",
            "020000000002020000000001884700010040000117094500001c000040004011aea9c6120001c612000200070009000873a600000000000000000000",
        ),
    ] {
        assert_eq!(hex(&draw(line).templates[0].bytes), bytes, "{line}");
    }
}

/// Checks all checksums of a frame.
fn verify(frame: &[u8], line: &str) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap_or_else(|error| panic!("{line}: {error}"));
    match (packet.net.as_ref().unwrap(), &packet.transport) {
        (NetSlice::Ipv4(ip), transport) => {
            let header = ip.header();
            assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum(), "{line}");
            let (from, to) = (header.source(), header.destination());
            match transport.as_ref().unwrap() {
                TransportSlice::Udp(udp) => {
                    let sum = udp.to_header().calc_checksum_ipv4_raw(from, to, udp.payload()).unwrap();
                    assert_eq!(sum, udp.checksum(), "{line}");
                }
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(tcp.calc_checksum_ipv4(from, to).unwrap(), tcp.checksum(), "{line}");
                }
                TransportSlice::Icmpv4(icmp) => {
                    assert_eq!(icmp.icmp_type().calc_checksum(icmp.payload()), icmp.checksum(), "{line}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
        (NetSlice::Ipv6(ip), transport) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            match transport.as_ref().unwrap() {
                TransportSlice::Udp(udp) => {
                    let sum = udp.to_header().calc_checksum_ipv6_raw(from, to, udp.payload()).unwrap();
                    assert_eq!(sum, udp.checksum(), "{line}");
                }
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(tcp.calc_checksum_ipv6(from, to).unwrap(), tcp.checksum(), "{line}");
                }
                TransportSlice::Icmpv6(icmp) => assert!(icmp.is_checksum_valid(from, to), "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        (NetSlice::Arp(_), _) => panic!("{line}: no packet"),
    }
}

/// A value, a range, or a random one, per flow or per frame, up to `most`.
fn value(most: u64) -> impl Strategy<Value = String> {
    let range = (0..=most, 0..=most).prop_map(|(one, other)| (one.min(other), one.max(other)));
    prop_oneof![
        (0..=most).prop_map(|value| value.to_string()),
        (range.clone(), 1..=5_u64, any::<bool>()).prop_map(|((low, high), by, each)| {
            if low == high {
                low.to_string()
            } else {
                format!("{low}-{high}+{}{}", by.min(high - low), if each { " each" } else { "" })
            }
        }),
        (range, any::<bool>()).prop_map(|((low, high), each)| {
            if low == high { low.to_string() } else { format!("{low}-{high}?{}", if each { " each" } else { "" }) }
        }),
    ]
}

fn tags() -> impl Strategy<Value = String> {
    let tag =
        (any::<bool>(), value(4095)).prop_map(|(outer, id)| format!("{} {id} /", if outer { "svlan" } else { "vlan" }));
    proptest::collection::vec(tag, 0..3).prop_map(|tags| tags.concat())
}

fn network() -> impl Strategy<Value = (bool, String)> {
    let ipv4 =
        (value(255), value(255), value(65_535), 0..=40_usize, any::<bool>()).prop_map(|(tos, ttl, id, n, random)| {
            let options = if n == 0 { String::new() } else { format!("options {}", "01".repeat(n)) };
            let source = if random { "10.0.0.0/16? each" } else { "10.1.2.3-10.1.3.9+7" };
            (false, format!("ip {source} > 10.9.0.0/24 tos {tos} ttl {ttl} id {id} {options} /"))
        });
    let ipv6 = (value(255), value(255), value(0xf_ffff), any::<bool>()).prop_map(|(class, hops, label, hop)| {
        let extension = if hop { "hop / dest data 0102030405 /" } else { "" };
        // Class and label share a byte, so only one of them can be a range.
        let label = label.split(['-', ' ']).next().unwrap_or("0").to_owned();
        (
            true,
            format!(
                "ip6 fd00::/112? > fd01::1-fd01::ffff+3 each class {class} hops {hops} label {label} / {extension}"
            ),
        )
    });
    prop_oneof![ipv4, ipv6]
}

fn transport() -> impl Strategy<Value = String> {
    prop_oneof![
        (value(65_535), value(65_535)).prop_map(|(from, to)| format!("udp {from} > {to}")),
        (value(65_535), value(0xffff_ffff), value(255), 0..3_usize).prop_map(|(from, seq, flags, n)| {
            format!("tcp {from} seq {seq} flags {flags} window 5 {}", "nop mss 9 ".repeat(n))
        }),
        (value(255), value(65_535), value(65_535))
            .prop_map(|(code, id, seq)| format!("icmp code {code} id {id} seq {seq}")),
    ]
}

fn payload() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z]{1,9}".prop_map(|text| format!("/ \"{text}\"")),
        "[a-z]{1,9}".prop_map(|text| format!("/ \"{text}\" mark \"{text}\" random")),
        "[a-z]{1,9}".prop_map(|text| format!("/ \"{text}\" unmarked fill 0xff")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn every_frame_is_parsed_back_and_its_checksums_are_right(
        ((tags, (is_ipv6, network), transport, payload), size) in ((tags(), network(), transport(), payload()), proptest::option::of(300..1500_u32)),
        (n_flows, flow, sequence, mark) in (proptest::option::of(2..1_000_000_u32), any::<u32>(), any::<u64>(), any::<[u8; 18]>()),
    ) {
        let transport = if is_ipv6 { transport.replace("icmp", "icmp6") } else { transport };
        let line = format!("{tags} {network} {transport} {payload}");
        let mix = SizeMix::of_size(size.map(|size| size.to_string().parse().unwrap()));
        let blueprint = FrameSet::from_spec(&FrameSpec::read(&line).unwrap(), mix, n_flows, &setup()).unwrap();
        let flow = flow % blueprint.n_flows;
        let frame = frame(&blueprint, flow, sequence >> 20, mark);
        verify(&frame, &line);
        let shape: &FrameTemplate = &blueprint.templates[0];
        verify(&shape.bytes, &line);
        if let Some(at) = shape.mark_at {
            prop_assert_eq!(&frame[at..at + 18], &mark[..]);
        }
        prop_assert_eq!(frame.len(), size.map_or(shape.bytes.len(), |size| size as usize - 4));
        let n_tags = SlicedPacket::from_ethernet(&frame).unwrap().link_exts.len();
        prop_assert_eq!(n_tags, tags.matches('/').count());
    }

    #[test]
    fn no_text_makes_the_reader_stumble(text in "\\PC{0,80}") {
        let _ = FrameSpec::read(&text).map_err(|error| (error.to_string(), error.fix()));
    }

    #[test]
    fn no_words_make_the_reader_stumble(words in proptest::collection::vec(
        prop::sample::select(vec!["eth", "vlan", "mpls", "arp", "ip", "ip6", "hop", "frag", "udp", "tcp", "icmp", "icmp6", "/", "/", "/",
            ">", "1", "0-9?", "?", "each", "10.0.0.0/24", "fd00::/112", "ttl", "flags", "S", "options", "0a", "\"x\"", "hex", "fill",
            "mark", "unmarked", "random", "type", "id", "checksum", "length", "proto", "next"]), 0..14)) {
        let text = words.join(" ");
        if let Ok(line) = FrameSpec::read(&text) {
            for n_flows in [None, Some(1), Some(7)] {
                if let Ok(blueprint) = FrameSet::from_spec(&line, SizeMix::of_size(None), n_flows, &setup()) {
                    let written = frame(&blueprint, 0, 0, [0; 18]);
                    prop_assert_eq!(written, blueprint.templates[0].bytes.clone());
                }
            }
        }
    }
}

#[test]
fn a_range_gives_each_flow_its_value_and_each_frame_if_it_says_so() {
    let blueprint = draw("ip 10.0.0.1-10.0.0.4 > 10.0.1.1 id 5-1000 each / udp 7-9+2 > 1-3? each");
    assert_eq!(blueprint.n_flows, 4, "as many as the longest range has");
    let fields = |flow, sequence| {
        let frame = frame(&blueprint, flow, sequence, [0; 18]);
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        (frame[29], word(34), word(18))
    };
    let all: Vec<_> = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (3, 100)].map(|(flow, n)| fields(flow, n)).into();
    assert_eq!(all, [(1, 7, 5), (2, 9, 6), (3, 7, 7), (4, 9, 8), (1, 7, 9), (4, 9, 408)]);
}

#[test]
fn a_million_flows_have_random_ports_as_rfc_4814_wants_them_and_hardly_two_the_same() {
    let blueprint = asked(&[("flows", "1000000")]).unwrap();
    let mut ports: Vec<u64> = (0..1_000_000)
        .map(|flow| {
            let turn = blueprint.frame_index(flow, 0, [0; 18]);
            let [from, to] = [0, 1].map(|edit: usize| blueprint.templates[0].changes[edit].value(&turn));
            assert!((1024..=65_535).contains(&from) && (1..=49_151).contains(&to));
            from << 16 | to
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    // Of n values drawn from N, about n²/2N are repetitions: 158 here.
    assert!((999_700..=1_000_000).contains(&ports.len()), "{}", ports.len());
}

#[test]
fn what_is_left_out_comes_from_the_two_hosts() {
    let default = draw("").templates[0].clone();
    assert_eq!((default.bytes.len(), default.mark_at), (60, Some(42)));
    for line in [
        "udp",
        "ip",
        "eth",
        "ip / udp",
        "eth / ip / udp",
        "eth 02:00:00:00:00:01 > 02:00:00:00:00:02 / ip 198.18.0.1 > 198.18.0.2 / udp 49152 > 9",
    ] {
        assert_eq!(draw(line).templates, std::slice::from_ref(&default), "{line}");
    }
    verify(&default.bytes, "");
    let packet = |line: &str| draw(line).templates[0].bytes.clone();
    assert_eq!(packet("vlan 5")[12..18], [0x81, 0, 0, 5, 8, 0]);
    assert_eq!(packet("ip6").len(), 14 + 40 + 8 + 18);
    assert_eq!(packet("icmp6 echo")[12..14], [0x86, 0xdd]);
    assert_eq!(packet("frag id 7")[20], 44);
    assert_eq!(packet("eth / \"x\"")[12..14], [0x88, 0xb5], "payload alone is an experiment");
    assert_eq!(packet("ip / \"x\"")[23], 253);
    assert_eq!(packet("ip proto 89")[23], 89);
}

#[test]
fn a_payload_that_says_no_size_is_sent_as_it_is_and_else_filled_up() {
    let udp_length = |blueprint: &FrameSet| blueprint.templates[0].bytes[39];
    assert_eq!(udp_length(&draw("udp / \"dns\" unmarked")), 11);
    let padded = asked(&[("frame", "udp / \"dns\" unmarked"), ("size", "128")]).unwrap();
    assert_eq!((padded.templates[0].bytes.len(), udp_length(&padded)), (124, 90));
    let random = asked(&[("payload", "random"), ("size", "512")]).unwrap();
    let line = FrameSpec::read("udp / random").unwrap();
    let drawn = |seed| {
        let mix = SizeMix::of_size(Some("512".parse().unwrap()));
        FrameSet::from_spec(&line, mix, None, &FrameContext { seed, ..setup() }).unwrap().templates
    };
    assert_eq!(random.templates, drawn(42), "the same seed makes the same frames");
    assert_ne!(random.templates, drawn(43));
}

#[test]
fn a_mix_makes_a_shape_of_each_size_with_the_mark_at_one_place() {
    let blueprint = asked(&[("mix", "imix"), ("flows", "5")]).unwrap();
    assert_eq!(blueprint.templates.iter().map(|shape| shape.bytes.len()).collect::<Vec<_>>(), [60, 566, 1514]);
    assert_eq!((blueprint.order.len(), blueprint.mark_at(), blueprint.longest()), (12, Some(42), 1514));
    let by_hand = (7.0 * 60.0 + 4.0 * 566.0 + 1514.0) / 12.0;
    assert!((blueprint.mean_length() - by_hand).abs() < 1e-9);
    for (flow, sequence) in [(0, 0), (1, 5), (4, 99)] {
        verify(&frame(&blueprint, flow, sequence, [1; 18]), "imix");
    }
}

#[test]
fn words_for_single_headers_say_the_same_as_a_line() {
    let same = |options: &[(&str, &str)], line: &str| {
        assert_eq!(asked(options).unwrap(), asked(&[("frame", line)]).unwrap(), "{line}");
    };
    same(&[("vlan", "10,20"), ("ttl", "3")], "svlan 10 / vlan 20 / ip ttl 3 / udp");
    same(
        &[("mpls", "16,17"), ("transport", "tcp6"), ("ports", "1-9 > 80"), ("ttl", "3")],
        "mpls 16 / mpls 17 / ip6 hops 3 / tcp 1-9 > 80",
    );
    same(
        &[("addresses", "10.0.0.1-10.0.0.9? > 10.1.0.1"), ("tos", "0xb8"), ("payload", "\"x\"")],
        "ip 10.0.0.1-10.0.0.9? > 10.1.0.1 tos 0xb8 / udp / \"x\"",
    );
    same(&[("transport", "icmp6")], "ip6 / icmp6");
}

#[test]
fn what_cannot_be_sent_is_named_with_a_way_out() {
    let told = |options: &[(&str, &str)]| {
        let error = asked(options).unwrap_err();
        (error.to_string(), error.hint().unwrap_or_default())
    };
    for (options, what, hint) in [
        (vec![("frame", "ip6"), ("size", "64")], "frames of 64 bytes are too small", "--size 84"),
        (
            vec![("size", "1519")],
            "frames of 1519 bytes need an MTU of 1501, and that of the device is 1500",
            "mtu 1501",
        ),
        (vec![("size", "63")], "a frame has 64 to 16000 bytes", ""),
        (vec![("size", "100"), ("mix", "imix")], "`size` and `mix` both define", "leave out `mix`"),
        (vec![("frame", "ip"), ("ttl", "3")], "`frame` and `ttl` both define", "leave out `ttl`"),
        (vec![("capture", "x"), ("frame", "ip")], "`capture` and `frame` both define", ""),
        (vec![("capture", "/nowhere.pcap")], "cannot send the capture /nowhere.pcap: No such file", ""),
        (vec![("mix", "abk")], "option `mix`: `k` is not a size", "a=64"),
        (vec![("frame", "arp"), ("flows", "3")], "3 flows would all be alike", "udp 1024-65535?"),
        (vec![("frame", "arp / udp")], "udp cannot be inside arp", ""),
        (vec![("frame", "ip / icmp6")], "icmp6 cannot be inside ip", ""),
        (vec![("frame", "ip / frag")], "frag cannot be inside ip", "`ip6` before"),
        (
            vec![("frame", "ip ttl 300")],
            "`ttl` is at most 255\n --> frame:1:8\n  |\n1 | ip ttl 300\n  |        ^^^",
            "",
        ),
    ] {
        let (error, help) = told(&options);
        assert!(error.starts_with(what), "{options:?}: {error}");
        assert!(help.contains(hint), "{options:?}: {help}");
    }
    let mut setup = setup();
    setup.ends.target.ipv6 = None;
    let error =
        FrameSet::from_spec(&FrameSpec::read("ip6 / udp").unwrap(), SizeMix::of_size(None), None, &setup).unwrap_err();
    assert!(error.to_string().starts_with("ip6 needs an IPv6 address, but the device or the target has none"));
}

#[test]
fn a_capture_is_sent_as_it_is() {
    let path = std::env::temp_dir().join(format!("fathom-craft-{}.pcap", std::process::id()));
    let mut file = File::create(&path).unwrap();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1, 0, 0, 20, 20] {
        file.write_all(&word.to_le_bytes()).unwrap();
    }
    file.write_all(&[7; 20]).unwrap();
    drop(file);
    let path_text = path.to_str().unwrap();
    let blueprint = asked(&[("capture", path_text), ("flows", "3")]);
    std::fs::remove_file(&path).unwrap();
    let blueprint = blueprint.unwrap();
    assert_eq!((blueprint.mark_at(), blueprint.n_flows, blueprint.order.len()), (None, 3, 1));
    assert_eq!(frame(&blueprint, 2, 9, [1; 18]), [&[7; 20][..], &[0; 40]].concat());
}

#[test]
fn tags_are_where_a_parser_looks_for_them() {
    let blueprint = draw("svlan 10 prio 1 / vlan 20-29 / ip6 / tcp");
    let frame = frame(&blueprint, 7, 3, [0; 18]);
    let packet = SlicedPacket::from_ethernet(&frame).unwrap();
    let ids: Vec<u16> = packet
        .link_exts
        .iter()
        .filter_map(|tag| match tag {
            LinkExtSlice::Vlan(vlan) => Some(vlan.vlan_identifier().value()),
            LinkExtSlice::Macsec(_) => None,
        })
        .collect();
    assert_eq!(ids, [10, 27]);
}

#[test]
fn the_examples_of_the_guide_make_frames() {
    let guide = include_str!("../../../../docs/frames-language.md");
    let examples: Vec<&str> = guide.split("```\n").nth(1).unwrap().lines().collect();
    assert!(examples.len() >= 6, "{examples:?}");
    for line in examples {
        let blueprint = draw(line);
        assert!(blueprint.mark_at().is_some(), "{line}");
    }
}
