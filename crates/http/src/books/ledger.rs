//! What is kept of requests beside their times: bytes, lengths, and a row for each when asked for.
//!
//! Other tools report these, and their faces take them from here. Knows no tool.

use std::{
    fs::File,
    io::Write as _,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use fathom_engine::Error;
use fathom_model::{Histogram, Settings, units::Nanos};
use fathom_sys::clock;

use crate::dial::Security;

/// So much of a log is written at a time: two thousand requests for one system call.
const LOG_BYTES: usize = 64 * 1024;

/// What a load is to keep, the same for all its workers.
#[derive(Debug)]
pub(crate) struct Bookkeeping {
    /// The length of the first body of the trial.
    first_body: OnceLock<u64>,
    /// Where rows of requests go, with the number of the worker behind it.
    log: Option<PathBuf>,
    /// How many failures end the work of a worker.
    give_up: Option<u64>,
}

impl Bookkeeping {
    pub(crate) fn of(settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            first_body: OnceLock::new(),
            log: settings.text("request-log").map(PathBuf::from),
            give_up: settings.count("give-up"),
        })
    }

    /// The length of the first body, once there was one.
    pub(crate) fn first_body(&self) -> u64 {
        self.first_body.get().copied().unwrap_or(0)
    }
}

/// A request that was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// On the monotonic clock.
    pub(crate) sent_at: Nanos,
    /// How long it took to connect before, for the first request of a connection.
    pub(crate) connect: Nanos,
    pub(crate) service: Nanos,
    pub(crate) first_byte: Nanos,
    pub(crate) body_bytes: u64,
    /// Whether it is part of the result.
    pub(crate) counts: bool,
}

/// What a worker brings home.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) total: Histogram,
    pub(crate) n_bytes_sent: u64,
    pub(crate) n_bytes_of_bodies: u64,
    pub(crate) n_mismatches: u64,
    /// The head of an answer.
    pub(crate) head: Option<String>,
    /// Of the first connection over TLS.
    pub(crate) security: Option<Security>,
}

impl Books {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.total.merge(&other.total);
        self.n_bytes_sent += other.n_bytes_sent;
        self.n_bytes_of_bodies += other.n_bytes_of_bodies;
        self.n_mismatches += other.n_mismatches;
        if self.head.is_none() {
            self.head.clone_from(&other.head);
        }
        self.security = self.security.or(other.security);
    }
}

/// The books of one worker while it works.
#[derive(Debug)]
pub(crate) struct Ledger {
    keeping: Arc<Bookkeeping>,
    first_body: Option<u64>,
    log: Option<Log>,
    n_failures: u64,
    books: Books,
}

impl Ledger {
    /// Of the worker of this number.
    pub(crate) fn open(keeping: &Arc<Bookkeeping>, worker_idx: usize) -> Result<Self, Error> {
        let log = keeping.log.as_ref().map(|path| Log::create(path.with_added_extension(worker_idx.to_string())));
        Ok(Self {
            keeping: Arc::clone(keeping),
            first_body: None,
            log: log.transpose()?,
            n_failures: 0,
            books: Books::default(),
        })
    }

    /// A connection is there, over TLS or not.
    pub(crate) fn secured(&mut self, security: Option<Security>) {
        self.books.security = self.books.security.or(security);
    }

    /// A request of so many bytes was sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.books.n_bytes_sent += bytes as u64;
    }

    pub(crate) fn answered(&mut self, entry: &Entry) {
        let Entry { connect, service, body_bytes, counts, .. } = *entry;
        let first = *self.first_body.get_or_insert_with(|| *self.keeping.first_body.get_or_init(|| body_bytes));
        self.books.n_bytes_of_bodies += body_bytes;
        self.books.n_mismatches += u64::from(body_bytes != first);
        if counts {
            self.books.total.record((connect + service).0);
            if let Some(log) = &mut self.log {
                log.add(entry);
            }
        }
    }

    /// Counts a failure; whether the worker is to give up.
    pub(crate) fn failed(&mut self) -> bool {
        self.n_failures += 1;
        self.keeping.give_up.is_some_and(|most| self.n_failures >= most)
    }

    /// Ends the log, and gives what the result needs.
    ///
    /// # Errors
    /// When the log could not be written.
    pub(crate) fn close(mut self, head: &[u8]) -> Result<Books, Error> {
        if let Some(log) = self.log {
            log.end()?;
        }
        self.books.head = (!head.is_empty()).then(|| String::from_utf8_lossy(head).into_owned());
        Ok(self.books)
    }
}

