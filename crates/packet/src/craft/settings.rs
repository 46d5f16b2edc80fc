//! What is sent as options say it: a line, a capture, or a word for each header.

use std::fs::File;

use fathom_model::{OptionDoc, Settings, ValueKind};

use super::{
    Blueprint, CraftError, Ends, Shape,
    capture::{read_capture, tag},
    line::Line,
    mix::Mix,
    stack::Stack,
};
use crate::wire::{Ethernet, FrameSize};

/// What frames are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Between whom they go.
    pub ends: Ends,
    /// The longest packet that the device takes.
    pub mtu_bytes: u32,
    /// What everything random follows from, unless a seed is given.
    pub seed: u64,
}

const fn text(name: &'static str, help: &'static str) -> OptionDoc {
    OptionDoc { name, value: ValueKind::Text, default: None, help }
}

/// The line of text.
pub const FRAME: OptionDoc =
    text("frame", "what is sent, in one line: `vlan 100 / ip ttl 3 / udp 1024-65535? > 9 / \"text\"`");
/// The capture.
pub const CAPTURE: OptionDoc = text("capture", "send the frames of this pcap or pcapng file, in place of `frame`");
/// The length of all frames.
pub const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    default: None,
    help: "length of a frame on the wire, checksum included: 64 to 16000; as short as can be if absent",
};
/// Their lengths, when they have several.
pub const MIX: OptionDoc = text(
    "mix",
    "sizes in place of `size`: imix, with weights as 64:7,570:4,1518:1, or an RFC 6985 genome as aaaaaaaddddg",
);
/// How many flows.
pub const FLOWS: OptionDoc = OptionDoc {
    name: "flows",
    value: ValueKind::Count(1, 1_000_000),
    default: None,
    help: "flows that the frames belong to; they differ in ports (RFC 4814) if nothing else is said",
};
/// What chance follows from.
pub const SEED: OptionDoc = OptionDoc {
    name: "seed",
    value: ValueKind::Count(0, u64::MAX),
    default: None,
    help: "what random fields follow from, to send the same frames again",
};
const VLAN: OptionDoc = text("vlan", "number of the VLAN; two with a comma for QinQ, the outer first");
const MPLS: OptionDoc = text("mpls", "labels of MPLS with commas between, the outer first");
const PROTOCOL: OptionDoc = OptionDoc {
    name: "protocol",
    value: ValueKind::Choice(&["udp", "tcp", "icmp", "udp6", "tcp6", "icmp6", "arp"]),
    default: None,
    help: "what the packets are, over IPv4 or IPv6",
};
const ADDRESSES: OptionDoc = text("addresses", "`FROM > TO` of the packets, each of which may be a range");
const PORTS: OptionDoc = text("ports", "`FROM > TO` of udp and tcp, each of which may be a range, as 1024-65535? > 9");
const TTL: OptionDoc = text("ttl", "how many routers a packet may pass");
const TOS: OptionDoc = text("tos", "the byte for the type of service, or class of traffic");
const PAYLOAD: OptionDoc = text("payload", "what is behind the headers: `\"text\"`, `hex 0a0b`, `fill 0xff`, `random`");

/// All that say what is sent, in the order of the help.
pub const OPTIONS: &[OptionDoc] =
    &[SIZE, MIX, FLOWS, FRAME, CAPTURE, PROTOCOL, ADDRESSES, PORTS, VLAN, MPLS, TTL, TOS, PAYLOAD, SEED];

/// Those that a line says too.
const WORDS: &[&OptionDoc] = &[&PROTOCOL, &ADDRESSES, &PORTS, &VLAN, &MPLS, &TTL, &TOS, &PAYLOAD];

/// What options ask for.
///
/// # Errors
/// Names the option, and the place in it, that asks for something that cannot be sent.
pub fn from_settings(settings: &Settings, setup: &Setup) -> Result<Blueprint, CraftError> {
    let has = |option: &OptionDoc| settings.text(option.name).is_some();
    let both = |one: &OptionDoc, others: &[&OptionDoc]| {
        let other = others.iter().find(|other| has(one) && has(other));
        other.map_or(Ok(()), |other| Err(CraftError::Conflict { one: one.name, other: other.name }))
    };
    both(&CAPTURE, &[&FRAME, &SIZE, &MIX])?;
    both(&CAPTURE, WORDS)?;
    both(&FRAME, WORDS)?;
    both(&SIZE, &[&MIX])?;
    let n_flows = settings.count(FLOWS.name).map(|flows| u32::try_from(flows).unwrap_or(u32::MAX));
    if let Some(path) = settings.text(CAPTURE.name) {
        return captured(path, n_flows.unwrap_or(1), setup);
    }
    let line = Line::read(&settings.text(FRAME.name).unwrap_or_else(|| composed(settings)))?;
    let sizes = match (settings.text(MIX.name), settings.size(SIZE.name)) {
        (Some(mix), _) => Mix::read(&mix, setup.mtu_bytes)?,
        (None, size) => Mix::one(size.map(FrameSize::new).transpose()?),
    };
    let seed = settings.count(SEED.name).unwrap_or(setup.seed);
    Blueprint::draw(&line, sizes, n_flows, &Setup { seed, ..*setup })
}

