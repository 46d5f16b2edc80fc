//! `fathom app format`: scenarios as all others are written.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_app::scenario;

use crate::exit::{Exit, Screen};

const NOTES: &str = "\
Examples:
  fathom app format plans/*.scenario            in place
  fathom app format --check plans/*.scenario    names those that would change, and exits with 1
  fathom app format - < new.scenario            from standard input to standard output

A file with errors is left as it is; the exit code is 2 then.";

pub(super) fn shape(command: Command) -> Command {
    let check = Arg::new("check").long("check").action(ArgAction::SetTrue).help("write nothing; say what would change");
    command.arg(super::files("scenarios; - is standard input, written to standard output")).arg(check).after_help(NOTES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (mut n_unlike, mut n_wrong) = (0, 0);
    for path in super::given_files(matches) {
        let text = super::read(path)?;
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
            replace(path, &formatted)?;
        }
    }
    Ok(match (n_wrong, n_unlike) {
        (0, 0) => Exit::Pass,
        (0, _) => Exit::Failed,
        _ => Exit::Usage,
    })
}

/// Puts a text in the place of a file: at no time is half of it there.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let put = || -> io::Result<()> {
        // A link keeps pointing where it points.
        let path = fs::canonicalize(path)?;
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new("/")))?;
        file.write_all(text.as_bytes())?;
        file.as_file().set_permissions(fs::metadata(&path)?.permissions())?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(())
    };
    put().map_err(|error| {
        Screen::new(Exit::Failed, format!("cannot write {}", path.display())).line("why", error.to_string()).into()
    })
}
