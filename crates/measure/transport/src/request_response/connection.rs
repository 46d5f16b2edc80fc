//! One end of a connection that exchanges requests and responses in turn.
//!
//! The same steps serve the initiator and the responder, blocking or not. This module measures nothing.

use std::{mem, sync::Arc};

use fathom_model::{SampledConnection, Side};
use fathom_sys::socket::{self, Socket, Wait};

use super::{
    sizes::{ANNOUNCEMENT, MessageSizes, SizeClass},
    unit_stamps::UnitStamps,
};

/// The side whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextTransfer {
    Send,
    Receive,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferStep {
    /// The kernel has the whole message; the other side is next.
    Sent,
    /// The whole message of the other side has arrived; this side is next.
    Received,
    /// A part was transferred: step again.
    Partial,
    /// Nothing can be transferred now.
    WouldBlock,
    /// The other side has closed the connection.
    Closed,
    /// The received bytes violate the protocol.
    Unexpected,
}

/// The error text for a message of the wrong class or size.
pub(crate) const UNEXPECTED_MESSAGE: &str = "recv: not the message that was due";

/// A connection and the progress of its current message.
#[derive(Debug)]
pub(crate) struct RrConnection {
    pub(crate) socket: Arc<Socket>,
    direction: NextTransfer,
    class: SizeClass,
    n_done: usize,
    /// Whether this end closes after one exchange.
    closes: bool,
    stamps: Option<Box<UnitStamps>>,
    is_stamped: bool,
    /// Whether the exchange after the current one is stamped.
    is_next_stamped: bool,
    n_exchanges: u64,
}

/// The messages that a side sends, and room for those it receives, shared by the connections of a thread.
#[derive(Debug, Clone)]
pub(crate) struct MessageBuffers {
    sizes: MessageSizes,
    side: Side,
    out: Vec<Vec<u8>>,
    room: Vec<u8>,
}

/// The most bytes of one receive.
const ROOM_MAX: usize = 64 * 1024;

impl MessageBuffers {
    pub(crate) fn new(sizes: &MessageSizes, side: Side, seed: u64) -> Self {
        let longest = match side {
            Side::Initiator => sizes.longest_response(),
            Side::Responder => sizes.longest_request(),
        };
        // One byte more than a valid message, so that excess data is noticed.
        let room = vec![0; (longest + 1).min(ROOM_MAX)];
        Self { out: sizes.messages(side, seed), room, sizes: sizes.clone(), side }
    }

    /// The length of the message to be received.
    fn expected_length(&self, class: SizeClass) -> usize {
        match self.side {
            Side::Initiator => self.sizes.response(class),
            Side::Responder => self.sizes.request(class),
        }
    }
}

impl RrConnection {
    /// The end that begins with a request.
    pub(crate) fn initiator(socket: Arc<Socket>, first: SizeClass) -> Self {
        Self { direction: NextTransfer::Send, class: first, ..Self::responder(socket) }
    }

    /// The end that answers.
    pub(crate) fn responder(socket: Arc<Socket>) -> Self {
        Self {
            socket,
            direction: NextTransfer::Receive,
            class: SizeClass(0),
            n_done: 0,
            closes: false,
            stamps: None,
            is_stamped: false,
            is_next_stamped: false,
            n_exchanges: 0,
        }
    }

    /// The end that answers once; the caller closes it after the answer is [`TransferStep::Sent`].
    pub(crate) fn responder_once(socket: Arc<Socket>) -> Self {
        Self { closes: true, ..Self::responder(socket) }
    }

    /// The same with stamps of those exchanges that the initiator announces.
    pub(crate) fn stamped(self, side: Side) -> Self {
        Self { stamps: Some(Box::new(UnitStamps::new(&self.socket, side))), ..self }
    }

    /// Sets the class of the next request; call this only between exchanges.
    #[inline]
    pub(crate) fn set_next_request(&mut self, class: SizeClass) {
        self.class = class;
    }

    /// Announces with the next request that the exchange after it is stamped; call this after [`RrConnection::end_exchange`].
    pub(crate) fn announce(&mut self) {
        self.is_next_stamped = self.stamps.is_some();
    }

    /// Ends the exchange after its second message. Returns whether that took longer than usual, since it was stamped.
    #[inline]
    pub(crate) fn end_exchange(&mut self) -> bool {
        self.n_exchanges += 1;
        let was_stamped = mem::take(&mut self.is_stamped);
        if !was_stamped && !self.is_next_stamped {
            return false;
        }
        if let Some(stamps) = self.stamps.as_mut() {
            if was_stamped {
                stamps.end(&self.socket);
            }
            self.is_stamped = mem::take(&mut self.is_next_stamped) && stamps.begin(&self.socket, self.n_exchanges);
        }
        true
    }

    /// What the stamps tell.
    pub(crate) fn into_sampled(self) -> Option<SampledConnection> {
        self.stamps?.into_sampled(&self.socket, None)
    }

