//! The options of a stream of datagrams, and the values derived from them.

use fathom_engine::Error;
use fathom_model::{
    OptionDoc, Settings, Unit, ValueKind,
    settings::{PACKET_RATE, SettingError},
    units::{Bytes, PerSec, approximate, grouped},
};
use fathom_sys::socket::datagram::PAYLOAD_MAX;

use crate::{
    datagrams::{HEADER_LEN, OffloadMode},
    options::{self, BUFFER, DEVICE, DSCP, FLOW_LABEL, FLOWS, PORT, SOURCE},
    traffic::{DatagramSizes, FlowIndex, Schedule, TrafficError, TrafficPattern},
};

const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    default: Some("1400"),
    help: "payload bytes per datagram, 1 to 65507; 18 fill the smallest Ethernet frame; fewer have no sequence number",
};
const MIX: OptionDoc = OptionDoc {
    name: "mix",
    value: ValueKind::Text,
    default: None,
    help: "mix of sizes with weights instead of --size: 18:7,524:4,1472:1, or `imix` for this one",
};
const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::BitRate,
    default: None,
    help: "total rate of all flows: payload bits (1G, 100Mbit) or datagrams (20kpps) per second; default: as fast as possible",
};
/// The headers of a datagram in its frame: Ethernet with the checksum (18 B), IPv4 (20 B) and UDP (8 B).
const HEADERS: usize = 46;
const PPS_RATE: OptionDoc = OptionDoc {
    name: PACKET_RATE,
    value: ValueKind::Rate,
    default: None,
    help: "total rate of all flows in datagrams per second, as `rate = \"20kpps\"`",
};
const TRAFFIC: OptionDoc = OptionDoc {
    name: "traffic",
    value: ValueKind::Text,
    default: Some("constant"),
    help: "traffic pattern at a rate: constant (evenly spaced), bursts (once per millisecond), bursts:N, frames:FPS, frames:FPS:SPREAD% (log-normal sizes) or poisson",
};
const BATCH: OptionDoc = OptionDoc {
    name: "batch",
    value: ValueKind::Count(1, 1024),
    default: Some("32"),
    help: "maximum messages per system call: datagrams, or super-buffers (at most 4 sent, 8 received)",
};
const OFFLOAD: OptionDoc = OptionDoc {
    name: "offload",
    value: ValueKind::Choice(&["none", "auto", "gso", "gro", "both"]),
    default: Some("none"),
    help: "super-buffers of many datagrams: gso (segment on send), gro (coalesce on receive), both, or auto (where possible); the stack then sees fewer packets than are counted",
};

/// All options, in the order of the help.
pub(super) const OPTIONS: &[OptionDoc] =
    &[FLOWS, SIZE, MIX, RATE, PPS_RATE, TRAFFIC, BATCH, OFFLOAD, BUFFER, DSCP, FLOW_LABEL, SOURCE, DEVICE, PORT];

/// The requested stream.
#[derive(Debug, Clone)]
pub(super) struct StreamShape {
    pub(super) sizes: DatagramSizes,
    /// The most messages in one call.
    pub(super) n_messages: usize,
    pub(super) traffic: TrafficPattern,
    /// The rate of each flow.
    pub(super) per_flow: Option<PerSec>,
    /// How datagrams are handed to the kernel, and how they are received from it.
    pub(super) offload: (OffloadMode, OffloadMode),
}

/// The error of an invalid option, with the valid values.
fn invalid_traffic(option: &OptionDoc, cause: TrafficError, given: &str) -> Error {
    SettingError::NotAllowed { name: option.name.to_owned(), expected: cause.to_string(), given: given.to_owned() }
        .into()
}

