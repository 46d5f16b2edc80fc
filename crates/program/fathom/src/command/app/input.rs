//! The files that the commands read.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches};
use fathom_run::exit::{Exit, UserError};

/// The scenarios that a command goes through one after another.
pub(super) fn files(help: &'static str) -> Arg {
    Arg::new("file")
        .value_name("FILE")
        .required(true)
        .num_args(1..)
        .value_parser(clap::value_parser!(PathBuf))
        .help(help)
}

/// The same as the command line named them.
pub(super) fn given_files(matches: &ArgMatches) -> impl Iterator<Item = &PathBuf> {
    matches.get_many::<PathBuf>("file").into_iter().flatten()
}

/// Reads a file of text, or standard input for `-`; no more of it than tells that it is too long for a scenario.
pub(super) fn read(path: &Path) -> Result<String, UserError> {
    const LENGTH_MAX: u64 = 2 << 20;
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let source: Box<dyn Read> =
            if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
        source.take(LENGTH_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let shown = path.display();
    if path.extension().is_some_and(|extension| extension == "lua") {
        return Err(UserError::new(
            Exit::Usage,
            format!("{shown} is a script for wrk, and this command reads scenarios"),
        )
        .with_line("use", format!("fathom app run {shown} http://127.0.0.1:8080/")));
    }
    read().map_err(|error| {
        let user_error = UserError::new(Exit::Usage, format!("cannot read {shown}"));
        if error.kind() == io::ErrorKind::InvalidData {
            let user_error = user_error.with_line("why", "it is not text in UTF-8, as scenarios are");
            return user_error.with_line("see", format!("file {shown}"));
        }
        user_error.with_line("why", error.to_string())
    })
}
