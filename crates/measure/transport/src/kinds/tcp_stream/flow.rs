//! One flow in the hands of its thread: when it ends, and how both sides know that all has arrived.
//!
//! The side that has had its time ends its direction; the other reads to the end and ends its own. How bytes are moved is `stream`'s.

use std::{
    cell::{Cell, RefCell},
    net::Shutdown,
    sync::atomic::{AtomicU64, Ordering},
};

use fathom_engine::{Stop, TrialContext, WorkerHandle};
use fathom_model::{Note, Record, Side, units::Nanos};
use fathom_sys::{
    clock,
    socket::{
        self, Socket, Wait,
        tcp_info::{TcpInfo, TcpState},
    },
};

use crate::{
    error_counts::ErrorCounts,
    stream::{ReceiveEnd, StreamControl, StreamReceiver, StreamSender, ZeroCopyCounts},
};

/// How long nothing may arrive of what is under way at the end, on any flow: on a slow path one of many waits for its turn.
const DRAIN_MAX: Nanos = Nanos::from_secs(3);
/// How long it may take to arrive in all: less than a controller waits for the end of a role.
const DRAIN_LONGEST: Nanos = Nanos::from_secs(10);
/// How many transfers there are before the sender looks whether the other side has had enough.
const LOOK_EVERY: u32 = 16;

/// One flow in the hands of its thread.
pub(in crate::kinds) struct Flow<'a> {
    worker: WorkerHandle<'a>,
    session: &'a TrialContext,
    side: Side,
    socket: &'a Socket,
    /// The place of its counter.
    counter: usize,
    n_transfers: Cell<u32>,
    /// Whether a wait has passed since the sender looked: long enough for the other side to have ended.
    has_waited: Cell<bool>,
    n_bytes: Cell<u64>,
    /// How the end arrives, once it is waited for.
    drain: Cell<Option<Drain>>,
    last_moved: &'a LastMoved,
    is_cut: Cell<bool>,
    errors: RefCell<ErrorCounts>,
}

/// What a flow tells after its end.
#[derive(Debug, Default)]
pub(in crate::kinds) struct FlowResult {
    pub(in crate::kinds) errors: ErrorCounts,
    /// Whether it was a sender.
    pub(in crate::kinds) sent: bool,
    pub(in crate::kinds) zero_copy: Option<ZeroCopyCounts>,
    /// The time in which a sender's own schedule could not be kept.
    pub(in crate::kinds) unrecovered: Nanos,
    /// Whether the rest was dropped that a slow path had not carried long after the end.
    is_cut: bool,
}

impl FlowResult {
    /// Writes down what went wrong, and what was dropped behind the end.
    pub(in crate::kinds) fn add_to(self, record: &mut Record) {
        const CUT: &str = "drain-cut";
        self.errors.add_to(record);
        if self.is_cut && record.notes.iter().all(|note| note.id != CUT) {
            let text = format!(
                "{DRAIN_LONGEST} after the end some flows still had bytes under way, which were dropped: the path is slow for what \
                 its queues and the sockets hold"
            );
            record.notes.push(Note { id: CUT.to_owned(), text });
        }
    }
}

