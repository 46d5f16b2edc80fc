//! iperf3's text output, during a test and at its end.

use std::path::PathBuf;

use fathom_interop::iperf3::{
    Interval, Iperf3Outcome, Omitted, Parameters, ServerOutput, Stream, StreamCounts, StreamOutcome, StreamResult,
    StreamRole, TestStartInfo, TransferDirection, TransportProtocol,
};
use fathom_model::units::Nanos;

use super::{
    diskfile,
    units::{RateFormat, rate, two_digits, volume},
};

/// The side that prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportSide {
    Client,
    Server,
}

/// The settings for the display of a test.
#[derive(Debug, Clone)]
pub(super) struct DisplayStyle {
    pub(super) end: ReportSide,
    pub(super) format: RateFormat,
    pub(super) is_verbose: bool,
    /// The file that is sent or written.
    pub(super) file: Option<PathBuf>,
}

/// The text of one test, line by line.
#[derive(Debug, Clone)]
pub(super) struct TextReport {
    style: DisplayStyle,
    parameters: Parameters,
    streams: Vec<Stream>,
    has_header: bool,
    n_intervals: u64,
}

pub(super) const RULE: &str = "- - - - - - - - - - - - - - - - - - - - - - - - -";
const OMITTED: &str = "(omitted)";

/// Returns the displayed number of a stream. iperf3 shows its file descriptor, which starts at 5 because of the control
/// connection.
pub(super) fn number(place: usize) -> usize {
    5 + 2 * place
}

/// Returns the sum row for several streams in one direction.
fn sum(rows: impl Iterator<Item = StreamCounts>) -> (StreamCounts, u64) {
    let mut n = 0;
    let mut jitter = 0;
    let sum = rows.fold(StreamCounts::default(), |mut sum, row| {
        n += 1;
        jitter += row.jitter.0;
        sum.bytes += row.bytes;
        sum.packets += row.packets;
        sum.lost += row.lost;
        sum.out_of_order += row.out_of_order;
        if let Some(tcp) = row.tcp {
            sum.tcp.get_or_insert_default().retransmits += tcp.retransmits;
        }
        sum
    });
    (StreamCounts { jitter: Nanos(jitter / n.max(1)), ..sum }, n)
}

/// Returns the lost datagrams in percent.
pub(super) fn lost_percent(lost: u64, packets: u64) -> f64 {
    fathom_model::units::ratio(lost, packets).map_or(0.0, |share| share * 100.0)
}

/// The start and the end of a displayed interval.
#[derive(Debug, Clone, Copy)]
struct ShownSpan(Nanos, Nanos);

impl ShownSpan {
    fn shown(self) -> String {
        format!("{:6.2}-{:<6.2} sec", self.0.as_secs_f64(), self.1.as_secs_f64())
    }

    fn long(self) -> Nanos {
        self.1 - self.0
    }
}

impl TextReport {
    pub(super) fn new(style: DisplayStyle, beginning: &TestStartInfo, streams: &[Stream]) -> Self {
        Self {
            style,
            parameters: beginning.parameters.clone(),
            streams: streams.to_vec(),
            has_header: false,
            n_intervals: 0,
        }
    }

    /// Returns the lines before the first row.
    pub(super) fn beginning(&self, beginning: &TestStartInfo) -> Vec<String> {
        let mut lines = Vec::new();
        let p = &self.parameters;
        if self.style.end == ReportSide::Server {
            let from = beginning.control.1;
            lines.push(format!("Accepted connection from {}, port {}", from.ip(), from.port()));
        }
        if self.style.is_verbose {
            lines.push(format!("      Cookie: {}", beginning.cookie.text()));
            if p.protocol == TransportProtocol::Tcp {
                let (mss, which) = if p.mss > 0 { (p.mss, "") } else { (beginning.control_mss, " (default)") };
                lines.push(format!("      TCP MSS: {mss}{which}"));
            }
            if p.bitrate > 0 {
                lines.push(format!("      Target Bitrate: {}", p.bitrate));
            }
        }
        for (place, stream) in self.streams.iter().enumerate() {
            let (here, there) = (stream.local, stream.remote);
            lines.push(format!(
                "[{:3}] local {} port {} connected to {} port {}",
                number(place),
                here.ip(),
                here.port(),
                there.ip(),
                there.port()
            ));
        }
        if self.style.is_verbose {
            lines.push(self.starting());
        }
        lines
    }

