//! The parameters of a pktgen device: their names, the form of their values, and how to read back the applied value.
//!
//! pktgen accepts values with `OK` and then stores other ones. Each parameter therefore knows where its value is shown (see
//! [`AppliedValue`]), and a value is trusted only after it was read back.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use fathom_model::{MacAddress, units::Nanos};

use super::{
    status::{Ipv4Range, Params, PktgenAddresses},
    value::{FLAGS, FlagState, SizeWeight, WordError, XmitMode, spaced},
};

/// A command for a device: a parameter and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PktgenSetting {
    parameter: &'static Parameter,
    value: Value,
}

/// A value in the form of its parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number, in the unit of the parameter.
    Number(u64),
    /// One byte, written as two hexadecimal digits.
    Octet(u8),
    /// An IPv4 or IPv6 address.
    Address(IpAddr),
    /// A MAC address.
    Mac(MacAddress),
    /// Where packets enter the kernel's path.
    Mode(XmitMode),
    /// One of [`FLAGS`], on or off.
    Flag(&'static str, FlagState),
    /// Sizes and their weights.
    Mix(Vec<SizeWeight>),
    /// MPLS labels, outermost first; empty for no MPLS.
    Labels(Vec<u32>),
    /// The parameter is a command without a value.
    None,
}

/// The form of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueForm {
    Number,
    /// In Mbit/s, with an optional `M` suffix.
    Megabits,
    Octet,
    V4,
    V6,
    Mac,
    Mode,
    Flag,
    Mix,
    Labels,
    None,
}

/// The applied value, as shown in pktgen's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppliedValue {
    /// The requested value.
    AsRequested,
    /// Another value.
    Changed(String),
    /// The status does not show this parameter.
    NotShown,
}

/// A parameter of a device.
pub struct Parameter {
    name: &'static str,
    form: ValueForm,
    applied: fn(&Params, &Value) -> AppliedValue,
    /// What to do if the value was refused or changed.
    pub(super) fix: &'static str,
    /// Whether pktgen says `OK` for it. For some parameters it says nothing.
    pub(super) answer: ReportsResult,
}

/// Whether pktgen writes a result for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportsResult {
    Yes,
    No,
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Parameter {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Parameter {}

fn same<T: PartialEq + fmt::Display>(asked: &T, kept: &T) -> AppliedValue {
    if asked == kept { AppliedValue::AsRequested } else { AppliedValue::Changed(kept.to_string()) }
}

/// Compares a requested number with one in the status.
fn number(value: &Value, kept: u64) -> AppliedValue {
    match value {
        Value::Number(asked) => same(asked, &kept),
        _ => AppliedValue::NotShown,
    }
}

fn octet(value: &Value, kept: u8) -> AppliedValue {
    match value {
        Value::Octet(asked) if *asked == kept => AppliedValue::AsRequested,
        Value::Octet(_) => AppliedValue::Changed(format!("{kept:02x}")),
        _ => AppliedValue::NotShown,
    }
}

fn absent_or<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| value.to_string())
}

fn address(value: &Value, kept: Option<IpAddr>) -> AppliedValue {
    match value {
        Value::Address(asked) if kept == Some(*asked) => AppliedValue::AsRequested,
        Value::Address(_) => AppliedValue::Changed(absent_or(kept)),
        _ => AppliedValue::NotShown,
    }
}

fn mac(value: &Value, kept: MacAddress) -> AppliedValue {
    match value {
        Value::Mac(asked) => same(asked, &kept),
        _ => AppliedValue::NotShown,
    }
}

/// Compares the ID of an optional tag. IDs above the maximum remove the tag.
fn tag_id(value: &Value, kept: Option<u64>) -> AppliedValue {
    match (value, kept) {
        (Value::Number(REMOVES_TAG..), None) => AppliedValue::AsRequested,
        (Value::Number(_), None) => AppliedValue::Changed(absent_or(kept)),
        (value, Some(kept)) => number(value, kept),
        _ => AppliedValue::NotShown,
    }
}

