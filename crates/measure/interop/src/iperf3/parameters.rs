//! The parameters that the client requests, and their limits on a server.
//!
//! As in iperf3 since 3.18: a key of the wrong type counts as missing, unknown keys are ignored, and every number has a range.

use fathom_model::units::Bytes;
use serde_json::{Map, Value, json};

use super::{Error, error::code};

/// The transport protocol of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportProtocol {
    #[default]
    Tcp,
    /// Numbered datagrams.
    Udp,
}

/// The direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransferDirection {
    /// The client sends.
    #[default]
    Forward,
    /// The server sends (`-R`).
    Reverse,
    /// Both send at the same time (`--bidir`).
    Both,
}

/// Flags that a client can set, one bit each, with iperf3's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterFlag {
    /// `TCP_NODELAY`.
    NoDelay,
    /// The server's own output comes with its results.
    ServerOutput,
    /// Datagrams are numbered with 64 bits.
    Counters64,
    /// The payload repeats `0123456789`.
    RepeatingPayload,
    /// `sendfile` instead of `write`.
    ZeroCopy,
    /// IPv4 datagrams are not fragmented.
    DontFragment,
    /// The receiver discards data in the kernel.
    SkipReceiveCopy,
    /// Multipath TCP.
    Multipath,
    /// Datagrams are sent in super-buffers that the kernel segments.
    SegmentOffload,
    /// Datagrams are received in super-buffers that the kernel coalesces.
    ReceiveOffload,
}

/// The flags, their keys, and whether iperf3 writes them as `true` or as 1.
const FLAGS: [(ParameterFlag, &str, bool); 10] = [
    (ParameterFlag::NoDelay, "nodelay", true),
    (ParameterFlag::ServerOutput, "get_server_output", false),
    (ParameterFlag::Counters64, "udp_counters_64bit", false),
    (ParameterFlag::RepeatingPayload, "repeating_payload", false),
    (ParameterFlag::ZeroCopy, "zerocopy", false),
    (ParameterFlag::DontFragment, "dont_fragment", false),
    (ParameterFlag::SkipReceiveCopy, "skip_rx_copy", false),
    (ParameterFlag::Multipath, "mptcp", true),
    (ParameterFlag::SegmentOffload, "gso", false),
    (ParameterFlag::ReceiveOffload, "gro", false),
];

/// A set of flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParameterFlags(u16);

impl ParameterFlags {
    /// Whether a flag is set.
    #[must_use]
    pub const fn has(self, wish: ParameterFlag) -> bool {
        self.0 & (1 << wish as u8) != 0
    }

    /// Sets a flag.
    pub const fn add(&mut self, wish: ParameterFlag) {
        self.0 |= 1 << wish as u8;
    }
}

/// The parameters of a test, the same on both sides.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parameters {
    pub protocol: TransportProtocol,
    pub direction: TransferDirection,
    /// Streams in each direction.
    pub parallel: u32,
    /// Seconds at the start that do not count.
    pub omit_secs: u32,
    /// Seconds that count; zero if something else ends the test.
    pub time_secs: u32,
    /// Bytes after which the test ends; zero for no such limit.
    pub bytes: u64,
    /// Blocks after which the test ends; zero for no such limit.
    pub blocks: u64,
    /// Bytes per write or per datagram.
    pub block: Bytes,
    /// Bits per second of each stream; zero for unlimited.
    pub bitrate: u64,
    /// Blocks that are sent together.
    pub burst: u32,
    /// The rate of each stream in bits per second that the kernel enforces (`SO_MAX_PACING_RATE`).
    pub fq_rate: u64,
    /// The maximum segment size; zero for that of the path.
    pub mss: u32,
    /// The socket buffer size; zero for the kernel's choice.
    pub window: Bytes,
    /// The TOS or traffic class byte.
    pub tos: u8,
    /// The IPv6 flow label of the client's packets; zero for the kernel's choice.
    pub flow_label: u32,
    /// The core for the server's side of the test.
    pub server_core: Option<u32>,
    /// The congestion control of both sides.
    pub congestion: Option<String>,
    /// The prefix of each output line of the client.
    pub title: Option<String>,
    /// A text for the JSON of both sides.
    pub extra_data: Option<String>,
    /// The encrypted login.
    pub token: Option<String>,
    pub flags: ParameterFlags,
    /// The version of the client.
    pub version: Option<String>,
}