impl<'a> Flow<'a> {
    pub(in crate::kinds) fn new(
        worker: WorkerHandle<'a>,
        (session, side): (&'a TrialContext, Side),
        of: (&'a Socket, usize),
        last_moved: &'a LastMoved,
    ) -> Self {
        Self {
            worker,
            session,
            side,
            socket: of.0,
            counter: of.1,
            n_transfers: Cell::new(0),
            has_waited: Cell::new(false),
            n_bytes: Cell::new(0),
            drain: Cell::new(None),
            last_moved,
            is_cut: Cell::new(false),
            errors: RefCell::default(),
        }
    }

    /// Sends until the trial is over, then until the receiver has it all.
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
        // A receiver that ended first has not told yet that it has everything.
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
        self.worker.add(self.counter, bytes);
        self.n_bytes.set(self.n_bytes.get() + bytes);
    }

    /// Takes note of a broken connection; that long behind the end the other side may have dropped the rest.
    fn record_error(&self, error: &fathom_sys::Error) {
        let earliest = self.session.start + self.session.phases.measure_ns + DRAIN_LONGEST;
        if error.is_abandoned() && clock::now() > earliest {
            return self.is_cut.set(true);
        }
        self.errors.borrow_mut().count(error);
    }

    /// How much of what was sent has arrived.
    fn n_acknowledged(&self) -> u64 {
        TcpInfo::of(self.socket).ok().and_then(|info| info.bytes_acked).unwrap_or_default().0
    }

    /// Tells the other side that nothing more comes; an already broken connection needs no telling.
    fn half_close(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Whether both sides have ended and the end of this one has yet to be acknowledged.
    fn is_unacknowledged(&self) -> bool {
        TcpInfo::of(self.socket).is_ok_and(|info| info.state == TcpState::LastAck)
    }

    fn has_peer_ended(&self) -> bool {
        matches!(socket::recv(self.socket, &mut [0; 64], Wait::Never), Ok(Some(0)) | Err(_))
    }

    /// A segment that is sent again and again without an answer is the sign of a path that lost its way, or its larger packets.
    fn stall_reason(&self) -> String {
        match TcpInfo::of(self.socket) {
            Ok(info) if info.unacked > 0 && info.retransmits > 0 => format!(
                "drain: segments of {} are sent again and never acknowledged: the path is broken, or drops packets of that size (try --mss)",
                info.snd_mss
            ),
            _ => "drain: timed out".to_owned(),
        }
    }

    /// Whether to give up on the end of a stream: aborted, nothing moves any more, or it takes too long although it does.
    fn is_drain_over(&self, n_moved: u64) -> bool {
        let now = clock::now();
        let mut drain = self.drain.get().unwrap_or_else(|| Drain::new(n_moved, now, self.last_moved));
        let left = drain.update(n_moved, now, self.last_moved);
        self.drain.set(Some(drain));
        match left {
            Some(DrainFailure::Stalled) => self.errors.borrow_mut().count_text(&self.stall_reason()),
            Some(DrainFailure::TooSlow) => self.is_cut.set(true),
            None => {}
        }
        let is_aborted = self.session.stop.state() == Stop::Abort;
        if is_aborted || left == Some(DrainFailure::TooSlow) {
            // Without a reset the kernel would go on sending what it has.
            let _ = socket::set_reset_on_close(self.socket);
        }
        is_aborted || left.is_some()
    }
}

/// What is given up behind the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainFailure {
    /// Nothing moves any more.
    Stalled,
    /// It moves, but for too long.
    TooSlow,
}

/// When bytes last moved behind the end, on any flow of a side.
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

/// How what is under way at the end arrives on one flow.
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

    /// Takes note of how much has moved by now; whether the rest is to be given up.
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

/// The account of a flow that sends.
struct SendControl<'a, 'b>(&'a Flow<'b>);

impl StreamControl for SendControl<'_, '_> {
    fn count(&self, bytes: u64) {
        self.0.count(bytes);
        self.0.n_transfers.set(self.0.n_transfers.get().wrapping_add(1));
    }

    fn on_wait(&self) {
        self.0.has_waited.set(true);
    }

    /// A responder is not told by its own clock: it looks from time to time whether the other side has had enough.
    fn is_over(&self) -> bool {
        let flow = self.0;
        let is_time = flow.has_waited.take() || flow.n_transfers.get().is_multiple_of(LOOK_EVERY);
        flow.worker.is_over() || (flow.side == Side::Responder && is_time && flow.has_peer_ended())
    }
}

/// The account of a flow that receives.
struct ReceiveControl<'a, 'b>(&'a Flow<'b>);

impl StreamControl for ReceiveControl<'_, '_> {
    fn count(&self, bytes: u64) {
        self.0.count(bytes);
    }

    /// The time is over for the sender first: what it has sent is still received.
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
    use fathom_model::{Phases, names::count};
    use fathom_sys::socket::{SockFilter, SockRef};

    use super::*;
    use crate::{
        payload::Payload,
        stream::{SendSource, tests::pair},
    };

    /// A receiver whose kernel drops segments of more than 500 bytes, as a path does that has lost their error messages.
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
        let session = TrialContext::new(clock::now(), phases);
        let source = SendSource::Buffer(Payload::random(10_000, 1));
        let last_moved = LastMoved::default();
        let crew = WorkerPool {
            states: vec![()],
            counters: &[count::BYTES_SENT],
            cores: &[],
            until: EndCondition::PhasesOver,
        };
        let conducted = crew.run(&session, &mut (), |worker, ()| {
            let flow = Flow::new(worker, (&session, Side::Initiator), (&near, 0), &last_moved);
            Ok(flow.send(StreamSender::new(&near, &source).unwrap()))
        });
        let conducted = conducted.unwrap();
        let mut record = conducted.record(Side::Initiator);
        conducted.workers.into_iter().for_each(|told| told.add_to(&mut record));
        let causes: Vec<_> = record.errors.keys().collect();
        assert!(
            causes.len() == 1 && causes[0].contains("never acknowledged") && causes[0].contains("--mss"),
            "{causes:?}"
        );
    }
}
