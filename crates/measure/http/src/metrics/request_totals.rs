//! Data of requests besides their times: bytes, lengths, and one row per request on demand.
//!
//! Other tools report these, and the drop-in tools take them from here. This module knows no tool.

use std::{
    fs::File,
    io::{self, Write as _},
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use fathom_engine::Error;
use fathom_model::{Histogram, Settings, units::Nanos};
use fathom_sys::clock;

use crate::target::{Channel, TlsParameters};

/// The size of a write to the log: two thousand requests per system call.
const LOG_BYTES: usize = 64 * 1024;

/// The directory of the open files of a process.
const OPEN_FILES: &str = "/dev/fd/";
/// The most bytes of an answer that are kept: as much as ab shows.
const FIRST_ANSWER_BYTES_MAX: usize = 8 * 1024;

/// The settings of what a load keeps, the same for all its workers.
#[derive(Debug)]
pub(crate) struct RecorderConfig {
    /// The length of the first body of the trial.
    first_body: OnceLock<u64>,
    /// The path of the request log, without the suffix of the worker's number.
    log_path: Option<PathBuf>,
    /// Whether the beginning of the first answer is kept.
    keep_first_answer: bool,
    /// The number of failures that ends the work of a worker.
    max_failures: Option<u64>,
}

impl RecorderConfig {
    pub(crate) fn of(settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            first_body: OnceLock::new(),
            log_path: settings.text("request-log").map(PathBuf::from),
            keep_first_answer: settings.flag("keep-answer"),
            max_failures: settings.count("give-up"),
        })
    }

    /// The length of the first body; zero before there is one.
    pub(crate) fn first_body(&self) -> u64 {
        self.first_body.get().copied().unwrap_or(0)
    }
}

/// An answered request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSample {
    /// On the monotonic clock.
    pub(crate) sent_at: Nanos,
    /// The time since it was due by a schedule; zero in a closed load.
    pub(crate) late: Nanos,
    /// The time of the connect before it, for the first request of a connection.
    pub(crate) connect: Nanos,
    pub(crate) service: Nanos,
    pub(crate) first_byte: Nanos,
    pub(crate) body_bytes: u64,
    /// Whether it is part of the result.
    pub(crate) counts: bool,
}

/// The totals of a worker.
#[derive(Debug, Default)]
pub(crate) struct RequestTotals {
    pub(crate) total: Histogram,
    pub(crate) n_bytes_sent: u64,
    pub(crate) n_bytes_of_bodies: u64,
    pub(crate) n_mismatches: u64,
    /// The head of an answer.
    pub(crate) head: Option<String>,
    /// The beginning of the first answer, if it is kept.
    pub(crate) first_answer: Option<String>,
    /// Of the first connection over TLS.
    pub(crate) tls: Option<TlsParameters>,
}

impl RequestTotals {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.total.merge(&other.total);
        self.n_bytes_sent += other.n_bytes_sent;
        self.n_bytes_of_bodies += other.n_bytes_of_bodies;
        self.n_mismatches += other.n_mismatches;
        if self.head.is_none() {
            self.head.clone_from(&other.head);
        }
        if self.first_answer.is_none() {
            self.first_answer.clone_from(&other.first_answer);
        }
        self.tls = self.tls.or(other.tls);
    }
}

/// Collects the totals of one worker while the load runs.
#[derive(Debug)]
pub(crate) struct TotalsRecorder {
    config: Arc<RecorderConfig>,
    first_body: Option<u64>,
    log: Option<RequestLog>,
    n_failures: u64,
    totals: RequestTotals,
}

impl TotalsRecorder {
    /// Creates the recorder of the worker with this number.
    pub(crate) fn open(keeping: &Arc<RecorderConfig>, worker_idx: usize) -> Result<Self, Error> {
        let log = keeping.log_path.as_ref().map(|path| match path.strip_prefix(OPEN_FILES) {
            Ok(_) => RequestLog::append(path.clone()),
            Err(_) => RequestLog::create(path.with_added_extension(worker_idx.to_string())),
        });
        Ok(Self {
            config: Arc::clone(keeping),
            first_body: None,
            log: log.transpose()?,
            n_failures: 0,
            totals: RequestTotals::default(),
        })
    }