/// The default TCP block.
pub(crate) const TCP_BLOCK: Bytes = Bytes(128 << 10);
/// The longest block.
pub(crate) const BLOCK_MAX: u64 = 1 << 20;
/// The shortest and the longest datagram.
pub(crate) const DATAGRAM: (u64, u64) = (16, 65_507);
/// The largest buffer.
pub(crate) const WINDOW_MAX: u64 = 512 << 20;
/// The longest test: a day.
pub(crate) const SECONDS_MAX: u64 = 86_400;
/// The longest omitted part.
pub(crate) const OMIT_MAX: u64 = 600;
/// The most streams in one direction.
pub(crate) const PARALLEL_MAX: u64 = 128;
/// The most blocks per burst.
pub(crate) const BURST_MAX: u64 = 1000;
/// The largest segment size that a server accepts.
const MSS_MAX: u64 = 32_767;
/// iperf3's pacing timer in microseconds. This program has no such timer, but the key is always present.
const PACING_TIMER: u32 = 1000;

/// Parses an integer; the caller checks its range. JSON has only one type of number, so 10.0 is 10.
fn number(object: &Map<String, Value>, key: &str) -> Option<i64> {
    let value = object.get(key)?;
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        // Converts like a C program: a value out of range becomes the nearest integer.
        #[expect(clippy::cast_possible_truncation, reason = "the conversion saturates, which is meant")]
        Some(number.trunc() as i64)
    })
}

