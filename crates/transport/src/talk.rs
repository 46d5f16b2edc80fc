//! One end of a conversation in turns: so many bytes out, so many bytes in, again and again.
//!
//! The same steps serve the side that asks and the side that answers, with and without waiting. It measures nothing.

use std::sync::Arc;

use fathom_sys::socket::{self, Socket, Wait};

/// What one turn of each direction is long, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turns {
    pub(crate) out: usize,
    pub(crate) back: usize,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Send,
    Receive,
}

/// What a step achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The whole turn out is with the kernel; the other side's turn begins.
    Sent,
    /// The whole turn of the other side is here; ours begins.
    Received,
    /// A part was transferred: step again.
    Part,
    /// Nothing can be transferred now.
    NotNow,
    /// The other side has ended the conversation.
    Ended,
}

/// A connection and how far its turn has come.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) socket: Arc<Socket>,
    pub(crate) turn: Turn,
    turns: Turns,
    left: usize,
}

/// The bytes of a turn out, and room for bytes of a turn back, shared by the conversations of a thread.
#[derive(Debug, Clone)]
pub(crate) struct Buffers {
    out: Vec<u8>,
    room: Vec<u8>,
}

/// What is received at once at most.
const ROOM_MAX: usize = 64 * 1024;

impl Buffers {
    pub(crate) fn new(turns: Turns, seed: u64) -> Self {
        let mut out = vec![0; turns.out];
        crate::payload::fill(&mut out, seed);
        Self { out, room: vec![0; turns.back.min(ROOM_MAX)] }
    }
}

impl Talk {
    pub(crate) fn new(socket: Arc<Socket>, first: Turn, turns: Turns) -> Self {
        let left = if first == Turn::Send { turns.out } else { turns.back };
        Self { socket, turn: first, turns, left }
    }

    /// Transfers once.
    #[inline]
    pub(crate) fn step(&mut self, buffers: &mut Buffers, wait: Wait) -> fathom_sys::Result<Step> {
        let (done, next) = match self.turn {
            Turn::Send => {
                (socket::send(&self.socket, &buffers.out[self.turns.out - self.left..], wait)?, Turn::Receive)
            }
            Turn::Receive => {
                let room = buffers.room.len().min(self.left);
                match socket::recv(&self.socket, &mut buffers.room[..room], wait)? {
                    Some(0) => return Ok(Step::Ended),
                    done => (done, Turn::Send),
                }
            }
        };
        let Some(done) = done else { return Ok(Step::NotNow) };
        self.left -= done;
        if self.left > 0 {
            return Ok(Step::Part);
        }
        self.turn = next;
        self.left = if next == Turn::Send { self.turns.out } else { self.turns.back };
        Ok(if next == Turn::Send { Step::Received } else { Step::Sent })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use fathom_model::units::Nanos;
    use fathom_sys::epoll::{Epoll, Events, Interest};

    use super::*;

    fn pair() -> [Arc<Socket>; 2] {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket::listen(loopback, 1).unwrap();
        let near = socket::stream(loopback).unwrap();
        socket::connect(&near, socket::local_address(&listener).unwrap(), Nanos::from_secs(1)).unwrap();
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
        let (asks, answers) = (Turns { out: 3, back: 200_000 }, Turns { out: 200_000, back: 3 });
        let mut asking = Talk::new(near, Turn::Send, asks);
        let mut answering = Talk::new(far, Turn::Receive, answers);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut buffers = Buffers::new(answers, 1);
                let mut steps = std::iter::from_fn(|| Some(answering.step(&mut buffers, Wait::Block).unwrap()));
                assert_eq!(steps.next(), Some(Step::Received));
                assert_eq!(steps.find(|step| *step != Step::Part), Some(Step::Sent));
                assert_eq!(steps.next(), Some(Step::Ended));
            });
            let mut buffers = Buffers::new(asks, 1);
            let mut steps = std::iter::from_fn(|| Some(asking.step(&mut buffers, Wait::Block).unwrap()));
            assert_eq!(steps.next(), Some(Step::Sent));
            assert_eq!(steps.find(|step| *step != Step::Part), Some(Step::Received));
            drop(asking);
        });
    }
}
