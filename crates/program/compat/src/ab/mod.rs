//! Drop-in for ab: a fixed number of requests over a fixed number of connections, and ab's tables.
//!
//! Like ab, it sends HTTP/1.0 requests from one thread. ab counts a failed receive twice, as a failure and as an exception;
//! this drop-in counts it once.

mod options;
mod refused;
mod request;
mod rows;
mod table;
mod text;

use std::{
    cell::Cell,
    fs::File,
    io::{self, Seek as _, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
    rc::Rc,
};

use fathom_engine::LiveProgress;
use fathom_http::{
    failures_by_stage::FailuresByStage,
    names::{BODY_BYTES, CLOSED_BY_SERVER, FIRST_BODY_BYTES, LENGTH_MISMATCHES, STATUS, TOTAL_TIME, facts},
};
use fathom_model::{
    Failure, Histogram, Record, Stage,
    names::{count, distribution},
    units::Nanos,
};
use options::{EarlyExit, Options};
use table::RequestTimes;
use text::{AbResult, FailedRequests, TlsDetails};

use super::closed_loop::{self, ClosedLoop, TargetError, UrlTarget};
use fathom_run::{
    allow::AllowList,
    exit::Exit,
    files::{self, FileReaders},
};

/// The time limit for a number of requests. ab itself has none, but every fathom run must be bounded.
const DURATION_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// Runs ab with its own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let (words, extras) = closed_loop::without_extras(words);
    let (said, read) = options::read(&words);
    eprint!("{said}");
    let options = match read {
        Ok(options) => options,
        Err(EarlyExit::Version) => return closed_loop::print_now(&banner(None)).map(|()| Exit::Pass),
        Err(EarlyExit::Error(text, code)) => {
            eprint!("{text}");
            return Ok(Exit::Code(code));
        }
    };
    for sentence in &options.without_effect {
        eprintln!("fathom: {sentence}");
    }
    if let Some(path) = options.certificate.as_ref().filter(|path| File::open(path).is_err()) {
        eprintln!("unable to get certificate from '{path}'");
        return Ok(Exit::Code(1));
    }
    let (host, port) = options.proxy.clone().unwrap_or((options.address.host.clone(), options.address.port));
    let reached =
        closed_loop::check_reachable(&UrlTarget { host: host.clone(), port: Some(port), is_secure: false }, allowed);
    if let Err(TargetError::NotAllowed(user_error)) = reached {
        return Err(user_error.into());
    }
    let mut spill = options.gnuplot.as_ref().map(|_| RequestLogFile::open()).transpose()?;
    let load = load(&options, spill.as_ref())?;
    let heartbeat = ProgressPrinter::of(&options);
    closed_loop::print_now(&(banner(Some(&options)) + &start_text(&options, heartbeat.is_some())))?;
    if options.concurrency == 0 {
        return Ok(AprError { why: "Invalid argument".to_owned(), code: 22 }.print("apr_pollset_poll"));
    }
    match reached {
        Err(TargetError::Unknown(why)) => {
            return Ok(AprError::of_name(why).print(&format!("apr_sockaddr_info_get() for {host}")));
        }
        Err(TargetError::Unreachable(address, cause)) => {
            let goes_on = options.ignores_receive_errors && cause.kind() == io::ErrorKind::ConnectionRefused;
            let outcome = goes_on.then(|| refused::outcome(&options, address)).flatten();
            let Some(outcome) = outcome else { return Ok(AprError::of_io(&cause).print("apr_socket_recv")) };
            print_result(&options, &outcome, heartbeat.as_ref())?;
            return Ok(write_files(&options, &outcome, spill.as_mut())?.unwrap_or(Exit::Pass));
        }
        _ => {}
    }
    let measured = load.measure(heartbeat.as_ref().map(ProgressPrinter::on_progress), allowed)?;
    let record = measured.record()?;
    closed_loop::print_now(&request::shown(&options, record))?;
    let failures = FailuresByStage::of(&record.errors);
    if failures.total() > 0 && !options.ignores_receive_errors {
        return Ok(abort_error(record, failures));
    }
    let outcome = outcome(&options, record);
    print_result(&options, &outcome, heartbeat.as_ref())?;
    extras.print(&measured)?;
    if let Some(exit) = write_files(&options, &outcome, spill.as_mut())? {
        return Ok(exit);
    }
    // ab exits with this code after it has printed the result of a run that ctrl-C interrupted.
    Ok(if measured.is_interrupted() { Exit::Code(1) } else { Exit::Pass })
}

