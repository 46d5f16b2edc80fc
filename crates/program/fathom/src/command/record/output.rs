//! The files of a recording, written anew after each pause.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use fathom_import::{Assets, Error, Format, ImportOptions, ImportResult, RecordingFilter};
use fathom_model::units::counted;
use fathom_record::{Recording, RecordingCounts, Verification};
use fathom_run::{
    exit::{Exit, UserError},
    files::FileReaders,
    store,
};
use jiff::Zoned;

use crate::command::scenario_files::{self, Overwriting, name_of, secrets_beside, write_text};

/// Where a recording goes.
pub(super) struct RecordingFiles {
    pub(super) scenario: PathBuf,
    pub(super) har: PathBuf,
    options: ImportOptions,
    verification: Verification,
    n_written: u64,
    pub(super) has_scenario: bool,
}

impl RecordingFiles {
    /// Takes the files that the command line names, none of which is there yet.
    pub(super) fn new(matches: &ArgMatches, verification: Verification) -> Result<Self, UserError> {
        let told = matches.get_one::<PathBuf>("out").cloned();
        let scenario =
            told.unwrap_or_else(|| Zoned::now().strftime("recorded-%Y-%m-%d-%H%M%S.scenario").to_string().into());
        let (har, secrets) = (scenario.with_extension("har"), secrets_beside(&scenario));
        if scenario.is_dir() {
            return Err(UserError::new(Exit::Usage, format!("{} is a folder", scenario.display()))
                .with_line("use", format!("-o {}", scenario.join("recorded.scenario").display())));
        }
        if har == scenario {
            return Err(UserError::new(Exit::Usage, "the scenario cannot have the name of the HAR file beside it")
                .with_line("use", format!("-o {}", scenario.with_extension("scenario").display())));
        }
        let overwriting = Overwriting::of(matches);
        [&scenario, &har, &secrets].into_iter().try_for_each(|file| overwriting.check(file))?;
        let assets = if matches.get_flag("assets") { Assets::Kept } else { Assets::LeftOut };
        let options = ImportOptions {
            format: Some(Format::Har),
            filter: RecordingFilter { assets, ..RecordingFilter::default() },
            secrets_file: Some(name_of(&secrets)),
        };
        // Nobody should click for an hour and lose it all.
        let folder = scenario.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(UserError::new(Exit::Usage, format!("there is no folder {}", folder.display()))
                .with_line("use", "-o with a file in a folder that is there"));
        }
        store::check_folder(folder)?;
        Ok(Self { scenario, har, options, verification, n_written: 0, has_scenario: false })
    }

    /// Whether the recording has more than the files.
    pub(super) fn are_behind(&self, recording: &Recording) -> bool {
        n_entries(recording.counts()) > self.n_written
    }

    /// Writes all files, and returns a line about them.
    pub(super) fn write(&mut self, recording: &Recording) -> Result<String, UserError> {
        let counts = recording.counts();
        let har = recording.har(self.verification);
        write_text(&self.har, FileReaders::Owner, &har)?;
        let imported = match fathom_import::import(har.as_bytes(), &self.options, &name_of(&self.har)) {
            Ok(imported) => Some(imported),
            // Assets alone, or requests without an answer.
            Err(Error::Empty { .. }) => None,
            Err(error) => {
                return Err(UserError::new(Exit::Failed, "the recording makes no scenario").with_causes(&error));
            }
        };
        imported.iter().try_for_each(|imported| scenario_files::write(&self.scenario, imported))?;
        self.n_written = n_entries(counts);
        self.has_scenario |= imported.is_some();
        Ok(self.line(counts, imported.as_ref()))
    }

    fn line(&self, counts: RecordingCounts, imported: Option<&ImportResult>) -> String {
        let requests = counted(n_entries(counts), "request");
        let hosts = counted(counts.n_hosts, "host");
        match imported {
            Some(imported) => {
                let steps = counted(imported.n_steps as u64, "step");
                format!("{requests}, {hosts}, {steps} in {}", self.scenario.display())
            }
            None => format!("{requests}, {hosts}, nothing for a scenario yet"),
        }
    }
}

fn n_entries(counts: RecordingCounts) -> u64 {
    counts.n_requests + counts.n_failed
}
