//! Requests and responses of fixed lengths, over one connection, over one connection each, or in single datagrams.

use std::{collections::VecDeque, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::{
    Result, clock,
    socket::{self, Listener, Socket, Wait},
};
use fathom_transport::payload::Payload;

use super::{Counter, TransferContext, datagrams::is_refused};

/// The most bytes of one receive call, and the longest room: any datagram fits.
const ROOM_MAX: usize = 128 << 10;

/// The messages of one end: what it sends, and room for what it receives.
pub(crate) struct MessagePair {
    out: Arc<Payload>,
    /// Bytes to send of that.
    out_length: usize,
    /// Room for a part of a message, or for a whole datagram.
    room: Payload,
    expected: usize,
    is_datagram: bool,
    loss_timeout: Option<Nanos>,
    /// When the requests in flight were sent, the oldest first.
    sent_at: VecDeque<Nanos>,
}

/// The result of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageEnd {
    Whole,
    /// The other side has closed the connection, or ended the test by an empty datagram.
    ByPeer,
    /// The test is over.
    Over,
    /// No datagram came in time.
    Lost,
}

/// Why an end stopped to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerEnd {
    ByPeer,
    Over,
}

impl MessagePair {
    /// Creates messages that are sent and expected with these lengths; a length of zero is no message.
    pub(crate) fn new((sent, expected): (u32, u32), is_datagram: bool, loss_timeout: Option<Nanos>) -> Self {
        let bytes = |length: u32| usize::try_from(length).unwrap_or(0);
        let out = Arc::new(Payload::random(bytes(sent), clock::now().0));
        // A datagram needs room even if none is expected, because an empty one ends the test.
        let expected = bytes(expected).max(usize::from(is_datagram));
        Self {
            out,
            out_length: bytes(sent),
            room: Payload::random(expected.min(ROOM_MAX), 0),
            expected,
            is_datagram,
            loss_timeout,
            sent_at: VecDeque::new(),
        }
    }

    /// Creates the messages of a connection to a client, with responses from what all of them share.
    pub(crate) fn serving(shared: Arc<Payload>, (request, response): (u32, u32)) -> Self {
        let response = usize::try_from(response).unwrap_or(usize::MAX).min(shared.bytes().len());
        Self { out: shared, out_length: response, ..Self::new((0, request), false, None) }
    }

    /// Exchanges messages as the client until it is over, with `burst` more requests in flight than one.
    ///
    /// # Errors
    /// The call that failed.
    pub(crate) fn exchange(&mut self, socket: &Socket, burst: u32, context: &impl TransferContext) -> Result<()> {
        let in_flight = usize::try_from(burst).unwrap_or(0) + 1;
        self.sent_at.clear();
        let mut now = clock::now();
        while !context.is_over() {
            while self.sent_at.len() < in_flight {
                if self.send(socket, context)? != MessageEnd::Whole {
                    return Ok(());
                }
                self.sent_at.push_back(now);
            }
            match self.receive(socket, context)? {
                MessageEnd::Whole => {}
                MessageEnd::Lost => {
                    // Which one was lost is unknown, so all begin again.
                    context.add(Counter::Lost, u64::try_from(self.sent_at.len()).unwrap_or(0));
                    self.sent_at.clear();
                    now = clock::now();
                    continue;
                }
                MessageEnd::ByPeer | MessageEnd::Over => return Ok(()),
            }
            now = clock::now();
            let began = self.sent_at.pop_front().unwrap_or(now);
            context.add(Counter::Transactions, 1);
            context.on_transaction(now - began);
        }
        Ok(())
    }

    /// Exchanges one request and one response over a connection of their own, and waits until the server has closed it.
    ///
    /// # Errors
    /// The call that failed.
    pub(crate) fn exchange_once(&mut self, socket: &Socket, context: &impl TransferContext) -> Result<bool> {
        if self.send(socket, context)? != MessageEnd::Whole || self.receive(socket, context)? != MessageEnd::Whole {
            return Ok(false);
        }
        loop {
            match socket::recv(socket, &mut [0], Wait::Block)? {
                Some(_) => return Ok(true),
                None if context.is_over() => return Ok(false),
                None => {}
            }
        }
    }

