//! The options of probes as tables, and their meaning.

use std::net::IpAddr;

use fathom_engine::Error;
use fathom_model::{OptionDoc, Role, Settings, ValueKind, units::Nanos};
use fathom_sys::policy::{Destination, Policy, Refused};

use crate::{ProbeKind, TcpFlags, TcpProbe};

/// The key of a responder's address. Errors about a missing destination name it too.
pub(super) const ADDRESS: &str = "address";
/// The values of the option `protocol`.
const PROTOCOLS: &[&str] = &["icmp", "tcp", "udp", "ip"];
/// The values of the option `family`: the IP version to use if a name has both.
const FAMILIES: &[&str] = &["any", "4", "6"];
/// The values of the option `flags` of TCP probes.
const FLAGS: &[&str] = &["syn", "ack", "fin", "rst", "null", "xmas", "syn-ack"];

const HOST: OptionDoc = OptionDoc {
    name: "host",
    value: ValueKind::Destination,
    default: None,
    help: "address or name of the host to probe; default: the other host of the plan",
};
const PROTOCOL: OptionDoc = OptionDoc {
    name: "protocol",
    value: ValueKind::Choice(PROTOCOLS),
    default: Some("icmp"),
    help: "probe packet: ICMP echo request (icmp), TCP segment, UDP datagram or bare IP packet",
};
/// The protocols of a port scan. ICMP has no ports.
const PROTOCOL_OF_PORTS: OptionDoc = OptionDoc {
    name: "protocol",
    value: ValueKind::Choice(&["tcp", "udp"]),
    default: Some("tcp"),
    help: "protocol of the ports to scan",
};
const PORT: OptionDoc = OptionDoc {
    name: "port",
    value: ValueKind::Count(1, 65_535),
    default: None,
    help: "destination port; default: 80 for TCP, 33434 for UDP, 7701 for fragments",
};
const TCP_FLAGS: OptionDoc =
    OptionDoc { name: "flags", value: ValueKind::Choice(FLAGS), default: Some("syn"), help: "flags of a TCP probe" };
const NUMBER: OptionDoc = OptionDoc {
    name: "ip-protocol",
    value: ValueKind::Count(0, 255),
    // Reserved for experiments by RFC 3692: a host answers that it does not know the protocol.
    default: Some("253"),
    help: "protocol number of a bare IP packet",
};
const FAMILY: OptionDoc = OptionDoc {
    name: "family",
    value: ValueKind::Choice(FAMILIES),
    default: Some("any"),
    help: "IP version, if the name has addresses of both",
};
const SOURCE: OptionDoc = OptionDoc {
    name: "source",
    value: ValueKind::Source,
    default: None,
    help: "source address; default: the route's preferred one",
};
const TIMEOUT: OptionDoc = OptionDoc {
    name: "timeout",
    value: ValueKind::Span,
    default: Some("1s"),
    help: "time to wait for an answer: 1ms to 10s; a later answer counts as late, not lost",
};
const TRAFFIC_CLASS: OptionDoc = OptionDoc {
    name: "traffic-class",
    value: ValueKind::Count(0, 255),
    default: Some("0"),
    help: "DSCP and ECN byte in the IP header",
};

pub(super) const SERIES: &[OptionDoc] = &[
    HOST,
    PROTOCOL,
    PORT,
    TCP_FLAGS,
    NUMBER,
    OptionDoc {
        name: "count",
        value: ValueKind::Count(1, 1_000_000_000),
        default: None,
        help: "stop after this many probes, even if time is left",
    },
    OptionDoc {
        name: "interval",
        value: ValueKind::Span,
        default: Some("100ms"),
        help: "time between probes, 10us or more",
    },
    OptionDoc {
        name: "flood",
        value: ValueKind::Flag,
        default: None,
        help: "send as fast as possible, and still read the answers",
    },
    OptionDoc {
        name: "size",
        value: ValueKind::Size,
        default: None,
        help: "length of the IP packet; default: the shortest, or 4000 for fragments",
    },
    OptionDoc {
        name: "hop-limit",
        value: ValueKind::Count(1, 255),
        default: Some("64"),
        help: "TTL (hop limit) of probes",
    },
    OptionDoc {
        name: "outage-probes",
        value: ValueKind::Count(1, 1_000_000),
        default: Some("3"),
        help: "consecutive unanswered probes that count as an outage",
    },
    TIMEOUT,
    FAMILY,
    SOURCE,
    TRAFFIC_CLASS,
];