/// Returns the first lines, in place of ab's own lines about itself and its copyright.
fn banner(options: Option<&Options>) -> String {
    let line = format!("This is {} in the form of ApacheBench, Version 2.3", fathom_run::registry::TOOL);
    match options.and_then(|options| options.html.as_ref()) {
        Some(_) => format!("<p>\n {line}<br>\n</p>\n<p>\n"),
        None => format!("{line}\n\n"),
    }
}

fn start_text(options: &Options, tells_progress: bool) -> String {
    if options.html.is_some() {
        return String::new();
    }
    let proxy = options.proxy.as_ref().map_or(String::new(), |(host, port)| format!("[through {host}:{port}] "));
    let end = if tells_progress { "\n" } else { "..." };
    format!("Benchmarking {} {proxy}(be patient){end}", options.address.host)
}

/// Prints a line to stderr after every `every` requests.
struct ProgressPrinter {
    every: u64,
    seen: Rc<Cell<u64>>,
}

impl ProgressPrinter {
    /// Returns `None` for few requests, like ab.
    fn of(options: &Options) -> Option<Self> {
        let is_told = !options.quiet && options.requests > 150;
        is_told.then(|| Self { every: (options.requests / 10).max(100), seen: Rc::default() })
    }

    fn print_if_due(every: u64, before: u64, now: u64) {
        for n in before / every + 1..=now / every {
            eprintln!("Completed {} requests", n * every);
        }
    }

    fn on_progress(&self) -> Box<dyn Fn(LiveProgress)> {
        let (every, seen) = (self.every, Rc::clone(&self.seen));
        Box::new(move |live| {
            let before = seen.replace(seen.get() + live.growth);
            Self::print_if_due(every, before, seen.get());
        })
    }

    fn finish(&self, n: u64) {
        Self::print_if_due(self.every, self.seen.get().min(n), n);
        eprintln!("Finished {n} requests");
    }
}

/// An error of the Apache Portable Runtime.
struct AprError {
    why: String,
    code: u32,
}

impl AprError {
    fn timed_out() -> Self {
        Self { why: "The timeout specified has expired".to_owned(), code: 70_007 }
    }

    /// The error for a connection that ended too early.
    fn end_of_file() -> Self {
        Self { why: "End of file found".to_owned(), code: 70_014 }
    }

    fn of_io(cause: &io::Error) -> Self {
        match cause.raw_os_error().and_then(|errno| u32::try_from(errno).ok()) {
            Some(number) => Self { why: closed_loop::c_error_text(cause), code: number },
            None => Self::timed_out(),
        }
    }

    /// The error for a name without an address.
    fn of_name(why: String) -> Self {
        // The runtime adds this base to the errors of `getaddrinfo`. These two are the common ones.
        let number = 670_000 + if why.starts_with("Temporary") { 3 } else { 2 };
        Self { why, code: number }
    }

    /// The error for a text in a record, such as `connection reset by peer`.
    fn of_words(words: &str) -> Self {
        closed_loop::error_from_text(words).map_or_else(Self::end_of_file, |error| Self::of_io(&error))
    }

    /// Prints the error. The low byte of its number is the exit code.
    fn print(&self, call: &str) -> Exit {
        eprintln!("{call}: {} ({})", self.why, self.code);
        Exit::Code(self.code.to_le_bytes()[0])
    }
}

/// Ends a run after an error without `-r`.
fn abort_error(record: &Record, failures: FailuresByStage) -> Exit {
    let exit = match record.errors.keys().next() {
        _ if failures.timeout > 0 => AprError::timed_out().print("apr_pollset_poll"),
        Some(Failure { stage: Stage::Send, cause }) => AprError::of_words(&cause.to_string()).print("apr_socket_send"),
        Some(Failure { cause, .. }) => AprError::of_words(&cause.to_string()).print("apr_socket_recv"),
        None => AprError::end_of_file().print("apr_socket_recv"),
    };
    match record.totals.get(count::REQUESTS) {
        // Nobody may read it any more.
        Some(n) if *n > 0 => drop(writeln!(io::stdout(), "Total of {n} requests completed")),
        _ => {}
    }
    exit
}

/// The log of requests for the file of `-g`. The file has no name, so it disappears with its last user in any case.
struct RequestLogFile(File);

impl RequestLogFile {
    /// Creates the file. The measuring process inherits it as an open file.
    fn open() -> anyhow::Result<Self> {
        let file = tempfile::tempfile()?;
        fathom_sys::process::hand_down(&file)?;
        Ok(Self(file))
    }

    /// Returns its path for the process that inherits it.
    fn name(&self) -> String {
        format!("/dev/fd/{}", self.0.as_raw_fd())
    }
}

