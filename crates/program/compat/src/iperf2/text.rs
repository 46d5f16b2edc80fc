//! iperf's text: one line for each flow, interval, end and report.

mod rows;
mod style;
mod sums;

use std::{collections::BTreeSet, fmt::Write as _};

use super::options::TextRelease;
use fathom_interop::iperf2::{
    FlowInfo, FlowInterval, FlowOutcome, FlowRole, ServerReport, TestMode, TransportProtocol,
};
use fathom_model::units::Nanos;
use rows::{Row, RowKind};
use style::wall_text;
pub(super) use style::{DisplayStyle, ReportSide};
use sums::GroupSums;

/// The text of all flows of a process.
#[derive(Debug)]
pub(super) struct TextReport {
    style: DisplayStyle,
    /// The headers that were printed since the last flow was opened.
    printed: BTreeSet<&'static str>,
    sums: GroupSums,
    /// The connect times of this client's flows, in milliseconds.
    connect_ms: Vec<f64>,
}

impl TextReport {
    pub(super) fn new(style: DisplayStyle) -> Self {
        Self { style, printed: BTreeSet::new(), sums: GroupSums::default(), connect_ms: Vec::new() }
    }

    /// Whether reports of a flow have more columns.
    fn is_enhanced(&self, flow: &FlowInfo) -> bool {
        self.style.is_enhanced || (self.style.side == ReportSide::Server && flow.has_trip_times)
    }

    /// The displayed number. Releases before 2.1 show the descriptor, which begins with 3.
    fn number(&self, flow: &FlowInfo) -> u32 {
        if self.style.release == TextRelease::V20 { flow.id + 2 } else { flow.id }
    }

    /// The beginning of a row. An asterisk marks what runs against the direction of the test.
    fn row_id(&self, flow: &FlowInfo) -> String {
        let is_legacy_back = flow.is_back && matches!(flow.mode, TestMode::Dual | TestMode::Tradeoff);
        let is_marked = match self.style.side {
            ReportSide::Client => flow.is_back && flow.mode == TestMode::Reverse,
            ReportSide::Server => is_legacy_back,
        };
        let number = self.number(flow);
        match (is_marked && self.style.release != TextRelease::V20, number) {
            (false, _) => format!("[{number:3}] "),
            (true, ..10) => format!("[ *{number}] "),
            (true, _) => format!("[*{number}] "),
        }
    }

    /// Returns the line of a new flow.
    pub(super) fn flow(&mut self, flow: &FlowInfo) -> Vec<String> {
        self.printed.clear();
        self.sums.open(flow);
        self.connect_ms.extend(flow.facts.and_then(|facts| facts.connect_time).map(|time| time.as_secs_f64() * 1e3));
        if self.style.is_csv || self.style.is_sum_only {
            return Vec::new();
        }
        let is_client_reverse = self.style.side == ReportSide::Client && flow.mode == TestMode::Reverse;
        let id = if is_client_reverse { format!("[{:3}] ", self.number(flow)) } else { self.row_id(flow) };
        let device = if self.is_enhanced(flow) && self.style.release != TextRelease::V20 {
            super::device::towards(flow.remote.ip()).map(|name| format!("%{name}")).unwrap_or_default()
        } else {
            String::new()
        };
        let (local, remote) = (flow.local, flow.remote);
        vec![format!(
            "{id}local {}{device} port {} connected with {} port {}{}",
            local.ip(),
            local.port(),
            remote.ip(),
            remote.port(),
            self.flow_extras(flow)
        )]
    }

