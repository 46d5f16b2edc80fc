//! A record of actions to undo; each entry is written before its action.
//!
//! There is one file per run, owned by a process. When the owner exits, it undoes the entries in reverse order and removes the file; if it
//! was killed, [`undo_stale`] does that. Undoing an entry twice is harmless.

use crate::{
    Error, LabName, Result, StateFolder, control_group,
    record::{IdentityText, LabRecord},
};
use fathom_model::units::Nanos;
use fathom_sys::process::ProcessIdentity;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Component, Path, PathBuf},
};

/// The version of the file format.
const SCHEMA: &str = "fathom.journal/1";
/// The time that a process gets to exit cleanly before it is killed.
pub(crate) const END_PATIENCE: Nanos = Nanos::from_secs(3);

/// An action to undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A process to end, by pidfd and identity only.
    Process(#[serde(with = "IdentityText")] ProcessIdentity),
    /// A lab whose holder must be ended; its namespaces disappear with it.
    Lab(LabRecord),
    /// A file to remove.
    File(PathBuf),
    /// A kernel setting to restore.
    Sysctl {
        /// The file below `/proc/sys`.
        path: PathBuf,
        /// The old value.
        old: String,
    },
    /// A control group to remove; its processes go to the group above it.
    ControlGroup(PathBuf),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Contents {
    schema: String,
    run: LabName,
    #[serde(with = "IdentityText")]
    owner: ProcessIdentity,
    entries: Vec<Entry>,
}

/// A journal of another process, which may have exited.
#[derive(Debug, Clone)]
pub struct StoredJournal {
    path: PathBuf,
    contents: Contents,
}

/// The journal of this process; dropping it undoes its entries.
#[derive(Debug)]
pub struct Journal {
    // `None` only after `finish`.
    stored: Option<StoredJournal>,
}

impl Journal {
    /// Starts the journal of a run.
    ///
    /// # Errors
    /// [`Error::NameTaken`] if the run already has a journal, even a stale one.
    pub fn begin(state: &StateFolder, run: &LabName) -> Result<Self> {
        let owner = ProcessIdentity::current().map_err(Error::kernel("identify this process"))?;
        let contents = Contents { schema: SCHEMA.to_owned(), run: run.clone(), owner, entries: Vec::new() };
        let stored = StoredJournal { path: state.journal(run), contents };
        let draft = stored.write_draft()?;
        // A hard link never replaces a file, and makes the complete file visible at once.
        let linked = fs::hard_link(&draft, &stored.path);
        fs::remove_file(&draft).map_err(Error::file("remove", draft))?;
        match linked {
            Ok(()) => Ok(Self { stored: Some(stored) }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::NameTaken { run: run.as_str().to_owned() })
            }
            Err(error) => Err(Error::file("write the journal", stored.path)(error)),
        }
    }

    /// Records an action before it is taken (for a process: after it was started).
    ///
    /// # Errors
    /// If the file cannot be written: then the action must not be taken.
    ///
    /// # Panics
    /// Never: `finish` consumes the journal.
    pub fn record(&mut self, entry: Entry) -> Result<()> {
        let stored = self.stored.as_mut().expect("a journal is used until it is finished");
        stored.contents.entries.push(entry);
        stored.replace()
    }

    /// Changes a kernel setting and records its old value.
    ///
    /// Settings below `/proc/sys/net` are those of the calling thread's network namespace, also when they are restored.
    ///
    /// # Errors
    /// If the setting does not exist or may not be changed.
    pub fn set_sysctl(&mut self, path: &Path, new: &str) -> Result<()> {
        let old = fs::read_to_string(path).map_err(Error::file("read the setting", path))?;
        self.record(Entry::Sysctl { path: path.to_owned(), old: old.trim_end().to_owned() })?;
        fs::write(path, new).map_err(Error::file("write the setting", path))
    }

    /// Undoes all entries in reverse order and removes the file.
    ///
    /// # Errors
    /// The error of the first failed undo; all other entries are still undone, and the file keeps the failed ones.
    pub fn finish(mut self) -> Result<()> {
        self.stored.take().map_or(Ok(()), StoredJournal::undo)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(stored) = self.stored.take() {
            // Failed entries stay in the file, for `undo_stale`.
            let _ = stored.undo();
        }
    }
}

impl StoredJournal {
    /// The run that it belongs to.
    #[must_use]
    pub fn run(&self) -> &LabName {
        &self.contents.run
    }

