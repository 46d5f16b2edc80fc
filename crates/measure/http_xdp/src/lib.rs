//! Layer 7: HTTP requests without sockets.
//!
//! An XDP program on the device answers each segment of the server in the driver, so that a request costs neither a socket nor a
//! system call. [`machine`] is the TCP connection with one request in flight, as pure code; [`program`] is the same as instructions;
//! [`frame`] and [`slots`] say what is sent, and from where. The client in user space prepares a load and looks after it. [`responder`] is the
//! other end: a program that answers requests, without any state. [`KINDS`] is the kind of test.
//!
//! # Words
//!
//! - `ResponderPlace`: where requests are answered by a program.
//! - `XdpResponder`: that program on its device; the port is kept from sockets.
//! - `Answer`: the one answer to all requests.
//! - slow path: user space follows an answer that an XDP program cannot.
//! - away: a connection whose answer is on the slow path.

mod attachment;
mod client;
pub mod frame;
mod kinds;
pub mod machine;
mod pass_program;
pub mod program;
pub mod responder;
pub mod slots;
mod slow_path;

pub use kinds::{HttpXdp, KINDS};
pub use pass_program::PassProgram;

#[cfg(test)]
mod world;
