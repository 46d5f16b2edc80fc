//! One end of a conversation in turns over a connection: a request, its response, and again.
//!
//! The same steps serve the side that asks and the side that answers, with and without waiting. It measures nothing.

use std::sync::Arc;

use fathom_model::Side;
use fathom_sys::socket::{self, Socket, Wait};

use super::sizes::{Class, Sizes};

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Send,
    Receive,
}

/// What a step achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The whole message is with the kernel; the other side's turn begins.
    Sent,
    /// The whole message of the other side is here; ours begins.
    Received,
    /// A part was transferred: step again.
    Part,
    /// Nothing can be transferred now.
    NotNow,
    /// The other side has ended the conversation.
    Ended,
    /// What came is not what this protocol has there.
    Wrong,
}

/// What the errors of a record say of a message of the wrong kind or size.
pub(crate) const WRONG: &str = "recv: not the message that was due";

/// A connection and how far its turn has come.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) socket: Arc<Socket>,
    turn: Turn,
    class: Class,
    n_done: usize,
    /// Whether the conversation is one turn, behind which this end closes.
    closes: bool,
}

/// What a side has to say, and room for what it hears, shared by the conversations of a thread.
#[derive(Debug, Clone)]
pub(crate) struct Messages {
    sizes: Sizes,
    side: Side,
    out: Vec<Vec<u8>>,
    room: Vec<u8>,
}

/// What is received at once at most.
const ROOM_MAX: usize = 64 * 1024;

impl Messages {
    pub(crate) fn new(sizes: &Sizes, side: Side, seed: u64) -> Self {
        let longest = match side {
            Side::Initiator => sizes.longest_response(),
            Side::Responder => sizes.longest_request(),
        };
        // A byte more than there may be, so that too much is noticed.
        let room = vec![0; (longest + 1).min(ROOM_MAX)];
        Self { out: sizes.messages(side, seed), room, sizes: sizes.clone(), side }
    }

    /// The length of the message that is received in a turn.
    fn due(&self, class: Class) -> usize {
        match self.side {
            Side::Initiator => self.sizes.response(class),
            Side::Responder => self.sizes.request(class),
        }
    }
}

impl Talk {
    /// The end that begins with a request.
    pub(crate) fn asking(socket: Arc<Socket>, first: Class) -> Self {
        Self { socket, turn: Turn::Send, class: first, n_done: 0, closes: false }
    }

    /// The end that answers.
    pub(crate) fn answering(socket: Arc<Socket>) -> Self {
        Self { socket, turn: Turn::Receive, class: Class(0), n_done: 0, closes: false }
    }

    /// The end that answers once and closes then, which the caller does as soon as the answer is [`Step::Sent`].
    pub(crate) fn answering_once(socket: Arc<Socket>) -> Self {
        Self { closes: true, ..Self::answering(socket) }
    }

    /// Says which request comes next; only between turns.
    #[inline]
    pub(crate) fn ask_next(&mut self, class: Class) {
        self.class = class;
    }

    /// Transfers once.
    #[inline]
    pub(crate) fn step(&mut self, messages: &mut Messages, wait: Wait) -> fathom_sys::Result<Step> {
        let (done, whole, next) = match self.turn {
            Turn::Send => {
                let out = &messages.out[self.class.idx()];
                let send = if self.closes { socket::send_last } else { socket::send };
                (send(&self.socket, &out[self.n_done..], wait)?, out.len(), Turn::Receive)
            }
            Turn::Receive => {
                let done = match socket::recv(&self.socket, &mut messages.room, wait)? {
                    Some(0) => return Ok(Step::Ended),
                    done => done,
                };
                if self.n_done == 0 && done.is_some() && !self.begins_well(messages) {
                    return Ok(Step::Wrong);
                }
                (done, messages.due(self.class), Turn::Send)
            }
        };
        let Some(done) = done else { return Ok(Step::NotNow) };
        self.n_done += done;
        if self.n_done != whole {
            return Ok(if self.n_done < whole { Step::Part } else { Step::Wrong });
        }
        self.turn = next;
        self.n_done = 0;
        Ok(if next == Turn::Send { Step::Received } else { Step::Sent })
    }