    fn starting(&self) -> String {
        let p = &self.parameters;
        let carrier = if p.protocol == TransportProtocol::Tcp { "TCP" } else { "UDP" };
        let end = match (p.bytes, p.blocks) {
            (0, 0) => format!("{} second test", p.time_secs),
            (0, blocks) => format!("{blocks} blocks to send"),
            (bytes, _) => format!("{bytes} bytes to send"),
        };
        format!(
            "Starting Test: protocol: {carrier}, {} streams, {} byte blocks, omitting {} seconds, {end}, tos {}",
            p.parallel, p.block.0, p.omit_secs, p.tos
        )
    }

    fn is_both(&self) -> bool {
        self.parameters.direction == TransferDirection::Both
    }

    fn is_tcp(&self) -> bool {
        self.parameters.protocol == TransportProtocol::Tcp
    }

    fn role(&self, part: StreamRole) -> &'static str {
        match (self.is_both(), part, self.style.end) {
            (false, ..) => "",
            (_, StreamRole::Sender, ReportSide::Client) => "[TX-C]",
            (_, StreamRole::Receiver, ReportSide::Client) => "[RX-C]",
            (_, StreamRole::Sender, ReportSide::Server) => "[TX-S]",
            (_, StreamRole::Receiver, ReportSide::Server) => "[RX-S]",
        }
    }

    fn sends(&self) -> bool {
        self.streams.iter().any(|stream| stream.role == StreamRole::Sender)
    }

    /// Returns the column headings, for the rows during the test or for those at the end.
    fn header(&self, is_end: bool) -> String {
        let role = if self.is_both() { "[Role]" } else { "" };
        let columns = match (self.is_tcp(), self.sends()) {
            (true, true) if is_end => "         Retr",
            (true, true) => "         Retr  Cwnd",
            // At its end, a client shows both sides, so a sender's retransmissions are known.
            (true, false) if is_end && self.style.end == ReportSide::Client => "         Retr",
            (true, false) => "",
            (false, true) if !is_end && !self.is_both() => "         Total Datagrams",
            (false, _) => "         Jitter    Lost/Total Datagrams",
        };
        format!("[ ID]{role} Interval           Transfer     Bitrate{columns}")
    }

    /// Returns the rows of one interval.
    pub(super) fn interval(&mut self, interval: &Interval) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.has_header {
            lines.push(self.header(false));
            self.has_header = true;
        }
        if self.n_intervals > 0 && self.parameters.parallel > 1 {
            lines.push(RULE.to_owned());
        }
        self.n_intervals += 1;
        let span = ShownSpan(interval.start, interval.end);
        let tail = if interval.is_omitted { OMITTED } else { "" };
        for part in self.parts() {
            for (place, row) in self.rows(part, &interval.rows) {
                lines.push(self.row(&format!("[{:3}]", number(place)), part, span, row, tail));
            }
            if self.parameters.parallel > 1 {
                let (sum, _) = sum(self.rows(part, &interval.rows).map(|(_, row)| *row));
                lines.push(self.sum_row(part, span, &sum, tail));
            }
        }
        lines
    }

    fn parts(&self) -> Vec<StreamRole> {
        let first = self.streams.first().map(|stream| stream.role);
        let last = self.streams.last().map(|stream| stream.role).filter(|last| Some(*last) != first);
        first.into_iter().chain(last).collect()
    }

    fn rows<'a>(
        &'a self,
        part: StreamRole,
        rows: &'a [StreamCounts],
    ) -> impl Iterator<Item = (usize, &'a StreamCounts)> {
        let of_part = self.streams.iter().zip(rows).enumerate();
        of_part.filter(move |(_, (stream, _))| stream.role == part).map(|(place, (_, row))| (place, row))
    }

    fn head(&self, id: &str, part: StreamRole, span: ShownSpan, bytes: u64) -> String {
        let rate = rate(bytes, span.long(), self.style.format);
        format!("{id}{} {}  {}s  {rate}s/sec", self.role(part), span.shown(), volume(bytes))
    }

    fn row(&self, id: &str, part: StreamRole, span: ShownSpan, row: &StreamCounts, tail: &str) -> String {
        let head = self.head(id, part, span, row.bytes);
        match (self.is_tcp(), part, row.tcp) {
            (true, StreamRole::Sender, Some(tcp)) => {
                format!("{head}  {:3}   {}s       {tail}", tcp.retransmits, volume(tcp.cwnd.0))
            }
            (true, ..) => format!("{head}                  {tail}"),
            (false, part, _) => self.datagrams(&head, part, row, tail),
        }
    }

    fn sum_row(&self, part: StreamRole, span: ShownSpan, row: &StreamCounts, tail: &str) -> String {
        let head = self.head("[SUM]", part, span, row.bytes);
        match (self.is_tcp(), part, row.tcp) {
            (true, StreamRole::Sender, Some(tcp)) => format!("{head}  {:3}             {tail}", tcp.retransmits),
            (true, ..) => format!("{head}                  {tail}"),
            (false, part, _) => self.datagrams(&head, part, row, tail),
        }
    }

    fn datagrams(&self, head: &str, part: StreamRole, row: &StreamCounts, tail: &str) -> String {
        let room = if self.is_both() { "          " } else { "" };
        match part {
            StreamRole::Sender => format!("{head}  {room}{}  {tail}", row.packets),
            StreamRole::Receiver => format!("{head}  {}  {tail}", losses(row.jitter, (row.lost, row.packets))),
        }
    }

    /// Returns the summary, with the rows of the other side if it sent its results.
    pub(super) fn ended(&self, outcome: &Iperf3Outcome) -> Vec<String> {
        let mut lines = vec![RULE.to_owned()];
        if self.style.is_verbose {
            lines.push("Test Complete. Summary Results:".to_owned());
        }
        lines.push(self.header(true));
        for part in self.parts() {
            let of_part = || outcome.streams.iter().enumerate().filter(move |(_, own)| own.stream.role == part);
            let mut both = Vec::new();
            for (place, own) in of_part() {
                let peer = outcome.peer.as_ref().and_then(|peer| peer.stream(own.stream.id));
                let sides = SentAndReceived::of(own, outcome.span, peer);
                lines.extend(self.summary(&format!("[{:3}]", number(place)), part, &sides));
                both.push(sides);
            }
            if self.parameters.parallel > 1 {
                lines.extend(self.summary("[SUM]", part, &SentAndReceived::sum(&both)));
            }
        }
        if self.style.is_verbose {
            lines.extend(self.end_lines(outcome));
        }
        lines
    }

    /// Returns the two lines of a stream: sent and received.
    fn summary(&self, id: &str, part: StreamRole, sides: &SentAndReceived) -> Vec<String> {
        let mut lines = Vec::new();
        let is_sum = id == "[SUM]";
        let is_own = |side: StreamRole| side == part;
        let (sender, receiver) =
            ((StreamRole::Sender, "sender", &sides.sent), (StreamRole::Receiver, "receiver", &sides.received));
        for (side, name, row) in [sender, receiver] {
            if side == StreamRole::Receiver && !is_sum {
                let bytes = if is_own(StreamRole::Sender) { sides.sent.0.bytes } else { sides.received.0.bytes };
                lines.extend(self.style.file.as_deref().and_then(|path| diskfile::line(path, bytes)));
            }
            if self.style.end == ReportSide::Server && !is_own(side) {
                if self.style.is_verbose && !is_sum {
                    lines.push(format!("{id}{} ({name} statistics not available)", self.role(part)));
                }
                continue;
            }
            let head = self.head(id, part, ShownSpan(Nanos::ZERO, row.1), row.0.bytes);
            lines.push(match (self.is_tcp(), side, row.0.tcp) {
                (true, StreamRole::Sender, Some(tcp)) => format!("{head}  {:3}             {name}", tcp.retransmits),
                (true, ..) => format!("{head}                  {name}"),
                (false, ..) => format!("{head}  {}  {name}", losses(row.0.jitter, (row.0.lost, row.0.packets))),
            });
        }
        lines
    }

    fn end_lines(&self, outcome: &Iperf3Outcome) -> Vec<String> {
        let mut lines = Vec::new();
        let own = outcome.cpu;
        let (first, second) = if self.sends() { ("sender", "receiver") } else { ("receiver", "sender") };
        if let Some(peer) = &outcome.peer {
            lines.push(format!(
                "CPU Utilization: local/{first} {:.1}% ({:.1}%u/{:.1}%s), remote/{second} {:.1}% ({:.1}%u/{:.1}%s)",
                own.total, own.user, own.system, peer.cpu.total, peer.cpu.user, peer.cpu.system
            ));
        }
        let theirs = outcome.peer.as_ref().and_then(|peer| peer.congestion.clone());
        let (snd, rcv) =
            if self.sends() { (outcome.congestion.clone(), theirs) } else { (theirs, outcome.congestion.clone()) };
        lines.extend(snd.filter(|_| self.is_tcp()).map(|name| format!("snd_tcp_congestion {name}")));
        lines.extend(rcv.filter(|_| self.is_tcp()).map(|name| format!("rcv_tcp_congestion {name}")));
        lines
    }

    /// Returns the server's own output and the last line.
    pub(super) fn closing_lines(outcome: &Iperf3Outcome) -> Vec<String> {
        let output = outcome.peer.as_ref().and_then(|peer| peer.output.as_ref());
        let output = output.map(|output| match output {
            ServerOutput::Text(text) => text.clone(),
            ServerOutput::Json(document) => document.to_string(),
        });
        let mut lines: Vec<String> = output.into_iter().map(|text| format!("\nServer output:\n{text}")).collect();
        lines.extend([String::new(), "iperf Done.".to_owned()]);
        lines
    }
}

