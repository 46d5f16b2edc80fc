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

#[derive(Debug, Default)]
struct GroupSum {
    n_flows: u32,
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
        self.0.entry(key(flow)).or_default().n_flows = flow.group.n_flows;
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
        let is_over = group.n_ended >= group.n_flows;
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
    /// Returns the intervals that at least so many flows have reported, in their order.
    fn complete(&mut self, n_needed: u32) -> Vec<Row> {
        let mut sums = Vec::new();
        while let Some(first) = self.intervals.first_entry().filter(|first| first.get().n >= n_needed) {
            sums.extend(first.remove().row);
        }
        sums
    }
}
