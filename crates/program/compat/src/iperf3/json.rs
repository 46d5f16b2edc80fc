//! iperf3's JSON (`-J`): the same keys in the same places.

use std::path::PathBuf;

use fathom_interop::iperf3::{
    CpuUse, Interval, Iperf3Outcome, Parameters, ServerOutput, Stream, StreamCounts, StreamOutcome, StreamRole,
    TestStartInfo, TransferDirection, TransportProtocol,
};
use fathom_model::units::{Nanos, approximate, rounded};
use serde_json::{Map, Value, json};

use super::{
    diskfile,
    text::{ReportSide, SentAndReceived, lost_percent, number},
};

/// The growing document of one test.
#[derive(Debug, Clone)]
pub(super) struct JsonDocument {
    end: ReportSide,
    start: Map<String, Value>,
    intervals: Vec<Value>,
    ending: Value,
    rest: Map<String, Value>,
    parameters: Parameters,
    streams: Vec<Stream>,
    file: Option<PathBuf>,
}

/// Formats a number like cJSON: without a fraction if it is whole.
fn number_of(value: f64) -> Value {
    // Above 2^53, consecutive whole numbers cannot be told apart. No value here is that large.
    let is_whole = value.fract().abs() < f64::EPSILON && value.abs() < 9e15;
    if is_whole && value >= 0.0 { json!(rounded(value)) } else { json!(value) }
}

fn secs(span: Nanos) -> Value {
    number_of(span.as_secs_f64())
}

fn micros(span: Nanos) -> u64 {
    span.0 / 1000
}

fn bits_per_sec(bytes: u64, span: Nanos) -> Value {
    number_of(if span == Nanos::ZERO { 0.0 } else { approximate(bytes) * 8.0 / span.as_secs_f64() })
}

/// Returns the fields that all rows have.
fn head((from, to): (Nanos, Nanos), bytes: u64) -> Map<String, Value> {
    Map::from_iter([
        ("start".to_owned(), secs(from)),
        ("end".to_owned(), secs(to)),
        ("seconds".to_owned(), secs(to - from)),
        ("bytes".to_owned(), json!(bytes)),
        ("bits_per_second".to_owned(), bits_per_sec(bytes, to - from)),
    ])
}