    /// What stands behind the addresses of a new flow.
    fn flow_extras(&self, flow: &FlowInfo) -> String {
        if self.style.release == TextRelease::V20 {
            return String::new();
        }
        let is_server = self.style.side == ReportSide::Server;
        let is_enhanced = self.is_enhanced(flow);
        let is_reverse = flow.mode == TestMode::Reverse || (is_server && flow.is_back);
        // A flow that this client's own listener took is shown with its addresses only.
        let is_answer = !is_server && flow.is_back && flow.mode == TestMode::Forward;
        let mut extras = String::new();
        if is_reverse {
            extras.push_str(" (reverse)");
        }
        if is_server && flow.mode == TestMode::Reverse && flow.protocol == TransportProtocol::Udp {
            extras.push_str(" (no-udp-fin)");
        }
        if flow.has_trip_times {
            extras.push_str(" (trip-times)");
        }
        if is_enhanced {
            // Writing to a string cannot fail.
            let _ = write!(extras, " (sock={})", flow.id + 2);
        }
        if flow.tos > 0 {
            let way = if flow.mode == TestMode::Reverse { "tx" } else { "rx" };
            let _ = write!(extras, " (tos {way}=0x{:x})", flow.tos);
        }
        if is_enhanced && is_server {
            extras.push_str(&peer_version(flow.peer_version));
        }
        if let Some(facts) = flow.facts.filter(|_| !is_answer) {
            let (cwnd, mss, rtt) = (facts.cwnd.0 / 1024, facts.mss.0, facts.rtt.0 / 1000);
            let _ = write!(extras, " (icwnd/mss/irtt={cwnd}/{mss}/{rtt})");
            if let Some(time) = facts.connect_time.filter(|_| is_enhanced) {
                let _ = write!(extras, " (ct={:4.2} ms)", time.as_secs_f64() * 1e3);
            }
        }
        if is_enhanced && !(is_server && is_reverse) {
            extras.push_str(&wall_text(flow.began, " on %Y-%m-%d %H:%M:%S (%Z)"));
        }
        extras
    }

    fn kind(&self, flow: &FlowInfo) -> RowKind {
        let is_enhanced = self.is_enhanced(flow);
        match (flow.protocol, flow.role, is_enhanced) {
            (TransportProtocol::Tcp, FlowRole::Sender, true) => RowKind::TcpWrite,
            (TransportProtocol::Tcp, FlowRole::Receiver, true) if flow.has_trip_times => RowKind::TcpReadTimes,
            (TransportProtocol::Tcp, FlowRole::Receiver, true) => RowKind::TcpRead,
            (TransportProtocol::Udp, FlowRole::Sender, true) => RowKind::UdpWrite,
            (TransportProtocol::Udp, FlowRole::Receiver, true) => RowKind::UdpReadTimes,
            (TransportProtocol::Udp, FlowRole::Receiver, false) => RowKind::UdpRead,
            (TransportProtocol::Tcp, _, false) | (TransportProtocol::Udp, FlowRole::Sender, false) => {
                RowKind::Bandwidth
            }
        }
    }

    /// Returns a header, unless it was printed since the last flow was opened.
    fn header(&mut self, header: &'static str) -> Option<String> {
        self.printed.insert(header).then(|| header.to_owned())
    }

    fn rows(&mut self, flow: &FlowInfo, row: &Row) -> Vec<String> {
        if self.style.is_csv {
            return vec![row.csv(flow, &self.style)];
        }
        if self.style.is_sum_only && flow.group.n_flows > 1 {
            return Vec::new();
        }
        let kind = self.kind(flow);
        let id = self.row_id(flow);
        let mut lines: Vec<String> = self.header(kind.header(self.style.release)).into_iter().collect();
        lines.push(format!("{id}{}", row.text(kind, &self.style)));
        lines.extend(row.reordered(&id, &self.style));
        lines
    }

    /// Returns the lines of an interval.
    pub(super) fn interval(&mut self, flow: &FlowInfo, interval: &FlowInterval) -> Vec<String> {
        let row = Row { start: interval.start, end: interval.end, counts: interval.counts };
        let mut lines = self.rows(flow, &row);
        let sums = self.sums.interval(flow, interval);
        lines.extend(sums.into_iter().flat_map(|sum| self.sum(flow, &sum)));
        lines
    }

