//! Finds the bottleneck of each connection of a stream from the kernel's statistics over time.
//!
//! The kernel assigns a sender's time to one cause at a time (`tcp_chrono` of the kernel): nothing to send, the peer's window,
//! the send buffer, or the network. It does not consider the CPU, so the hosts' cores are checked as well. The thresholds and
//! their reasons are in `docs/methods/restraints.md`.

use std::collections::BTreeMap;

use fathom_model::{
    Bottleneck, FlowSummary, Record, Run, SenderTime, TestRun, Trial,
    names::{count, tcp},
    record::{Flow, FlowSample},
    units::{Nanos, approximate, ratio},
};
use fathom_statistics::median;

use crate::{
    context::AnalysisContext,
    cores::CoreLoad,
    evidence::TestEvidence,
    flat::UsualRate,
    window::{flow_samples, host_of, measured_part},
};

/// A sender that waits for one thing for at least this share of the time is held back by it.
const HOLDS_BACK: f64 = 0.2;
/// From this share of retransmitted or marked bytes on, congestion control keeps the window small.
const LOSSY: f64 = 1e-3;
/// If the round trip takes this many times the shortest one, the path has a queue.
const QUEUED: f64 = 2.0;
/// A queue of so much time, and of more than this part of the round trip, stands on the path. A sender keeps up to 1 ms of data in its own queues
/// and its device (`tcp_small_queue_check` of `net/ipv4/tcp_output.c`), which tells nothing about the path.
pub(crate) const QUEUE_MIN: Nanos = Nanos::from_millis(1);
pub(crate) const QUEUE_PART: f64 = 0.2;
/// The kernel's default of `tcp_rmem`: least, usual, most.
pub(crate) const RMEM_USUAL: [u64; 3] = [4096, 131_072, 6 << 20];
/// A buffer that is smaller than a quarter of the usual one is filled by any path.
const WIDE: u64 = RMEM_USUAL[1] / 4;
/// One sample in so many with a window that shrank is that of a receiver that reads late.
pub(crate) const SHRINKS: usize = 4;
/// A queue of so much time is not that of the sender alone, however long the path is.
const SHORT_QUEUE: Nanos = Nanos::from_millis(2);
/// A sender that waits for a buffer for less than this share of the time is not bound by it.
pub(crate) const HARDLY: f64 = 0.05;
/// A full path carries one rate. Half of the intervals of streams through a shaper differed from their median by 1.5 % at most; of streams that lost
/// at random, by 2.3 % at least (eight of each, one and three connections).
const FLAT: f64 = 0.02;
/// A rate of at least this share of the requested bound counts as at the bound.
const AT_BOUND: f64 = 0.9;
/// Connections watched for less than this are ignored, because the kernel counts in ticks of 1 to 10 ms.
const SPAN_MIN: Nanos = Nanos::from_millis(100);

/// Returns the bottleneck of each connection of a stream, from the last round that sampled any connection.
pub(crate) fn flows(run: &Run, test: &TestRun, context: &AnalysisContext) -> Vec<FlowSummary> {
    let seen = TestEvidence::new(run, test, context);
    let Some(trial) = judged_trial(test) else { return Vec::new() };
    let mut all = Vec::new();
    for (key, record) in trial.records.iter().filter(|(_, record)| is_stream(record)) {
        let sender = host_of(key);
        let receiver = trial.records.keys().map(|key| host_of(key)).find(|host| *host != sender);
        let is_full = |host: &str| seen.cores(host).first().is_some_and(CoreLoad::is_full_of_own_work);
        let full = match (is_full(sender), receiver.is_some_and(is_full)) {
            (true, true) if seen.is_one_machine() => Some(Bottleneck::SharedCpu),
            (true, _) => Some(Bottleneck::SenderCpu),
            (false, true) => Some(Bottleneck::ReceiverCpu),
            (false, false) => None,
        };
        // Segments wait for the core too, and a long round trip shows no queue of the path then.
        let waits_for_core = |host: &str| seen.waits_for_core(host);
        let has_cores = full.is_none() && !waits_for_core(sender) && !receiver.is_some_and(waits_for_core);
        // A path of memory with no device on it passes what the cores give, and is as even as they are.
        let is_of_cores = seen.is_between_cores(sender);
        let arrives_evenly = full.is_none()
            && !is_of_cores
            && receiver.and_then(|host| UsualRate::received(&seen, host)).is_some_and(UsualRate::is_that_of_full_path);
        let goes_evenly = has_cores && is_flat(&seen);
        let cores = match full {
            Some(who) => CoreState::Full(who),
            None if has_cores => CoreState::Free,
            None => CoreState::Awaited,
        };
        let stream = StreamFacts { cores, goes_evenly, arrives_evenly, is_of_cores };
        let span = measured_part(trial, &run.hosts, sender, record);
        all.extend(record.flows.iter().filter_map(|flow| summary(sender, flow, span, stream)));
    }
    all
}

