//! How frames leave: ways out of this machine behind one seam, tried from the fastest to the one that always works.
//!
//! It knows neither headers nor what becomes of the frames: a way out is given a [`FrameSet`] and departures, and counts what it
//! handed over.

mod departures;
mod live;
mod pktgen;
mod send_progress;
mod socket;
mod super_frames;
mod xsk;

#[cfg(test)]
mod virtual_sender;

use std::{fmt, sync::Arc};

use fathom_engine::{Error, WorkerHandle, pace::WorkShare};
use fathom_model::{Note, units::Nanos};
use fathom_sys::{
    packet::{packet_socket::Queueing, xsk::Mode},
    policy::FramePermit as Permit,
};

use crate::craft::FrameSet;
pub use departures::{DeparturePattern, DepartureSchedule, RateStep};
use fathom_pktgen::DevicePorts;

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

/// From the best to the one that always works, where frames leave at a rate.
const BACKENDS: &[&dyn Backend] = &[
    &pktgen::Pktgen,
    &live::LiveFrames,
    &xsk::Xsk(Mode::ZeroCopy),
    &xsk::Xsk(Mode::Copy),
    &super_frames::SuperFrames,
    &socket::Socket,
];

/// The same where they leave flat out.
///
/// A long frame costs two thirds of as many copies, and is under way for longer: docs/methods/frames.md has the numbers.
const FLAT_OUT: &[&dyn Backend] = &[
    &pktgen::Pktgen,
    &live::LiveFrames,
    &xsk::Xsk(Mode::ZeroCopy),
    &super_frames::SuperFrames,
    &xsk::Xsk(Mode::Copy),
    &socket::Socket,
];

/// The words of the option that chooses one.
pub const BACKEND_NAMES: &[&str] = &[AUTO, "pktgen", "live", "xsk", "socket"];
/// The word for the first that works.
pub const AUTO: &str = "auto";

impl WorkerLoad {
    /// Its first flow, and the distance to the next.
    fn flows(&self) -> (u32, u32) {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (number(self.share.idx), number(self.share.of))
    }
}

/// What the loads of all workers are sent by: the best way out that works, or the one that was asked for.
///
/// What was chosen is noted, with why nothing better was.
///
/// # Errors
/// When the one that was asked for does not work, with the reason; when none does, that of the last.
pub fn open_generators(
    word: &str,
    port: &OutputDevice,
    loads: &[WorkerLoad],
    notes: &mut Vec<Note>,
) -> Result<Vec<Box<dyn Generator>>, Error> {
    let mut refusals = Vec::new();
    let is_meant = |backend: &&&dyn Backend| word == backend.option_value() || (word == AUTO && !backend.is_absent());
    let is_paced = loads.iter().any(|load| load.departures.is_some());
    let backends = if is_paced { BACKENDS } else { FLAT_OUT };
    for backend in backends.iter().filter(is_meant) {
        match loads.iter().map(|load| backend.open(port, load.clone())).collect::<Result<Vec<_>, _>>() {
            Ok(generators) => {
                let remark = generators.first().and_then(|generator| generator.frame_difference());
                let chosen = remark
                    .map_or(backend.description().to_owned(), |words| format!("{}, {words}", backend.description()));
                notes.push(Note { id: "backend".to_owned(), text: choice_note(&chosen, &refusals) });
                return Ok(generators);
            }
            Err(error) => refusals.push((*backend, error)),
        }
    }
    let reasons: Vec<String> = refusals.iter().map(refusal_reason).collect();
    match refusals.pop() {
        // A missing privilege is told as one.
        Some((_, error @ Error::Permission { .. })) => Err(error),
        _ => Err(Error::Unsupported {
            what: format!("frames cannot leave {} as was asked: {}", port.name, reasons.join("; ")),
            hint: (word != AUTO).then(|| "leave out --backend, and the best one that works is taken".to_owned()),
        }),
    }
}

fn choice_note(chosen: &str, refusals: &[(&dyn Backend, Error)]) -> String {
    let chosen = format!("frames sent by {chosen}");
    if refusals.is_empty() {
        return chosen;
    }
    format!("{chosen}; not by {}", refusals.iter().map(refusal_reason).collect::<Vec<_>>().join("; "))
}

/// Whether frames may go past the queueing discipline, as all do but those of a packet socket.
fn require_bypass(port: &OutputDevice) -> Result<(), Error> {
    match port.queueing {
        Queueing::Bypass => Ok(()),
        Queueing::Discipline => Err(unsupported("it does not pass the queueing discipline".to_owned())),
    }
}

/// Why a way out was not taken: an error with its causes, on one line.
fn refusal_reason((backend, error): &(&dyn Backend, Error)) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    format!("{}: {}", backend.description(), causes.join(": "))
}

fn unsupported(what: String) -> Error {
    Error::Unsupported { what, hint: None }
}
