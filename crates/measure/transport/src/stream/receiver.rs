//! Receives a stream to its end.

use std::{fs::File, io::Write as _, sync::Arc};

use fathom_model::units::Bytes;
use fathom_sys::{
    Error, Result, clock,
    socket::{self, Socket, Wait},
};

use super::{LowWatermark, StreamControl};
use crate::payload::Payload;

/// What becomes of the bytes that arrive.
#[derive(Debug)]
pub enum ReceiveSink {
    /// They are copied to this room, at most that many in a call.
    Copy(Payload),
    /// The kernel throws them away, at most that many in a call (`MSG_TRUNC`): the copy is saved.
    Truncate(Bytes),
    /// They are copied to this room and written to a file.
    Disk(Payload, Arc<File>),
}

/// Why a stream is received no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveEnd {
    /// The sender has ended it.
    ByPeer,
    /// The account was closed.
    Stopped,
}

/// One flow that receives.
#[derive(Debug)]
pub struct StreamReceiver<'a> {
    socket: &'a Socket,
    sink: ReceiveSink,
    /// How much it waits for; without it whatever the socket is set to.
    pub low_watermark: Option<LowWatermark>,
}

impl<'a> StreamReceiver<'a> {
    /// The socket blocks, for as long as a wait may last (`socket::set_timeout`).
    pub fn new(socket: &'a Socket, inlet: ReceiveSink) -> Self {
        Self { socket, sink: inlet, low_watermark: None }
    }

    /// Receives until the sender ends or the account is closed.
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
                wake.update(self.socket, (u64::try_from(received.unwrap_or(0)).unwrap_or(u64::MAX), clock::now()))?;
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
