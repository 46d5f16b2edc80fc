//! The loop of a worker that offers load. Requests follow answers or a schedule.
//!
//! [`LoadLoop`] is the loop for all protocols, and [`OfferedLoad`] the part of its state that knows no protocol: which requests are due
//! ([`OpenSchedule`]), which connections are free for them, how many are in flight, which ones count ([`MeasureWindow`]), how late each was
//! and whose fault that is, and what remains at the end. A protocol owns its connections and buffers. It calls the reactor directly, so the
//! loop adds no cost per request.

mod free_connections;
mod in_flight;
mod load_times;
mod measure_window;
mod offered_load;
mod open_schedule;

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Batch, WaitLimit},
};

pub use self::{
    in_flight::{InFlight, Ring},
    load_times::LoadTimes,
    measure_window::MeasureWindow,
    offered_load::{DRAIN_OPEN, LoadCounters, LoadSpec, OfferedLoad, SendTimes},
    open_schedule::OpenSchedule,
};
use crate::Error;

/// The longest wait of a loop. A phase change or a time-out is noticed within this time.
pub const TICK: Nanos = Nanos::from_millis(10);
/// The most events between two checks of the clock and the phase: an answer may last longer than the trial.
pub const EVENTS_MAX: u32 = 1024;

/// The connections of one worker under load.
///
/// A closed load sends the next request when it handles an answer, with the time stamp of that answer. An open load sends the due
/// requests before each wait and after each event, because a batch of events may take longer than the time to the next start.
pub trait LoadLoop<'a>: Sized {
    /// The starts of each target.
    type Arrivals: Iterator<Item = Nanos> + Clone;
    /// An event from the kernel: a completion, or a ready socket.
    type Event;
    /// The results of the worker.
    type Output;

    /// Returns the part of the state that knows no protocol.
    fn load(&mut self) -> &mut OfferedLoad<'a, Self::Arrivals>;

    /// Gives up the requests whose time-out has passed. Called first in each round.
    fn expire(&mut self, now: Nanos);

    /// Returns true if the protocol has requests left to start.
    fn has_more(&mut self) -> bool;

    /// Connects, after the due requests have been started. Returns the latest end of the wait that follows.
    ///
    /// # Errors
    /// An error ends the worker.
    fn before_wait(&mut self, now: Nanos) -> Result<Nanos, Error>;

    /// Waits for events.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()>;

    /// Returns the next event of the last wait.
    fn next_event(&mut self) -> Option<Self::Event>;

    /// Handles an event.
    fn on_event(&mut self, event: Self::Event);

    /// Returns true if a connection that is listed as free can take a request.
    fn is_free(&self, connection: usize) -> bool;

    /// Sends a request that was due on a free connection.
    fn start(&mut self, connection: usize, times: SendTimes);

    /// Ends the requests in flight and returns the results.
    ///
    /// # Errors
    /// Fails if the results cannot be stored.
    fn finish(self, now: Nanos) -> Result<Self::Output, Error>;

    /// Returns the time of the next event that depends on the clock only.
    #[inline]
    fn next_due(&mut self) -> Option<Nanos> {
        self.load().next_due()
    }

    /// Returns the answers to wait for at once.
    fn batch(&mut self) -> Option<Batch> {
        self.load().batch()
    }

    /// Starts due requests on free connections.
    fn start_due(&mut self, now: Nanos) {
        for target in 0..self.load().n_targets_to_check(now) {
            self.drop_busy(target);
            self.load().notice(target, now);
            self.start_waiting(target);
        }
    }

    /// Starts requests that wait for a connection, as long as one is free.
    fn start_waiting(&mut self, target: usize) {
        while self.load().waiting(target) > 0
            && let Some(connection) = self.load().last_free(target)
        {
            self.load().pop_free(target);
            self.start_oldest(target, connection);
            self.drop_busy(target);
        }
    }

    /// Removes connections that became busy or closed from the top of the list of free ones.
    fn drop_busy(&mut self, target: usize) {
        while let Some(connection) = self.load().last_free(target)
            && !self.is_free(connection)
        {
            self.load().pop_free(target);
        }
    }

    /// Starts the request that has been due for longest. Returns false if none waits.
    fn start_oldest(&mut self, target: usize, connection: usize) -> bool {
        if self.load().waiting(target) == 0 {
            return false;
        }
        let times = self.load().take_start(target, clock::now());
        times.map(|times| self.start(connection, times)).is_some()
    }

    /// Gives a connection without a request the one that has been due for longest, or lists it as free.
    fn start_or_list(&mut self, target: usize, connection: usize) {
        if !self.start_oldest(target, connection) {
            self.load().list_free(target, connection);
        }
    }

    /// Offers the load until the trial is over and the last answers have arrived or are given up.
    ///
    /// # Errors
    /// Fails if a wait fails, or with the error of another method.
    fn run(mut self) -> Result<Self::Output, Error> {
        loop {
            let now = clock::now();
            self.load().follow_phase(now);
            self.expire(now);
            let has_more = self.has_more();
            if self.load().is_done(now, has_more) {
                return self.finish(now);
            }
            self.start_due(now);
            let (latest, due, batch) = (self.before_wait(now)?, self.next_due(), self.batch());
            let limit = WaitLimit { until: self.load().wait_limit(now, latest, due), batch };
            self.wait(limit).map_err(|cause| Error::System { what: "wait for answers".to_owned(), cause })?;
            if self.load().learns_from(limit, now) {
                self.load().learn(limit, clock::now());
            }
            for _ in 0..EVENTS_MAX {
                let Some(event) = self.next_event() else { break };
                self.on_event(event);
                if let Some(due) = self.next_due() {
                    let now = clock::now();
                    if due <= now {
                        self.start_due(now);
                    }
                }
            }
        }
    }
}
