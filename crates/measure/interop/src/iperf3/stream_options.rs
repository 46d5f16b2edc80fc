//! The socket options of a test, for sockets of both sides.

use std::io;

use fathom_model::units::{BitsPerSec, Bytes, Nanos, approximate};
use fathom_sys::socket::{self, Buffer, Socket};

use super::{Error, ParameterFlag, Parameters, TransportProtocol, error::code};

/// How long a transfer call of a stream blocks before it checks whether the test is over.
const BLOCKING_TIMEOUT: Nanos = fathom_transport::connection_setup::BLOCKING_TIMEOUT;

fn option(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::SocketOption { what, cause }
}

fn system(what: &'static str) -> impl FnOnce(fathom_sys::Error) -> Error {
    move |error| Error::SocketOption { what, cause: error.source }
}

/// Sets the options that must be set before a connection is opened.
pub(crate) fn before_connect(socket: &Socket, parameters: &Parameters) -> Result<(), Error> {
    if parameters.protocol == TransportProtocol::Tcp {
        if parameters.flags.has(ParameterFlag::NoDelay) {
            socket.set_tcp_nodelay(true).map_err(option("unable to set TCP/SCTP NODELAY"))?;
        }
        if parameters.mss > 0 {
            socket.set_tcp_mss(parameters.mss).map_err(option("unable to set TCP/SCTP MSS"))?;
        }
        if let Some(name) = &parameters.congestion {
            socket::set_congestion(socket, name).map_err(|_| Error::Denied { code: code::CONGESTION })?;
        }
    }
    buffers(socket, parameters.window)?;
    if parameters.tos > 0 {
        socket::set_traffic_class(socket, parameters.tos).map_err(system("unable to set IP TOS"))?;
    }
    if let Some(rate) = BitsPerSec::new(approximate(parameters.fq_rate)).filter(|_| parameters.fq_rate > 0) {
        socket::set_max_pacing_rate(socket, rate).map_err(system("unable to set socket pacing"))?;
    }
    if parameters.protocol == TransportProtocol::Udp && parameters.flags.has(ParameterFlag::DontFragment) {
        socket::set_dont_fragment(socket).map_err(system("unable to set IP Do-Not-Fragment flag"))?;
    }
    Ok(())
}

/// Sets the options of an accepted connection. The client has announced its maximum segment size.
pub(crate) fn accepted(socket: &Socket, parameters: &Parameters) -> Result<(), Error> {
    let agreed = Parameters { mss: 0, ..parameters.clone() };
    // A congestion control that only one side has does not refuse the test: iperf3 continues as well.
    match before_connect(socket, &agreed) {
        Err(Error::Denied { .. }) => before_connect(socket, &Parameters { congestion: None, ..agreed }),
        outcome => outcome,
    }
}

fn buffers(socket: &Socket, window: Bytes) -> Result<(), Error> {
    if window == Bytes(0) {
        return Ok(());
    }
    for which in [Buffer::Send, Buffer::Receive] {
        let granted = socket::set_buffer(socket, which, window).map_err(system("unable to set socket buffer size"))?;
        if granted < window {
            return Err(Error::Refused { code: 141, errno: 0 });
        }
    }
    Ok(())
}

/// Prepares a connected stream for its thread.
pub(crate) fn prepare_stream(socket: &Socket) -> Result<(), Error> {
    socket.set_nonblocking(false).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
    Ok(socket::set_timeout(socket, BLOCKING_TIMEOUT)?)
}
