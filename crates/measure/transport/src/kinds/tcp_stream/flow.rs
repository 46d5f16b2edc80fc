//! One flow on its thread: when it ends, and how both sides know that all has arrived.
//!
//! The sender closes its direction when its time is over; the receiver reads to the end and closes its own. `stream` moves the bytes.

use std::{
    cell::{Cell, RefCell},
    net::Shutdown,
    sync::atomic::{AtomicU64, Ordering},
};

use fathom_engine::{Stop, TrialContext, WorkerHandle};
use fathom_model::{Cause, Failure, FailureCounts, Note, Record, Side, Stage, units::Nanos};
use fathom_sys::{
    clock,
    socket::{
        self, Socket, Wait,
        tcp_info::{TcpInfo, TcpState},
    },
};

use crate::{
    stream::{ReceiveEnd, StreamControl, StreamReceiver, StreamSender, ZeroCopyCounts},
    worker_reading::WorkerReading,
};

/// How long no bytes in flight may arrive at the end, on any flow: on a slow path one of many flows waits for its turn.
const DRAIN_MAX: Nanos = Nanos::from_secs(3);
/// How long their arrival may take in total: less than a controller waits for the end of a role.
const DRAIN_LONGEST: Nanos = Nanos::from_secs(10);
/// The number of transfers between two checks of the sender whether the receiver has ended.
const LOOK_EVERY: u32 = 16;

/// One flow on its thread.
pub(in crate::kinds) struct Flow<'a> {
    worker: WorkerHandle<'a>,
    context: &'a TrialContext,
    side: Side,
    socket: &'a Socket,
    reading: &'a WorkerReading,
    n_transfers: Cell<u32>,
    /// Whether the sender has waited since its last check: long enough for the receiver to have ended.
    has_waited: Cell<bool>,
    n_bytes: Cell<u64>,
    /// The arrival of the last bytes, once it is awaited.
    drain: Cell<Option<Drain>>,
    last_moved: &'a LastMoved,
    is_cut: Cell<bool>,
    errors: RefCell<FailureCounts>,
}

/// The results of a flow.
#[derive(Debug, Default)]
pub(in crate::kinds) struct FlowResult {
    pub(in crate::kinds) errors: FailureCounts,
    /// Whether it was a sender.
    pub(in crate::kinds) sent: bool,
    pub(in crate::kinds) zero_copy: Option<ZeroCopyCounts>,
    /// The time for which a sender could not keep its own schedule.
    pub(in crate::kinds) unrecovered: Nanos,
    /// Whether the rest was dropped because a slow path had not carried it long after the end.
    is_cut: bool,
}

impl FlowResult {
    /// Adds errors, and a note on data dropped after the end, to a record.
    pub(in crate::kinds) fn add_to(self, record: &mut Record) {
        const CUT: &str = "drain-cut";
        record.errors.extend(self.errors);
        if self.is_cut && record.notes.iter().all(|note| note.id != CUT) {
            let text = format!(
                "{DRAIN_LONGEST} after the end some flows still had bytes in flight; these were dropped: the path is slow for the \
                 bytes that its queues and the sockets hold"
            );
            record.notes.push(Note::new(CUT, text));
        }
    }
}

impl<'a> Flow<'a> {
    pub(in crate::kinds) fn new(
        worker: WorkerHandle<'a>,
        context: &'a TrialContext,
        side: Side,
        of: (&'a Socket, &'a WorkerReading),
        last_moved: &'a LastMoved,
    ) -> Self {
        Self {
            worker,
            context,
            side,
            socket: of.0,
            reading: of.1,
            n_transfers: Cell::new(0),
            has_waited: Cell::new(false),
            n_bytes: Cell::new(0),
            drain: Cell::new(None),
            last_moved,
            is_cut: Cell::new(false),
            errors: RefCell::default(),
        }
    }

    /// Sends until the trial is over, then until the receiver has everything.
    pub(in crate::kinds) fn send(self, mut sending: StreamSender<'_>) -> FlowResult {
        let sent = sending.run(&SendControl(&self));
        let given_up = sending.schedule.map_or(Nanos::ZERO, |pace| pace.unrecovered());
        if let Err(error) = sent {
            self.record_error(&error);
            return FlowResult { unrecovered: given_up, sent: true, ..self.result() };
        }
        self.half_close();
        while !self.is_drain_over(self.n_acknowledged()) {
            match socket::recv(self.socket, &mut [0; 64], Wait::Block) {
                Ok(Some(0)) => break,
                Ok(_) => {}
                Err(error) => {
                    self.record_error(&error);
                    break;
                }
            }
        }
        // A receiver that ended first has not yet confirmed that it has everything.
        while self.is_unacknowledged() && !self.is_drain_over(self.n_acknowledged()) {
            clock::sleep_until(clock::now() + Nanos::from_millis(1));
        }
        let uncopied = sending.zero_copy_counts().unwrap_or_else(|error| {
            self.errors.borrow_mut().count(&error);
            None
        });
        FlowResult { sent: true, zero_copy: uncopied, unrecovered: given_up, ..self.result() }
    }

