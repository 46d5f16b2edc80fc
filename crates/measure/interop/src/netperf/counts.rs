//! What both ends counted, and the counting of a client that runs until its own time is over.

use std::{
    array,
    cell::{Cell, RefCell},
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::clock;

use super::{
    DataPattern, DataProtocol, TestLength, TestSpec,
    control::ControlConnection,
    transfer::{Counter, N_COUNTERS, TransferContext},
    wire::{CpuPercents, OmniResponse, OmniResults},
};

/// How often the control connection is looked at.
const LOOK_INTERVAL: Nanos = Nanos::from_millis(100);

/// What one end counted in a test.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EndCounts {
    pub bytes_sent: u64,
    pub send_calls: u64,
    /// Sends that the kernel refused for want of buffers.
    pub failed_sends: u64,
    pub bytes_received: u64,
    pub recv_calls: u64,
    pub transactions: u64,
    /// `SO_SNDBUF` before and after the test, as the kernel reports it; -1 if unknown.
    pub send_buffers: (i32, i32),
    /// `SO_RCVBUF` before and after the test, as the kernel reports it; -1 if unknown.
    pub recv_buffers: (i32, i32),
    /// Bytes per send call.
    pub send_size: u32,
    /// Bytes per receive call.
    pub recv_size: u32,
    /// The use of the host's CPUs, if it was to be measured.
    pub cpu: Option<CpuPercents>,
    /// Segments that TCP sent again, if known.
    pub retransmits: Option<i64>,
    /// The congestion control, if known.
    pub congestion: Option<String>,
}

impl EndCounts {
    /// The server's counts from its two messages.
    pub(crate) fn of_results(results: &OmniResults, response: &OmniResponse, measures_cpu: bool) -> Self {
        let size = |size: i32| u32::try_from(size).unwrap_or(0);
        Self {
            bytes_sent: results.bytes_sent,
            send_calls: results.send_calls.into(),
            failed_sends: results.failed_sends.into(),
            bytes_received: results.bytes_received,
            recv_calls: results.recv_calls.into(),
            transactions: results.transactions.into(),
            send_buffers: (response.send_buffer, results.send_buffer),
            recv_buffers: (response.recv_buffer, results.recv_buffer),
            send_size: size(response.send_size),
            recv_size: size(response.recv_size),
            cpu: measures_cpu.then_some(results.cpu),
            retransmits: u32::try_from(results.retransmits).ok().map(i64::from),
            congestion: Some(results.congestion.clone()).filter(|name| !name.is_empty()),
        }
    }
}

/// A finished test.
#[derive(Debug, Clone)]
pub struct NetperfOutcome {
    /// From the first byte until the server had received everything.
    pub seconds: f64,
    /// The client's end.
    pub local: EndCounts,
    /// The server's end.
    pub remote: EndCounts,
    /// The time of each transaction in nanoseconds.
    pub latencies: Histogram,
    /// Requests whose answer did not come in time.
    pub lost: u64,
    /// The maximum segment size of the data connection in bytes.
    pub mss: Option<u64>,
}

/// What happened since the last interim result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterimResult {
    pub bytes: u64,
    pub transactions: u64,
    pub span: Nanos,
}

/// The interim results of a running test.
struct InterimState<'a> {
    interval: Nanos,
    since: Nanos,
    /// Bytes and transactions at that time.
    base: (u64, u64),
    show: &'a mut dyn FnMut(InterimResult),
}

/// The counts of a client in one thread, and its own end.
pub(crate) struct TimedContext<'a, 'c> {
    pub(crate) start: Nanos,
    counts: [Cell<u64>; N_COUNTERS],
    deadline: Nanos,
    transactions_max: u64,
    stop: StopFlag,
    control: &'c ControlConnection,
    /// When the control connection is looked at next; never in tests whose data shows their end.
    next_look: Cell<Nanos>,
    is_ended_by_server: Cell<bool>,
    latencies: RefCell<Histogram>,
    interim: Option<RefCell<InterimState<'a>>>,
}

