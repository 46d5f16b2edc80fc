//! When connections come about.

use std::cmp::Reverse;

use fathom_model::units::Nanos;
use fathom_sys::{clock, reactor::Reactor};

use super::{Agenda, Clients, Subscriber};

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
        self.lane(idx).n_connecting += 1;
        self.call(idx, clock::now());
    }
}
