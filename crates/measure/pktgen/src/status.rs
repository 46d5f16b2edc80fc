//! The status of a device: the text of `/proc/net/pktgen/DEVICE`, parsed and printed.
//!
//! The form is that of `pktgen_if_show` in `net/core/pktgen.c` of Linux 6.1. This module reads no file.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use fathom_model::{MacAddress, units::Nanos};

use crate::value::{SizeWeight, XmitMode, spaced};

/// A complete status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The parameters of the device.
    pub params: Params,
    /// The progress of its run.
    pub progress: RunStatus,
    /// The result of the last command or the last run.
    pub last_result: CommandResult,
}

/// Parameters, as stored by pktgen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// The number of packets; zero for no limit.
    pub count: u64,
    /// The shortest packet in bytes, without the FCS; zero for a packet that just holds its headers.
    pub min_pkt_size: u64,
    /// The longest packet in bytes, without the FCS.
    pub max_pkt_size: u64,
    /// The weighted sizes of a mix, instead of a single size.
    pub imix_weights: Vec<SizeWeight>,
    /// Fragments of a packet's memory.
    pub frags: u64,
    /// From the start of one packet to the start of the next.
    pub delay: Nanos,
    /// How often a packet is sent again before the next one is built.
    pub clone_skb: u64,
    /// The device, with its tag.
    pub ifname: String,
    /// The number of concurrent flows.
    pub flows: u64,
    /// Consecutive packets of a flow.
    pub flowlen: u64,
    /// The first and the last queue of the device.
    pub queue_map: (u64, u64),
    /// The priority, for queueing disciplines.
    pub skb_priority: u64,
    /// The source and destination addresses.
    pub addresses: PktgenAddresses,
    /// The source MAC address: that of the device, unless set.
    pub src_mac: MacAddress,
    /// The destination MAC address.
    pub dst_mac: MacAddress,
    /// The range of source ports.
    pub udp_src: (u64, u64),
    /// The range of destination ports.
    pub udp_dst: (u64, u64),
    /// The number of source MAC addresses in rotation.
    pub src_mac_count: u64,
    /// The number of destination MAC addresses in rotation.
    pub dst_mac_count: u64,
    /// MPLS labels, outermost first.
    pub mpls: Vec<u32>,
    /// The inner tag.
    pub vlan: Option<VlanTag>,
    /// The outer of two tags.
    pub svlan: Option<VlanTag>,
    /// The TOS byte of IPv4.
    pub tos: u8,
    /// The traffic class of IPv6.
    pub traffic_class: u8,
    /// Packets that are handed to the driver with a single notification.
    pub burst: u64,
    /// The memory node of packets; any node, unless set.
    pub node: Option<u64>,
    /// Where packets enter the kernel's path.
    pub xmit_mode: XmitMode,
    /// Other flags that are on, in pktgen's words, including `spi:NUMBER`.
    pub flags: Vec<String>,
}

/// The first and the last address of a range, each optional.
pub type Ipv4Range = (Option<Ipv4Addr>, Option<Ipv4Addr>);

/// IP addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PktgenAddresses {
    /// IPv4 ranges; the end of a range is `None` if it is a single address.
    V4 {
        /// The first and the last destination.
        dst: Ipv4Range,
        /// The first and the last source; that of the device if `None`.
        src: Ipv4Range,
    },
    /// IPv6: a single address, and the first and the last of a range, for each direction.
    V6 { src: [Ipv6Addr; 3], dst: [Ipv6Addr; 3] },
}

/// An IEEE 802.1Q tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// The VLAN ID.
    pub id: u64,
    /// The priority, up to 7.
    pub priority: u64,
    /// The bit between priority and VLAN ID.
    pub cfi: u64,
}

/// The progress of a run, or its state at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStatus {
    /// Packets that the driver or the stack accepted.
    pub sent: u64,
    /// Packets that it refused or dropped at once.
    pub errors: u64,
    /// The number of sent packets of each size of a mix.
    pub imix_size_counts: Vec<SizeWeight>,
    /// When the run started, on the monotonic clock, to the microsecond.
    pub started: Nanos,
    /// When it ended, or now.
    pub stopped: Nanos,
    /// How long it waited between packets.
    pub idle: Nanos,
    /// The number of the next packet.
    pub seq_num: u64,
    /// Offsets of the MAC addresses: destination, source.
    pub mac_offsets: (u64, u64),
    /// The next packet's addresses, source first, as pktgen prints them.
    pub addresses: (String, String),
    /// The next packet's ports: destination, source.
    pub ports: (u64, u64),
    /// The next packet's queue.
    pub queue_map: u64,
    /// The number of started flows.
    pub flows: u64,
}

