//! Connections that are opened, used for at most one transaction, and closed.
//!
//! A closed model: each flow opens its next connection when the last one is done. The responder closes first, as HTTP/1.0 servers
//! do, so that the initiator's ports are not held by TIME-WAIT. With `--close reset` the initiator resets instead, which costs
//! less and is noted with the result. A single flow uses blocking calls on both sides, several flows use epoll.

mod initiator;
mod responder;

use std::net::IpAddr;

use fathom_engine::{Error, Test};
use fathom_model::{OptionDoc, Role, Side, ValueKind, units::Nanos};
use fathom_sys::{
    policy::{Destination, Policy},
    process::limits,
    socket::{self, Socket},
};

use crate::{
    connection_setup::{BLOCKING_TIMEOUT, ConnectTargets, ListenAddresses},
    flow_layout::{DescriptorTables, FlowLayout},
    options::{self, SocketOptions, Target},
    request_response::sizes::{MessageSizes, SizeBounds},
};

/// How a connection ends.
pub(crate) const CLOSE: OptionDoc = OptionDoc {
    name: "close",
    value: ValueKind::Choice(&["orderly", "reset"]),
    default: Some("orderly"),
    help: "how a connection ends: the responder closes first (FIN), or the initiator resets it (RST)",
};
/// The counters of both sides: transactions (connections opened, used and closed), and connections opened.
pub(crate) const COUNTERS: &[&str] =
    &[fathom_model::names::count::TRANSACTIONS, fathom_model::names::count::CONNECTIONS];
const TRANSACTIONS: usize = 0;
const CONNECTIONS: usize = 1;

/// A request up to this size is one segment on every path (RFC 9293 section 3.7.1), and Nagle's algorithm delays only a second one.
const ONE_SEGMENT: usize = 536;
/// How long a flow waits after a refused connect before it tries again.
const RETRY: Nanos = Nanos::from_millis(10);
/// Descriptors besides those of flows. Each flow may have one connection closing while the next one is open.
const DESCRIPTORS_MORE: u64 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPurpose {
    /// One request and its response.
    Transaction,
    /// None: it is closed at once.
    ConnectOnly,
}

/// The side that ends a connection, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CloseMode {
    /// The responder, with FIN.
    Orderly,
    /// The initiator, with RST.
    Reset,
}

/// The configuration of both sides.
struct ChurnConfig {
    role: Role,
    sizes: MessageSizes,
    purpose: ConnectionPurpose,
    close: CloseMode,
    options: SocketOptions,
    n_flows: usize,
    n_workers: usize,
}

/// Prepares one side.
///
/// # Errors
/// A part of the role cannot be done; the error names it.
pub(crate) fn prepare(
    kind: &'static str,
    role: &Role,
    policy: &Policy,
    errand: ConnectionPurpose,
) -> Result<Box<dyn Test>, Error> {
    let (n_flows, n_workers) = options::flows_and_workers(role);
    let n_descriptors = 2 * u64::try_from(n_flows).unwrap_or(u64::MAX / 4) + DESCRIPTORS_MORE;
    limits::allow_descriptors(n_descriptors).map_err(|cause| Error::Unsupported {
        what: format!("{n_flows} flows are more than this process may have open: {cause}: {}", cause.source),
        hint: Some(format!("raise the limit (ulimit -n {n_descriptors}), or ask for fewer flows")),
    })?;
    let churn = ChurnConfig {
        role: role.clone(),
        sizes: MessageSizes::of(&role.settings, role.seed, SizeBounds::STREAM)?,
        purpose: errand,
        close: match role.settings.text(CLOSE.name).as_deref() {
            Some("reset") => CloseMode::Reset,
            _ => CloseMode::Orderly,
        },
        options: SocketOptions::of(role, policy),
        n_flows,
        n_workers,
    };
    Ok(match role.side {
        Side::Initiator => {
            let targets = ConnectTargets::of(role, kind, &churn.options)?;
            Box::new(initiator::ChurnInitiator::new(churn, targets)?)
        }
        Side::Responder => Box::new(responder::ChurnResponder::listen(
            churn,
            ListenAddresses::of(role, FlowLayout { n_flows, n_workers, tables: DescriptorTables::Shared })?,
        )?),
    })
}

impl ChurnConfig {
    /// Sets the requested options on a new connection of the initiator.
    fn configure_socket(&self, socket: &Socket, from: Option<IpAddr>, to: &Target) -> fathom_sys::Result<Destination> {
        let (to, _) = self.options.configure_outgoing(socket, from, to)?;
        if self.options.nodelay()
            && self.purpose == ConnectionPurpose::Transaction
            && self.sizes.longest_request() > ONE_SEGMENT
        {
            socket.set_tcp_nodelay(true).map_err(socket::error_of("setsockopt(TCP_NODELAY)"))?;
        }
        if self.close == CloseMode::Reset {
            socket::set_reset_on_close(socket)?;
        }
        Ok(to)
    }
}

fn socket_error(cause: fathom_sys::Error) -> Error {
    Error::System { what: "open and close many connections".to_owned(), cause }
}