fn losses(jitter: Nanos, (lost, packets): (u64, u64)) -> String {
    let millis = jitter.as_secs_f64() * 1e3;
    format!("{millis:5.3} ms  {lost}/{packets} ({}%)", two_digits(lost_percent(lost, packets)))
}

/// The sent and the received counts of a stream, each with its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentAndReceived {
    pub(super) sent: (StreamCounts, Nanos),
    pub(super) received: (StreamCounts, Nanos),
}

/// Converts the results of the other side.
///
/// Versions before 3.14 do not report omitted datagrams. Their number is taken from this side.
fn reading(told: &StreamResult, omitted_here: Omitted) -> (StreamCounts, Nanos) {
    let omitted = told.omitted.unwrap_or(Omitted { packets: omitted_here.packets, lost: 0 });
    let reading = StreamCounts {
        bytes: told.bytes,
        packets: told.packets.saturating_sub(omitted.packets),
        lost: told.lost.saturating_sub(omitted.lost),
        jitter: Nanos::from_secs_f64(told.jitter_secs),
        tcp: told.retransmits.map(|retransmits| fathom_interop::iperf3::TcpState {
            retransmits,
            ..fathom_interop::iperf3::TcpState::default()
        }),
        ..StreamCounts::default()
    };
    (reading, Nanos::from_secs_f64(told.seconds))
}

