//! A host's counters live: samples, the tables and findings that follow from them, and the ways to show and keep them.
//!
//! It reads what [`fathom_monitor`] reads during a test, and judges it with the rules of [`fathom_analyze`] that need no test.
//!
//! # Words
//!
//! - `Sampler`, `Samples`: reads all sources; the newest samples.
//! - `LiveReadings`: sockets and programs, which are not recorded.
//! - `Viewer`, `View`: makes views of a host; the tables and findings of one interval.
//! - `CounterFeed`, `CounterChanges`: counters of a host for a view on another one; what changed since the sample before.
//! - `SampleStream`: samples from a file, whatever wrote it.
//! - `HostHistory`, `Chart`, `SeenFinding`: a recording as a report shows it: its series, and the findings of its whole time.

mod changes;
mod exposition;
mod history;
mod lines;
mod live_tables;
mod pace;
mod programs;
mod queue_names;
mod queue_shares;
mod queues;
mod recorded;
mod recording;
mod sadf;
mod samples;
mod scrape;
mod screen;
mod sockets;
mod stream;
mod tables;
mod view;

pub use changes::{ChangeError, ChangeReader, HostFeed};
pub use exposition::exposition;
pub use history::history;
pub use lines::{Line, Tone, Width, lines};
pub use live_tables::{LiveTables, Onlooker};
pub use queue_shares::QueueShare;
pub use queues::{QueueReading, queue_lines};
pub use recorded::recording;
pub use recording::Recorder;
pub use samples::{Sampler, Samples};
pub use scrape::ScrapeEndpoint;
pub use screen::{Ending, Page, Screen, printed_width};
pub use sockets::{BusySocket, BusySockets, SocketOwner, WaitingListener};
pub use stream::{RecordingError, SampleStream};
pub use view::{JUDGED, LiveReadings, View, Viewer};
