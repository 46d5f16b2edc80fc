//! Samples `TCP_INFO` of the flows while a test runs.
//!
//! Memory use is constant in time and in the number of flows: when a series is full, every second sample is dropped and the
//! interval doubles. What the kernel said gets its names when the test is over: the thread that samples takes time from the workers.

use std::{collections::BTreeMap, sync::Arc};

use fathom_engine::{EarlierSample, Reception, TrialObserver, WorkerCounts};
use fathom_model::{
    Histogram, Record,
    names::tcp,
    record::{Flow, FlowSample},
    units::{BitsPerSec, Bytes, Nanos, rounded},
};
use fathom_sys::socket::{Socket, tcp_info::TcpInfo};

use crate::worker_reading::{FlowReading, PayloadCount, WorkerReading};

/// The most samples of all flows together: less than 2 MiB, and about 4 MiB in the record.
const SAMPLES_MAX: usize = 4096;
/// The most flows that are sampled.
const FLOWS_MAX: usize = 512;

/// The total bytes that TCP sent, retransmissions included; the total `bytes_sent` is what the application handed to it.
pub const BYTES_TRANSMITTED: &str = "bytes_transmitted";

/// Samples every flow once per interval, on the conductor thread or by the worker of the flow, which the conductor asks.
#[derive(Debug, Default)]
pub struct TcpInfoSampler {
    flows: Vec<SampledFlow>,
    per_flow_max: usize,
    n_halvings: u32,
    n_intervals: usize,
    is_peer_unseen: bool,
}

/// A flow, with what the kernel said of it.
#[derive(Debug)]
struct SampledFlow {
    id: String,
    socket: Arc<Socket>,
    /// The worker that reads the socket when it is asked; absent if the sampler reads it.
    worker: Option<Arc<WorkerReading>>,
    samples: Vec<FlowReading>,
}

impl SampledFlow {
    fn of(socket: Arc<Socket>, worker: Option<Arc<WorkerReading>>) -> Self {
        Self { id: id(&socket), socket, worker, samples: Vec::new() }
    }

    fn last(&self) -> Option<&TcpInfo> {
        self.samples.last().map(|sample| &sample.info)
    }

    /// Takes a sample, or asks the worker for one.
    fn sample(&mut self, at: Nanos) {
        match &self.worker {
            Some(worker) => worker.ask(),
            None => self.read(at, None),
        }
    }

    /// Takes the sample that the worker was asked for; one that waits for the network has none.
    fn collect(&mut self, now: Nanos, payload: impl FnOnce(PayloadCount) -> Option<u64>) {
        let Some(worker) = &self.worker else { return };
        let is_open = worker.withdraw();
        // An answer to an earlier question would be older than the samples after it.
        let answer = worker.take();
        if is_open {
            self.read(now, payload(worker.payload));
        } else {
            self.samples.extend(answer.map(|taken| FlowReading { at: taken.at.min(now), ..taken }));
        }
    }

    /// A broken connection has no further samples; its earlier ones stay.
    fn read(&mut self, at: Nanos, payload: Option<u64>) {
        self.samples.extend(TcpInfo::of(&self.socket).ok().map(|info| FlowReading { at, info, payload }));
    }

    fn is_receive_only(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.is_receive_only())
    }
}

