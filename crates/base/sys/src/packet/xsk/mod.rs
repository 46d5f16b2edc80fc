//! AF_XDP: frames between a device queue and user memory, bypassing the network stack.
//!
//! One socket has one queue of one device. [`umem`] is the memory shared by kernel and program, divided into equal chunks; a [`ring`]
//! passes chunks in one direction; a [`socket`] has two rings for the memory and one for frames. Everything follows
//! `Documentation/networking/af_xdp.rst` and `linux/if_xdp.h`. This module does not look into frames.
//!
//! Needs `CAP_NET_RAW`, and `CAP_IPC_LOCK` or a large enough `RLIMIT_MEMLOCK`; Linux 5.4.

mod ring;
mod socket;
mod umem;

pub use socket::{LONGEST_RECEIVED, Mode, Queue, Received, Receiver, Statistics, Transmitter};
pub use umem::{CHUNK, Chunk};