/// Returns the round whose connections are judged.
fn judged_trial(test: &TestRun) -> Option<&Trial> {
    let has_flows = |trial: &&Trial| trial.records.values().any(|record| is_stream(record) && !record.flows.is_empty());
    test.trials.iter().rev().find(has_flows)
}

/// Returns the samples by which a connection was judged: those of the measured part of its round.
pub(crate) fn judged_samples<'a>(seen: &TestEvidence<'a>, summary: &FlowSummary) -> Option<&'a [FlowSample]> {
    let trial = judged_trial(seen.test)?;
    trial.records.iter().find_map(|(key, record)| {
        let flow = record.flows.iter().find(|flow| flow.id == summary.id)?;
        Some(flow_samples(flow, measured_part(trial, &seen.run.hosts, host_of(key), record)))
    })
}

/// Returns true if segments usually find a queue before them: it fills the path.
pub(crate) fn has_standing_queue(samples: &[FlowSample]) -> bool {
    usual_queue(samples)
        .is_some_and(|(queued, usual)| queued >= approximate(QUEUE_MIN.0) && queued > QUEUE_PART * usual)
}

/// Returns true if segments usually spend most of their time in such a queue: a larger window or buffer only makes it longer.
///
/// A receiver that reads late also acknowledges late what fills its window. What waits in a queue of the path leaves the window open.
pub(crate) fn is_mostly_queue(samples: &[FlowSample]) -> bool {
    let (n_shrunk, n_all) = shrunk_windows(samples);
    let reads_late = n_shrunk > 0 && SHRINKS * n_shrunk >= n_all;
    !reads_late
        && usual_queue(samples)
            .is_some_and(|(queued, usual)| queued >= approximate(QUEUE_MIN.0) && QUEUED * queued > usual)
}

/// Returns the samples with a wide window that shrank to half of what it had been, and those with a window.
///
/// A window that is only small stays as it is, and one that the kernel enlarges grows.
pub(crate) fn shrunk_windows(samples: &[FlowSample]) -> (usize, usize) {
    let (mut n_shrunk, mut n_all, mut widest) = (0, 0, 0);
    for window in samples.iter().filter_map(|sample| sample.values.get(tcp::SND_WND_BYTES)) {
        widest = widest.max(*window);
        n_all += 1;
        n_shrunk += usize::from(widest >= WIDE && *window <= widest / 2);
    }
    (n_shrunk, n_all)
}

/// Returns the time that segments usually spend in queues, and their usual round trip, in ns.
fn usual_queue(samples: &[FlowSample]) -> Option<(f64, f64)> {
    let times = samples.iter().filter_map(|sample| sample.values.get(tcp::RTT_NS));
    let usual = median(&times.map(|time| approximate(*time)).collect::<Vec<_>>())?;
    let least = least_round_trip(samples)?;
    Some((usual - approximate(least), usual))
}

