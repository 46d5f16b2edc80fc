//! Shows a test as it runs: the text line by line, or the JSON at its end.

use fathom_sys::clock;
use fathom_transport::iperf3::{Beginning, Error, Interval, Outcome, ServerOutput, Stream, Watch};
use jiff::Timestamp;
use serde::Serialize as _;
use serde_json::{Value, json};

use super::{
    json::Document,
    options::{Mark, Options},
    output::Lines,
    text::{End, Style, Text},
};

/// One test on the way to its reader.
pub(super) struct Show {
    style: Style,
    is_json: bool,
    /// Whether each part of the JSON is printed when it is there, in place of all at the end.
    is_stream: bool,
    pub(super) lines: Lines,
    text: Option<Text>,
    pub(super) document: Document,
    has_ended: bool,
}

/// The time as iperf3 writes it.
fn time() -> (String, u64) {
    let secs = clock::wall().0 / 1_000_000_000;
    let now = Timestamp::from_second(i64::try_from(secs).unwrap_or(0)).unwrap_or_default();
    (now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string(), secs)
}

/// A document with tabs, as cJSON prints it.
pub(super) fn printed(document: &Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut bytes, serde_json::ser::PrettyFormatter::with_indent(b"\t"));
    document.serialize(&mut serializer).expect("a document of texts and numbers");
    bytes.push(b'\n');
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Show {
    pub(super) fn new(options: &Options, end: End, lines: Lines) -> Self {
        let file = options.file.clone();
        let style = Style { end, format: options.format, is_verbose: options.marks.has(Mark::Verbose), file };
        Self {
            style,
            is_json: options.marks.has(Mark::Json),
            is_stream: options.marks.has(Mark::JsonStream),
            lines,
            text: None,
            document: Document::new(end, &super::version(), &super::system()).of_file(options.file.clone()),
            has_ended: false,
        }
    }

    /// Prints lines of text; where JSON is wanted there are none.
    pub(super) fn say(&mut self, lines: &[String]) {
        if !self.is_json {
            self.lines.print(lines);
        }
    }

    /// What is told of the time in front of a test.
    pub(super) fn say_time(&mut self) {
        if self.style.is_verbose {
            self.say(&[format!("Time: {}", time().0)]);
        }
    }

    /// Prints the document, which is the last of a test.
    pub(super) fn conclude(&mut self, error: Option<String>) {
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
        let document = printed(&self.document.whole(error));
        self.lines.print(&[document.trim_end().to_owned()]);
    }

    /// One part of the JSON on a line of its own, where that is wanted.
    fn event(&mut self, name: &str, part: &Value) {
        if self.is_stream {
            self.lines.print(&[json!({"event": name, "data": part}).to_string()]);
        }
    }
}

impl Watch for Show {
    fn began(&mut self, beginning: &Beginning, streams: &[Stream]) {
        let (now, secs) = time();
        if self.is_json {
            self.document.began(beginning, streams, (&now, secs));
            let start = self.document.so_far()["start"].take();
            self.event("start", &start);
            return;
        }
        let text = Text::new(self.style.clone(), beginning, streams);
        if self.style.end == End::Server {
            self.say_time();
        }
        self.say(&text.beginning(beginning));
        self.text = Some(text);
    }

    fn interval(&mut self, interval: &Interval) {
        if self.is_json {
            let shown = self.document.interval(interval).clone();
            self.event("interval", &shown);
        } else if let Some(text) = &mut self.text {
            let lines = text.interval(interval);
            self.say(&lines);
        }
    }

    fn ended(&mut self, outcome: &Outcome) {
        if self.is_json {
            self.document.ended(outcome);
        } else if let Some(text) = &self.text {
            let lines = text.ended(outcome);
            self.say(&lines);
        }
    }

    fn output(&mut self) -> Option<ServerOutput> {
        Some(if self.is_json {
            ServerOutput::Json(self.document.so_far())
        } else {
            ServerOutput::Text(self.lines.transcript.clone())
        })
    }

    fn failed(&mut self, error: &Error) {
        if self.is_json {
            self.conclude(Some(error.to_string()));
        } else if self.style.end == End::Server {
            eprintln!("iperf3: {}", said(error));
        }
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        if self.style.end == End::Server {
            self.conclude(None);
        }
    }
}

/// An error as iperf3 begins it.
pub(super) fn said(error: &Error) -> String {
    match error {
        Error::Interrupted | Error::ClientTerminated => error.to_string(),
        _ => format!("error - {error}"),
    }
}
