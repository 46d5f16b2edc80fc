//! iperf3's protocol (versions 3.1 to 3.21), both roles.
//!
//! A control connection holds a test together: a cookie, one-byte states, and JSON with a length prefix. The streams are plain TCP
//! connections, or datagrams with a header of 12 or 16 bytes. This module knows neither plans nor output.

mod client;
mod control;
mod counts;
mod data;
mod error;
mod login;
mod open_stream;
mod parameters;
mod results;
mod server;
mod stream_options;
mod transfer;
mod wire;

pub use client::{Client, ClientOptions};
pub use counts::{
    Interval, Iperf3Outcome, Stream, StreamCounts, StreamOutcome, StreamRole, TcpExtremes, TcpState, TestObserver,
    TestStartInfo,
};
pub use error::Error;
pub use login::{Authenticator, Login, LoginError, Padding, SKEW_SECS};
pub use parameters::{ParameterFlag, ParameterFlags, Parameters, TransferDirection, TransportProtocol};
pub use results::{CpuUse, Omitted, Results, ServerOutput, StreamResult};
pub use server::{Server, ServerOptions};
pub use wire::{Cookie, TestState, read_message};

pub(crate) use data::{Counter, StreamContext, run as stream};
pub(crate) use open_stream::OpenStream;

/// The default port of an iperf3 server.
pub const PORT: u16 = 5201;
