//! AF_XDP: frames between a device's queue and memory of ours, past the network stack.
//!
//! One socket has one queue of one device. [`umem`] is the memory that kernel and program share, cut in equal chunks; a [`ring`]
//! hands chunks over in one direction; a [`socket`] has two rings for the memory and one for frames. Everything is by
//! `Documentation/networking/af_xdp.rst` and `linux/if_xdp.h`. It knows nothing of what a frame holds.
//!
//! Needs `CAP_NET_RAW`, and `CAP_IPC_LOCK` or a large enough `RLIMIT_MEMLOCK`; Linux 5.4.

mod ring;
mod socket;
mod umem;

pub use socket::{LONGEST_RECEIVED, Mode, Queue, Received, Receiver, Statistics, Transmitter};
pub use umem::{CHUNK, Chunk};