fn put(map: &mut Map<String, Value>, rows: impl IntoIterator<Item = (&'static str, Value)>) {
    map.extend(rows.into_iter().map(|(key, value)| (key.to_owned(), value)));
}

fn losses(row: &StreamCounts) -> [(&'static str, Value); 4] {
    [
        ("jitter_ms", number_of(row.jitter.as_secs_f64() * 1e3)),
        ("lost_packets", json!(row.lost)),
        ("packets", json!(row.packets)),
        ("lost_percent", number_of(lost_percent(row.lost, row.packets))),
    ]
}

impl JsonDocument {
    /// Creates the document of a test before anything is known about it.
    pub(super) fn new(end: ReportSide, version: &str, system: &str) -> Self {
        let mut start = Map::new();
        put(&mut start, [("connected", json!([])), ("version", json!(version)), ("system_info", json!(system))]);
        Self {
            end,
            start,
            intervals: Vec::new(),
            ending: json!({}),
            rest: Map::new(),
            parameters: Parameters::default(),
            streams: Vec::new(),
            file: None,
        }
    }

    /// Returns the document for a test that transfers a file.
    pub(super) fn with_file(self, file: Option<PathBuf>) -> Self {
        Self { file, ..self }
    }

    /// Sets the server that a client connects to.
    pub(super) fn connecting(&mut self, host: &str, port: u16) {
        put(&mut self.start, [("connecting_to", json!({"host": host, "port": port}))]);
    }

    fn is_tcp(&self) -> bool {
        self.parameters.protocol == TransportProtocol::Tcp
    }

    pub(super) fn begin(&mut self, beginning: &TestStartInfo, streams: &[Stream], time: &str, now_secs: u64) {
        let p = &beginning.parameters;
        self.parameters = p.clone();
        self.streams = streams.to_vec();
        let connected = streams.iter().enumerate().map(|(place, stream)| {
            json!({
                "socket": number(place),
                "local_host": stream.local.ip().to_string(), "local_port": stream.local.port(),
                "remote_host": stream.remote.ip().to_string(), "remote_port": stream.remote.port(),
            })
        });
        let connected: Vec<Value> = connected.collect();
        put(
            &mut self.start,
            [
                ("connected", json!(connected)),
                ("timestamp", json!({"time": time, "timesecs": now_secs})),
                ("cookie", json!(beginning.cookie.text())),
                ("target_bitrate", json!(p.bitrate)),
                ("sock_bufsize", json!(p.window.0)),
                ("sndbuf_actual", json!(beginning.buffers.0.0)),
                ("rcvbuf_actual", json!(beginning.buffers.1.0)),
                ("test_start", test_start(p)),
            ],
        );
        if p.fq_rate > 0 {
            put(&mut self.start, [("fq_rate", json!(p.fq_rate))]);
        }
        if self.end == ReportSide::Server {
            let from = beginning.control.1;
            put(
                &mut self.start,
                [("accepted_connection", json!({"host": from.ip().to_string(), "port": from.port()}))],
            );
        }
        if self.is_tcp() {
            let key = if p.mss > 0 { "tcp_mss" } else { "tcp_mss_default" };
            put(&mut self.start, [(key, json!(if p.mss > 0 { p.mss } else { beginning.control_mss }))]);
        }
        let texts = [("title", &p.title), ("extra_data", &p.extra_data)];
        put(&mut self.rest, texts.into_iter().filter_map(|(key, text)| Some((key, json!(text.as_ref()?)))));
    }

    fn of_part(&self, part: StreamRole) -> impl Iterator<Item = usize> {
        self.streams.iter().enumerate().filter(move |(_, stream)| stream.role == part).map(|(place, _)| place)
    }

    /// Returns the direction of the plain sums, and of the sums with a suffix.
    fn directions(&self) -> Vec<(StreamRole, &'static str)> {
        let forward = if self.end == ReportSide::Client { StreamRole::Sender } else { StreamRole::Receiver };
        let backward = if forward == StreamRole::Sender { StreamRole::Receiver } else { StreamRole::Sender };
        match self.parameters.direction {
            TransferDirection::Forward => vec![(forward, "")],
            TransferDirection::Reverse => vec![(backward, "")],
            TransferDirection::Both => vec![(forward, ""), (backward, "_bidir_reverse")],
        }
    }

    pub(super) fn interval(&mut self, interval: &Interval) -> &Value {
        let span = (interval.start, interval.end);
        let mut shown = Map::new();
        let rows = self.streams.iter().zip(&interval.rows).enumerate();
        let streams: Vec<Value> =
            rows.map(|(place, (stream, row))| self.row(place, stream.role, span, row, interval)).collect();
        put(&mut shown, [("streams", json!(streams))]);
        for (part, suffix) in self.directions() {
            let sum = SentAndReceived::sum(
                &self
                    .of_part(part)
                    .map(|place| SentAndReceived::own(interval.rows[place], span.1 - span.0))
                    .collect::<Vec<_>>(),
            );
            let row = sum.sent.0;
            let mut map = head(span, row.bytes);
            self.counts(&mut map, part, &row);
            put(&mut map, [("omitted", json!(interval.is_omitted)), ("sender", json!(part == StreamRole::Sender))]);
            shown.insert(format!("sum{suffix}"), Value::Object(map));
        }
        self.intervals.push(Value::Object(shown));
        self.intervals.last().expect("it was pushed a moment ago")
    }

    /// Adds the fields that rows of a direction have in addition to bytes.
    fn counts(&self, map: &mut Map<String, Value>, part: StreamRole, row: &StreamCounts) {
        match (self.is_tcp(), part) {
            (true, StreamRole::Sender) => put(map, [("retransmits", json!(row.tcp.map_or(0, |tcp| tcp.retransmits)))]),
            (true, StreamRole::Receiver) => {}
            (false, StreamRole::Sender) => put(map, [("packets", json!(row.packets))]),
            (false, StreamRole::Receiver) => put(map, losses(row)),
        }
    }

    fn row(
        &self,
        place: usize,
        part: StreamRole,
        span: (Nanos, Nanos),
        row: &StreamCounts,
        interval: &Interval,
    ) -> Value {
        let mut map = head(span, row.bytes);
        put(&mut map, [("socket", json!(number(place)))]);
        self.counts(&mut map, part, row);
        if let (true, StreamRole::Sender) = (self.is_tcp(), part) {
            let tcp = row.tcp.unwrap_or_default();
            put(
                &mut map,
                [
                    ("snd_cwnd", json!(tcp.cwnd.0)),
                    ("snd_wnd", json!(tcp.snd_wnd.0)),
                    ("rtt", json!(micros(tcp.rtt))),
                    ("rttvar", json!(micros(tcp.rttvar))),
                    ("pmtu", json!(tcp.pmtu.0)),
                ],
            );
        }
        put(&mut map, [("omitted", json!(interval.is_omitted)), ("sender", json!(part == StreamRole::Sender))]);
        Value::Object(map)
    }

    pub(super) fn end(&mut self, outcome: &Iperf3Outcome) {
        let sides: Vec<SentAndReceived> = outcome
            .streams
            .iter()
            .map(|own| {
                let peer = outcome.peer.as_ref().and_then(|peer| peer.stream(own.stream.id));
                SentAndReceived::of(own, outcome.span, peer)
            })
            .collect();
        let streams: Vec<Value> = outcome
            .streams
            .iter()
            .zip(&sides)
            .enumerate()
            .map(|(place, (own, sides))| self.stream_end(place, own, sides))
            .collect();
        let mut ending = Map::new();
        put(&mut ending, [("streams", json!(streams))]);
        for (part, suffix) in self.directions() {
            let of_part: Vec<SentAndReceived> =
                self.of_part(part).filter_map(|place| sides.get(place).copied()).collect();
            self.sums(&mut ending, part, suffix, &SentAndReceived::sum(&of_part));
        }
        let remote = outcome.peer.as_ref().map_or(CpuUse::default(), |peer| peer.cpu);
        put(&mut ending, [("cpu_utilization_percent", cpu(outcome.cpu, remote))]);
        if self.is_tcp() {
            let theirs = outcome.peer.as_ref().and_then(|peer| peer.congestion.clone());
            let is_sender = self.streams.first().is_some_and(|stream| stream.role == StreamRole::Sender);
            // A bidirectional server is described by its sending direction.
            let is_sender =
                is_sender || (self.end == ReportSide::Server && self.parameters.direction == TransferDirection::Both);
            let (snd, rcv) =
                if is_sender { (outcome.congestion.clone(), theirs) } else { (theirs, outcome.congestion.clone()) };
            let names = [("sender_tcp_congestion", snd), ("receiver_tcp_congestion", rcv)];
            put(&mut ending, names.into_iter().filter_map(|(key, name)| Some((key, json!(name?)))));
        }
        self.ending = Value::Object(ending);
        if let Some(output) = outcome.peer.as_ref().and_then(|peer| peer.output.clone()) {
            let (key, value) = match output {
                ServerOutput::Text(text) => ("server_output_text", json!(text)),
                ServerOutput::Json(document) => ("server_output_json", document),
            };
            put(&mut self.rest, [(key, value)]);
        }
    }

    /// Returns one stream at the end of the test.
    fn stream_end(&self, place: usize, own: &StreamOutcome, sides: &SentAndReceived) -> Value {
        let sends = own.stream.role == StreamRole::Sender;
        let sender = ("sender", json!(sends));
        if !self.is_tcp() {
            let (sent, span) = sides.sent;
            let mut map = head((Nanos::ZERO, span), sent.bytes);
            let packets = if sent.packets > 0 { sent.packets } else { sides.received.0.packets };
            let row = StreamCounts { packets, ..sides.received.0 };
            put(&mut map, losses(&row));
            put(&mut map, [("socket", json!(number(place))), ("out_of_order", json!(row.out_of_order)), sender]);
            return json!({"udp": map});
        }
        let mut sent = head((Nanos::ZERO, sides.sent.1), sides.sent.0.bytes);
        put(&mut sent, [("socket", json!(number(place))), sender.clone()]);
        if sends || self.end == ReportSide::Client {
            let extremes = own.extremes.unwrap_or_default();
            put(
                &mut sent,
                [
                    ("retransmits", json!(sides.sent.0.tcp.map_or(0, |tcp| tcp.retransmits))),
                    ("max_snd_cwnd", json!(extremes.max_cwnd.0)),
                    ("max_snd_wnd", json!(extremes.max_snd_wnd.0)),
                    ("max_rtt", json!(micros(extremes.max_rtt))),
                    ("min_rtt", json!(micros(extremes.min_rtt))),
                    ("mean_rtt", json!(micros(extremes.mean_rtt()))),
                ],
            );
        }
        let mut received = head((Nanos::ZERO, sides.received.1), sides.received.0.bytes);
        put(&mut received, [("socket", json!(number(place))), sender]);
        let file = self.file.as_deref();
        let diskfile = file.and_then(|path| diskfile::object(path, (sides.sent.0.bytes, sides.received.0.bytes)));
        let mut ending = json!({"sender": sent, "receiver": received});
        if let Some(object) = diskfile {
            ending["diskfile"] = object;
        }
        ending
    }

    fn sums(&self, ending: &mut Map<String, Value>, part: StreamRole, suffix: &str, sides: &SentAndReceived) {
        let sends = json!(part == StreamRole::Sender);
        let knows_retransmits = part == StreamRole::Sender || self.end == ReportSide::Client;
        for (key, (row, span)) in [("sum_sent", sides.sent), ("sum_received", sides.received)] {
            let mut map = head((Nanos::ZERO, span), row.bytes);
            match (self.is_tcp(), key) {
                (true, "sum_sent") if knows_retransmits => {
                    put(&mut map, [("retransmits", json!(row.tcp.map_or(0, |tcp| tcp.retransmits)))]);
                }
                (true, _) => {}
                (false, _) => put(&mut map, losses(&row)),
            }
            let sender = if self.is_tcp() { sends.clone() } else { json!(key == "sum_sent") };
            put(&mut map, [("sender", sender)]);
            ending.insert(format!("{key}{suffix}"), Value::Object(map));
        }
        if !self.is_tcp() {
            let mut map = head((Nanos::ZERO, sides.received.1), sides.sent.0.bytes);
            put(&mut map, losses(&sides.received.0));
            put(&mut map, [("sender", sends)]);
            ending.insert(format!("sum{suffix}"), Value::Object(map));
        }
    }

    /// Returns the document that a server sends to a client that requests it: everything except data from that client.
    pub(super) fn partial(&self) -> Value {
        json!({"start": self.start, "intervals": self.intervals, "end": self.ending})
    }

    /// Returns the parts after the intervals, with their names in a stream of events.
    pub(super) fn last_events(&self, error: Option<String>) -> Vec<(&'static str, Value)> {
        let told = |key: &'static str| Some((key, self.rest.get(key)?.clone()));
        let error = error.map(|error| ("error", json!(error)));
        let output = ["server_output_json", "server_output_text"].into_iter().filter_map(told);
        error.into_iter().chain(output).chain([("end", self.ending.clone())]).collect()
    }

    /// Returns the whole document, with the error that ended the test.
    pub(super) fn complete(&self, error: Option<String>) -> Value {
        let mut whole = self.partial();
        let rest = self.rest.clone().into_iter().chain(error.map(|error| ("error".to_owned(), json!(error))));
        rest.for_each(|(key, value)| whole[key] = value);
        whole
    }
}

fn test_start(p: &Parameters) -> Value {
    json!({
        "protocol": if p.protocol == TransportProtocol::Tcp { "TCP" } else { "UDP" },
        "num_streams": p.parallel,
        "blksize": p.block.0,
        "omit": p.omit_secs,
        "duration": p.time_secs,
        "bytes": p.bytes,
        "blocks": p.blocks,
        "reverse": u8::from(p.direction == TransferDirection::Reverse),
        "tos": p.tos,
        "target_bitrate": p.bitrate,
    })
}

fn cpu(host: CpuUse, remote: CpuUse) -> Value {
    json!({
        "host_total": number_of(host.total), "host_user": number_of(host.user), "host_system": number_of(host.system),
        "remote_total": number_of(remote.total), "remote_user": number_of(remote.user),
        "remote_system": number_of(remote.system),
    })
}
