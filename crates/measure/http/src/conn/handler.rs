//! What engines do alike with their lines, and what each does in its own way.

use fathom_model::units::Nanos;
use fathom_sys::reactor::{Completion, Event, Reactor, ReceivedBytes};

use super::{ConnectProgress, Connection, Connector, RequestFault};
use crate::target::LookupResult;

/// An engine whose lines go through a switchboard: it is called with what was heard on each.
///
/// Lines are named by their places. An engine is told of a fault by [`ConnectionHandler::fail`] and hangs up then.
pub(crate) trait ConnectionHandler {
    /// What its switchboard works with.
    type Reactor: Reactor;

    /// The switchboard, and the line of a place.
    fn connection(&mut self, idx: usize) -> (&mut Connector<Self::Reactor>, &mut Connection);

    fn n_connections(&self) -> usize;

    /// So many bytes have come, encrypted or not.
    fn count_received(&mut self, n_bytes: u64);

    /// Something went wrong that concerns no line.
    fn count_fault(&mut self, fault: RequestFault);

    /// The line is open.
    fn on_ready(&mut self, idx: usize, at: Nanos);

    /// Bytes for HTTP have come; the piece is to be released.
    fn on_received(&mut self, idx: usize, piece: ReceivedBytes, at: Nanos);

    /// Bytes for HTTP may lie on the desk.
    fn on_decrypted(&mut self, idx: usize, at: Nanos);

    /// So much of what was to be thrown away is gone.
    fn on_discarded(&mut self, idx: usize, count: u64, at: Nanos);

    /// Something that was sent is with the kernel, which most do not need to know.
    fn on_sent(&mut self, _idx: usize, _at: Nanos) {}

    /// The other end will send no more.
    fn on_peer_closed(&mut self, idx: usize, at: Nanos);

    /// The socket does not work any more.
    fn on_socket_error(&mut self, idx: usize, error: &fathom_sys::Error, at: Nanos);

    /// What was under way on the line has failed, and with it the line.
    fn fail(&mut self, idx: usize, fault: RequestFault, at: Nanos);

    /// Deals with something that the reactor has to tell.
    #[inline]
    fn on_completion(&mut self, completion: Completion) {
        let Completion { token, at, event } = completion;
        let idx = token.0 as usize;
        if idx == self.n_connections() {
            return self.on_waker(event, at);
        }
        match event {
            Event::Connected => {
                let (board, line) = self.connection(idx);
                let heard = board.on_connected(idx, line, at);
                self.on_progress(idx, heard, at);
            }
            Event::Received(piece) => {
                let (board, line) = self.connection(idx);
                let (is_plain, n_bytes) = (line.channel.is_plain(), board.reactor.bytes(&piece).len());
                self.count_received(n_bytes as u64);
                if is_plain {
                    return self.on_received(idx, piece, at);
                }
                let (board, line) = self.connection(idx);
                let heard = board.on_received(idx, line, (piece, at));
                self.on_progress(idx, heard, at);
            }
            Event::Discarded(count) => {
                self.count_received(count);
                self.on_discarded(idx, count, at);
            }
            Event::Ended => self.on_peer_closed(idx, at),
            Event::Failed(error) => self.on_socket_error(idx, &error, at),
            Event::Sent => self.on_sent(idx, at),
            Event::Accepted(_) => {}
        }
    }

    /// Begins to open a line that is shut.
    fn connect(&mut self, idx: usize, now: Nanos) {
        let (board, line) = self.connection(idx);
        if let Err(fault) = board.connect(idx, line, now) {
            self.fail(idx, fault, now);
        }
    }

    fn on_progress(&mut self, idx: usize, heard: Result<ConnectProgress, RequestFault>, at: Nanos) {
        match heard {
            Err(fault) => self.fail(idx, fault, at),
            Ok(ConnectProgress::Nothing) => {}
            Ok(ConnectProgress::Ready) => {
                self.on_ready(idx, at);
                self.on_decrypted(idx, at);
            }
            Ok(ConnectProgress::Data) => self.on_decrypted(idx, at),
            Ok(ConnectProgress::Ended) => {
                self.on_decrypted(idx, at);
                // What was decrypted may have been the end of the connection already.
                if self.connection(idx).1.is_open() {
                    self.on_peer_closed(idx, at);
                }
            }
        }
    }

    /// Answers of the resolver are there.
    fn on_waker(&mut self, event: Event, at: Nanos) {
        // The bell is no line; any will do to reach the switchboard.
        self.connection(0).0.on_waker(event);
        while let Some(looked_up) = self.connection(0).0.next_lookup(at) {
            match looked_up {
                LookupResult::Route { outcome: Ok(()), .. } => {}
                LookupResult::Route { outcome: Err(fault), .. } => self.count_fault(RequestFault::connect(fault)),
                LookupResult::Connection { token, endpoints: place, .. } => {
                    let idx = token as usize;
                    let (board, line) = self.connection(idx);
                    if let Err(fault) = board.on_lookup(idx, line, (place, at)) {
                        self.fail(idx, fault, at);
                    }
                }
            }
        }
    }
}
