//! The counter of frames on the responder: the sink in one of two modes, AF_XDP sockets, or a packet socket.

use fathom_engine::Error;
use fathom_model::{
    Note, Settings,
    units::{Bytes, Frames, Nanos},
};
use fathom_sys::{
    bpf::{SocketMap, XdpLink, XdpMode},
    clock,
    packet::{
        packet_socket::{MAX_BATCH, ReceiveBuffer, Receiver},
        xsk::{self, Mode, Queue},
    },
    socket::timestamping::KernelClockOffset,
};

use super::{device::TestDevice, user_counter::UserSpaceCounter};
use crate::xdp::{ExpectedFrames, FrameCounts, FrameTimes, RateStepTimes, Sink, arrival_time, load_xsk_redirect};

/// Frames that arrived and found no room at the counter, by place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CounterDrops {
    /// In the buffer of a packet socket.
    pub(super) socket: Frames,
    /// In the receive ring of an AF_XDP socket.
    pub(super) ring_full: Frames,
    /// In the memory of an AF_XDP socket.
    pub(super) fill_empty: Frames,
}

/// Counts the frames of one trial.
#[derive(Debug)]
pub(super) enum FrameCounter {
    /// Counts in XDP while the link lives.
    Sink(Sink, XdpLink),
    /// Counts frames in user space that a program redirects to AF_XDP sockets, one per queue.
    Xsk(Box<XskCounter>),
    /// Counts copies in user space; the frames continue to the network stack.
    Socket(Box<SocketCounter>),
}

/// A packet socket and its counts.
#[derive(Debug)]
pub(super) struct SocketCounter {
    receiver: Receiver,
    inbox: ReceiveBuffer,
    counter: UserSpaceCounter,
    last_arrival: LastArrival,
    dropped: Frames,
}

/// AF_XDP sockets and their counts.
#[derive(Debug)]
pub(super) struct XskCounter {
    receivers: Vec<(xsk::Receiver, LastArrival)>,
    link: XdpLink,
    // The program uses it while it is attached.
    _sockets: SocketMap,
    counter: UserSpaceCounter,
    /// Whether a frame had no arrival time.
    lacks_timestamps: bool,
}

/// When the last frame of a queue arrived.
type LastArrival = Option<Nanos>;

/// The time between two reads of the sink's maps: short enough that an interval of 100 ms is exact to 2 %.
const READ_EVERY: Nanos = Nanos::from_millis(2);
/// The longest wait of a socket for a frame between two checks for the end of the trial.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// The time between two polls of several queues. A ring of 2048 frames fills up only above 20 million frames per second.
const QUEUE_POLL_INTERVAL: Nanos = Nanos::from_micros(100);
/// Room for 40 000 small frames: 100 ms at the rate that the socket keeps up with.
const SOCKET_BUFFER: Bytes = Bytes(32 << 20);

impl FrameCounter {
    /// Opens the best counter that works here, or exactly the requested one. Notes each step down.
    pub(super) fn open(
        device: &TestDevice,
        settings: &Settings,
        expected: &ExpectedFrames,
        notes: &mut Vec<Note>,
    ) -> Result<Self, Error> {
        let asked = settings.text("counter").unwrap_or_else(|| "auto".to_owned());
        match asked.as_str() {
            "native" => Self::open_sink(device, expected, XdpMode::Native),
            "generic" => Self::open_sink(device, expected, XdpMode::Generic),
            "xsk" if expected.places.is_empty() => Err(Error::Unsupported {
                what: "only frames with a mark can be counted with AF_XDP".to_owned(),
                hint: Some("--counter native, generic or socket".to_owned()),
            }),
            "xsk" => Self::open_xsk(device, expected),
            "socket" => Self::open_socket(device, expected),
            _ => Self::open_best(device, expected, notes),
        }
    }

