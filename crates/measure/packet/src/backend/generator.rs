//! The interface of a backend, which sends frames: its inputs and its duties.

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
    pub ifindex: u32,
    /// The name, for errors and for polling the link.
    pub name: String,
    /// Whether frames go through its queueing discipline.
    pub queueing: Queueing,
    /// The permission to send frames by this device.
    pub permit: Permit,
}

/// Whether frames carry the time when they left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timestamping {
    /// The time of this host's clock.
    Clock,
    /// No time, because the receiver has another clock.
    None,
}

/// The frames that one worker sends, and when.
#[derive(Debug, Clone)]
pub struct WorkerLoad {
    /// The frames of all workers.
    pub frames: Arc<FrameSet>,
    /// The tag at the start of their marks.
    pub tag: u32,
    /// The time that their marks carry.
    pub timestamping: Timestamping,
    /// The share of this worker. Worker `idx` of `of` sends the flows `idx`, `idx` + `of`, and so on.
    pub share: WorkShare,
    /// When frames leave; `None` for flat out.
    pub departures: Option<DepartureSchedule>,
    /// The number of frames to send; `None` to send until the end of the trial.
    pub count: Option<u64>,
    /// The source ports by which the receiver recognizes packets of the kernel's pktgen; `None` if it does not count them.
    pub pktgen: Option<DevicePorts>,
}

/// A way to send frames.
pub trait Backend: fmt::Debug + Sync {
    fn option_value(&self) -> &'static str;

    /// Its description, for results and reasons.
    fn description(&self) -> &'static str;

    /// Whether it is an optional part of the kernel that is not loaded here. It is then mentioned only to users who ask for it by
    /// name.
    fn is_absent(&self) -> bool {
        false
    }

    /// Prepares the generator of one worker's frames, or returns why that is not possible. This is also the probe.
    ///
    /// # Errors
    /// Names the missing part, or the request that this backend cannot meet. Nothing is left behind in that case.
    fn open(&self, port: &OutputDevice, load: WorkerLoad) -> Result<Box<dyn Generator>, Error>;
}

/// Sends the frames of one worker.
pub trait Generator: fmt::Debug + Send {
    /// How its frames differ from the request, as a phrase that follows the backend's description.
    fn frame_difference(&self) -> Option<String> {
        None
    }

    /// The time when its first frame could leave and the time when its last frame had left, where `send` takes noticeably longer.
    fn span(&self) -> Option<(Nanos, Nanos)> {
        None
    }

    /// Sends from the start until the count is reached or the trial is over. Updates its counters at the indices in `counter`.
    ///
    /// # Errors
    /// If the device disappears or goes down; the frames sent before that are counted.
    fn send(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()>;
}

/// Indices of the counters of generators.
pub(crate) mod counter {
    /// Frames handed to the device.
    pub(crate) const SENT: usize = 0;
    /// Frames that the queue of the device had no room for.
    pub(crate) const REFUSED: usize = 1;
    /// Frames that were due, sent or not. This counter and those after it exist only with a rate.
    pub(crate) const INTENDED: usize = 2;
    /// The largest lateness of a frame, in nanoseconds.
    pub(crate) const LAG: usize = 3;
    /// Frames that were given up because they were too late.
    pub(crate) const UNSENT: usize = 4;
}

impl WorkerLoad {
    /// The first flow of this worker, and the step to its next flow.
    pub(super) fn flows(&self) -> (u32, u32) {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (number(self.share.idx), number(self.share.of))
    }
}

/// Returns an error unless frames may bypass the queueing discipline. All backends except packet sockets bypass it.
pub(super) fn require_bypass(port: &OutputDevice) -> Result<(), Error> {
    match port.queueing {
        Queueing::Bypass => Ok(()),
        Queueing::Discipline => Err(unsupported("it does not pass the queueing discipline".to_owned())),
    }
}

pub(super) fn unsupported(what: String) -> Error {
    Error::Unsupported { what, hint: None }
}
