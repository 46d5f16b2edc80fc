//! Rows of numbers: what an interval, an end or a report says of a flow.

use fathom_interop::iperf2::{FlowCounts, FlowInfo, ServerReport, TransitTimes, TransportProtocol};
use fathom_model::units::{Nanos, approximate, ratio, rounded};
use fathom_sys::clock;

use super::style::{DisplayStyle, ReportSide, wall_text};
use crate::iperf2::{options::TextRelease, units};

/// The numbers of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) counts: FlowCounts,
}

/// The columns of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    Bandwidth,
    TcpWrite,
    TcpRead,
    TcpReadTimes,
    UdpWrite,
    UdpRead,
    UdpReadTimes,
}

const BANDWIDTH: &str = "[ ID] Interval       Transfer     Bandwidth";
const PPS: &str = "[ ID] Interval            Transfer     Bandwidth      Write/Err  PPS";
const READS: &str = "[ ID] Interval            Transfer    Bandwidth       Reads=Dist";

impl RowKind {
    pub(super) const fn header(self, release: TextRelease) -> &'static str {
        match (self, release) {
            (Self::Bandwidth, _) => BANDWIDTH,
            (Self::TcpWrite, TextRelease::V22) => {
                "[ ID] Interval            Transfer    Bandwidth       Write/Err  Rtry     InF(pkts)/Cwnd(pkts)/RTT(var)        NetPwr"
            }
            (Self::TcpWrite, TextRelease::V20) => {
                "[ ID] Interval        Transfer    Bandwidth       Write/Err  Rtry     Cwnd/RTT        NetPwr"
            }
            (Self::TcpWrite, TextRelease::V21) => {
                "[ ID] Interval            Transfer    Bandwidth       Write/Err  Rtry     Cwnd/RTT(var)        NetPwr"
            }
            (Self::TcpRead, _) => READS,
            (Self::TcpReadTimes, _) => {
                "[ ID] Interval            Transfer    Bandwidth    Burst Latency avg/min/max/stdev (cnt/size) inP NetPwr  Reads=Dist"
            }
            (Self::UdpWrite, TextRelease::V22) => {
                "[ ID] Interval            Transfer     Bandwidth      Write/Err/Timeo  PPS"
            }
            (Self::UdpWrite, _) => PPS,
            (Self::UdpRead, _) => "[ ID] Interval       Transfer     Bandwidth        Jitter   Lost/Total Datagrams",
            (Self::UdpReadTimes, _) => {
                "[ ID] Interval            Transfer     Bandwidth        Jitter   Lost/Total  Latency avg/min/max/stdev PPS  Rx/inP  NetPwr"
            }
        }
    }

    pub(super) const fn sum_header(self, release: TextRelease) -> &'static str {
        match self {
            Self::UdpRead => BANDWIDTH,
            Self::UdpReadTimes => PPS,
            Self::TcpReadTimes => READS,
            other => other.header(release),
        }
    }
}

/// Formats a time in milliseconds with three places.
fn millis(time: Option<Nanos>) -> String {
    format!("{:.3}", time.map_or(0.0, |time| time.as_secs_f64() * 1e3))
}

/// Throughput over delay, in millions of bytes per square second (`NETPOWERCONSTANT`).
fn net_power(per_sec: f64, delay: Option<Nanos>) -> String {
    let Some(delay) = delay.filter(|delay| *delay > Nanos::ZERO) else { return "NAN".to_owned() };
    match 1e-6 * per_sec / delay.as_secs_f64() {
        power if power > 100.0 => format!("{power:.0}"),
        power if power > 10.0 => format!("{power:.2}"),
        power => format!("{power:.6}"),
    }
}

impl Row {
    pub(super) fn of_report(report: &ServerReport) -> Self {
        let counts = FlowCounts {
            bytes: report.bytes,
            datagrams: report.datagrams,
            received: report.datagrams.saturating_sub(report.lost),
            reordered: report.reordered,
            jitter: report.jitter,
            transit: report.transit,
            ..FlowCounts::default()
        };
        Self { start: Nanos::ZERO, end: report.span, counts }
    }

    fn span(&self) -> Nanos {
        self.end - self.start
    }

