//! Linux, as the rest of fathom sees it: safe wrappers around system calls.
//!
//! This is the only crate with `unsafe` code and with `libc`. It knows nothing of tests, metrics and plans.
//! A wrapper says what it needs (capability, kernel version, man page), returns an [`Error`] that names the call, and hands out
//! guards: what was acquired is undone when the guard is dropped.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod affinity;
pub mod bpf;
pub mod clock;
mod control_message;
pub mod datagram;
pub mod descriptor_passing;
pub mod echo;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod interrupt;
pub mod limits;
pub mod lua;
mod mapping;
pub mod namespace;
pub mod netlink;
mod netlink_message;
pub mod nftables;
pub mod packet_socket;
pub mod policy;
pub mod process;
pub mod raw_ip;
pub mod reactor;
pub mod signal;
pub mod socket;
pub mod socket_options;
pub mod streams;
pub mod super_frame;
pub mod tcp_info;
pub mod threaded_napi;
pub mod threads;
pub mod timestamping;
mod xdp_features;
pub mod xsk;
pub mod zero_copy;

pub use error::{Error, ExhaustedResource, Result};
pub use xdp_features::{XdpFeatures, xdp_features};