    /// Returns the lines of a flow that has ended.
    pub(super) fn end(&mut self, flow: &FlowInfo, outcome: &FlowOutcome) -> Vec<String> {
        let row = Row { start: Nanos::ZERO, end: outcome.span, counts: outcome.counts };
        let mut lines = self.rows(flow, &row);
        let is_udp_sender = flow.protocol == TransportProtocol::Udp && flow.role == FlowRole::Sender;
        let shows_flows = !(self.style.is_csv || self.style.is_sum_only && flow.group.n_flows > 1);
        if is_udp_sender && shows_flows {
            lines.push(format!("[{:3}] Sent {} datagrams", self.number(flow), row.counts.datagrams));
        }
        let (sums, is_group_over) = self.sums.end(flow, outcome);
        let total = sums.last().copied();
        lines.extend(sums.into_iter().flat_map(|sum| self.sum(flow, &sum)));
        if let Some(total) = total.filter(|_| is_udp_sender && is_group_over && !self.style.is_csv) {
            lines.push(match self.style.release {
                TextRelease::V20 => format!("[SUM] Sent {} datagrams", total.counts.datagrams),
                _ => format!("[SUM-{}] Sent {} datagrams", flow.group.n_flows, total.counts.datagrams),
            });
        }
        if is_group_over {
            lines.extend(self.connect_times());
        }
        lines
    }

    /// The connect times of several flows, which `-e` shows at the end.
    fn connect_times(&mut self) -> Option<String> {
        let times = std::mem::take(&mut self.connect_ms);
        if !self.style.is_enhanced || self.style.is_csv || times.len() < 2 || self.style.release == TextRelease::V20 {
            return None;
        }
        let n = fathom_model::units::approximate(times.len() as u64);
        let mean = times.iter().sum::<f64>() / n;
        let deviation = (times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let (min, max) = times.iter().fold((f64::MAX, 0.0_f64), |(min, max), time| (min.min(*time), max.max(*time)));
        Some(format!(
            "[ CT] final connect times (min/avg/max/stdev) = {min:.3}/{mean:.3}/{max:.3}/{deviation:.3} ms (tot/err) = {}/0",
            times.len()
        ))
    }

    /// Returns the lines of a sum over parallel flows.
    fn sum(&mut self, flow: &FlowInfo, sum: &Row) -> Vec<String> {
        if self.style.is_csv {
            return Vec::new();
        }
        let kind = self.kind(flow);
        let mut lines: Vec<String> = self.header(kind.sum_header(self.style.release)).into_iter().collect();
        lines.push(format!("[SUM] {}", sum.sum_text(kind, &self.style)));
        lines.extend(sum.reordered("[SUM] ", &self.style));
        lines
    }

    /// Returns the lines of a server's report.
    pub(super) fn server_report(&mut self, flow: &FlowInfo, report: &ServerReport) -> Vec<String> {
        if self.style.is_csv || self.style.is_sum_only {
            return Vec::new();
        }
        let row = Row::of_report(report);
        let kind = if report.transit.is_some() { RowKind::UdpReadTimes } else { RowKind::UdpRead };
        let id = self.row_id(flow);
        let mut lines = vec![format!("[{:3}] Server Report:", self.number(flow))];
        if self.style.release != TextRelease::V20 {
            lines.extend(self.header(kind.header(self.style.release)));
        }
        lines.push(format!("{id}{}", row.text(kind, &self.style)));
        lines.extend(row.reordered(&id, &self.style));
        lines
    }
}

/// Formats the version of the other side as iperf does; the last half-byte of a release is 3.
fn peer_version((upper, lower): (u32, u32)) -> String {
    if upper == 0 || lower == 0 {
        return String::new();
    }
    let suffix = match lower & 0xf {
        0 => "-dev",
        1 => "-rc",
        2 => "-rc2",
        3 => "",
        4 => "-private",
        5 => "-master",
        _ => "-unk",
    };
    format!(" (peer {}.{}.{}{suffix})", upper >> 16, upper & 0xffff, lower >> 16)
}

#[cfg(test)]
mod tests;