/// The lines after `Result:`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandResult {
    /// There was no command yet.
    Idle,
    /// The last command was accepted; the text after `OK: `.
    Accepted(String),
    /// A run has ended.
    Finished(RunResult),
    /// The last command was refused; pktgen's text.
    Refused(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunResult {
    /// From the first packet to the last, to the microsecond.
    pub took: Nanos,
    /// The time spent sending, in µs. Negative if the last wait ended after the last packet.
    pub busy_us: i64,
    /// The time spent waiting.
    pub idle: Nanos,
    /// Packets that were accepted.
    pub sent: u64,
    /// The length of the last packet, without the FCS.
    pub size_bytes: u64,
    /// The fragments of the last packet.
    pub frags: u64,
    /// Packets per second.
    pub pps: u64,
    /// Bits per second, without FCS, preamble and gap.
    pub bps: u64,
    /// Packets that were refused.
    pub errors: u64,
}

/// Why a text is not a status of pktgen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// A value is missing.
    #[error("pktgen's text has no `{0}`")]
    Missing(&'static str),
    /// A value has an unknown form.
    #[error("`{value}` is not a value of pktgen's `{name}`")]
    Malformed { name: &'static str, value: String },
}

impl RunResult {
    /// Computes a result from counts and times, rounded as pktgen rounds.
    #[must_use]
    pub fn of(sent: u64, size_bytes: u64, (took, idle): (Nanos, Nanos), errors: u64) -> Self {
        let whole = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        let pps = whole(u128::from(sent) * 1_000_000_000 / u128::from(took.0.max(1)));
        let bps = whole(u128::from(pps) * 8 * u128::from(size_bytes));
        let busy_us = i64::try_from(whole_micros(took.since(idle))).unwrap_or(i64::MAX);
        Self { took, busy_us, idle, sent, size_bytes, frags: 0, pps, bps, errors }
    }
}

/// The fields of one part: each name with the words that follow it.
struct StatusFields<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> StatusFields<'a> {
    fn read(text: &'a str) -> Self {
        let mut fields: Vec<(&str, Vec<&str>)> = Vec::new();
        for word in text.split_whitespace() {
            match word.strip_suffix(':').filter(|name| is_name(name)) {
                Some(name) => fields.push((name, Vec::new())),
                // The only name without a colon comes first, and only once.
                None if fields.is_empty() => fields.push((word, Vec::new())),
                None => fields.last_mut().into_iter().for_each(|(_, values)| values.push(word)),
            }
        }
        Self(fields)
    }

    fn find(&self, name: &str) -> Option<&[&'a str]> {
        self.0.iter().find(|(field, _)| *field == name).map(|(_, values)| values.as_slice())
    }

    fn words(&self, name: &'static str) -> Result<&[&'a str], StatusError> {
        self.find(name).ok_or(StatusError::Missing(name))
    }

    /// The single value of a name; `None` if there is none.
    fn optional<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, StatusError> {
        self.find(name).and_then(|values| values.first()).map(|value| parsed(name, value)).transpose()
    }

    fn value<T: FromStr>(&self, name: &'static str) -> Result<T, StatusError> {
        self.optional(name)?.ok_or(StatusError::Missing(name))
    }

    fn number(&self, name: &'static str) -> Result<u64, StatusError> {
        self.value(name)
    }

    fn number_or_zero(&self, name: &'static str) -> Result<u64, StatusError> {
        Ok(self.optional(name)?.unwrap_or(0))
    }

    fn pair(&self, first: &'static str, second: &'static str) -> Result<(u64, u64), StatusError> {
        Ok((self.number(first)?, self.number(second)?))
    }

    /// A time in microseconds, with its unit.
    fn micros(&self, name: &'static str) -> Result<Nanos, StatusError> {
        let text: String = self.value(name)?;
        micros(name, text.strip_suffix("us").unwrap_or(&text))
    }

    /// `0x28`; zero if it is not shown.
    fn octet(&self, name: &'static str) -> Result<u8, StatusError> {
        let Some(text) = self.optional::<String>(name)? else { return Ok(0) };
        u8::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|_| malformed(name, &text))
    }

    fn list<T: FromStr>(&self, name: &'static str) -> Result<Vec<T>, StatusError> {
        self.find(name).unwrap_or_default().iter().map(|word| parsed(name, word)).collect()
    }

    fn labels(&self) -> Result<Vec<u32>, StatusError> {
        let label =
            |word: &&str| u32::from_str_radix(word.trim_end_matches(','), 16).map_err(|_| malformed("mpls", word));
        self.find("mpls").unwrap_or_default().iter().map(label).collect()
    }

    /// A tag. The names of its priority and its bit are the same for both tags.
    fn tag(&self, name: &'static str) -> Result<Option<VlanTag>, StatusError> {
        let Some(at) = self.0.iter().position(|(field, _)| *field == name) else { return Ok(None) };
        let behind = StatusFields(self.0[at..].iter().take(3).cloned().collect());
        let (priority, cfi) = behind.pair("vlan_p", "vlan_cfi")?;
        Ok(Some(VlanTag { id: behind.number(name)?, priority, cfi }))
    }

    fn addresses(&self) -> Result<PktgenAddresses, StatusError> {
        if self.find("saddr").is_none() {
            let pair = |first, second| Ok::<_, StatusError>((self.optional(first)?, self.optional(second)?));
            return Ok(PktgenAddresses::V4 { dst: pair("dst_min", "dst_max")?, src: pair("src_min", "src_max")? });
        }
        let src = [self.value("saddr")?, self.value("min_saddr")?, self.value("max_saddr")?];
        let dst = [self.value("daddr")?, self.value("min_daddr")?, self.value("max_daddr")?];
        Ok(PktgenAddresses::V6 { src, dst })
    }
}

