//! Requests over an ordinary socket before the load, which show what answer to expect.

use fathom_engine::Error;
use fathom_http::h1::{Persistence, ResponseProgress, ResponseReader};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    socket::{self, Socket, Wait},
};

use super::{answer::AnswerStart, error::refusal, target::Target};
use crate::{
    program::{ExpectedAnswer, SEARCHED_MAX},
    slow_path,
};

/// As many answers show whether their length varies.
const N_REQUESTS: usize = 3;
/// How long a server may take to close a connection after the answer.
const CLOSES_WITHIN: Nanos = Nanos::from_secs(1);
/// The most bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// What the answers have shown.
pub(super) struct Learned {
    /// The first one that the program can follow.
    pub(super) answer: Option<ExpectedAnswer>,
    /// Whether the others that it can follow had another length.
    pub(super) varies: bool,
    /// Why it cannot follow any other one.
    pub(super) unusual: Option<String>,
}

/// Asks the server, and returns the answer that it gives each time.
pub(super) fn learn(target: &Target, timeout: Nanos) -> Result<Learned, Error> {
    let mut exchange = Exchange { target, timeout, connection: None };
    if let Some(answer) = &target.own_answer {
        // In a veth, the frames of a client with sockets have no room for it. The handshake shows that the responder can be reached.
        let connection = exchange.connect()?;
        socket::set_reset_on_close(&connection).map_err(|cause| exchange.failed(cause))?;
        let start = AnswerStart::read(answer.bytes(), target.method)?.expect("our own answer has a whole head");
        return Ok(Learned { answer: start.answer.ok(), varies: false, unusual: None });
    }
    let mut learned = Learned { answer: None, varies: false, unusual: None };
    let mut status = None;
    for _ in 0..N_REQUESTS {
        let next = exchange.ask()?;
        let before = *status.get_or_insert(next.status);
        if next.status != before {
            let after = next.status;
            return Err(refusal(format!("the same request is answered with status {before}, then with {after}")));
        }
        match (next.answer, &learned.answer) {
            (Ok(answer), None) => learned.answer = Some(answer),
            (Ok(next), Some(answer)) => learned.varies |= next != *answer,
            (Err(why), _) => learned.unusual = Some(why),
        }
    }
    if let Some(answer) = learned.answer.take_if(|answer| learned.varies && answer.head_length > SEARCHED_MAX) {
        let head_length = answer.head_length;
        learned.unusual = Some(format!("the answers vary in length, and their heads have {head_length} bytes"));
    }
    Ok(learned)
}

struct Exchange<'a> {
    target: &'a Target,
    timeout: Nanos,
    /// A connection that takes another request.
    connection: Option<Socket>,
}

impl Exchange<'_> {
    fn connect(&self) -> Result<Socket, Error> {
        let to = self.target.server;
        let connect = || {
            let socket = socket::stream(to)?;
            socket::set_timeout(&socket, self.timeout)?;
            socket::connect(&socket, &self.target.destination, self.timeout)?;
            Ok(socket)
        };
        connect().map_err(|cause| {
            let hint = format!("check that the server runs: curl http://{to}/");
            Error::Unreachable { to, cause, hint }
        })
    }

    /// One request and its answer.
    fn ask(&mut self) -> Result<AnswerStart, Error> {
        let connection = self.connection.take().map_or_else(|| self.connect(), Ok)?;
        socket::send(&connection, &self.target.request, Wait::Block).map_err(|cause| self.failed(cause))?;
        let (start, is_kept) = self.receive(&connection)?;
        match (self.target.closes, is_kept) {
            (true, _) => expect_close(&connection)?,
            (false, true) => self.connection = Some(connection),
            (false, false) => {
                return Err(Error::Unsupported {
                    what: "the server closes the connection after the answer".to_owned(),
                    hint: Some("--per-connection 1        # a new connection for each request".to_owned()),
                });
            }
        }
        Ok(start)
    }

    fn failed(&self, cause: fathom_sys::Error) -> Error {
        Error::System { what: format!("ask {} for the answer to expect", self.target.server), cause }
    }

    /// Receives a whole answer. Returns how it starts, and whether the connection takes another request.
    fn receive(&self, connection: &Socket) -> Result<(AnswerStart, bool), Error> {
        let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE]);
        let (mut reader, mut heads) = (ResponseReader::default(), slow_path::heads(self.target.method));
        let mut start = None;
        let deadline = clock::now() + self.timeout;
        loop {
            let n = receive_until(connection, &mut piece, deadline).map_err(|cause| self.failed(cause))?;
            if n == 0 {
                return match (start, reader.finish_at_close()) {
                    (Some(start), Some(_)) => Ok((start, false)),
                    _ => Err(refusal("the server closes the connection before the answer has ended")),
                };
            }
            if start.is_none() {
                bytes.extend_from_slice(&piece[..n]);
                start = AnswerStart::read(&bytes, self.target.method)?;
            }
            let progress = reader.take(&piece[..n], &mut heads);
            let progress =
                progress.map_err(|problem| refusal(format!("the server's answer cannot be read: {problem}")))?;
            let ResponseProgress::Complete { used, answer } = progress else { continue };
            if used < n {
                return Err(refusal("the server sends more than the answer that its head announces"));
            }
            let start = start.expect("an answer that has ended has a head");
            return Ok((start, answer.persistence == Persistence::Stays));
        }
    }
}

/// Waits for the server to close, as the request asked for.
fn expect_close(connection: &Socket) -> Result<(), Error> {
    let mut rest = [0; 16];
    match receive_until(connection, &mut rest, clock::now() + CLOSES_WITHIN) {
        Ok(0) => Ok(()),
        _ => Err(refusal(
            "the server keeps the connection open although the request asks it to close it (Connection: close)",
        )),
    }
}

/// Receives what has come, or waits for it; zero bytes are the end.
fn receive_until(connection: &Socket, piece: &mut [u8], deadline: Nanos) -> Result<usize, fathom_sys::Error> {
    let timed_out = || fathom_sys::Error::new("recv", std::io::Error::from(std::io::ErrorKind::TimedOut));
    let left = deadline.since(clock::now());
    if left == Nanos::ZERO {
        return Err(timed_out());
    }
    socket::set_timeout(connection, left)?;
    socket::recv(connection, piece, Wait::Block)?.ok_or_else(timed_out)
}
