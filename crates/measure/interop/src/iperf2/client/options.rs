//! The options of a client.

use std::net::IpAddr;

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    policy::Destination,
    socket::{self, Domain, Socket, Type},
};

use crate::iperf2::{SocketSetup, TestAmount, TestMode, TransportProtocol};

/// Whether the target must show that it is an iperf server before it gets any load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerProof {
    /// It must: over TCP by acknowledging the header, over UDP by reporting on a flow of one datagram.
    #[default]
    Required,
    /// The user has allowed the target, or it is this machine or in a lab.
    NotNeeded,
}

/// The options of a client.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of iperf without a value")]
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// The addresses of the server, tried in turn.
    pub servers: Vec<Destination>,
    pub protocol: TransportProtocol,
    pub mode: TestMode,
    /// The number of flows in each direction; at least 1.
    pub n_flows: u32,
    /// Bytes per write or datagram; `None` for iperf's default.
    pub length: Option<usize>,
    /// The rate of each flow in bits per second; `None` for as fast as possible.
    pub rate: Option<u64>,
    pub amount: TestAmount,
    /// The local address.
    pub from: Option<IpAddr>,
    /// The local port of the first flow; the others use the ports above it.
    pub from_port: Option<u16>,
    /// Whether each flow has the next local address (`--incr-srcip`).
    pub has_source_per_flow: bool,
    /// The port for connections of the server; `None` for that of the server.
    pub listen_port: Option<u16>,
    pub setup: SocketSetup,
    pub has_trip_times: bool,
    /// Whether single calls are counted (`-e`).
    pub counts_calls: bool,
    /// Whether no header is sent (`-C`).
    pub has_no_header: bool,
    pub proof: ServerProof,
    /// The timeout for connecting; TCP's own if `None`.
    pub connect_timeout: Option<Nanos>,
}

impl ClientOptions {
    /// The size of the send buffer before a connect, as iperf shows it; `None` if the kernel does not say.
    #[must_use]
    pub fn window(&self) -> Option<Bytes> {
        let address = self.servers.first()?.address()?;
        let is_tcp = self.protocol == TransportProtocol::Tcp;
        let kind = if is_tcp { Type::STREAM } else { Type::DGRAM };
        let socket = Socket::new(Domain::for_address(address), kind, None).ok()?;
        self.setup.apply(&socket, self.protocol).ok()?;
        // The kernel includes its overhead in buffer sizes, and so does iperf.
        socket::buffer(&socket, socket::Buffer::Send).ok().map(|size| Bytes(size.0 * 2))
    }
}
