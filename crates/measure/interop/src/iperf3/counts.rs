//! The counts of a test: readings of each stream, intervals between readings, and the outcome.

use std::net::SocketAddr;

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::socket::{Socket, tcp_info::TcpInfo};

use super::{CpuUse, Error, Omitted, Parameters, Results, ServerOutput, StreamResult, wire::Cookie};

/// The role of a side in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRole {
    Sender,
    Receiver,
}

/// One stream as seen by its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Its ID on the wire: 1, 3, 4, 5, …
    pub id: u32,
    /// The role of this side.
    pub role: StreamRole,
    /// This side's address.
    pub local: SocketAddr,
    /// The other side's address.
    pub remote: SocketAddr,
}

/// Returns the ID of the stream at an index: 2 is skipped, as it always was in iperf3.
pub(crate) fn id_at(place: usize) -> u32 {
    let place = u32::try_from(place).expect("at most 256 streams");
    if place == 0 { 1 } else { place + 2 }
}

/// The kernel's state of a sending connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpState {
    /// Retransmitted segments, since the start or since the last reading.
    pub retransmits: u64,
    /// The congestion window.
    pub cwnd: Bytes,
    /// The receive window that the peer advertises.
    pub snd_wnd: Bytes,
    /// The smoothed round-trip time.
    pub rtt: Nanos,
    /// Its mean deviation.
    pub rttvar: Nanos,
    /// The path MTU.
    pub pmtu: Bytes,
    /// The number of reordering events.
    pub reorder: u32,
    /// The maximum size of sent segments.
    pub mss: Bytes,
    /// Segments sent and not yet acknowledged.
    pub in_flight: u32,
}

impl TcpState {
    /// Reads the state from the kernel; `None` once the connection is gone.
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
            mss: info.snd_mss,
            in_flight: info.unacked,
        })
    }
}

/// The counts of a stream, since the start or since another reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamCounts {
    /// Payload bytes sent or received.
    pub bytes: u64,
    /// Datagrams sent, or the highest number received.
    pub packets: u64,
    /// Lost datagrams.
    pub lost: u64,
    /// Datagrams that arrived after a later one.
    pub out_of_order: u64,
    /// The current jitter (RFC 3550).
    pub jitter: Nanos,
    /// The state of the connection if this side sends over TCP.
    pub tcp: Option<TcpState>,
}

impl StreamCounts {
    /// Returns the growth since an earlier reading. Values that are not counters keep their current value.
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

/// A reporting interval, with one row per stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Interval {
    /// The start, from the start of the test or from the end of the omitted part.
    pub start: Nanos,
    /// The end, on the same clock.
    pub end: Nanos,
    /// Whether it is in the omitted part.
    pub is_omitted: bool,
    /// The growth of each stream.
    pub rows: Vec<StreamCounts>,
}

/// The extremes of a connection over the intervals of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpExtremes {
    /// The largest congestion window.
    pub max_cwnd: Bytes,
    /// The largest window that the peer advertised.
    pub max_snd_wnd: Bytes,
    /// The longest round-trip time.
    pub max_rtt: Nanos,
    /// The shortest round-trip time.
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

/// The outcome of one stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamOutcome {
    pub stream: Stream,
    /// The counts without the omitted part.
    pub total: StreamCounts,
    /// The omitted part.
    pub omitted: Omitted,
    /// The extremes if this side sends over TCP.
    pub extremes: Option<TcpExtremes>,
}

/// The outcome of one side.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Iperf3Outcome {
    pub streams: Vec<StreamOutcome>,
    /// The duration without the omitted part.
    pub span: Nanos,
    /// The processor time of this side.
    pub cpu: CpuUse,
    /// The congestion control of its sockets.
    pub congestion: Option<String>,
    /// The results of the other side. `None` if the test was aborted, and on a server, which reports before it receives them.
    pub peer: Option<Results>,
}

impl Iperf3Outcome {
    /// Returns the results for the other side.
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

/// The start of a test, once its parameters are known.
#[derive(Debug, Clone, PartialEq)]
pub struct TestStartInfo {
    /// The addresses of the control connection: ours and the other side's.
    pub control: (SocketAddr, SocketAddr),
    /// The cookie, which identifies the connections of the test.
    pub cookie: Cookie,
    /// The requested parameters.
    pub parameters: Parameters,
    /// The maximum segment size of the control connection.
    pub control_mss: u32,
    /// The buffers of the first stream: send and receive, as the kernel counts them.
    pub buffers: (Bytes, Bytes),
}

/// Observes a running test, for example to print it.
pub trait TestObserver {
    /// The streams are open and data starts to flow.
    fn on_start(&mut self, _beginning: &TestStartInfo, _streams: &[Stream]) {}

    /// An interval has ended.
    fn on_interval(&mut self, _interval: &Interval) {}

    /// Data no longer flows. On a client the results of the other side are known, unless the test was aborted.
    fn on_end(&mut self, _outcome: &Iperf3Outcome) {}

    /// Returns the output of a server for this test, for a client that requested it.
    fn take_output(&mut self) -> Option<ServerOutput> {
        None
    }

    /// The test has failed. If it had started, [`TestObserver::on_end`] was called with its counts before.
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