pub(super) const MTU: &[OptionDoc] = &[
    HOST,
    PROTOCOL,
    PORT,
    TCP_FLAGS,
    NUMBER,
    OptionDoc { name: "tries", value: ValueKind::Count(1, 10), default: Some("2"), help: "tries per packet size" },
    TIMEOUT,
    FAMILY,
    SOURCE,
    TRAFFIC_CLASS,
];

pub(super) const ROUTE: &[OptionDoc] = &[
    HOST,
    PROTOCOL,
    PORT,
    TCP_FLAGS,
    NUMBER,
    OptionDoc { name: "hops", value: ValueKind::Count(1, 255), default: Some("30"), help: "maximum number of hops" },
    OptionDoc {
        name: "queries",
        value: ValueKind::Count(1, 100),
        default: Some("3"),
        help: "probes per hop; Linux routers answer six at once, then one per second",
    },
    OptionDoc { name: "pause", value: ValueKind::Span, default: Some("50ms"), help: "time between probes to one hop" },
    TIMEOUT,
    FAMILY,
    SOURCE,
    TRAFFIC_CLASS,
];

pub(super) const PORTS: &[OptionDoc] = &[
    HOST,
    PROTOCOL_OF_PORTS,
    TCP_FLAGS,
    OptionDoc {
        name: "ports",
        value: ValueKind::Text,
        default: Some("22,53,80,123,443,3306,5432,6379,8080,8443"),
        help: "ports and ranges to scan: 22,80,8000-8010",
    },
    OptionDoc {
        name: "rate",
        value: ValueKind::Rate,
        default: Some("500/s"),
        help: "probes per second, 1 to 3000; fragments: 2000",
    },
    OptionDoc {
        name: "tries",
        value: ValueKind::Count(1, 10),
        default: Some("2"),
        help: "tries per port that does not answer",
    },
    TIMEOUT,
    FAMILY,
    SOURCE,
    TRAFFIC_CLASS,
];

pub(super) const FRAGMENTS: &[OptionDoc] = &[
    HOST,
    PORT,
    OptionDoc {
        name: "fragments",
        value: ValueKind::Text,
        default: Some("all"),
        help: "orders of fragments to send: all, or forward,reversed,random,...",
    },
    OptionDoc {
        name: "size",
        value: ValueKind::Size,
        default: Some("4000B"),
        help: "length of the IP packet before it is cut",
    },
    OptionDoc {
        name: "mtu",
        value: ValueKind::Size,
        default: None,
        help: "longest fragment, IP header included; default: the MTU of the own device, at most 1500",
    },
    OptionDoc {
        name: "flows",
        value: ValueKind::Count(1, 2_000),
        default: Some("100"),
        help: "flows, each from a source port of its own",
    },
    OptionDoc {
        name: "datagrams",
        value: ValueKind::Count(1, 100),
        default: Some("1"),
        help: "datagrams of each flow in each order",
    },
    OptionDoc { name: "rate", value: ValueKind::Rate, default: Some("500/s"), help: "datagrams per second, 1 to 2000" },
    OptionDoc {
        name: "second-source",
        value: ValueKind::Source,
        default: None,
        help: "another source address, for fragments of two sources with one identification",
    },
    TIMEOUT,
    FAMILY,
    SOURCE,
    TRAFFIC_CLASS,
];

/// The option with the host to probe.
pub(super) const TARGET: &str = HOST.name;

pub(super) fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Unsupported { what: what.into(), hint: Some(hint.into()) }
}

/// Resolves the destination of a role to an address of the requested IP version.
pub(super) fn destination(role: &Role, policy: &Policy) -> Result<IpAddr, Error> {
    let told = role.peer.get(ADDRESS).cloned();
    let host = role.settings.text(TARGET).or(told).ok_or(Error::Endpoint { kind: "probe", what: ADDRESS })?;
    let family = role.settings.text("family").unwrap_or_default();
    let fits = |address: &IpAddr| match family.as_str() {
        "4" => address.is_ipv4(),
        "6" => address.is_ipv6(),
        _ => true,
    };
    let found = policy.resolve(&host, 0).map_err(|error| match Refused::within(&error) {
        Some(refused) => refused.clone().into(),
        None => unsupported(
            format!("there is no host `{host}`: {error}"),
            "an address, or a name that `getent hosts` knows",
        ),
    })?;
    let mut found = found.iter().filter_map(Destination::address).map(|found| found.ip());
    found
        .find(fits)
        .ok_or_else(|| unsupported(format!("`{host}` has no address of IP version {family}"), "leave --family out"))
}

