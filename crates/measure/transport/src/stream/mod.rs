//! A stream of bytes over one connected socket: sent until its account is closed, received to its end.
//!
//! What is sent, in which way, how fast and how much is the caller's, and so is the [`StreamControl`] that bytes are counted into. It
//! knows nothing of tests and of what the two sides agreed on.

mod byte_schedule;
mod low_watermark;
mod receiver;
mod sender;

pub use byte_schedule::{BEHIND_MAX, ByteSchedule};
pub use low_watermark::{LowWatermark, WakeBatch};
pub use receiver::{ReceiveEnd, ReceiveSink, StreamReceiver};
pub use sender::{FileReadMethod, SendSource, StreamSender, ZeroCopyCounts};

/// What one call takes of a stream that is as fast as possible; `docs/methods/tcp_stream.md` says why.
pub const CALL_BYTES: usize = 512 << 10;

/// The calls by which files are read and written, which tell their errors from those of connections.
const READ: &str = "read(file)";
const WRITE: &str = "write(file)";

/// Whether it is the file of a stream that failed, and not its connection.
pub fn is_file_error(error: &fathom_sys::Error) -> bool {
    [READ, WRITE].contains(&error.call.as_ref())
}

/// Where a stream's bytes are counted, and who says when it is over.
///
/// Every stream has one of its own, in the thread that streams, so nothing in it needs a lock.
pub trait StreamControl {
    /// Counts payload that the kernel took, or gave.
    fn count(&self, bytes: u64);

    /// Is told that a while passed in which nothing was transferred.
    fn on_wait(&self) {}

    /// Whether to come to an end; asked before every transfer.
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

    /// Counts up to a number of bytes, and is over at the latest after a while.
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
        listener.set_nonblocking(false).unwrap();
        let far = socket::accept(&listener).unwrap().unwrap().0;
        far.set_nonblocking(false).unwrap();
        for socket in [&near, &far] {
            socket::set_timeout(socket, Nanos::from_millis(50)).unwrap();
        }
        (near, far)
    }
}