/// Whether a word before a colon is a name. Addresses also end in colons, but they start differently or contain colons.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic()) && !word.contains(':')
}

fn malformed(name: &'static str, value: &str) -> StatusError {
    StatusError::Malformed { name, value: value.to_owned() }
}

fn parsed<T: FromStr>(name: &'static str, text: &str) -> Result<T, StatusError> {
    text.parse().map_err(|_| malformed(name, text))
}

fn micros(name: &'static str, digits: &str) -> Result<Nanos, StatusError> {
    let micros: u64 = parsed(name, digits)?;
    micros.checked_mul(1_000).map(Nanos).ok_or_else(|| malformed(name, digits))
}

impl FromStr for Status {
    type Err = StatusError;

    fn from_str(text: &str) -> Result<Self, StatusError> {
        let text = text.strip_prefix("Params:").ok_or(StatusError::Missing("Params"))?;
        let (params, rest) = text.split_once("Current:").ok_or(StatusError::Missing("Current"))?;
        let (current, outcome) = rest.split_once("Result:").ok_or(StatusError::Missing("Result"))?;
        let params = Params::read(&StatusFields::read(params))?;
        let current = RunStatus::read(&StatusFields::read(current))?;
        Ok(Self { params, progress: current, last_result: CommandResult::read(outcome.trim()) })
    }
}

impl Params {
    fn read(fields: &StatusFields<'_>) -> Result<Self, StatusError> {
        Ok(Self {
            count: fields.number("count")?,
            min_pkt_size: fields.number("min_pkt_size")?,
            max_pkt_size: fields.number("max_pkt_size")?,
            imix_weights: fields.list("imix_weights")?,
            frags: fields.number("frags")?,
            delay: Nanos(fields.number("delay")?),
            clone_skb: fields.number("clone_skb")?,
            ifname: fields.value("ifname")?,
            flows: fields.number("flows")?,
            flowlen: fields.number("flowlen")?,
            queue_map: fields.pair("queue_map_min", "queue_map_max")?,
            skb_priority: fields.number_or_zero("skb_priority")?,
            addresses: fields.addresses()?,
            src_mac: fields.value("src_mac")?,
            dst_mac: fields.value("dst_mac")?,
            udp_src: fields.pair("udp_src_min", "udp_src_max")?,
            udp_dst: fields.pair("udp_dst_min", "udp_dst_max")?,
            src_mac_count: fields.number("src_mac_count")?,
            dst_mac_count: fields.number("dst_mac_count")?,
            mpls: fields.labels()?,
            vlan: fields.tag("vlan_id")?,
            svlan: fields.tag("svlan_id")?,
            tos: fields.octet("tos")?,
            traffic_class: fields.octet("traffic_class")?,
            burst: fields.number_or_zero("burst")?.max(1),
            node: fields.optional("node")?,
            xmit_mode: fields.optional("xmit_mode")?.unwrap_or(XmitMode::StartXmit),
            flags: fields.words("Flags")?.iter().map(|&flag| flag.to_owned()).collect(),
        })
    }
}

