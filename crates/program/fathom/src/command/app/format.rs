//! `fathom app format`: formats scenarios in the standard style.

use std::{
    io::{self, Write as _},
    path::Path,
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_scenario as scenario;

use fathom_run::{
    exit::Exit,
    files::{self, FileReaders},
};

const NOTES: &str = "\
Examples:
  fathom app format plans/*.scenario            in place
  fathom app format --check plans/*.scenario    names those that would change, and exits with 1
  fathom app format - < new.scenario            from standard input to standard output

A file with errors is left as it is; the exit code is 2 then.";

pub(super) fn define(command: Command) -> Command {
    let check = Arg::new("check")
        .long("check")
        .action(ArgAction::SetTrue)
        .help("write nothing; list the files that would change");
    command
        .arg(super::input::files("scenarios; - is standard input, written to standard output"))
        .arg(check)
        .after_help(NOTES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (mut n_unlike, mut n_wrong) = (0, 0);
    for path in super::input::given_files(matches) {
        let text = super::input::read(path)?;
        let formatted = match scenario::format(&text) {
            Ok(formatted) => formatted,
            Err(faults) => {
                n_wrong += 1;
                eprint!("{}", scenario::render(&faults, &path.display().to_string(), &text));
                continue;
            }
        };
        if matches.get_flag("check") {
            if formatted != text {
                n_unlike += 1;
                writeln!(io::stdout().lock(), "{}", path.display())?;
            }
        } else if path == Path::new("-") {
            io::stdout().lock().write_all(formatted.as_bytes())?;
        } else if formatted != text {
            files::write_whole(path, FileReaders::Anyone, |file| Ok(file.write_all(formatted.as_bytes())?))?;
        }
    }
    Ok(match (n_wrong, n_unlike) {
        (0, 0) => Exit::Pass,
        (0, _) => Exit::Failed,
        _ => Exit::Usage,
    })
}
