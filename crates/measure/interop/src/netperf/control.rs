//! The control connection: one message at a time, each received within a limit.

use std::{io, net::SocketAddr};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    socket::{self, Socket, Wait, socket_options},
};

use super::{
    Error,
    wire::{ControlMessage, MessageFormat},
};
use crate::sockets::addresses;

/// How soon a wait notices that the user wants to stop.
const POLL_INTERVAL: Nanos = Nanos::from_millis(50);
/// How long the second part of a message may take to begin; netperf sends each message with one call.
const SECOND_PART_MAX: Nanos = Nanos::from_millis(300);
/// How long a message that has begun may take: a lost segment is sent again within that time.
const REST_MAX: Nanos = Nanos::from_secs(5);
/// All kinds of messages are below this number (`netlib.h`).
const KINDS_END: i32 = 1000;
/// How long the other side may take to read; messages are small.
const SEND_MAX: Nanos = Nanos::from_secs(10);
/// The idle time of the control connection before the kernel probes the other side.
const KEEPALIVE: Nanos = Nanos::from_secs(30);

/// One end of a control connection.
#[derive(Debug)]
pub(crate) struct ControlConnection {
    socket: Socket,
    stop: StopFlag,
    /// The length of messages, known since the first one from the other side.
    format: Option<MessageFormat>,
}

impl ControlConnection {
    pub(crate) fn new(socket: Socket, stop: StopFlag) -> Result<Self, Error> {
        socket.set_nonblocking(false).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
        socket.set_tcp_nodelay(true).map_err(socket::error_of("setsockopt(TCP_NODELAY)"))?;
        socket::set_timeout(&socket, POLL_INTERVAL)?;
        socket_options::set_keepalive(&socket, KEEPALIVE)?;
        Ok(Self { socket, stop, format: None })
    }

    /// The length of the other side's messages; that of current versions before the first one.
    pub(crate) fn format(&self) -> MessageFormat {
        self.format.unwrap_or(MessageFormat::Long)
    }

    /// Sends messages of this length from now on.
    pub(crate) fn set_format(&mut self, format: MessageFormat) {
        self.format = Some(format);
    }

    pub(crate) fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// Both addresses, the local one first; an IPv4 address in IPv6 form becomes IPv4.
    pub(crate) fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Error> {
        Ok(addresses(&self.socket)?)
    }

    /// Why a test cannot go on, if the other side has left or sent something: nothing is due from it while a test runs.
    ///
    /// Bytes are left unread, and would hide the end of the connection behind them.
    pub(crate) fn interruption(&self) -> Option<Error> {
        match socket::peek(&self.socket, &mut [0], Wait::Never) {
            Ok(None) => None,
            Ok(Some(0)) | Err(_) => Some(Error::ClientGone),
            Ok(Some(_)) => Some(Error::NotNetperf { why: "a message in the middle of a test".to_owned() }),
        }
    }

    pub(crate) fn send(&mut self, message: &ControlMessage) -> Result<(), Error> {
        let bytes = message.bytes();
        let (mut rest, deadline) = (bytes.as_slice(), clock::now() + SEND_MAX);
        while !rest.is_empty() {
            match socket::send(&self.socket, rest, Wait::Block) {
                Ok(Some(n)) => rest = &rest[n..],
                Ok(None) if self.stop.state() == Stop::Abort => return Err(Error::Interrupted),
                Ok(None) if clock::now() < deadline => {}
                Ok(None) => return Err(Error::Silent { awaited: "the reading of a message", waited: SEND_MAX }),
                Err(_) => return Err(Error::Closed { awaited: "a message to it" }),
            }
        }
        Ok(())
    }

    /// Receives the next message; `None` if the other side has closed the connection instead.
    pub(crate) fn receive(&mut self, awaited: &'static str, at_most: Nanos) -> Result<Option<ControlMessage>, Error> {
        let mut bytes = [0; MessageFormat::Long.length()];
        let short = MessageFormat::Short.length();
        let mut n = 0;
        let deadline = clock::now() + at_most;
        while n < short {
            match self.receive_some(&mut bytes[n..])? {
                Some(0) if n == 0 => return Ok(None),
                Some(0) => return Err(Error::NotNetperf { why: format!("{n} bytes, then the end") }),
                Some(count) => n += count,
                None if clock::now() < deadline => {}
                None if n == 0 => return Err(Error::Silent { awaited, waited: at_most }),
                None => return Err(Error::NotNetperf { why: format!("{n} bytes instead of {awaited}") }),
            }
        }
        let whole = self.format().length();
        let began = clock::now();
        while n < whole {
            // Only the first message shows by what follows how long messages are.
            let is_decided = n > short || self.format.is_some();
            let is_late = clock::now() - began > if is_decided { REST_MAX } else { SECOND_PART_MAX };
            match self.receive_some(&mut bytes[n..whole])? {
                Some(count) if count > 0 => n += count,
                Some(_) | None if !is_decided && is_late => break,
                None if !is_late => {}
                Some(_) | None => return Err(Error::NotNetperf { why: format!("a message of {n} bytes") }),
            }
        }
        let message = ControlMessage::read(&bytes[..n])?;
        self.format = Some(message.format());
        Ok(Some(message))
    }

    /// Like [`ControlConnection::receive`] for an answer of this kind; the server's error number is an error.
    pub(crate) fn answer(&mut self, kind: i32, awaited: &'static str, at_most: Nanos) -> Result<ControlMessage, Error> {
        let message = self.receive(awaited, at_most)?.ok_or(Error::Closed { awaited })?;
        // An answer with an error may be of any kind, in either byte order.
        let is_netperf = [message.kind, message.kind.swap_bytes()].iter().any(|kind| (0..KINDS_END).contains(kind));
        if is_netperf && message.status != 0 {
            return Err(Error::Remote { errno: message.status });
        }
        if !message.is_answer(kind) {
            return Err(Error::NotNetperf { why: format!("a message of kind {} instead of {awaited}", message.kind) });
        }
        Ok(message)
    }

    fn receive_some(&mut self, room: &mut [u8]) -> Result<Option<usize>, Error> {
        if self.stop.state() == Stop::Abort {
            return Err(Error::Interrupted);
        }
        match socket::recv(&self.socket, room, Wait::Block) {
            Ok(received) => Ok(received),
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionReset => Ok(Some(0)),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn bytes_in_the_middle_of_a_test_do_not_hide_that_the_client_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let control = ControlConnection::new(socket.into(), StopFlag::default()).unwrap();
        assert!(control.interruption().is_none());
        client.write_all(b"x").unwrap();
        assert!(matches!(control.interruption(), Some(Error::NotNetperf { .. })));
        drop(client);
        assert!(control.interruption().is_some());
    }
}
