//! The process that holds a lab: one that is up, or one without root.
//!
//! The program starts itself again in a hidden role that only calls [`run`]; without root, inside a new user namespace. The order is the
//! last argument. The answer is one line on standard output.

use crate::{
    Entry, Error, Journal, Lab, LabName, LabState, Options, Preset, Result, StateFolder,
    bound_holder::BoundHolder,
    device::ProgramLoader,
    error::{ENOSPC, EPERM},
    fault,
    journal::journal_of,
    preset,
    record::{LabRecord, RUN_PREFIX},
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{
        ParentBond, ProcessPlace, ProcessSpec,
        signal::{self, SignalWatch},
    },
};
use serde::{Deserialize, Serialize};
use std::{
    error::Error as _,
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// The lab to hold, and for how long.
#[derive(Debug, Serialize, Deserialize)]
struct HolderOrder {
    preset: String,
    options: Options,
    standing: LabState,
    life: LifeTime,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LifeTime {
    /// Until the starter has opened the hosts or exits: both close the holder's standard input.
    Bound,
    /// Until it is taken down or its time is over; others find it through its journal.
    Up { name: LabName, state: PathBuf, lifetime_ns: Nanos },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HolderAnswer {
    Ready(LabRecord),
    Refused { message: String, hint: Option<String> },
}

/// The parameters of a lab to put up.
#[derive(Debug)]
pub struct LabSpec<'a> {
    /// The name under which others find it.
    pub name: &'a LabName,
    /// The folder of its journal.
    pub state: &'a StateFolder,
    /// Its topology.
    pub preset: &'a Preset,
    /// The options of the topology.
    pub options: &'a Options,
    /// The time after which it ends on its own.
    pub lifetime: Nanos,
}

/// The default lifetime of a lab: forgotten ones disappear within an hour.
pub const LIFETIME_DEFAULT: Nanos = Nanos::from_secs(3600);

/// Puts a lab up, held by a process that outlives this one.
///
/// `holder_program` is this program, by its absolute path, in the role that calls [`run`].
///
/// # Errors
/// [`Error::NameTaken`] if the name is in use; [`Error::Holder`] with the holder's message.
pub fn up(holder_program: Command, up: &LabSpec<'_>) -> Result<LabRecord> {
    up.options.validate()?;
    up.preset.device(up.options)?;
    let run = run_name(up.name)?;
    // Faults of an earlier lab with this name ended with its namespaces.
    fault::forget(up.state, up.name)?;
    match journal_of(up.state, &run)? {
        // Its holder was killed: the lab is gone, and its name is free again.
        Some(journal) if journal.is_stale() => journal.undo()?,
        Some(_) => return Err(Error::NameTaken { run: run.as_str().to_owned() }),
        None => {}
    }
    let life = LifeTime::Up { name: up.name.clone(), state: up.state.path().to_owned(), lifetime_ns: up.lifetime };
    let order = HolderOrder {
        preset: up.preset.name.to_owned(),
        options: up.options.clone(),
        standing: LabState::of_this_process(),
        life,
    };
    start(holder_program, &order, ParentBond::Detached).map(|(_, record)| record)
}

/// Starts a holder that waits until its lab is opened.
pub(crate) fn start_bound(program: Command, preset: &Preset, options: &Options) -> Result<BoundHolder> {
    let order = HolderOrder {
        preset: preset.name.to_owned(),
        options: options.clone(),
        standing: LabState::of_this_process(),
        life: LifeTime::Bound,
    };
    start(program, &order, ParentBond::DiesWithParent).map(|(child, record)| BoundHolder::new(child, record))
}

fn start(mut command: Command, order: &HolderOrder, bond: ParentBond) -> Result<(Child, LabRecord)> {
    let input = if bond == ParentBond::Detached { Stdio::null() } else { Stdio::piped() };
    // The holder must not keep the file system of its starter busy.
    command
        .current_dir("/")
        .arg(serde_json::to_string(order).expect("an order is plain data"))
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let place = if order.standing == LabState::Rootless { ProcessPlace::NewUserNamespace } else { ProcessPlace::Here };
    let mut child = ProcessSpec { command, place, bond }.spawn().map_err(|error| match (place, error.errno()) {
        (ProcessPlace::NewUserNamespace, Some(EPERM | ENOSPC)) => Error::UserNamespace(error),
        _ => Error::kernel("start the holder of the lab")(error),
    })?;
    let (message, hint) = match read_answer(&mut child) {
        Some(HolderAnswer::Ready(record)) => return Ok((child, record)),
        Some(HolderAnswer::Refused { message, hint }) => (message, hint),
        None => ("it ended without an answer".to_owned(), None),
    };
    // Nobody uses what it holds, and an unreaped child still has its pid.
    let _ = child.kill();
    let _ = child.wait();
    Err(Error::Holder { message, hint })
}

/// Reads a holder's answer; `None` if it died or wrote something else.
fn read_answer(child: &mut Child) -> Option<HolderAnswer> {
    let mut output = BufReader::new(child.stdout.take()?);
    let mut line = String::new();
    // A test runner prints headings before it reaches the role, so other lines are skipped.
    while output.read_line(&mut line).ok()? > 0 {
        if let Ok(answer) = serde_json::from_str(&line) {
            return Some(answer);
        }
        line.clear();
    }
    None
}

/// Runs a holder: builds the lab described by `order`, answers on `output`, and holds the lab until the end.
///
/// # Errors
/// The error that prevented the build, which also goes to `output`, or the error of a failed undo.
///
/// # Panics
/// Never: the answer is plain data.
pub fn run(order: &str, mut output: impl Write, programs: &dyn ProgramLoader) -> Result<()> {
    let held = hold(order, programs);
    let answer = match &held {
        Ok(held) => HolderAnswer::Ready(held.record.clone()),
        Err(error) => HolderAnswer::Refused { message: with_causes(error), hint: error.hint() },
    };
    let line = serde_json::to_string(&answer).expect("an answer is plain data");
    // The starter may be gone, which the wait below detects.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
    let HeldLab { lab, journal, wait, faults, .. } = held?;
    wait.park()?;
    // The processes and control groups of its faults do not end with its namespaces.
    let faults = faults.map_or(Ok(()), |(state, name)| fault::forget(&state, &name));
    // Without the holder, nobody could tell any more which programs belong to the lab.
    if journal.is_some() {
        let _ = lab.end_programs();
    }
    drop(lab);
    journal.map_or(Ok(()), Journal::finish).and(faults)
}

/// The state of a holder.
struct HeldLab {
    record: LabRecord,
    lab: Lab,
    journal: Option<Journal>,
    wait: HolderEvent,
    /// Where the faults of the lab are kept, and its name.
    faults: Option<(StateFolder, LabName)>,
}

/// The event that a holder waits for.
enum HolderEvent {
    /// The end of its standard input. Signals keep their default action, because there is nothing to undo.
    TakeOver,
    /// A signal or the end of its lifetime.
    End { watch: SignalWatch, deadline: Nanos },
}

impl HolderEvent {
    fn park(&self) -> Result<()> {
        match self {
            // An unreadable input counts as ended.
            Self::TakeOver => drop(io::copy(&mut io::stdin().lock(), &mut io::sink())),
            Self::End { watch, deadline } => {
                watch.wait_until(*deadline).map_err(Error::kernel("wait for the end of the lab"))?;
            }
        }
        Ok(())
    }
}

fn hold(order: &str, programs: &dyn ProgramLoader) -> Result<HeldLab> {
    let order: HolderOrder = serde_json::from_str(order).map_err(|error| Error::Holder {
        message: format!("the order cannot be understood: {error}"),
        hint: Some("this role is started by fathom itself".to_owned()),
    })?;
    order.options.validate()?;
    let preset = preset::find(&order.preset)?;
    let (mut journal, wait, faults) = match &order.life {
        LifeTime::Bound => (None, HolderEvent::TakeOver, None),
        LifeTime::Up { name, state, lifetime_ns } => {
            let watch = signal::watch().map_err(Error::kernel("watch for signals"))?;
            let state = StateFolder::open(state)?;
            let journal = Journal::begin(&state, &run_name(name)?)?;
            let end = HolderEvent::End { watch, deadline: clock::now() + *lifetime_ns };
            (Some(journal), end, Some((state, name.clone())))
        }
    };
    let lab = Lab::build_here(preset, &order.options, order.standing, programs)?;
    let record = lab.record(preset)?;
    if let Some(journal) = &mut journal {
        journal.record(Entry::Lab(record.clone()))?;
    }
    Ok(HeldLab { record, lab, journal, wait, faults })
}

/// The name of the run whose journal belongs to a lab that is up.
pub(crate) fn run_name(lab: &LabName) -> Result<LabName> {
    format!("{RUN_PREFIX}{lab}").parse()
}

fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}
