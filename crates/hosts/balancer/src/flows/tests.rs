//! Rules by themselves, and the same rule by both lookups.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::classify::{FlowKey, Ports, protocol};

fn packet(key: FlowKey, transport: &[u8]) -> Packet<'_> {
    Packet { key, fragment: None, is_icmp_error: false, is_cut: false, transport }
}

fn tcp(source: [u8; 4], port: u16) -> FlowKey {
    FlowKey {
        source: source.into(),
        destination: [198, 18, 8, 1].into(),
        protocol: protocol::TCP,
        ports: Ports::Pair { source: 1234, destination: port },
    }
}

fn rules(texts: &[&str], lookup: FlowLookup) -> FlowRules {
    FlowRules::new(texts.iter().map(|text| text.parse().unwrap()).collect(), lookup)
}

/// The name of the rule of a packet, which both lookups must find.
fn found(texts: &[&str], packet: &Packet<'_>) -> Option<String> {
    let [linear, indexed] = [FlowLookup::Linear, FlowLookup::Indexed].map(|lookup| {
        let rules = rules(texts, lookup);
        rules.find(packet).map(|place| rules.rules()[place].name.clone())
    });
    assert_eq!(linear, indexed);
    linear
}

#[test]
fn the_highest_priority_wins_and_of_equal_ones_the_first_name() {
    let key = tcp([198, 18, 0, 1], 80);
    let of = |texts: &[&str]| found(texts, &packet(key, &[])).unwrap();
    assert_eq!(of(&["a", "b,priority=1", "c,priority=-1"]), "b");
    assert_eq!(of(&["b", "a"]), "a");
    assert_eq!(of(&["a,ports=81,priority=9", "b"]), "b");
}

#[test]
fn each_field_decides_on_its_own() {
    let key = tcp([198, 18, 0, 1], 80);
    let yes = [
        "r,protocols=udp+tcp",
        "r,protocols=6",
        "r,sources=10.0.0.0/8+198.18.0.0/24",
        "r,destinations=198.18.8.1",
        "r,source-ports=1000-2000",
        "r,ports=1-79+80",
        "r,match=tcp[0:2]=1234+tcp[13]&2=2",
        "r,sources=0.0.0.0/0,ports=0-65535",
    ];
    let no = [
        "r,protocols=udp",
        "r,sources=198.18.1.0/24",
        "r,sources=::/0",
        "r,destinations=198.18.8.2",
        "r,source-ports=1235",
        "r,ports=81-65535",
        "r,match=tcp[13]&2=0",
        "r,match=udp[0:2]=1234",
        "r,match=tcp[250:4]=0",
    ];
    let mut header = [0; 20];
    header[..2].copy_from_slice(&1234_u16.to_be_bytes());
    header[13] = 0x12;
    for text in yes {
        assert_eq!(found(&[text], &packet(key, &header)).as_deref(), Some("r"), "{text}");
    }
    for text in no {
        assert_eq!(found(&[text], &packet(key, &header)), None, "{text}");
    }
}

#[test]
fn packets_without_ports_match_rules_without_ports_alone() {
    for ports in [Ports::Absent, Ports::Echo(80)] {
        let key = FlowKey { ports, ..tcp([198, 18, 0, 1], 80) };
        assert_eq!(found(&["r,ports=0-65535"], &packet(key, &[])), None);
        assert_eq!(found(&["r,source-ports=0-65535"], &packet(key, &[])), None);
        assert_eq!(found(&["r,sources=198.18.0.0/24"], &packet(key, &[])).as_deref(), Some("r"));
    }
}

#[test]
fn a_rule_that_is_wrong_is_refused_with_its_field() {
    let error = |text: &str| text.parse::<FlowRule>().unwrap_err();
    assert_eq!(error("=x"), RuleError::Name("=x".to_owned()));
    assert_eq!(error("r,ports"), RuleError::Field("ports".to_owned()));
    assert_eq!(error("r,colour=1"), RuleError::Field("colour=1".to_owned()));
    assert_eq!(error("r,ports=80+"), RuleError::Ports(String::new()));
    assert_eq!(error("r,ports=90-80"), RuleError::Ports("90-80".to_owned()));
    assert_eq!(error("r,protocols=tpc"), RuleError::Protocol(ProtocolError("tpc".to_owned())));
    assert_eq!(error("r,sources=1.2.3"), RuleError::Network("1.2.3".to_owned()));
    assert_eq!(error("r,priority=high"), RuleError::Priority("high".to_owned()));
    assert!(matches!(error("r,match=tcp[0]"), RuleError::Match(_)));
}

