//! Requests are copied as they come: a capture of a device, of which each whole request is sent to another server.
//!
//! [`capture::LiveCapture`] follows the connections in a thread of its own and gives each request to the worker of its session through a
//! bounded [`queue`]; [`sessions::LiveSessions`] are the users of the load driver who send them. No answer of the copy goes anywhere.

mod capture;
mod kind;
mod queue;
mod sessions;

pub use kind::LiveReplay;
