//! Receives a stream to its end.

use std::{fs::File, io::Write as _, sync::Arc};

use fathom_model::units::Bytes;
use fathom_sys::{
    Error, Result, clock,
    socket::{self, Socket, Wait},
};

use super::{LowWatermark, StreamControl};
use crate::payload::Payload;

/// The destination of received bytes.
#[derive(Debug)]
pub enum ReceiveSink {
    /// They are copied to this buffer, whose size limits a call.
    Copy(Payload),
    /// The kernel discards them, at most this many per call (`MSG_TRUNC`), which saves the copy.
    Truncate(Bytes),
    /// They are copied to this buffer and written to a file.
    Disk(Payload, Arc<File>),
}

/// Why receiving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveEnd {
    /// The sender has closed the stream.
    ByPeer,
    /// The control ended it.
    Stopped,
}

/// One flow that receives.
#[derive(Debug)]
pub struct StreamReceiver<'a> {
    socket: &'a Socket,
    sink: ReceiveSink,
    /// The low watermark; `None` leaves the socket's setting.
    pub low_watermark: Option<LowWatermark>,
}

impl<'a> StreamReceiver<'a> {
    /// Creates a receiver. The socket blocks, with the timeout of `socket::set_timeout`.
    pub fn new(socket: &'a Socket, inlet: ReceiveSink) -> Self {
        Self { socket, sink: inlet, low_watermark: None }
    }

    /// Receives until the sender closes or the control ends it.
    ///
    /// # Errors
    /// The call that failed: the peer reset the connection.
    pub fn run(&mut self, account: &impl StreamControl) -> Result<ReceiveEnd> {
        if let Some(wake) = self.low_watermark {
            wake.apply(self.socket)?;
        }
        loop {
            let received = match &mut self.sink {
                ReceiveSink::Copy(room) => socket::recv(self.socket, room.bytes_mut(), Wait::Block),
                ReceiveSink::Truncate(at_most) => socket::discard(self.socket, *at_most, Wait::Block),
                ReceiveSink::Disk(room, file) => receive_to(self.socket, room.bytes_mut(), file),
            };
            let received = received?;
            match received {
                Some(0) => return Ok(ReceiveEnd::ByPeer),
                Some(count) => account.count(u64::try_from(count).unwrap_or(u64::MAX)),
                None => account.on_wait(),
            }
            if let Some(wake) = &mut self.low_watermark {
                wake.update(self.socket, u64::try_from(received.unwrap_or(0)).unwrap_or(u64::MAX), clock::now())?;
            }
            if account.is_over() {
                return Ok(ReceiveEnd::Stopped);
            }
        }
    }
}

fn receive_to(socket: &Socket, room: &mut [u8], mut file: &File) -> Result<Option<usize>> {
    let received = socket::recv(socket, room, Wait::Block)?;
    file.write_all(&room[..received.unwrap_or(0)]).map_err(|error| Error::new(super::WRITE, error))?;
    Ok(received)
}
