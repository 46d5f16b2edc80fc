//! The frames to send as options describe them: a line, a capture, or an option for each header.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::fs::FileTypeExt as _,
};

use fathom_capture::CaptureFileError;
use fathom_model::{MacAddress, OptionDoc, Settings, ValueKind};

use super::{
    ChangePer, CraftError, FrameEndpoints, FrameSet, FrameTemplate,
    capture::{CaptureError, read_capture, vlan_tag_length},
    mix::SizeMix,
    spec::FrameSpec,
    stack::{FrameEndpoint, HeaderStack},
};
use fathom_wire::{Ethernet, FrameSize, TAG_LENGTH, Udp};

/// The conditions that frames are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameContext {
    /// The source and destination of the frames.
    pub ends: FrameEndpoints,
    /// The longest packet that the device accepts.
    pub mtu_bytes: u32,
    /// The seed of everything random.
    pub seed: u64,
}

const fn text(name: &'static str, help: &'static str) -> OptionDoc {
    OptionDoc { name, value: ValueKind::Frames, default: None, help }
}

pub const FRAME: OptionDoc =
    text("frame", "the frame in one line: `vlan 100 / ip ttl 3 / udp 1024-65535? > 9 / \"text\"`");
pub const CAPTURE: OptionDoc = OptionDoc {
    name: "capture",
    value: ValueKind::File,
    default: None,
    help: "send the frames of this pcap or pcapng file instead of --frame",
};
pub const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    default: None,
    help: "frame size on the wire, FCS included: 64 to 16000; default: the smallest",
};
pub const MIX: OptionDoc = text(
    "mix",
    "sizes in place of `size`: imix, with weights as 64:7,570:4,1518:1, or an RFC 6985 genome as aaaaaaaddddg",
);
pub const FLOWS: OptionDoc = OptionDoc {
    name: "flows",
    value: ValueKind::Count(1, 1_000_000),
    default: None,
    help: "number of flows; they differ in their ports (RFC 4814) unless you set other fields",
};
pub const VLAN: OptionDoc = text("vlan", "number of the VLAN; two with a comma for QinQ, the outer first");
pub const MPLS: OptionDoc = text("mpls", "labels of MPLS with commas between, the outer first");
pub const TRANSPORT: OptionDoc = OptionDoc {
    name: "transport",
    value: ValueKind::Choice(&["udp", "tcp", "icmp", "udp6", "tcp6", "icmp6"]),
    default: None,
    help: "transport protocol of the packets, over IPv4 or IPv6",
};
pub const ADDRESSES: OptionDoc = text("addresses", "`FROM > TO` of the packets, each of which may be a range");
pub const PORTS: OptionDoc =
    text("ports", "`FROM > TO` of udp and tcp, each of which may be a range, as 1024-65535? > 9");
pub const TTL: OptionDoc = text("ttl", "how many routers a packet may pass");
pub const TOS: OptionDoc = text("tos", "the byte for the type of service, or class of traffic");
pub const PAYLOAD: OptionDoc =
    text("payload", "the payload after the headers: `\"text\"`, `hex 0a0b`, `fill 0xff`, `random`");

/// All options that describe frames, in the order of the help.
pub const OPTIONS: &[OptionDoc] =
    &[SIZE, MIX, FLOWS, FRAME, CAPTURE, TRANSPORT, ADDRESSES, PORTS, VLAN, MPLS, TTL, TOS, PAYLOAD];

/// The options that have an equivalent in a line.
const WORDS: &[&OptionDoc] = &[&TRANSPORT, &ADDRESSES, &PORTS, &VLAN, &MPLS, &TTL, &TOS, &PAYLOAD];

/// Makes the frames that the options ask for.
///
/// # Errors
/// Names the option, and the place in it, that asks for something that cannot be sent.
pub fn from_settings(settings: &Settings, setup: &FrameContext) -> Result<FrameSet, CraftError> {
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
        return frames_of_capture(path, n_flows.unwrap_or(1), setup);
    }
    let line = FrameSpec::read(&settings.text(FRAME.name).unwrap_or_else(|| spec_from_words(settings)))?;
    let sizes = match (settings.text(MIX.name), settings.size(SIZE.name)) {
        (Some(mix), _) => SizeMix::read(&mix, setup.mtu_bytes)?,
        (None, size) => SizeMix::of_size(size.map(FrameSize::new).transpose()?),
    };
    FrameSet::from_spec(&line, sizes, n_flows, setup)
}