    fn open_best(device: &TestDevice, expected: &ExpectedFrames, notes: &mut Vec<Note>) -> Result<Self, Error> {
        let name = device.name();
        let native = match Self::open_sink(device, expected, XdpMode::Native) {
            Ok(counter) => return Ok(counter),
            Err(error) => error,
        };
        if let Ok(counter) = Self::open_sink(device, expected, XdpMode::Generic) {
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
            format!("frames are counted by a packet socket on {name}, which keeps up with only a fraction of XDP's rate; its latencies end where the \
                     network stack takes a frame: {reason}"),
        ));
        Self::open_socket(device, expected)
    }

    fn open_sink(device: &TestDevice, expected: &ExpectedFrames, mode: XdpMode) -> Result<Self, Error> {
        let what = || format!("count frames in {mode} XDP on {}", device.name());
        let attach = || {
            let sink = Sink::load(expected)?;
            let link = sink.attach(device.index(), mode)?;
            Ok(Self::Sink(sink, link))
        };
        attach().map_err(|cause| Error::system(what(), "CAP_BPF and CAP_NET_ADMIN", cause))
    }

    /// Opens AF_XDP sockets on all queues, in the first mode that the device supports.
    fn open_xsk(device: &TestDevice, expected: &ExpectedFrames) -> Result<Self, Error> {
        let what = || format!("receive frames by AF_XDP on {}", device.name());
        let open = || {
            let sockets = SocketMap::create("fathom_sockets", device.n_rx_queues())?;
            let receiver = |number| {
                let queue = Queue { ifindex: device.index(), number };
                let receiver =
                    xsk::Receiver::open(queue, Mode::ZeroCopy).or_else(|_| xsk::Receiver::open(queue, Mode::Copy))?;
                sockets.set(number, &receiver)?;
                Ok((receiver, None))
            };
            let receivers = (0..device.n_rx_queues()).map(receiver).collect::<fathom_sys::Result<_>>()?;
            let program = load_xsk_redirect(expected, &sockets)?;
            let attach = |mode| XdpLink::attach(&program, device.index(), mode);
            let link = attach(XdpMode::Native).or_else(|_| attach(XdpMode::Generic))?;
            let seen = UserSpaceCounter::of(expected.clone());
            Ok(Self::Xsk(Box::new(XskCounter {
                receivers,
                link,
                _sockets: sockets,
                counter: seen,
                lacks_timestamps: false,
            })))
        };
        open().map_err(|cause| Error::system(what(), "CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW", cause))
    }

    fn open_socket(device: &TestDevice, expected: &ExpectedFrames) -> Result<Self, Error> {
        let what = || format!("open a packet socket on {}", device.name());
        let receiver = Receiver::open_stamped(device.index(), SOCKET_BUFFER)
            .map_err(|cause| Error::system(what(), "CAP_NET_RAW", cause))?;
        // The kernel strips up to two VLAN tags from the frames that it shows.
        let mut expected = expected.clone();
        let untagged: Vec<usize> = expected.places.iter().flat_map(|at| [at - 4, at - 8]).collect();
        expected.places.extend(untagged);
        let seen = UserSpaceCounter::of(expected);
        let inbox = ReceiveBuffer::default();
        Ok(Self::Socket(Box::new(SocketCounter {
            receiver,
            inbox,
            counter: seen,
            last_arrival: None,
            dropped: Frames(0),
        })))
    }

    /// Describes the counter for the initiator and the record.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Sink(_, link) => format!("{} XDP", link.mode()),
            Self::Xsk(queues) => format!("AF_XDP behind {} XDP", queues.link.mode()),
            Self::Socket(_) => "packet socket".to_owned(),
        }
    }

    /// Whether the network stack gets the counted frames.
    pub(super) fn passes_frames(&self) -> bool {
        match self {
            Self::Sink(sink, _) => sink.passes_frames(),
            Self::Xsk(_) => false,
            Self::Socket(_) => true,
        }
    }

    /// Waits a short time, or until there is something to count.
    pub(super) fn wait(&self) -> fathom_sys::Result<()> {
        match self {
            Self::Sink(..) => {
                clock::sleep_until(clock::now() + READ_EVERY);
                Ok(())
            }
            Self::Xsk(queues) => queues.wait(),
            Self::Socket(socket) => socket.receiver.wait(POLL_INTERVAL).map(drop),
        }
    }

    /// Returns the counts so far, and the frames that the counter had no room for.
    pub(super) fn read(&mut self) -> fathom_sys::Result<(FrameCounts, CounterDrops)> {
        match self {
            Self::Sink(sink, _) => Ok((sink.counts()?, CounterDrops::default())),
            Self::Xsk(queues) => queues.read(),
            Self::Socket(socket) => socket.read(),
        }
    }

    /// Returns the time distributions.
    pub(super) fn times(&self) -> fathom_sys::Result<FrameTimes> {
        match self {
            Self::Sink(sink, _) => sink.times(),
            Self::Xsk(queues) => Ok(queues.counter.times().clone()),
            Self::Socket(socket) => Ok(socket.counter.times().clone()),
        }
    }

    /// Returns where arrival times are taken, unless that is in a program at the driver. Only for frames that carry times.
    pub(super) fn timestamp_note(&self) -> Option<&'static str> {
        match self {
            Self::Sink(..) => None,
            Self::Xsk(queues) => queues.lacks_timestamps.then_some(
                "the driver has no room for a time in front of a frame, so arrivals are when fathom read its AF_XDP ring: \
                 latencies and gaps contain the wait there",
            ),
            Self::Socket(_) => Some(
                "arrivals are the kernel's receive stamps (SO_TIMESTAMPNS): latencies end where the network stack takes a \
                 frame, after the driver",
            ),
        }
    }

    /// Returns the times of a rate change; `None` if the counter does not see frames as they arrive.
    pub(super) fn rate_step(&self) -> fathom_sys::Result<Option<RateStepTimes>> {
        match self {
            Self::Sink(sink, _) => sink.rate_step(),
            Self::Xsk(_) | Self::Socket(_) => Ok(None),
        }
    }
}