    /// A connection is open, with or without TLS.
    pub(crate) fn on_connected(&mut self, channel: &Channel) {
        // Once is enough, because it reads the certificate.
        self.totals.tls = self.totals.tls.or_else(|| channel.tls_parameters());
    }

    /// A piece of an answer has arrived.
    pub(crate) fn on_received(&mut self, piece: &[u8]) {
        if self.config.keep_first_answer && self.totals.first_answer.is_none() {
            let kept = &piece[..piece.len().min(FIRST_ANSWER_BYTES_MAX)];
            self.totals.first_answer = Some(String::from_utf8_lossy(kept).into_owned());
        }
    }

    /// Bytes of a request were sent.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        self.totals.n_bytes_sent += bytes as u64;
    }

    pub(crate) fn on_answer(&mut self, entry: &RequestSample) {
        let RequestSample { connect, service, body_bytes, counts, .. } = *entry;
        let first = *self.first_body.get_or_insert_with(|| *self.config.first_body.get_or_init(|| body_bytes));
        self.totals.n_bytes_of_bodies += body_bytes;
        self.totals.n_mismatches += u64::from(body_bytes != first);
        if counts {
            self.totals.total.record((connect + service).0);
            if let Some(log) = &mut self.log {
                log.add(entry);
            }
        }
    }

    /// Counts a failure. Returns whether the worker must give up.
    pub(crate) fn on_failure(&mut self) -> bool {
        self.n_failures += 1;
        self.config.max_failures.is_some_and(|most| self.n_failures >= most)
    }

    /// Closes the log and returns the totals.
    ///
    /// # Errors
    /// The log could not be written.
    pub(crate) fn close(mut self, head: &[u8]) -> Result<RequestTotals, Error> {
        if let Some(log) = self.log {
            log.finish()?;
        }
        self.totals.head = (!head.is_empty()).then(|| String::from_utf8_lossy(head).into_owned());
        Ok(self.totals)
    }
}

/// Writes rows of requests to a file: four little-endian 64-bit numbers each, all in nanoseconds.
///
/// They are the start of the request on the wall clock, including its connect; the duration of the connect; and from the end of
/// the connect the time to the last byte and the time to the first byte.
#[derive(Debug)]
struct RequestLog {
    path: PathBuf,
    file: File,
    rows: Vec<u8>,
    /// The wall clock minus the monotonic clock.
    wall_clock_offset: Nanos,
    error: Option<io::Error>,
}

impl RequestLog {
    fn create(path: PathBuf) -> Result<Self, Error> {
        let file = File::create_new(&path);
        Self::with_file(path, file)
    }

    /// Opens a file that this process inherited. All workers append to it, each write in one piece.
    fn append(path: PathBuf) -> Result<Self, Error> {
        let open = || {
            let file = File::options().append(true).open(&path)?;
            // Rows would be garbage to the reader of a stream, such as the controller of this agent.
            if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
        };
        let file = open();
        Self::with_file(path, file)
    }

    fn with_file(path: PathBuf, file: io::Result<File>) -> Result<Self, Error> {
        let ahead = clock::wall() - clock::now();
        match file {
            Ok(file) => {
                Ok(Self { path, file, rows: Vec::with_capacity(LOG_BYTES), wall_clock_offset: ahead, error: None })
            }
            Err(cause) => Err(failed(&path, cause)),
        }
    }

    fn add(&mut self, entry: &RequestSample) {
        let RequestSample { sent_at, connect, service, first_byte, .. } = *entry;
        let begin = (self.wall_clock_offset + sent_at).since(connect);
        for time in [begin, connect, service, first_byte] {
            self.rows.extend_from_slice(&time.0.to_le_bytes());
        }
        if self.rows.len() >= LOG_BYTES {
            self.write();
        }
    }

    fn write(&mut self) {
        let written = self.file.write_all(&self.rows);
        self.rows.clear();
        // The first error is the cause. The load continues, and the end reports that the log is worthless.
        self.error = self.error.take().or(written.err());
    }

    fn finish(mut self) -> Result<(), Error> {
        self.write();
        match self.error {
            Some(cause) => Err(failed(&self.path, cause)),
            None => Ok(()),
        }
    }
}

