//! How frames leave: ways out of this machine behind one seam, tried from the fastest to the one that always works.
//!
//! It knows neither headers nor what becomes of the frames: a way out is given a [`FrameSet`] and departures, and counts what it
//! handed over.

mod departures;
mod generator;
mod live;
mod pktgen;
mod send_progress;
mod socket;
mod super_frames;
mod xsk;

#[cfg(test)]
mod virtual_sender;

use fathom_engine::Error;
use fathom_model::Note;
use fathom_sys::packet::xsk::Mode;

pub use departures::{DeparturePattern, DepartureSchedule, RateStep};
pub(crate) use generator::counter;
pub use generator::{Backend, Generator, OutputDevice, Timestamping, WorkerLoad};
use generator::{require_bypass, unsupported};

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

/// Why a way out was not taken: an error with its causes, on one line.
fn refusal_reason((backend, error): &(&dyn Backend, Error)) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    format!("{}: {}", backend.description(), causes.join(": "))
}
