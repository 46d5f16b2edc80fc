//! The kernel's own packet generator: given devices, settings and a start through its files, and its packets counted.
//!
//! pktgen builds packets in the kernel and hands them to the driver, past sockets and queueing disciplines. It has no receiver,
//! and reports what it submitted; [`Arrivals`] tells what became of that. See `Documentation/networking/pktgen.rst`.
//! This module knows no test and no other backend.

mod arrivals;
mod block;
mod error;
mod generator;
mod header;
mod root;
mod setting;
mod word;

pub use arrivals::Arrivals;
pub use block::{Addresses, BlockError, Current, Finished, Outcome, Params, Range4, Status, Tag};
pub use error::Error;
pub use generator::Generator;
pub(crate) use header::MAGIC;
#[cfg(test)]
pub(crate) use header::tests;
pub use header::{Header, Origin, Packet, Ports};
pub use root::{Root, Thread};
pub use setting::{Change, Kept, PARAMETERS, Parameter, Setting, SettingError, Value};
pub use word::{FLAGS, Switch, Weight, WordError, XmitMode};