fn load(options: &Options, spill: Option<&RequestLogFile>) -> anyhow::Result<ClosedLoop> {
    let seconds = options.time.filter(|seconds| *seconds > 0);
    Ok(ClosedLoop {
        kind: closed_loop::CLOSED_LOOP_KIND,
        title: format!("ab {}", options.address.url()),
        settings: request::settings(options, spill.map(RequestLogFile::name))?,
        duration: seconds.map_or(DURATION_MAX, Nanos::from_secs).min(DURATION_MAX),
    })
}

/// Prints the result after the end of the progress lines.
fn print_result(options: &Options, outcome: &AbResult, heartbeat: Option<&ProgressPrinter>) -> anyhow::Result<()> {
    let done = match heartbeat {
        Some(heartbeat) => {
            heartbeat.finish(outcome.n_complete);
            ""
        }
        None => "..done\n",
    };
    let result = match &options.html {
        Some(layout) => text::html(outcome, options, layout),
        None => text::plain(outcome, options),
    };
    closed_loop::print_now(&format!("{done}{result}"))
}

/// Writes the files of `-e` and `-g`, except with an HTML layout. Returns the exit code if a file cannot be written.
fn write_files(
    options: &Options,
    outcome: &AbResult,
    spill: Option<&mut RequestLogFile>,
) -> anyhow::Result<Option<Exit>> {
    if options.html.is_some() {
        return Ok(None);
    }
    if let Some(path) = &options.csv {
        let csv = outcome.times.csv();
        if let Some(exit) = write_file(path, "CSV", |out| Ok(out.write_all(csv.as_bytes())?)) {
            return Ok(Some(exit));
        }
    }
    if let (Some(path), Some(RequestLogFile(rows))) = (&options.gnuplot, spill) {
        rows.rewind()?;
        return Ok(write_file(path, "gnuplot", |out| Ok(rows::write(rows, out)?)));
    }
    Ok(None)
}

/// Writes one file completely, or prints ab's error message.
fn write_file(path: &Path, what: &str, write: impl FnOnce(&mut dyn io::Write) -> anyhow::Result<()>) -> Option<Exit> {
    let error = files::write_whole(path, FileReaders::Anyone, write).err()?;
    let cause = error.root_cause();
    let why = cause.downcast_ref().map_or_else(|| cause.to_string(), closed_loop::c_error_text);
    eprintln!("Cannot open {what} output file: {why}");
    Some(Exit::Code(1))
}

fn outcome(options: &Options, record: &Record) -> AbResult {
    let total = |name: &str| record.totals.get(name).copied().unwrap_or(0);
    let fact = |name: &str| record.facts.get(name).map(String::as_str);
    let failures = FailuresByStage::of(&record.errors);
    let failed = FailedRequests {
        connect: failures.connect,
        receive: failures.receive,
        length: if options.any_length { 0 } else { total(LENGTH_MISMATCHES) },
        exceptions: failures.timeout,
    };
    let n_answered = total(count::REQUESTS);
    AbResult {
        server: request::field(fact(facts::HEAD).unwrap_or_default(), "server"),
        security: TlsDetails::of(&record.facts),
        document_bytes: total(FIRST_BODY_BYTES),
        took: record.measured_ns.1 - record.measured_ns.0,
        n_complete: n_answered + failures.total(),
        failed,
        n_write_errors: failures.send,
        n_not_2xx: STATUS[1..].iter().map(|name| total(name)).sum(),
        n_kept_alive: n_answered.saturating_sub(total(CLOSED_BY_SERVER)),
        n_bytes: total(count::BYTES_RECEIVED),
        n_bytes_sent: total(count::BYTES_SENT),
        n_bytes_of_bodies: total(BODY_BYTES),
        times: times(record),
    }
}

/// Returns the times of all answered requests. A request on an open connection has a connect time of zero.
fn times(record: &Record) -> RequestTimes {
    let named = |name: &str| record.distributions.get(name).cloned().unwrap_or_else(Histogram::new);
    let processing = named(distribution::SERVICE_TIME);
    let mut connect = named(distribution::CONNECT_TIME);
    connect.record_n(0, processing.count().saturating_sub(connect.count()));
    let total = record.distributions.get(TOTAL_TIME).cloned().unwrap_or_else(|| processing.clone());
    RequestTimes { connect, processing, waiting: named(distribution::FIRST_BYTE), total }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_whole_keeps_what_it_held_and_ends_with_abs_code() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("times.csv");
        fs::write(&path, "earlier").unwrap();
        let exit = write_file(&path, "CSV", |out| {
            out.write_all(b"half of it")?;
            Err(io::Error::from(io::ErrorKind::StorageFull).into())
        });
        assert_eq!((exit, fs::read_to_string(&path).unwrap().as_str()), (Some(Exit::Code(1)), "earlier"));
        assert_eq!(write_file(&path, "CSV", |out| Ok(out.write_all(b"later")?)), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "later");
    }
}
