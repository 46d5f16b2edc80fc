//! `fathom replay FILE`: the requests in a file, and what became of everything in it.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use fathom_run::exit::{Exit, UserError};

mod capture;
mod table;

const NOTES: &str = "\
Examples:
  fathom replay day.pcap
  fathom replay day.pcapng --json

To make a capture: tcpdump -s 0 -w day.pcap 'tcp port 80'. Nothing is sent.";

pub(super) fn define(command: Command) -> Command {
    command
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("pcap or pcapng, of any size"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("print one JSON document"))
        .after_help(NOTES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let path = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    let document = capture::read(path)?;
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        serde_json::to_writer_pretty(&mut out, &document)?;
        out.write_all(b"\n")?;
    } else {
        out.write_all(document.text().as_bytes())?;
    }
    out.flush()?;
    Ok(Exit::Pass)
}

/// The refusal of a file.
fn unusable(path: &Path, why: &impl ToString) -> UserError {
    UserError::new(Exit::Usage, format!("cannot use {}", path.display())).with_line("why", why.to_string())
}
