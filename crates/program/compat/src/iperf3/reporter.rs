//! Shows a running test: the text line by line, or the JSON at its end.

use fathom_interop::iperf3::{Error, Interval, Iperf3Outcome, ServerOutput, Stream, TestObserver, TestStartInfo};
use fathom_sys::clock;
use jiff::Timestamp;
use serde::Serialize as _;
use serde_json::{Value, json};

use fathom_run::exit::Exit;

use super::{
    identity::{self, FAILED},
    json::JsonDocument,
    options::{Flag, Options},
    output::{Output, TestOutput},
    text::{DisplayStyle, ReportSide, TextReport},
};

/// The report of one test.
pub(super) struct TestReporter {
    style: DisplayStyle,
    is_json: bool,
    /// True if each part of the JSON is printed when it is available, instead of everything at the end.
    is_stream: bool,
    pub(super) lines: TestOutput,
    text: Option<TextReport>,
    pub(super) document: JsonDocument,
    has_ended: bool,
}

/// Returns the current time in iperf3's format.
fn time() -> (String, u64) {
    let secs = clock::wall().0 / 1_000_000_000;
    let now = Timestamp::from_second(i64::try_from(secs).unwrap_or(0)).unwrap_or_default();
    (now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(), secs)
}

/// Formats a document with tabs, like cJSON.
pub(super) fn json_text(document: &Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut bytes, serde_json::ser::PrettyFormatter::with_indent(b"\t"));
    document.serialize(&mut serializer).expect("a document of texts and numbers");
    bytes.push(b'\n');
    String::from_utf8_lossy(&bytes).into_owned()
}

impl TestReporter {
    pub(super) fn new(options: &Options, end: ReportSide, lines: TestOutput) -> Self {
        let file = options.file.clone();
        let style = DisplayStyle { end, format: options.format, is_verbose: options.flags.has(Flag::Verbose), file };
        Self {
            style,
            is_json: options.flags.has(Flag::Json),
            is_stream: options.flags.has(Flag::JsonStream),
            lines,
            text: None,
            document: JsonDocument::new(end, &identity::version(), &identity::system()).with_file(options.file.clone()),
            has_ended: false,
        }
    }

    /// Prints lines of text, unless JSON was requested.
    pub(super) fn print(&mut self, lines: &[String]) {
        if !self.is_json {
            self.lines.print(lines);
        }
    }

    /// Prints the time before a test.
    pub(super) fn print_time(&mut self) {
        if self.style.is_verbose {
            self.print(&[format!("Time: {}", time().0)]);
        }
    }

    /// Prints the document, which ends the output of a test.
    pub(super) fn finish(&mut self, error: Option<String>) {
        if !self.is_json || self.has_ended {
            return;
        }
        self.has_ended = true;
        if self.is_stream {
            let last = self.document.last_events(error);
            for (name, part) in last {
                self.event(name, &part);
            }
            return;
        }
        let document = json_text(&self.document.complete(error));
        self.lines.print(&[document.trim_end().to_owned()]);
    }

    /// Prints one part of the JSON on a line of its own, if requested.
    fn event(&mut self, name: &str, part: &Value) {
        if self.is_stream {
            self.lines.print(&[json!({"event": name, "data": part}).to_string()]);
        }
    }
}

impl TestObserver for TestReporter {
    fn on_start(&mut self, beginning: &TestStartInfo, streams: &[Stream]) {
        let (now, secs) = time();
        if self.is_json {
            self.document.begin(beginning, streams, &now, secs);
            let start = self.document.partial()["start"].take();
            self.event("start", &start);
            return;
        }
        let text = TextReport::new(self.style.clone(), beginning, streams);
        if self.style.end == ReportSide::Server {
            self.print_time();
        }
        self.print(&text.beginning(beginning));
        self.text = Some(text);
    }

    fn on_interval(&mut self, interval: &Interval) {
        if self.is_json {
            let shown = self.document.interval(interval).clone();
            self.event("interval", &shown);
        } else if let Some(text) = &mut self.text {
            let lines = text.interval(interval);
            self.print(&lines);
        }
    }

    fn on_end(&mut self, outcome: &Iperf3Outcome) {
        if self.is_json {
            self.document.end(outcome);
        } else if let Some(text) = &self.text {
            let lines = text.ended(outcome);
            self.print(&lines);
        }
    }

    fn take_output(&mut self) -> Option<ServerOutput> {
        Some(if self.is_json {
            ServerOutput::Json(self.document.partial())
        } else {
            ServerOutput::Text(self.lines.transcript.clone())
        })
    }

    fn on_failure(&mut self, error: &Error) {
        if self.is_json {
            self.finish(Some(error.to_string()));
        } else if self.style.end == ReportSide::Server {
            eprintln!("iperf3: {}", error_text(error));
        }
    }
}

impl Drop for TestReporter {
    fn drop(&mut self) {
        if self.style.end == ReportSide::Server {
            self.finish(None);
        }
    }
}

/// Formats an error like iperf3.
pub(super) fn error_text(error: &Error) -> String {
    match error {
        Error::Interrupted | Error::ClientTerminated => error.to_string(),
        _ => format!("error - {error}"),
    }
}

/// What goes wrong before anything is measured, as iperf3 says it.
pub(super) fn refuse(options: &Options, said: &str, hint: Option<&str>) -> anyhow::Result<Exit> {
    if options.flags.has(Flag::Json) {
        let lines = Output::new(options.logfile.as_deref(), None)?.start_test(None);
        TestReporter::new(options, ReportSide::Client, lines).finish(Some(said.to_owned()));
        return Ok(FAILED);
    }
    eprintln!("iperf3: error - {said}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    Ok(FAILED)
}
