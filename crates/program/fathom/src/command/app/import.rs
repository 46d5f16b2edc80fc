//! `fathom app import`: converts recordings of other tools to scenarios.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_http::host_names::HostNames;
use fathom_import as import;
use fathom_import::{Assets, Format, ImportOptions, ImportResult, RecordingFilter};

use crate::command::scenario_files::{self, Overwriting};
use fathom_run::exit::{Exit, UserError};

const EXAMPLES: &str = "\
Examples:
  fathom app import shop.jmx -o shop.scenario
  fathom app import recording.har --no-assets --host shop.test --secrets -o visit.scenario
  fathom app import -            (paste what a browser copied as cURL, then Ctrl-D)

Parts that a scenario cannot express are reported on stderr and left as comments in their place. See docs/import.md.";

pub(super) fn define(command: Command) -> Command {
    let path = || clap::value_parser!(PathBuf);
    command
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .num_args(1..)
                .value_parser(path())
                .help("HAR files, command lines of curl, test plans of JMeter; - for stdin"),
        )
        .arg(
            Arg::new("out")
                .short('o')
                .long("output")
                .value_name("OUT")
                .value_parser(path())
                .help("write the scenario here instead of stdout; a folder for several inputs"),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("FORMAT")
                .value_parser(Format::ALL.map(Format::name))
                .help("format of the files, if it cannot be detected"),
        )
        .arg(
            Arg::new("no-assets")
                .long("no-assets")
                .action(ArgAction::SetTrue)
                .help("leave out pictures, styles, scripts and fonts (HAR)"),
        )
        .arg(filter_argument("host", "HOST", "keep requests to this host and its subdomains only (HAR)"))
        .arg(filter_argument("path", "PATH", "keep requests whose path begins like this only (HAR)"))
        .arg(Arg::new("secrets").long("secrets").action(ArgAction::SetTrue).requires("out").help(
            "move passwords, credentials and foreign cookies to a data file beside the scenario: OUT-secrets.csv",
        ))
        .arg(Overwriting::option())
        .after_help(EXAMPLES)
}

fn filter_argument(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).action(ArgAction::Append).help(help)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let files: Vec<&PathBuf> = matches.get_many("file").into_iter().flatten().collect();
    let told = matches.get_one::<String>("format");
    let words = |name: &str| matches.get_many::<String>(name).into_iter().flatten();
    let wanted = ImportOptions {
        format: told.and_then(|name| Format::ALL.into_iter().find(|format| format.name() == name)),
        filter: RecordingFilter {
            assets: if matches.get_flag("no-assets") { Assets::LeftOut } else { Assets::Kept },
            hosts: HostNames::new(words("host").map(String::as_str)),
            paths: words("path").cloned().collect(),
        },
        secrets_file: None,
    };
    let out = matches.get_one::<PathBuf>("out");
    if let (None, [_, _, ..]) = (out, files.as_slice()) {
        return Err(UserError::new(Exit::Usage, "several files need a folder for their scenarios")
            .with_line("try", "-o FOLDER")
            .into());
    }
    let overwriting = Overwriting::of(matches);
    let out_of = |file: &Path| match (out, files.len()) {
        (Some(out), 1) => Some(out.clone()),
        (Some(folder), _) => Some(folder.join(file.file_name().unwrap_or_default()).with_extension("scenario")),
        (None, _) => None,
    };
    // All files are read before anything is written.
    let mut scenarios = Vec::new();
    for file in &files {
        let out = out_of(file);
        let secrets = out.as_deref().filter(|_| matches.get_flag("secrets")).map(scenario_files::secrets_beside);
        let secrets_file = secrets.as_deref().map(scenario_files::name_of);
        scenarios.push((*file, out, imported(file, &ImportOptions { secrets_file, ..wanted.clone() })?));
    }
    if let (Some(folder), [_, _, ..]) = (out, files.as_slice()) {
        fs::create_dir_all(folder)
            .map_err(|error| scenario_files::unusable("cannot make the folder", folder, &error))?;
    }
    for (file, out, scenario) in scenarios {
        match out {
            None => io::stdout().lock().write_all(scenario.text.as_bytes())?,
            Some(out) => {
                overwriting.check(&out)?;
                scenario.secrets.iter().try_for_each(|_| overwriting.check(&scenario_files::secrets_beside(&out)))?;
                scenario_files::write(&out, &scenario)?;
            }
        }
        print_left_out(file, &scenario);
    }
    Ok(Exit::Pass)
}

/// Reads one file, up to the maximum size.
fn imported(file: &Path, wanted: &ImportOptions) -> anyhow::Result<ImportResult> {
    let is_stdin = file == Path::new("-");
    let bytes = scenario_files::read(file)?;
    let name = if is_stdin { "stdin".into() } else { file.file_name().unwrap_or_default().to_string_lossy() };
    import::import(&bytes, wanted, &name).map_err(|error| {
        let user_error = UserError::new(
            Exit::Usage,
            format!("cannot import {}", if is_stdin { "stdin".into() } else { file.to_string_lossy() }),
        );
        let user_error = with_left_out(user_error.with_causes(&error), &error);
        match error.hint() {
            Some(hint) => user_error.with_line("try", hint).into(),
            None => user_error.into(),
        }
    })
}

/// Adds the parts that were left out to the error for an input without usable parts, as far as they fit on a screen.
fn with_left_out(user_error: UserError, error: &import::Error) -> UserError {
    const SHOWN_MAX: usize = 12;
    let import::Error::Empty { left, .. } = error else { return user_error };
    let user_error =
        left.iter().take(SHOWN_MAX).fold(user_error, |user_error, note| user_error.with_line("left", note.to_string()));
    match left.len().saturating_sub(SHOWN_MAX) {
        0 => user_error,
        more => user_error.with_line("left", format!("and {more} more")),
    }
}

/// Reports the parts that were left out on stderr.
fn print_left_out(file: &Path, scenario: &ImportResult) {
    let n = scenario.notes.len();
    if n > 0 {
        eprintln!(
            "{}: {n} {} no place in the scenario:",
            file.display(),
            if n == 1 { "thing has" } else { "things have" }
        );
        scenario.notes.iter().for_each(|note| eprintln!("  {note}"));
    }
}