impl<'a, 'c> TimedContext<'a, 'c> {
    /// Starts the time of a test.
    pub(crate) fn new(
        spec: &TestSpec,
        control: &'c ControlConnection,
        interim: Option<(Nanos, &'a mut dyn FnMut(InterimResult))>,
    ) -> Self {
        let start = clock::now();
        // A server that sends ends the test by its own time, and some of what it sent then is still on its way.
        let pad = if spec.pattern == DataPattern::Down { super::test_spec::PAD } else { Nanos::ZERO };
        let (deadline, count) = match spec.length {
            TestLength::Seconds(0) => (Nanos::MAX, u64::MAX),
            TestLength::Seconds(seconds) => (start + Nanos::from_secs(seconds.into()) + pad, u64::MAX),
            TestLength::Count(count) => (Nanos::MAX, count.into()),
        };
        // A lost datagram stops transactions, and the server gives them up after a while.
        let waits_for_datagrams = (spec.protocol, spec.pattern) == (DataProtocol::Udp, DataPattern::Transactions);
        Self {
            start,
            counts: array::from_fn(|_| Cell::new(0)),
            deadline,
            transactions_max: if spec.pattern == DataPattern::Transactions { count } else { u64::MAX },
            stop: control.stop().clone(),
            control,
            next_look: Cell::new(if waits_for_datagrams { start + LOOK_INTERVAL } else { Nanos::MAX }),
            is_ended_by_server: Cell::new(false),
            latencies: RefCell::default(),
            interim: interim
                .map(|(interval, show)| RefCell::new(InterimState { interval, since: start, base: (0, 0), show })),
        }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].get()
    }

    pub(crate) fn counts(&self) -> EndCounts {
        EndCounts {
            bytes_sent: self.count(Counter::BytesSent),
            send_calls: self.count(Counter::SendCalls),
            failed_sends: self.count(Counter::FailedSends),
            bytes_received: self.count(Counter::BytesReceived),
            recv_calls: self.count(Counter::RecvCalls),
            transactions: self.count(Counter::Transactions),
            ..EndCounts::default()
        }
    }

    pub(crate) fn latencies(&self) -> Histogram {
        self.latencies.take()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.count(Counter::Lost)
    }

    /// Shows the last interim result, however short its interval is.
    pub(crate) fn finish(&self) {
        self.show_interim(clock::now(), Nanos::ZERO);
    }

    fn show_interim(&self, now: Nanos, at_least: Nanos) {
        let Some(interim) = &self.interim else { return };
        let mut interim = interim.borrow_mut();
        let span = now - interim.since;
        if span < at_least.max(Nanos(1)) {
            return;
        }
        let total =
            (self.count(Counter::BytesSent) + self.count(Counter::BytesReceived), self.count(Counter::Transactions));
        let (bytes, transactions) = (total.0 - interim.base.0, total.1 - interim.base.1);
        if bytes == 0 && at_least == Nanos::ZERO {
            return;
        }
        interim.since = now;
        interim.base = total;
        (interim.show)(InterimResult { bytes, transactions, span });
    }
}

impl TransferContext for TimedContext<'_, '_> {
    fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.counts[counter as usize];
        cell.set(cell.get() + amount);
    }

    fn is_over(&self) -> bool {
        let now = clock::now();
        if let Some(interim) = &self.interim {
            let interval = interim.borrow().interval;
            self.show_interim(now, interval);
        }
        if now >= self.next_look.get() {
            self.next_look.set(now + LOOK_INTERVAL);
            self.is_ended_by_server.set(self.control.interruption().is_some());
        }
        now >= self.deadline
            || self.is_ended_by_server.get()
            || self.count(Counter::Transactions) >= self.transactions_max
            || self.stop.state() != Stop::Continue
    }

    fn on_transaction(&self, time: Nanos) {
        self.latencies.borrow_mut().record(time.0);
    }
}
