//! What is sent: frames made from options, from a line of text or from a capture.
//!
//! A [`Blueprint`] holds all that a sender needs to write any frame of a trial, so nothing is decided while frames leave. It knows
//! neither devices nor sockets.

mod blueprint;

pub use blueprint::{Blueprint, Change, Checksum, Cover, Edit, Per, Shape, Turn, Zero, mix};
