//! Options that several kinds share: the number of flows and threads, and the port.
//!
//! Options of sockets are in [`socket`].

mod socket;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fathom_engine::Error;
use fathom_model::{OptionDoc, Role, Settings, Side, ValueKind, settings::SettingError, units::Bytes};
use fathom_sys::netlink::ethtool;
pub use socket::{
    BUFFER, BUSY_POLL, CONGESTION, DEVICE, DSCP, FLOW_LABEL, KEEPALIVE, MPTCP, MSS, NODELAY, PACING, SOURCE,
    SocketOptions, Target, busy_poll_note,
};

/// The most bytes of one message; anything larger is a stream.
pub const MESSAGE_MAX: u64 = 16 << 20;

/// The number of connections or of sending sockets.
pub const FLOWS: OptionDoc =
    OptionDoc { name: "flows", value: ValueKind::Count(1, 4096), default: Some("1"), help: "number of parallel flows" };
/// The value for as many flows as the responder has receive queues.
const QUEUES: &str = "queues";
/// The number of connections of a stream, which has a thread for each.
pub const STREAM_FLOWS: OptionDoc = OptionDoc {
    name: FLOWS.name,
    value: ValueKind::CountOr(1, 4096, QUEUES),
    default: Some("1"),
    help: "number of parallel flows; queues: one per receive queue of the responder's interface, or per core if it has one queue",
};
/// The number of threads that share the flows of one side.
pub const WORKERS: OptionDoc = OptionDoc {
    name: "threads",
    value: ValueKind::Count(1, 256),
    default: None,
    help: "threads on each side; default: one per core, at most one per flow",
};
/// The port of the responder.
pub const PORT: OptionDoc = OptionDoc {
    name: "port",
    value: ValueKind::Count(0, 65_535),
    default: Some("0"),
    help: "port that the responder listens on; 0: the kernel chooses",
};
/// The error of an invalid size or combination.
pub fn invalid_value(name: &str, expected: &str, given: &dyn std::fmt::Display) -> Error {
    SettingError::NotAllowed { name: name.to_owned(), expected: expected.to_owned(), given: given.to_string() }.into()
}

/// A size from 1 byte to 16 MiB.
pub fn message_size(settings: &Settings, option: &OptionDoc) -> Result<usize, Error> {
    let size = settings.size(option.name).unwrap_or(Bytes(1));
    match usize::try_from(size.0) {
        Ok(bytes) if (1..=MESSAGE_MAX).contains(&size.0) => Ok(bytes),
        _ => Err(invalid_value(option.name, "1 B to 16 MiB", &size)),
    }
}

/// A count as the size of a data structure; the option's bounds keep it small.
pub fn count(settings: &Settings, option: &OptionDoc) -> Option<usize> {
    settings.count(option.name).and_then(|count| usize::try_from(count).ok())
}

/// The number of flows, and the number of threads that share them.
pub fn flows_and_workers(role: &Role) -> (usize, usize) {
    let flows = count(&role.settings, &FLOWS).unwrap_or(1);
    let cores = match role.cores.len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    (flows, count(&role.settings, &WORKERS).unwrap_or(cores).min(flows))
}

/// The number of flows of a stream in each direction. The responder resolves `queues` and tells the other side.
pub fn stream_flows(role: &Role, kind: &'static str) -> Result<usize, Error> {
    if let Some(flows) = count(&role.settings, &STREAM_FLOWS) {
        return Ok(flows);
    }
    if role.side == Side::Initiator {
        let n_flows = role.peer.get(FLOWS.name).and_then(|n_flows| n_flows.parse().ok());
        return n_flows
            .filter(|n_flows| (1..=4096).contains(n_flows))
            .ok_or(Error::Endpoint { kind, what: FLOWS.name });
    }
    let queues = role.interface.as_deref().and_then(n_receive_queues).filter(|n| *n > 1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(queues.unwrap_or(cores).min(4096))
}

/// The number of receive queues that a driver reports; drivers of software devices often do not report any.
fn n_receive_queues(interface: &str) -> Option<usize> {
    let channels = ethtool::Device::open(interface).ok()?.channels().ok()??;
    usize::try_from(channels.current.rx + channels.current.combined).ok()
}

/// The address that a responder listens on: its own on the path, or the loopback if it has none.
pub fn listen_address(role: &Role) -> SocketAddr {
    let port = role.settings.count(PORT.name).and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    SocketAddr::new(role.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port)
}
