//! Sums over parallel flows: of each interval once all flows have reported it, and of the whole once all have ended.

use std::collections::BTreeMap;

use fathom_interop::iperf2::{FlowCounts, FlowInfo, FlowInterval, FlowOutcome, FlowRole};
use fathom_model::units::Nanos;

use super::rows::Row;

/// The flows that are summed: those of a group in one direction.
type SumKey = (u32, bool);

/// The sums of all groups that run.
#[derive(Debug, Default)]
pub(super) struct GroupSums(BTreeMap<SumKey, GroupSum>);

/// How long after the first flow of a group another one may come; a server puts a later one into another group.
const OPEN_MAX: Nanos = Nanos::from_secs(3);

#[derive(Debug, Default)]
struct GroupSum {
    n_flows: u32,
    /// When the first flow came, on the wall clock.
    began: Nanos,
    n_open: u32,
    n_ended: u32,
    /// By the end of the interval.
    intervals: BTreeMap<Nanos, PartialSum>,
    /// The last intervals, which end with their flows.
    last: PartialSum,
    total: PartialSum,
}

#[derive(Debug, Default, Clone, Copy)]
struct PartialSum {
    row: Option<Row>,
    n: u32,
}

impl PartialSum {
    fn add(&mut self, row: Row) {
        self.n += 1;
        self.row = Some(match self.row {
            None => row,
            Some(sum) => Row {
                start: sum.start.min(row.start),
                end: sum.end.max(row.end),
                counts: added(sum.counts, &row.counts),
            },
        });
    }
}

fn added(mut sum: FlowCounts, other: &FlowCounts) -> FlowCounts {
    sum.bytes += other.bytes;
    sum.calls += other.calls;
    sum.errors += other.errors;
    sum.datagrams += other.datagrams;
    sum.received += other.received;
    sum.reordered += other.reordered;
    sum.jitter = sum.jitter.max(other.jitter);
    sum.read_bins.iter_mut().zip(other.read_bins).for_each(|(bin, other)| *bin += other);
    if let (Some(tcp), Some(other)) = (&mut sum.tcp, other.tcp) {
        tcp.retransmits += other.retransmits;
    }
    sum
}

fn key(flow: &FlowInfo) -> SumKey {
    (flow.group.id, flow.role == FlowRole::Sender)
}

impl GroupSums {
    pub(super) fn open(&mut self, flow: &FlowInfo) {
        // Clients may open fewer flows than they say, and datagrams may be forged.
        self.0.retain(|_, group| !group.is_abandoned(flow.began));
        let group = self.0.entry(key(flow)).or_insert_with(|| GroupSum { began: flow.began, ..GroupSum::default() });
        group.n_flows = flow.group.n_flows;
        group.n_open += 1;
    }

    /// Takes an interval of a flow; returns the sums that are complete with it.
    pub(super) fn interval(&mut self, flow: &FlowInfo, interval: &FlowInterval) -> Vec<Row> {
        let Some(group) = self.0.get_mut(&key(flow)).filter(|group| group.n_flows > 1) else { return Vec::new() };
        let row = Row { start: interval.start, end: interval.end, counts: interval.counts };
        if interval.is_last {
            group.last.add(row);
            return Vec::new();
        }
        group.intervals.entry(interval.end).or_default().add(row);
        group.complete(group.n_flows.saturating_sub(group.n_ended))
    }

    /// Takes the end of a flow; returns the sums that are complete with it, and whether all flows of the group have ended.
    pub(super) fn end(&mut self, flow: &FlowInfo, outcome: &FlowOutcome) -> (Vec<Row>, bool) {
        let key = key(flow);
        let Some(group) = self.0.get_mut(&key) else { return (Vec::new(), false) };
        group.n_ended += 1;
        group.total.add(Row { start: Nanos::ZERO, end: outcome.span, counts: outcome.counts });
        let is_over = group.n_ended >= group.n_flows || group.is_abandoned(flow.began + outcome.span);
        if group.n_flows < 2 {
            self.0.remove(&key);
            return (Vec::new(), is_over);
        }
        let n_running = group.n_flows.saturating_sub(group.n_ended);
        let mut sums = if is_over { group.complete(0) } else { group.complete(n_running.max(1)) };
        if is_over {
            sums.extend(group.last.row.into_iter().chain(group.total.row));
            self.0.remove(&key);
        }
        (sums, is_over)
    }
}

impl GroupSum {
    /// Whether all flows that came have ended, and it is too late for another one.
    fn is_abandoned(&self, now: Nanos) -> bool {
        self.n_ended >= self.n_open && now - self.began >= OPEN_MAX
    }

    /// Returns the intervals that at least so many flows have reported, in their order.
    fn complete(&mut self, n_needed: u32) -> Vec<Row> {
        let mut sums = Vec::new();
        while let Some(first) = self.intervals.first_entry().filter(|first| first.get().n >= n_needed) {
            sums.extend(first.remove().row);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use fathom_interop::iperf2::{FlowGroup, TestMode, TransportProtocol};

    use super::*;

    fn flow(id: u32, group: u32, began_secs: u64) -> FlowInfo {
        FlowInfo {
            id,
            group: FlowGroup { id: group, n_flows: 4 },
            role: FlowRole::Receiver,
            protocol: TransportProtocol::Udp,
            mode: TestMode::Forward,
            is_back: false,
            local: "127.0.0.1:5001".parse().unwrap(),
            remote: "127.0.0.1:6200".parse().unwrap(),
            has_trip_times: false,
            length: 1470,
            tos: 0,
            peer_version: (0, 0),
            facts: None,
            began: Nanos::from_secs(began_secs),
        }
    }

    fn outcome(bytes: u64) -> FlowOutcome {
        FlowOutcome { span: Nanos::from_secs(10), counts: FlowCounts { bytes, ..FlowCounts::default() } }
    }

    #[test]
    fn a_group_of_which_a_flow_never_came_ends_with_the_others() {
        let mut sums = GroupSums::default();
        let flows: Vec<FlowInfo> = (1..=3).map(|id| flow(id, 1, 100)).collect();
        for flow in &flows {
            sums.open(flow);
        }
        let ends: Vec<(Vec<Row>, bool)> = flows.iter().map(|flow| sums.end(flow, &outcome(5))).collect();
        assert_eq!(ends.iter().map(|(_, is_over)| *is_over).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(ends[2].0.last().map(|row| row.counts.bytes), Some(15));
        assert!(sums.0.is_empty());
    }

    #[test]
    fn forged_flows_do_not_add_groups_without_end() {
        let mut sums = GroupSums::default();
        for n in 0..1000 {
            let flow = flow(n, n, 100 + u64::from(n));
            sums.open(&flow);
            sums.end(&flow, &FlowOutcome { span: Nanos::ZERO, ..outcome(0) });
        }
        assert!(sums.0.len() <= 4, "{}", sums.0.len());
    }
}
