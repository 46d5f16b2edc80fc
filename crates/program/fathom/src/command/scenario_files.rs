//! Files of recordings and scenarios: read up to a size, and not overwritten by accident; beside a scenario is the data file with its secrets.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches};
use fathom_import::{ImportResult, SIZE_MAX};
use fathom_run::{
    exit::{Exit, UserError},
    files::{self, FileReaders},
};

/// Whether existing files may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overwriting {
    Allowed,
    Refused,
}

impl Overwriting {
    pub(super) fn option() -> Arg {
        Arg::new("force").long("force").action(ArgAction::SetTrue).help("overwrite existing files")
    }

    pub(super) fn of(matches: &ArgMatches) -> Self {
        if matches.get_flag("force") { Self::Allowed } else { Self::Refused }
    }

    /// Whether the file may be written.
    pub(super) fn check(self, out: &Path) -> Result<(), UserError> {
        // A broken symbolic link also counts as existing.
        if self == Self::Refused && fs::symlink_metadata(out).is_ok() {
            return Err(UserError::new(Exit::Usage, format!("{} is there already", out.display()))
                .with_line("try", "another name, or --force to overwrite it"));
        }
        Ok(())
    }
}

/// Reads a recording, or stdin for `-`. One byte more than the maximum shows the reader that the file is too long.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, UserError> {
    let most = SIZE_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        fs::File::open(file).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|error| unusable("cannot read", file, &error))?;
    Ok(bytes)
}

/// Returns the data file with the secrets of a scenario: `shop-secrets.csv` beside `shop.scenario`.
pub(super) fn secrets_beside(scenario: &Path) -> PathBuf {
    let stem = scenario.file_stem().unwrap_or_default().to_string_lossy();
    scenario.with_file_name(format!("{stem}-secrets.csv"))
}

/// Returns the name of a data file as a scenario has it.
pub(super) fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

/// Writes a scenario, and its secrets beside it, which only their owner may read.
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

pub(super) fn unusable(what: &str, file: &Path, error: &io::Error) -> UserError {
    UserError::new(Exit::Usage, format!("{what} {}", file.display())).with_line("why", error.to_string())
}
