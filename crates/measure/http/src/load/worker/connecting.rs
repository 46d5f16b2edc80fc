//! Starts the connects of a worker.

use std::cmp::Reverse;

use fathom_model::units::Nanos;
use fathom_sys::{clock, reactor::Reactor};

use super::{ClientWorker, ConnectionHandler};

impl<R: Reactor> ClientWorker<'_, R> {
    /// Starts connects of closed connections, as far as they are needed and the limit of concurrent connects allows.
    pub(super) fn start_connects(&mut self, now: Nanos) {
        while let Some(Reverse((_, idx))) = self.retry_queue.peek().filter(|pause| pause.0.0 <= now) {
            let idx = *idx;
            self.upstream_mut(idx as usize).to_connect.push_back(idx);
            self.retry_queue.pop();
        }
        if !self.load.may_start() {
            return;
        }
        for upstream in 0..self.upstreams.len() {
            // A connection without a request left for it would be opened for nothing.
            let wanted =
                if self.load.is_open() { self.load.waiting(upstream) } else { self.requests_left.unwrap_or(u64::MAX) };
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            while self.connector.has_room() && self.upstreams[upstream].n_connecting < wanted {
                let Some(idx) = self.upstreams[upstream].to_connect.pop_front() else { break };
                self.connect_one(idx as usize);
            }
        }
    }

    fn connect_one(&mut self, idx: usize) {
        self.upstream_mut(idx).n_connecting += 1;
        self.connect(idx, clock::now());
    }
}
