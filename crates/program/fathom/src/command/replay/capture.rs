//! What a capture holds: its packets, connections, requests and answers.

use std::{fmt::Write as _, io::Read, path::Path};

use fathom_capture::{
    ByteClass, ConnectionBegin, ConnectionEnd, ConversationSide, KeyLog, PacketClass, TlsCounts, TlsFate, TlsObserver,
    TrafficCounts, TrafficLimits, TrafficReader, read_traffic,
};
use fathom_model::units::counted;
use fathom_replay::{AnswerFate, ConversationFate, ExchangeCounts, HttpObserver, RequestFate};
use fathom_run::exit::UserError;
use serde::Serialize;

use super::{
    refusal::no_capture,
    send::RecordingSize,
    table::{add_section, most, rows},
};

/// The format of the document.
const FORMAT: &str = "fathom.capture/1";

/// What a capture holds.
#[derive(Debug, Serialize)]
pub(super) struct CaptureDocument {
    format: &'static str,
    file: String,
    /// Why the file was not read to its end.
    damage: Option<String>,
    traffic: TrafficCounts,
    tls: TlsCounts,
    http: ExchangeCounts,
}

/// Reads a capture from start to end.
pub(super) fn read(path: &Path, file: impl Read + Send, keys: KeyLog) -> Result<CaptureDocument, UserError> {
    let reader = TrafficReader::new(TlsObserver::new(HttpObserver::new(drop), keys), TrafficLimits::USUAL);
    let (observer, traffic, damage) = read_traffic(file, reader).map_err(|error| no_capture(path, &error))?;
    let (observer, tls) = observer.finish();
    let (file, http) = (path.display().to_string(), observer.into_counts());
    Ok(CaptureDocument { format: FORMAT, file, damage, traffic, tls, http })
}

impl CaptureDocument {
    /// How much of it can be sent.
    pub(super) fn size(&self) -> RecordingSize {
        let n_requests = self.http.requests.get(&RequestFate::Whole).copied().unwrap_or_default();
        let span = self.traffic.last.zip(self.traffic.first).map(|(last, first)| last.since(first));
        RecordingSize { n_requests, span: span.unwrap_or_default() }
    }

    pub(super) fn text(&self) -> String {
        let Self { traffic, tls, http, .. } = self;
        let n_packets: u64 = traffic.packets.values().sum();
        let span = traffic.last.zip(traffic.first).map(|(last, first)| format!(" in {}", last.since(first)));
        let mut text = format!("{}: {}{}\n", self.file, counted(n_packets, "packet"), span.unwrap_or_default());
        if let Some(damage) = &self.damage {
            let _ = writeln!(text, "  {damage}: nothing after that is counted");
        }
        let mut section = |title, rows| add_section(&mut text, title, rows);
        section("requests", rows(&http.requests, request_words));
        section("answers to whole requests", rows(&http.answers, answer_words));
        section("methods", most(&http.methods));
        section("hosts", most(&http.hosts));
        section("statuses", most(&http.statuses));
        section(
            "answers that servers pushed",
            vec![("over HTTP/2, without a request".to_owned(), http.n_pushed_answers)],
        );
        let over_tls = ("over TLS, not decrypted".to_owned(), tls.n_without_conversation);
        section("conversations", rows(&http.conversations, conversation_words).into_iter().chain([over_tls]).collect());
        section("connections over TLS", rows(&tls.connections, TlsFate::words));
        section("cipher suites that are not decrypted", most(&tls.unsupported_suites));
        section("connections, by how they began", rows(&traffic.begins, begin_words));
        section("connections, by how they ended", rows(&traffic.ends, end_words));
        section("packets", rows(&traffic.packets, packet_words));
        section("bytes of TCP payload", self.bytes());
        section("bytes of conversations that are not in the capture", rows(&traffic.missing_bytes, side_words));
        text
    }

