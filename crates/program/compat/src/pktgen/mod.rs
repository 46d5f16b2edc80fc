//! Drop-in for pktgen: the options of the kernel's sample scripts, the commands of `pgset`, and pktgen's own result.
//!
//! If the kernel's pktgen is loaded, it sends the packets; otherwise fathom's own engine does. stderr says which.

mod device_params;
mod job;
mod own_engine;
mod packets;
mod safety;

use std::fs;

use fathom_pktgen::{ChangedSetting, Error, PktgenDir, PktgenSession, Status};
use fathom_sys::{clock, process::signal};

use job::{JobDevice, JobError, PktgenJob};
use own_engine::JobResult;

use super::closed_loop;
use fathom_run::{
    allow::AllowList,
    exit::{Exit, UserError},
};

/// The exit codes of the sample scripts: invalid command line, missing permission to write files, and refusal by pktgen.
const USAGE_EXIT: Exit = Exit::Code(2);
const NOT_ROOT: Exit = Exit::Code(4);
const REFUSED_EXIT: Exit = Exit::Code(5);
/// Every run is bounded: a count of zero ends after one hour, or earlier on a signal.
const RUN_MAX: fathom_model::units::Nanos = fathom_model::units::Nanos::from_secs(3600);

/// Runs pktgen with the arguments of a sample script or of `pgset`.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let job = match job::read(words, |name| fs::read_to_string(name).ok()) {
        Ok(job) => job,
        Err(JobError::Usage(said)) => {
            eprint!("{said}{}", job::USAGE);
            return Ok(USAGE_EXIT);
        }
        Err(JobError::Line(said)) => {
            eprintln!("ERROR: {said}");
            return Ok(REFUSED_EXIT);
        }
    };
    safety::check(&job, allowed)?;
    for remark in &job.remarks {
        eprintln!("INFO : {remark}");
    }
    let sent = match PktgenSession::claim(&PktgenDir::default()) {
        Ok(generator) => by_kernel(&job, generator).map_err(|error| pktgen_error(&error))?,
        Err(Error::Absent(_)) => own_engine::send(&job)?,
        Err(error) => return Err(pktgen_error(&error).into()),
    };
    for remark in &sent.remarks {
        eprintln!("WARN : {remark}");
    }
    eprintln!("INFO : {}", sent.engine);
    closed_loop::print_now(&text(&job, &sent.statuses))?;
    Ok(if sent.is_interrupted { Exit::Code(130) } else { Exit::Pass })
}

fn text(job: &PktgenJob, statuses: &[Status]) -> String {
    let is_several = job.devices.len() > 1;
    let block = |(device, status): (&JobDevice, &Status)| {
        let title = if is_several { format!("Device: {}\n", device.name) } else { String::new() };
        format!("{title}{status}")
    };
    job.devices.iter().zip(statuses).map(block).collect::<Vec<_>>().concat()
}

/// Sends with the kernel's pktgen.
fn by_kernel(job: &PktgenJob, mut generator: PktgenSession) -> Result<JobResult, Error> {
    let system = |error: fathom_sys::Error| Error::File { what: error.call, cause: error.source };
    let signals = signal::watch().map_err(system)?;
    for device in &job.devices {
        generator.add(device.thread, &device.name)?;
        device.settings.iter().try_for_each(|setting| generator.set(&device.name, setting))?;
    }
    let before = generator.changes()?;
    let over = clock::now() + RUN_MAX;
    generator.run(|| signals.received().is_some() || clock::now() > over)?;
    let statuses = job.devices.iter().map(|device| generator.status(&device.name)).collect::<Result<_, _>>()?;
    // Queues are adjusted only at the start.
    let after = generator.changes()?.into_iter().filter(|change| !before.contains(change)).collect::<Vec<_>>();
    generator.release()?;
    let remark = |change: &ChangedSetting| format!("{change}: {}", change.fix());
    let remarks = before.iter().chain(&after).map(remark).collect();
    let version = PktgenDir::default().version()?;
    let engine = format!("packets sent by the kernel's pktgen {version}");
    Ok(JobResult { statuses, engine, remarks, is_interrupted: signals.received().is_some() })
}

fn pktgen_error(error: &Error) -> UserError {
    let exit = match error {
        Error::Refused { .. } => REFUSED_EXIT,
        Error::File { cause, .. } if cause.kind() == std::io::ErrorKind::PermissionDenied => NOT_ROOT,
        Error::Absent(_) | Error::NoThread { .. } | Error::Occupied { .. } => Exit::Preflight,
        Error::Block { .. } | Error::File { .. } | Error::Runaway(_) => Exit::Failed,
    };
    let mut shown = UserError::new(exit, error.to_string());
    if let Some(cause) = std::error::Error::source(error) {
        shown = shown.with_causes(cause);
    }
    match error.hint() {
        Some(hint) => shown.with_line("fix", hint),
        None => shown,
    }
}
