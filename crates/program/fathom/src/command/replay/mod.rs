//! `fathom replay FILE`: the requests in a file, and what became of everything in it; with a target they are sent there.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, value_parser};
use fathom_run::exit::{Exit, UserError};

mod capture;
mod send;
mod table;

/// The end of the help, behind the examples.
const NOTES: &str = "To make a capture: tcpdump -s 0 -w day.pcap 'tcp port 80'";

pub(super) fn define(command: Command) -> Command {
    command
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required_unless_present(send::LIVE_OPTION)
                .conflicts_with(send::LIVE_OPTION)
                .value_parser(value_parser!(PathBuf))
                .help("pcap or pcapng, of any size"),
        )
        .args(send::arguments())
        .after_help(format!("Examples:\n  fathom replay day.pcap\n{}\n\n{NOTES}", send::EXAMPLES))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let is_sent = send::is_asked(matches)?;
    if let Some(device) = matches.get_one::<String>(send::LIVE_OPTION) {
        return send::run_live(matches, device);
    }
    let path = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    let document = capture::read(path)?;
    if is_sent {
        return send::run(matches, path, &document.size());
    }
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