impl RunStatus {
    fn read(fields: &StatusFields<'_>) -> Result<Self, StatusError> {
        Ok(Self {
            sent: fields.number("pkts-sofar")?,
            errors: fields.number("errors")?,
            imix_size_counts: fields.list("imix_size_counts")?,
            started: fields.micros("started")?,
            stopped: fields.micros("stopped")?,
            idle: fields.micros("idle")?,
            seq_num: fields.number("seq_num")?,
            mac_offsets: fields.pair("cur_dst_mac_offset", "cur_src_mac_offset")?,
            addresses: (fields.value("cur_saddr")?, fields.value("cur_daddr")?),
            ports: fields.pair("cur_udp_dst", "cur_udp_src")?,
            queue_map: fields.number("cur_queue_map")?,
            flows: fields.number("flows")?,
        })
    }
}

impl CommandResult {
    /// Parses the text after `Result:`.
    #[must_use]
    pub fn read(text: &str) -> Self {
        if text == "Idle" {
            return Self::Idle;
        }
        match text.strip_prefix("OK:") {
            None => Self::Refused(text.to_owned()),
            Some(said) => finished(said).map_or_else(|| Self::Accepted(said.trim().to_owned()), Self::Finished),
        }
    }
}

/// `155750(c155679+d71) usec, 20000 (64byte,0frags)`, and on the next line `128410pps 374Mb/sec (374292876bps) errors: 0`.
fn finished(said: &str) -> Option<RunResult> {
    let (took, rest) = said.trim().split_once("(c")?;
    let (busy, rest) = rest.split_once("+d")?;
    let (idle, rest) = rest.split_once(") usec, ")?;
    let (sent, rest) = rest.split_once(" (")?;
    let (size, rest) = rest.split_once("byte,")?;
    let (frags, rest) = rest.split_once("frags)")?;
    let (pps, rest) = rest.trim_start().split_once("pps ")?;
    let (_, rest) = rest.split_once("Mb/sec (")?;
    let (bps, errors) = rest.split_once("bps) errors: ")?;
    let time = |digits| micros("Result", digits).ok();
    Some(RunResult {
        took: time(took)?,
        // The kernel prints it as an unsigned number.
        busy_us: busy.parse::<u64>().ok()?.cast_signed(),
        idle: time(idle)?,
        sent: sent.parse().ok()?,
        size_bytes: size.parse().ok()?,
        frags: frags.parse().ok()?,
        pps: pps.parse().ok()?,
        bps: bps.parse().ok()?,
        errors: errors.trim_end().parse().ok()?,
    })
}

const fn whole_micros(time: Nanos) -> u64 {
    time.0 / 1_000
}

/// The value, or an empty text.
fn shown<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{}Result: {}", self.params, self.progress, self.last_result)
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (self.min_pkt_size, self.max_pkt_size);
        writeln!(f, "Params: count {}  min_pkt_size: {min}  max_pkt_size: {max}", self.count)?;
        if !self.imix_weights.is_empty() {
            writeln!(f, "     imix_weights: {}", spaced(&self.imix_weights))?;
        }
        let (delay, clones, name) = (self.delay.0, self.clone_skb, &self.ifname);
        writeln!(f, "     frags: {}  delay: {delay}  clone_skb: {clones}  ifname: {name}", self.frags)?;
        writeln!(f, "     flows: {} flowlen: {}", self.flows, self.flowlen)?;
        writeln!(f, "     queue_map_min: {}  queue_map_max: {}", self.queue_map.0, self.queue_map.1)?;
        if self.skb_priority > 0 {
            writeln!(f, "     skb_priority: {}", self.skb_priority)?;
        }
        self.addresses.fmt(f)?;
        writeln!(f, "     src_mac: {} dst_mac: {}", self.src_mac, self.dst_mac)?;
        write!(f, "     udp_src_min: {}  udp_src_max: {}", self.udp_src.0, self.udp_src.1)?;
        writeln!(f, "  udp_dst_min: {}  udp_dst_max: {}", self.udp_dst.0, self.udp_dst.1)?;
        writeln!(f, "     src_mac_count: {}  dst_mac_count: {}", self.src_mac_count, self.dst_mac_count)?;
        self.write_rare(f)?;
        write!(f, "     Flags: ")?;
        self.flags.iter().try_for_each(|flag| write!(f, "{flag}  "))?;
        writeln!(f)
    }
}

