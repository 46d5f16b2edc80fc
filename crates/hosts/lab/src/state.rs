//! The folder for journals.

use crate::{Error, LabName, Result};
use fathom_sys::process::effective_user;
use std::{
    env, fs,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// A folder that only its owner can write to, because its journals list processes to end and files to remove.
#[derive(Debug, Clone)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    /// Opens the folder given by the environment, and creates it if it does not exist.
    ///
    /// `$FATHOM_STATE`, else `/run/fathom` for root, else `$XDG_RUNTIME_DIR/fathom`, else `/tmp/fathom-UID`.
    ///
    /// # Errors
    /// If it cannot be created or belongs to another user.
    pub fn from_environment() -> Result<Self> {
        let folder = |variable: &str| env::var_os(variable).filter(|text| !text.is_empty()).map(PathBuf::from);
        let user = effective_user();
        let path = match (folder("FATHOM_STATE"), folder("XDG_RUNTIME_DIR")) {
            (Some(path), _) => path,
            (None, _) if user == 0 => PathBuf::from("/run/fathom"),
            (None, Some(runtime)) => runtime.join("fathom"),
            (None, None) => PathBuf::from(format!("/tmp/fathom-{user}")),
        };
        Self::open(&path)
    }

    /// Opens the folder at `path`, and creates it with mode 0700 if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created or belongs to another user.
    pub fn open(path: &Path) -> Result<Self> {
        // A holder reads it from another working directory.
        let path = &std::path::absolute(path).map_err(Error::file("find the state folder", path))?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(Error::file("make the state folder", path))?;
        let unsafe_for = |reason| Error::UnsafeStateFolder { path: path.clone(), reason };
        let found = fs::symlink_metadata(path).map_err(Error::file("look at the state folder", path))?;
        if !found.is_dir() {
            return Err(unsafe_for("it is a link"));
        }
        if found.uid() != effective_user() {
            return Err(unsafe_for("it belongs to another user"));
        }
        if found.mode() & 0o022 != 0 {
            return Err(unsafe_for("others may write to it"));
        }
        Ok(Self(path.clone()))
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn journal(&self, run: &LabName) -> PathBuf {
        self.0.join(format!("{run}.json"))
    }
}
