//! The data of one flow for a caller that has its own threads and counts, such as a test of a plan.

use std::net::Shutdown;

use fathom_sys::{clock, socket::Socket};

use super::drive;
use crate::iperf2::{
    Error, FlowRole, ServerReport, TransportProtocol,
    data::{self, Arrivals, FlowContext, FlowPlan, SentDatagrams},
};

/// Carries the data of a flow; the same for all flows of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowCarrier(pub(super) FlowPlan);

impl FlowCarrier {
    pub(crate) const fn protocol(&self) -> TransportProtocol {
        self.0.protocol
    }

    pub(crate) const fn role(&self) -> FlowRole {
        self.0.role
    }

    /// Carries data until the context ends it, or the server does.
    ///
    /// # Errors
    /// The call that failed, or that the server sent nothing.
    pub(crate) fn run(&self, socket: &Socket, context: &impl FlowContext) -> Result<Option<SentDatagrams>, Error> {
        let plan = &self.0;
        let wrote = |error: fathom_sys::Error| Error::Write { cause: error.source };
        match (plan.protocol, plan.role) {
            (TransportProtocol::Tcp, FlowRole::Sender) => {
                data::send_stream(socket, plan, context).map_err(wrote)?;
            }
            (TransportProtocol::Tcp, FlowRole::Receiver) => {
                let received = data::receive_stream(socket, plan, context);
                received.map_err(|error| Error::Read { cause: error.source })?;
            }
            (TransportProtocol::Udp, FlowRole::Sender) => {
                return data::send_datagrams(socket, plan, context).map(Some).map_err(wrote);
            }
            (TransportProtocol::Udp, FlowRole::Receiver) => {
                let begun = clock::now();
                let mut arrivals = Arrivals::new(true, plan.has_trip_times, begun);
                drive::receive_until_end(context, socket, plan, &mut arrivals)?;
                if arrivals.n_bytes == 0 {
                    return Err(Error::NoData { seconds: (clock::now() - begun).0 / 1_000_000_000 });
                }
            }
        }
        Ok(None)
    }

    /// Tells the server that the data of a flow has ended; an end mark may be lost.
    pub(crate) fn mark_end(&self, socket: &Socket, sent: Option<&SentDatagrams>) {
        if let Some(sent) = sent {
            let mut mark = sent.template.clone();
            drive::write_datagram(&mut mark, sent.n + 1, true);
            // Waiting for the report shows what is wrong.
            let _ = drive::send_datagram(socket, &mark);
        } else if self.0.role == FlowRole::Sender {
            // As does waiting for the end of the connection.
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    /// Ends a flow after its data, and returns the report of the server if there is one.
    ///
    /// # Errors
    /// If the server does not report.
    pub(crate) fn finish(&self, socket: &Socket, sent: Option<&SentDatagrams>) -> Result<Option<ServerReport>, Error> {
        if let Some(sent) = sent {
            return drive::request_report(socket, &mut sent.template.clone(), sent.n + 2).map(Some);
        }
        if self.0.role == FlowRole::Sender {
            drive::await_close(socket);
        }
        Ok(None)
    }
}
