//! A stream over TCP in either direction.

use fathom_model::units::BitsPerSec;
use fathom_sys::{
    Result, clock,
    socket::{Socket, zero_copy::MemoryFile},
};
use fathom_transport::{
    payload::Payload,
    stream::{ByteSchedule, ReceiveEnd, ReceiveSink, SendSource, StreamControl, StreamReceiver, StreamSender},
};

use super::{Counter, TransferContext};

/// Counts one direction of a stream.
struct StreamCounter<'a, C> {
    context: &'a C,
    bytes: Counter,
    calls: Counter,
}

impl<C: TransferContext> StreamControl for StreamCounter<'_, C> {
    fn count(&self, bytes: u64) {
        self.context.add(self.bytes, bytes);
        self.context.add(self.calls, 1);
    }

    fn is_over(&self) -> bool {
        self.context.is_over()
    }
}

/// Creates the payload of a sender, which passes `length` bytes per call.
///
/// # Errors
/// `memfd_create`, for `sendfile`.
pub(crate) fn stream_source(length: usize, is_sendfile: bool) -> Result<SendSource> {
    let payload = Payload::random(length, clock::now().0);
    Ok(if is_sendfile { SendSource::MemoryFile(MemoryFile::of(payload.bytes())?) } else { SendSource::Buffer(payload) })
}

/// Sends until it is over or the budget is spent, at most at the rate.
///
/// # Errors
/// The call that failed: the peer reset the connection or is gone.
pub(crate) fn send_stream(
    socket: &Socket,
    source: &SendSource,
    (budget, rate): (Option<u64>, Option<BitsPerSec>),
    context: &impl TransferContext,
) -> Result<()> {
    let mut sender = StreamSender::new(socket, source)?;
    sender.budget = budget;
    sender.schedule = rate.and_then(|rate| ByteSchedule::new(rate, clock::now()));
    sender.run(&StreamCounter { context, bytes: Counter::BytesSent, calls: Counter::SendCalls })
}

/// Receives until the peer has closed or it is over, at most `length` bytes per call.
///
/// # Errors
/// The call that failed: the peer reset the connection.
pub(crate) fn receive_stream(socket: &Socket, length: usize, context: &impl TransferContext) -> Result<ReceiveEnd> {
    let mut receiver = StreamReceiver::new(socket, ReceiveSink::Copy(Payload::random(length, 0)));
    receiver.run(&StreamCounter { context, bytes: Counter::BytesReceived, calls: Counter::RecvCalls })
}