    /// What became of each byte of payload.
    fn bytes(&self) -> Vec<(String, u64)> {
        let Self { traffic, tls, http, .. } = self;
        let of = |class| traffic.bytes.get(&class).copied().unwrap_or_default();
        let mut rows: Vec<_> =
            http.request_bytes.iter().map(|(fate, n)| (format!("in requests: {}", request_words(*fate)), *n)).collect();
        rows.push(("of clients, in no request".to_owned(), http.other_client_bytes));
        rows.push(("in answers".to_owned(), http.answer_bytes));
        rows.push(("of servers, in no answer".to_owned(), http.other_server_bytes));
        rows.push(("of TLS: handshakes, headers of records, tags".to_owned(), tls.overhead_bytes.values().sum()));
        rows.push(("over TLS, not decrypted".to_owned(), tls.undecrypted_bytes.values().sum()));
        rows.push(("repeated".to_owned(), of(ByteClass::Repeated)));
        rows.push(("in no conversation".to_owned(), of(ByteClass::Unattributed)));
        rows
    }
}

const fn request_words(fate: RequestFate) -> &'static str {
    match fate {
        RequestFate::Whole => "whole, can be sent again",
        other => other.words(),
    }
}

pub(super) const fn answer_words(fate: AnswerFate) -> &'static str {
    match fate {
        AnswerFate::Whole => "whole",
        AnswerFate::Incomplete => "ended by the connection or the capture",
        AnswerFate::MissingBytes => "with packets lost or cut by the capture",
        AnswerFate::Malformed => "malformed",
        AnswerFate::Absent => "none",
        AnswerFate::Logged => "with their status in the log",
        AnswerFate::Reset => "on a stream of HTTP/2 that was reset",
        AnswerFate::Undecrypted => "with a part that could not be decrypted",
    }
}

const fn conversation_words(fate: ConversationFate) -> &'static str {
    match fate {
        ConversationFate::Http => "HTTP/1 to the end",
        ConversationFate::Http2 => "HTTP/2 to the end",
        ConversationFate::Empty => "without a byte",
        ConversationFate::OtherProtocol => "of another protocol",
        ConversationFate::Switched => "changed to another protocol",
        ConversationFate::MalformedRequest => "up to a malformed request",
        ConversationFate::MalformedAnswer => "up to an answer that is malformed or without request",
        ConversationFate::MissingBytes => "up to packets lost or cut by the capture",
        ConversationFate::Undecrypted => "up to what could not be decrypted",
    }
}

const fn begin_words(begin: ConnectionBegin) -> &'static str {
    match begin {
        ConnectionBegin::Handshake => "with their handshake",
        ConnectionBegin::Middle => "open before the capture",
    }
}

const fn end_words(end: ConnectionEnd) -> &'static str {
    match end {
        ConnectionEnd::Closed => "closed by both sides",
        ConnectionEnd::Reset => "reset",
        ConnectionEnd::Reused => "ports used again",
        ConnectionEnd::CaptureEnded => "open at the end of the capture",
        ConnectionEnd::Evicted => "forgotten, too many were open",
    }
}

const fn side_words(side: ConversationSide) -> &'static str {
    match side {
        ConversationSide::Client => "of clients",
        ConversationSide::Server => "of servers",
    }
}

const fn packet_words(class: PacketClass) -> &'static str {
    match class {
        PacketClass::ClientData => "new bytes of clients",
        PacketClass::ServerData => "new bytes of servers",
        PacketClass::Handshake => "handshakes",
        PacketClass::Acknowledgement => "acknowledgements alone",
        PacketClass::Close => "FIN and reset",
        PacketClass::Repeated => "repeated",
        PacketClass::CutPayload => "payload cut by the capture (snap length)",
        PacketClass::CutHeader => "header cut by the capture (snap length)",
        PacketClass::Unattributed => "payload of no conversation",
        PacketClass::AfterEnd => "payload after the end of its connection",
        PacketClass::OutOfWindow => "sequence number out of the window",
        PacketClass::Fragment => "IP fragments",
        PacketClass::NotTcp => "IP without TCP",
        PacketClass::NotUdp => "IP without UDP",
        PacketClass::NotChosen => "of connections that are not followed",
        PacketClass::NotIp => "no IP",
        PacketClass::UnknownLink => "unknown link type",
        PacketClass::Malformed => "malformed headers",
    }
}