impl SentAndReceived {
    /// Combines the counts of this side with the results of the other side. Without those, nothing counts as received.
    pub(super) fn of(own: &StreamOutcome, span: Nanos, peer: Option<&StreamResult>) -> Self {
        let mine = (own.total, span);
        let theirs = peer.map_or((StreamCounts::default(), span), |told| reading(told, own.omitted));
        // Versions before 3.2 do not report a time.
        let theirs = if theirs.1 == Nanos::ZERO { (theirs.0, span) } else { theirs };
        let (mut sent, received) = if own.stream.role == StreamRole::Sender { (mine, theirs) } else { (theirs, mine) };
        // A sender does not know the loss.
        (sent.0.lost, sent.0.jitter) = (0, Nanos::ZERO);
        Self { sent, received }
    }

    pub(super) fn sum(all: &[Self]) -> Self {
        let longest = |side: fn(&Self) -> Nanos| all.iter().map(side).max().unwrap_or(Nanos::ZERO);
        Self {
            sent: (sum(all.iter().map(|sides| sides.sent.0)).0, longest(|sides| sides.sent.1)),
            received: (sum(all.iter().map(|sides| sides.received.0)).0, longest(|sides| sides.received.1)),
        }
    }
}

impl SentAndReceived {
    /// Uses the counts of one side as both, for the sums of an interval.
    pub(super) fn own(row: StreamCounts, span: Nanos) -> Self {
        Self { sent: (row, span), received: (row, span) }
    }
}