/// Rows of requests on their way to a file: four little-endian numbers of 64 bits each, all in nanoseconds.
///
/// When the request began on the wall clock, its connect included; the connect; from there to the last byte; to the first.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    rows: Vec<u8>,
    /// Of the wall clock before the monotonic one.
    ahead: Nanos,
    error: Option<std::io::Error>,
}

impl Log {
    fn create(path: PathBuf) -> Result<Self, Error> {
        let file = File::create_new(&path);
        let ahead = clock::wall() - clock::now();
        match file {
            Ok(file) => Ok(Self { path, file, rows: Vec::with_capacity(LOG_BYTES), ahead, error: None }),
            Err(cause) => Err(failed(&path, cause)),
        }
    }

    fn add(&mut self, entry: &Entry) {
        let Entry { sent_at, connect, service, first_byte, .. } = *entry;
        let begin = (self.ahead + sent_at).since(connect);
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
        // The first error is the cause; the load goes on, and the log is told to be worthless at the end.
        self.error = self.error.take().or(written.err());
    }

    fn end(mut self) -> Result<(), Error> {
        self.write();
        match self.error {
            Some(cause) => Err(failed(&self.path, cause)),
            None => Ok(()),
        }
    }
}

fn failed(path: &std::path::Path, cause: std::io::Error) -> Error {
    let cause = fathom_sys::Error::new("write", cause);
    Error::System { what: format!("write the log of requests to {}", path.display()), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(body_bytes: u64) -> Entry {
        Entry {
            sent_at: Nanos(1_000),
            connect: Nanos(7),
            service: Nanos(50),
            first_byte: Nanos(40),
            body_bytes,
            counts: true,
        }
    }

    #[test]
    fn answers_are_compared_with_the_first_of_the_trial_whichever_worker_had_it() {
        let keeping = Bookkeeping::of(&Settings::default());
        let [mut one, mut two] = [0, 1].map(|idx| Ledger::open(&keeping, idx).unwrap());
        one.answered(&entry(612));
        for body_bytes in [612, 613, 0] {
            two.answered(&entry(body_bytes));
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
    fn a_worker_gives_up_after_so_many_failures_and_never_without_being_told() {
        let told = Bookkeeping::of(&Settings::default().with("give-up", "2"));
        let mut ledger = Ledger::open(&told, 0).unwrap();
        assert_eq!([ledger.failed(), ledger.failed()], [false, true]);
        let mut ledger = Ledger::open(&Bookkeeping::of(&Settings::default()), 0).unwrap();
        assert!(!ledger.failed());
    }

    #[test]
    fn a_log_holds_a_row_for_each_request_and_never_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests");
        let keeping = Bookkeeping::of(&Settings::default().with("request-log", path.to_str().unwrap()));
        let mut ledger = Ledger::open(&keeping, 3).unwrap();
        for _ in 0..3_000 {
            ledger.answered(&entry(1));
        }
        ledger.close(b"").unwrap();
        let bytes = std::fs::read(folder.path().join("requests.3")).unwrap();
        let rows: Vec<u64> = bytes.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect();
        assert_eq!((rows.len(), &rows[1..4]), (12_000, [7, 50, 40].as_slice()));
        assert!(rows[0].abs_diff(clock::wall().0 - clock::now().0) < 1_000_000_000, "{}", rows[0]);
        assert!(Ledger::open(&keeping, 3).is_err(), "the file is there");
    }
}
