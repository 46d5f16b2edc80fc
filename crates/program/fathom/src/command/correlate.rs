//! `fathom correlate REC1 REC2`: two recordings of the same clicks become one scenario.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use fathom_correlate::{CorrelateOptions, Correlation, Error, RecordingText, TypedData, correlate};
use fathom_import::{Assets, SIZE_MAX};
use fathom_run::{
    exit::{Exit, UserError},
    files::FileReaders,
};

use super::scenario_files::{self, Overwriting, name_of};

const NOTES: &str = "\
Examples:
  fathom correlate monday.har tuesday.har -o shop.scenario
  fathom app try shop.scenario

Record the same clicks twice, each time in a new session (a private window), and type something else the second time.
What was typed is written beside the scenario, as shop.csv. See docs/correlate.md.";

pub(super) fn define(command: Command) -> Command {
    let file = |id: &'static str, help: &'static str| {
        Arg::new(id).value_name(id.to_uppercase()).required(true).value_parser(value_parser!(PathBuf)).help(help)
    };
    command
        .arg(file("rec1", "a HAR file"))
        .arg(file("rec2", "a HAR file of the same clicks"))
        .arg(
            Arg::new("out")
                .short('o')
                .long("output")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("write the scenario here instead of stdout"),
        )
        .arg(
            Arg::new("no-assets")
                .long("no-assets")
                .action(ArgAction::SetTrue)
                .help("leave out pictures, styles, scripts and fonts"),
        )
        .arg(Overwriting::option())
        .after_help(NOTES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let path = |id: &str| matches.get_one::<PathBuf>(id).expect("clap requires both files");
    let (first, second) = (path("rec1"), path("rec2"));
    let out = matches.get_one::<PathBuf>("out");
    let data = out.map(|out| out.with_extension("csv"));
    if out.is_some() && out == data.as_ref() {
        return Err(UserError::new(Exit::Usage, "the scenario cannot have the name of its data")
            .with_line("try", "-o FILE.scenario")
            .into());
    }
    let overwriting = Overwriting::of(matches);
    let texts = (text(first)?, text(second)?);
    let names = (name_of(first), name_of(second));
    let data_name = data.as_deref().map_or_else(|| "typed.csv".to_owned(), name_of);
    let options = CorrelateOptions {
        assets: if matches.get_flag("no-assets") { Assets::LeftOut } else { Assets::Kept },
        data_file: &data_name,
    };
    let correlation = correlate(
        RecordingText { name: &names.0, text: &texts.0 },
        RecordingText { name: &names.1, text: &texts.1 },
        options,
    )
    .map_err(|error| refused(first, second, &error))?;
    match (out, &data, &correlation.typed) {
        (None, _, Some(typed)) => return Err(homeless(typed).into()),
        (None, _, None) => io::stdout().lock().write_all(correlation.scenario.as_bytes())?,
        (Some(out), data, typed) => {
            let typed = data.as_deref().zip(typed.as_ref());
            // Neither is written if one of them is there.
            overwriting.check(out)?;
            if let Some((data, typed)) = typed {
                let readers = if typed.secret_columns.is_empty() { FileReaders::Anyone } else { FileReaders::Owner };
                overwriting.check(data)?;
                scenario_files::write_text(data, readers, &typed.csv)?;
            }
            scenario_files::write_text(out, FileReaders::Anyone, &correlation.scenario)?;
        }
    }
    tell(&correlation, &names, &data_name);
    Ok(Exit::Pass)
}

fn text(file: &Path) -> anyhow::Result<String> {
    let bytes = scenario_files::read(file)?;
    let cannot = |error: fathom_import::Error| {
        UserError::new(Exit::Usage, format!("cannot use {}", file.display())).with_causes(&error)
    };
    if bytes.len() > SIZE_MAX {
        let refused = cannot(fathom_import::Error::TooLarge { size: bytes.len() });
        return Err(refused.with_line("try", "record fewer clicks at a time").into());
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        cannot(fathom_import::Error::NotText { offset })
    })?;
    Ok(text)
}

fn refused(first: &Path, second: &Path, error: &Error) -> UserError {
    let what = format!("cannot correlate {} and {}", first.display(), second.display());
    let refused = UserError::new(Exit::Usage, what).with_causes(error);
    error.hint().into_iter().fold(refused, |refused, hint| refused.with_line("try", hint))
}

/// What was typed needs a file, which stdout cannot have beside it.
fn homeless(typed: &TypedData) -> UserError {
    let what = format!("what was typed differs ({}), and needs a file of its own", shortened(&typed.columns));
    UserError::new(Exit::Usage, what).with_line("try", "-o FILE.scenario: it is written beside it, as FILE.csv")
}

/// Tells on stderr what became of the values.
fn tell(correlation: &Correlation, (first, second): &(String, String), data: &str) {
    let counts = &correlation.counts;
    eprintln!(
        "{} of {} requests of {first} have a counterpart among {} of {second}",
        counts.n_aligned, counts.n_first, counts.n_second
    );
    let values = |n: usize| if n == 1 { "1 value is".to_owned() } else { format!("{n} values are") };
    let uses = if counts.n_uses == 1 { "once".to_owned() } else { format!("{} times", counts.n_uses) };
    eprintln!("{} taken from answers, and sent {uses}", values(counts.n_taken));
    if let Some(typed) = &correlation.typed {
        let names = shortened(&typed.columns);
        eprintln!("{} typed: {names} in {data}, with a row for each recording", values(typed.columns.len()));
        if !typed.secret_columns.is_empty() {
            eprintln!("{data} holds passwords, and only its owner can read it: {}", shortened(&typed.secret_columns));
        }
    }
    if counts.n_generated > 0 {
        eprintln!("{} made anew by each request", values(counts.n_generated));
    }
    if counts.n_unexplained > 0 {
        eprintln!("{} not explained, and the same for all users", values(counts.n_unexplained));
    }
    if !correlation.notes.is_empty() {
        eprintln!("remarks, which are in the scenario too:");
        correlation.notes.iter().for_each(|note| eprintln!("  {note}"));
    }
    if !correlation.suspects.is_empty() {
        eprintln!("the second recording may be of the same session as the first; if so, make it in a new one:");
        correlation.suspects.iter().for_each(|note| eprintln!("  {note}"));
    }
}

/// The first names of a list, and the number of the others.
fn shortened(names: &[String]) -> String {
    const SHOWN_MAX: usize = 12;
    let shown = names[..names.len().min(SHOWN_MAX)].join(", ");
    if names.len() > SHOWN_MAX { format!("{shown} and {} more", names.len() - SHOWN_MAX) } else { shown }
}