fn of_tag(value: &Value, kept: Option<u64>) -> AppliedValue {
    kept.map_or_else(|| AppliedValue::Changed(absent_or(kept)), |kept| number(value, kept))
}

/// A rate becomes a delay in whole nanoseconds, so most rates change.
fn rate(params: &Params, per_second: u128, unit: &str) -> AppliedValue {
    const SECOND: u128 = 1_000_000_000;
    let delay = u128::from(params.delay.0);
    if delay == 0 {
        return AppliedValue::Changed("no delay at all: flat out".to_owned());
    }
    // The rate per second, in the unit of the request.
    if delay * per_second == SECOND {
        return AppliedValue::AsRequested;
    }
    let thousandths = SECOND * 1_000 / delay;
    AppliedValue::Changed(format!("{}.{:03} {unit} (every {})", thousandths / 1_000, thousandths % 1_000, params.delay))
}

fn megabits(params: &Params, value: &Value) -> AppliedValue {
    let Value::Number(asked) = value else { return AppliedValue::NotShown };
    // pktgen divides the bits of the shortest packet by the rate, and truncates the delay to nanoseconds.
    let bits = u128::from(params.min_pkt_size) * 8;
    let wanted = (bits * 1_000).checked_div(u128::from(*asked)).unwrap_or(0);
    if wanted > 0 && wanted == u128::from(params.delay.0) && (bits * 1_000).is_multiple_of(u128::from(*asked)) {
        return AppliedValue::AsRequested;
    }
    match (bits * 1_000_000).checked_div(u128::from(params.delay.0)) {
        None => AppliedValue::Changed("no delay at all: flat out".to_owned()),
        Some(k) => AppliedValue::Changed(format!("{}.{:03} Mbit/s (every {})", k / 1_000, k % 1_000, params.delay)),
    }
}

fn flag(params: &Params, value: &Value) -> AppliedValue {
    let Value::Flag(name, switch) = value else { return AppliedValue::NotShown };
    // The status shows the order of flows only if there are flows.
    if *name == "FLOW_SEQ" && params.flows == 0 {
        return AppliedValue::NotShown;
    }
    let is_on = match (*name, &params.addresses) {
        ("IPV6", PktgenAddresses::V6 { .. }) => true,
        (name, _) => params.flags.iter().any(|flag| flag == name),
    };
    match (is_on, switch) {
        (true, FlagState::On) | (false, FlagState::Off) => AppliedValue::AsRequested,
        (true, FlagState::Off) => AppliedValue::Changed("on".to_owned()),
        (false, FlagState::On) => AppliedValue::Changed("off".to_owned()),
    }
}

fn mix(params: &Params, value: &Value) -> AppliedValue {
    match value {
        Value::Mix(asked) if *asked == params.imix_weights => AppliedValue::AsRequested,
        Value::Mix(_) => AppliedValue::Changed(spaced(&params.imix_weights).trim_end().to_owned()),
        _ => AppliedValue::NotShown,
    }
}

fn labels(params: &Params, value: &Value) -> AppliedValue {
    match value {
        Value::Labels(asked) if *asked == params.mpls => AppliedValue::AsRequested,
        Value::Labels(_) => AppliedValue::Changed(label_list(&params.mpls)),
        _ => AppliedValue::NotShown,
    }
}

fn spi(params: &Params, value: &Value) -> AppliedValue {
    let shown = params.flags.iter().find_map(|flag| flag.strip_prefix("spi:")?.parse().ok());
    shown.map_or(AppliedValue::NotShown, |kept| number(value, kept))
}

/// The shortest packet that pktgen sends: its own header after Ethernet, IP and UDP, plus tags and labels.
fn least(params: &Params) -> u64 {
    const ETHERNET_UDP_PKTGEN: u64 = 14 + 8 + 16;
    let ip = if matches!(params.addresses, PktgenAddresses::V4 { .. }) { 20 } else { 40 };
    let before = params.mpls.len() + usize::from(params.vlan.is_some()) + usize::from(params.svlan.is_some());
    ETHERNET_UDP_PKTGEN + ip + 4 * before as u64
}

