//! Options that several kinds share, and how they reach a socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fathom_engine::Error;
use fathom_model::{
    Note, OptionDoc, Role, Settings, ValueKind,
    settings::SettingError,
    units::{BitsPerSec, Bytes},
};
use fathom_sys::socket::{self, Buffer, Socket};

/// The most bytes of one message: what is larger is a stream.
const MESSAGE_MAX: u64 = 16 << 20;

/// The number of connections or of sending sockets.
pub(crate) const FLOWS: OptionDoc =
    OptionDoc { name: "flows", value: ValueKind::Count(1, 4096), default: Some("1"), help: "flows at the same time" };
/// The number of threads that share the flows of one side.
pub(crate) const WORKERS: OptionDoc = OptionDoc {
    name: "workers",
    value: ValueKind::Count(1, 256),
    default: None,
    help: "threads that share the flows on each side; without it one per core, at most one per flow",
};
/// The port of the responder.
pub(crate) const PORT: OptionDoc = OptionDoc {
    name: "port",
    value: ValueKind::Count(0, 65_535),
    default: Some("0"),
    help: "port that the responder listens on; 0 leaves the choice to its kernel",
};
/// The algorithm that decides how much may be in flight.
pub(crate) const CONGESTION: OptionDoc = OptionDoc {
    name: "congestion",
    value: ValueKind::Text,
    default: None,
    help: "congestion control of both sides, such as cubic; without it the host's own",
};
/// The size of the kernel's buffers.
pub(crate) const BUFFER: OptionDoc = OptionDoc {
    name: "buffer",
    value: ValueKind::Size,
    default: None,
    help: "send and receive buffer of each socket; without it the kernel decides",
};
/// The maximum segment size.
pub(crate) const MSS: OptionDoc = OptionDoc {
    name: "mss",
    value: ValueKind::Count(88, 32_767),
    default: None,
    help: "largest segment in bytes; without it what the path allows",
};
/// The differentiated services code point.
pub(crate) const DSCP: OptionDoc = OptionDoc {
    name: "dscp",
    value: ValueKind::Count(0, 63),
    default: None,
    help: "differentiated services code point of what is sent",
};
/// What a wrong value of a size or a combination is answered with.
pub(crate) fn not_allowed(name: &str, expected: &str, given: &dyn std::fmt::Display) -> Error {
    SettingError::NotAllowed { name: name.to_owned(), expected: expected.to_owned(), given: given.to_string() }.into()
}

/// A size from 1 byte to 16 MiB.
pub(crate) fn message_size(settings: &Settings, option: &OptionDoc) -> Result<usize, Error> {
    let size = settings.size(option.name).unwrap_or(Bytes(1));
    match usize::try_from(size.0) {
        Ok(bytes) if (1..=MESSAGE_MAX).contains(&size.0) => Ok(bytes),
        _ => Err(not_allowed(option.name, "1 B to 16 MiB", &size)),
    }
}

/// A count as the size of something in memory; the option's bounds keep it small.
pub(crate) fn count(settings: &Settings, option: &OptionDoc) -> Option<usize> {
    settings.count(option.name).and_then(|count| usize::try_from(count).ok())
}

/// How many flows there are, and how many threads share them.
pub(crate) fn flows_and_workers(role: &Role) -> (usize, usize) {
    let flows = count(&role.settings, &FLOWS).unwrap_or(1);
    let cores = match role.cores.len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    (flows, count(&role.settings, &WORKERS).unwrap_or(cores).min(flows))
}

/// The address that a responder listens on: its own on the path, or the loopback when it has none.
pub(crate) fn listen_address(role: &Role) -> SocketAddr {
    let port = role.settings.count(PORT.name).and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
    SocketAddr::new(role.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port)
}

/// What was asked of every socket of a test.
#[derive(Debug, Clone, Default)]
pub(crate) struct SocketOptions {
    congestion: Option<String>,
    buffer: Option<Bytes>,
    mss: Option<u32>,
    class: Option<u8>,
    /// The bound that the kernel keeps for each flow.
    pub(crate) pacing: Option<BitsPerSec>,
}

impl SocketOptions {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            congestion: settings.text(CONGESTION.name),
            buffer: settings.size(BUFFER.name),
            mss: settings.count(MSS.name).and_then(|mss| u32::try_from(mss).ok()),
            class: settings.count(DSCP.name).and_then(|dscp| u8::try_from(dscp << 2).ok()),
            pacing: None,
        }
    }

    /// Sets them on a socket, before it connects or listens; accepted sockets inherit them.
    ///
    /// Returns what the kernel granted less of than was asked.
    pub(crate) fn apply(&self, socket: &Socket) -> Result<Vec<Note>, Error> {
        self.set(socket)
            .map_err(|cause| Error::system("set the socket options that were asked for", "CAP_NET_ADMIN", cause))
    }

    pub(crate) fn set(&self, socket: &Socket) -> fathom_sys::Result<Vec<Note>> {
        let mut notes = Vec::new();
        if let Some(name) = &self.congestion {
            socket::set_congestion(socket, name)?;
        }
        if let Some(mss) = self.mss {
            socket.set_tcp_mss(mss).map_err(socket::named("setsockopt(TCP_MAXSEG)"))?;
        }
        if let Some(class) = self.class {
            socket::set_traffic_class(socket, class)?;
        }
        if let Some(rate) = self.pacing {
            socket::set_max_pacing_rate(socket, rate)?;
        }
        if let Some(size) = self.buffer {
            for (which, name) in [(Buffer::Receive, "receive"), (Buffer::Send, "send")] {
                let granted = socket::set_buffer(socket, which, size)?;
                if granted < size {
                    let id = format!("{name}-buffer-smaller");
                    let text = format!("the kernel granted a {name} buffer of {granted} where {size} was asked");
                    notes.push(Note { id, text });
                }
            }
        }
        Ok(notes)
    }
}