/// Returns the shortest round trip, in ns. The kernel forgets one after five minutes (`tcp_min_rtt_wlen`), in which a queue may never have been empty.
pub(crate) fn least_round_trip(samples: &[FlowSample]) -> Option<u64> {
    samples.iter().filter_map(|sample| sample.values.get(tcp::RTT_MIN_NS).copied()).min()
}

/// Returns true if a side sent a stream, maybe to a server of another tool. Transactions are excluded because they always wait for answers.
fn is_stream(record: &Record) -> bool {
    let counts = |name| record.totals.contains_key(name);
    (counts(count::BYTES_SENT) || counts(count::BYTES_MOVED)) && !counts(count::TRANSACTIONS)
}

/// Returns true if the rate of a stream hardly varies.
fn is_flat(seen: &TestEvidence<'_>) -> bool {
    let Some((trials, _)) = seen.rates_over_time() else { return false };
    let rates: Vec<f64> = trials.into_iter().flatten().collect();
    UsualRate::of(&rates).is_some_and(|usual| usual.deviation <= FLAT)
}

/// What the cores of both ends had for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CoreState {
    /// Those of this side had no idle time left.
    Full(Bottleneck),
    /// Threads waited for one.
    Awaited,
    /// Time: a long round trip is that of the path.
    Free,
}

/// The facts about all connections of a stream.
#[derive(Debug, Clone, Copy)]
struct StreamFacts {
    cores: CoreState,
    /// Whether the stream had all the cores that it could use, and still went at one rate.
    goes_evenly: bool,
    /// Whether the interface of its receiver got as many bytes at any time, and no core was full. Data that waits behind a lost segment does not
    /// show there, and threads that wait for a core make a rate vary.
    arrives_evenly: bool,
    /// Whether the cores of one machine are all that is between the hosts: the round trip is that of their queues.
    is_of_cores: bool,
}

/// Summarizes a connection that was watched and sent data.
fn summary(sender: &str, flow: &Flow, span: (Nanos, Nanos), stream: StreamFacts) -> Option<FlowSummary> {
    let all = flow_samples(flow, span);
    let measured = MeasuredSamples { first: all.first()?, last: all.last()?, all };
    let span = measured.last.at_ns - measured.first.at_ns;
    // A connection that received more than it sent belongs to the other direction.
    let sends = measured.growth(tcp::BYTES_ACKED) > measured.growth(tcp::BYTES_RECEIVED);
    if span < SPAN_MIN || !sends {
        return None;
    }
    let waits = measured.wait_times(span);
    Some(FlowSummary {
        id: flow.id.clone(),
        sender: sender.to_owned(),
        acknowledged_bps: approximate(measured.growth(tcp::BYTES_ACKED)) * 8.0 / span.as_secs_f64(),
        waits,
        held_by: measured.bottleneck(waits, stream),
    })
}

/// The samples of a connection in the measured part.
struct MeasuredSamples<'a> {
    first: &'a FlowSample,
    last: &'a FlowSample,
    all: &'a [FlowSample],
}