/// The minimum or maximum size. The status shows a too short size, but pktgen sends longer packets.
fn end_of_size(params: &Params, value: &Value, kept: u64) -> AppliedValue {
    let least = least(params);
    if kept < least { AppliedValue::Changed(format!("{kept}, and sends {least} bytes")) } else { number(value, kept) }
}

/// Both sizes. `pkt_size` sets neither of them if the minimum already has the requested value.
fn size(params: &Params, value: &Value) -> AppliedValue {
    let (min, max) = (params.min_pkt_size, params.max_pkt_size);
    match end_of_size(params, value, min) {
        AppliedValue::AsRequested if min != max => AppliedValue::Changed(format!("{min} to {max}")),
        kept => kept,
    }
}

/// An end of an IPv4 range. A status with IPv6 shows no such range, and pktgen does not send to it.
fn v4(params: &Params, value: &Value, end: fn([Ipv4Range; 2]) -> Option<Ipv4Addr>) -> AppliedValue {
    match params.addresses {
        PktgenAddresses::V4 { dst, src } => address(value, end([dst, src]).map(IpAddr::V4)),
        PktgenAddresses::V6 { .. } => AppliedValue::NotShown,
    }
}

/// The IPv6 destination, or the first or last address of a range.
fn dst6(params: &Params, at: usize) -> Option<IpAddr> {
    match params.addresses {
        PktgenAddresses::V6 { dst, .. } => Some(dst[at].into()),
        PktgenAddresses::V4 { .. } => None,
    }
}

fn src6(params: &Params) -> Option<IpAddr> {
    match params.addresses {
        PktgenAddresses::V6 { src, .. } => Some(src[0].into()),
        PktgenAddresses::V4 { .. } => None,
    }
}

/// A number above the largest VLAN ID of IEEE 802.1Q.
const REMOVES_TAG: u64 = 4096;
/// pktgen reads only this many digits of a number, and silently ignores the rest.
const DIGITS: &str = "give at most ten digits: pktgen reads no more";
const SIZE: &str =
    "pktgen sends 58 bytes at least, 20 more over IPv6 and 4 for each tag or label: its own header is in them";
const PORT: &str = "ports end at 65535";
const TAG: &str = "set vlan_id first, and no mpls after it: pktgen would drop the tags";
const SHARING: &str = "this device or mode does not send a packet twice: leave it at 0 or 1, or take a device that does (dummy, a real \
                       one), and no imix_weights; veth takes burst in xmit_mode netif_receive only";
const RATE: &str = "pktgen waits whole nanoseconds from packet to packet: rates near 1e9/n packets a second are exact";
const QUEUE: &str = "queues count from 0 to the last queue of the device: ethtool -l DEVICE";
const DST6: &str = "give an address of IPv6";
const NO_FIX: &str = "give the value as pktgen.rst in the kernel's documentation does";

const fn parameter(
    name: &'static str,
    form: ValueForm,
    kept: fn(&Params, &Value) -> AppliedValue,
    fix: &'static str,
) -> Parameter {
    Parameter { name, form, applied: kept, fix, answer: ReportsResult::Yes }
}

const fn silent(
    name: &'static str,
    form: ValueForm,
    kept: fn(&Params, &Value) -> AppliedValue,
    fix: &'static str,
) -> Parameter {
    Parameter { name, form, applied: kept, fix, answer: ReportsResult::No }
}

