//! What has to be undone, written down before it is done.
//!
//! One file per run, owned by a process. When the owner ends it undoes its entries in reverse and removes the file; when it was
//! killed, [`undo_stale`] does. Every entry can be undone twice.

use crate::{
    Error, LabName, Result, StateFolder,
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

/// The version of the file.
const SCHEMA: &str = "fathom.journal/1";
/// How long a process may take to end in order before it is killed.
pub(crate) const END_PATIENCE: Nanos = Nanos::from_secs(3);

/// Something that has to be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A process to be ended, by pidfd and identity only.
    Process(#[serde(with = "IdentityText")] ProcessIdentity),
    /// A lab whose holder is to be ended; its namespaces go with it.
    Lab(LabRecord),
    /// A file to be removed.
    File(PathBuf),
    /// A setting of the kernel to be put back.
    Sysctl {
        /// The file below `/proc/sys`.
        path: PathBuf,
        /// What it held.
        old: String,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Contents {
    schema: String,
    run: LabName,
    #[serde(with = "IdentityText")]
    owner: ProcessIdentity,
    entries: Vec<Entry>,
}

/// A journal of another process, or of one that is gone.
#[derive(Debug, Clone)]
pub struct StoredJournal {
    path: PathBuf,
    contents: Contents,
}

/// The journal of this process; dropping it undoes what it holds.
#[derive(Debug)]
pub struct Journal {
    // Empty only after `finish`.
    stored: Option<StoredJournal>,
}

impl Journal {
    /// Begins the journal of a run.
    ///
    /// # Errors
    /// [`Error::NameTaken`] when the run has one already, also a stale one.
    pub fn begin(state: &StateFolder, run: &LabName) -> Result<Self> {
        let owner = ProcessIdentity::current().map_err(Error::kernel("identify this process"))?;
        let contents = Contents { schema: SCHEMA.to_owned(), run: run.clone(), owner, entries: Vec::new() };
        let stored = StoredJournal { path: state.journal(run), contents };
        let draft = stored.write_draft()?;
        // A link refuses to replace a file, and shows it whole at once.
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

    /// Writes down what is about to be done (a process: what has just been started).
    ///
    /// # Errors
    /// When the file cannot be written: then the thing must not be done.
    ///
    /// # Panics
    /// Never: a journal is gone once it is finished.
    pub fn record(&mut self, entry: Entry) -> Result<()> {
        let stored = self.stored.as_mut().expect("a journal is used until it is finished");
        stored.contents.entries.push(entry);
        stored.replace()
    }

    /// Changes a setting of the kernel and writes down what it was.
    ///
    /// Settings below `/proc/sys/net` are those of the network namespace of the calling thread, at the undoing too.
    ///
    /// # Errors
    /// When the setting does not exist or may not be changed.
    pub fn set_sysctl(&mut self, path: &Path, new: &str) -> Result<()> {
        let old = fs::read_to_string(path).map_err(Error::file("read the setting", path))?;
        self.record(Entry::Sysctl { path: path.to_owned(), old: old.trim_end().to_owned() })?;
        fs::write(path, new).map_err(Error::file("write the setting", path))
    }

    /// Undoes all entries in reverse and removes the file.
    ///
    /// # Errors
    /// The first thing that could not be undone; the rest is undone, and the file keeps what is left.
    pub fn finish(mut self) -> Result<()> {
        self.stored.take().map_or(Ok(()), StoredJournal::undo)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(stored) = self.stored.take() {
            // What fails stays in the file, for `undo_stale`.
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

    /// What is to be undone, in the order in which it was done.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.contents.entries
    }

    /// Whether the process that wrote it is gone.
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

    /// What is in the file now, if it is still of the same owner.
    pub(crate) fn reread(&self) -> Option<Self> {
        Self::read(self.path.clone()).ok().filter(|now| now.contents.owner == self.contents.owner)
    }

    /// Undoes what can be undone; the file goes with the last entry.
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

    /// Writes the whole file beside its place; a reader never sees half of it.
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

fn undo_entry(entry: &Entry) -> Result<()> {
    match entry {
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

/// Ends a process, unless it is this one: an owner that undoes its own journal is on its way out already.
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

/// All journals of a folder, by run; what cannot be read is an error in its place.
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
    // One that was removed since the listing is not there any more, which is no error.
    let is_gone = |read: &Result<StoredJournal>| matches!(read, Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound);
    Ok(paths.into_iter().map(StoredJournal::read).filter(|read| !is_gone(read)).collect())
}

/// The journal of one run, if there is one.
pub(crate) fn journal_of(state: &StateFolder, run: &LabName) -> Result<Option<StoredJournal>> {
    match StoredJournal::read(state.journal(run)) {
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// The journals whose owner is gone: what a killed run left behind.
///
/// # Errors
/// [`Error::CorruptJournal`] for the first that cannot be understood.
pub fn stale(state: &StateFolder) -> Result<Vec<StoredJournal>> {
    let all: Vec<_> = journals(state)?.into_iter().collect::<Result<_>>()?;
    Ok(all.into_iter().filter(StoredJournal::is_stale).collect())
}

/// Undoes what killed runs left behind and returns their names.
///
/// # Errors
/// The first journal that could not be understood or undone; all others are undone nevertheless.
pub fn undo_stale(state: &StateFolder) -> Result<Vec<LabName>> {
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