    /// A count per second; 0 over no time, where iperf shows 0 too.
    fn per_sec(&self, n: u64) -> f64 {
        if self.span() == Nanos::ZERO { 0.0 } else { approximate(n) / self.span().as_secs_f64() }
    }

    /// The interval, the volume and the rate, with which every row begins.
    fn base(&self, style: &DisplayStyle) -> String {
        let (start, end) = (self.start.as_secs_f64(), self.end.as_secs_f64());
        let span = match style.release {
            TextRelease::V20 => format!("{start:4.1}-{end:4.1}"),
            _ => format!("{start:4.4}-{end:4.4}"),
        };
        let (volume, rate) =
            (style.format.volume(self.counts.bytes), style.format.rate(self.counts.bytes, self.span()));
        format!("{span} sec  {volume}s  {rate}s/sec")
    }

    fn loss(&self, style: &DisplayStyle) -> String {
        let (lost, all) = (self.counts.lost(), self.counts.datagrams);
        let percent = units::two_digits(ratio(lost, all).map_or(0.0, |share| share * 100.0));
        match style.release {
            TextRelease::V20 => format!("{lost:4}/{all:5} ({percent}%)"),
            _ => format!("{lost}/{all} ({percent}%)"),
        }
    }

    fn reads(&self) -> String {
        let bins: Vec<String> = self.counts.read_bins.iter().map(u64::to_string).collect();
        format!("{}={}", self.counts.calls, bins.join(":"))
    }

    fn writes(&self) -> String {
        format!("{}/{}", self.counts.calls, self.counts.errors)
    }

    /// Returns the text behind the number of the flow.
    pub(super) fn text(&self, kind: RowKind, style: &DisplayStyle) -> String {
        let base = self.base(style);
        let jitter = self.counts.jitter.as_secs_f64() * 1e3;
        match kind {
            RowKind::Bandwidth => base,
            RowKind::TcpWrite => format!("{base}  {}", self.tcp_write(style)),
            RowKind::TcpRead => format!("{base}  {}", self.reads()),
            RowKind::TcpReadTimes => format!("{base}  {}  {}", self.burst_times(), self.reads()),
            RowKind::UdpWrite => {
                let pps = self.per_sec(self.counts.datagrams);
                match style.release {
                    TextRelease::V22 => format!("{base}  {}/0{pps:8.0} pps", self.writes()),
                    _ => format!("{base}  {} {pps:8.0} pps", self.writes()),
                }
            }
            RowKind::UdpRead => format!("{base}  {jitter:6.3} ms {}", self.loss(style)),
            RowKind::UdpReadTimes => {
                format!("{base}  {jitter:6.3} ms {} {}", self.loss(style), self.datagram_times(style))
            }
        }
    }

    fn tcp_write(&self, style: &DisplayStyle) -> String {
        let tcp = self.counts.tcp.unwrap_or_default();
        let (cwnd, rtt, var) = (tcp.cwnd.0 / 1024, tcp.rtt.0 / 1000, tcp.rttvar.0 / 1000);
        let power = net_power(self.per_sec(self.counts.bytes), Some(tcp.rtt));
        let (writes, again) = (self.writes(), tcp.retransmits);
        match style.release {
            TextRelease::V20 => format!("{writes} {again:10} {cwnd:8}K/{rtt} us  {power}"),
            TextRelease::V21 => format!("{writes} {again:10} {cwnd:8}K/{rtt}({var}) us  {power}"),
            TextRelease::V22 => {
                let mss = tcp.mss.0.max(1);
                let (in_flight, packets) = (u64::from(tcp.in_flight) * mss / 1024, tcp.in_flight);
                let window = tcp.cwnd.0 / mss;
                format!("{writes}{again:10} {in_flight:8}K({packets})/{cwnd}K({window})/{rtt}({var}) us  {power}")
            }
        }
    }

    fn burst_times(&self) -> String {
        let times = self.counts.transit.unwrap_or_default();
        let size = self.counts.bytes.checked_div(times.n).unwrap_or(0);
        let mean = times.mean();
        // Little's law: what is on its way is the rate times the delay.
        let delay = mean.map_or(0.0, Nanos::as_secs_f64);
        let queued = units::buffer(rounded(self.per_sec(self.counts.bytes) * delay));
        format!(
            "{} ms ({}/{size}) {queued} {}",
            spread(&times),
            times.n,
            net_power(self.per_sec(self.counts.bytes), mean)
        )
    }

