//! Frames that user space sends, in batches.

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::packet::packet_socket::{MAX_BATCH, OfferResult, Sender};

/// A wait for the buffer of the socket, which a driver empties in less.
const WAIT: Nanos = Nanos::from_millis(1);

/// A packet socket with the frames of the next batch.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: Sender,
    frames: Vec<Vec<u8>>,
    /// Frames get at least so many bytes. What is behind the packet is padding to who receives it.
    frame_min: usize,
    /// Frames that found the queue of the device full. What they carry is sent again by its timer.
    pub(super) n_refused: u64,
}

impl Outbox {
    pub(super) fn new(sender: Sender) -> Self {
        Self { sender, frames: Vec::with_capacity(MAX_BATCH), frame_min: 0, n_refused: 0 }
    }

    /// Pads frames, so that the other end of a veth gets buffers in which an answer of that size has room.
    pub(super) fn pad_frames(&mut self, frame_min: usize) {
        self.frame_min = frame_min;
    }

    /// Adds a frame. A full batch leaves at once.
    pub(super) fn push(&mut self, mut frame: Vec<u8>) -> Result<(), Error> {
        frame.resize(frame.len().max(self.frame_min), 0);
        self.frames.push(frame);
        if self.frames.len() == MAX_BATCH { self.flush() } else { Ok(()) }
    }

    /// Sends all frames.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while at < self.frames.len() {
            match self.sender.send(self.frames[at..].iter().map(Vec::as_slice)).map_err(failed)? {
                OfferResult::Accepted(n) => at += n,
                OfferResult::Dropped => {
                    self.n_refused += 1;
                    at += 1;
                }
                OfferResult::Busy => {
                    self.sender.wait(WAIT).map_err(failed)?;
                }
            }
        }
        self.frames.clear();
        Ok(())
    }
}

fn failed(cause: fathom_sys::Error) -> Error {
    Error::System { what: "send frames".to_owned(), cause }
}