impl StreamShape {
    pub(super) fn of(settings: &Settings, seed: u64) -> Result<Self, Error> {
        let sizes = sizes(settings, seed)?;
        let text = settings.text(TRAFFIC.name).unwrap_or_else(|| "constant".to_owned());
        let traffic: TrafficPattern = text.parse().map_err(|cause| invalid_traffic(&TRAFFIC, cause, &text))?;
        let rate = match (settings.bit_rate(RATE.name), settings.rate(PPS_RATE.name)) {
            (Some(_), Some(pps)) => {
                return Err(options::invalid_value(PPS_RATE.name, "a rate only without `rate`", &pps));
            }
            (Some(bits), None) => PerSec::new(bits.get() / 8.0 / sizes.mean()),
            (None, pps) => pps,
        };
        if rate.is_none() && traffic != TrafficPattern::Constant {
            return Err(options::invalid_value(TRAFFIC.name, "a pattern only with `rate`", &text));
        }
        let n_flows = approximate(settings.count(FLOWS.name).unwrap_or(1));
        let per_flow = rate.and_then(|rate| PerSec::new(rate.get() / n_flows));
        let first = FlowIndex { idx: 0, of: 1 };
        if per_flow.is_some_and(|rate| Schedule::new(traffic, rate, seed, first).is_none()) {
            return Err(options::invalid_value(PPS_RATE.name, "a rate above zero", &0));
        }
        let joined = match settings.text(OFFLOAD.name).as_deref() {
            Some("auto") => (OffloadMode::Preferred, OffloadMode::Preferred),
            Some("gso") => (OffloadMode::Required, OffloadMode::Never),
            Some("gro") => (OffloadMode::Never, OffloadMode::Required),
            Some("both") => (OffloadMode::Required, OffloadMode::Required),
            _ => (OffloadMode::Never, OffloadMode::Never),
        };
        if joined.0 == OffloadMode::Required && sizes.fixed_size().is_none() {
            return Err(options::invalid_value(OFFLOAD.name, "gso only for datagrams of one size", &"a mix"));
        }
        let n_messages = options::count(settings, &BATCH).unwrap_or(32);
        Ok(Self { sizes, n_messages, traffic, per_flow, offload: joined })
    }

    /// Whether datagrams are too short for a number.
    pub(super) fn is_unnumbered(&self) -> bool {
        self.sizes.longest() < HEADER_LEN
    }
}

fn sizes(settings: &Settings, seed: u64) -> Result<DatagramSizes, Error> {
    if let Some(mix) = settings.text(MIX.name) {
        return DatagramSizes::mix(&mix, seed).map_err(|cause| invalid_traffic(&MIX, cause, &mix));
    }
    let size = settings.size(SIZE.name).unwrap_or(Bytes(1400));
    match usize::try_from(size.0) {
        Ok(bytes) if (1..=PAYLOAD_MAX).contains(&bytes) => Ok(DatagramSizes::fixed(bytes)),
        _ => Err(options::invalid_value(SIZE.name, "1 to 65507 B", &size)),
    }
}

/// Whether the reader asks for packets and not for bits: the rate says so, or the headers of each datagram outweigh it.
pub(super) fn is_about_packets(settings: &Settings) -> bool {
    let [bits, packets] = [settings.bit_rate(RATE.name).is_some(), settings.rate(PPS_RATE.name).is_some()];
    let is_small = || sizes(settings, 0).is_ok_and(|sizes| sizes.longest() < HEADERS);
    packets || (!bits && is_small())
}

/// A title for tables: `down, 1,400 B at 500 Mbit/s, poisson, 4 flows`.
pub(super) fn title(settings: &Settings, way: &str) -> String {
    let size = || format!("{} B", grouped(settings.size(SIZE.name).unwrap_or(Bytes(1400)).0));
    let what = settings.text(MIX.name).map_or_else(size, |mix| if mix == "imix" { mix } else { format!("mix {mix}") });
    let bits = settings.bit_rate(RATE.name).map(|rate| format!(" at {rate}"));
    let pps = settings.rate(PPS_RATE.name).map(|rate| format!(" at {}", Unit::FramesPerSec.show(rate.get())));
    let unless = |option: &OptionDoc| settings.text(option.name).filter(|text| Some(text.as_str()) != option.default);
    let traffic = unless(&TRAFFIC).map(|traffic| format!(", {traffic}"));
    let offload = unless(&OFFLOAD).map(|offload| format!(", offload {offload}"));
    let flows = match settings.count(FLOWS.name).unwrap_or(1) {
        1 => String::new(),
        n => format!(", {n} flows"),
    };
    let rate = bits.or(pps).unwrap_or_default();
    format!("{way}{what}{rate}{}{}{flows}", traffic.unwrap_or_default(), offload.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_about_packets_if_its_rate_or_its_headers_say_so() {
        let cases: &[(&[(&str, &str)], bool)] = &[
            (&[], false),
            (&[("size", "1")], true),
            (&[("size", "45")], true),
            (&[("size", "46")], false),
            // The words of the user count more than the size.
            (&[("size", "1"), ("rate", "10M")], false),
            (&[("pps", "20k")], true),
            (&[("mix", "imix")], false),
        ];
        for (options, expected) in cases {
            let given = options.iter().fold(Settings::default(), |given, (name, text)| given.with(name, *text));
            let whole = given.complete(OPTIONS).unwrap();
            assert_eq!(is_about_packets(&whole), *expected, "{options:?}");
        }
    }
}