    /// The actions to undo, in the order in which they were taken.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.contents.entries
    }

    /// Whether the process that wrote it has exited.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !self.contents.owner.is_alive()
    }

    pub(crate) fn read(path: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&path).map_err(Error::file("read the journal", &path))?;
        let contents: Contents = match serde_json::from_str(&text) {
            Ok(contents) => contents,
            Err(error) => return Err(Error::CorruptJournal { path, reason: error.to_string() }),
        };
        if contents.schema != SCHEMA {
            return Err(Error::CorruptJournal { path, reason: format!("it is {:?}, not {SCHEMA}", contents.schema) });
        }
        Ok(Self { path, contents })
    }

    /// Reads the file again; `None` unless it still belongs to the same owner.
    pub(crate) fn reread(&self) -> Option<Self> {
        Self::read(self.path.clone()).ok().filter(|now| now.contents.owner == self.contents.owner)
    }

    /// Undoes as many entries as possible; removes the file if none are left.
    pub(crate) fn undo(mut self) -> Result<()> {
        let mut left = Vec::new();
        let mut first_error = None;
        while let Some(entry) = self.contents.entries.pop() {
            if let Err(error) = undo_entry(&entry) {
                left.insert(0, entry);
                first_error.get_or_insert(error);
            }
        }
        let Some(error) = first_error else { return remove(&self.path) };
        self.contents.entries = left;
        self.replace()?;
        Err(error)
    }

    /// Writes the complete file next to its final path, so that a reader never sees a partial file.
    fn write_draft(&self) -> Result<PathBuf> {
        let draft = self.path.with_extension(format!("draft-{}", self.contents.owner.pid));
        let text = serde_json::to_vec_pretty(&self.contents).expect("a journal is plain data");
        remove(&draft)?;
        let mut options = fs::OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| io::Write::write_all(&mut file, &text))
            .map_err(Error::file("write", &draft))?;
        Ok(draft)
    }

    fn replace(&self) -> Result<()> {
        let draft = self.write_draft()?;
        fs::rename(draft, &self.path).map_err(Error::file("write the journal", &self.path))
    }
}

pub(crate) fn undo_entry(entry: &Entry) -> Result<()> {
    match entry {
        Entry::ControlGroup(path) => control_group::remove(path),
        Entry::Process(process) => end(process),
        Entry::Lab(lab) => end(&lab.holder),
        Entry::File(path) => remove(path),
        Entry::Sysctl { path, old } if is_setting(path) => {
            fs::write(path, old).map_err(Error::file("put back the setting", path))
        }
        Entry::Sysctl { path, .. } => {
            Err(Error::CorruptJournal { path: path.clone(), reason: "it is not a setting below /proc/sys".to_owned() })
        }
    }
}

/// Ends a process, unless it is this one: an owner that undoes its own journal is already exiting.
fn end(process: &ProcessIdentity) -> Result<()> {
    if process.pid == std::process::id() {
        return Ok(());
    }
    process.end(END_PATIENCE).map(drop).map_err(Error::kernel(format!("end process {}", process.pid)))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}

fn is_setting(path: &Path) -> bool {
    path.starts_with("/proc/sys") && !path.components().any(|part| part == Component::ParentDir)
}

/// Returns all journals of a folder, by run; an unreadable one is an error in the list.
pub(crate) fn journals(state: &StateFolder) -> Result<Vec<Result<StoredJournal>>> {
    let folder = fs::read_dir(state.path()).map_err(Error::file("list", state.path()))?;
    let mut paths = Vec::new();
    for file in folder {
        let path = file.map_err(Error::file("list", state.path()))?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    // A journal removed since the listing is not an error.
    let is_gone = |read: &Result<StoredJournal>| matches!(read, Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound);
    Ok(paths.into_iter().map(StoredJournal::read).filter(|read| !is_gone(read)).collect())
}

/// Returns the journal of one run, if it exists.
pub(crate) fn journal_of(state: &StateFolder, run: &LabName) -> Result<Option<StoredJournal>> {
    match StoredJournal::read(state.journal(run)) {
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Returns the journals whose owner has exited: the leftovers of killed runs.
///
/// # Errors
/// [`Error::CorruptJournal`] for the first invalid journal.
pub fn stale(state: &StateFolder) -> Result<Vec<StoredJournal>> {
    let all: Vec<_> = journals(state)?.into_iter().collect::<Result<_>>()?;
    Ok(all.into_iter().filter(StoredJournal::is_stale).collect())
}

/// Removes the journals of killed runs of which nothing is left, and returns the names of the others, which need [`undo_stale`].
///
/// Ends no process and changes nothing else, so a run may do it for others. Journals that cannot be read or removed are passed over.
///
/// # Errors
/// If the folder cannot be listed.
pub fn forget_ended(state: &StateFolder) -> Result<Vec<LabName>> {
    let stale = journals(state)?.into_iter().flatten().filter(StoredJournal::is_stale);
    let is_needed = |journal: &StoredJournal| match journal.reread() {
        Some(now) if now.entries().iter().all(is_gone) => remove(&now.path).is_err(),
        // Someone else has undone it meanwhile.
        found => found.is_some(),
    };
    Ok(stale.filter(is_needed).map(|journal| journal.contents.run).collect())
}

/// Whether there is nothing to undo for an entry. Whether a setting is still changed is not known: it may be that of another namespace.
fn is_gone(entry: &Entry) -> bool {
    match entry {
        Entry::Process(process) => !process.is_alive(),
        Entry::File(path) | Entry::ControlGroup(path) => matches!(path.try_exists(), Ok(false)),
        Entry::Lab(_) | Entry::Sysctl { .. } => false,
    }
}

/// Undoes the journals of killed runs and returns their names.
pub(crate) fn undo_stale(state: &StateFolder) -> Result<Vec<LabName>> {
    let mut undone = Vec::new();
    let mut first_error = None;
    for journal in journals(state)? {
        let outcome = journal.and_then(|journal| {
            if journal.is_stale() {
                let run = journal.run().clone();
                journal.undo()?;
                undone.push(run);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(undone), Err)
}
