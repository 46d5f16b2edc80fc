//! The control connection: states and JSON, each received with a timeout.

use std::{
    fmt, io,
    net::{Shutdown, SocketAddr},
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, Socket, Wait},
};
use serde_json::Value;

use super::{
    Error,
    wire::{self, TestState},
};
use crate::sockets::addresses;

/// The timeout for the next message while nothing is measured, as in iperf3 since 3.15.
pub(crate) const MESSAGE_TIMEOUT: Nanos = Nanos::from_secs(30);
/// How long the other side may take to close.
const LEAVE_MAX: Nanos = Nanos::from_secs(1);
/// How soon a wait notices that the user wants to stop.
const POLL_INTERVAL: Nanos = Nanos::from_millis(50);

/// One end of a control connection.
pub(crate) struct ControlConnection {
    socket: Socket,
    epoll: Epoll,
    stop: StopFlag,
}

impl fmt::Debug for ControlConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl ControlConnection {
    pub(crate) fn new(socket: Socket, stop: StopFlag) -> Result<Self, Error> {
        socket.set_nonblocking(true).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
        socket.set_tcp_nodelay(true).map_err(socket::error_of("setsockopt(TCP_NODELAY)"))?;
        let epoll = Epoll::new()?;
        epoll.add(&socket, 0, Interest::READ)?;
        Ok(Self { socket, epoll, stop })
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// Returns both addresses, the local one first.
    pub(crate) fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Error> {
        Ok(addresses(&self.socket)?)
    }

    /// Returns the next byte if it arrives by `until`; `None` if it does not, or if the user aborts.
    pub(crate) fn byte_until(&mut self, until: Nanos) -> Result<Option<u8>, Error> {
        let mut byte = [0];
        loop {
            match self.receive(&mut byte)? {
                Some(_) => return Ok(Some(byte[0])),
                None if self.stop.state() == Stop::Abort => return Ok(None),
                None => {}
            }
            let left = until.since(clock::now());
            if left == Nanos::ZERO {
                return Ok(None);
            }
            self.wait(left.min(POLL_INTERVAL))?;
        }
    }

    /// Waits until there is something to read.
    fn wait(&self, at_most: Nanos) -> Result<(), Error> {
        // Created for each wait, because it cannot move to another thread, as a client does between preparation and start.
        self.epoll.wait(&mut ReadyList::with_capacity(1), Some(at_most))?;
        Ok(())
    }

    /// Receives the available bytes. The end of the connection is an error.
    fn receive(&self, bytes: &mut [u8]) -> Result<Option<usize>, Error> {
        match socket::recv(&self.socket, bytes, Wait::Never) {
            Ok(Some(0)) => Err(Error::Closed),
            Ok(count) => Ok(count),
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionReset => Err(Error::Closed),
            Err(error) => Err(Error::Receive { cause: error.source }),
        }
    }

    fn fill(&mut self, bytes: &mut [u8], awaited: &'static str) -> Result<(), Error> {
        let deadline = clock::now() + MESSAGE_TIMEOUT;
        let mut n = 0;
        while n < bytes.len() {
            if let Some(count) = self.receive(&mut bytes[n..])? {
                n += count;
            } else if self.stop.state() == Stop::Abort {
                return Err(Error::Interrupted);
            } else if clock::now() >= deadline {
                return Err(Error::Silent { awaited, seconds: MESSAGE_TIMEOUT.0 / 1_000_000_000 });
            } else {
                self.wait(POLL_INTERVAL)?;
            }
        }
        Ok(())
    }

    /// Interprets a byte of the other side: a state, or the error that it announces.
    pub(crate) fn interpret(&mut self, byte: u8, awaited: &'static str) -> Result<TestState, Error> {
        match TestState::read(byte) {
            Some(TestState::AccessDenied) => Err(Error::Busy),
            Some(TestState::ServerTerminate) => Err(Error::ServerTerminated),
            Some(TestState::ClientTerminate) => Err(Error::ClientTerminated),
            Some(TestState::ServerError) => {
                let mut numbers = [0; 8];
                self.fill(&mut numbers, "the number of an error")?;
                Err(wire::read_refusal(numbers))
            }
            Some(state) => Ok(state),
            None => Err(Error::Unexpected { got: named(byte), awaited }),
        }
    }

    /// Waits for a given state; any other is an error.
    pub(crate) fn expect(&mut self, state: TestState, awaited: &'static str) -> Result<(), Error> {
        let mut byte = [0];
        self.fill(&mut byte, awaited)?;
        match self.interpret(byte[0], awaited)? {
            got if got == state => Ok(()),
            got => Err(Error::Unexpected { got: format!("{got:?}"), awaited }),
        }
    }

    /// Reads JSON of at most `most` bytes.
    pub(crate) fn read_json(&mut self, what: &'static str, most: usize) -> Result<Value, Error> {
        let mut length = [0; 4];
        self.fill(&mut length, what)?;
        let length = wire::read_length(length, what, most)?;
        let mut bytes = Vec::new();
        // The buffer grows only as data arrives, because the announced length may be false.
        while bytes.len() < length {
            let from = bytes.len();
            bytes.resize(length.min(from + 8192), 0);
            self.fill(&mut bytes[from..], what)?;
        }
        wire::read_json(&bytes, what)
    }

    /// Closes this direction and waits until the other side has closed its own, as iperf3 does since 3.21.
    ///
    /// After that a server with one test at a time is ready for the next one, or almost. The wait for the other side is limited.
    pub(crate) fn close_gracefully(&mut self) {
        let deadline = clock::now() + LEAVE_MAX;
        if self.socket.shutdown(Shutdown::Write).is_err() {
            return;
        }
        // Some versions send an error after the end, which no longer matters.
        while clock::now() < deadline && self.byte_until(deadline).is_ok_and(|byte| byte.is_some()) {}
    }

    pub(crate) fn send_state(&mut self, state: TestState) -> Result<(), Error> {
        self.write(&[state.byte()])
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        let deadline = clock::now() + MESSAGE_TIMEOUT;
        while !bytes.is_empty() {
            match socket::send(&self.socket, bytes, Wait::Never) {
                Ok(Some(count)) => bytes = &bytes[count..],
                // The peer is not reading. Control messages are small, so this is rare, and polling is good enough.
                Ok(None) if clock::now() < deadline && self.stop.state() != Stop::Abort => {
                    clock::sleep_until(clock::now() + Nanos::from_millis(5));
                }
                Ok(None) => return Err(Error::Send { cause: io::ErrorKind::TimedOut.into() }),
                Err(error) => return Err(Error::Send { cause: error.source }),
            }
        }
        Ok(())
    }
}

fn named(byte: u8) -> String {
    let letter = char::from(byte);
    if letter.is_ascii_graphic() { format!("the letter `{letter}`") } else { format!("the byte {byte}") }
}
