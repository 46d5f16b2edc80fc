//! The socket options of a test.

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::socket::{self, Buffer, Socket};

use super::{Error, TransportProtocol};

/// How long a transfer call blocks before it checks whether the flow is over.
pub(crate) const BLOCKING_TIMEOUT: Nanos = fathom_transport::connection_setup::BLOCKING_TIMEOUT;

/// The requested options of the sockets of a test.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketSetup {
    /// The size of both buffers (`-w`); `None` for the kernel's.
    pub window: Option<Bytes>,
    /// The maximum segment size (`-M`).
    pub mss: Option<u32>,
    /// Whether small writes are sent at once (`-N`).
    pub has_no_delay: bool,
    /// The type of service (`-S`).
    pub tos: u8,
    /// The congestion control (`-Z`).
    pub congestion: Option<String>,
}

impl SocketSetup {
    /// Sets the options that must be set before a connection is opened, or before a listener accepts one.
    ///
    /// # Errors
    /// The option that the kernel refuses. A buffer that it makes smaller is none: iperf shows its size.
    pub(crate) fn apply(&self, socket: &Socket, protocol: TransportProtocol) -> Result<(), Error> {
        let option = |what| move |cause| Error::SocketOption { what, cause };
        if let Some(window) = self.window {
            for which in [Buffer::Send, Buffer::Receive] {
                let set = socket::set_buffer(socket, which, window);
                set.map_err(|error| Error::SocketOption { what: "set socket buffer size", cause: error.source })?;
            }
        }
        if self.tos > 0 {
            let set = socket::set_traffic_class(socket, self.tos);
            set.map_err(|error| Error::SocketOption { what: "setsockopt IP_TOS", cause: error.source })?;
        }
        if protocol == TransportProtocol::Tcp {
            if let Some(mss) = self.mss {
                socket.set_tcp_mss(mss).map_err(option("setsockopt TCP_MAXSEG"))?;
            }
            if self.has_no_delay {
                socket.set_tcp_nodelay(true).map_err(option("setsockopt TCP_NODELAY"))?;
            }
            if let Some(name) = &self.congestion {
                let set = socket::set_congestion(socket, name);
                set.map_err(|error| Error::SocketOption { what: "setsockopt TCP_CONGESTION", cause: error.source })?;
            }
        }
        Ok(())
    }
}

/// Prepares a connected socket for the thread of its flow.
pub(crate) fn prepare(socket: &Socket) -> Result<(), Error> {
    socket.set_nonblocking(false).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
    Ok(socket::set_timeout(socket, BLOCKING_TIMEOUT)?)
}
