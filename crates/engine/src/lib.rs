//! How a plan runs: what a test is ([`TestKind`]), how its phases follow each other ([`Crew`]), how it is paced ([`pace`]),
//! and how a limit is found over many of its trials ([`search`]).
//!
//! Worker threads are pinned and share nothing: each writes its own padded [`Slot`], read once per interval, and its own
//! histograms, merged after the run. This crate knows no protocol, no output and no way to reach a host.

mod abandon;
mod conduct;
mod error;
mod kind;
mod observe;
mod own_cpu;
pub mod pace;
pub mod search;
mod session;
mod slot;
mod way;

pub use abandon::abandon;
pub use conduct::{Conducted, Counts, Crew, Enlisted, Phase, Shift, Until, Watcher, Worker};
pub use error::Error;
pub use kind::{Test, TestKind, find, guests};
pub use observe::Observer;
pub use session::{Live, Session, Stop, StopFlag};
pub use slot::Slot;
pub use way::{Batching, Model, Way, Which};