/// Returns a number in its range, or iperf3's error number.
fn ranged(object: &Map<String, Value>, key: &str, least: u64, most: u64, error: i32) -> Result<u64, Error> {
    let Some(number) = number(object, key) else { return Ok(0) };
    match u64::try_from(number) {
        Ok(0) => Ok(0),
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(Error::Denied { code: error }),
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("its range was checked")
}

fn text(object: &Map<String, Value>, key: &str) -> Option<String> {
    object.get(key)?.as_str().map(str::to_owned)
}

fn is_set(object: &Map<String, Value>, key: &str) -> bool {
    match object.get(key) {
        Some(Value::Bool(is_set)) => *is_set,
        Some(Value::Number(number)) => number.as_f64().is_some_and(|number| number != 0.0),
        _ => false,
    }
}

impl Parameters {
    /// Parses the JSON of a client.
    ///
    /// # Errors
    /// If a value is out of its range, if two directions are set, or if the protocol is not supported, in the form that the
    /// server reports.
    ///
    /// # Panics
    /// Never: values are converted only after their range was checked.
    pub fn read(value: &Value) -> Result<Self, Error> {
        let none = Map::new();
        let object = value.as_object().unwrap_or(&none);
        let carrier = match (is_set(object, "tcp"), is_set(object, "udp"), is_set(object, "sctp")) {
            (true, false, false) => TransportProtocol::Tcp,
            (false, true, false) => TransportProtocol::Udp,
            (_, _, true) => return Err(Error::Denied { code: code::NO_SCTP }),
            _ => return Err(Error::Denied { code: code::PROTOCOL }),
        };
        let way = match (is_set(object, "reverse"), is_set(object, "bidirectional")) {
            (true, true) => return Err(Error::Denied { code: code::BOTH_WAYS }),
            (true, false) => TransferDirection::Reverse,
            (false, true) => TransferDirection::Both,
            (false, false) => TransferDirection::Forward,
        };
        let mut wishes = ParameterFlags::default();
        FLAGS.iter().filter(|(_, key, _)| is_set(object, key)).for_each(|(wish, ..)| wishes.add(*wish));
        let (least, most, error) = match carrier {
            TransportProtocol::Tcp => (1, BLOCK_MAX, code::BLOCK),
            TransportProtocol::Udp => (DATAGRAM.0, DATAGRAM.1, code::UDP_BLOCK),
        };
        let block = match (ranged(object, "len", least, most, error)?, carrier) {
            (0, TransportProtocol::Tcp) => TCP_BLOCK.0,
            (0, TransportProtocol::Udp) => return Err(Error::Denied { code: code::UDP_BLOCK }),
            (block, _) => block,
        };
        Ok(Self {
            protocol: carrier,
            direction: way,
            flags: wishes,
            block: Bytes(block),
            parallel: narrow(ranged(object, "parallel", 1, PARALLEL_MAX, code::STREAMS)?.max(1)),
            omit_secs: narrow(ranged(object, "omit", 0, OMIT_MAX, code::OMIT)?),
            time_secs: narrow(ranged(object, "time", 0, SECONDS_MAX, code::DURATION)?),
            bytes: ranged(object, "num", 0, u64::MAX, code::PARAMETERS)?,
            blocks: ranged(object, "blockcount", 0, u64::MAX, code::PARAMETERS)?,
            bitrate: ranged(object, "bandwidth", 0, u64::MAX, code::PARAMETERS)?,
            burst: narrow(ranged(object, "burst", 1, BURST_MAX, code::BURST)?),
            fq_rate: ranged(object, "fqrate", 0, u64::MAX, code::PARAMETERS)?,
            mss: narrow(ranged(object, "MSS", 0, MSS_MAX, code::MSS)?),
            window: Bytes(ranged(object, "window", 0, WINDOW_MAX, code::BUFFER)?),
            tos: u8::try_from(ranged(object, "TOS", 0, 255, code::TOS)?).expect("its range was checked"),
            flow_label: narrow(ranged(object, "flowlabel", 0, 0xf_ffff, code::PARAMETERS)?),
            server_core: object
                .get("server_affinity")
                .and_then(Value::as_u64)
                .and_then(|core| u32::try_from(core).ok()),
            congestion: text(object, "congestion"),
            title: text(object, "title"),
            extra_data: text(object, "extra_data"),
            token: text(object, "authtoken"),
            version: text(object, "client_version"),
        })
    }

    /// Returns the JSON that the client sends.
    #[must_use]
    pub fn write(&self) -> Value {
        let carrier = if self.protocol == TransportProtocol::Tcp { "tcp" } else { "udp" };
        let mut object = Map::from_iter([
            (carrier.to_owned(), json!(true)),
            ("omit".to_owned(), json!(self.omit_secs)),
            ("time".to_owned(), json!(self.time_secs)),
            ("num".to_owned(), json!(self.bytes)),
            ("blockcount".to_owned(), json!(self.blocks)),
            ("parallel".to_owned(), json!(self.parallel)),
            ("len".to_owned(), json!(self.block.0)),
            ("pacing_timer".to_owned(), json!(PACING_TIMER)),
        ]);
        let numbers = [
            ("MSS", u64::from(self.mss)),
            ("window", self.window.0),
            ("bandwidth", self.bitrate),
            ("fqrate", self.fq_rate),
            ("burst", u64::from(self.burst)),
            ("TOS", u64::from(self.tos)),
            ("flowlabel", u64::from(self.flow_label)),
        ];
        let texts = [
            ("title", &self.title),
            ("extra_data", &self.extra_data),
            ("congestion", &self.congestion),
            ("authtoken", &self.token),
            ("client_version", &self.version),
        ];
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        match self.direction {
            TransferDirection::Forward => None,
            TransferDirection::Reverse => put("reverse", json!(true)),
            TransferDirection::Both => put("bidirectional", json!(true)),
        };
        for (wish, key, is_true) in FLAGS.iter().filter(|(wish, ..)| self.flags.has(*wish)) {
            debug_assert!(self.flags.has(*wish), "{key}");
            put(key, if *is_true { json!(true) } else { json!(1) });
        }
        numbers.iter().filter(|(_, number)| *number > 0).for_each(|(key, number)| drop(put(key, json!(number))));
        self.server_core.iter().for_each(|core| drop(put("server_affinity", json!(core))));
        texts.iter().filter_map(|(key, text)| Some((*key, text.as_ref()?))).for_each(|(key, text)| {
            put(key, json!(text));
        });
        Value::Object(object)
    }

    /// The number of streams in both directions together.
    #[must_use]
    pub fn n_streams(&self) -> u32 {
        if self.direction == TransferDirection::Both { self.parallel * 2 } else { self.parallel }
    }

    /// The blocks in each direction after which the test ends; `None` if time ends it.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        match (self.bytes, self.blocks) {
            (0, 0) => None,
            (0, blocks) => Some(blocks),
            (bytes, _) => Some(bytes.div_ceil(self.block.0.max(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_writes_a_server_reads() {
        let mut wishes = ParameterFlags::default();
        for (wish, ..) in &FLAGS {
            wishes.add(*wish);
        }
        let text = |text: &str| Some(text.to_owned());
        let all = Parameters {
            protocol: TransportProtocol::Udp,
            direction: TransferDirection::Both,
            parallel: 3,
            omit_secs: 1,
            time_secs: 7,
            bytes: 1 << 40,
            blocks: 5,
            block: Bytes(1400),
            bitrate: 5_000_000_000,
            burst: 10,
            fq_rate: 77,
            mss: 1400,
            window: Bytes(1 << 20),
            tos: 0xb8,
            flow_label: 9,
            server_core: Some(0),
            congestion: text("cubic"),
            title: text("t"),
            extra_data: text("e"),
            token: text("dG9rZW4="),
            flags: wishes,
            version: text("3.19"),
        };
        assert_eq!(Parameters::read(&all.write()).unwrap(), all);
        let least = Parameters { parallel: 1, block: TCP_BLOCK, ..Parameters::default() };
        assert_eq!(Parameters::read(&least.write()).unwrap(), least);
        assert_eq!(all.n_streams(), 6);
        assert_eq!(all.budget(), Some((1_u64 << 40).div_ceil(1400)));
    }

    #[test]
    fn a_key_of_the_wrong_type_counts_as_absent_and_an_unknown_one_as_nothing() {
        let asked =
            json!({"tcp": true, "time": "10", "parallel": [], "congestion": 7, "nodelay": "yes", "zz": {"a": 1}});
        let read = Parameters::read(&asked).unwrap();
        assert_eq!((read.time_secs, read.parallel, read.block), (0, 1, TCP_BLOCK));
        assert_eq!((read.congestion, read.flags), (None, ParameterFlags::default()));
        assert_eq!(Parameters::read(&json!({"tcp": true, "time": 5.0})).unwrap().time_secs, 5);
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_iperf3s_number() {
        let cases = [
            (json!({}), code::PROTOCOL),
            (json!({"tcp": true, "udp": true}), code::PROTOCOL),
            (json!({"sctp": true}), code::NO_SCTP),
            (json!({"tcp": true, "time": 86_401}), code::DURATION),
            (json!({"tcp": true, "time": -1}), code::DURATION),
            (json!({"tcp": true, "time": 1e300}), code::DURATION),
            (json!({"tcp": true, "parallel": 129}), code::STREAMS),
            (json!({"tcp": true, "omit": 601}), code::OMIT),
            (json!({"tcp": true, "len": 1_048_577}), code::BLOCK),
            (json!({"udp": true}), code::UDP_BLOCK),
            (json!({"udp": true, "len": 15}), code::UDP_BLOCK),
            (json!({"udp": true, "len": 65_508}), code::UDP_BLOCK),
            (json!({"tcp": true, "MSS": 40_000}), code::MSS),
            (json!({"tcp": true, "window": 1 << 30}), code::BUFFER),
            (json!({"tcp": true, "burst": 1001}), code::BURST),
            (json!({"tcp": true, "TOS": 256}), code::TOS),
            (json!({"tcp": true, "reverse": true, "bidirectional": true}), code::BOTH_WAYS),
        ];
        for (asked, expected) in cases {
            match Parameters::read(&asked) {
                Err(Error::Denied { code }) => assert_eq!(code, expected, "{asked}"),
                other => panic!("{asked}: {other:?}"),
            }
        }
    }
}
