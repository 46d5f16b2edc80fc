//! Makes steps of entries: which are kept, what follows a redirect, which cookies are the server's.

use std::collections::{HashMap, HashSet};

use data_encoding::BASE64;
use fathom_model::units::Nanos;
use jiff::Timestamp;

use super::{
    super::{
        Assets, RecordingFilter,
        import_tree::{ImportNote, ImportText, ImportedBody, ImportedExpect, ImportedRequest},
    },
    archive::{HarEntry, HarPair, HarResponse},
    asset::is_asset,
    body::body,
    step::{RecordedAnswer, RecordedExchange, RecordedStep},
    url::{host_of, redirect_of, without_fragment},
};

/// A shorter pause is the browser's processing time, not a person's reading time.
const THINK_MIN: Nanos = Nanos::from_millis(500);
/// People do not wait to the millisecond, and round numbers are easier to read.
const THINK_STEP: Nanos = Nanos::from_millis(100);

/// Headers that describe one connection, the browser's cache or its preferences.
const BY_ITSELF: &[&str] = &[
    "host",
    "content-length",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "if-none-match",
    "if-modified-since",
    "if-match",
    "if-unmodified-since",
    "if-range",
    "upgrade-insecure-requests",
    "priority",
];
/// What a browser says about itself and why it asks (Fetch Metadata, client hints).
const ABOUT_ITSELF: &str = "sec-";

/// An entry with its times, if they can be parsed.
pub(super) struct TimedEntry {
    idx: usize,
    pub(super) entry: HarEntry,
    pub(super) begin: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl TimedEntry {
    pub(super) fn new(idx: usize, entry: HarEntry) -> Self {
        let begin: Option<Timestamp> = entry.started_date_time.parse().ok();
        // A day is longer than any answer, and keeps the sum in range.
        let millis = entry.time.unwrap_or(0.0).clamp(0.0, 86_400_000.0);
        #[expect(clippy::cast_possible_truncation, reason = "it was clamped to a day")]
        let took = jiff::SignedDuration::from_millis(millis as i64);
        let end = begin.and_then(|begin| begin.checked_add(took).ok());
        Self { idx, entry, begin, end }
    }

    pub(super) fn place(&self) -> String {
        format!("entry {}, {} {}", self.idx + 1, self.entry.request.method, shortened(&self.entry.request.url))
    }
}

/// A URL shortened to fit on a line, without its query, which may have secrets.
fn shortened(url: &str) -> String {
    const LEN_MAX: usize = 80;
    let (path, mark) = url.split_once('?').map_or((url, ""), |(path, _)| (path, "?…"));
    match path.char_indices().nth(LEN_MAX) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => format!("{path}{mark}"),
    }
}

/// Entries of one host that were left out for one reason.
struct LeftOutEntries {
    /// Of the first one.
    place: String,
    host: String,
    why: &'static str,
    n_more: usize,
}

impl LeftOutEntries {
    fn note(self) -> ImportNote {
        let Self { place, host, why, n_more } = self;
        let what = match n_more {
            0 => why.to_owned(),
            n => format!("{why}, and {n} more to {host}"),
        };
        ImportNote { location: place, what }
    }
}

#[derive(Default)]
pub(super) struct HarReader {
    filter: RecordingFilter,
    pub(super) steps: Vec<RecordedStep>,
    /// The steps whose answers redirected to a URL, the latest last.
    redirects: HashMap<String, Vec<usize>>,
    /// The parts left out since the last request.
    left_out: Vec<LeftOutEntries>,
    /// The names of the cookies that servers have set so far, with their hosts.
    pub(super) jar: HashMap<String, HashSet<String>>,
    quiet_since: Option<Timestamp>,
}

impl HarReader {
    pub(super) fn new(filter: &RecordingFilter) -> Self {
        Self { filter: filter.clone(), ..Self::default() }
    }

