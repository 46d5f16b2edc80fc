//! What a plan lets happen while a test runs: a command, a link that goes down, a target that stops.
//!
//! Events run on the machine of the controller, never on a served host: an agent does not run commands of others.

mod built_ins;
mod event_clock;
mod running;
mod spec;

pub(super) use event_clock::EventClock;
pub(super) use running::{EventPlaces, run_with_events};
pub(super) use spec::TestEvents;
