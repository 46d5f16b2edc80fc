//! When the requests of a recording are due, and which one follows which on its connection. What is in them lies in a spool.

use std::{collections::HashMap, hash::Hash, io};

use fathom_model::units::{Nanos, PerSec};

use crate::{
    spool::SpoolPlace,
    timing::{Timing, rate_time},
};

/// The last request of a connection has none behind it.
const NO_NEXT: u32 = u32::MAX;

/// A request that will be sent; 16 bytes of each are in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DueRequest {
    /// Since the start.
    pub(crate) due: Nanos,
    pub(crate) place: SpoolPlace,
    next: u32,
}

/// The number of a request in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestNumber(u32);

/// All requests of a recording.
#[derive(Debug)]
pub(crate) struct Schedule {
    requests: Vec<DueRequest>,
    /// The first request of each connection of ours, by the time at which they are due.
    sessions: Vec<RequestNumber>,
    /// The time from the first request to the last in the recording.
    pub(crate) span: Nanos,
}

impl Schedule {
    pub(crate) fn request(&self, number: RequestNumber) -> &DueRequest {
        &self.requests[number.0 as usize]
    }

    /// The request after this one on its connection.
    pub(crate) fn next(&self, number: RequestNumber) -> Option<RequestNumber> {
        Some(RequestNumber(self.request(number).next)).filter(|next| next.0 != NO_NEXT)
    }

    /// The first requests of all connections.
    pub(crate) fn sessions(&self) -> &[RequestNumber] {
        &self.sessions
    }

    pub(crate) fn n_requests(&self) -> u64 {
        self.requests.len() as u64
    }
}

/// Collects requests, in any order of connections. `K` tells connections of ours apart.
#[derive(Debug)]
pub(crate) struct ScheduleBuilder<K> {
    timing: Timing,
    /// Due at their time in the recording, until all are known.
    requests: Vec<DueRequest>,
    sessions: Vec<RequestNumber>,
    /// The last request of each connection.
    last_of: HashMap<K, RequestNumber>,
}

impl<K: Eq + Hash> ScheduleBuilder<K> {
    pub(crate) fn new(timing: Timing) -> Self {
        Self { timing, requests: Vec::new(), sessions: Vec::new(), last_of: HashMap::new() }
    }

    /// Adds a request of a connection that was sent at `time`. Those of a connection come in their order.
    ///
    /// # Errors
    /// There are more than 32 bits can count.
    pub(crate) fn add(&mut self, connection: K, time: Nanos, place: SpoolPlace) -> io::Result<()> {
        let number = u32::try_from(self.requests.len()).ok().filter(|number| *number != NO_NEXT);
        let number = RequestNumber(number.ok_or(io::ErrorKind::FileTooLarge)?);
        self.requests.push(DueRequest { due: time, place, next: NO_NEXT });
        match self.last_of.insert(connection, number) {
            Some(before) => self.requests[before.0 as usize].next = number.0,
            None => self.sessions.push(number),
        }
        Ok(())
    }

    /// No request of this connection will follow.
    pub(crate) fn end(&mut self, connection: &K) {
        self.last_of.remove(connection);
    }

    /// Returns the schedule once all requests are known.
    pub(crate) fn finish(mut self) -> Schedule {
        let first = self.requests.iter().map(|request| request.due).min().unwrap_or_default();
        let last = self.requests.iter().map(|request| request.due).max().unwrap_or_default();
        match self.timing {
            Timing::Rate(rate) => self.spread(rate),
            timing => self.requests.iter_mut().for_each(|request| request.due = timing.due(request.due.since(first))),
        }
        let Self { requests, mut sessions, .. } = self;
        sessions.sort_by_key(|session| requests[session.0 as usize].due);
        Schedule { requests, sessions, span: last.since(first) }
    }

    /// Makes requests due at a rate, in the order of their times.
    fn spread(&mut self, rate: PerSec) {
        let mut order: Vec<u32> = (0..).take(self.requests.len()).collect();
        order.sort_unstable_by_key(|number| (self.requests[*number as usize].due, *number));
        for (place, number) in order.into_iter().enumerate() {
            self.requests[number as usize].due = rate_time(rate, place as u64);
        }
    }
}