    fn send(&mut self, socket: &Socket, context: &impl TransferContext) -> Result<MessageEnd> {
        let out = &self.out.bytes()[..self.out_length];
        let mut rest = out;
        while !rest.is_empty() {
            match socket::send(socket, rest, Wait::Block) {
                Ok(Some(n)) => rest = if self.is_datagram { &[] } else { &rest[n..] },
                Ok(None) if context.is_over() => return Ok(MessageEnd::Over),
                Ok(None) => {}
                Err(error) if self.is_datagram && is_refused(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if !out.is_empty() {
            context.add(Counter::BytesSent, u64::try_from(out.len()).unwrap_or(0));
            context.add(Counter::SendCalls, 1);
        }
        Ok(MessageEnd::Whole)
    }

    fn receive(&mut self, socket: &Socket, context: &impl TransferContext) -> Result<MessageEnd> {
        let whole = self.expected;
        let (mut n, mut n_calls, mut waits_since) = (0, 0, None);
        while n < whole {
            let part = (whole - n).min(self.room.bytes().len());
            match socket::recv(socket, &mut self.room.bytes_mut()[..part], Wait::Block) {
                Ok(Some(0)) => return Ok(MessageEnd::ByPeer),
                Ok(Some(count)) => {
                    n = if self.is_datagram { whole } else { n + count };
                    n_calls += 1;
                }
                Ok(None) if context.is_over() => return Ok(MessageEnd::Over),
                Ok(None) => {
                    let now = clock::now();
                    let since = *waits_since.get_or_insert(now);
                    if self.is_datagram && self.loss_timeout.is_some_and(|timeout| now - since >= timeout) {
                        return Ok(MessageEnd::Lost);
                    }
                }
                Err(error) if self.is_datagram && is_refused(&error) => {
                    if context.is_over() {
                        return Ok(MessageEnd::Over);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        context.add(Counter::BytesReceived, u64::try_from(whole).unwrap_or(0));
        context.add(Counter::RecvCalls, n_calls);
        Ok(MessageEnd::Whole)
    }
}

/// Answers requests over a connection until its client has closed it or it is over.
///
/// # Errors
/// The call that failed.
pub(crate) fn answer_requests(
    socket: &Socket,
    messages: &mut MessagePair,
    context: &impl TransferContext,
) -> Result<AnswerEnd> {
    while !context.is_over() {
        for step in [MessagePair::receive, MessagePair::send] {
            match step(messages, socket, context)? {
                MessageEnd::Whole => {}
                MessageEnd::ByPeer => return Ok(AnswerEnd::ByPeer),
                MessageEnd::Over | MessageEnd::Lost => return Ok(AnswerEnd::Over),
            }
        }
        context.add(Counter::Transactions, 1);
    }
    Ok(AnswerEnd::Over)
}

/// Answers one request on each connection of a blocking listener until it is over.
///
/// # Errors
/// The call that failed; a client that leaves in the middle is no error.
pub(crate) fn answer_connections(
    listener: &Listener,
    messages: &mut MessagePair,
    context: &impl TransferContext,
) -> Result<()> {
    while !context.is_over() {
        let Some(socket) = socket::accept_blocking(listener)? else { continue };
        let received = messages.receive(&socket, context);
        if matches!(received, Ok(MessageEnd::Whole)) && matches!(messages.send(&socket, context), Ok(MessageEnd::Whole))
        {
            context.add(Counter::Transactions, 1);
        }
    }
    Ok(())
}

/// Answers each datagram to its sender until an empty one ends the test or it is over.
///
/// # Errors
/// The call that failed.
pub(crate) fn answer_datagrams(
    socket: &Socket,
    (out, request): (&[u8], u32),
    context: &impl TransferContext,
) -> Result<AnswerEnd> {
    let mut room = Payload::random(usize::try_from(request).unwrap_or(0).max(1), 0);
    while !context.is_over() {
        let (count, sender) = match socket::recv_from(socket, room.bytes_mut(), Wait::Block) {
            Ok(Some(received)) => received,
            Ok(None) => continue,
            Err(error) if is_refused(&error) => continue,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return Ok(AnswerEnd::ByPeer);
        }
        context.add(Counter::BytesReceived, u64::try_from(count).unwrap_or(0));
        context.add(Counter::RecvCalls, 1);
        // A response that finds the buffer full is lost, as any datagram may be.
        match socket::send_to(socket, out, &sender, Wait::Block) {
            Ok(Some(sent)) => {
                context.add(Counter::BytesSent, u64::try_from(sent).unwrap_or(0));
                context.add(Counter::SendCalls, 1);
                context.add(Counter::Transactions, 1);
            }
            Ok(None) => context.add(Counter::FailedSends, 1),
            Err(error) if is_refused(&error) => context.add(Counter::FailedSends, 1),
            Err(error) => return Err(error),
        }
    }
    Ok(AnswerEnd::Over)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        thread,
    };

    use super::*;

    #[test]
    fn clients_share_what_they_are_sent_and_have_little_room_of_their_own() {
        let shared = Arc::new(Payload::random(1 << 20, 1));
        let messages: Vec<MessagePair> =
            (0..64).map(|_| MessagePair::serving(shared.clone(), (1 << 20, 1 << 20))).collect();
        assert!(messages.iter().all(|pair| Arc::ptr_eq(&pair.out, &shared) && pair.room.bytes().len() == ROOM_MAX));
    }

    struct Once;

    impl TransferContext for Once {
        fn add(&self, _: Counter, _: u64) {}
        fn is_over(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_message_may_be_longer_than_the_room_for_it() {
        let sizes = (300_000, 200_001);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Socket::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let server = Socket::from(listener.accept().unwrap().0);
        let served = thread::spawn(move || {
            let mut messages = MessagePair::serving(Arc::new(Payload::random(1 << 20, 1)), sizes);
            messages.receive(&server, &Once).unwrap();
            messages.send(&server, &Once).unwrap();
        });
        assert!(MessagePair::new(sizes, false, None).exchange_once(&client, &Once).unwrap());
        served.join().unwrap();
    }
}
