//! A host's counters live: samples, the tables and findings that follow from them, and the ways to show and keep them.
//!
//! It reads what [`fathom_monitor`] reads during a test, and judges it with the rules of [`fathom_analyze`] that need no test.

mod exposition;
mod lines;
mod pace;
mod programs;
mod queues;
mod recording;
mod samples;
mod scrape;
mod screen;
mod sockets;
mod tables;
mod view;

pub use exposition::exposition;
pub use lines::{Line, Tone, lines};
pub use queues::{QueueReading, queue_lines};
pub use recording::{Recorder, RecordingError, Replay};
pub use samples::{Sampler, Samples};
pub use scrape::ScrapeEndpoint;
pub use screen::{Ending, Screen};
pub use sockets::{BusySocket, BusySockets, SocketOwner, WaitingListener};
pub use view::{LiveReadings, View, Viewer};
