//! The kernel's own packet generator: given devices, settings and a start through its files, and its packets counted.
//!
//! pktgen builds packets in the kernel and hands them to the driver, past sockets and queueing disciplines. It has no receiver,
//! and reports what it submitted; [`ReceivedPackets`] tells what became of that. See `Documentation/networking/pktgen.rst`.
//! This module knows no test and no other backend.

mod directory;
mod error;
mod generator;
mod header;
mod received;
mod setting;
mod status;
mod value;

pub use directory::{PktgenDir, PktgenThread};
pub use error::Error;
pub use generator::PktgenSession;
pub use header::MAGIC;
pub use header::{DevicePorts, PktgenHeader, PktgenOrigin, PktgenPacket, sample_frame};
pub use received::ReceivedPackets;
pub use setting::{AppliedValue, ChangedSetting, PARAMETERS, Parameter, PktgenSetting, PktgenSettingError, Value};
pub use status::{
    CommandResult, Ipv4Range, Params, PktgenAddresses, RunResult, RunStatus, Status, StatusError, VlanTag,
};
pub use value::{FLAGS, FlagState, SizeWeight, WordError, XmitMode};