/// The most batches between two updates of the counts.
const BATCHES: usize = 64;

impl SocketCounter {
    fn read(&mut self) -> fathom_sys::Result<(FrameCounts, CounterDrops)> {
        // Read each time, so that a step of the wall clock affects only the frames that wait here.
        let epoch = KernelClockOffset::now();
        for _ in 0..BATCHES {
            if self.receiver.receive(&mut self.inbox)? == 0 {
                break;
            }
            for ((frame, _), stamp) in self.inbox.frames().zip(self.inbox.stamps()) {
                let at = stamp.map_or_else(clock::now, |stamp| epoch.monotonic(stamp));
                self.counter.count(frame, at, &mut self.last_arrival);
            }
        }
        self.dropped += self.receiver.take_counts()?.dropped;
        Ok((self.counter.arrivals(), CounterDrops { socket: self.dropped, ..CounterDrops::default() }))
    }
}

impl XskCounter {
    fn wait(&self) -> fathom_sys::Result<()> {
        if let [(receiver, _)] = self.receivers.as_slice() {
            return receiver.wait(POLL_INTERVAL).map(drop);
        }
        // Any of several queues may have frames.
        clock::sleep_until(clock::now() + QUEUE_POLL_INTERVAL);
        Ok(())
    }

    fn read(&mut self) -> fathom_sys::Result<(FrameCounts, CounterDrops)> {
        let mut missed = CounterDrops::default();
        for (receiver, last_arrival) in &mut self.receivers {
            receiver.receive(BATCHES * MAX_BATCH, |received| {
                let stamp = arrival_time(received.ahead, self.counter.expected());
                self.lacks_timestamps |= stamp.is_none();
                self.counter.count(received.frame, stamp.unwrap_or_else(clock::now), last_arrival);
            })?;
            let statistics = receiver.statistics()?;
            missed.socket += statistics.rx_dropped;
            missed.ring_full += statistics.rx_ring_full;
            missed.fill_empty += statistics.rx_fill_empty;
        }
        Ok((self.counter.arrivals(), missed))
    }
}

fn note(id: &str, text: String) -> Note {
    Note::new(id, text)
}

/// An error with its causes, on one line.
fn reason(error: &Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
