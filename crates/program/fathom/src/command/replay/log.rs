//! What an access log holds: what became of its lines, and the requests in them.

use std::{fmt::Write as _, io::BufRead, path::Path};

use clap::ArgMatches;
use fathom_model::units::counted;
use fathom_replay::{BodiesNotLogged, LineFate, LogCounts, LogError, LogFormat, LogOptions, read_log};
use fathom_run::exit::{Exit, UserError};
use serde::Serialize;

use super::{
    capture::answer_words,
    refusal::unusable,
    send::RecordingSize,
    table::{add_section, most, rows},
};

/// The format of the document.
const FORMAT: &str = "fathom.access_log/1";

/// Whether an option for access logs was given.
pub(super) fn is_asked(matches: &ArgMatches) -> bool {
    matches.contains_id("log-format") || matches.get_flag("empty-bodies")
}

/// Reads the options for access logs.
pub(super) fn options(matches: &ArgMatches) -> Result<LogOptions, UserError> {
    let format = matches.get_one::<String>("log-format").map(|text| {
        text.parse::<LogFormat>().map_err(|error| {
            UserError::new(Exit::Usage, "cannot use --log-format")
                .with_line("why", error.to_string())
                .with_line("use", r#"--log-format '$remote_addr - $remote_user [$time_local] "$request" $status'"#)
        })
    });
    let is_empty = matches.get_flag("empty-bodies");
    let bodies = if is_empty { BodiesNotLogged::Empty } else { BodiesNotLogged::LeaveOut };
    Ok(LogOptions { format: format.transpose()?, bodies, now: fathom_sys::clock::wall() })
}

/// What a log holds.
#[derive(Debug, Serialize)]
pub(super) struct LogDocument {
    format: &'static str,
    file: String,
    /// The format of its lines.
    log_format: String,
    /// Why the file was not read to its end.
    damage: Option<String>,
    log: LogCounts,
}

/// Reads a log from start to end.
pub(super) fn read(path: &Path, file: impl BufRead, options: &LogOptions) -> Result<LogDocument, UserError> {
    let contents = read_log(file, options, |_| Ok::<_, LogError>(())).map_err(|error| refusal(path, &error))?;
    Ok(LogDocument {
        format: FORMAT,
        file: path.display().to_string(),
        log_format: contents.format.to_string(),
        damage: contents.damage,
        log: contents.counts,
    })
}

fn refusal(path: &Path, error: &LogError) -> UserError {
    let refused = unusable(path, error);
    if *error != LogError::Unknown {
        return refused;
    }
    refused
        .with_line(
            "known",
            "captures (pcap, pcapng) that tcpdump -w and Wireshark write; a compressed one must be unpacked first",
        )
        .with_line(
            "known",
            "logs of nginx, Apache, Envoy and Traefik as they write them unless told otherwise, and JSON lines",
        )
        .with_line("fix", r#"say the format: --log-format '$remote_addr [$time_local] "$request" $status'"#)
}

impl LogDocument {
    /// How much of it can be sent.
    pub(super) fn size(&self) -> RecordingSize {
        let n_requests = self.log.lines.get(&LineFate::Whole).copied().unwrap_or_default();
        let span = self.log.last.zip(self.log.first).map(|(last, first)| last.since(first));
        RecordingSize { n_requests, span: span.unwrap_or_default() }
    }

    pub(super) fn text(&self) -> String {
        let log = &self.log;
        let n_lines = counted(log.n_lines(), "line");
        let span = log.last.zip(log.first).map(|(last, first)| format!(" in {}", last.since(first)));
        let mut text = format!("{}: {n_lines}{}\n", self.file, span.unwrap_or_default());
        let _ = writeln!(text, "  format: {}", self.log_format);
        if let Some(damage) = &self.damage {
            let _ = writeln!(text, "  {damage}: nothing after that is counted");
        }
        if log.lines.contains_key(&LineFate::OutOfOrder) {
            let _ = writeln!(text, "  Lines are out of order. Of several files, the oldest has to come first.");
        }
        let mut section = |title, rows| add_section(&mut text, title, rows);
        section("lines, by what became of their requests", rows(&log.lines, LineFate::words));
        section("answers to whole requests", rows(&log.answers, answer_words));
        section("methods", most(&log.methods));
        section("hosts", most(&log.hosts));
        section("statuses", most(&log.statuses));
        section(
            "connections that whole requests are divided among",
            vec![("by client and time".to_owned(), log.n_connections)],
        );
        text
    }
}
