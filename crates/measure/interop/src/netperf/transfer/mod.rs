//! The data of a test: streams by the loops of our own tests, transactions and datagrams of any content.
//!
//! `fathom_transport` sends and receives streams. Its transactions and datagrams carry marks and numbers in their first bytes, which
//! netperf's do not have, so those of netperf have their own loops here.

mod datagrams;
mod stream;
mod transactions;

use fathom_model::units::Nanos;

pub(crate) use datagrams::{end_datagrams, receive_datagrams, send_datagrams};
pub(crate) use stream::{receive_stream, send_stream, stream_source};
pub(crate) use transactions::{MessagePair, answer_connections, answer_datagrams, answer_requests};

/// The counters of one end, as indices into the slot of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    BytesSent,
    SendCalls,
    FailedSends,
    BytesReceived,
    RecvCalls,
    Transactions,
    /// Requests whose answer did not come in time.
    Lost,
}

/// The number of counters.
pub(crate) const N_COUNTERS: usize = 7;

/// The interface of a transfer to the code that runs it.
pub(crate) trait TransferContext {
    /// Adds to a counter.
    fn add(&self, counter: Counter, amount: u64);

    /// Whether to stop; called before every transfer.
    fn is_over(&self) -> bool;

    /// Called with the time from a request to its response.
    fn on_transaction(&self, _time: Nanos) {}
}