/// The properties of frames that are known before their addresses are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameOutline {
    /// The offset of their mark.
    pub mark_at: Option<usize>,
    /// Whether they carry a VLAN tag. A device on the path may strip it into metadata.
    pub is_tagged: bool,
    pub n_flows: u32,
    /// Whether the IPv6 addresses of the hosts are needed.
    pub needs_ipv6: bool,
    /// Whether the IPv4 addresses of the hosts are needed, and no IPv6 addresses.
    pub needs_only_ipv4: bool,
    /// The source ports of datagrams with a mark.
    pub source_ports: SourcePorts,
}

impl FrameOutline {
    /// Returns the possible offsets of the mark on arrival.
    ///
    /// Linux strips the outermost tag from a frame, and a bridge forwards it as metadata (`skb_vlan_untag`), which no XDP program
    /// sees.
    #[must_use]
    pub fn mark_places(&self) -> Vec<usize> {
        let untagged = self.mark_at.filter(|_| self.is_tagged).and_then(|at| at.checked_sub(TAG_LENGTH));
        self.mark_at.into_iter().chain(untagged).collect()
    }
}

/// The source ports of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePorts {
    /// The port of the sending host.
    Own,
    /// A range of consecutive ports from the options.
    Given {
        first: u16,
        /// The number of ports, at least one.
        n: u32,
    },
}

/// Returns the properties of the requested frames that the other side needs to know.
///
/// # Errors
/// As [`from_settings`], except that a capture is not read: it is on the sending host, and its path may be missing here.
pub fn outline(settings: &Settings, mtu_bytes: u32) -> Result<FrameOutline, CraftError> {
    if settings.text(CAPTURE.name).is_some() {
        let n_flows = settings.count(FLOWS.name).and_then(|flows| u32::try_from(flows).ok()).unwrap_or(1);
        return Ok(FrameOutline {
            mark_at: None,
            is_tagged: false,
            n_flows,
            needs_ipv6: false,
            needs_only_ipv4: false,
            source_ports: SourcePorts::Own,
        });
    }
    let (v4, v6) = (Some(Ipv4Addr::UNSPECIFIED), Some(Ipv6Addr::UNSPECIFIED));
    let with = |ipv4, ipv6| {
        let end = FrameEndpoint { mac: MacAddress::default(), ipv4, ipv6, port: 0 };
        from_settings(settings, &FrameContext { ends: FrameEndpoints { source: end, target: end }, mtu_bytes, seed: 0 })
    };
    let blueprint = with(v4, v6)?;
    let needs_ipv6 = with(v4, None).is_err();
    let needs_only_ipv4 = !needs_ipv6 && with(None, None).is_err();
    let (mark_at, n_flows, source_ports) = (blueprint.mark_at(), blueprint.n_flows, source_ports(&blueprint));
    let is_tagged = blueprint.templates.iter().any(FrameTemplate::is_tagged);
    Ok(FrameOutline { mark_at, is_tagged, n_flows, needs_ipv6, needs_only_ipv4, source_ports })
}

/// Returns the source ports of frames made with a port of zero. The result is irrelevant if the frames are not UDP.
fn source_ports(blueprint: &FrameSet) -> SourcePorts {
    let place = |mark: usize| mark.checked_sub(Udp::LENGTH);
    let Some((shape, at)) = blueprint.templates.first().zip(blueprint.mark_at().and_then(place)) else {
        return SourcePorts::Own;
    };
    let first = u16::from_be_bytes([shape.bytes[at], shape.bytes[at + 1]]);
    let Some(edit) = shape.changes.iter().find(|edit| edit.at == at && edit.width == 2) else {
        return if first == 0 { SourcePorts::Own } else { SourcePorts::Given { first, n: 1 } };
    };
    let (low, high) = edit.values.bounds();
    let n = u32::try_from(high - low + 1).unwrap_or(u32::MAX);
    let n = if edit.per == ChangePer::Flow { n.min(blueprint.n_flows) } else { n };
    SourcePorts::Given { first: u16::try_from(low).unwrap_or(first), n }
}