    /// Receives until the sender has ended.
    pub(in crate::kinds) fn receive(self, mut receiving: StreamReceiver<'_>) -> FlowResult {
        match receiving.run(&ReceiveControl(&self)) {
            Ok(ReceiveEnd::ByPeer) => self.half_close(),
            Ok(ReceiveEnd::Stopped) => {}
            Err(error) => self.record_error(&error),
        }
        self.result()
    }

    fn result(&self) -> FlowResult {
        FlowResult { errors: self.errors.take(), is_cut: self.is_cut.get(), ..FlowResult::default() }
    }

    fn count(&self, bytes: u64) {
        self.worker.add(self.reading.payload.counter, bytes);
        self.n_bytes.set(self.n_bytes.get() + bytes);
        self.reading.answer(self.socket, || (clock::now().since(self.worker.start), self.n_bytes.get()));
    }

    /// Records a broken connection; this long after the end, the other side may have dropped the rest.
    fn record_error(&self, error: &fathom_sys::Error) {
        let earliest = self.context.start + self.context.phases.measure_ns + DRAIN_LONGEST;
        if error.is_abandoned() && clock::now() > earliest {
            return self.is_cut.set(true);
        }
        self.errors.borrow_mut().count(error);
    }

    /// The bytes that have arrived.
    fn n_acknowledged(&self) -> u64 {
        TcpInfo::of(self.socket).ok().and_then(|info| info.bytes_acked).unwrap_or_default().0
    }

    /// Tells the peer that nothing more follows; an already broken connection does not need it.
    fn half_close(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Whether both sides have ended and the end of this side is not acknowledged yet.
    fn is_unacknowledged(&self) -> bool {
        TcpInfo::of(self.socket).is_ok_and(|info| info.state == TcpState::LastAck)
    }

    fn has_peer_ended(&self) -> bool {
        matches!(socket::recv(self.socket, &mut [0; 64], Wait::Never), Ok(Some(0)) | Err(_))
    }

    /// A segment that is retransmitted without an answer indicates a path that has failed, or that drops its larger packets.
    fn stall_cause(&self) -> Cause {
        match TcpInfo::of(self.socket) {
            Ok(info) if info.unacked > 0 && info.retransmits > 0 => Cause::NeverAcknowledged,
            _ => Cause::Timeout,
        }
    }

    /// Whether to give up on the end of a stream: on an abort, if nothing moves any more, or if it moves for too long.
    fn is_drain_over(&self, n_moved: u64) -> bool {
        let now = clock::now();
        let mut drain = self.drain.get().unwrap_or_else(|| Drain::new(n_moved, now, self.last_moved));
        let left = drain.update(n_moved, now, self.last_moved);
        self.drain.set(Some(drain));
        match left {
            Some(DrainFailure::Stalled) => {
                self.errors.borrow_mut().count(Failure { stage: Stage::Drain, cause: self.stall_cause() });
            }
            Some(DrainFailure::TooSlow) => self.is_cut.set(true),
            None => {}
        }
        let is_aborted = self.context.stop.state() == Stop::Abort;
        if is_aborted || left == Some(DrainFailure::TooSlow) {
            // Without a reset the kernel would continue to send its data.
            let _ = socket::set_reset_on_close(self.socket);
        }
        is_aborted || left.is_some()
    }
}

/// Why the end of a stream is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainFailure {
    /// Nothing moves any more.
    Stalled,
    /// It moves, but takes too long.
    TooSlow,
}

/// When bytes last moved after the end, on any flow of a side.
#[derive(Debug, Default)]
pub(in crate::kinds) struct LastMoved(AtomicU64);

impl LastMoved {
    fn note(&self, now: Nanos) {
        self.0.fetch_max(now.0, Ordering::Relaxed);
    }