impl MeasuredSamples<'_> {
    fn growth(&self, name: &str) -> u64 {
        let value = |values: &BTreeMap<String, u64>| values.get(name).copied().unwrap_or(0);
        value(&self.last.values).saturating_sub(value(&self.first.values))
    }

    fn last_value(&self, name: &str) -> Option<u64> {
        self.last.values.get(name).copied()
    }

    fn wait_times(&self, span: Nanos) -> SenderTime {
        let share = |part: u64| ratio(part, span.0).unwrap_or(0.0).min(1.0);
        let busy = share(self.growth(tcp::BUSY_NS));
        let receive_window = share(self.growth(tcp::RWND_LIMITED_NS));
        let send_buffer = share(self.growth(tcp::SNDBUF_LIMITED_NS));
        let network = (busy - receive_window - send_buffer).max(0.0);
        SenderTime { application: 1.0 - receive_window - send_buffer - network, receive_window, send_buffer, network }
    }

    /// Picks the bottleneck: first the requested bound, then a queue that overflows, then the buffers that the kernel names, then a full CPU, then
    /// the path.
    fn bottleneck(&self, waits: SenderTime, stream: StreamFacts) -> Bottleneck {
        let StreamFacts { cores, goes_evenly, arrives_evenly, is_of_cores } = stream;
        let full = if let CoreState::Full(who) = cores { Some(who) } else { None };
        if self.is_at_bound() {
            return Bottleneck::Pacing;
        }
        // What arrives behind a lost segment fills the window of the receiver, and is the work of the queue too.
        if self.loses() && (arrives_evenly || goes_evenly && has_standing_queue(self.all)) {
            return Bottleneck::Queue;
        }
        // So does a deep queue that loses nothing, which grows until a window or a buffer is full.
        let waits_for_room = waits.receive_window.max(waits.send_buffer) >= HOLDS_BACK;
        if waits_for_room && !is_of_cores && cores == CoreState::Free && is_mostly_queue(self.all) {
            return Bottleneck::Queue;
        }
        if waits.receive_window >= HOLDS_BACK {
            // A receiver without CPU time to read closes its window.
            return full.filter(|who| *who != Bottleneck::SenderCpu).unwrap_or(Bottleneck::ReceiveWindow);
        }
        if waits.send_buffer >= HOLDS_BACK {
            return Bottleneck::SendBuffer;
        }
        if let Some(full) = full {
            return full;
        }
        let is_queued = self.is_queued() && (!is_of_cores || has_standing_queue(self.all))
            || arrives_evenly && self.is_behind_short_queue(waits);
        match (waits.application >= HOLDS_BACK, self.is_lossy(), is_queued) {
            (true, ..) => Bottleneck::Application,
            (_, true, _) => Bottleneck::Loss,
            (_, _, true) => Bottleneck::Queue,
            _ => Bottleneck::CongestionWindow,
        }
    }

    /// Returns true if the kernel paces as requested and the connection reaches that rate.
    fn is_at_bound(&self) -> bool {
        let rate = self.last_value(tcp::DELIVERY_RATE_BPS).zip(self.last_value(tcp::PACING_MAX_BPS));
        rate.and_then(|(rate, bound)| ratio(rate, bound)).is_some_and(|share| share >= AT_BOUND)
    }

    fn is_lossy(&self) -> bool {
        let marked = ratio(self.growth(tcp::DELIVERED_CE), self.growth(tcp::SEGMENTS_OUT));
        self.loses() || marked.is_some_and(|share| share >= LOSSY)
    }

    fn loses(&self) -> bool {
        let resent = ratio(self.growth(tcp::BYTES_RETRANS), self.growth(tcp::BYTES_SENT));
        resent.is_some_and(|share| share >= LOSSY)
    }

    /// Returns true if segments wait in a queue that is short for a path so long, as BBR keeps it, and the sender hardly waits for a buffer, which
    /// would make its rate as even.
    fn is_behind_short_queue(&self, waits: SenderTime) -> bool {
        let waits_for_buffer = waits.send_buffer.max(waits.receive_window) >= HARDLY;
        let least = approximate(SHORT_QUEUE.0);
        !waits_for_buffer && usual_queue(self.all).is_some_and(|(queued, _)| queued >= least)
    }

    fn is_queued(&self) -> bool {
        let rtt = self.last_value(tcp::RTT_NS).zip(least_round_trip(self.all));
        rtt.and_then(|(rtt, least)| ratio(rtt, least)).is_some_and(|times| times >= QUEUED)
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::names::host::DEV_RX_BYTES;

    use super::*;
    use crate::run_builder::RunBuilder;

    /// A connection that sent 1 Gbit/s over the measured second, with these values at its end.
    fn flow(values: &[(&str, u64)]) -> Flow {
        let beside = [
            (tcp::BYTES_ACKED, 125_000_000),
            (tcp::BYTES_SENT, 125_000_000),
            (tcp::SEGMENTS_OUT, 90_000),
            (tcp::BUSY_NS, 1_000_000_000),
            (tcp::RTT_NS, 1_500_000),
            (tcp::RTT_MIN_NS, 1_000_000),
            (tcp::CWND_SEGMENTS, 100),
        ];
        let last = beside.iter().chain(values).map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let at = |ms: u64, values| FlowSample { at_ns: Nanos::from_millis(ms), values };
        Flow { id: "a:1 b:2".to_owned(), samples: vec![at(200, BTreeMap::new()), at(1200, last)] }
    }

    fn streaming(values: &[(&str, u64)]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[125_000_000]);
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows = vec![flow(values)];
        for host in ["client", "target"] {
            builder.cpu(host, "cpu0", [10, 20, 10, 0]);
        }
        builder
    }

    fn only(builder: &RunBuilder) -> FlowSummary {
        let [flow] = <[FlowSummary; 1]>::try_from(builder.analyzed().tests[0].flows.clone()).unwrap();
        flow
    }

    #[test]
    fn each_restraint_is_told_by_what_the_kernel_said() {
        let second = 1_000_000_000;
        let overflow = (tcp::BYTES_RETRANS, 500_000);
        let cases: [(&[(&str, u64)], Bottleneck); 10] = [
            (&[], Bottleneck::CongestionWindow),
            (&[(tcp::RWND_LIMITED_NS, second / 4)], Bottleneck::ReceiveWindow),
            (&[(tcp::SNDBUF_LIMITED_NS, second / 4)], Bottleneck::SendBuffer),
            (&[(tcp::BUSY_NS, second / 2)], Bottleneck::Application),
            (&[(tcp::BYTES_RETRANS, 500_000)], Bottleneck::Loss),
            (&[(tcp::DELIVERED_CE, 500)], Bottleneck::Loss),
            (&[(tcp::RTT_NS, 9_000_000)], Bottleneck::Queue),
            // Overflows of a queue that is never empty.
            (&[(tcp::RTT_NS, 9_000_000), overflow], Bottleneck::Queue),
            (&[(tcp::RTT_NS, 9_000_000), overflow, (tcp::RWND_LIMITED_NS, second / 4)], Bottleneck::Queue),
            (&[(tcp::DELIVERY_RATE_BPS, 990_000_000), (tcp::PACING_MAX_BPS, 1_000_000_000)], Bottleneck::Pacing),
        ];
        for (values, expected) in cases {
            assert_eq!(only(&streaming(values)).held_by, expected, "{values:?}");
        }
    }

    #[test]
    fn a_core_without_time_is_named_before_the_path_and_after_the_buffers() {
        let held_by = |host: &str, values: &[(&str, u64)]| {
            let mut builder = streaming(values);
            builder.cpu(host, "cpu0", [10, 80, 10, 0]);
            only(&builder).held_by
        };
        let closed: &[(&str, u64)] = &[(tcp::RWND_LIMITED_NS, 500_000_000)];
        assert_eq!(held_by("client", &[]), Bottleneck::SenderCpu);
        assert_eq!(held_by("target", &[]), Bottleneck::ReceiverCpu);
        assert_eq!(held_by("target", closed), Bottleneck::ReceiverCpu);
        assert_eq!(held_by("client", closed), Bottleneck::ReceiveWindow);
    }

    #[test]
    fn losses_of_segments_that_wait_for_a_core_are_no_overflows_of_a_queue() {
        let mut builder = streaming(&[(tcp::RTT_NS, 9_000_000), (tcp::BYTES_RETRANS, 500_000)]);
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.run_delay_ns = Some(Nanos::from_millis(100));
            record.cpu_ns_by_core.insert(String::new(), Nanos::from_millis(100));
        }
        assert_eq!(only(&builder).held_by, Bottleneck::Loss);
    }

    #[test]
    fn losses_of_a_stream_whose_rate_varies_are_not_those_of_a_full_path() {
        let mut builder = streaming(&[(tcp::RTT_NS, 9_000_000), (tcp::BYTES_RETRANS, 500_000)]);
        let record = builder.run.tests[0].trials[0].records.get_mut("target").unwrap();
        let column = record.timeline.counters.get_mut(count::BYTES_RECEIVED).unwrap();
        column.iter_mut().zip(0..).for_each(|(bytes, idx)| *bytes = *bytes * (95 + idx % 11) / 100);
        assert_eq!(only(&builder).held_by, Bottleneck::Loss);
    }

    #[test]
    fn a_long_path_whose_interface_receives_evenly_behind_a_short_queue_is_full() {
        let long = [(tcp::RTT_NS, 44_000_000), (tcp::RTT_MIN_NS, 40_000_000)];
        let held_by = |differs: u64, further: &[(&str, u64)]| receiving(&[&long[..], further].concat(), differs);
        assert_eq!(held_by(10_000, &[]), Bottleneck::Queue);
        assert_eq!(held_by(1_000_000, &[]), Bottleneck::CongestionWindow);
        let waits = (tcp::SNDBUF_LIMITED_NS, 100_000_000);
        assert_eq!(held_by(10_000, &[waits]), Bottleneck::CongestionWindow, "a buffer makes a rate as even");
        let no_queue = receiving(&[(tcp::RTT_NS, 40_500_000), (tcp::RTT_MIN_NS, 40_000_000)], 10_000);
        assert_eq!(no_queue, Bottleneck::CongestionWindow);
    }

    /// The bottleneck of a connection whose receiver's interface differs by so many bytes from one rate.
    fn receiving(values: &[(&str, u64)], differs: u64) -> Bottleneck {
        let mut builder = streaming(values);
        let host = builder.run.tests[0].trials[0].hosts.get_mut("target").unwrap();
        host.at_ns = (1..14).map(|tenth| Nanos::from_millis(10_000 + 100 * tenth)).collect();
        let values: Vec<u64> = (0..13).map(|n| n * 12_500_000 + n * n % 7 * differs).collect();
        builder.series("target", (DEV_RX_BYTES, "eth0"), &values);
        only(&builder).held_by
    }

    #[test]
    fn losses_before_an_interface_that_receives_evenly_are_overflows_of_a_queue_however_short() {
        let held_by = |differs: u64| receiving(&[(tcp::BYTES_RETRANS, 500_000)], differs);
        assert_eq!(held_by(10_000), Bottleneck::Queue);
        assert_eq!(held_by(1_000_000), Bottleneck::Loss);
    }

    #[test]
    fn a_path_of_memory_is_full_only_if_its_queue_is_longer_than_that_of_the_cores() {
        let held_by = |rtt: u64, is_memory: bool| {
            let mut builder = streaming(&[(tcp::RTT_NS, rtt), (tcp::RTT_MIN_NS, 3_000)]);
            builder.one_machine();
            builder.driver(if is_memory { "veth" } else { "ice" });
            only(&builder).held_by
        };
        assert_eq!(held_by(90_000, false), Bottleneck::Queue);
        assert_eq!(held_by(90_000, true), Bottleneck::CongestionWindow);
        assert_eq!(held_by(40_000_000, true), Bottleneck::Queue);
    }

    #[test]
    fn what_a_sender_does_after_the_measured_part_is_not_its_bottleneck() {
        let mut builder = streaming(&[]);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let measured = record.measured_ns;
        // Its record goes on until the last data has arrived, and this connection had none.
        record.measured_ns.1 = measured.1 + Nanos::from_secs(1);
        let flow = &mut record.flows[0];
        let idle = FlowSample { at_ns: record.measured_ns.1, values: flow.samples[1].values.clone() };
        flow.samples[1].at_ns = measured.1;
        flow.samples.push(idle);
        let flow = only(&builder);
        assert_eq!((flow.held_by, flow.waits.application), (Bottleneck::CongestionWindow, 0.0));
    }

    #[test]
    fn the_measured_time_is_divided_up_completely() {
        let flow = only(&streaming(&[
            (tcp::BUSY_NS, 800_000_000),
            (tcp::RWND_LIMITED_NS, 300_000_000),
            (tcp::SNDBUF_LIMITED_NS, 100_000_000),
        ]));
        let SenderTime { application, receive_window, send_buffer, network } = flow.waits;
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert!(near(application, 0.2) && near(receive_window, 0.3), "{:?}", flow.waits);
        assert!(near(send_buffer, 0.1) && near(network, 0.4), "{:?}", flow.waits);
        assert!(near(flow.acknowledged_bps, 1e9), "{}", flow.acknowledged_bps);
    }

    #[test]
    fn a_side_that_receives_and_a_connection_seen_once_have_no_restraint() {
        let mut builder = streaming(&[(tcp::BYTES_RECEIVED, 200_000_000)]);
        assert_eq!(builder.analyzed().tests[0].flows, []);
        builder = streaming(&[]);
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows[0].samples.pop();
        assert_eq!(builder.analyzed().tests[0].flows, []);
    }

    #[test]
    fn a_full_path_is_told_with_the_times_of_the_round_that_was_judged() {
        let mut builder = streaming(&[(tcp::RTT_NS, 9_000_000)]);
        let trials = &mut builder.run.tests[0].trials;
        let mut interrupted = trials[0].clone();
        interrupted.round = 1;
        for record in interrupted.records.values_mut() {
            record.complete = false;
            record.flows.iter_mut().for_each(|flow| flow.id = "a:2 b:2".to_owned());
        }
        trials.push(interrupted);
        let title = builder.finding("path-full").unwrap().title;
        assert!(title.contains("8.00 ms were spent in a queue"), "{title}");
    }

    #[test]
    fn a_path_that_holds_most_connections_is_a_finding_with_its_proof() {
        let mut builder = streaming(&[(tcp::RTT_NS, 9_000_000)]);
        let finding = builder.finding("path-full").unwrap();
        assert!(finding.title.contains("8.00 ms were spent in a queue"), "{}", finding.title);
        assert!(finding.evidence.iter().any(|proof| proof.counter == tcp::RTT_MIN_NS && proof.value == "1.00 ms"));
        assert_eq!(builder.finding("congestion-window"), None);
        builder = streaming(&[]);
        assert!(builder.finding("congestion-window").unwrap().next.unwrap().command.ends_with("--flows 4"));
        // A requested rate that was reached is not a bottleneck.
        builder = streaming(&[(tcp::DELIVERY_RATE_BPS, 990_000_000), (tcp::PACING_MAX_BPS, 1_000_000_000)]);
        assert_eq!(builder.finding("paced").unwrap().severity, fathom_model::Severity::Remark);
    }

    #[test]
    fn a_window_that_closes_again_and_again_is_that_of_a_late_reader_and_no_queue() {
        let is_queue = |windows: [u64; 4]| {
            let sample = |window: u64| FlowSample {
                at_ns: Nanos::ZERO,
                values: [(tcp::RTT_NS, 10_000_000), (tcp::RTT_MIN_NS, 1_000), (tcp::SND_WND_BYTES, window)]
                    .map(|(name, value)| (name.to_owned(), value))
                    .into(),
            };
            is_mostly_queue(&windows.map(sample))
        };
        assert!(is_queue([400_000; 4]) && is_queue([100_000, 200_000, 300_000, 400_000]));
        assert!(!is_queue([400_000, 0, 410_000, 390_000]));
        assert!(is_queue([20_000, 0, 20_000, 0]), "any path fills a window so small");
    }

    #[test]
    fn a_deep_queue_that_loses_nothing_is_the_path_and_not_the_window_that_it_fills() {
        for limited in [tcp::RWND_LIMITED_NS, tcp::SNDBUF_LIMITED_NS] {
            let waits = (limited, 900_000_000);
            assert_eq!(only(&streaming(&[waits, (tcp::RTT_NS, 90_000_000)])).held_by, Bottleneck::Queue);
            assert_ne!(only(&streaming(&[waits])).held_by, Bottleneck::Queue, "a short round trip");
        }
    }
}
