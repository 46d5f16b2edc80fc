//! What is counted of a test: readings of each stream, the intervals between them, and the outcome.

use std::net::SocketAddr;

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::socket::{Socket, tcp_info::TcpInfo};

use super::{CpuUse, Error, Omitted, Parameters, Results, ServerOutput, StreamResult, wire::Cookie};

/// What a side does with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRole {
    /// It sends.
    Sender,
    /// It receives.
    Receiver,
}

/// One stream as its side knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Its number on the wire: 1, 3, 4, 5, …
    pub id: u32,
    /// What this side does with it.
    pub role: StreamRole,
    /// This side's address.
    pub local: SocketAddr,
    /// The other side's address.
    pub remote: SocketAddr,
}

/// The number of the stream at a place: 2 is left out, as it always was.
pub(crate) fn id_at(place: usize) -> u32 {
    let place = u32::try_from(place).expect("at most 256 streams");
    if place == 0 { 1 } else { place + 2 }
}

/// What the kernel knows of a connection that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpState {
    /// Segments sent again, since the beginning or since the last reading.
    pub retransmits: u64,
    /// The congestion window.
    pub cwnd: Bytes,
    /// The window that the receiver offers.
    pub snd_wnd: Bytes,
    /// The smoothed round-trip time.
    pub rtt: Nanos,
    /// Its mean deviation.
    pub rttvar: Nanos,
    /// The path MTU.
    pub pmtu: Bytes,
    /// Times that reordering was seen.
    pub reorder: u32,
}

impl TcpState {
    /// Asks the kernel; nothing once the connection is gone.
    pub(crate) fn of(socket: &Socket) -> Option<Self> {
        let info = TcpInfo::of(socket).ok()?;
        Some(Self {
            retransmits: info.total_retrans.into(),
            cwnd: Bytes(u64::from(info.snd_cwnd) * info.snd_mss.0),
            snd_wnd: info.snd_wnd.unwrap_or_default(),
            rtt: info.rtt,
            rttvar: info.rttvar,
            pmtu: info.pmtu,
            reorder: info.reord_seen.unwrap_or(0),
        })
    }
}

/// What was counted of a stream, since the beginning or since another reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamCounts {
    /// Payload sent or received.
    pub bytes: u64,
    /// Datagrams sent, or the highest number that arrived.
    pub packets: u64,
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Datagrams that arrived after a later one.
    pub out_of_order: u64,
    /// The jitter now (RFC 3550).
    pub jitter: Nanos,
    /// The connection, where this side sends over TCP.
    pub tcp: Option<TcpState>,
}

impl StreamCounts {
    /// The growth since an earlier reading; what is no count is as it is now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let retransmits = |tcp: TcpState| tcp.retransmits - earlier.tcp.map_or(0, |tcp| tcp.retransmits);
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            packets: self.packets.saturating_sub(earlier.packets),
            lost: self.lost.saturating_sub(earlier.lost),
            out_of_order: self.out_of_order.saturating_sub(earlier.out_of_order),
            jitter: self.jitter,
            tcp: self.tcp.map(|tcp| TcpState { retransmits: retransmits(tcp), ..tcp }),
        }
    }
}

/// One line of a report for each stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Interval {
    /// Since the start, or since the end of what is omitted.
    pub start: Nanos,
    /// On the same clock.
    pub end: Nanos,
    /// Whether it is before what counts.
    pub is_omitted: bool,
    /// The growth of each stream.
    pub rows: Vec<StreamCounts>,
}

/// The extremes of a connection over the intervals of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpExtremes {
    /// The largest congestion window.
    pub max_cwnd: Bytes,
    /// The largest window that the receiver offered.
    pub max_snd_wnd: Bytes,
    /// The longest round-trip time.
    pub max_rtt: Nanos,
    /// The shortest.
    pub min_rtt: Nanos,
    sum_rtt: Nanos,
    n: u64,
}

impl TcpExtremes {
    pub(crate) fn take(&mut self, tcp: &TcpState) {
        self.max_cwnd = self.max_cwnd.max(tcp.cwnd);
        self.max_snd_wnd = self.max_snd_wnd.max(tcp.snd_wnd);
        self.max_rtt = self.max_rtt.max(tcp.rtt);
        self.min_rtt = if self.n == 0 { tcp.rtt } else { self.min_rtt.min(tcp.rtt) };
        self.sum_rtt += tcp.rtt;
        self.n += 1;
    }

    /// The mean round-trip time.
    #[must_use]
    pub fn mean_rtt(&self) -> Nanos {
        Nanos(self.sum_rtt.0 / self.n.max(1))
    }
}

