//! A stream of bytes over one connected socket: sent until its control ends it, received to its end.
//!
//! The caller chooses the data, the method, the rate and the amount, and provides the [`StreamControl`] that counts bytes. This
//! module knows nothing of tests and of agreements between the two sides.

mod byte_schedule;
mod low_watermark;
mod receiver;
mod sender;

pub use byte_schedule::{BEHIND_MAX, ByteSchedule};
pub use low_watermark::{LowWatermark, WakeBatch};
pub use receiver::{ReceiveEnd, ReceiveSink, StreamReceiver};
pub use sender::{FileReadMethod, SendSource, StreamSender, ZeroCopyCounts};

/// The bytes per call of a stream that is as fast as possible; `docs/methods/tcp_stream.md` has the reason.
pub const CALL_BYTES: usize = 512 << 10;

/// The names of file calls in errors, which distinguish them from those of connections.
const READ: &str = "read(file)";
const WRITE: &str = "write(file)";

/// Whether the error comes from the file of a stream and not from its connection.
pub fn is_file_error(error: &fathom_sys::Error) -> bool {
    [READ, WRITE].contains(&error.call.as_ref())
}

/// Counts a stream's bytes, and decides when it is over.
///
/// Every stream has its own, on the streaming thread, so it needs no lock.
pub trait StreamControl {
    /// Counts payload that the kernel took or delivered.
    fn count(&self, bytes: u64);

    /// Called after a wait in which nothing was transferred.
    fn on_wait(&self) {}

    /// Whether to stop; called before every transfer.
    fn is_over(&self) -> bool;
}

#[cfg(test)]
pub mod tests {
    use std::{
        cell::Cell,
        net::{Ipv4Addr, SocketAddr},
    };

    use fathom_model::units::Nanos;
    use fathom_sys::{
        clock,
        socket::{self, Socket},
    };

    use fathom_sys::policy::{AllowedPeers, Policy};

    use super::*;

    /// Counts up to a number of bytes, and ends after a deadline at the latest.
    pub struct ByteLimit {
        pub counted: Cell<u64>,
        pub limit: u64,
        pub deadline: Nanos,
    }

    impl ByteLimit {
        pub fn at(limit: u64) -> Self {
            Self { counted: Cell::new(0), limit, deadline: clock::now() + Nanos::from_secs(5) }
        }
    }

    impl StreamControl for ByteLimit {
        fn count(&self, bytes: u64) {
            self.counted.set(self.counted.get() + bytes);
        }

        fn is_over(&self) -> bool {
            self.counted.get() >= self.limit || clock::now() > self.deadline
        }
    }

    /// Two ends of a connection that block for at most 50 ms.
    pub fn pair() -> (Socket, Socket) {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket::listen(loopback, 1, &AllowedPeers::anybody()).unwrap();
        let near = socket::stream(loopback).unwrap();
        let to = Policy::anything().permit(socket::local_address(&listener).unwrap()).unwrap();
        socket::connect(&near, &to, Nanos::from_secs(1)).unwrap();
        socket::SockRef::from(&listener).set_nonblocking(false).unwrap();
        let far = socket::accept(&listener).unwrap().unwrap().0;
        far.set_nonblocking(false).unwrap();
        for socket in [&near, &far] {
            socket::set_timeout(socket, Nanos::from_millis(50)).unwrap();
        }
        (near, far)
    }
}