/// All parameters that pktgen accepts for a device (`pktgen_if_write`, Linux 6.1).
pub const PARAMETERS: &[Parameter] = &[
    parameter("count", ValueForm::Number, |p, v| number(v, p.count), DIGITS),
    parameter("pkt_size", ValueForm::Number, size, SIZE),
    parameter("min_pkt_size", ValueForm::Number, |p, v| end_of_size(p, v, p.min_pkt_size), SIZE),
    parameter("max_pkt_size", ValueForm::Number, |p, v| end_of_size(p, v, p.max_pkt_size), SIZE),
    silent("imix_weights", ValueForm::Mix, mix, "set clone_skb 0 first, and sizes of 42 bytes or more"),
    parameter("frags", ValueForm::Number, |p, v| number(v, p.frags), DIGITS),
    parameter("delay", ValueForm::Number, |p, v| number(v, p.delay.0), DIGITS),
    parameter("rate", ValueForm::Megabits, megabits, RATE),
    parameter("ratep", ValueForm::Number, rate_of, RATE),
    parameter("clone_skb", ValueForm::Number, |p, v| number(v, p.clone_skb), SHARING),
    parameter("burst", ValueForm::Number, |p, v| number(v, p.burst), SHARING),
    parameter("debug", ValueForm::Number, |_, _| AppliedValue::NotShown, DIGITS),
    parameter(
        "node",
        ValueForm::Number,
        |p, v| of_tag(v, p.node),
        "name a memory node that the machine has: numactl --hardware",
    ),
    parameter("xmit_mode", ValueForm::Mode, mode, "set clone_skb 0 and burst 1 before netif_receive or queue_xmit"),
    parameter(
        "flag",
        ValueForm::Flag,
        flag,
        "a kernel may lack a flag: IPV6 is set by dst6, SHARED is of Linux 6.6, IPSEC needs XFRM",
    ),
    parameter("dst", ValueForm::V4, |p, v| v4(p, v, |[dst, _]| dst.0), NO_FIX),
    parameter("dst_min", ValueForm::V4, |p, v| v4(p, v, |[dst, _]| dst.0), NO_FIX),
    parameter("dst_max", ValueForm::V4, |p, v| v4(p, v, |[dst, _]| dst.1), NO_FIX),
    parameter("src_min", ValueForm::V4, |p, v| v4(p, v, |[_, src]| src.0), NO_FIX),
    parameter("src_max", ValueForm::V4, |p, v| v4(p, v, |[_, src]| src.1), NO_FIX),
    parameter("dst6", ValueForm::V6, |p, v| address(v, dst6(p, 0)), DST6),
    parameter("dst6_min", ValueForm::V6, |p, v| address(v, dst6(p, 1)), DST6),
    parameter("dst6_max", ValueForm::V6, |p, v| address(v, dst6(p, 2)), DST6),
    parameter("src6", ValueForm::V6, |p, v| address(v, src6(p)), DST6),
    parameter("dst_mac", ValueForm::Mac, |p, v| mac(v, p.dst_mac), NO_FIX),
    parameter("src_mac", ValueForm::Mac, |p, v| mac(v, p.src_mac), NO_FIX),
    parameter("src_mac_count", ValueForm::Number, |p, v| number(v, p.src_mac_count), DIGITS),
    parameter("dst_mac_count", ValueForm::Number, |p, v| number(v, p.dst_mac_count), DIGITS),
    parameter("udp_src_min", ValueForm::Number, |p, v| number(v, p.udp_src.0), PORT),
    parameter("udp_src_max", ValueForm::Number, |p, v| number(v, p.udp_src.1), PORT),
    parameter("udp_dst_min", ValueForm::Number, |p, v| number(v, p.udp_dst.0), PORT),
    parameter("udp_dst_max", ValueForm::Number, |p, v| number(v, p.udp_dst.1), PORT),
    parameter("flows", ValueForm::Number, |p, v| number(v, p.flows), "pktgen keeps at most 65536 flows"),
    parameter("flowlen", ValueForm::Number, |p, v| number(v, p.flowlen), DIGITS),
    parameter("queue_map_min", ValueForm::Number, |p, v| number(v, p.queue_map.0), QUEUE),
    parameter("queue_map_max", ValueForm::Number, |p, v| number(v, p.queue_map.1), QUEUE),
    parameter("skb_priority", ValueForm::Number, |p, v| number(v, p.skb_priority), "give at most nine digits"),
    parameter("tos", ValueForm::Octet, |p, v| octet(v, p.tos), "give two hexadecimal digits"),
    parameter("traffic_class", ValueForm::Octet, |p, v| octet(v, p.traffic_class), "give two hexadecimal digits"),
    silent("vlan_id", ValueForm::Number, |p, v| tag_id(v, p.vlan.map(|tag| tag.id)), TAG),
    parameter("vlan_p", ValueForm::Number, |p, v| of_tag(v, p.vlan.map(|tag| tag.priority)), TAG),
    parameter("vlan_cfi", ValueForm::Number, |p, v| of_tag(v, p.vlan.map(|tag| tag.cfi)), TAG),
    silent("svlan_id", ValueForm::Number, |p, v| tag_id(v, p.svlan.map(|tag| tag.id)), TAG),
    parameter("svlan_p", ValueForm::Number, |p, v| of_tag(v, p.svlan.map(|tag| tag.priority)), TAG),
    parameter("svlan_cfi", ValueForm::Number, |p, v| of_tag(v, p.svlan.map(|tag| tag.cfi)), TAG),
    parameter("mpls", ValueForm::Labels, labels, "pktgen takes at most 15 labels of eight hexadecimal digits"),
    parameter("spi", ValueForm::Number, spi, "needs flag IPSEC"),
    parameter("clear_counters", ValueForm::None, |_, _| AppliedValue::NotShown, NO_FIX),
];

