//! The proof that the target is an iperf server, so that nobody else gets load.

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::Destination,
    socket::{self, Socket, Wait},
};

use super::{drive, open_flow::open_flow, options::ClientOptions};
use crate::iperf2::{ClientHeader, Error, ServerAck, TestMode, UDP_HEADER_LEN};

/// How long a server may take for its acknowledgement. iperf's own exchange has 4 s (`TESTEXCHANGETIMEOUT`).
const ACK_MAX: Nanos = Nanos::from_secs(4);

/// How long iperf 2.1.8 needs after a flow: it waits 250 ms for silence, and does not always report on a flow that begins before.
const SETTLE: Nanos = Nanos::from_millis(400);

/// The time between the datagram and its end mark: iperf 2.1.8 may crash if a flow ends before its report has begun.
const END_GAP: Nanos = Nanos::from_millis(50);

/// Receives the acknowledgement of a header; the error says what came instead.
pub(super) fn tcp_ack(socket: &Socket) -> Result<ServerAck, String> {
    let mut first = [0; 8];
    fill(socket, &mut first)?;
    let length = ServerAck::announced_len(first).ok_or("it answered with something else")?;
    let mut bytes = vec![0; length];
    bytes[..first.len()].copy_from_slice(&first);
    fill(socket, &mut bytes[first.len()..])?;
    ServerAck::read(&bytes).ok_or_else(|| "it answered with something else".to_owned())
}

fn fill(socket: &Socket, mut room: &mut [u8]) -> Result<(), String> {
    let deadline = clock::now() + ACK_MAX;
    while !room.is_empty() {
        match socket::recv(socket, room, Wait::Block) {
            Ok(Some(0)) => return Err("it closed the connection".to_owned()),
            Ok(Some(count)) => room = &mut room[count..],
            Ok(None) if clock::now() < deadline => {}
            Ok(None) => return Err(format!("it did not acknowledge the test within {} s", ACK_MAX.0 / 1_000_000_000)),
            Err(error) => return Err(error.source.to_string()),
        }
    }
    Ok(())
}

/// Makes a flow of a single datagram from a port of its own, on which only an iperf server reports.
pub(super) fn udp_server(options: &ClientOptions, to: &Destination, header: ClientHeader) -> Result<(), Error> {
    let no_server = |why: String| Error::NoServer { target: to.to_string(), why };
    let probe = open_flow(options, to, options.n_flows)?;
    let mut datagram = vec![0; UDP_HEADER_LEN];
    ClientHeader { mode: TestMode::Forward, ..header }.write_datagram(&mut datagram);
    drive::write_datagram(&mut datagram, 1, false);
    let sent = drive::send_datagram(&probe.socket, &datagram);
    clock::sleep_until(clock::now() + END_GAP);
    let answered = sent.and_then(|()| drive::request_report(&probe.socket, &mut datagram, 2));
    match answered {
        Ok(_) => {
            clock::sleep_until(clock::now() + SETTLE);
            Ok(())
        }
        Err(Error::NoReport { .. }) => Err(no_server("it did not report on a datagram within 2 s".to_owned())),
        Err(Error::Write { cause } | Error::Read { cause }) => Err(no_server(cause.to_string())),
        Err(error) => Err(error),
    }
}
