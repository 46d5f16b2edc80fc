//! One flow of a client in its thread: the data, and the end that both sides agree on.

use std::{io, net::Shutdown, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    socket::{
        self, Socket, Wait,
        datagram::{BatchShape, ReceiveBatch},
    },
};

use super::open_flow::OpenFlow;
use crate::iperf2::{
    DatagramNumber, Error, FlowRole, FlowTable, ServerReport, TransportProtocol,
    data::{self, Arrivals, FlowContext, FlowCounter, FlowPlan, SentDatagrams},
    flow_table::RunningFlow,
    put_sent_time,
};

/// How long the other side may take to close a connection.
const CLOSE_MAX: Nanos = Nanos::from_secs(2);
/// How long a server may take to report, and how long after an end mark the next one is sent.
const REPORT_MAX: Nanos = Nanos::from_secs(2);
const REPORT_RETRY: Nanos = Nanos::from_millis(10);
const REPORT_RETRY_MAX: Nanos = Nanos::from_millis(100);
/// A few refusals may be those of a port that iperf closes for a moment after the first datagram of each flow.
const REFUSED_TRIES: u32 = 5;
/// How long a server may take until it sends, and how often it is asked.
const FIRST_DATA_MAX: Nanos = Nanos::from_secs(3);
const ASK_AGAIN: Nanos = Nanos::from_millis(20);
/// Datagrams per receive call.
const RECEIVE_BATCH: usize = 32;

/// Carries the data of a flow to its end, and reports it.
///
/// # Errors
/// Why it ended early; it was reported to the table's observer too.
pub(super) fn flow(
    flow: &Arc<RunningFlow>,
    open: &OpenFlow,
    plan: &FlowPlan,
    table: &FlowTable<'_>,
) -> Result<(), Error> {
    let outcome = match (plan.protocol, plan.role) {
        (TransportProtocol::Tcp, FlowRole::Sender) => send_stream(flow, open, plan, table),
        (TransportProtocol::Tcp, FlowRole::Receiver) => receive_stream(flow, open, plan, table),
        (TransportProtocol::Udp, FlowRole::Sender) => send_datagrams(flow, open, plan, table),
        (TransportProtocol::Udp, FlowRole::Receiver) => receive_datagrams(flow, open, plan, table),
    };
    if let Err(error) = &outcome {
        table.failure(Some(&flow.info), error);
    }
    outcome
}

fn send_stream(flow: &Arc<RunningFlow>, open: &OpenFlow, plan: &FlowPlan, table: &FlowTable<'_>) -> Result<(), Error> {
    flow.add(FlowCounter::Bytes, open.n_header);
    let plan = FlowPlan { budget: plan.budget.map(|budget| budget.saturating_sub(open.n_header)), ..*plan };
    let sent = data::send_stream(&open.socket, &plan, &**flow);
    if sent.is_ok() {
        await_close(&open.socket);
    }
    // As in iperf, the time of a flow includes the end of the server's.
    table.end(flow, clock::now());
    sent.map_err(|error| Error::Write { cause: error.source })
}

fn receive_stream(
    flow: &Arc<RunningFlow>,
    open: &OpenFlow,
    plan: &FlowPlan,
    table: &FlowTable<'_>,
) -> Result<(), Error> {
    let received = data::receive_stream(&open.socket, plan, &**flow);
    let outcome = table.end(flow, clock::now());
    received.map_err(|error| Error::Read { cause: error.source })?;
    if outcome.counts.bytes == 0 && !flow.is_stopped() {
        return Err(Error::NoData { seconds: outcome.span.0 / 1_000_000_000 });
    }
    Ok(())
}

fn send_datagrams(
    flow: &Arc<RunningFlow>,
    open: &OpenFlow,
    plan: &FlowPlan,
    table: &FlowTable<'_>,
) -> Result<(), Error> {
    let sent = data::send_datagrams(&open.socket, plan, &**flow);
    let SentDatagrams { n, mut template } = match sent {
        Ok(sent) => sent,
        Err(error) => {
            table.end(flow, clock::now());
            return Err(Error::Write { cause: error.source });
        }
    };
    // The end mark counts: the server counts it as the last datagram.
    flow.add(FlowCounter::Datagrams, 1);
    flow.add(FlowCounter::Bytes, template.len() as u64);
    table.end(flow, clock::now());
    let report = request_report(&open.socket, &mut template, n + 1)?;
    table.server_report(&flow.info, &report);
    Ok(())
}

