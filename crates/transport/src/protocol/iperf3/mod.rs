//! iperf3's protocol (versions 3.1 to 3.21), both roles.
//!
//! A control connection binds a test together: a cookie, states of one byte, and JSON behind its length. The streams are plain
//! TCP connections, or datagrams with a header of 12 or 16 bytes. This module knows neither plans nor what anybody prints.

mod account;
mod client;
mod control;
mod course;
mod data;
mod error;
mod login;
mod parameters;
mod results;
mod server;
mod tune;
mod wire;

pub use account::{Beginning, Interval, Outcome, Part, Reading, Stream, StreamOutcome, TcpExtremes, TcpState, Watch};
pub use client::{Asked, Client};
pub use error::Error;
pub use login::{Doorkeeper, Login, LoginError, Padding, SKEW_SECS};
pub use parameters::{Carrier, Parameters, Way, Wish, Wishes};
pub use results::{CpuUse, Omitted, Results, ServerOutput, StreamResult};
pub use server::{Admits, Served, Server, ServerOptions};
pub use wire::{Cookie, State, read_message};

pub use crate::kinds::destination;
pub(crate) use course::Open;
pub(crate) use data::{Conducted, Counter, run as stream};

/// The port that an iperf3 server listens on.
pub const PORT: u16 = 5201;
