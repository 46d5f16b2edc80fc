//! The loop of a worker that offers load: requests that follow answers, or a schedule.
//!
//! [`LoadLoop`] is the loop itself, written once. [`OpenSchedule`] says what is due in an open load, and [`MeasureWindow`] what counts.
//! A protocol keeps its connections, its bytes and its recorder; it calls the reactor directly, so the loop costs nothing per request.

mod measure_window;
mod open_schedule;

use fathom_model::units::Nanos;
use fathom_sys::{clock, reactor::WaitLimit};

pub use self::{measure_window::MeasureWindow, open_schedule::OpenSchedule};
use crate::{Error, pace::Pacer};

/// The longest wait of a loop: the phases of the trial and time-outs are noticed within it.
pub const TICK: Nanos = Nanos::from_millis(10);
/// The most events between two looks at the clock and the phase: an answer may be longer than the trial.
pub const EVENTS_MAX: u32 = 1024;

/// The connections of one worker under load.
///
/// A closed load sends the next request where it handles an answer, with the time stamp of that answer. An open load sends what is due:
/// before each wait, and after each event, because a batch of events may take longer than the time to the next start.
pub trait LoadLoop: Sized {
    /// Something that the kernel reports: a completion, or a socket that is ready.
    type Event;
    /// The results of the worker.
    type Output;

    /// Follows the phases of the trial. Returns true once nothing is left to do.
    fn is_done(&mut self, now: Nanos) -> bool;

    /// Does what is due before a wait: time-outs, starts, connects. Returns how long to wait.
    ///
    /// # Errors
    /// Ends the worker.
    fn before_wait(&mut self, now: Nanos) -> Result<WaitLimit, Error>;

    /// Waits for events.
    ///
    /// # Errors
    /// The kernel's.
    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()>;

    /// The next event of the last wait.
    fn next_event(&mut self) -> Option<Self::Event>;

    /// Handles an event.
    fn on_event(&mut self, event: Self::Event);

    /// The pacer, if the wait that ends may have been for a start that is due. It learns how late waits end.
    fn pacer(&mut self) -> Option<&mut Pacer>;

    /// Starts what has become due while events were handled. A closed load has nothing to do here.
    fn after_event(&mut self);

    /// Ends what is under way and returns the results.
    ///
    /// # Errors
    /// The results could not be kept.
    fn finish(self, now: Nanos) -> Result<Self::Output, Error>;

    /// Keeps the load up until the trial is over and the last answers have come, or are given up.
    ///
    /// # Errors
    /// A wait failed, or what the other methods return.
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