    /// Whether the first byte of what was received is right; a responder learns from it what is asked.
    #[inline]
    fn begins_well(&mut self, messages: &Messages) -> bool {
        let Some(class) = messages.sizes.class(messages.room[0]) else { return false };
        match messages.side {
            Side::Initiator => class == self.class,
            Side::Responder => {
                self.class = class;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use fathom_model::units::Nanos;
    use fathom_sys::epoll::{Epoll, Events, Interest};

    use fathom_sys::policy::{Guests, Policy};

    use super::*;
    use crate::exchange::sizes::{Bounds, tests::role};

    fn pair() -> [Arc<Socket>; 2] {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket::listen(loopback, 1, &Guests::anybody()).unwrap();
        let near = socket::stream(loopback).unwrap();
        let to = Policy::anything().permit(socket::local_address(&listener).unwrap()).unwrap();
        socket::connect(&near, &to, Nanos::from_secs(1)).unwrap();
        let (epoll, mut events) = (Epoll::new().unwrap(), Events::with_capacity(1));
        epoll.add(&listener, 0, Interest::READ).unwrap();
        epoll.wait(&mut events, Some(Nanos::from_secs(1))).unwrap();
        let (far, _) = socket::accept(&listener).unwrap().unwrap();
        far.set_nonblocking(false).unwrap();
        [near, far].map(Arc::new)
    }

    #[test]
    fn a_turn_is_over_when_all_its_bytes_have_come_in_however_many_parts() {
        let [near, far] = pair();
        let sizes = Sizes::of(&role("3,70000", "200000").settings, 7, Bounds::STREAM).unwrap();
        let (mut asking, mut answering) = (Talk::asking(near, Class(1)), Talk::answering(far));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut messages = Messages::new(&sizes, Side::Responder, 1);
                let mut steps = std::iter::from_fn(|| Some(answering.step(&mut messages, Wait::Block).unwrap()));
                assert_eq!(steps.find(|step| *step != Step::Part), Some(Step::Received));
                assert_eq!(steps.find(|step| *step != Step::Part), Some(Step::Sent));
                assert_eq!(steps.next(), Some(Step::Ended));
            });
            let mut messages = Messages::new(&sizes, Side::Initiator, 1);
            let mut steps = std::iter::from_fn(|| Some(asking.step(&mut messages, Wait::Block).unwrap()));
            assert_eq!(steps.find(|step| *step != Step::Part), Some(Step::Sent));
            assert_eq!(steps.find(|step| *step != Step::Part), Some(Step::Received));
            drop(asking);
        });
    }

    #[test]
    fn an_answer_of_the_wrong_kind_or_size_is_noticed() {
        let sizes = Sizes::of(&role("1", "4").settings, 7, Bounds::STREAM).unwrap();
        for answer in [&[1, 2, 3, 4][..], &[0, 2, 3, 4, 5][..]] {
            let [near, far] = pair();
            let mut asking = Talk::asking(near, Class(0));
            let mut messages = Messages::new(&sizes, Side::Initiator, 1);
            assert_eq!(asking.step(&mut messages, Wait::Block).unwrap(), Step::Sent);
            socket::send(&far, answer, Wait::Block).unwrap();
            assert_eq!(asking.step(&mut messages, Wait::Block).unwrap(), Step::Wrong, "{answer:?}");
        }
    }

    #[test]
    fn a_request_that_no_class_has_is_noticed() {
        let [near, far] = pair();
        let sizes = Sizes::of(&role("4", "1").settings, 7, Bounds::STREAM).unwrap();
        socket::send(&near, b"GET / HTTP/1.1\r\n", Wait::Block).unwrap();
        let mut answering = Talk::answering(far);
        assert_eq!(answering.step(&mut Messages::new(&sizes, Side::Responder, 1), Wait::Block).unwrap(), Step::Wrong);
    }
}