impl Blueprint {
    /// Frames of a line in these sizes; without a number of flows as many as its longest range has values.
    ///
    /// # Errors
    /// When headers do not fit together, into the size, or the frame not through the device.
    pub fn draw(line: &Line, mix: Mix, n_flows: Option<u32>, setup: &Setup) -> Result<Self, CraftError> {
        let misplaced = |fault: super::line::Misplaced| CraftError::Line(fault.of(&line.text));
        let stack = Stack::complete(line, &setup.ends, n_flows).map_err(misplaced)?;
        let shape = |size: &Option<FrameSize>| {
            let shape = stack.shape(*size, setup.seed).map_err(|unbuilt| match unbuilt {
                super::build::Unbuilt::Misplaced(fault) => misplaced(fault),
                super::build::Unbuilt::TooSmall { size, least } => CraftError::TooSmall { size, least },
            })?;
            require_mtu(&shape, setup.mtu_bytes)?;
            Ok(shape)
        };
        let shapes = mix.sizes.iter().map(shape).collect::<Result<Vec<_>, CraftError>>()?;
        Ok(Self { shapes, order: mix.order, n_flows: stack.n_flows })
    }
}

fn require_mtu(shape: &Shape, mtu_bytes: u32) -> Result<(), CraftError> {
    let needed = shape.bytes.len() - Ethernet::LENGTH - tag(&shape.bytes);
    let mtu = usize::try_from(mtu_bytes).unwrap_or(usize::MAX);
    if needed <= mtu { Ok(()) } else { Err(CraftError::TooLong { needed, mtu }) }
}

fn captured(path: String, n_flows: u32, setup: &Setup) -> Result<Blueprint, CraftError> {
    let longest = usize::try_from(setup.mtu_bytes).unwrap_or(usize::MAX).saturating_add(Ethernet::LENGTH);
    let file = File::open(&path).map_err(|error| super::CaptureError::Unreadable(error.to_string()));
    let frames = file.and_then(|file| read_capture(file, longest));
    let frames = frames.map_err(|cause| CraftError::Capture { path, cause })?;
    let order = (0..=u16::MAX).take(frames.len()).collect();
    Ok(Blueprint { shapes: frames.into_iter().map(Shape::fixed).collect(), order, n_flows })
}

/// The line that the words for single headers come to.
fn composed(settings: &Settings) -> String {
    let value = |option: &OptionDoc| settings.text(option.name).unwrap_or_default();
    let mut layers = Vec::new();
    let tags = value(&VLAN);
    match tags.split_once(',') {
        Some((outer, inner)) => layers.extend([format!("svlan {outer}"), format!("vlan {inner}")]),
        None if !tags.is_empty() => layers.push(format!("vlan {tags}")),
        None => {}
    }
    layers.extend(value(&MPLS).split(',').filter(|label| !label.is_empty()).map(|label| format!("mpls {label}")));
    let protocol = value(&PROTOCOL);
    let is_ipv6 = protocol.ends_with('6');
    let (ip, ttl, tos) = if is_ipv6 { ("ip6", "hops", "class") } else { ("ip", "ttl", "tos") };
    let (mut ip, addresses) = (ip.to_owned(), value(&ADDRESSES));
    for (word, option) in [("", &ADDRESSES), (ttl, &TTL), (tos, &TOS)] {
        if settings.text(option.name).is_some() {
            ip = format!("{ip} {word} {}", value(option));
        }
    }
    let transport = match protocol.as_str() {
        "icmp" | "icmp6" => protocol,
        "arp" => format!("arp {addresses}"),
        other => format!("{} {}", if other.starts_with("tcp") { "tcp" } else { "udp" }, value(&PORTS)),
    };
    layers.extend((!transport.starts_with("arp")).then_some(ip));
    layers.push(transport);
    layers.extend(settings.text(PAYLOAD.name));
    layers.join(" / ")
}
