//! Opens a UDP stream: a greeting and its answer.

use std::io;

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    socket::{self, Socket, Wait},
};

/// The greeting of a client over UDP, and the answer of the server: since 3.12, and before.
pub(crate) const GREETING: [u8; 4] = *b"9876";
pub(crate) const ANSWER: [u8; 4] = *b"6789";
const OLD_GREETING: [u8; 4] = [0x15, 0xcd, 0x5b, 0x07];
const OLD_ANSWER: [u8; 4] = [0xb1, 0x68, 0xde, 0x3a];

/// Returns the answer to a greeting. An old client gets the old answer.
pub(crate) fn answer_to(greeting: [u8; 4]) -> [u8; 4] {
    if greeting == OLD_GREETING { OLD_ANSWER } else { ANSWER }
}

/// How long a server may take to answer a greeting. The greeting is not repeated, because a second one would count as data.
const ANSWER_MAX: Nanos = Nanos::from_secs(10);

/// Greets a server over a connected UDP socket. Data that arrives before the answer is not counted.
pub(crate) fn greet(socket: &Socket, stop: &StopFlag) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket::set_timeout(socket, fathom_transport::connection_setup::BLOCKING_TIMEOUT).map_err(|error| error.source)?;
    socket.send(&GREETING)?;
    let deadline = clock::now() + ANSWER_MAX;
    // One extra byte, to detect datagrams that are longer than an answer.
    let mut answer = [0; 5];
    while clock::now() < deadline && stop.state() != Stop::Abort {
        match socket::recv(socket, &mut answer, Wait::Block).map_err(|error| error.source)? {
            Some(4) if answer[..4] == ANSWER || answer[..4] == OLD_ANSWER => return Ok(()),
            _ => {}
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_client_is_answered_in_its_own_words() {
        assert_eq!(answer_to(GREETING), *b"6789");
        assert_eq!(answer_to(OLD_GREETING), OLD_ANSWER);
        assert_eq!(answer_to(*b"any "), ANSWER);
    }
}