/// Asks the server to send, and receives until its end mark.
fn receive_datagrams(
    flow: &Arc<RunningFlow>,
    open: &OpenFlow,
    plan: &FlowPlan,
    table: &FlowTable<'_>,
) -> Result<(), Error> {
    let mut arrivals = Arrivals::new(true, plan.has_trip_times, clock::now());
    let received = receive_until_end(&**flow, &open.socket, plan, &mut arrivals);
    table.end(flow, clock::now());
    received?;
    if arrivals.n_bytes == 0 && !flow.is_stopped() {
        return Err(Error::NoData { seconds: FIRST_DATA_MAX.0 / 1_000_000_000 });
    }
    Ok(())
}

/// Asks the server to send until it does, and accounts for its datagrams until its end mark.
pub(super) fn receive_until_end(
    flow: &impl FlowContext,
    socket: &Socket,
    plan: &FlowPlan,
    arrivals: &mut Arrivals,
) -> Result<(), Error> {
    let mut request = data::template(plan);
    write_datagram(&mut request, 1, false);
    socket::set_report_time(socket)?;
    socket::set_timeout(socket, ASK_AGAIN)?;
    let mut batch = ReceiveBatch::new(BatchShape { count: RECEIVE_BATCH, size: crate::iperf2::UDP_LENGTH_MAX });
    let deadline = flow.start() + FIRST_DATA_MAX;
    while !flow.is_over() && !arrivals.is_over {
        let is_waiting = arrivals.n_bytes == 0;
        if is_waiting && clock::now() > deadline {
            break;
        }
        let asked = if is_waiting { send_datagram(socket, &request) } else { Ok(()) };
        let received = asked
            .and_then(|()| batch.receive(socket, Wait::Block).map_err(|error| Error::Read { cause: error.source }));
        let n = match received {
            Ok(n) => n.unwrap_or(0),
            // A server that has sent everything closes its port. One that does not listen yet is asked again.
            Err(error) if error.is_refusal() && is_waiting => 0,
            Err(error) if error.is_refusal() => break,
            Err(error) => return Err(error),
        };
        for index in 0..n {
            arrivals.take(batch.payload(index), batch.kernel_time(index), flow);
        }
    }
    Ok(())
}

/// Sends all bytes of a short message.
pub(crate) fn send_whole(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    let deadline = clock::now() + CLOSE_MAX;
    while !bytes.is_empty() {
        match socket::send(socket, bytes, Wait::Block).map_err(|error| error.source)? {
            Some(count) => bytes = &bytes[count..],
            None if clock::now() < deadline => {}
            None => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
    Ok(())
}

/// Ends this side's data, and waits until the other side has closed. What it still sends is discarded.
pub(crate) fn await_close(socket: &Socket) {
    let deadline = clock::now() + CLOSE_MAX;
    if socket.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut room = [0; 4096];
    while clock::now() < deadline {
        match socket::recv(socket, &mut room, Wait::Block) {
            Ok(Some(0)) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Writes the number and the time of a datagram.
pub(super) fn write_datagram(datagram: &mut [u8], number: u64, is_end: bool) {
    DatagramNumber { number, is_end }.write(datagram);
    put_sent_time(datagram, clock::wall());
}

pub(super) fn send_datagram(socket: &Socket, datagram: &[u8]) -> Result<(), Error> {
    match socket::send(socket, datagram, Wait::Block) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Write { cause: error.source }),
    }
}

/// Sends end marks from a number on until the server reports.
///
/// # Errors
/// If nobody listens, or no report comes within 2 s.
pub(crate) fn request_report(socket: &Socket, datagram: &mut [u8], number: u64) -> Result<ServerReport, Error> {
    let deadline = clock::now() + REPORT_MAX;
    let (mut wait, mut n_tries) = (REPORT_RETRY, 0);
    let mut room = [0; 2048];
    while clock::now() < deadline {
        write_datagram(datagram, number + u64::from(n_tries), true);
        let mut refused = send_datagram(socket, datagram);
        n_tries += 1;
        let until = clock::now() + wait;
        while clock::now() < until {
            socket::set_timeout(socket, (until - clock::now()).max(Nanos::from_millis(1)))?;
            match socket::recv(socket, &mut room, Wait::Block) {
                Ok(Some(count)) => {
                    if let Some(report) = ServerReport::read(&room[..count]) {
                        return Ok(report);
                    }
                }
                Ok(None) => {}
                Err(error) => refused = Err(Error::Read { cause: error.source }),
            }
        }
        match refused {
            Err(error) if n_tries >= REFUSED_TRIES || !error.is_refusal() => return Err(error),
            _ => {}
        }
        wait = (wait + wait).min(REPORT_RETRY_MAX);
    }
    Err(Error::NoReport { n_tries })
}
