//! The data of a flow, sent and received by the same loops as in our own tests.

mod bursts;
mod datagrams;

use fathom_engine::WorkerCounters;
use fathom_model::units::{BitsPerSec, Nanos, approximate};
use fathom_sys::{clock, socket::Socket};
use fathom_transport::{
    payload::Payload,
    stream::{
        ByteSchedule, LowWatermark, ReceiveSink, SendSource, StreamControl, StreamReceiver, StreamSender, WakeBatch,
    },
};

pub(crate) use datagrams::{Arrivals, SentDatagrams, template};

use super::{BURST_LEN, ClientHeader, FlowRole, TransportProtocol, flow::READ_BINS};

/// The counters of a flow, as indices into its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum FlowCounter {
    Bytes,
    Calls,
    Errors,
    Datagrams,
    Received,
    Reordered,
    JitterNs,
    /// The first of the size classes of reads, which are the last counters of a slot.
    FirstBin,
}

/// The interface of a flow to the code that runs it.
pub(crate) trait FlowContext {
    /// Adds to a counter. A counter that falls gets the wrapped difference.
    fn add(&self, counter: FlowCounter, amount: u64);

    /// Counts a read by its size.
    fn add_read(&self, _bytes: u64) {}

    /// Counts a one-way time.
    fn add_transit(&self, _transit: Nanos) {}

    /// Whether to stop.
    fn is_over(&self) -> bool;

    /// When the flow began, on the monotonic clock.
    fn start(&self) -> Nanos;
}

const _: () = assert!(
    FlowCounter::FirstBin as usize + READ_BINS <= size_of::<WorkerCounters>() / size_of::<u64>(),
    "a slot has room for all counters"
);

/// What a flow carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FlowPlan {
    pub(crate) protocol: TransportProtocol,
    pub(crate) role: FlowRole,
    /// Bytes per call or datagram.
    pub(crate) length: usize,
    /// The payload rate in bits per second; `None` for as fast as possible.
    pub(crate) rate: Option<u64>,
    /// The bytes to send; `None` for no limit but time.
    pub(crate) budget: Option<u64>,
    /// Whether the sender's clock is used.
    pub(crate) has_trip_times: bool,
    /// Whether each call counts by itself: the receiver is woken for each piece that arrives, as in iperf.
    pub(crate) counts_calls: bool,
    /// The header in each datagram.
    pub(crate) header: Option<ClientHeader>,
}

impl FlowPlan {
    pub(crate) fn rate(&self) -> Option<BitsPerSec> {
        BitsPerSec::new(approximate(self.rate?)).filter(|rate| rate.get() > 0.0)
    }
}

/// Counts the bytes and the calls of a stream.
struct StreamCounter<'a, C> {
    context: &'a C,
    role: FlowRole,
}

impl<C: FlowContext> StreamControl for StreamCounter<'_, C> {
    fn count(&self, bytes: u64) {
        self.context.add(FlowCounter::Bytes, bytes);
        self.context.add(FlowCounter::Calls, 1);
        if self.role == FlowRole::Receiver {
            self.context.add_read(bytes);
        }
    }

    fn is_over(&self) -> bool {
        self.context.is_over()
    }
}

/// The first bytes of a stream without a header.
const NO_FLAGS: &[u8] = b"0123";

/// Sends a TCP stream until it is over or its budget is spent.
///
/// # Errors
/// The call that failed: the peer reset the connection or is gone.
pub(crate) fn send_stream(socket: &Socket, plan: &FlowPlan, context: &impl FlowContext) -> fathom_sys::Result<()> {
    if plan.has_trip_times {
        return bursts::send(socket, plan, context);
    }
    let mut payload = Payload::random(plan.length, clock::now().0);
    // Without a header a server takes the first bytes for flags: as in iperf they are digits, which are none.
    payload.bytes_mut().iter_mut().take(NO_FLAGS.len()).zip(NO_FLAGS).for_each(|(byte, digit)| *byte = *digit);
    let source = SendSource::Buffer(payload);
    let mut sending = StreamSender::new(socket, &source)?;
    sending.schedule = plan.rate().and_then(|rate| ByteSchedule::new(rate, context.start()));
    sending.budget = plan.budget;
    sending.run(&StreamCounter { context, role: FlowRole::Sender })
}

/// Receives a TCP stream to its end, or until it is over.
///
/// # Errors
/// The call that failed: the peer reset the connection.
pub(crate) fn receive_stream(socket: &Socket, plan: &FlowPlan, context: &impl FlowContext) -> fathom_sys::Result<()> {
    if plan.has_trip_times {
        return bursts::receive(socket, plan, context);
    }
    let mut receiving = StreamReceiver::new(socket, ReceiveSink::Copy(Payload::random(plan.length, 0)));
    receiving.low_watermark = (!plan.counts_calls).then(|| LowWatermark::adaptive(WakeBatch::COPIED, clock::now()));
    receiving.run(&StreamCounter { context, role: FlowRole::Receiver }).map(drop)
}

/// Sends datagrams until it is over or the budget is spent.
///
/// # Errors
/// The call that failed, such as a refusal by a host on which nobody listens.
pub(crate) fn send_datagrams(
    socket: &Socket,
    plan: &FlowPlan,
    context: &impl FlowContext,
) -> fathom_sys::Result<SentDatagrams> {
    datagrams::send(socket, plan, context)
}

/// The shortest write with a burst's header.
pub(crate) fn burst_length(length: usize) -> usize {
    length.max(BURST_LEN)
}
