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

/// The most samples of all flows together: less than 2 MiB, and about 4 MiB in the record.
const SAMPLES_MAX: usize = 4096;
/// The most flows that are sampled.
const FLOWS_MAX: usize = 512;

/// The total bytes that TCP sent, retransmissions included; the total `bytes_sent` is what the application handed to it.
pub const BYTES_TRANSMITTED: &str = "bytes_transmitted";

/// Samples every flow once per interval, on the conductor thread.
#[derive(Debug)]
pub struct TcpInfoSampler {
    sockets: Vec<Arc<Socket>>,
    flows: Vec<SampledFlow>,
    payload: Vec<PayloadCount>,
    per_flow_max: usize,
    sample_every: usize,
    n_intervals: usize,
    is_peer_unseen: bool,
}

/// A flow, with what the kernel said of it.
#[derive(Debug)]
struct SampledFlow {
    id: String,
    samples: Vec<KernelSample>,
}

impl SampledFlow {
    fn last(&self) -> Option<&TcpInfo> {
        self.samples.last().map(|sample| &sample.info)
    }
}

#[derive(Debug)]
struct KernelSample {
    at_ns: Nanos,
    info: TcpInfo,
    payload: Option<u64>,
}

/// The counter of a flow's payload: the worker with the flow's number counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadCount {
    /// The name in samples: [`tcp::PAYLOAD_BYTES_SENT`] or [`tcp::PAYLOAD_BYTES_RECEIVED`].
    pub name: &'static str,
    /// Its index among the counters of the workers.
    pub counter: usize,
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
    pub fn new(sockets: &[Arc<Socket>]) -> Self {
        let mut sampler = Self {
            sockets: Vec::new(),
            flows: Vec::new(),
            payload: Vec::new(),
            per_flow_max: SAMPLES_MAX,
            sample_every: 1,
            n_intervals: 0,
            is_peer_unseen: false,
        };
        sampler.add(sockets);
        sampler
    }

    /// Samples these flows too, as far as there is room.
    pub fn add(&mut self, sockets: &[Arc<Socket>]) {
        let room = FLOWS_MAX - self.sockets.len();
        for socket in sockets.iter().take(room) {
            self.flows.push(SampledFlow { id: id(socket), samples: Vec::new() });
            self.sockets.push(Arc::clone(socket));
        }
        self.per_flow_max = (SAMPLES_MAX / self.sockets.len().max(1)).max(4);
    }

    /// Adds the payload of each flow to the samples, with one worker per flow.
    #[must_use]
    pub fn with_payload_counts(self, payload: Vec<PayloadCount>) -> Self {
        Self { payload, ..self }
    }

    /// Tells how data arrived, too: nobody asks the sender.
    #[must_use]
    pub fn of_unseen_peer(self) -> Self {
        Self { is_peer_unseen: true, ..self }
    }

    fn sample(&mut self, at_ns: Nanos, counts: WorkerCounts<'_>) {
        for (idx, (socket, flow)) in self.sockets.iter().zip(&mut self.flows).enumerate() {
            // A broken connection has no further samples; its earlier ones stay.
            let Ok(info) = TcpInfo::of(socket) else { continue };
            let payload = self.payload.get(idx).and_then(|of| counts.of(idx, of.counter));
            flow.samples.push(KernelSample { at_ns, info, payload });
        }
    }

    /// Whether a flow only receives, so that its round-trip time is that of its handshake.
    fn is_receive_only(&self, flow: usize) -> bool {
        self.payload.get(flow).is_some_and(|of| of.name == tcp::PAYLOAD_BYTES_RECEIVED)
    }

    /// How data arrived on the flows that received more than they sent.
    fn reception(&self) -> Reception {
        let mut all = Reception::default();
        let receives = |flow: &&SampledFlow| flow.last().is_some_and(|info| info.bytes_received > info.bytes_acked);
        for pair in self.flows.iter().filter(receives).flat_map(|flow| flow.samples.windows(2)) {
            let span = Some(pair[1].at_ns.since(pair[0].at_ns));
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
        self.sample_every *= 2;
    }

    /// Takes a last sample, and writes all samples and the totals derived from them to the record.
    pub fn finish(mut self, record: &mut Record, counts: WorkerCounts<'_>) {
        self.sample(record.timeline.end_ns.last().copied().unwrap_or_default(), counts);
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
        let sending = self.flows.iter().enumerate().filter(|(idx, _)| !self.is_receive_only(*idx));
        let measured = sending.flat_map(|(_, flow)| &flow.samples).filter(|sample| (from..=to).contains(&sample.at_ns));
        measured.for_each(|sample| rtt.record(sample.info.rtt.0));
        record.distributions.insert(tcp::RTT_NS.to_owned(), rtt);
        let payload = self.payload.iter().map(|of| Some(of.name)).chain(std::iter::repeat(None));
        record.flows = self.flows.into_iter().zip(payload).map(|(flow, payload)| named(flow, payload)).collect();
    }
}

/// Gives the values of a flow their names, those of its payload included.
fn named(flow: SampledFlow, payload: Option<&'static str>) -> Flow {
    let sample = |taken: KernelSample| {
        let mut values = values(&taken.info);
        values.extend(payload.zip(taken.payload).map(|(name, bytes)| (name.to_owned(), bytes)));
        FlowSample { at_ns: taken.at_ns, values }
    };
    Flow { id: flow.id, samples: flow.samples.into_iter().map(sample).collect() }
}

impl TrialObserver for TcpInfoSampler {
    fn on_interval(&mut self, elapsed: Nanos, counts: WorkerCounts<'_>) {
        if self.n_intervals.is_multiple_of(self.sample_every) {
            self.sample(elapsed, counts);
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

    #[test]
    fn a_long_test_keeps_a_bounded_number_of_evenly_spaced_samples() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket::listen(loopback, 1, &AllowedPeers::anybody()).unwrap();
        let near = Arc::new(socket::stream(loopback).unwrap());
        let to = Policy::anything().permit(socket::local_address(&listener).unwrap()).unwrap();
        socket::connect(&near, &to, Nanos::from_secs(1)).unwrap();
        let mut watch = TcpInfoSampler::new(&[Arc::clone(&near)]);
        watch.per_flow_max = 8;
        for at in 1..=100 {
            watch.on_interval(Nanos(at), WorkerCounts::default());
        }
        let at: Vec<_> = watch.flows[0].samples.iter().map(|sample| sample.at_ns.0).collect();
        assert!(at.len() < 8 && at.len() >= 3, "{at:?}");
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] == at[1] - at[0]), "{at:?}");
        // A flow that is opened later is sampled from then on.
        watch.add(&[near]);
        watch.sample(Nanos(101), WorkerCounts::default());
        assert_eq!((watch.flows.len(), watch.flows[1].samples.len()), (2, 1));
    }
}
