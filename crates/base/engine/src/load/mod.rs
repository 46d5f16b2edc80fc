//! The loop of a worker that offers load. Requests follow answers or a schedule.
//!
//! [`LoadLoop`] is the loop for all protocols. [`OpenSchedule`] decides which requests are due in an open load, and [`MeasureWindow`]
//! which ones count. A protocol owns its connections, buffers and recorder. It calls the reactor directly, so the loop adds no cost
//! per request.

mod measure_window;
mod open_schedule;

use fathom_model::units::Nanos;
use fathom_sys::{clock, reactor::WaitLimit};

pub use self::{measure_window::MeasureWindow, open_schedule::OpenSchedule};
use crate::{Error, pace::Pacer};

/// The longest wait of a loop. A phase change or a time-out is noticed within this time.
pub const TICK: Nanos = Nanos::from_millis(10);
/// The most events between two checks of the clock and the phase: an answer may last longer than the trial.
pub const EVENTS_MAX: u32 = 1024;

/// The connections of one worker under load.
///
/// A closed load sends the next request when it handles an answer, with the time stamp of that answer. An open load sends the due
/// requests before each wait and after each event, because a batch of events may take longer than the time to the next start.
pub trait LoadLoop: Sized {
    /// An event from the kernel: a completion, or a ready socket.
    type Event;
    /// The results of the worker.
    type Output;

    /// Follows the phases of the trial. Returns true once nothing is left to do.
    fn is_done(&mut self, now: Nanos) -> bool;

    /// Handles time-outs, starts and connects before a wait. Returns the limit of the wait.
    ///
    /// # Errors
    /// An error ends the worker.
    fn before_wait(&mut self, now: Nanos) -> Result<WaitLimit, Error>;

    /// Waits for events.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()>;

    /// Returns the next event of the last wait.
    fn next_event(&mut self) -> Option<Self::Event>;

    /// Handles an event.
    fn on_event(&mut self, event: Self::Event);

    /// Returns the pacer, if the last wait may have been for a start that is due. The pacer learns how late waits end.
    fn pacer(&mut self) -> Option<&mut Pacer>;

    /// Starts the requests that became due while events were handled. A closed load does nothing here.
    fn after_event(&mut self);

    /// Ends the requests in flight and returns the results.
    ///
    /// # Errors
    /// Fails if the results cannot be stored.
    fn finish(self, now: Nanos) -> Result<Self::Output, Error>;

    /// Offers the load until the trial is over and the last answers have arrived or are given up.
    ///
    /// # Errors
    /// Fails if a wait fails, or with the error of another method.
    fn run(mut self) -> Result<Self::Output, Error> {
        loop {
            let now = clock::now();
            if self.is_done(now) {
                return self.finish(now);
            }
            let limit = self.before_wait(now)?;
            self.wait(limit).map_err(|cause| Error::System { what: "wait for answers".to_owned(), cause })?;
            if limit.until > now
                && let Some(pacer) = self.pacer()
            {
                pacer.learn(limit.until, clock::now());
            }
            for _ in 0..EVENTS_MAX {
                let Some(event) = self.next_event() else { break };
                self.on_event(event);
                self.after_event();
            }
        }
    }
}
