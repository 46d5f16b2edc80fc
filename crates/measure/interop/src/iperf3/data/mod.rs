//! The data of a test: blocks over TCP, numbered datagrams over UDP, sent and received by the same loops as in our own tests.

mod datagrams;
mod greeting;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use fathom_engine::WorkerCounters;
use fathom_model::units::{BitsPerSec, Bytes, Nanos, approximate};
use fathom_sys::{clock, socket::zero_copy::MemoryFile};
pub(crate) use greeting::{answer_to, greet};

use super::{
    ParameterFlag, Parameters, TransportProtocol, counts::StreamRole, open_stream::OpenStream, parameters::TCP_BLOCK,
};
use fathom_transport::{
    payload::Payload,
    stream::{
        self, ByteSchedule, FileReadMethod, LowWatermark, ReceiveSink, SendSource, StreamControl, StreamReceiver,
        StreamSender, WakeBatch,
    },
};

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// It was told to stop, its budget was spent, or its peer has ended.
    Stopped,
    /// The whole file was sent.
    FileSent,
}

/// The counters of a stream, as indices into its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    Bytes,
    Packets,
    Lost,
    OutOfOrder,
    JitterNs,
}

/// The counters of a stream, and its stop flag.
pub(crate) struct SlotContext<'a> {
    pub(crate) slot: &'a WorkerCounters,
    pub(crate) over: &'a AtomicBool,
    pub(crate) start: Nanos,
}

/// The interface of a stream to the code that runs it.
pub(crate) trait StreamContext {
    /// Adds to a counter. A counter that falls gets the wrapped difference.
    fn add(&self, counter: Counter, amount: u64);

    /// Whether to stop.
    fn is_over(&self) -> bool;

    /// When the test started.
    fn start(&self) -> Nanos;
}

impl StreamContext for SlotContext<'_> {
    fn add(&self, counter: Counter, amount: u64) {
        self.slot.add(counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn start(&self) -> Nanos {
        self.start
    }
}

/// Counts the bytes of a TCP stream.
struct ByteCounter<'a, C>(&'a C);