    /// Transfers data once.
    #[inline]
    pub(crate) fn step(&mut self, messages: &mut MessageBuffers, wait: Wait) -> fathom_sys::Result<TransferStep> {
        let (done, whole, next) = match self.direction {
            NextTransfer::Send => {
                let announces = self.is_next_stamped && messages.side == Side::Initiator;
                let out = &mut messages.out[self.class.idx()];
                out[0] = self.class.0 | if announces { ANNOUNCEMENT } else { 0 };
                let rest = &out[self.n_done..];
                let sent = match &mut self.stamps {
                    Some(stamps) if self.is_stamped => stamps.send(&self.socket, rest, wait),
                    _ if self.closes => socket::send_last(&self.socket, rest, wait),
                    _ => socket::send(&self.socket, rest, wait),
                };
                (sent?, out.len(), NextTransfer::Receive)
            }
            NextTransfer::Receive => {
                let received = match &mut self.stamps {
                    Some(stamps) if self.is_stamped => stamps.recv(&self.socket, &mut messages.room, wait),
                    _ => socket::recv(&self.socket, &mut messages.room, wait),
                };
                let done = match received? {
                    Some(0) => return Ok(TransferStep::Closed),
                    done => done,
                };
                if self.n_done == 0 && done.is_some() && !self.has_expected_class(messages) {
                    return Ok(TransferStep::Unexpected);
                }
                (done, messages.expected_length(self.class), NextTransfer::Send)
            }
        };
        let Some(done) = done else { return Ok(TransferStep::WouldBlock) };
        self.n_done += done;
        if self.n_done != whole {
            return Ok(if self.n_done < whole { TransferStep::Partial } else { TransferStep::Unexpected });
        }
        self.direction = next;
        self.n_done = 0;
        Ok(if next == NextTransfer::Send { TransferStep::Received } else { TransferStep::Sent })
    }

    /// Checks the first byte of a received message; a responder learns the class of the request from it.
    #[inline]
    fn has_expected_class(&mut self, messages: &MessageBuffers) -> bool {
        let first = messages.room[0];
        match messages.side {
            Side::Initiator => first == self.class.0,
            Side::Responder => {
                let Some(class) = messages.sizes.class(first) else { return false };
                self.class = class;
                self.is_next_stamped = first & ANNOUNCEMENT != 0;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use fathom_model::units::Nanos;
    use fathom_sys::reactor::epoll_wait::{Epoll, Interest, ReadyList};

    use fathom_sys::policy::{AllowedPeers, Policy};

    use super::*;
    use crate::request_response::sizes::{SizeBounds, tests::role};

    fn pair() -> [Arc<Socket>; 2] {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket::listen(loopback, 1, &AllowedPeers::anybody()).unwrap();
        let near = socket::stream(loopback).unwrap();
        let to = Policy::anything().permit(socket::local_address(&listener).unwrap()).unwrap();
        socket::connect(&near, &to, Nanos::from_secs(1)).unwrap();
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(1));
        epoll.add(&listener, 0, Interest::READ).unwrap();
        epoll.wait(&mut events, Some(Nanos::from_secs(1))).unwrap();
        let (far, _) = socket::accept(&listener).unwrap().unwrap();
        far.set_nonblocking(false).unwrap();
        [near, far].map(Arc::new)
    }

    #[test]
    fn a_turn_is_over_when_all_its_bytes_have_come_in_however_many_parts() {
        let [near, far] = pair();
        let sizes = MessageSizes::of(&role("3,70000", "200000").settings, 7, SizeBounds::STREAM).unwrap();
        let (mut asking, mut answering) = (RrConnection::initiator(near, SizeClass(1)), RrConnection::responder(far));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut messages = MessageBuffers::new(&sizes, Side::Responder, 1);
                let mut steps = std::iter::from_fn(|| Some(answering.step(&mut messages, Wait::Block).unwrap()));
                assert_eq!(steps.find(|step| *step != TransferStep::Partial), Some(TransferStep::Received));
                assert_eq!(steps.find(|step| *step != TransferStep::Partial), Some(TransferStep::Sent));
                assert_eq!(steps.next(), Some(TransferStep::Closed));
            });
            let mut messages = MessageBuffers::new(&sizes, Side::Initiator, 1);
            let mut steps = std::iter::from_fn(|| Some(asking.step(&mut messages, Wait::Block).unwrap()));
            assert_eq!(steps.find(|step| *step != TransferStep::Partial), Some(TransferStep::Sent));
            assert_eq!(steps.find(|step| *step != TransferStep::Partial), Some(TransferStep::Received));
            drop(asking);
        });
    }

    #[test]
    fn an_answer_of_the_wrong_kind_or_size_is_noticed() {
        let sizes = MessageSizes::of(&role("1", "4").settings, 7, SizeBounds::STREAM).unwrap();
        for answer in [&[1, 2, 3, 4][..], &[0, 2, 3, 4, 5][..]] {
            let [near, far] = pair();
            let mut asking = RrConnection::initiator(near, SizeClass(0));
            let mut messages = MessageBuffers::new(&sizes, Side::Initiator, 1);
            assert_eq!(asking.step(&mut messages, Wait::Block).unwrap(), TransferStep::Sent);
            socket::send(&far, answer, Wait::Block).unwrap();
            assert_eq!(asking.step(&mut messages, Wait::Block).unwrap(), TransferStep::Unexpected, "{answer:?}");
        }
    }

    #[test]
    fn a_request_that_no_class_has_is_noticed() {
        let [near, far] = pair();
        let sizes = MessageSizes::of(&role("4", "1").settings, 7, SizeBounds::STREAM).unwrap();
        socket::send(&near, b"GET / HTTP/1.1\r\n", Wait::Block).unwrap();
        let mut answering = RrConnection::responder(far);
        assert_eq!(
            answering.step(&mut MessageBuffers::new(&sizes, Side::Responder, 1), Wait::Block).unwrap(),
            TransferStep::Unexpected
        );
    }
}
