//! The event handling that all engines share, and the callbacks that each engine implements.

use fathom_model::units::Nanos;
use fathom_sys::reactor::{Completion, Event, Reactor, ReceivedBytes};

use super::{ConnectProgress, Connection, Connector, RequestFault};
use crate::target::LookupResult;

/// An engine whose connections go through a connector; it is called for the events of each.
///
/// Connections are identified by their index. [`ConnectionHandler::fail`] reports a fault to the engine, which then closes the connection.
pub(crate) trait ConnectionHandler {
    /// The reactor of its connector.
    type Reactor: Reactor;

    /// The connector, and the connection at an index.
    fn connection(&mut self, idx: usize) -> (&mut Connector<Self::Reactor>, &mut Connection);

    fn n_connections(&self) -> usize;

    /// Counts received bytes, encrypted or not.
    fn count_received(&mut self, n_bytes: u64);

    /// Counts a fault that belongs to no connection.
    fn count_fault(&mut self, fault: RequestFault);

    /// The connection is open.
    fn on_ready(&mut self, idx: usize, at: Nanos);

    /// Bytes for HTTP have arrived; the handler must release the piece.
    fn on_received(&mut self, idx: usize, piece: ReceivedBytes, at: Nanos);

    /// Decrypted bytes for HTTP may be in the TLS buffers.
    fn on_decrypted(&mut self, idx: usize, at: Nanos);

    /// The kernel has discarded `count` bytes that were to be skipped.
    fn on_discarded(&mut self, idx: usize, count: u64, at: Nanos);

    /// The kernel has taken bytes that were sent. Most engines do not need this.
    fn on_sent(&mut self, _idx: usize, _at: Nanos) {}

    /// The peer will send no more.
    fn on_peer_closed(&mut self, idx: usize, at: Nanos);

    /// The socket has failed.
    fn on_socket_error(&mut self, idx: usize, error: &fathom_sys::Error, at: Nanos);

    /// The operation in progress on the connection has failed, and the connection with it.
    fn fail(&mut self, idx: usize, fault: RequestFault, at: Nanos);

    /// Dispatches one completion of the reactor.
    #[inline]
    fn on_completion(&mut self, completion: Completion) {
        let Completion { token, at, event } = completion;
        let idx = token.0 as usize;
        if idx == self.n_connections() {
            return self.on_waker(event, at);
        }
        match event {
            Event::Connected => {
                let (connector, line) = self.connection(idx);
                let heard = connector.on_connected(idx, line, at);
                self.on_progress(idx, heard, at);
            }
            Event::Received(piece) => {
                let (connector, line) = self.connection(idx);
                let (is_plain, n_bytes) = (line.channel.is_plain(), connector.reactor.bytes(&piece).len());
                self.count_received(n_bytes as u64);
                if is_plain {
                    return self.on_received(idx, piece, at);
                }
                let (connector, line) = self.connection(idx);
                let heard = connector.on_received(idx, line, piece, at);
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

    /// Begins to open a closed connection.
    fn connect(&mut self, idx: usize, now: Nanos) {
        let (connector, line) = self.connection(idx);
        if let Err(fault) = connector.connect(idx, line, now) {
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
                // The decrypted bytes may already have ended the connection.
                if self.connection(idx).1.is_open() {
                    self.on_peer_closed(idx, at);
                }
            }
        }
    }

    /// Handles the results of the resolver.
    fn on_waker(&mut self, event: Event, at: Nanos) {
        // The waker has no connection; any index reaches the connector.
        self.connection(0).0.on_waker(event);
        while let Some(looked_up) = self.connection(0).0.next_lookup(at) {
            match looked_up {
                LookupResult::Route { outcome: Ok(()), .. } => {}
                LookupResult::Route { outcome: Err(fault), .. } => self.count_fault(RequestFault::connect(fault)),
                LookupResult::Connection { token, endpoints: place, .. } => {
                    let idx = token as usize;
                    let (connector, line) = self.connection(idx);
                    if let Err(fault) = connector.on_lookup(idx, line, place, at) {
                        self.fail(idx, fault, at);
                    }
                }
            }
        }
    }
}
