//! Linux, as the rest of fathom sees it: safe wrappers around system calls.
//!
//! This is the only crate with `unsafe` code and with `libc`. It knows nothing of tests, metrics and plans.
//! A wrapper says what it needs (capability, kernel version, man page), returns an [`Error`] that names the call, and hands out
//! guards: what was acquired is undone when the guard is dropped.

pub mod affinity;
mod attributes;
pub mod bpf;
pub mod clock;
mod control;
pub mod datagram;
pub mod echo;
pub mod epoll;
mod error;
pub mod ethtool;
pub mod handover;
pub mod interrupt;
pub mod limits;
pub mod lua;
mod mapping;
pub mod namespace;
pub mod napi;
pub mod netlink;
pub mod nftables;
pub mod packet_socket;
pub mod policy;
pub mod process;
pub mod raw_ip;
pub mod reactor;
pub mod signal;
pub mod socket;
pub mod streams;
pub mod super_frame;
pub mod tcp_info;
pub mod threads;
pub mod transmit;
pub mod tuning;
pub mod wire_time;
mod xdp_features;
pub mod xsk;

pub use error::{Error, Result, Shortage};
pub use xdp_features::{XdpFeatures, xdp_features};
