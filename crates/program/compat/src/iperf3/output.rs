//! Where the lines of tests go: standard output or a file, with a title and a time before each.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fathom_sys::clock;
use jiff::{Timestamp, tz::TimeZone};

/// The place that all tests of this process print to.
#[derive(Debug, Clone)]
pub(super) struct Output(Arc<OutputShared>);

#[derive(Debug)]
struct OutputShared {
    place: Mutex<OutputState>,
    timestamps: Option<String>,
    next_test_id: AtomicU64,
}

/// What takes the lines.
#[derive(Debug)]
enum Sink {
    Stdout,
    File(File),
    Nowhere,
}

#[derive(Debug)]
struct OutputState {
    sink: Sink,
    /// The test whose lines go out at once; those of others wait for their end, so that no two are mixed.
    owner: Option<u64>,
}

impl Output {
    /// Standard output, or the end of a file.
    pub(super) fn new(logfile: Option<&Path>, timestamps: Option<&str>) -> io::Result<Self> {
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
        let sink = logfile.map(open).transpose()?.map_or(Sink::Stdout, Sink::File);
        Ok(Self::into(sink, timestamps))
    }

    /// Nothing is printed; the transcripts of tests are kept all the same.
    pub(super) fn nowhere() -> Self {
        Self::into(Sink::Nowhere, None)
    }

    fn into(sink: Sink, timestamps: Option<&str>) -> Self {
        let place = Mutex::new(OutputState { sink, owner: None });
        Self(Arc::new(OutputShared {
            place,
            timestamps: timestamps.map(str::to_owned),
            next_test_id: AtomicU64::new(0),
        }))
    }

    /// Prints a text at once; a reader that has gone is no error of the test.
    pub(super) fn print(&self, text: &str) {
        Self::write(&mut self.0.place.lock().unwrap_or_else(PoisonError::into_inner), text);
    }

    fn write(place: &mut OutputState, text: &str) {
        // Nobody is left to be told when the reader has gone.
        let _ = match &mut place.sink {
            Sink::Nowhere => Ok(()),
            Sink::File(file) => file.write_all(text.as_bytes()),
            Sink::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
        };
    }

    fn stamp(&self) -> String {
        let Some(format) = &self.0.timestamps else { return String::new() };
        let now = Timestamp::from_nanosecond(i128::from(clock::wall().0)).unwrap_or_default();
        now.to_zoned(TimeZone::system()).strftime(format).to_string()
    }

    /// The lines of one more test.
    pub(super) fn start_test(&self, title: Option<&str>) -> TestOutput {
        let id = self.0.next_test_id.fetch_add(1, Ordering::Relaxed);
        let title = title.map(|title| format!("{title}:  ")).unwrap_or_default();
        TestOutput { output: self.clone(), id, title, waiting: String::new(), transcript: String::new() }
    }
}

/// The lines of one test.
#[derive(Debug)]
pub(super) struct TestOutput {
    output: Output,
    id: u64,
    title: String,
    waiting: String,
    /// All of it without titles, for a client that asks for it.
    pub(super) transcript: String,
}

impl TestOutput {
    /// Prints lines, or keeps them while another test has the place.
    pub(super) fn print(&mut self, lines: &[String]) {
        for line in lines {
            self.transcript.push_str(line);
            self.transcript.push('\n');
            let stamp = self.output.stamp();
            self.waiting.extend([stamp.as_str(), &self.title, line, "\n"]);
        }
        let mut place = self.output.0.place.lock().unwrap_or_else(PoisonError::into_inner);
        if *place.owner.get_or_insert(self.id) == self.id {
            Output::write(&mut place, &std::mem::take(&mut self.waiting));
        }
    }
}

impl Drop for TestOutput {
    fn drop(&mut self) {
        let mut place = self.output.0.place.lock().unwrap_or_else(PoisonError::into_inner);
        Output::write(&mut place, &std::mem::take(&mut self.waiting));
        if place.owner == Some(self.id) {
            place.owner = None;
        }
    }
}
