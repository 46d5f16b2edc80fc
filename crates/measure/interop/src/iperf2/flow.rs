//! One flow: who it is, its counts, and what an observer learns of it.

use std::net::SocketAddr;

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::socket::{Socket, tcp_info::TcpInfo};

use super::{Error, ServerReport, TcpState, TestMode, TransitTimes, TransportProtocol};

/// What this side does in a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowRole {
    Sender,
    Receiver,
}

/// The number of size classes that iperf counts reads in.
pub const READ_BINS: usize = 8;

/// What the kernel knew of a connection when it was new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// The congestion window.
    pub cwnd: Bytes,
    /// The maximum segment size.
    pub mss: Bytes,
    /// The round-trip time of the handshake.
    pub rtt: Nanos,
    /// How long the connect took; `None` at the side that accepted.
    pub connect_time: Option<Nanos>,
}

impl ConnectionFacts {
    /// Reads them from the kernel; `None` if it refuses.
    pub(crate) fn of(socket: &Socket, connect_time: Option<Nanos>) -> Option<Self> {
        let info = TcpInfo::of(socket).ok()?;
        Some(Self {
            cwnd: Bytes(u64::from(info.snd_cwnd) * info.snd_mss.0),
            mss: info.snd_mss,
            rtt: info.rtt,
            connect_time,
        })
    }
}

/// A flow as seen by its side.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowInfo {
    /// Its number in this process, from 1.
    pub id: u32,
    /// The number of flows that were opened together (`-P`), as far as this side knows; they are summed.
    pub group: FlowGroup,
    pub role: FlowRole,
    pub protocol: TransportProtocol,
    pub mode: TestMode,
    /// Whether it runs against the direction of the client's own flow (`-R`, `-d`, `-r`).
    pub is_back: bool,
    /// This side's address.
    pub local: SocketAddr,
    /// The other side's address.
    pub remote: SocketAddr,
    /// Whether times were requested (`--trip-times`).
    pub has_trip_times: bool,
    /// The length of a read, which is divided into size classes.
    pub length: usize,
    /// The type of service that the client asked for.
    pub tos: u8,
    /// The version of the other side as two words; zero if unknown.
    pub peer_version: (u32, u32),
    /// What the kernel knew at the beginning, over TCP.
    pub facts: Option<ConnectionFacts>,
    /// When it began, on the wall clock.
    pub began: Nanos,
}

/// The flows that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowGroup {
    /// The same for all of a group, and for no other group.
    pub id: u32,
    /// How many flows there are.
    pub n_flows: u32,
}

/// The counts of a flow, since its start or since another reading.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FlowCounts {
    /// Payload bytes sent or received.
    pub bytes: u64,
    /// Calls that sent or received something.
    pub calls: u64,
    /// Calls that failed for lack of room.
    pub errors: u64,
    /// Datagrams sent, or the highest number received.
    pub datagrams: u64,
    /// Distinct datagrams received.
    pub received: u64,
    /// Datagrams that arrived after a later one.
    pub reordered: u64,
    /// The current jitter (RFC 3550).
    pub jitter: Nanos,
    /// Reads by their size, in eighths of the length.
    pub read_bins: [u64; READ_BINS],
    /// One-way times, if the sender's clock was used.
    pub transit: Option<TransitTimes>,
    /// The state of a connection that this side sends over.
    pub tcp: Option<TcpState>,
}

impl FlowCounts {
    /// Datagrams that are missing below the highest number.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.datagrams.saturating_sub(self.received)
    }

    /// Returns the growth since an earlier reading. Values that are not counters keep their current value.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let retransmits =
            |tcp: TcpState| tcp.retransmits - earlier.tcp.map_or(0, |tcp| tcp.retransmits).min(tcp.retransmits);
        let mut read_bins = self.read_bins;
        read_bins.iter_mut().zip(earlier.read_bins).for_each(|(bin, earlier)| *bin -= earlier.min(*bin));
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            calls: self.calls.saturating_sub(earlier.calls),
            errors: self.errors.saturating_sub(earlier.errors),
            datagrams: self.datagrams.saturating_sub(earlier.datagrams),
            received: self.received.saturating_sub(earlier.received),
            reordered: self.reordered.saturating_sub(earlier.reordered),
            jitter: self.jitter,
            read_bins,
            transit: self.transit,
            tcp: self.tcp.map(|tcp| TcpState { retransmits: retransmits(tcp), ..tcp }),
        }
    }
}

/// A reporting interval of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowInterval {
    /// The start, from the start of the flow.
    pub start: Nanos,
    /// The end, on the same clock.
    pub end: Nanos,
    pub counts: FlowCounts,
    /// Whether the flow ended in it.
    pub is_last: bool,
}

/// The outcome of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowOutcome {
    /// From the start to the end of the data.
    pub span: Nanos,
    pub counts: FlowCounts,
}

/// Observes flows, for example to print them. Flows run at the same time, so it is shared.
pub trait FlowObserver: Sync {
    /// A flow is open.
    fn on_flow(&self, _flow: &FlowInfo) {}

    /// An interval of a flow has ended.
    fn on_interval(&self, _flow: &FlowInfo, _interval: &FlowInterval) {}

    /// The data of a flow has ended.
    fn on_end(&self, _flow: &FlowInfo, _outcome: &FlowOutcome) {}

    /// The server has reported on a UDP flow of this client.
    fn on_server_report(&self, _flow: &FlowInfo, _report: &ServerReport) {}

    /// Something failed: of a flow, or before one was open.
    fn on_failure(&self, _flow: Option<&FlowInfo>, _error: &Error) {}
}

impl FlowObserver for () {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_since_another_is_growth_where_it_counts() {
        let early = FlowCounts { bytes: 5, datagrams: 4, received: 2, read_bins: [1; 8], ..FlowCounts::default() };
        let late = FlowCounts {
            bytes: 9,
            datagrams: 6,
            received: 5,
            jitter: Nanos(7),
            read_bins: [3, 1, 1, 1, 1, 1, 1, 2],
            ..FlowCounts::default()
        };
        let growth = late.since(&early);
        assert_eq!((growth.bytes, growth.datagrams, growth.lost(), growth.jitter), (4, 2, 0, Nanos(7)));
        assert_eq!(growth.read_bins, [2, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((early.lost(), late.lost()), (2, 1));
    }
}
