//! Access logs of servers as a recording: the request of each line, rebuilt, and what became of each line.

mod clients;
mod counts;
mod docker;
mod format;
mod json;
mod lines;
mod pattern;
mod request;
mod servers;
mod time;
mod unescape;
mod values;
mod variables;
mod window;

use std::io::{self, BufRead, BufReader};

use fathom_http::h1::RequestHead;
use fathom_model::units::Nanos;
use flate2::bufread::MultiGzDecoder;

use self::{
    clients::Clients,
    docker::{ProgramLine, Unwrapper, Wrapping},
    lines::next_line,
    request::LoggedRequest,
    window::{OutOfOrder, Window},
};
pub use self::{
    counts::{LineFate, LogCounts},
    format::LogFormat,
    pattern::LogFormatError,
    request::BodiesNotLogged,
};
use crate::exchange::RecordedExchange;

/// The lines by which a format is recognised.
const SAMPLE: usize = 64;
/// The clock of the server, in whatever zone it writes its times, may be ahead of ours by so much.
const CLOCKS_DIFFER: Nanos = Nanos::from_secs(24 * 3600);
/// The start of a compressed file (RFC 1952 section 2.3.1).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// How a log is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// The format of its lines; without one, it is recognised by the first lines.
    pub format: Option<LogFormat>,
    pub bodies: BodiesNotLogged,
    /// When the log is read, since 1970: no line can be much later.
    pub now: Nanos,
}

/// What a log was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogContents {
    pub format: LogFormat,
    pub counts: LogCounts,
    /// Why it was not read to its end.
    pub damage: Option<String>,
}

/// Why a file cannot be read as a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Reading failed at its begin.
    #[error("{0}")]
    Unreadable(String),
    #[error("it is empty")]
    Empty,
    /// Its first lines are in no known format.
    #[error("its first lines are in no known format of access logs, and it does not begin like a capture")]
    Unknown,
    /// Its first lines are in another format than the one that was given.
    #[error("none of its first lines is in the format that was given")]
    OtherFormat,
}

/// Reads a log, compressed by gzip or not, and gives its whole requests in the order of their times.
///
/// # Errors
/// The error of `take`, or the file is no log. A file that cannot be read to its end is no error.
pub fn read_log<E: From<LogError>>(
    mut input: impl BufRead,
    options: &LogOptions,
    take: impl FnMut(RecordedExchange) -> Result<(), E>,
) -> Result<LogContents, E> {
    let unreadable = |error: io::Error| LogError::Unreadable(error.to_string());
    if input.fill_buf().map_err(unreadable)?.starts_with(GZIP) {
        read_lines(BufReader::new(MultiGzDecoder::new(input)), options, take)
    } else {
        read_lines(input, options, take)
    }
}

fn read_lines<E: From<LogError>>(
    mut input: impl BufRead,
    options: &LogOptions,
    take: impl FnMut(RecordedExchange) -> Result<(), E>,
) -> Result<LogContents, E> {
    let mut sample = Vec::new();
    let mut line = Vec::new();
    let mut damage = None;
    while sample.len() < SAMPLE && damage.is_none() {
        match next_line(&mut input, &mut line) {
            Ok(Some(kind)) => sample.push((kind, line.clone())),
            Ok(None) => break,
            Err(error) if sample.is_empty() => return Err(LogError::Unreadable(error.to_string()).into()),
            Err(error) => damage = Some(error),
        }
    }
    if sample.is_empty() {
        return Err(LogError::Empty.into());
    }
    let wrapping = Wrapping::of(sample.iter().map(|(_, line)| &line[..]));
    let mut unwrapper = Unwrapper::new(wrapping);
    let sample: Vec<_> = sample.iter().filter_map(|(kind, line)| unwrapper.take(*kind, line)).collect();
    let mut lines = sample.iter().filter_map(|line| line.text.as_deref().ok());
    let format = match &options.format {
        None => LogFormat::recognise(&lines, wrapping).ok_or(LogError::Unknown)?,
        Some(format) => {
            let format = format.wrapped_as(wrapping);
            if !lines.any(|line| format.is_of(line)) {
                return Err(LogError::OtherFormat.into());
            }
            format
        }
    };
    let mut reader = LogReader {
        format: &format,
        bodies: options.bodies,
        latest: options.now + CLOCKS_DIFFER,
        window: Window::new(),
        clients: Clients::default(),
        counts: LogCounts::default(),
        take,
    };
    for line in sample {
        reader.line(line)?;
    }
    while damage.is_none() {
        match next_line(&mut input, &mut line) {
            Ok(Some(kind)) => unwrapper.take(kind, &line).map_or(Ok(()), |line| reader.line(line))?,
            Ok(None) => break,
            Err(error) => damage = Some(error),
        }
    }
    unwrapper.finish().try_for_each(|line| reader.line(line))?;
    let counts = reader.finish()?;
    let damage = damage.map(|error| format!("it is damaged or cut off after line {}: {error}", counts.n_lines()));
    Ok(LogContents { format, counts, damage })
}

struct LogReader<'f, F> {
    format: &'f LogFormat,
    bodies: BodiesNotLogged,
    /// The latest time that a line can have.
    latest: Nanos,
    window: Window,
    clients: Clients,
    counts: LogCounts,
    take: F,
}

impl<E, F: FnMut(RecordedExchange) -> Result<(), E>> LogReader<'_, F> {
    fn line(&mut self, line: ProgramLine<'_>) -> Result<(), E> {
        self.counts.count_parts(line.n_parts);
        let request = line.text.and_then(|line| self.format.read(&line, self.bodies)).and_then(|request| {
            if request.time.at > self.latest {
                return Err(LineFate::Future);
            }
            self.window.add(request).map_err(|OutOfOrder| LineFate::OutOfOrder)
        });
        match request {
            Ok(()) => self.hand_over(false),
            Err(fate) => {
                self.counts.count_line(fate);
                Ok(())
            }
        }
    }

    fn hand_over(&mut self, is_end: bool) -> Result<(), E> {
        while let Some(requests) = self.window.next(is_end) {
            for (time, request) in requests {
                self.hand_over_one(time, request)?;
            }
        }
        Ok(())
    }

    fn hand_over_one(&mut self, time: Nanos, request: LoggedRequest) -> Result<(), E> {
        let LoggedRequest { bytes, head_length, client, answer_fate, answer, .. } = request;
        let end = time + answer.as_ref().and_then(|answer| answer.took).unwrap_or_default();
        let (connection, opened) = self.clients.connection(client, time, end);
        let exchange = RecordedExchange {
            connection,
            lane: None,
            opened,
            request: bytes,
            head_length,
            first_byte: time,
            last_byte: time,
            answer_fate,
            answer: None,
            logged: answer,
        };
        if let Ok(Some(head)) = RequestHead::parse(&exchange.request) {
            self.counts.count_exchange(&exchange, head.method.as_bytes(), head.host.unwrap_or_default());
        }
        (self.take)(exchange)
    }

    fn finish(mut self) -> Result<LogCounts, E> {
        self.hand_over(true)?;
        self.counts.n_connections = self.clients.n_connections;
        Ok(self.counts)
    }
}
