//! What engines do alike with their lines, and what each does in its own way.

use fathom_model::units::Nanos;
use fathom_sys::reactor::{Completion, Event, Piece, Reactor};

use super::{Fault, Heard, Line, Switchboard};
use crate::dial::LookedUp;

/// An engine whose lines go through a switchboard: it is called with what was heard on each.
///
/// Lines are named by their places. An engine is told of a fault by [`Subscriber::fail`] and hangs up then.
pub(crate) trait Subscriber {
    /// What its switchboard works with.
    type Reactor: Reactor;

    /// The switchboard, and the line of a place.
    fn line(&mut self, idx: usize) -> (&mut Switchboard<Self::Reactor>, &mut Line);

    fn n_lines(&self) -> usize;

    /// So many bytes have come, encrypted or not.
    fn count_received(&mut self, n_bytes: u64);

    /// Something went wrong that concerns no line.
    fn count_fault(&mut self, fault: Fault);

    /// The line is open.
    fn ready(&mut self, idx: usize, at: Nanos);

    /// Bytes for HTTP have come; the piece is to be released.
    fn received(&mut self, idx: usize, piece: Piece, at: Nanos);

    /// Bytes for HTTP may lie on the desk.
    fn decrypted(&mut self, idx: usize, at: Nanos);

    /// So much of what was to be thrown away is gone.
    fn discarded(&mut self, idx: usize, count: u64, at: Nanos);

    /// Something that was sent is with the kernel, which most do not need to know.
    fn sent(&mut self, _idx: usize, _at: Nanos) {}

    /// The other end will send no more.
    fn ended(&mut self, idx: usize, at: Nanos);

    /// The socket does not work any more.
    fn broken(&mut self, idx: usize, error: &fathom_sys::Error, at: Nanos);

    /// What was under way on the line has failed, and with it the line.
    fn fail(&mut self, idx: usize, fault: Fault, at: Nanos);

    /// Deals with something that the reactor has to tell.
    #[inline]
    fn attend(&mut self, completion: Completion) {
        let Completion { token, at, event } = completion;
        let idx = token.0 as usize;
        if idx == self.n_lines() {
            return self.heard_bell(event, at);
        }
        match event {
            Event::Connected => {
                let (board, line) = self.line(idx);
                let heard = board.connected(idx, line, at);
                self.heard(idx, heard, at);
            }
            Event::Received(piece) => {
                let (board, line) = self.line(idx);
                let (is_plain, n_bytes) = (line.channel.is_plain(), board.reactor.bytes(&piece).len());
                self.count_received(n_bytes as u64);
                if is_plain {
                    return self.received(idx, piece, at);
                }
                let (board, line) = self.line(idx);
                let heard = board.take(idx, line, (piece, at));
                self.heard(idx, heard, at);
            }
            Event::Discarded(count) => {
                self.count_received(count);
                self.discarded(idx, count, at);
            }
            Event::Ended => self.ended(idx, at),
            Event::Failed(error) => self.broken(idx, &error, at),
            Event::Sent => self.sent(idx, at),
            Event::Accepted(_) => {}
        }
    }

    /// Begins to open a line that is shut.
    fn call(&mut self, idx: usize, now: Nanos) {
        let (board, line) = self.line(idx);
        if let Err(fault) = board.call(idx, line, now) {
            self.fail(idx, fault, now);
        }
    }

    fn heard(&mut self, idx: usize, heard: Result<Heard, Fault>, at: Nanos) {
        match heard {
            Err(fault) => self.fail(idx, fault, at),
            Ok(Heard::Nothing) => {}
            Ok(Heard::Ready) => {
                self.ready(idx, at);
                self.decrypted(idx, at);
            }
            Ok(Heard::Data) => self.decrypted(idx, at),
            Ok(Heard::Ended) => {
                self.decrypted(idx, at);
                // What was decrypted may have been the end of the connection already.
                if self.line(idx).1.is_open() {
                    self.ended(idx, at);
                }
            }
        }
    }

    /// Answers of the resolver are there.
    fn heard_bell(&mut self, event: Event, at: Nanos) {
        // The bell is no line; any will do to reach the switchboard.
        self.line(0).0.heard_bell(event);
        while let Some(looked_up) = self.line(0).0.looked_up(at) {
            match looked_up {
                LookedUp::Renewed { outcome: Ok(()), .. } => {}
                LookedUp::Renewed { outcome: Err(fault), .. } => self.count_fault(Fault::dial(fault)),
                LookedUp::Place { token, place, .. } => {
                    let idx = token as usize;
                    let (board, line) = self.line(idx);
                    if let Err(fault) = board.found(idx, line, (place, at)) {
                        self.fail(idx, fault, at);
                    }
                }
            }
        }
    }
}