/// The most pairs of `imix_weights`. With more, a kernel writes beyond its table.
const MIX_MAX: usize = 20;

fn rate_of(params: &Params, value: &Value) -> AppliedValue {
    match value {
        Value::Number(asked) => rate(params, u128::from(*asked), "packets/s"),
        _ => AppliedValue::NotShown,
    }
}

fn mode(params: &Params, value: &Value) -> AppliedValue {
    match value {
        Value::Mode(asked) => same(asked, &params.xmit_mode),
        _ => AppliedValue::NotShown,
    }
}

fn label_list(labels: &[u32]) -> String {
    let labels: Vec<String> = labels.iter().map(|label| format!("{label:08x}")).collect();
    // pktgen removes MPLS if the value is not a label.
    if labels.is_empty() { "none".to_owned() } else { labels.join(",") }
}

/// Why a line is not a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PktgenSettingError {
    /// In pktgen's own words.
    #[error("No such parameter \"{0}\"")]
    Unknown(String),
    /// A value does not have the form of its parameter.
    #[error("{name}: {cause}")]
    Value {
        name: &'static str,
        /// What is wrong with the value.
        cause: WordError,
    },
}

impl ValueForm {
    fn read(self, text: &str) -> Result<Value, WordError> {
        let parsed = match self {
            Self::Number => text.parse().ok().map(Value::Number),
            Self::Megabits => text.strip_suffix('M').unwrap_or(text).parse().ok().map(Value::Number),
            Self::Octet => u8::from_str_radix(text, 16).ok().map(Value::Octet),
            Self::V4 => text.parse().ok().map(|address| Value::Address(IpAddr::V4(address))),
            Self::V6 => text.parse().ok().map(|address| Value::Address(IpAddr::V6(address))),
            Self::Mac => text.parse().ok().map(Value::Mac),
            Self::Mode => return text.parse().map(Value::Mode),
            Self::Flag => read_flag(text),
            Self::Mix => read_mix(text),
            Self::Labels => read_labels(text),
            Self::None => text.is_empty().then_some(Value::None),
        };
        parsed.ok_or_else(|| WordError::new(text, self.expected()))
    }

    const fn expected(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Megabits => "a number of Mbit/s such as 300M",
            Self::Octet => "two hexadecimal digits",
            Self::V4 => "an address of IPv4",
            Self::V6 => "an address of IPv6",
            Self::Mac => "a MAC address such as 02:00:00:00:00:01",
            Self::Mode => "start_xmit, netif_receive or queue_xmit",
            Self::Flag => "a flag of pktgen, such as UDPSRC_RND, or one with ! before it",
            Self::Mix => "1 to 20 pairs SIZE,WEIGHT with blanks between them, such as 64,7 570,4 1518,1",
            Self::Labels => "up to 15 labels of MPLS in hexadecimal, such as 0001000a,0002000a",
            Self::None => "empty: the parameter takes no value",
        }
    }
}

