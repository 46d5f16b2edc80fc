//! Files of recordings and scenarios: read up to a size, and not overwritten by accident.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use clap::{Arg, ArgAction, ArgMatches};
use fathom_import::SIZE_MAX;
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

pub(super) fn write(out: &Path, text: &str, readers: FileReaders, overwriting: Overwriting) -> Result<(), UserError> {
    overwriting.check(out)?;
    let written = files::write_whole(out, readers, |file| Ok(file.write_all(text.as_bytes())?));
    written.map_err(|error| UserError::from_error(Exit::Usage, &error))
}

pub(super) fn unusable(what: &str, file: &Path, error: &io::Error) -> UserError {
    UserError::new(Exit::Usage, format!("{what} {}", file.display())).with_line("why", error.to_string())
}