    fn datagram_times(&self, style: &DisplayStyle) -> String {
        let times = self.counts.transit.unwrap_or_default();
        let pps = self.per_sec(self.counts.datagrams);
        let power = net_power(self.per_sec(self.counts.bytes), times.mean());
        if style.release == TextRelease::V20 {
            return format!("{} ms {pps:4.0} pps  {power}", spread(&times));
        }
        let on_the_way = |time: Option<Nanos>| time.map_or(0, |time| rounded(pps * time.as_secs_f64()));
        let (queued, varies) = (on_the_way(times.mean()), on_the_way(times.deviation()));
        format!("{} ms {pps:.0} pps {}/{queued}({varies}) pkts {power}", spread(&times), self.counts.received)
    }

    /// Returns the text of a sum behind its name.
    pub(super) fn sum_text(&self, kind: RowKind, style: &DisplayStyle) -> String {
        let base = self.base(style);
        match kind {
            RowKind::Bandwidth => base,
            RowKind::TcpWrite => {
                let again = self.counts.tcp.map_or(0, |tcp| tcp.retransmits);
                format!("{base}  {}{again:10}", self.writes())
            }
            RowKind::TcpRead | RowKind::TcpReadTimes => format!("{base}  {}", self.reads()),
            RowKind::UdpWrite => {
                format!("{base}  {} {:8.0} pps", self.writes(), self.per_sec(self.counts.datagrams))
            }
            RowKind::UdpRead => format!("{base}   {}", self.loss(style)),
            RowKind::UdpReadTimes => {
                let (lost, all) = (self.counts.lost(), self.counts.datagrams);
                format!("{base}  {lost}/{all} {:8.0} pps", self.per_sec(all))
            }
        }
    }

    /// Returns the line on datagrams out of order, if there were any.
    pub(super) fn reordered(&self, id: &str, style: &DisplayStyle) -> Option<String> {
        let n = self.counts.reordered;
        let (start, end) = (self.start.as_secs_f64(), self.end.as_secs_f64());
        (n > 0).then(|| match style.release {
            TextRelease::V20 => format!("{id}{start:4.1}-{end:4.1} sec  {n} datagrams received out-of-order"),
            _ => format!("{id}{start:4.4}-{end:4.4} sec  {n} datagrams received out-of-order"),
        })
    }

    /// Returns the row as comma-separated values; the client's address comes first.
    pub(super) fn csv(&self, flow: &FlowInfo, style: &DisplayStyle) -> String {
        let (client, server) = match style.side {
            ReportSide::Client => (flow.local, flow.remote),
            ReportSide::Server => (flow.remote, flow.local),
        };
        let bits = rounded(self.per_sec(self.counts.bytes) * 8.0);
        let base = format!(
            "{},{},{},{},{},{},{:.1}-{:.1},{},{bits}",
            wall_text(clock::wall(), "%Y%m%d%H%M%S"),
            client.ip(),
            client.port(),
            server.ip(),
            server.port(),
            flow.id,
            self.start.as_secs_f64(),
            self.end.as_secs_f64(),
            self.counts.bytes
        );
        if flow.protocol == TransportProtocol::Tcp {
            return base;
        }
        let is_sender = flow.role == fathom_interop::iperf2::FlowRole::Sender;
        let (lost, all) = (if is_sender { 0 } else { self.counts.lost() }, self.counts.datagrams);
        let percent = ratio(lost, all).map_or(0.0, |share| share * 100.0);
        let jitter = self.counts.jitter.as_secs_f64() * 1e3;
        format!("{base},{jitter:.3},{lost},{all},{percent:.3},{}", self.counts.reordered)
    }
}

/// Mean, extremes and standard deviation in milliseconds.
fn spread(times: &TransitTimes) -> String {
    let extremes = [Some(times.min), Some(times.max)].map(|time| time.filter(|_| times.n > 1));
    [times.mean(), extremes[0], extremes[1], times.deviation()].map(millis).join("/")
}