fn read_flag(text: &str) -> Option<Value> {
    let (name, switch) = text.strip_prefix('!').map_or((text, FlagState::On), |name| (name, FlagState::Off));
    // FLOW_RND is pktgen's name for FLOW_SEQ off.
    let (name, switch) = match (name, switch) {
        ("FLOW_RND", FlagState::On) => ("FLOW_SEQ", FlagState::Off),
        ("FLOW_RND", FlagState::Off) => ("FLOW_SEQ", FlagState::On),
        ("NODE_ALLOC", switch) => ("NODE", switch),
        other => other,
    };
    FLAGS.iter().find(|flag| **flag == name).map(|flag| Value::Flag(flag, switch))
}

fn read_mix(text: &str) -> Option<Value> {
    let weights: Vec<SizeWeight> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let is_usable = !weights.is_empty() && weights.len() <= MIX_MAX && weights.iter().all(|weight| weight.weight > 0);
    is_usable.then_some(Value::Mix(weights))
}

/// The most labels: pktgen counts to sixteen and refuses the sixteenth.
const LABELS_MAX: usize = 15;

fn read_labels(text: &str) -> Option<Value> {
    if matches!(text, "0" | "none") {
        return Some(Value::Labels(Vec::new()));
    }
    let label = |word: &str| u32::from_str_radix(word, 16).ok().filter(|_| word.len() <= 8);
    let labels: Vec<u32> = text.split(',').map(label).collect::<Option<_>>()?;
    (labels.len() <= LABELS_MAX).then_some(Value::Labels(labels))
}

impl FromStr for PktgenSetting {
    type Err = PktgenSettingError;

    /// Parses a line in the form of `pgset`: a name and its value.
    fn from_str(line: &str) -> Result<Self, PktgenSettingError> {
        let line = line.trim();
        let (name, text) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let parameter = PARAMETERS.iter().find(|parameter| parameter.name == name);
        let parameter = parameter.ok_or_else(|| PktgenSettingError::Unknown(name.to_owned()))?;
        let value = parameter.form.read(text.trim());
        let value = value.map_err(|cause| PktgenSettingError::Value { name: parameter.name, cause })?;
        Ok(Self { parameter, value })
    }
}

impl fmt::Display for PktgenSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.parameter.name;
        match &self.value {
            Value::Number(number) => write!(f, "{name} {number}"),
            Value::Octet(octet) => write!(f, "{name} {octet:02x}"),
            Value::Address(address) => write!(f, "{name} {address}"),
            Value::Mac(mac) => write!(f, "{name} {mac}"),
            Value::Mode(mode) => write!(f, "{name} {mode}"),
            Value::Flag(flag, FlagState::On) => write!(f, "{name} {flag}"),
            Value::Flag(flag, FlagState::Off) => write!(f, "{name} !{flag}"),
            Value::Mix(weights) => write!(f, "{name} {}", spaced(weights).trim_end()),
            Value::Labels(labels) => write!(f, "{name} {}", label_list(labels)),
            Value::None => f.write_str(name),
        }
    }
}

impl PktgenSetting {
    /// A parameter by its name, with its value.
    ///
    /// # Panics
    /// If there is no such parameter, or if it takes values of another form. Callers pass constants for both.
    #[must_use]
    pub fn new(name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let parameter = PARAMETERS.iter().find(|parameter| parameter.name == name).expect("pktgen has this parameter");
        assert!(parameter.form.takes(&value), "{name} does not take {value:?}");
        Self { parameter, value }
    }

    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.parameter.name
    }

    #[must_use]
    pub const fn value(&self) -> &Value {
        &self.value
    }

    /// Whether it cancels the effect of an earlier setting.
    fn replaces(&self, earlier: &Self) -> bool {
        match (&self.value, &earlier.value) {
            (Value::Flag(flag, _), Value::Flag(other, _)) => flag == other,
            _ => self.parameter == earlier.parameter,
        }
    }

    #[must_use]
    pub fn applied_value(&self, params: &Params) -> AppliedValue {
        (self.parameter.applied)(params, &self.value)
    }

    pub(super) const fn parameter(&self) -> &'static Parameter {
        self.parameter
    }
}

