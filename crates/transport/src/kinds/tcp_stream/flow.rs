//! One flow in the hands of its thread: when it ends, and how both sides know that all has arrived.
//!
//! The side that has had its time ends its direction; the other reads to the end and ends its own. How bytes are moved is `stream`'s.

use std::{
    cell::{Cell, RefCell},
    net::Shutdown,
};

use fathom_engine::{Session, Stop, Worker};
use fathom_model::{Side, units::Nanos};
use fathom_sys::{
    clock,
    socket::{self, Socket, Wait},
    tcp_info::{State, TcpInfo},
};

use crate::{
    causes::Causes,
    stream::{Account, Ended, Receiving, Sending, UncopiedSends},
};

/// How long the end of a stream may take to arrive.
const DRAIN_MAX: Nanos = Nanos::from_secs(3);
/// How many transfers there are before the sender looks whether the other side has had enough.
const LOOK_EVERY: u32 = 16;

/// One flow in the hands of its thread.
pub(in crate::kinds) struct Flow<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    side: Side,
    socket: &'a Socket,
    /// The place of its counter.
    counter: usize,
    n_transfers: Cell<u32>,
    /// Whether a wait has passed since the sender looked: long enough for the other side to have ended.
    has_waited: Cell<bool>,
    over_since: Cell<Option<Nanos>>,
    causes: RefCell<Causes>,
}

/// What a flow tells after its end.
#[derive(Debug, Default)]
pub(in crate::kinds) struct Told {
    pub(in crate::kinds) causes: Causes,
    /// Whether it was a sender.
    pub(in crate::kinds) sent: bool,
    pub(in crate::kinds) uncopied: Option<UncopiedSends>,
    /// The time in which a sender's own schedule could not be kept.
    pub(in crate::kinds) given_up: Nanos,
}