/// What became of one stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamOutcome {
    /// Which.
    pub stream: Stream,
    /// What counts.
    pub total: StreamCounts,
    /// What does not.
    pub omitted: Omitted,
    /// Where this side sends over TCP.
    pub extremes: Option<TcpExtremes>,
}

/// What one side knows at the end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Iperf3Outcome {
    /// Its streams.
    pub streams: Vec<StreamOutcome>,
    /// The time that counts.
    pub span: Nanos,
    /// Its processor time.
    pub cpu: CpuUse,
    /// The congestion control of its sockets.
    pub congestion: Option<String>,
    /// What the other side said; nothing when the test broke off, and on a server, which reports before it hears.
    pub peer: Option<Results>,
}

impl Iperf3Outcome {
    /// As the other side is told.
    pub(crate) fn results(&self, output: Option<ServerOutput>) -> Results {
        let sends = self.streams.iter().any(|outcome| outcome.stream.role == StreamRole::Sender);
        let is_tcp = self.congestion.is_some();
        let streams = self.streams.iter().map(|outcome| StreamResult {
            id: outcome.stream.id,
            bytes: outcome.total.bytes,
            retransmits: outcome.total.tcp.map(|tcp| tcp.retransmits),
            jitter_secs: outcome.total.jitter.as_secs_f64(),
            lost: outcome.total.lost + outcome.omitted.lost,
            packets: outcome.total.packets + outcome.omitted.packets,
            omitted: Some(outcome.omitted),
            seconds: self.span.as_secs_f64(),
        });
        Results {
            cpu: self.cpu,
            knows_retransmits: sends.then_some(is_tcp),
            congestion: self.congestion.clone(),
            streams: streams.collect(),
            output,
        }
    }
}

/// How a test begins, once its parameters are known.
#[derive(Debug, Clone, PartialEq)]
pub struct TestStartInfo {
    /// The control connection: our address and the other side's.
    pub control: (SocketAddr, SocketAddr),
    /// What binds the connections together.
    pub cookie: Cookie,
    /// What was asked for.
    pub parameters: Parameters,
    /// The largest segment of the control connection.
    pub control_mss: u32,
    /// The buffers of the first stream: send and receive, as the kernel counts them.
    pub buffers: (Bytes, Bytes),
}

/// Looks on while a test runs, such as to print it.
pub trait TestObserver {
    /// Its streams are there and data begins to flow.
    fn on_start(&mut self, _beginning: &TestStartInfo, _streams: &[Stream]) {}

    /// An interval is over.
    fn on_interval(&mut self, _interval: &Interval) {}

    /// Data flows no longer; on a client the other side's results are known, unless the test broke off.
    fn on_end(&mut self, _outcome: &Iperf3Outcome) {}

    /// What a server has printed of this test, for a client that asks for it.
    fn take_output(&mut self) -> Option<ServerOutput> {
        None
    }

    /// The test failed; what was counted has been told by [`TestObserver::on_end`] before, if it had begun.
    fn on_failure(&mut self, _error: &Error) {}
}

impl TestObserver for () {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_without_a_two() {
        assert_eq!((0..5).map(id_at).collect::<Vec<_>>(), [1, 3, 4, 5, 6]);
    }

    #[test]
    fn a_reading_since_another_is_growth_where_it_counts() {
        let tcp = |retransmits| Some(TcpState { retransmits, cwnd: Bytes(9), ..TcpState::default() });
        let early = StreamCounts { bytes: 5, packets: 2, lost: 2, tcp: tcp(3), ..StreamCounts::default() };
        let late =
            StreamCounts { bytes: 9, packets: 4, lost: 1, jitter: Nanos(7), tcp: tcp(4), ..StreamCounts::default() };
        let growth = late.since(&early);
        assert_eq!((growth.bytes, growth.packets, growth.lost, growth.jitter), (4, 2, 0, Nanos(7)));
        assert_eq!(growth.tcp.map(|tcp| (tcp.retransmits, tcp.cwnd)), Some((1, Bytes(9))));
    }

    #[test]
    fn extremes_hold_the_smallest_of_all_and_not_of_nothing() {
        let mut extremes = TcpExtremes::default();
        for rtt in [30, 10, 20] {
            extremes.take(&TcpState { rtt: Nanos(rtt), cwnd: Bytes(rtt), ..TcpState::default() });
        }
        assert_eq!((extremes.min_rtt.0, extremes.max_rtt.0, extremes.mean_rtt().0), (10, 30, 20));
        assert_eq!(TcpExtremes::default().mean_rtt(), Nanos::ZERO);
    }
}