/// The values that the kernel returned, by name.
fn values(info: &TcpInfo) -> BTreeMap<String, u64> {
    let nanos = |span: Nanos| span.0;
    let bits = |rate: BitsPerSec| rounded(rate.get());
    let bytes = |volume: Bytes| volume.0;
    let rows = [
        (tcp::RTT_NS, Some(info.rtt.0)),
        (tcp::RTT_MIN_NS, info.min_rtt.map(nanos)),
        (tcp::CWND_SEGMENTS, Some(info.snd_cwnd.into())),
        (tcp::SND_MSS_BYTES, Some(info.snd_mss.0)),
        (tcp::PMTU_BYTES, Some(info.pmtu.0)),
        (tcp::RETRANS_TOTAL, Some(info.total_retrans.into())),
        (tcp::SEGMENTS_OUT, info.segs_out.map(u64::from)),
        (tcp::SEGMENTS_IN, info.segs_in.map(u64::from)),
        (tcp::BYTES_SENT, info.bytes_sent.map(bytes)),
        (tcp::BYTES_ACKED, info.bytes_acked.map(bytes)),
        (tcp::BYTES_RECEIVED, info.bytes_received.map(bytes)),
        (tcp::BYTES_RETRANS, info.bytes_retrans.map(bytes)),
        (tcp::BUSY_NS, info.busy_time.map(nanos)),
        (tcp::RWND_LIMITED_NS, info.rwnd_limited.map(nanos)),
        (tcp::SNDBUF_LIMITED_NS, info.sndbuf_limited.map(nanos)),
        (tcp::DELIVERY_RATE_BPS, info.delivery_rate.map(bits)),
        (tcp::PACING_RATE_BPS, info.pacing_rate.map(bits)),
        (tcp::PACING_MAX_BPS, info.max_pacing_rate.map(bits)),
        (tcp::DELIVERED_CE, info.delivered_ce.map(u64::from)),
        (tcp::DSACK_SEGMENTS, info.dsack_dups.map(u64::from)),
        (tcp::REORDERINGS, info.reord_seen.map(u64::from)),
        (tcp::SND_WND_BYTES, info.snd_wnd.map(bytes)),
        (tcp::WINDOW_SCALING, Some(info.has_window_scaling.into())),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The local and remote address of a connection.
fn id(socket: &Socket) -> String {
    let text = |address: std::io::Result<fathom_sys::socket::SockAddr>| {
        address.ok().and_then(|address| address.as_socket()).map_or("-".to_owned(), |address| address.to_string())
    };
    format!("{} {}", text(socket.local_addr()), text(socket.peer_addr()))
}

impl TcpInfoSampler {
    /// Creates a sampler that reads these sockets itself.
    pub fn new(sockets: &[Arc<Socket>]) -> Self {
        let mut sampler = Self::default();
        sampler.add(sockets);
        sampler
    }

    /// Creates a sampler of flows whose workers read their sockets, with one worker per flow.
    pub fn of_workers(flows: impl Iterator<Item = (Arc<Socket>, Arc<WorkerReading>)>) -> Self {
        let mut sampler = Self::default();
        sampler.add_flows(flows.map(|(socket, worker)| SampledFlow::of(socket, Some(worker))));
        sampler
    }

    /// Samples these flows too, as far as there is room.
    pub fn add(&mut self, sockets: &[Arc<Socket>]) {
        self.add_flows(sockets.iter().map(|socket| SampledFlow::of(Arc::clone(socket), None)));
    }

    fn add_flows(&mut self, flows: impl Iterator<Item = SampledFlow>) {
        self.flows.extend(flows.take(FLOWS_MAX - self.flows.len()));
        self.per_flow_max = (SAMPLES_MAX / self.flows.len().max(1)).max(4);
    }

    /// Tells how data arrived, too: nobody asks the sender.
    #[must_use]
    pub fn of_unseen_peer(self) -> Self {
        Self { is_peer_unseen: true, ..self }
    }

    fn collect(&mut self, now: Nanos, counts: WorkerCounts<'_>) {
        for (idx, flow) in self.flows.iter_mut().enumerate() {
            flow.collect(now, |of| counts.of(idx, of.counter));
        }
    }

    /// How data arrived on the flows that received more than they sent.
    fn reception(&self) -> Reception {
        let mut all = Reception::default();
        let receives = |flow: &&SampledFlow| flow.last().is_some_and(|info| info.bytes_received > info.bytes_acked);
        for pair in self.flows.iter().filter(receives).flat_map(|flow| flow.samples.windows(2)) {
            let span = Some(pair[1].at.since(pair[0].at));
            all.add(&pair[1].info, Some(EarlierSample { info: &pair[0].info, span }));
        }
        all
    }

    fn halve_samples(&mut self) {
        for flow in &mut self.flows {
            let mut row = 0;
            flow.samples.retain(|_| {
                row += 1;
                row % 2 == 1
            });
        }
        self.n_halvings += 1;
    }

    /// Takes a last sample, and writes all samples and the totals derived from them to the record.
    pub fn finish(mut self, record: &mut Record, counts: WorkerCounts<'_>) {
        let end = record.timeline.end_ns.last().copied().unwrap_or_default();
        for (idx, flow) in self.flows.iter_mut().enumerate() {
            if let Some(worker) = &flow.worker
                && !worker.withdraw()
            {
                flow.samples.extend(worker.take().filter(|taken| taken.at < end));
            }
            let payload = flow.worker.as_ref().and_then(|worker| counts.of(idx, worker.payload.counter));
            flow.read(end, payload);
        }
        let sum = |value: fn(&TcpInfo) -> Option<u64>| self.flows.iter().filter_map(|flow| value(flow.last()?)).sum();
        let totals = [
            (tcp::RETRANS_TOTAL, sum(|info| Some(info.total_retrans.into()))),
            (tcp::BYTES_RETRANS, sum(|info| Some(info.bytes_retrans?.0))),
            (BYTES_TRANSMITTED, sum(|info| Some(info.bytes_sent?.0))),
        ];
        record.totals.extend(totals.map(|(name, total)| (name.to_owned(), total)));
        if self.is_peer_unseen {
            self.reception().add_to(record);
        }
        let (from, to) = record.measured_ns;
        let mut rtt = Histogram::new();
        let sending = self.flows.iter().filter(|flow| !flow.is_receive_only());
        let measured = sending.flat_map(|flow| &flow.samples).filter(|sample| (from..=to).contains(&sample.at));
        measured.for_each(|sample| rtt.record(sample.info.rtt.0));
        record.distributions.insert(tcp::RTT_NS.to_owned(), rtt);
        record.flows = self.flows.into_iter().map(named).collect();
    }
}

/// Gives the values of a flow their names, those of its payload included.
fn named(flow: SampledFlow) -> Flow {
    let payload = flow.worker.map(|worker| worker.payload.name);
    let sample = |taken: FlowReading| {
        let mut values = values(&taken.info);
        values.extend(payload.zip(taken.payload).map(|(name, bytes)| (name.to_owned(), bytes)));
        FlowSample { at_ns: taken.at, values }
    };
    Flow { id: flow.id, samples: flow.samples.into_iter().map(sample).collect() }
}

impl TrialObserver for TcpInfoSampler {
    fn on_interval(&mut self, elapsed: Nanos, counts: WorkerCounts<'_>) {
        self.collect(elapsed, counts);
        if self.n_intervals.is_multiple_of(1 << self.n_halvings) {
            self.flows.iter_mut().for_each(|flow| flow.sample(elapsed));
            if self.flows.iter().any(|flow| flow.samples.len() >= self.per_flow_max) {
                self.halve_samples();
            }
        }
        self.n_intervals += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use fathom_sys::socket;

    use fathom_sys::policy::{AllowedPeers, Policy};

    use super::*;

    fn connected() -> (Arc<Socket>, socket::Listener) {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket::listen(loopback, 1, &AllowedPeers::anybody()).unwrap();
        let near = Arc::new(socket::stream(loopback).unwrap());
        let to = Policy::anything().permit(socket::local_address(&listener).unwrap()).unwrap();
        socket::connect(&near, &to, Nanos::from_secs(1)).unwrap();
        (near, listener)
    }

    #[test]
    fn a_worker_that_moves_bytes_reads_its_socket_and_one_that_waits_is_read() {
        let (near, _listener) = connected();
        let payload = PayloadCount { name: tcp::PAYLOAD_BYTES_SENT, counter: 0 };
        let worker = Arc::new(WorkerReading::new(payload));
        let mut watch = TcpInfoSampler::of_workers([(Arc::clone(&near), Arc::clone(&worker))].into_iter());
        worker.answer(&near, || panic!("nobody asked"));
        watch.on_interval(Nanos(10), WorkerCounts::default());
        worker.answer(&near, || (Nanos(11), 7));
        watch.on_interval(Nanos(20), WorkerCounts::default());
        watch.on_interval(Nanos(30), WorkerCounts::default());
        let samples: Vec<_> = watch.flows[0].samples.iter().map(|sample| (sample.at.0, sample.payload)).collect();
        assert_eq!(samples, [(11, Some(7)), (30, None)]);
    }

    #[test]
    fn a_long_test_keeps_a_bounded_number_of_evenly_spaced_samples() {
        let (near, _listener) = connected();
        let mut watch = TcpInfoSampler::new(&[Arc::clone(&near)]);
        watch.per_flow_max = 8;
        for at in 1..=100 {
            watch.on_interval(Nanos(at), WorkerCounts::default());
        }
        let at: Vec<_> = watch.flows[0].samples.iter().map(|sample| sample.at.0).collect();
        assert!(at.len() < 8 && at.len() >= 3, "{at:?}");
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] == at[1] - at[0]), "{at:?}");
        // A flow that is opened later is sampled from then on.
        watch.add(&[near]);
        watch.flows.iter_mut().for_each(|flow| flow.sample(Nanos(101)));
        assert_eq!((watch.flows.len(), watch.flows[1].samples.len()), (2, 1));
    }
}