impl Params {
    /// The lines that are shown only if they have a value.
    fn write_rare(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.mpls.is_empty() {
            let labels: Vec<String> = self.mpls.iter().map(|label| format!("{label:08x}")).collect();
            writeln!(f, "     mpls: {}", labels.join(", "))?;
        }
        for (name, tag) in [("vlan_id", self.vlan), ("svlan_id", self.svlan)] {
            if let Some(VlanTag { id, priority, cfi }) = tag {
                writeln!(f, "     {name}: {id}  vlan_p: {priority}  vlan_cfi: {cfi}")?;
            }
        }
        for (name, octet) in [("tos", self.tos), ("traffic_class", self.traffic_class)] {
            if octet > 0 {
                writeln!(f, "     {name}: 0x{octet:02x}")?;
            }
        }
        if self.burst > 1 {
            writeln!(f, "     burst: {}", self.burst)?;
        }
        if let Some(node) = self.node {
            writeln!(f, "     node: {node}")?;
        }
        match self.xmit_mode.shown() {
            Some(mode) => writeln!(f, "     xmit_mode: {mode}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PktgenAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4 { dst, src } => {
                writeln!(f, "     dst_min: {}  dst_max: {}", shown(dst.0), shown(dst.1))?;
                writeln!(f, "     src_min: {}  src_max: {}", shown(src.0), shown(src.1))
            }
            Self::V6 { src, dst } => {
                for (letter, [one, min, max]) in [('s', src), ('d', dst)] {
                    writeln!(f, "     {letter}addr: {one}  min_{letter}addr: {min}  max_{letter}addr: {max}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Current:\n     pkts-sofar: {}  errors: {}", self.sent, self.errors)?;
        if !self.imix_size_counts.is_empty() {
            writeln!(f, "     imix_size_counts: {}", spaced(&self.imix_size_counts))?;
        }
        let [started, stopped, idle] = [self.started, self.stopped, self.idle].map(whole_micros);
        writeln!(f, "     started: {started}us  stopped: {stopped}us idle: {idle}us")?;
        let (dst, src) = self.mac_offsets;
        writeln!(f, "     seq_num: {}  cur_dst_mac_offset: {dst}  cur_src_mac_offset: {src}", self.seq_num)?;
        writeln!(f, "     cur_saddr: {}  cur_daddr: {}", self.addresses.0, self.addresses.1)?;
        writeln!(f, "     cur_udp_dst: {}  cur_udp_src: {}", self.ports.0, self.ports.1)?;
        writeln!(f, "     cur_queue_map: {}\n     flows: {}", self.queue_map, self.flows)
    }
}

impl fmt::Display for CommandResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("Idle"),
            Self::Accepted(said) => write!(f, "OK: {said}"),
            Self::Finished(finished) => finished.fmt(f),
            Self::Refused(said) => f.write_str(said),
        }
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([took, idle], busy) = ([self.took, self.idle].map(whole_micros), self.busy_us.cast_unsigned());
        let Self { sent, size_bytes, frags, pps, bps, errors, .. } = self;
        writeln!(f, "OK: {took}(c{busy}+d{idle}) usec, {sent} ({size_bytes}byte,{frags}frags)")?;
        write!(f, "  {pps}pps {}Mb/sec ({bps}bps) errors: {errors}", bps / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by Linux 6.1 after a run.
    const RUN: &str = include_str!("../tests/roots/ran/veth0@0");

    #[test]
    fn a_block_is_printed_as_the_kernel_printed_it() {
        let status: Status = RUN.parse().unwrap();
        assert_eq!(status.to_string(), RUN);
        assert_eq!(status.params.imix_weights.len(), 3);
        assert_eq!(status.progress.imix_size_counts[1], SizeWeight { size: 570, weight: 6547 });
        let CommandResult::Finished(finished) = status.last_result else { panic!("{:?}", status.last_result) };
        assert_eq!((finished.sent, finished.took, finished.bps), (20_000, Nanos::from_micros(155_750), 374_292_876));
    }

    #[test]
    fn rare_lines_are_read_and_printed_where_they_stand() {
        let extra = "     src_mac_count: 0  dst_mac_count: 0\n     mpls: 0001000a, 0002000a\n     vlan_id: 5  vlan_p: 1  \
                     vlan_cfi: 0\n     svlan_id: 7  vlan_p: 2  vlan_cfi: 1\n     tos: 0x28\n     burst: 8\n     node: 0\n     \
                     xmit_mode: xmit_queue\n";
        let text = RUN.replace("     src_mac_count: 0  dst_mac_count: 0\n", extra);
        let status: Status = text.parse().unwrap();
        assert_eq!(status.to_string(), text);
        assert_eq!(status.params.mpls, [0x0001_000a, 0x0002_000a]);
        assert_eq!(status.params.vlan, Some(VlanTag { id: 5, priority: 1, cfi: 0 }));
        assert_eq!(status.params.svlan, Some(VlanTag { id: 7, priority: 2, cfi: 1 }));
        assert_eq!((status.params.burst, status.params.xmit_mode), (8, XmitMode::QueueXmit));
    }

    #[test]
    fn addresses_of_version_6_end_in_colons_and_are_no_names() {
        let lines =
            "     saddr: ::  min_saddr: ::  max_saddr: fe80::\n     daddr: fd00::1  min_daddr: ::  max_daddr: ::\n";
        let (head, rest) = RUN.split_once("     dst_min").unwrap();
        let tail = rest.split_once("src_max: \n").unwrap().1;
        let text = format!("{head}{lines}{tail}");
        let status: Status = text.parse().unwrap();
        assert_eq!(status.to_string(), text);
    }

    #[test]
    fn outcomes_are_told_apart() {
        assert_eq!(CommandResult::read("Idle"), CommandResult::Idle);
        assert_eq!(CommandResult::read("OK: count=5"), CommandResult::Accepted("count=5".to_owned()));
        for said in ["Flag -:NOSUCHFLAG:- unknown", "No such parameter \"atep\"", "ERROR: tos must be 00-ff"] {
            assert_eq!(CommandResult::read(said), CommandResult::Refused(said.to_owned()));
        }
    }

    #[test]
    fn the_numbers_of_a_run_are_rounded_as_the_kernel_rounds_them() {
        let finished = RunResult::of(20_000, 60, (Nanos::from_micros(155_750), Nanos::from_micros(71)), 3);
        let expected =
            "OK: 155750(c155679+d71) usec, 20000 (60byte,0frags)\n  128410pps 61Mb/sec (61636800bps) errors: 3";
        assert_eq!(finished.to_string(), expected);
        assert_eq!(CommandResult::read(expected), CommandResult::Finished(finished));
    }

    #[test]
    fn a_wait_that_is_longer_than_the_run_is_read_as_the_kernel_writes_it() {
        let said = "OK: 16095(c18446744073709549108+d18603) usec, 1000 (60byte,0frags)\n  62129pps 29Mb/sec (29821920bps) errors: 0";
        let CommandResult::Finished(finished) = CommandResult::read(said) else {
            panic!("{:?}", CommandResult::read(said))
        };
        let us = Nanos::from_micros;
        assert_eq!((finished.took, finished.busy_us, finished.idle), (us(16_095), -2_508, us(18_603)));
        assert_eq!((finished.sent, finished.pps), (1_000, 62_129));
        assert_eq!(finished.to_string(), said);
    }

    #[test]
    fn what_is_missing_is_named() {
        let parse = |text: &str| text.parse::<Status>().unwrap_err().to_string();
        assert_eq!(parse(""), "pktgen's text has no `Params`");
        assert_eq!(parse(&RUN.replace("flowlen: 0", "")), "pktgen's text has no `flowlen`");
        assert_eq!(parse(&RUN.replace("frags: 0 ", "frags: x ")), "`x` is not a value of pktgen's `frags`");
    }
}
