//! The files of a scenario that this program has made: its text, and beside it the data file with the secrets.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fathom_import::ImportResult;
use fathom_run::{
    exit::{Exit, UserError},
    files::{self, FileReaders},
};

/// Returns the data file with the secrets of a scenario: `shop-secrets.csv` beside `shop.scenario`.
pub(super) fn secrets_beside(scenario: &Path) -> PathBuf {
    let stem = scenario.file_stem().unwrap_or_default().to_string_lossy();
    scenario.with_file_name(format!("{stem}-secrets.csv"))
}

/// Returns the name of a data file as a scenario has it.
pub(super) fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Refuses to write over a file that is there.
pub(super) fn refuse_existing(file: &Path) -> Result<(), UserError> {
    // A broken symbolic link also counts as existing.
    match fs::symlink_metadata(file) {
        Ok(_) => Err(UserError::new(Exit::Usage, format!("{} is there already", file.display()))
            .with_line("try", "another name, or --force to overwrite it")),
        Err(_) => Ok(()),
    }
}

/// Writes both files. Only their owner may read the secrets.
pub(super) fn write(scenario: &Path, imported: &ImportResult) -> Result<(), UserError> {
    if let Some(secrets) = &imported.secrets {
        write_text(&secrets_beside(scenario), FileReaders::Owner, secrets)?;
    }
    write_text(scenario, FileReaders::Anyone, &imported.text)
}

pub(super) fn write_text(file: &Path, readers: FileReaders, text: &str) -> Result<(), UserError> {
    let written = files::write_whole(file, readers, |out| Ok(out.write_all(text.as_bytes())?));
    written.map_err(|error| UserError::from_error(Exit::Usage, &error))
}
