//! Opens the sockets of a client's flows.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::Destination,
    socket::{self, Domain, Protocol, Socket, Type},
};

use super::options::ClientOptions;
use crate::iperf2::{ConnectionFacts, Error, TransportProtocol, socket_setup};

/// The default timeout of a connect: longer than the kernel retries (`tcp_syn_retries` is 6, which takes 127 s).
const CONNECT_MAX: Nanos = Nanos::from_secs(130);
/// A flow whose socket is open.
#[derive(Debug, Clone)]
pub(crate) struct OpenFlow {
    pub(crate) socket: Arc<Socket>,
    pub(super) facts: Option<ConnectionFacts>,
    pub(super) peer_version: (u32, u32),
    /// The bytes of the header that were sent.
    pub(super) n_header: u64,
}

/// Opens the first flow, to the first address that accepts it.
pub(super) fn open_first(options: &ClientOptions) -> Result<(Destination, OpenFlow), Error> {
    let mut refused = Error::Connect { call: "connect", cause: std::io::ErrorKind::AddrNotAvailable.into() };
    for to in &options.servers {
        match open_flow(options, to, 0) {
            Ok(flow) => return Ok((to.clone(), flow)),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

pub(super) fn open_flow(options: &ClientOptions, to: &Destination, place: u32) -> Result<OpenFlow, Error> {
    let is_tcp = options.protocol == TransportProtocol::Tcp;
    let call = if is_tcp { "tcp connect" } else { "udp connect" };
    let failed = |cause| Error::Connect { call, cause };
    let address = to.address().ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
    let (kind, protocol) = if is_tcp { (Type::STREAM, Protocol::TCP) } else { (Type::DGRAM, Protocol::UDP) };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol)).map_err(failed)?;
    options.setup.apply(&socket, options.protocol)?;
    bind(options, &socket, (address, place)).map_err(|cause| Error::Connect { call: "bind", cause })?;
    let begun = clock::now();
    if is_tcp {
        let timeout = options.connect_timeout.unwrap_or(CONNECT_MAX);
        socket::connect(&socket, to, timeout).map_err(|error| failed(error.source))?;
    } else {
        socket::associate(&socket, to).map_err(|error| failed(error.source))?;
    }
    let facts = if is_tcp { ConnectionFacts::of(&socket, Some(clock::now() - begun)) } else { None };
    socket_setup::prepare(&socket)?;
    Ok(OpenFlow { socket: Arc::new(socket), facts, peer_version: (0, 0), n_header: 0 })
}

/// Binds the socket of a flow to the requested source.
fn bind(options: &ClientOptions, socket: &Socket, (server, place): (SocketAddr, u32)) -> std::io::Result<()> {
    if options.from.is_none() && options.from_port.is_none() {
        return Ok(());
    }
    let any = if server.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let (mut from, mut port) = (options.from.unwrap_or(any), options.from_port.unwrap_or(0));
    if options.has_source_per_flow {
        from = at_offset(from, place);
    } else if port != 0 {
        port = port.wrapping_add(u16::try_from(place).unwrap_or(u16::MAX));
    }
    if port != 0 {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&SocketAddr::new(from, port).into())
}

/// The address that is `offset` above another, as `--incr-srcip` counts.
fn at_offset(address: IpAddr, offset: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::from((u32::from(address).wrapping_add(offset)).to_be_bytes()),
        IpAddr::V6(address) => IpAddr::from((u128::from(address).wrapping_add(offset.into())).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_the_next_source_address() {
        let v4: IpAddr = "10.0.0.254".parse().unwrap();
        assert_eq!([0, 1, 2].map(|place| at_offset(v4, place).to_string()), ["10.0.0.254", "10.0.0.255", "10.0.1.0"]);
        let v6: IpAddr = "fd00::ffff".parse().unwrap();
        assert_eq!(at_offset(v6, 1).to_string(), "fd00::1:0");
    }
}
