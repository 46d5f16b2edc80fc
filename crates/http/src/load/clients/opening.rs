//! How connections come about: when, and what their engine does with each step.

use std::cmp::Reverse;

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Event, Piece, Reactor},
};

use super::{Agenda, Clients, Fault, Heard};
use crate::dial::LookedUp;

impl<R: Reactor> Clients<'_, R> {
    /// Begins to connect what is shut, as far as it is wanted and there may be connects under way.
    pub(super) fn connect_shut(&mut self, now: Nanos) {
        while let Some(Reverse((_, idx))) = self.pauses.peek().filter(|pause| pause.0.0 <= now) {
            let idx = *idx;
            self.lane(idx as usize).shut.push_back(idx);
            self.pauses.pop();
        }
        if !self.may_ask {
            return;
        }
        for lane in 0..self.lanes.len() {
            // A connection without a request left for it would be opened for nothing.
            let wanted = match (self.agenda, &self.lanes[lane].queue) {
                (Agenda::Open, Some(queue)) => queue.waiting(),
                _ => self.left.unwrap_or(u64::MAX),
            };
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            while self.board.has_room() && self.lanes[lane].n_connecting < wanted {
                let Some(idx) = self.lanes[lane].shut.pop_front() else { break };
                self.connect(idx as usize);
            }
        }
    }

    fn connect(&mut self, idx: usize) {
        let now = clock::now();
        self.lane(idx).n_connecting += 1;
        if let Err(fault) = self.board.call(idx, &mut self.connections[idx].line, now) {
            self.fail(idx, fault, now);
        }
    }

    /// Answers of the resolver are there.
    pub(super) fn heard_bell(&mut self, event: Event, at: Nanos) {
        self.board.heard_bell(event);
        while let Some(looked_up) = self.board.looked_up(at) {
            match looked_up {
                LookedUp::Renewed { outcome: Ok(()), .. } => {}
                LookedUp::Renewed { outcome: Err(fault), .. } => self.accounts.count_fault(Fault::dial(fault)),
                LookedUp::Place { token, place, .. } => {
                    let idx = token as usize;
                    if let Err(fault) = self.board.found(idx, &mut self.connections[idx].line, (place, at)) {
                        self.fail(idx, fault, at);
                    }
                }
            }
        }
    }

    /// The socket is connected.
    pub(super) fn connected(&mut self, idx: usize, at: Nanos) {
        let heard = self.board.connected(idx, &mut self.connections[idx].line, at);
        self.heard(idx, heard, at);
    }

    /// What has arrived on a connection that is not plain.
    pub(super) fn take(&mut self, idx: usize, piece: Piece, at: Nanos) {
        let heard = self.board.take(idx, &mut self.connections[idx].line, (piece, at));
        self.heard(idx, heard, at);
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
                if self.connections[idx].line.is_open() {
                    self.ended(idx, at);
                }
            }
        }
    }

    /// A connection is there, with all that comes before HTTP.
    fn ready(&mut self, idx: usize, at: Nanos) {
        let connection = &mut self.connections[idx];
        connection.begin();
        self.accounts.connected(connection.line.channel.security());
        self.lane(idx).n_connecting -= 1;
        self.go_on(idx, at);
    }
}
