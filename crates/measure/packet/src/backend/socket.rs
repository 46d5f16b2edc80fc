//! Frames through an `AF_PACKET` socket, one batch per system call. Works wherever a packet socket can be opened.

use fathom_engine::{Error, WorkerHandle};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    packet::packet_socket::{MAX_BATCH, OfferResult, Sender},
};

use super::{
    Backend, Generator, OutputDevice, WorkerLoad, counter,
    send_progress::{LastTemplate, SendProgress},
};

/// `sendmmsg` on a packet socket.
#[derive(Debug)]
pub(super) struct Socket;

#[derive(Debug)]
struct SocketGenerator {
    sender: Sender,
    progress: SendProgress,
    batch: FrameBatch,
}

/// Buffers for the frames of one system call.
#[derive(Debug)]
struct FrameBatch {
    bytes: Vec<u8>,
    room: usize,
    lengths: [usize; MAX_BATCH],
    last_templates: [LastTemplate; MAX_BATCH],
}

/// The longest wait for room in the send buffer between two checks for the end of the trial.
const ROOM: Nanos = Nanos::from_millis(1);

impl Backend for Socket {
    fn option_value(&self) -> &'static str {
        "socket"
    }

    fn description(&self) -> &'static str {
        "a packet socket (sendmmsg)"
    }

    fn open(&self, port: &OutputDevice, load: WorkerLoad) -> Result<Box<dyn Generator>, Error> {
        let what = || format!("open a packet socket on {}", port.name);
        let sender = Sender::open(port.ifindex, port.queueing, &port.permit)
            .map_err(|cause| Error::system(what(), "CAP_NET_RAW", cause))?;
        let room = load.frames.longest();
        let bytes = vec![0; room * MAX_BATCH];
        let batch = FrameBatch { bytes, room, lengths: [0; MAX_BATCH], last_templates: [None; MAX_BATCH] };
        Ok(Box::new(SocketGenerator { sender, progress: SendProgress::of(load), batch }))
    }
}

impl FrameBatch {
    fn write(&mut self, progress: &SendProgress, n: usize) {
        let now = clock::now();
        let slots = self.bytes.chunks_exact_mut(self.room).zip(&mut self.lengths).zip(&mut self.last_templates);
        for (((frame, length), held), (flow, sequence)) in slots.zip(progress.upcoming()).take(n) {
            *length = progress.write(frame, held, flow, sequence, now);
        }
    }

    fn frames(&self, n: usize) -> impl Iterator<Item = &[u8]> {
        let slots = self.bytes.chunks_exact(self.room).zip(self.lengths);
        slots.take(n).map(|(frame, length)| &frame[..length])
    }
}

impl Generator for SocketGenerator {
    fn span(&self) -> Option<(Nanos, Nanos)> {
        self.progress.span()
    }

    fn send(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()> {
        while !self.progress.is_over(worker) {
            let n = self.progress.wait_for_due(worker, MAX_BATCH);
            if n == 0 {
                continue;
            }
            self.batch.write(&self.progress, n);
            match self.sender.send(self.batch.frames(n))? {
                OfferResult::Accepted(n) => {
                    worker.add(counter::SENT, n as u64);
                    self.progress.advance(worker, n);
                }
                OfferResult::Dropped => {
                    worker.add(counter::REFUSED, 1);
                    self.progress.advance(worker, 1);
                }
                OfferResult::Busy => {
                    self.sender.wait(ROOM)?;
                }
            }
        }
        Ok(())
    }
}