pub(super) fn probe_kind(settings: &Settings, destination: IpAddr) -> ProbeKind {
    match settings.text("protocol").as_deref() {
        Some("tcp") => ProbeKind::Tcp(TcpProbe { flags: flags(settings), window: 512, ..TcpProbe::default() }),
        Some("udp") => ProbeKind::Udp,
        Some("ip") => {
            let number = settings.count(NUMBER.name).and_then(|number| u8::try_from(number).ok());
            ProbeKind::Raw { protocol: number.unwrap_or(253) }
        }
        _ => ProbeKind::echo(destination),
    }
}

fn flags(settings: &Settings) -> TcpFlags {
    match settings.text(TCP_FLAGS.name).as_deref() {
        Some("ack") => TcpFlags::ACK,
        Some("fin") => TcpFlags::FIN,
        Some("rst") => TcpFlags::RST,
        Some("null") => TcpFlags(0),
        Some("xmas") => TcpFlags::FIN.with(TcpFlags::PSH).with(TcpFlags::URG),
        Some("syn-ack") => TcpFlags::SYN.with(TcpFlags::ACK),
        _ => TcpFlags::SYN,
    }
}

/// Returns the destination port.
pub(super) fn port(settings: &Settings) -> u16 {
    /// The first port of traceroute. Hardly any host listens there.
    const UDP: u16 = 33_434;
    let usual = if settings.text("protocol").as_deref() == Some("udp") { UDP } else { 80 };
    settings.count(PORT.name).and_then(|port| u16::try_from(port).ok()).unwrap_or(usual)
}

/// Describes the protocol of a probe: `TCP SYN to port 80`.
pub(super) fn describe(settings: &Settings) -> String {
    match settings.text("protocol").as_deref() {
        Some("tcp") => {
            let flags = settings.text(TCP_FLAGS.name).unwrap_or_default().to_uppercase();
            format!("TCP {flags} to port {}", port(settings))
        }
        Some("udp") => format!("UDP to port {}", port(settings)),
        Some("ip") => format!("IP protocol {}", settings.count(NUMBER.name).unwrap_or(253)),
        _ => "ICMP echo".to_owned(),
    }
}

/// Returns how long an answer may take.
pub(super) fn timeout(settings: &Settings) -> Result<Nanos, Error> {
    bounded_span(settings, TIMEOUT.name, Nanos::from_millis(1)..=Nanos::from_secs(10))
}

/// Returns a time option, checked against bounds.
pub(super) fn bounded_span(
    settings: &Settings,
    name: &str,
    range: std::ops::RangeInclusive<Nanos>,
) -> Result<Nanos, Error> {
    let span = settings.span(name).unwrap_or(*range.start());
    if range.contains(&span) {
        return Ok(span);
    }
    let (least, most) = (range.start(), range.end());
    Err(unsupported(format!("option `{name}` takes {least} to {most}, not {span}"), format!("--{name} {least}")))
}

/// Parses ports and port ranges. Keeps their order, and lists each port once.
pub(super) fn ports(text: &str) -> Result<Vec<u16>, Error> {
    let wrong = |part: &str| {
        unsupported(
            format!("option `ports`: `{part}` is neither a port nor a range of ports"),
            "--ports 22,80,8000-8010",
        )
    };
    let mut ports = Vec::new();
    let mut seen = vec![false; 1 << 16];
    for part in text.split(',').map(str::trim) {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| wrong(part));
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(part)?, port(part)?),
        };
        if first > last {
            return Err(wrong(part));
        }
        for port in first..=last {
            if !std::mem::replace(&mut seen[usize::from(port)], true) {
                ports.push(port);
            }
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_listed_once_in_their_order_and_nonsense_is_named() {
        assert_eq!(ports("80,22,79-81, 443").unwrap(), [80, 22, 79, 81, 443]);
        for wrong in ["", "80,", "0", "65536", "90-80", "http", "1-2-3", "-5"] {
            let error = ports(wrong).unwrap_err();
            assert!(error.to_string().contains("neither a port"), "{wrong}: {error}");
        }
    }
}