#[test]
fn a_rule_in_json_is_what_its_text_says() {
    let text = "web,group=g,priority=3,protocols=tcp,sources=198.18.0.0/24,ports=80+8000-8099,match=tcp[13]&2=2";
    let rule: FlowRule = text.parse().unwrap();
    let json = serde_json::to_value(&rule).unwrap();
    assert_eq!(json["destination_ports"], serde_json::json!(["80", "8000-8099"]));
    assert_eq!(json["protocols"], serde_json::json!(["tcp"]));
    assert_eq!(serde_json::from_value::<FlowRule>(json).unwrap(), rule);
}

/// A small world, so that rules and packets often meet: few addresses, ports and protocols.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = (0_u8..4).prop_map(|last| IpAddr::V4(Ipv4Addr::new(198, 18, last / 2, last)));
    let v6 = (0_u16..4).prop_map(|last| IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, last / 2, 0, 0, 0, last)));
    prop_oneof![v4, v6, Just(Ipv4Addr::BROADCAST.into()), Just(Ipv6Addr::from_bits(u128::MAX).into())]
}

fn network() -> impl Strategy<Value = String> {
    (address(), 0_u8..=128).prop_map(|(address, prefix)| {
        let prefix = if address.is_ipv4() { prefix / 4 } else { prefix };
        format!("{address}/{prefix}")
    })
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![0_u16..6, Just(u16::MAX), Just(u16::MAX - 1)]
}

fn range() -> impl Strategy<Value = String> {
    (port(), port()).prop_map(|(one, other)| format!("{}-{}", one.min(other), one.max(other)))
}

fn field(name: &'static str, part: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::collection::vec(part, 0..4)
        .prop_map(move |parts| if parts.is_empty() { String::new() } else { format!(",{name}={}", parts.join("+")) })
}

fn rule() -> impl Strategy<Value = String> {
    let protocol = prop::sample::select(vec!["tcp", "udp", "icmp"]).prop_map(str::to_owned);
    let bytes = prop::sample::select(vec!["tcp[0]=1", "udp[0:2]&1=1", "tcp[1]&3=0"]).prop_map(str::to_owned);
    let fields = (
        field("protocols", protocol),
        field("sources", network()),
        field("destinations", network()),
        field("source-ports", range()),
        field("ports", range()),
        prop::option::weighted(0.2, bytes),
    );
    let fields = fields.prop_map(|(a, b, c, d, e, f)| {
        let bytes = f.map(|bytes| format!(",match={bytes}")).unwrap_or_default();
        format!("{a}{b}{c}{d}{e}{bytes}")
    });
    (-2_i32..3, fields).prop_map(|(priority, fields)| format!(",priority={priority}{fields}"))
}

fn key() -> impl Strategy<Value = FlowKey> {
    let pair = (port(), port()).prop_map(|(source, destination)| Ports::Pair { source, destination });
    let ports = prop_oneof![4 => pair, 1 => Just(Ports::Absent), 1 => Just(Ports::Echo(3))];
    (address(), address(), prop::sample::select(vec![1_u8, 6, 17, 200]), ports)
        .prop_map(|(source, destination, protocol, ports)| FlowKey { source, destination, protocol, ports })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn both_lookups_find_the_same_rule(
        texts in prop::collection::vec(rule(), 0..130),
        packets in prop::collection::vec((key(), prop::collection::vec(0_u8..4, 0..3)), 1..50),
    ) {
        let texts: Vec<String> = texts.iter().enumerate().map(|(idx, text)| format!("r{idx}{text}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (linear, indexed) = (rules(&texts, FlowLookup::Linear), rules(&texts, FlowLookup::Indexed));
        for (key, transport) in &packets {
            let packet = packet(*key, transport);
            prop_assert_eq!(linear.find(&packet), indexed.find(&packet), "{:?}", packet);
        }
    }
}
