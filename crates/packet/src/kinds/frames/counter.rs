//! What counts the frames on the responder: the sink in one of two modes, or a packet socket.

use fathom_engine::Error;
use fathom_model::{
    Note, Settings,
    units::{Bytes, Frames, Nanos},
};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    clock,
    packet_socket::{Inbox, Receiver},
};

use super::{PORT, device::Device};
use crate::{
    sequence::Sequence,
    xdp::{Arrivals, Sink, ours},
};

/// The frames to be counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// The trial of their mark.
    pub(super) trial: u32,
    /// The order is kept for flows with lower numbers.
    pub(super) n_flows: u16,
}

/// Counts the frames of one trial.
#[derive(Debug)]
pub(super) enum Counter {
    /// In XDP, for as long as the link lives.
    Sink(Sink, XdpLink),
    /// In user space, from copies; the frames go on to the network stack.
    Socket(Box<Socket>),
}

/// A packet socket with what it has seen.
#[derive(Debug)]
pub(super) struct Socket {
    receiver: Receiver,
    inbox: Inbox,
    trial: u32,
    arrivals: Arrivals,
    flows: Vec<Sequence>,
    dropped: Frames,
}

/// How often the maps of the sink are read: often enough that an interval of 100 ms is exact to 2 %.
const READ_EVERY: Nanos = Nanos::from_millis(2);
/// How long a socket waits for a frame before it looks whether the trial is over.
const LOOK_UP_EVERY: Nanos = Nanos::from_millis(20);
/// Room for 40 000 small frames: 100 ms at the rate that the socket keeps up with.
const SOCKET_BUFFER: Bytes = Bytes(32 << 20);

impl Counter {
    /// The best one that works here, or exactly the one that was asked for; each step down is noted.
    pub(super) fn open(
        device: &Device,
        settings: &Settings,
        expected: Expected,
        notes: &mut Vec<Note>,
    ) -> Result<Self, Error> {
        let asked = settings.text("counter").unwrap_or_else(|| "auto".to_owned());
        match asked.as_str() {
            "native" => Self::sink(device, expected, XdpMode::Native),
            "generic" => Self::sink(device, expected, XdpMode::Generic),
            "socket" => Self::socket(device, expected),
            _ => Self::best(device, expected, notes),
        }
    }

    fn best(device: &Device, expected: Expected, notes: &mut Vec<Note>) -> Result<Self, Error> {
        let name = device.name();
        let native = match Self::sink(device, expected, XdpMode::Native) {
            Ok(counter) => return Ok(counter),
            Err(error) => error,
        };
        if let Ok(counter) = Self::sink(device, expected, XdpMode::Generic) {
            let reason = reason(&native);
            notes.push(note(
                "xdp-generic",
                format!("frames are counted by generic XDP on {name}, which is slower than native: {reason}"),
            ));
            return Ok(counter);
        }
        let reason = reason(&native);
        notes.push(note(
            "xdp-unavailable",
            format!("frames are counted by a packet socket on {name}, which keeps up with a fraction of XDP's rate: {reason}"),
        ));
        Self::socket(device, expected)
    }

    fn sink(device: &Device, expected: Expected, mode: XdpMode) -> Result<Self, Error> {
        let what = || format!("count frames in {mode} XDP on {}", device.name());
        let attach = || {
            let sink = Sink::load(PORT, expected.trial, expected.n_flows)?;
            let link = sink.attach(device.index(), mode)?;
            Ok(Self::Sink(sink, link))
        };
        attach().map_err(|cause| Error::system(what(), "CAP_BPF and CAP_NET_ADMIN", cause))
    }

    fn socket(device: &Device, expected: Expected) -> Result<Self, Error> {
        let what = || format!("open a packet socket on {}", device.name());
        let receiver = Receiver::open(device.index(), SOCKET_BUFFER)
            .map_err(|cause| Error::system(what(), "CAP_NET_RAW", cause))?;
        Ok(Self::Socket(Box::new(Socket {
            receiver,
            inbox: Inbox::default(),
            trial: expected.trial,
            arrivals: Arrivals::default(),
            flows: vec![Sequence::default(); expected.n_flows.into()],
            dropped: Frames(0),
        })))
    }

    /// What it is, in words for the initiator and the record.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Sink(_, link) => format!("{} XDP", link.mode()),
            Self::Socket(_) => "packet socket".to_owned(),
        }
    }

    /// Waits a little, or until there is something to count.
    pub(super) fn wait(&self) -> fathom_sys::Result<()> {
        match self {
            Self::Sink(..) => {
                clock::sleep_until(clock::now() + READ_EVERY);
                Ok(())
            }
            Self::Socket(socket) => socket.receiver.wait(LOOK_UP_EVERY).map(drop),
        }
    }

    /// What has arrived so far, and what the counter itself had no room for.
    pub(super) fn read(&mut self) -> fathom_sys::Result<(Arrivals, Frames)> {
        match self {
            Self::Sink(sink, _) => Ok((sink.arrivals()?, Frames(0))),
            Self::Socket(socket) => socket.read(),
        }
    }
}

impl Socket {
    /// How many batches are taken before the counts are told.
    const BATCHES: usize = 64;

    fn read(&mut self) -> fathom_sys::Result<(Arrivals, Frames)> {
        for _ in 0..Self::BATCHES {
            if self.receiver.receive(&mut self.inbox)? == 0 {
                break;
            }
            for (frame, _) in self.inbox.frames() {
                let Some((mark, length)) = ours(frame, PORT, self.trial) else { continue };
                self.arrivals.frames += Frames(1);
                self.arrivals.bytes += length;
                if let Some(flow) = self.flows.get_mut(usize::from(mark.flow)) {
                    flow.arrive(mark.sequence);
                }
            }
        }
        self.arrivals.reordered = Frames(self.flows.iter().map(|flow| flow.reordered).sum());
        self.arrivals.duplicates = Frames(self.flows.iter().map(|flow| flow.duplicates).sum());
        self.dropped += self.receiver.take_seen()?.dropped;
        Ok((self.arrivals, self.dropped))
    }
}

fn note(id: &str, text: String) -> Note {
    Note { id: id.to_owned(), text }
}

/// An error with its causes, on one line.
fn reason(error: &Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