impl<'a> Flow<'a> {
    pub(in crate::kinds) fn new(
        worker: Worker<'a>,
        (session, side): (&'a Session, Side),
        of: (&'a Socket, usize),
    ) -> Self {
        Self {
            worker,
            session,
            side,
            socket: of.0,
            counter: of.1,
            n_transfers: Cell::new(0),
            has_waited: Cell::new(false),
            over_since: Cell::new(None),
            causes: RefCell::default(),
        }
    }

    /// Sends until the trial is over, then until the receiver has it all.
    pub(in crate::kinds) fn send(self, mut sending: Sending<'_>) -> Told {
        let sent = sending.run(&FromHere(&self));
        let given_up = sending.pace.map_or(Nanos::ZERO, |pace| pace.given_up());
        if let Err(error) = sent {
            self.causes.borrow_mut().count(&error);
            return Told { causes: self.causes.into_inner(), given_up, sent: true, ..Told::default() };
        }
        self.half_close();
        let begin = clock::now();
        while !self.is_lost(begin) {
            match socket::recv(self.socket, &mut [0; 64], Wait::Block) {
                Ok(Some(0)) => break,
                Ok(_) => {}
                Err(error) => {
                    self.causes.borrow_mut().count(&error);
                    break;
                }
            }
        }
        // A receiver that ended first has not told yet that it has everything.
        while self.is_unacknowledged() && !self.is_lost(begin) {
            clock::sleep_until(clock::now() + Nanos::from_millis(1));
        }
        let uncopied = sending.uncopied().unwrap_or_else(|error| {
            self.causes.borrow_mut().count(&error);
            None
        });
        Told { causes: self.causes.into_inner(), sent: true, uncopied, given_up }
    }

    /// Receives until the sender has ended.
    pub(in crate::kinds) fn receive(self, mut receiving: Receiving<'_>) -> Told {
        match receiving.run(&ToHere(&self)) {
            Ok(Ended::ByPeer) => self.half_close(),
            Ok(Ended::ByAccount) => {}
            Err(error) => self.causes.borrow_mut().count(&error),
        }
        Told { causes: self.causes.into_inner(), ..Told::default() }
    }

    fn count(&self, bytes: u64) {
        self.worker.add(self.counter, bytes);
    }

    /// Tells the other side that nothing more comes; an already broken connection needs no telling.
    fn half_close(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Whether both sides have ended and the end of this one has yet to be acknowledged.
    fn is_unacknowledged(&self) -> bool {
        TcpInfo::of(self.socket).is_ok_and(|info| info.state == State::LastAck)
    }

    fn has_peer_ended(&self) -> bool {
        matches!(socket::recv(self.socket, &mut [0; 64], Wait::Never), Ok(Some(0)) | Err(_))
    }

    /// A segment that is sent again and again without an answer is the sign of a path that lost its way, or its larger packets.
    fn why_late(&self) -> String {
        match TcpInfo::of(self.socket) {
            Ok(info) if info.unacked > 0 && info.retransmits > 0 => format!(
                "drain: segments of {} are sent again and never acknowledged: the path is broken, or drops packets of that size (try --mss)",
                info.snd_mss
            ),
            _ => "drain: timed out".to_owned(),
        }
    }

    /// Whether to give up on the end of a stream, because of an abort or of the time it takes.
    fn is_lost(&self, begin: Nanos) -> bool {
        if self.session.stop.told() == Stop::Abort {
            // Without a reset the kernel would go on sending what it has.
            let _ = socket::set_reset_on_close(self.socket);
            return true;
        }
        let late = clock::now() - begin > DRAIN_MAX;
        if late {
            self.causes.borrow_mut().note(&self.why_late());
        }
        late
    }
}

/// The account of a flow that sends.
struct FromHere<'a, 'b>(&'a Flow<'b>);

impl Account for FromHere<'_, '_> {
    fn count(&self, bytes: u64) {
        self.0.count(bytes);
        self.0.n_transfers.set(self.0.n_transfers.get().wrapping_add(1));
    }

    fn waited(&self) {
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
struct ToHere<'a, 'b>(&'a Flow<'b>);

impl Account for ToHere<'_, '_> {
    fn count(&self, bytes: u64) {
        self.0.count(bytes);
    }

    /// The time is over for the sender first: what it has sent is still received.
    fn is_over(&self) -> bool {
        let flow = self.0;
        if !flow.worker.is_over() {
            return false;
        }
        let since = flow.over_since.get().unwrap_or_else(|| {
            if flow.side == Side::Initiator {
                flow.half_close();
            }
            let now = clock::now();
            flow.over_since.set(Some(now));
            now
        });
        flow.is_lost(since)
    }
}

#[cfg(test)]
mod tests {
    use fathom_engine::{Crew, Until};
    use fathom_model::{Phases, names::count};
    use fathom_sys::socket::{SockFilter, SockRef};

    use super::*;
    use crate::{
        payload::Payload,
        stream::{Source, tests::pair},
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
    fn a_path_that_drops_what_is_large_is_named_with_the_size_and_the_way_out() {
        let (near, far) = pair();
        drop_large_segments(&far);
        let phases = Phases {
            warmup_max_ns: Nanos::ZERO,
            is_warmup_whole: false,
            measure_ns: Nanos::from_millis(50),
            interval_ns: Nanos::from_millis(10),
        };
        let session = Session::new(clock::now(), phases);
        let source = Source::Buffer(Payload::random(10_000, 1));
        let crew = Crew { states: vec![()], counters: &[count::BYTES_SENT], cores: &[], until: Until::PhasesOver };
        let conducted = crew.conduct(&session, &mut (), |worker, ()| {
            let flow = Flow::new(worker, (&session, Side::Initiator), (&near, 0));
            Ok(flow.send(Sending::new(&near, &source).unwrap()))
        });
        let conducted = conducted.unwrap();
        let mut record = conducted.record(Side::Initiator);
        conducted.workers.into_iter().for_each(|told| told.causes.add_to(&mut record));
        let causes: Vec<_> = record.errors.keys().collect();
        assert!(
            causes.len() == 1 && causes[0].contains("never acknowledged") && causes[0].contains("--mss"),
            "{causes:?}"
        );
    }
}
