//! The kernel's own packet generator: controls it through its files, and counts its packets.
//!
//! pktgen builds packets in the kernel and hands them to the driver, bypassing sockets and queueing disciplines. It has no
//! receiver, and reports the packets that it submitted; [`ReceivedPackets`] measures what happened to them. See
//! `Documentation/networking/pktgen.rst`. This crate knows no test and no other backend.

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
