//! netperf's protocol (OMNI, versions 2.5 to 2.7 and later), both roles.
//!
//! A control connection carries fixed messages: a request for a test, the port of its data connection, and the server's results.
//! The data connection carries nothing but data. This module knows neither plans nor output.

mod client;
mod control;
mod counts;
mod cpu;
mod data_socket;
mod error;
mod server;
mod test_spec;
mod transfer;
pub mod wire;

pub(crate) use client::PreparedTest;
pub use client::{Client, ClientOptions};
pub use counts::{EndCounts, InterimResult, NetperfOutcome};
pub use cpu::CpuTicks;
pub use error::Error;
pub use server::{NetserverOptions, Server};
pub use test_spec::{DATAGRAM_MAX, DataPattern, DataProtocol, EndSettings, MESSAGE_MAX, TestLength, TestSpec};
pub(crate) use transfer::{Counter, TransferContext};
pub use wire::{CpuPercents, MessageFormat};

/// The default port of a netserver.
pub const PORT: u16 = 12_865;
