//! Options that reach a socket, of whatever kind of test.

use fathom_engine::Error;
use fathom_model::{
    Note, OptionDoc, Settings, ValueKind,
    units::{BitsPerSec, Bytes},
};
use fathom_sys::socket::{self, Buffer, Socket};

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
/// The rate at which the kernel lets the segments of all flows together leave.
pub(crate) const PACING: OptionDoc = OptionDoc {
    name: "pacing",
    value: ValueKind::BitRate,
    default: None,
    help: "bound of all flows of a direction together that the kernel keeps (SO_MAX_PACING_RATE)",
};

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