impl ValueForm {
    const fn takes(self, value: &Value) -> bool {
        matches!(
            (self, value),
            (Self::Number | Self::Megabits, Value::Number(_))
                | (Self::Octet, Value::Octet(_))
                | (Self::V4, Value::Address(IpAddr::V4(_)))
                | (Self::V6, Value::Address(IpAddr::V6(_)))
                | (Self::Mac, Value::Mac(_))
                | (Self::Mode, Value::Mode(_))
                | (Self::Flag, Value::Flag(..))
                | (Self::Mix, Value::Mix(_))
                | (Self::Labels, Value::Labels(_))
                | (Self::None, Value::None)
        )
    }
}

macro_rules! value_from {
    ($($form:ident($inner:ty)),*) => {
        $(impl From<$inner> for Value {
            fn from(value: $inner) -> Self {
                Self::$form(value)
            }
        })*
    };
}

value_from!(
    Number(u64),
    Octet(u8),
    Address(IpAddr),
    Mac(MacAddress),
    Mode(XmitMode),
    Mix(Vec<SizeWeight>),
    Labels(Vec<u32>)
);

impl From<Nanos> for Value {
    fn from(time: Nanos) -> Self {
        Self::Number(time.0)
    }
}

/// A value that pktgen accepted and stored as another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedSetting {
    pub device: String,
    pub requested: PktgenSetting,
    /// The value that is stored.
    pub applied: String,
}

impl ChangedSetting {
    /// Returns the changed settings of a device, except those that a later one replaces.
    #[must_use]
    pub fn all(device: &str, settings: &[PktgenSetting], params: &Params) -> Vec<Self> {
        let change = |(at, asked): (usize, &PktgenSetting)| {
            if settings[at + 1..].iter().any(|later| later.replaces(asked)) {
                return None;
            }
            match asked.applied_value(params) {
                AppliedValue::Changed(kept) => {
                    Some(Self { device: device.to_owned(), requested: asked.clone(), applied: kept })
                }
                AppliedValue::AsRequested | AppliedValue::NotShown => None,
            }
        };
        settings.iter().enumerate().filter_map(change).collect()
    }

    /// Returns what to set instead.
    #[must_use]
    pub const fn fix(&self) -> &'static str {
        self.requested.parameter.fix
    }
}

