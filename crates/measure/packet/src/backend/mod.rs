//! Backends: ways to send frames, behind one interface, from the fastest to the one that always works.
//!
//! A backend knows neither headers nor the fate of its frames. It takes a [`FrameSet`] and a departure schedule, and counts the
//! frames that it handed over.

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

/// The order of backends for frames at a rate, from the best to the one that always works.
const BACKENDS: &[&dyn Backend] = &[
    &pktgen::Pktgen,
    &live::LiveFrames,
    &xsk::Xsk(Mode::ZeroCopy),
    &xsk::Xsk(Mode::Copy),
    &super_frames::SuperFrames,
    &socket::Socket,
];

/// The order of backends for flat out.
///
/// A super-buffer costs two thirds of as many AF_XDP copies, but its frames are under way for longer. The numbers are in
/// docs/methods/frames.md.
const FLAT_OUT: &[&dyn Backend] = &[
    &pktgen::Pktgen,
    &live::LiveFrames,
    &xsk::Xsk(Mode::ZeroCopy),
    &super_frames::SuperFrames,
    &xsk::Xsk(Mode::Copy),
    &socket::Socket,
];

/// The values of the option that chooses a backend.
pub const BACKEND_NAMES: &[&str] = &[AUTO, "pktgen", "live", "xsk", "socket"];
/// The value for the first backend that works.
pub const AUTO: &str = "auto";

/// Opens generators for the loads of all workers, with the best backend that works or the requested one.
///
/// Notes the choice, and why no better backend was taken.
///
/// # Errors
/// If the requested backend does not work, with the reason. If none works, the reason of the last one.
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
                notes.push(Note::new("backend", choice_note(&chosen, &refusals)));
                return Ok(generators);
            }
            Err(error) => refusals.push((*backend, error)),
        }
    }
    let reasons: Vec<String> = refusals.iter().map(refusal_reason).collect();
    match refusals.pop() {
        // A missing privilege is reported as such.
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

/// Why a backend was not taken: an error with its causes, on one line.
fn refusal_reason((backend, error): &(&dyn Backend, Error)) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    format!("{}: {}", backend.description(), causes.join(": "))
}