    pub(super) fn read(&mut self, entries: Vec<TimedEntry>) {
        for entry in entries {
            if let Some(why) = self.reason_left_out(&entry) {
                if !why.is_empty() {
                    self.leave_out(&entry, why);
                }
                continue;
            }
            let pause = self.pause(&entry);
            let request = self.request(&entry);
            self.remember_cookies(&entry.entry);
            self.add(entry, pause, request);
        }
    }

    /// Notes an entry; those of one host with one reason become one note.
    fn leave_out(&mut self, entry: &TimedEntry, why: &'static str) {
        let host = host_of(&entry.entry.request.url);
        let known = self.left_out.iter_mut().find(|group| group.why == why && group.host == host);
        match known {
            Some(group) => group.n_more += 1,
            None => self.left_out.push(LeftOutEntries { place: entry.place(), host, why, n_more: 0 }),
        }
    }

    /// The notes since the last request.
    pub(super) fn take_left_out(&mut self) -> Vec<ImportNote> {
        self.left_out.drain(..).map(LeftOutEntries::note).collect()
    }

    /// Why an entry does not become a request; empty if no note is needed.
    fn reason_left_out(&self, timed: &TimedEntry) -> Option<&'static str> {
        let entry = &timed.entry;
        let scheme = entry.request.url.split(':').next().unwrap_or_default().to_ascii_lowercase();
        match scheme.as_str() {
            "http" | "https" => {}
            // They never leave the browser.
            "data" | "blob" | "about" | "chrome-extension" | "moz-extension" | "file" => return Some(""),
            "ws" | "wss" => return Some("a WebSocket is left out"),
            _ => return Some("neither http nor https: it is left out"),
        }
        if !self.filter.takes(&entry.request.url) {
            return Some("");
        }
        if entry.from_cache.is_some() {
            return Some("the browser had it in its cache, and sent nothing: it is left out");
        }
        if entry.status() == Some(101) {
            return Some("a change of the protocol is left out");
        }
        let content = entry.response.as_ref().and_then(|response| response.content.as_ref());
        if content.is_some_and(|content| content.mime_type.starts_with("text/event-stream")) {
            return Some("a stream of events has no end that users could wait for: it is left out");
        }
        if entry.status().is_some_and(|status| status <= 0) {
            return Some("it was blocked or given up, and has no answer: it is left out");
        }
        (self.filter.assets == Assets::LeftOut && is_asset(entry)).then_some("")
    }

    /// The time without any traffic before this request.
    fn pause(&mut self, timed: &TimedEntry) -> Option<Nanos> {
        let quiet_since = self.quiet_since;
        self.quiet_since = self.quiet_since.max(timed.end);
        let nanos = timed.begin?.duration_since(quiet_since?).as_nanos();
        let pause = Nanos(u64::try_from(nanos).ok()?);
        let rounded = Nanos((pause.0 + THINK_STEP.0 / 2) / THINK_STEP.0 * THINK_STEP.0);
        (pause >= THINK_MIN).then_some(rounded)
    }

    fn request(&mut self, timed: &TimedEntry) -> ImportedRequest {
        let asked = &timed.entry.request;
        let (body, mut left) = body(asked);
        let own_type = matches!(body, ImportedBody::Multipart(_));
        let mut headers = Vec::new();
        for HarPair { name, value } in &asked.headers {
            let lower = name.to_ascii_lowercase();
            // If a form is rebuilt, or not sent at all, its boundary does not apply any more.
            let is_boundary = lower == "content-type"
                && (own_type || (body == ImportedBody::None && value.starts_with("multipart/")));
            let is_own = lower.starts_with(':') || lower.starts_with(ABOUT_ITSELF);
            if is_own || BY_ITSELF.contains(&lower.as_str()) || is_boundary {
                continue;
            }
            let value = if lower == "cookie" { self.foreign_cookies(&asked.url, value) } else { value.clone() };
            if lower != "cookie" || !value.is_empty() {
                headers.push((name.clone(), ImportText::literal(value)));
            }
        }
        for note in &mut left {
            note.location = timed.place();
        }
        left.splice(..0, self.take_left_out());
        // Without cache conditions the server sends the whole body.
        let status = timed.entry.status().map(|status| if status == 304 { 200 } else { status });
        ImportedRequest {
            method: asked.method.clone(),
            url: ImportText::literal(without_fragment(&asked.url)),
            headers,
            body,
            expects: status
                .and_then(|status| u16::try_from(status).ok())
                .into_iter()
                .filter(|status| (100..=599).contains(status))
                .map(|status| ImportedExpect::Status(vec![status]))
                .collect(),
            left_out: left,
            ..ImportedRequest::default()
        }
    }

    /// The cookies of a header that no answer of this recording has set.
    fn foreign_cookies(&self, url: &str, header: &str) -> String {
        let host = host_of(url);
        let known = |name: &str| {
            self.jar.get(name).into_iter().flatten().any(|set_by| {
                host == *set_by || host.strip_suffix(set_by.as_str()).is_some_and(|rest| rest.ends_with('.'))
            })
        };
        let pairs = header.split(';').map(str::trim).filter(|pair| !pair.is_empty());
        let foreign: Vec<_> = pairs.filter(|pair| !known(pair.split('=').next().unwrap_or_default())).collect();
        foreign.join("; ")
    }

    fn remember_cookies(&mut self, entry: &HarEntry) {
        // Chromium writes several in one value, one per line.
        for cookie in entry.answer_header("set-cookie").flat_map(|value| value.split('\n')) {
            let mut pieces = cookie.split(';');
            let Some((name, _)) = pieces.next().and_then(|pair| pair.split_once('=')) else { continue };
            let domain = pieces.filter_map(|piece| piece.split_once('=')).find_map(|(key, value)| {
                key.trim()
                    .eq_ignore_ascii_case("domain")
                    .then(|| value.trim().trim_start_matches('.').to_ascii_lowercase())
            });
            let host = domain.unwrap_or_else(|| host_of(&entry.request.url));
            self.jar.entry(name.trim().to_owned()).or_default().insert(host);
        }
    }

    /// Appends a step, unless the entry is the target of an earlier redirect.
    fn add(&mut self, timed: TimedEntry, pause: Option<Nanos>, request: ImportedRequest) {
        let url = without_fragment(&timed.entry.request.url);
        let is_safe = matches!(request.method.as_str(), "GET" | "HEAD");
        let led_here = if is_safe { self.redirects.get_mut(url).and_then(Vec::pop) } else { None };
        let idx = led_here.unwrap_or(self.steps.len());
        if let Some(to) = redirect_of(&timed.entry) {
            self.redirects.entry(to).or_default().push(idx);
        }
        let is_asset = is_asset(&timed.entry);
        let (place, begin, page) = (timed.place(), timed.begin, timed.entry.pageref.clone());
        let exchange = RecordedExchange { place, begin, request, answer: timed.entry.response.map(answer) };
        match self.steps.get_mut(idx) {
            Some(step) => step.exchanges.push(exchange),
            None => self.steps.push(RecordedStep { exchanges: vec![exchange], is_asset, page, pause }),
        }
    }
}

/// The answer as HTTP/1.1 would carry it.
fn answer(recorded: HarResponse) -> RecordedAnswer {
    use std::fmt::Write as _;
    let status = u16::try_from(recorded.status).unwrap_or_default();
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for HarPair { name, value } in recorded.headers.iter().filter(|pair| !pair.name.starts_with(':')) {
        // Chromium writes several cookies in one value, one per line.
        for line in value.lines() {
            let _ = write!(head, "{name}: {line}\r\n");
        }
    }
    head.push_str("\r\n");
    let content = recorded.content.map(|content| (content.text.unwrap_or_default(), content.encoding));
    let (text, encoding) = content.unwrap_or_default();
    // What is not valid base64 is an answer without a body, in which nothing is found.
    let is_base64 = encoding.as_deref() == Some("base64");
    let body = if is_base64 { BASE64.decode(text.trim().as_bytes()).unwrap_or_default() } else { text.into_bytes() };
    RecordedAnswer { status, head, body }
}