impl fmt::Display for ChangedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pktgen took `{}` for {} and made it {}", self.requested, self.device, self.applied)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::status::Status, *};

    fn params(changes: &[(&str, &str)]) -> Params {
        let mut text = include_str!("../tests/roots/ran/veth0@0").to_owned();
        for (from, to) in changes {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        text.parse::<Status>().unwrap().params
    }

    fn kept(line: &str, changes: &[(&str, &str)]) -> AppliedValue {
        line.parse::<PktgenSetting>().unwrap().applied_value(&params(changes))
    }

    #[test]
    fn every_parameter_is_read_from_a_line_and_written_as_one() {
        let lines = [
            "count 100000",
            "pkt_size 64",
            "imix_weights 64,7 570,4 1518,1",
            "delay 5000",
            "rate 300",
            "ratep 1000000",
            "xmit_mode queue_xmit",
            "flag UDPSRC_RND",
            "flag !SHARED",
            "dst 10.0.0.1",
            "dst6 fd00::1",
            "dst_mac 00:04:23:08:91:dc",
            "tos 28",
            "mpls 0001000a,0002000a",
            "mpls none",
            "clear_counters",
            "svlan_id 9999",
        ];
        for line in lines {
            assert_eq!(line.parse::<PktgenSetting>().unwrap().to_string(), line);
        }
        assert_eq!("  rate \t300M ".parse::<PktgenSetting>().unwrap().to_string(), "rate 300");
        assert_eq!("tos 8".parse::<PktgenSetting>().unwrap().to_string(), "tos 08");
        assert_eq!("flag FLOW_RND".parse::<PktgenSetting>().unwrap().to_string(), "flag !FLOW_SEQ");
    }

    #[test]
    fn what_pktgen_would_misread_is_refused_before_it_is_written() {
        let error = |line: &str| line.parse::<PktgenSetting>().unwrap_err().to_string();
        assert_eq!(error("nosuch 1"), "No such parameter \"nosuch\"");
        assert_eq!(error("count many"), "count: `many` is not a number");
        assert!(error("flag NOSUCHFLAG").starts_with("flag: `NOSUCHFLAG` is not a flag of pktgen"));
        assert!(error("dst 10.0.0.256").ends_with("is not an address of IPv4"));
        assert!(error("clear_counters 1").contains("takes no value"));
        let labels = vec!["0001000a"; 16].join(",");
        assert!(error(&format!("mpls {labels}")).contains("up to 15 labels"));
        let pairs = vec!["64,1"; 21].join(" ");
        assert!(error(&format!("imix_weights {pairs}")).contains("1 to 20 pairs"));
        assert!(error("imix_weights 64,0").contains("1 to 20 pairs"));
    }

    #[test]
    fn a_value_that_was_kept_as_another_is_found() {
        let other = |text: &str| AppliedValue::Changed(text.to_owned());
        assert_eq!(kept("count 20000", &[]), AppliedValue::AsRequested);
        assert_eq!(kept("count 123456789012", &[("count 20000", "count 1234567890")]), other("1234567890"));
        assert_eq!(kept("pkt_size 10", &[("_size: 58", "_size: 42")]), other("42, and sends 58 bytes"));
        assert_eq!(kept("pkt_size 58", &[("max_pkt_size: 58", "max_pkt_size: 1500")]), other("58 to 1500"));
        assert_eq!(kept("vlan_id 5", &[]), other("absent"));
        assert_eq!(kept("vlan_id 9999", &[]), AppliedValue::AsRequested);
        assert_eq!(kept("udp_dst_min 65545", &[]), other("9"));
        assert_eq!(kept("dst_min 10.0.0.2", &[]), AppliedValue::AsRequested);
        assert_eq!(kept("dst_max 10.0.0.3", &[]), other("absent"));
        assert_eq!(kept("flag UDPCSUM", &[]), AppliedValue::AsRequested);
        assert_eq!(kept("flag UDPSRC_RND", &[]), other("off"));
        assert_eq!(kept("flag FLOW_SEQ", &[]), AppliedValue::NotShown);
        assert_eq!(
            kept("xmit_mode queue_xmit", &[("     Flags", "     xmit_mode: xmit_queue\n     Flags")]),
            AppliedValue::AsRequested
        );
    }

    #[test]
    fn a_rate_that_is_no_whole_number_of_nanoseconds_is_named() {
        let delay = |delay| [("delay: 0", delay)];
        assert_eq!(kept("ratep 1000000", &delay("delay: 1000")), AppliedValue::AsRequested);
        let other = AppliedValue::Changed("3003003.003 packets/s (every 333 ns)".to_owned());
        assert_eq!(kept("ratep 3000000", &delay("delay: 333")), other);
        assert_eq!(kept("ratep 2000000000", &[]), AppliedValue::Changed("no delay at all: flat out".to_owned()));
        // 58 bytes are 464 bits.
        assert_eq!(kept("rate 464M", &delay("delay: 1000")), AppliedValue::AsRequested);
        assert_eq!(
            kept("rate 300M", &delay("delay: 1546")),
            AppliedValue::Changed("300.129 Mbit/s (every 1.55 µs)".to_owned())
        );
    }
}
