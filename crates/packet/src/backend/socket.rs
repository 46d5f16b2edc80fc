//! Frames through an `AF_PACKET` socket, a batch in each system call: works wherever a packet socket may be opened.

use fathom_engine::{Error, Worker};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    packet_socket::{MAX_BATCH, Offer, Sender},
};

use super::{
    Backend, Generator, Load, Port, counter,
    course::{Course, Held},
};

/// `sendmmsg` on a packet socket.
#[derive(Debug)]
pub(super) struct Socket;

#[derive(Debug)]
struct Batches {
    sender: Sender,
    course: Course,
    batch: Batch,
}

/// Room for the frames of one system call.
#[derive(Debug)]
struct Batch {
    bytes: Vec<u8>,
    room: usize,
    lengths: [usize; MAX_BATCH],
    held: [Held; MAX_BATCH],
}

/// How long to wait at most for room in the send buffer before looking whether the trial is over.
const ROOM: Nanos = Nanos::from_millis(1);

impl Backend for Socket {
    fn word(&self) -> &'static str {
        "socket"
    }

    fn about(&self) -> &'static str {
        "a packet socket (sendmmsg)"
    }

    fn open(&self, port: &Port, load: Load) -> Result<Box<dyn Generator>, Error> {
        let what = || format!("open a packet socket on {}", port.name);
        let sender = Sender::open(port.ifindex, port.queueing, &port.permit)
            .map_err(|cause| Error::system(what(), "CAP_NET_RAW", cause))?;
        let room = load.blueprint.longest();
        let bytes = vec![0; room * MAX_BATCH];
        let batch = Batch { bytes, room, lengths: [0; MAX_BATCH], held: [None; MAX_BATCH] };
        Ok(Box::new(Batches { sender, course: Course::of(load), batch }))
    }
}

impl Batch {
    fn write(&mut self, course: &Course, n: usize) {
        let now = clock::now();
        let slots = self.bytes.chunks_exact_mut(self.room).zip(&mut self.lengths).zip(&mut self.held);
        for (((frame, length), held), turn) in slots.zip(course.turns()).take(n) {
            *length = course.write(frame, held, (turn, now));
        }
    }

    fn frames(&self, n: usize) -> impl Iterator<Item = &[u8]> {
        let slots = self.bytes.chunks_exact(self.room).zip(self.lengths);
        slots.take(n).map(|(frame, length)| &frame[..length])
    }
}

impl Generator for Batches {
    fn span(&self) -> Option<(Nanos, Nanos)> {
        self.course.span()
    }

    fn send(&mut self, worker: &Worker<'_>) -> fathom_sys::Result<()> {
        while !self.course.is_over(worker) {
            let n = self.course.due(worker, MAX_BATCH);
            if n == 0 {
                continue;
            }
            self.batch.write(&self.course, n);
            match self.sender.send(self.batch.frames(n))? {
                Offer::Accepted(n) => {
                    worker.add(counter::SENT, n as u64);
                    self.course.take(worker, n);
                }
                Offer::Dropped => {
                    worker.add(counter::REFUSED, 1);
                    self.course.take(worker, 1);
                }
                Offer::Busy => {
                    self.sender.wait(ROOM)?;
                }
            }
        }
        Ok(())
    }
}
