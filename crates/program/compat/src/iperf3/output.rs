//! The destination of test output: standard output or a file, with an optional title and time before each line.

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

/// The shared output of all tests in this process.
#[derive(Debug, Clone)]
pub(super) struct Output(Arc<OutputShared>);

#[derive(Debug)]
struct OutputShared {
    place: Mutex<OutputState>,
    timestamps: Option<String>,
    next_test_id: AtomicU64,
}

/// The destination of the lines.
#[derive(Debug)]
enum Sink {
    Stdout,
    File(File),
    Nowhere,
}

#[derive(Debug)]
struct OutputState {
    sink: Sink,
    /// The test whose lines are printed immediately. Other tests print their lines at their end, so that tests do not mix.
    owner: Option<u64>,
}

impl Output {
    /// Opens standard output, or a file for appending.
    pub(super) fn new(logfile: Option<&Path>, timestamps: Option<&str>) -> io::Result<Self> {
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
        let sink = logfile.map(open).transpose()?.map_or(Sink::Stdout, Sink::File);
        Ok(Self::into(sink, timestamps))
    }

    /// Creates an output that prints nothing. The transcripts of tests are still kept.
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

    /// Prints a text immediately. A closed reader is not an error of the test.
    pub(super) fn print(&self, text: &str) {
        Self::write(&mut self.0.place.lock().unwrap_or_else(PoisonError::into_inner), text);
    }

    fn write(place: &mut OutputState, text: &str) {
        // If the reader is gone, there is nobody to report the error to.
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

    /// Creates the output of another test.
    pub(super) fn start_test(&self, title: Option<&str>) -> TestOutput {
        let id = self.0.next_test_id.fetch_add(1, Ordering::Relaxed);
        let title = title.map(|title| format!("{title}:  ")).unwrap_or_default();
        TestOutput { output: self.clone(), id, title, waiting: String::new(), transcript: String::new() }
    }
}

/// The output of one test.
#[derive(Debug)]
pub(super) struct TestOutput {
    output: Output,
    id: u64,
    title: String,
    waiting: String,
    /// All lines without titles, for a client that requests them.
    pub(super) transcript: String,
}

impl TestOutput {
    /// Prints lines, or keeps them while another test owns the output.
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
