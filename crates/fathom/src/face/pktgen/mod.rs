//! The face of pktgen: the options of the kernel's sample scripts and the commands of `pgset`, and pktgen's own result.
//!
//! The kernel's pktgen sends where it is loaded, fathom's own engine elsewhere; stderr says which.

mod asked;
mod job;
mod own;
mod packets;
mod safety;

use std::fs;

use fathom_packet::pktgen::{Change, Error, Generator, Root, Status};
use fathom_sys::{clock, signal};

use job::{Device, Job, Refusal};
use own::Sent;

use super::load;
use crate::{
    allow::Allowed,
    exit::{Exit, Screen},
};

/// Exit codes of the sample scripts: for their command line, for files that may not be written, for what pktgen refused.
const WRONG: Exit = Exit::Of(2);
const NOT_ROOT: Exit = Exit::Of(4);
const REFUSED: Exit = Exit::Of(5);
/// Nothing runs without end: a count of zero ends after an hour, if no signal comes before.
const LONGEST: fathom_model::units::Nanos = fathom_model::units::Nanos::from_secs(3600);

/// Runs it with the arguments of a sample script or of `pgset`.
pub(super) fn run(words: &[String], allowed: &Allowed) -> anyhow::Result<Exit> {
    let job = match job::read(words, |name| fs::read_to_string(name).ok()) {
        Ok(job) => job,
        Err(Refusal::Usage(said)) => {
            eprint!("{said}{}", job::USAGE);
            return Ok(WRONG);
        }
        Err(Refusal::Line(said)) => {
            eprintln!("ERROR: {said}");
            return Ok(REFUSED);
        }
    };
    safety::check(&job, allowed)?;
    for remark in &job.remarks {
        eprintln!("INFO : {remark}");
    }
    let sent = match Generator::claim(&Root::default()) {
        Ok(generator) => by_kernel(&job, generator).map_err(|error| screen(&error))?,
        Err(Error::Absent(_)) => own::send(&job)?,
        Err(error) => return Err(screen(&error).into()),
    };
    for remark in &sent.remarks {
        eprintln!("WARN : {remark}");
    }
    eprintln!("INFO : {}", sent.engine);
    load::say(&text(&job, &sent.statuses))?;
    Ok(if sent.is_interrupted { Exit::Of(130) } else { Exit::Pass })
}

fn text(job: &Job, statuses: &[Status]) -> String {
    let is_several = job.devices.len() > 1;
    let block = |(device, status): (&Device, &Status)| {
        let title = if is_several { format!("Device: {}\n", device.name) } else { String::new() };
        format!("{title}{status}")
    };
    job.devices.iter().zip(statuses).map(block).collect::<Vec<_>>().concat()
}

/// Sends by the kernel's pktgen.
fn by_kernel(job: &Job, mut generator: Generator) -> Result<Sent, Error> {
    let system = |error: fathom_sys::Error| Error::File { what: error.call, cause: error.source };
    let signals = signal::watch().map_err(system)?;
    for device in &job.devices {
        generator.add(device.thread, &device.name)?;
        device.settings.iter().try_for_each(|setting| generator.set(&device.name, setting))?;
    }
    let before = generator.changes()?;
    let over = clock::now() + LONGEST;
    generator.run(|| signals.received().is_some() || clock::now() > over)?;
    let statuses = job.devices.iter().map(|device| generator.status(&device.name)).collect::<Result<_, _>>()?;
    // Queues are corrected at the start only.
    let after = generator.changes()?.into_iter().filter(|change| !before.contains(change)).collect::<Vec<_>>();
    generator.release()?;
    let remark = |change: &Change| format!("{change}: {}", change.fix());
    let remarks = before.iter().chain(&after).map(remark).collect();
    let version = Root::default().version()?;
    let engine = format!("packets sent by the kernel's pktgen {version}");
    Ok(Sent { statuses, engine, remarks, is_interrupted: signals.received().is_some() })
}

fn screen(error: &Error) -> Screen {
    let exit = match error {
        Error::Refused { .. } => REFUSED,
        Error::File { cause, .. } if cause.kind() == std::io::ErrorKind::PermissionDenied => NOT_ROOT,
        Error::Absent(_) | Error::NoThread { .. } | Error::Occupied { .. } => Exit::Preflight,
        Error::Block { .. } | Error::File { .. } | Error::Runaway(_) => Exit::Failed,
    };
    let mut shown = Screen::new(exit, error.to_string());
    if let Some(cause) = std::error::Error::source(error) {
        shown = shown.because(cause);
    }
    match error.hint() {
        Some(hint) => shown.line("fix", hint),
        None => shown,
    }
}