/// Returns a short title of the frames.
#[must_use]
pub fn title(settings: &Settings) -> String {
    /// A longer line would fill a line of a report.
    const LINE_MAX: usize = 60;
    if let Some(capture) = settings.text(CAPTURE.name) {
        return capture.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let line = settings.text(FRAME.name).or_else(|| {
        let is_plain = WORDS.iter().all(|option| settings.text(option.name).is_none());
        (!is_plain).then(|| spec_from_words(settings))
    });
    let size = settings.text(MIX.name).or_else(|| settings.size(SIZE.name).map(|size| format!("{} B", size.0)));
    match (size, line) {
        (None, None) => "64 B".to_owned(),
        (Some(size), None) => size,
        (size, Some(line)) => {
            let end = line.char_indices().nth(LINE_MAX);
            let line = end.map_or(line.clone(), |(end, _)| format!("{}…", &line[..end]));
            size.map_or(line.clone(), |size| format!("{size}, {line}"))
        }
    }
}

impl FrameSet {
    /// Makes frames from a line in these sizes. Without a number of flows, there are as many as its longest range has values.
    ///
    /// # Errors
    /// If headers do not fit together or into the size, or if a frame is too long for the device.
    pub fn from_spec(
        line: &FrameSpec,
        mix: SizeMix,
        n_flows: Option<u32>,
        setup: &FrameContext,
    ) -> Result<Self, CraftError> {
        let misplaced = |fault: super::spec::LocatedFault| CraftError::Spec(fault.of(&line.text));
        let stack = HeaderStack::complete(line, &setup.ends, n_flows).map_err(misplaced)?;
        let shape = |size: &Option<FrameSize>| {
            let shape = stack.template(*size, setup.seed).map_err(|unbuilt| match unbuilt {
                super::build::BuildError::Fault(fault) => misplaced(fault),
                super::build::BuildError::TooSmall { size, least } => CraftError::TooSmall { size, least },
            })?;
            require_mtu(&shape, setup.mtu_bytes)?;
            Ok(shape)
        };
        let shapes = mix.sizes.iter().map(shape).collect::<Result<Vec<_>, CraftError>>()?;
        Ok(Self { templates: shapes, order: mix.order, n_flows: stack.n_flows })
    }
}

fn require_mtu(shape: &FrameTemplate, mtu_bytes: u32) -> Result<(), CraftError> {
    let needed = shape.bytes.len() - Ethernet::LENGTH - vlan_tag_length(&shape.bytes);
    let mtu = usize::try_from(mtu_bytes).unwrap_or(usize::MAX);
    if needed <= mtu { Ok(()) } else { Err(CraftError::TooLong { size: shape.bytes.len() + 4, needed, mtu }) }
}

fn frames_of_capture(path: String, n_flows: u32, setup: &FrameContext) -> Result<FrameSet, CraftError> {
    let longest = usize::try_from(setup.mtu_bytes).unwrap_or(usize::MAX).saturating_add(Ethernet::LENGTH);
    let unreadable = |error: io::Error| CaptureFileError::Unreadable(error.to_string());
    // Opening a pipe without a writer would block forever.
    let is_pipe = fs::metadata(&path).is_ok_and(|known| known.file_type().is_fifo());
    let a_pipe = || CaptureFileError::Unreadable("it is a pipe, and a file is needed".to_owned());
    let file = if is_pipe { Err(a_pipe()) } else { File::open(&path).map_err(unreadable) };
    let frames = file.map_err(CaptureError::File).and_then(|file| read_capture(file, longest));
    let frames = frames.map_err(|cause| CraftError::Capture { path, cause })?;
    let order = (0..=u16::MAX).take(frames.len()).collect();
    Ok(FrameSet { templates: frames.into_iter().map(FrameTemplate::fixed).collect(), order, n_flows })
}

/// Returns the line that is equivalent to the options for single headers.
fn spec_from_words(settings: &Settings) -> String {
    let value = |option: &OptionDoc| settings.text(option.name).unwrap_or_default();
    let mut layers = Vec::new();
    let tags = value(&VLAN);
    match tags.split_once(',') {
        Some((outer, inner)) => layers.extend([format!("svlan {outer}"), format!("vlan {inner}")]),
        None if !tags.is_empty() => layers.push(format!("vlan {tags}")),
        None => {}
    }
    layers.extend(value(&MPLS).split(',').filter(|label| !label.is_empty()).map(|label| format!("mpls {label}")));
    let transport = value(&TRANSPORT);
    let is_ipv6 = transport.ends_with('6');
    let (ip, ttl, tos) = if is_ipv6 { ("ip6", "hops", "class") } else { ("ip", "ttl", "tos") };
    let mut ip = ip.to_owned();
    for (word, option) in [("", &ADDRESSES), (ttl, &TTL), (tos, &TOS)] {
        if settings.text(option.name).is_some() {
            ip = format!("{ip} {word} {}", value(option));
        }
    }
    let transport = match transport.as_str() {
        "icmp" | "icmp6" => transport,
        other => format!("{} {}", if other.starts_with("tcp") { "tcp" } else { "udp" }, value(&PORTS)),
    };
    layers.extend([ip, transport]);
    layers.extend(settings.text(PAYLOAD.name));
    layers.join(" / ")
}
