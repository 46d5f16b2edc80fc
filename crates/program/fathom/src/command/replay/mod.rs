//! `fathom replay FILE`: the requests in a file, and what became of everything in it.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Write as _},
    path::PathBuf,
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use fathom_capture::is_capture;
use fathom_run::exit::Exit;
use serde::Serialize;

mod capture;
mod log;
mod refusal;
mod table;

use self::refusal::unusable;

const NOTES: &str = "\
Examples:
  fathom replay day.pcap
  fathom replay day.pcapng --json
  fathom replay access.log
  fathom replay access.log --log-format '$remote_addr [$time_local] \"$request\" $status'

To make a capture: tcpdump -s 0 -w day.pcap 'tcp port 80'. Nothing is sent.";

pub(super) fn define(command: Command) -> Command {
    log::define(command)
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("pcap, pcapng or the access log of a server, of any size"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("print one JSON document"))
        .after_help(NOTES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let path = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    let log_options = log::options(matches)?;
    let mut file = BufReader::new(File::open(path).map_err(|error| unusable(path, &error))?);
    let begin = file.fill_buf().map_err(|error| unusable(path, &error))?;
    if is_capture(begin) {
        if log::is_asked(matches) {
            let why = "it is a capture; --log-format and --empty-bodies are for access logs";
            return Err(unusable(path, &why).into());
        }
        let document = capture::read(path, file)?;
        print(matches, &document, || document.text())
    } else {
        let document = log::read(path, file, &log_options)?;
        print(matches, &document, || document.text())
    }
}

fn print(matches: &ArgMatches, document: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        serde_json::to_writer_pretty(&mut out, document)?;
        out.write_all(b"\n")?;
    } else {
        out.write_all(text().as_bytes())?;
    }
    out.flush()?;
    Ok(Exit::Pass)
}
