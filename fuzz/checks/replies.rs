//! What must hold for every packet that may be a reply to a probe.
//!
//! Shared by the fuzz target and by the test of `packet` that runs the corpus.

use fathom_probe::{
    ChecksumMode, FlowRule, IpFields, ProbeFields, ProbeKind, ProbePorts, ProbeTemplate, TAGS, recorded_route,
};

/// Reads packets as every kind of template would: whatever they hold, they are replies to a probe or they are not.
pub(crate) fn replies(packet: &[u8]) {
    for (source, destination) in [("192.0.2.100", "192.0.2.200"), ("2001:db8::64", "2001:db8::c8")] {
        let destination = destination.parse().expect("it is an address");
        for ask in [
            ProbeKind::echo(destination),
            ProbeKind::Icmp { kind: 13, code: 0 },
            ProbeKind::SYN,
            ProbeKind::Udp,
            ProbeKind::Raw { protocol: 253 },
        ] {
            for flow in [FlowRule::Constant, FlowRule::SamePort, FlowRule::PerProbe] {
                let template = ProbeTemplate {
                    source: source.parse().expect("it is an address"),
                    destination,
                    kind: ask,
                    ip: IpFields::default(),
                    ports: ProbePorts { destination: 80, source: 40_000 },
                    flow,
                    secret: 0x1234_5678,
                    payloads: Vec::new(),
                    checksum: ChecksumMode::Valid,
                };
                let read = template.read(packet);
                assert!(recorded_route(packet).is_none_or(|route| route.len() <= 9));
                assert!(read.and_then(|reply| reply.tag).is_none_or(|tag| tag < TAGS), "{read:?}");
                assert!(template.own_tag(packet).is_none_or(|tag| tag < TAGS));
                // What was sent is recognised whatever came before.
                let tag =
                    packet.iter().fold(0, |tag: u16, byte| tag.wrapping_mul(31).wrapping_add((*byte).into())) % TAGS;
                let mut written = Vec::new();
                template.write(ProbeFields { tag, ..ProbeFields::default() }, &mut written);
                let is_marked = destination.is_ipv4()
                    || !matches!((ask, flow), (ProbeKind::Raw { .. }, _) | (ProbeKind::Udp, FlowRule::SamePort));
                assert_eq!(template.own_tag(&written), Some(tag).filter(|_| is_marked), "{ask:?} {flow:?}");
            }
        }
    }
}