impl<C: StreamContext> StreamControl for ByteCounter<'_, C> {
    fn count(&self, bytes: u64) {
        self.0.add(Counter::Bytes, bytes);
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// Streams until it is over, the budget of blocks is spent, or its file was sent.
///
/// # Errors
/// The call that failed: the peer reset the connection or is gone, or the file has changed.
pub(crate) fn run(
    open: &OpenStream,
    parameters: &Parameters,
    budget: Option<u64>,
    context: &impl StreamContext,
) -> fathom_sys::Result<StreamEnd> {
    match (parameters.protocol, open.stream.role) {
        (TransportProtocol::Tcp, StreamRole::Sender) => return send_stream(open, parameters, budget, context),
        (TransportProtocol::Tcp, StreamRole::Receiver) => receive_stream(open, parameters, context),
        (TransportProtocol::Udp, StreamRole::Sender) => datagrams::send(open, parameters, budget, context),
        (TransportProtocol::Udp, StreamRole::Receiver) => datagrams::receive(&open.socket, parameters, context),
    }?;
    Ok(StreamEnd::Stopped)
}

/// Returns the length of one call: the requested length, or that of our own streams if it is iperf3's default.
fn call_length(parameters: &Parameters) -> usize {
    let is_default = parameters.block == TCP_BLOCK && parameters.bitrate == 0;
    if is_default { stream::CALL_BYTES } else { length(parameters.block) }
}

fn length(block: Bytes) -> usize {
    usize::try_from(block.0).expect("a block is at most 1 MiB")
}

/// Returns the payload: pseudorandom bytes, or repeated digits.
fn payload(parameters: &Parameters) -> Payload {
    let mut payload = Payload::random(call_length(parameters), clock::now().0);
    if parameters.flags.has(ParameterFlag::RepeatingPayload) {
        repeat_digits(payload.bytes_mut());
    }
    payload
}

fn repeat_digits(bytes: &mut [u8]) {
    bytes.iter_mut().zip((b'0'..=b'9').cycle()).for_each(|(byte, digit)| *byte = digit);
}

fn rate_of(parameters: &Parameters) -> Option<BitsPerSec> {
    BitsPerSec::new(approximate(parameters.bitrate)).filter(|rate| rate.get() > 0.0)
}

/// Returns the data of a stream: its file, or [`payload`], and whether it is copied on its way.
fn source(open: &OpenStream, parameters: &Parameters) -> fathom_sys::Result<SendSource> {
    let is_copied = !parameters.flags.has(ParameterFlag::ZeroCopy);
    if let Some(file) = &open.file {
        let length = length(parameters.block);
        let read = if is_copied { FileReadMethod::Copied(length) } else { FileReadMethod::Sendfile(length) };
        return Ok(SendSource::FileOnDisk(Arc::clone(file), read));
    }
    let payload = payload(parameters);
    Ok(if is_copied { SendSource::Buffer(payload) } else { SendSource::MemoryFile(MemoryFile::of(payload.bytes())?) })
}

fn send_stream(
    open: &OpenStream,
    parameters: &Parameters,
    budget: Option<u64>,
    context: &impl StreamContext,
) -> fathom_sys::Result<StreamEnd> {
    let source = source(open, parameters)?;
    let mut sending = StreamSender::new(&open.socket, &source)?;
    let counter = ByteCounter(context);
    let budget = budget.map(|blocks| blocks.saturating_mul(parameters.block.0));
    match (rate_of(parameters), parameters.burst) {
        (Some(rate), 2..) => send_bursts(&mut sending, parameters, rate, budget, &counter),
        (rate, _) => {
            sending.schedule = rate.and_then(|rate| ByteSchedule::new(rate, context.start()));
            sending.budget = budget;
            sending.run(&counter)
        }
    }?;
    Ok(if sending.has_sent_all() { StreamEnd::FileSent } else { StreamEnd::Stopped })
}

/// Sends a burst of blocks at once, and the next burst when its first byte is due.
fn send_bursts<C: StreamContext>(
    sending: &mut StreamSender<'_>,
    parameters: &Parameters,
    rate: BitsPerSec,
    budget: Option<u64>,
    counter: &ByteCounter<'_, C>,
) -> fathom_sys::Result<()> {
    /// How soon the end is noticed between two bursts.
    const LOOK: Nanos = Nanos::from_millis(20);
    let burst = parameters.block.0 * u64::from(parameters.burst);
    let mut left = budget.unwrap_or(u64::MAX);
    let mut sent = 0_u64;
    while left > 0 && !counter.is_over() && !sending.has_sent_all() {
        let due = counter.0.start() + Nanos::from_secs_f64(approximate(sent) * 8.0 / rate.get());
        let now = clock::now();
        if due > now {
            clock::sleep_until(due.min(now + LOOK));
            continue;
        }
        let volume = burst.min(left);
        sending.budget = Some(volume);
        sending.run(counter)?;
        sent = sent.saturating_add(volume);
        left -= volume;
    }
    Ok(())
}

fn receive_stream(open: &OpenStream, parameters: &Parameters, context: &impl StreamContext) -> fathom_sys::Result<()> {
    let room = || Payload::random(call_length(parameters), 0);
    let (inlet, batch) = match &open.file {
        Some(file) => (ReceiveSink::Disk(room(), Arc::clone(file)), WakeBatch::COPIED),
        None if parameters.flags.has(ParameterFlag::SkipReceiveCopy) => {
            (ReceiveSink::Truncate(parameters.block), WakeBatch::TRUNCATED)
        }
        None => (ReceiveSink::Copy(room()), WakeBatch::COPIED),
    };
    let mut receiving = StreamReceiver::new(&open.socket, inlet);
    receiving.low_watermark = Some(LowWatermark::adaptive(batch, clock::now()));
    receiving.run(&ByteCounter(context)).map(drop)
}
