//! `fathom replay FILE`: the requests in a file, and what became of everything in it; with a target they are sent there.

use std::{
    fs::File,
    io::{self, BufReader, Cursor, Read as _, Write as _},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, value_parser};
use fathom_capture::{KeyLog, is_capture};
use fathom_run::{
    exit::{Exit, UserError},
    terminal::sanitized,
};
use serde::Serialize;

mod capture;
mod log;
mod refusal;
mod send;
mod send_raw;
mod table;

use self::{capture::CaptureDocument, log::LogDocument, refusal::unusable, send::RecordingSize};

/// The examples of showing a file.
const EXAMPLES: &[&str] = &[
    "fathom replay day.pcap",
    "fathom replay day.pcap --keys keys.log",
    "fathom replay access.log",
    r#"fathom replay access.log --log-format '$remote_addr [$time_local] "$request" $status'"#,
];

/// The option with the secrets of a client.
const KEYS: &str = "keys";

/// The bytes that say what a file is: more than the first block of any capture has.
const BEGIN: u64 = 4096;

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
                .help("pcap, pcapng or the access log of a server, of any size"),
        )
        .args(send::arguments())
        .after_help(format!("Examples:\n  {}\n\n{NOTES}", [EXAMPLES, send::EXAMPLES].concat().join("\n  ")))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let is_sent = send::is_asked(matches)?;
    if let Some(device) = matches.get_one::<String>(send::LIVE_OPTION) {
        if send_raw::target(matches).is_some() {
            let text = "--live copies requests of HTTP: tcp:// and udp:// are for a capture";
            return Err(UserError::new(Exit::Usage, text).into());
        }
        return send::run_live(matches, device);
    }
    let path = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    if let Some(target) = send_raw::target(matches) {
        return send_raw::run(matches, path, &target);
    }
    let document = read(path, matches)?;
    if is_sent {
        return send::run(matches, path, &document.size());
    }
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        serde_json::to_writer_pretty(&mut out, &document)?;
        out.write_all(b"\n")?;
    } else {
        // Names of hosts, methods and formats are those of strangers.
        out.write_all(sanitized(&document.text()).as_bytes())?;
    }
    out.flush()?;
    Ok(Exit::Pass)
}

/// What a recording holds.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Document {
    Capture(Box<CaptureDocument>),
    Log(Box<LogDocument>),
}

/// Reads a recording from start to end. Its first bytes say what it is.
fn read(path: &Path, matches: &ArgMatches) -> Result<Document, UserError> {
    let log_options = log::options(matches)?;
    let mut file = File::open(path).map_err(|error| unusable(path, &error))?;
    // A pipe may give less at once than what says which format it is.
    let mut begin = Vec::new();
    (&mut file).take(BEGIN).read_to_end(&mut begin).map_err(|error| unusable(path, &error))?;
    let is_capture = is_capture(&begin);
    let file = BufReader::new(Cursor::new(begin).chain(file));
    if !is_capture {
        if matches.contains_id(KEYS) {
            return Err(unusable(path, &"it is no capture, and --keys decrypts captures"));
        }
        return Ok(Document::Log(Box::new(log::read(path, file, &log_options)?)));
    }
    if log::is_asked(matches) {
        return Err(unusable(path, &"it is a capture; --log-format and --empty-bodies are for access logs"));
    }
    Ok(Document::Capture(Box::new(capture::read(path, file, key_log(matches)?)?)))
}

/// Reads the secrets by which connections over TLS are decrypted; none if no file is named.
fn key_log(matches: &ArgMatches) -> Result<KeyLog, UserError> {
    let Some(path) = matches.get_one::<String>(KEYS).map(Path::new) else { return Ok(KeyLog::default()) };
    let file = File::open(path).map_err(|error| unusable(path, &error))?;
    KeyLog::read(BufReader::new(file)).map_err(|error| {
        let refused = unusable(path, &error);
        error.hint().into_iter().fold(refused, |refused, hint| refused.with_line("fix", hint))
    })
}

impl Document {
    fn text(&self) -> String {
        match self {
            Self::Capture(capture) => capture.text(),
            Self::Log(log) => log.text(),
        }
    }

    fn size(&self) -> RecordingSize {
        match self {
            Self::Capture(capture) => capture.size(),
            Self::Log(log) => log.size(),
        }
    }
}
