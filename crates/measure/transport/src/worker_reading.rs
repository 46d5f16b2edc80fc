//! The worker of a flow reads `TCP_INFO` when the sampler asks.
//!
//! Another thread would wait for the socket's lock and, as it releases it, have to process the packets that arrived meanwhile: the work of the
//! worker. A worker that waits for the network does not answer; nor does it hold the lock, so the sampler may read the socket itself.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use fathom_model::{names::tcp, units::Nanos};
use fathom_sys::socket::{Socket, tcp_info::TcpInfo};

/// The counter of a flow's payload: the worker with the flow's number counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadCount {
    /// The name in samples: [`tcp::PAYLOAD_BYTES_SENT`] or [`tcp::PAYLOAD_BYTES_RECEIVED`].
    pub name: &'static str,
    /// Its index among the counters of the workers.
    pub counter: usize,
}

/// The question of the sampler to the worker of a flow, and its answer.
#[derive(Debug)]
pub struct WorkerReading {
    pub payload: PayloadCount,
    is_asked: AtomicBool,
    answer: Mutex<Option<FlowReading>>,
}

/// The state of a flow at one moment.
#[derive(Debug)]
pub struct FlowReading {
    /// Since the start of the trial.
    pub at: Nanos,
    pub info: TcpInfo,
    /// The payload bytes that the worker has moved, if it counts them for its flow.
    pub payload: Option<u64>,
}

impl WorkerReading {
    pub const fn new(payload: PayloadCount) -> Self {
        Self { payload, is_asked: AtomicBool::new(false), answer: Mutex::new(None) }
    }

    /// Whether the flow only receives, so that its round-trip time is that of its handshake.
    pub fn is_receive_only(&self) -> bool {
        self.payload.name == tcp::PAYLOAD_BYTES_RECEIVED
    }

    /// Asks the worker to read the socket before its next transfer.
    pub fn ask(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Reads the socket if the sampler asks for it; called by the worker after each transfer.
    #[inline]
    pub fn answer(&self, socket: &Socket, state: impl FnOnce() -> (Nanos, u64)) {
        if self.is_asked.load(Ordering::Relaxed) && self.is_asked.swap(false, Ordering::Relaxed) {
            let (at, payload) = state();
            let info = TcpInfo::of(socket).ok();
            let reading = info.map(|info| FlowReading { at, info, payload: Some(payload) });
            *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = reading;
        }
    }

    /// Takes the question back. Returns whether it was open: the worker has moved nothing since.
    pub fn withdraw(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }

    /// Takes the answer to the last question.
    pub fn take(&self) -> Option<FlowReading> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