fn failed(path: &std::path::Path, cause: io::Error) -> Error {
    let cause = fathom_sys::Error::new("write", cause);
    Error::System { what: format!("write the log of requests to {}", path.display()), cause }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn entry(body_bytes: u64) -> RequestSample {
        RequestSample {
            sent_at: Nanos(1_000),
            late: Nanos::ZERO,
            connect: Nanos(7),
            service: Nanos(50),
            first_byte: Nanos(40),
            body_bytes,
            counts: true,
        }
    }

    #[test]
    fn answers_are_compared_with_the_first_of_the_trial_whichever_worker_had_it() {
        let keeping = RecorderConfig::of(&Settings::default());
        let [mut one, mut two] = [0, 1].map(|idx| TotalsRecorder::open(&keeping, idx).unwrap());
        one.on_answer(&entry(612));
        for body_bytes in [612, 613, 0] {
            two.on_answer(&entry(body_bytes));
        }
        let mut books = one.close(b"").unwrap();
        books.merge(&two.close(b"HTTP/1.1 200 OK\r\n\r\n").unwrap());
        assert_eq!(
            (keeping.first_body(), books.n_mismatches, books.n_bytes_of_bodies),
            (612, 2, 3 * 612 + 1 - 612 + 612)
        );
        assert_eq!(books.total.max(), Some(57));
        assert_eq!(books.head.as_deref(), Some("HTTP/1.1 200 OK\r\n\r\n"));
    }

    #[test]
    fn the_first_answer_is_kept_if_it_is_wanted() {
        for (settings, kept) in
            [(Settings::default().with("keep-answer", "true"), Some("first")), (Settings::default(), None)]
        {
            let mut recorder = TotalsRecorder::open(&RecorderConfig::of(&settings), 0).unwrap();
            recorder.on_received(b"first");
            recorder.on_received(b"second");
            assert_eq!(recorder.close(b"").unwrap().first_answer.as_deref(), kept);
        }
    }

    #[test]
    fn a_worker_gives_up_after_so_many_failures_and_never_without_being_told() {
        let told = RecorderConfig::of(&Settings::default().with("give-up", "2"));
        let mut recorder = TotalsRecorder::open(&told, 0).unwrap();
        assert_eq!([recorder.on_failure(), recorder.on_failure()], [false, true]);
        let mut recorder = TotalsRecorder::open(&RecorderConfig::of(&Settings::default()), 0).unwrap();
        assert!(!recorder.on_failure());
    }

    #[test]
    fn a_log_holds_a_row_for_each_request_and_never_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests");
        let keeping = RecorderConfig::of(&Settings::default().with("request-log", path.to_str().unwrap()));
        let mut recorder = TotalsRecorder::open(&keeping, 3).unwrap();
        for _ in 0..3_000 {
            recorder.on_answer(&entry(1));
        }
        recorder.close(b"").unwrap();
        let bytes = std::fs::read(folder.path().join("requests.3")).unwrap();
        let rows: Vec<u64> = bytes.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect();
        assert_eq!((rows.len(), &rows[1..4]), (12_000, [7, 50, 40].as_slice()));
        assert!(rows[0].abs_diff(clock::wall().0 - clock::now().0) < 1_000_000_000, "{}", rows[0]);
        assert!(TotalsRecorder::open(&keeping, 3).is_err(), "the file is there");
    }

    #[test]
    fn a_file_that_is_open_already_has_the_rows_of_all_workers() {
        let file = tempfile::tempfile().unwrap();
        let of = |path: String| RecorderConfig::of(&Settings::default().with("request-log", path));
        let keeping = of(format!("/dev/fd/{}", file.as_raw_fd()));
        for idx in 0..2 {
            let mut recorder = TotalsRecorder::open(&keeping, idx).unwrap();
            (0..3_000).for_each(|_| recorder.on_answer(&entry(1)));
            recorder.close(b"").unwrap();
        }
        assert_eq!(file.metadata().unwrap().len(), 6_000 * 32);
        let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(TotalsRecorder::open(&of(format!("/dev/fd/{}", stream.as_raw_fd())), 0).is_err());
        assert!(TotalsRecorder::open(&of("/dev/fd/no".to_owned()), 0).is_err());
    }
}