    fn at(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The arrival of one flow's last bytes.
#[derive(Debug, Clone, Copy)]
struct Drain {
    begin: Nanos,
    n_moved: u64,
}

impl Drain {
    fn new(n_moved: u64, begin: Nanos, last_moved: &LastMoved) -> Self {
        last_moved.note(begin);
        Self { begin, n_moved }
    }

    /// Updates the number of moved bytes. Returns whether and why to give up the rest.
    fn update(&mut self, n_moved: u64, now: Nanos, last_moved: &LastMoved) -> Option<DrainFailure> {
        if n_moved > self.n_moved {
            self.n_moved = n_moved;
            last_moved.note(now);
        }
        if now - last_moved.at() > DRAIN_MAX {
            return Some(DrainFailure::Stalled);
        }
        (now - self.begin > DRAIN_LONGEST).then_some(DrainFailure::TooSlow)
    }
}

/// The control of a flow that sends.
struct SendControl<'a, 'b>(&'a Flow<'b>);

impl StreamControl for SendControl<'_, '_> {
    fn count(&self, bytes: u64) {
        self.0.count(bytes);
        self.0.n_transfers.set(self.0.n_transfers.get().wrapping_add(1));
    }

    fn on_wait(&self) {
        self.0.has_waited.set(true);
    }

    /// A responder does not end by its own clock: it checks from time to time whether the receiver has ended.
    fn is_over(&self) -> bool {
        let flow = self.0;
        let is_time = flow.has_waited.take() || flow.n_transfers.get().is_multiple_of(LOOK_EVERY);
        flow.worker.is_over() || (flow.side == Side::Responder && is_time && flow.has_peer_ended())
    }
}

/// The control of a flow that receives.
struct ReceiveControl<'a, 'b>(&'a Flow<'b>);

impl StreamControl for ReceiveControl<'_, '_> {
    fn count(&self, bytes: u64) {
        self.0.count(bytes);
    }

    /// The sender's time is over first: its bytes in flight are still received.
    fn is_over(&self) -> bool {
        let flow = self.0;
        if !flow.worker.is_over() {
            return false;
        }
        if flow.drain.get().is_none() && flow.side == Side::Initiator {
            flow.half_close();
        }
        flow.is_drain_over(flow.n_bytes.get())
    }
}

#[cfg(test)]
mod tests {
    use fathom_engine::{EndCondition, WorkerPool};
    use fathom_model::{
        Phases,
        names::{count, tcp},
    };
    use fathom_sys::socket::{SockFilter, SockRef};

    use super::*;
    use crate::{
        payload::Payload,
        stream::{SendSource, tests::pair},
        worker_reading::PayloadCount,
    };

    /// Makes the receiver's kernel drop segments of more than 500 bytes, like a path that drops large packets without an ICMP error.
    fn drop_large_segments(receiver: &Socket) {
        let load_length = SockFilter::new(0x80, 0, 0, 0);
        let if_more_skip_one = SockFilter::new(0x25, 1, 0, 500);
        let keep = SockFilter::new(0x06, 0, 0, u32::MAX);
        let drop = SockFilter::new(0x06, 0, 0, 0);
        SockRef::from(receiver).attach_filter(&[load_length, if_more_skip_one, keep, drop]).unwrap();
    }

    #[test]
    fn an_end_that_goes_on_arriving_is_waited_for_and_one_that_stands_is_not() {
        let secs = Nanos::from_secs;
        let of_all = LastMoved::default();
        let mut standing = Drain::new(5, secs(100), &of_all);
        assert_eq!(standing.update(5, secs(103), &of_all), None);
        assert_eq!(standing.update(5, secs(104), &of_all), Some(DrainFailure::Stalled));
        let of_all = LastMoved::default();
        let mut slow = Drain::new(5, secs(100), &of_all);
        for second in 1..=10 {
            assert_eq!(slow.update(5 + second, secs(100 + second), &of_all), None, "after {second} s");
        }
        assert_eq!(
            slow.update(20, secs(111), &of_all),
            Some(DrainFailure::TooSlow),
            "it would keep the next trial from its start"
        );
        slow.update(21, secs(111), &of_all);
        assert_eq!(slow.update(21, secs(115), &of_all), Some(DrainFailure::Stalled));
    }

    #[test]
    fn a_flow_that_waits_for_its_turn_is_not_given_up_while_others_move() {
        let secs = Nanos::from_secs;
        let of_all = LastMoved::default();
        let (mut waiting, mut moving) = (Drain::new(5, secs(100), &of_all), Drain::new(5, secs(100), &of_all));
        for second in 1..=6 {
            assert_eq!(moving.update(5 + second, secs(100 + second), &of_all), None);
            assert_eq!(waiting.update(5, secs(100 + second), &of_all), None, "after {second} s");
        }
        assert_eq!(waiting.update(5, secs(110), &of_all), Some(DrainFailure::Stalled), "the others have ended");
    }

    #[test]
    fn a_path_that_drops_what_is_large_is_named_with_the_size_and_the_way_out() {
        let (near, far) = pair();
        drop_large_segments(&far);
        let phases = Phases {
            warmup_max_ns: Nanos::ZERO,
            is_warmup_whole: false,
            measure_ns: Nanos::from_millis(50),
            interval_ns: Nanos::from_millis(10),
        };
        let context = TrialContext::new(clock::now(), phases);
        let source = SendSource::Buffer(Payload::random(10_000, 1));
        let last_moved = LastMoved::default();
        let reading = WorkerReading::new(PayloadCount { name: tcp::PAYLOAD_BYTES_SENT, counter: 0 });
        let crew = WorkerPool {
            states: vec![()],
            counters: &[count::BYTES_SENT],
            cores: &[],
            until: EndCondition::PhasesOver,
        };
        let trial_results = crew.run(&context, &mut (), |worker, ()| {
            let flow = Flow::new(worker, &context, Side::Initiator, (&near, &reading), &last_moved);
            Ok(flow.send(StreamSender::new(&near, &source).unwrap()))
        });
        let trial_results = trial_results.unwrap();
        let mut record = trial_results.record(Side::Initiator);
        trial_results.workers.into_iter().for_each(|told| told.add_to(&mut record));
        let causes: Vec<_> = record.errors.keys().map(|failure| &failure.cause).collect();
        assert_eq!(causes, [&Cause::NeverAcknowledged]);
    }
}
