//! Access to labs: building, finding, listing and taking down.

use std::process::Command;

use crate::{
    Entry, Error, Lab, LabName, LabState, Options, Preset, Result, StateFolder, StoredJournal,
    device::{NoPrograms, ProgramLoader},
    fault, holder,
    journal::{self, END_PATIENCE, journal_of, journals},
    members::EndedProgram,
    record::{LabRecord, RUN_PREFIX},
};

impl Lab {
    /// Builds a lab that disappears when this value is dropped, and with this process even after SIGKILL.
    ///
    /// Without root, a child in a user namespace builds it, because a process with threads cannot enter one: `holder_program` is this
    /// program in the role that calls [`holder::run`]. With root, the child is not started.
    ///
    /// # Errors
    /// If an option is out of range or the kernel refuses.
    pub fn build(preset: &Preset, options: &Options, holder_program: Command) -> Result<Self> {
        Self::build_with(preset, options, holder_program, &NoPrograms)
    }

    /// Builds a lab like [`Self::build`], with a device that may need a program.
    ///
    /// # Errors
    /// Same as for [`Self::build`].
    pub fn build_with(
        preset: &Preset,
        options: &Options,
        holder_program: Command,
        programs: &dyn ProgramLoader,
    ) -> Result<Self> {
        options.validate()?;
        preset.device(options)?;
        let standing = LabState::of_this_process();
        if standing != LabState::Rootless {
            return Self::build_here(preset, options, standing, programs);
        }
        let builder = holder::start_bound(holder_program, preset, options)?;
        // From here on the descriptors of this process keep the hosts alive, and a builder without a device may exit.
        Ok(Self::attach(&builder.record)?.keep(builder))
    }

    /// Opens a lab that is up.
    ///
    /// # Errors
    /// [`Error::NotUp`] if there is no live lab with this name.
    pub fn find(state: &StateFolder, name: &LabName) -> Result<Self> {
        let (_, record) = standing(state, name)?;
        let mut lab = Self::attach(&record).map_err(|error| match error {
            Error::Kernel { .. } if !record.holder.is_alive() => Error::NotUp(name.as_str().to_owned()),
            other => other,
        })?;
        let planted = fault::planted(state, name)?;
        lab.confine(|host| fault::confinement_of(&planted, host));
        Ok(lab)
    }
}

fn lab_in(journal: &StoredJournal) -> Option<(LabName, LabRecord)> {
    let name = journal.run().as_str().strip_prefix(RUN_PREFIX)?.parse().ok()?;
    let lab = journal.entries().iter().find_map(|entry| match entry {
        Entry::Lab(record) => Some(record.clone()),
        _ => None,
    })?;
    Some((name, lab))
}

/// Returns the labs that are up, by name.
///
/// # Errors
/// [`Error::CorruptJournal`] for the first invalid journal.
pub fn list(state: &StateFolder) -> Result<Vec<(LabName, LabRecord)>> {
    let all: Vec<_> = journals(state)?.into_iter().collect::<Result<_>>()?;
    Ok(all.iter().filter(|journal| !journal.is_stale()).filter_map(lab_in).collect())
}

/// Takes a lab down and undoes everything in its holder's journal; also cleans up after a killed holder.
///
/// Programs that still run on its hosts are ended, and returned. Those of a lab whose holder was killed can no longer be told from others.
///
/// # Errors
/// [`Error::NotUp`] if there is no lab with this name, and [`Error::OwnHost`] on one of its hosts, which would end with it.
pub fn down(state: &StateFolder, name: &LabName) -> Result<Vec<EndedProgram>> {
    let run = holder::run_name(name)?;
    if let Some(left) = journal_of(state, &run)?.filter(StoredJournal::is_stale) {
        fault::forget(state, name)?;
        return left.undo().map(|()| Vec::new());
    }
    let up = standing(state, name);
    if let Ok((_, record)) = &up {
        refuse_own_host(name, &Lab::attach(record)?)?;
    }
    // Also those of a lab that is gone.
    fault::forget(state, name)?;
    let (journal, record) = up?;
    let ended = Lab::attach(&record)?.end_programs();
    record
        .holder
        .end(END_PATIENCE)
        .map_err(Error::kernel(format!("end the holder of lab {name}, process {}", record.holder.pid)))?;
    // The holder has undone its journal, unless it had to be killed. A journal found now may belong to a later lab.
    match journal.reread() {
        Some(left) => left.undo().map(|()| ended),
        None => Ok(ended),
    }
}

/// A process on a host of a lab would end with it, half-way through its work.
fn refuse_own_host(name: &LabName, lab: &Lab) -> Result<()> {
    match lab.own_host() {
        Some(host) => Err(Error::OwnHost { lab: name.as_str().to_owned(), host: host.name().to_string() }),
        None => Ok(()),
    }
}

/// Undoes the leftovers of killed runs, the faults of their labs among them, and returns their names.
///
/// # Errors
/// The error of the first journal that is invalid or could not be undone; all others are still undone.
pub fn undo_stale(state: &StateFolder) -> Result<Vec<LabName>> {
    let gone = journals(state)?.into_iter().flatten().filter(StoredJournal::is_stale);
    let labs: Vec<LabName> =
        gone.filter_map(|journal| journal.run().as_str().strip_prefix(RUN_PREFIX)?.parse().ok()).collect();
    let of_faults = labs.iter().map(|lab| fault::forget(state, lab)).fold(Ok(()), Result::and);
    let undone = journal::undo_stale(state)?;
    of_faults.map(|()| undone)
}

/// Returns the journal and the record of a lab that is up.
fn standing(state: &StateFolder, name: &LabName) -> Result<(StoredJournal, LabRecord)> {
    let not_up = || Error::NotUp(name.as_str().to_owned());
    let journal = journal_of(state, &holder::run_name(name)?)?.filter(|journal| !journal.is_stale());
    let journal = journal.ok_or_else(not_up)?;
    let (_, record) = lab_in(&journal).ok_or_else(not_up)?;
    Ok((journal, record))
}
