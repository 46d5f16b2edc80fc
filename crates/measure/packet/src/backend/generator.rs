//! What every way out for frames is given, and what it must do.

use std::{fmt, sync::Arc};

use fathom_engine::{Error, WorkerHandle, pace::WorkShare};
use fathom_model::units::Nanos;
use fathom_pktgen::DevicePorts;
use fathom_sys::{packet::packet_socket::Queueing, policy::FramePermit as Permit};

use super::departures::DepartureSchedule;
use crate::craft::FrameSet;

/// The device that frames leave by, in the network namespace of the calling thread.
#[derive(Debug, Clone)]
pub struct OutputDevice {
    /// Its number.
    pub ifindex: u32,
    /// Its name, for errors and for watching it.
    pub name: String,
    /// Whether frames pass its queueing discipline.
    pub queueing: Queueing,
    /// That frames may leave by it at all.
    pub permit: Permit,
}

/// Whether frames say when they left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timestamping {
    /// By this machine's clock.
    Clock,
    /// Not at all, because the receiver has another clock.
    None,
}

/// What one worker sends, and when.
#[derive(Debug, Clone)]
pub struct WorkerLoad {
    /// The frames of all workers.
    pub frames: Arc<FrameSet>,
    /// What their marks begin with.
    pub tag: u32,
    /// What their marks say of when they left.
    pub timestamping: Timestamping,
    /// Which worker it is; it sends the flows with its number, and every that many after it.
    pub share: WorkShare,
    /// When frames leave; flat out without any.
    pub departures: Option<DepartureSchedule>,
    /// How many frames are to leave; until the time is over without one.
    pub count: Option<u64>,
    /// The source ports by which the receiver counts packets of the kernel's pktgen too; it does not, without any.
    pub pktgen: Option<DevicePorts>,
}

/// A way for frames to leave.
pub trait Backend: fmt::Debug + Sync {
    /// What it is called in options.
    fn option_value(&self) -> &'static str;

    /// What it is, for results and for reasons.
    fn description(&self) -> &'static str;

    /// Whether it is an extra of some kernels that is not loaded here; only who asks for it by name is told then.
    fn is_absent(&self) -> bool {
        false
    }

    /// Makes ready what sends one worker's frames, or says why it cannot: this is the probe.
    ///
    /// # Errors
    /// What is missing, or what this way out cannot do; nothing is left behind then.
    fn open(&self, port: &OutputDevice, load: WorkerLoad) -> Result<Box<dyn Generator>, Error>;
}

/// What sends the frames of one worker.
pub trait Generator: fmt::Debug + Send {
    /// In which way its frames are others than those that were asked for, in words that follow what it is.
    fn frame_difference(&self) -> Option<String> {
        None
    }

    /// When its first frame could leave and its last one had left, where its call takes noticeably longer than that.
    fn span(&self) -> Option<(Nanos, Nanos)> {
        None
    }

    /// Sends from the start until the count is reached or the trial is over, and counts by the places in its table of counters.
    ///
    /// # Errors
    /// When the device goes; what was sent until then is counted.
    fn send(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()>;
}

/// The places of what generators count.
pub(crate) mod counter {
    /// Frames that the device was given.
    pub(crate) const SENT: usize = 0;
    /// Frames that its queue had no room for.
    pub(crate) const REFUSED: usize = 1;
    /// Frames that were due, whatever became of them; with a rate only, as all that follow.
    pub(crate) const INTENDED: usize = 2;
    /// The most that one was late, in nanoseconds.
    pub(crate) const LAG: usize = 3;
    /// Frames that were too late to leave.
    pub(crate) const UNSENT: usize = 4;
}

impl WorkerLoad {
    /// Its first flow, and the distance to the next.
    pub(super) fn flows(&self) -> (u32, u32) {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (number(self.share.idx), number(self.share.of))
    }
}

/// Whether frames may go past the queueing discipline, as all do but those of a packet socket.
pub(super) fn require_bypass(port: &OutputDevice) -> Result<(), Error> {
    match port.queueing {
        Queueing::Bypass => Ok(()),
        Queueing::Discipline => Err(unsupported("it does not pass the queueing discipline".to_owned())),
    }
}

pub(super) fn unsupported(what: String) -> Error {
    Error::Unsupported { what, hint: None }
}
