//! HTTP archives (HAR 1.2), as browsers and proxies write them.
//!
//! Entries become requests in the order in which they began, pages become transactions, and times without network traffic become
//! think times. The engine handles what a browser adds itself: `Host`, lengths, connections, cache conditions, and cookies that
//! the server set earlier in the same recording.

use std::collections::{HashMap, HashSet};

use data_encoding::BASE64;
use fathom_http::url::{authority_at, split_origin};
use fathom_model::units::Nanos;
use jiff::Timestamp;
use serde::Deserialize;

use super::{
    Assets, Error,
    import_tree::{
        CookieHandling, FormPart, FormPartContent, ImportAction, ImportNote, ImportText, ImportTree, ImportedBody,
        ImportedExpect, ImportedRequest, ImportedUser, RedirectHandling, ThinkTime,
    },
};

/// A shorter pause is the browser's processing time, not a person's reading time.
const THINK_MIN: Nanos = Nanos::from_millis(500);
/// People do not wait to the millisecond, and round numbers are easier to read.
const THINK_STEP: Nanos = Nanos::from_millis(100);

/// Headers that describe one connection or the browser's cache.
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
];

/// The browser's names for resources that a page only displays.
const ASSET_TYPES: &[&str] = &["image", "font", "stylesheet", "script", "media", "manifest", "texttrack"];
/// The same by the media type of the answer.
const ASSET_MEDIA: &[&str] =
    &["image/", "font/", "audio/", "video/", "text/css", "text/javascript", "application/javascript"];
/// The same by the end of the path, for recordings without other information.
const ASSET_ENDINGS: &[&str] = &[
    "css", "js", "mjs", "map", "png", "jpg", "jpeg", "gif", "svg", "webp", "avif", "ico", "woff", "woff2", "ttf",
    "otf", "mp4", "webm", "mp3",
];

#[derive(Debug, Deserialize)]
struct HarArchive {
    log: HarLog,
}

#[derive(Debug, Deserialize)]
struct HarLog {
    #[serde(default, deserialize_with = "nullable")]
    pages: Vec<HarPage>,
    entries: Vec<HarEntry>,
}

#[derive(Debug, Deserialize)]
struct HarPage {
    id: String,
    #[serde(default, deserialize_with = "nullable")]
    title: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarEntry {
    pageref: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    started_date_time: String,
    /// Milliseconds; browsers write -1 for unknown.
    time: Option<f64>,
    request: HarRequest,
    /// Some tools omit it: they only record what to request.
    response: Option<HarResponse>,
    #[serde(rename = "_resourceType")]
    resource_type: Option<String>,
    #[serde(rename = "_fromCache")]
    from_cache: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarRequest {
    method: String,
    url: String,
    #[serde(default, deserialize_with = "nullable")]
    headers: Vec<HarPair>,
    post_data: Option<PostData>,
    /// -1 for unknown.
    #[serde(default, deserialize_with = "nullable")]
    body_size: i64,
}

#[derive(Debug, Clone, Deserialize)]
struct HarPair {
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PostData {
    #[serde(default, deserialize_with = "nullable")]
    mime_type: String,
    text: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    params: Vec<Param>,
    #[serde(alias = "_encoding")]
    encoding: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Param {
    name: String,
    value: Option<String>,
    file_name: Option<String>,
    content_type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarResponse {
    /// Some tools write a negative number for a missing answer.
    #[serde(default, deserialize_with = "nullable")]
    status: i32,
    #[serde(default, deserialize_with = "nullable")]
    headers: Vec<HarPair>,
    #[serde(rename = "redirectURL")]
    redirect_url: Option<String>,
    content: Option<HarContent>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarContent {
    #[serde(default, deserialize_with = "nullable")]
    mime_type: String,
}

/// Tools write null as well as nothing for unknown values.
fn nullable<'de, T: Default + Deserialize<'de>, D: serde::Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl HarEntry {
    /// The status of its answer, if it is known.
    fn status(&self) -> Option<i32> {
        self.response.as_ref().map(|response| response.status)
    }

    /// The values of a header of its answer.
    fn answer_header(&self, name: &str) -> impl Iterator<Item = &str> {
        let headers = self.response.iter().flat_map(|response| &response.headers);
        headers.filter(move |pair| pair.name.eq_ignore_ascii_case(name)).map(|pair| pair.value.as_str())
    }
}

/// Reads one archive as one user that repeats the recording.
///
/// # Errors
/// The text is not a HAR.
pub fn read(text: &str, assets: Assets) -> Result<ImportTree, Error> {
    let archive: HarArchive = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(Error::Har)?;
    let mut entries: Vec<TimedEntry> =
        archive.log.entries.into_iter().enumerate().map(|(idx, entry)| TimedEntry::new(idx, entry)).collect();
    // Files are usually almost sorted. If times are missing, the order of the file is kept.
    if entries.iter().all(|entry| entry.begin.is_some()) {
        entries.sort_by_key(|entry| entry.begin);
    }
    let mut reader = HarReader { assets, ..HarReader::default() };
    reader.read(entries);
    let mut builder = ImportTree::default();
    let cookies = if reader.jar.is_empty() { CookieHandling::Ignored } else { CookieHandling::Kept };
    let mut acts = transactions(reader.steps, &archive.log.pages);
    acts.extend(reader.left_out.into_iter().map(ImportAction::LeftOut));
    builder.kinds.push(ImportedUser { name: "recorded".to_owned(), cookies, acts, ..ImportedUser::default() });
    Ok(builder)
}

/// An entry with its times, if they can be parsed.
struct TimedEntry {
    idx: usize,
    entry: HarEntry,
    begin: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl TimedEntry {
    fn new(idx: usize, entry: HarEntry) -> Self {
        let begin: Option<Timestamp> = entry.started_date_time.parse().ok();
        // A day is longer than any answer, and keeps the sum in range.
        let millis = entry.time.unwrap_or(0.0).clamp(0.0, 86_400_000.0);
        #[expect(clippy::cast_possible_truncation, reason = "it was clamped to a day")]
        let took = jiff::SignedDuration::from_millis(millis as i64);
        let end = begin.and_then(|begin| begin.checked_add(took).ok());
        Self { idx, entry, begin, end }
    }

    fn place(&self) -> String {
        format!("entry {}, {} {}", self.idx + 1, self.entry.request.method, shortened(&self.entry.request.url))
    }
}

/// A URL shortened to fit on a line.
fn shortened(url: &str) -> String {
    const LEN_MAX: usize = 80;
    match url.char_indices().nth(LEN_MAX) {
        Some((end, _)) => format!("{}…", &url[..end]),
        None => url.to_owned(),
    }
}

/// A request, the page it belongs to and the pause before it.
struct HarStep {
    page: Option<String>,
    pause: Option<Nanos>,
    request: ImportedRequest,
}

#[derive(Default)]
struct HarReader {
    assets: Assets,
    steps: Vec<HarStep>,
    /// The steps whose answers redirected to a URL, the latest last.
    redirects: HashMap<String, Vec<usize>>,
    /// The parts left out since the last request.
    left_out: Vec<ImportNote>,
    /// The names of the cookies that servers have set so far, with their hosts.
    jar: HashMap<String, HashSet<String>>,
    quiet_since: Option<Timestamp>,
}

impl HarReader {
    fn read(&mut self, entries: Vec<TimedEntry>) {
        for entry in entries {
            if let Some(why) = self.reason_left_out(&entry) {
                if !why.is_empty() {
                    self.left_out.push(ImportNote { location: entry.place(), what: why.to_owned() });
                }
                continue;
            }
            let pause = self.pause(&entry);
            let request = self.request(&entry);
            self.remember_cookies(&entry.entry);
            self.add(&entry.entry, pause, request);
        }
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
        if entry.from_cache.is_some() {
            return Some("the browser had it in its cache, and sent nothing: it is left out");
        }
        if entry.status() == Some(101) {
            return Some("a change of the protocol is left out");
        }
        if entry.status().is_some_and(|status| status <= 0) {
            return Some("it was blocked or given up, and has no answer: it is left out");
        }
        (self.assets == Assets::LeftOut && is_asset(entry)).then_some("")
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
            if lower.starts_with(':') || BY_ITSELF.contains(&lower.as_str()) || is_boundary {
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
        left.splice(..0, self.left_out.drain(..));
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

    /// Appends a step, unless it is the target of an earlier redirect.
    fn add(&mut self, entry: &HarEntry, pause: Option<Nanos>, request: ImportedRequest) {
        let url = without_fragment(&entry.request.url);
        let is_safe = matches!(request.method.as_str(), "GET" | "HEAD");
        let led_here = if is_safe { self.redirects.get_mut(url).and_then(Vec::pop) } else { None };
        let idx = led_here.unwrap_or(self.steps.len());
        if let Some(step) = self.steps.get_mut(idx) {
            step.request.redirects = RedirectHandling::Followed;
            step.request.expects = request.expects;
            step.request.left_out.extend(request.left_out);
        } else {
            self.steps.push(HarStep { page: entry.pageref.clone(), pause, request });
        }
        if let Some(to) = redirect_of(entry) {
            self.redirects.entry(to).or_default().push(idx);
        }
    }
}

/// The target of a redirect, as a whole URL.
fn redirect_of(entry: &HarEntry) -> Option<String> {
    let answer = entry.response.as_ref().filter(|answer| matches!(answer.status, 301 | 302 | 303 | 307 | 308))?;
    let told = answer.redirect_url.as_deref().filter(|url| !url.is_empty());
    let to = entry.answer_header("location").next().or(told)?;
    Some(without_fragment(&resolved(&entry.request.url, to)).to_owned())
}

/// Resolves a reference against the URL of its page, in the forms that browsers write (RFC 3986 section 5.3).
fn resolved(base: &str, reference: &str) -> String {
    let (origin, path) = split_origin(base).unwrap_or((base, ""));
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if authority_at(reference).is_some() {
        reference.to_owned()
    } else if let Some(rest) = reference.strip_prefix("//") {
        format!("{}//{rest}", base.split("//").next().unwrap_or_default())
    } else if reference.starts_with('/') {
        format!("{origin}{reference}")
    } else if reference.starts_with('?') {
        format!("{origin}{path}{reference}")
    } else {
        let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
        format!("{origin}{folder}{reference}")
    }
}

fn without_fragment(url: &str) -> &str {
    url.split('#').next().unwrap_or(url)
}

fn host_of(url: &str) -> String {
    let behind = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = behind.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = if host.starts_with('[') { host.split(']').next() } else { host.split(':').next() };
    host.unwrap_or_default().to_ascii_lowercase()
}

fn is_asset(entry: &HarEntry) -> bool {
    if let Some(kind) = entry.resource_type.as_deref() {
        return ASSET_TYPES.contains(&kind);
    }
    let content = entry.response.as_ref().and_then(|response| response.content.as_ref());
    let media = content.map_or("", |content| content.mime_type.as_str());
    let path = without_fragment(&entry.request.url).split('?').next().unwrap_or_default();
    let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending);
    ASSET_MEDIA.iter().any(|asset| media.starts_with(asset))
        || ending.is_some_and(|ending| ASSET_ENDINGS.iter().any(|asset| ending.eq_ignore_ascii_case(asset)))
}

/// The body of a request: the text as sent if it was recorded, otherwise the recorded parameters.
fn body(asked: &HarRequest) -> (ImportedBody, Vec<ImportNote>) {
    let note = |what: &str| vec![ImportNote { location: String::new(), what: what.to_owned() }];
    let Some(data) = &asked.post_data else {
        let header = |name: &str| asked.headers.iter().find(|pair| pair.name.eq_ignore_ascii_case(name));
        let is_long = header("content-length").is_some_and(|pair| pair.value.trim() != "0");
        // Browsers do not record files, and then omit the whole body.
        let is_form = header("content-type").is_some_and(|pair| pair.value.starts_with("multipart/"));
        let is_lost = asked.body_size > 0 || is_long || is_form;
        return (
            ImportedBody::None,
            if is_lost { note("its body was not recorded: it is sent without one") } else { Vec::new() },
        );
    };
    let multipart = data.mime_type.to_ascii_lowercase().starts_with("multipart/form-data");
    if let Some(text) = data.text.as_deref().filter(|text| !text.is_empty()) {
        if data.encoding.as_deref() == Some("base64") {
            return match BASE64.decode(text.trim().as_bytes()) {
                Ok(bytes) => match String::from_utf8(bytes) {
                    Ok(text) => (ImportedBody::Text(ImportText::literal(text)), Vec::new()),
                    Err(error) => (ImportedBody::Bytes(error.into_bytes()), Vec::new()),
                },
                Err(_) => (ImportedBody::None, note("the body is not valid base64: left out")),
            };
        }
        if multipart {
            return match parts_of(text, &data.mime_type) {
                Some(parts) => files_of(parts),
                None => (ImportedBody::Text(ImportText::literal(text)), Vec::new()),
            };
        }
        return (ImportedBody::Text(ImportText::literal(text)), Vec::new());
    }
    if data.params.is_empty() {
        return (ImportedBody::None, Vec::new());
    }
    if multipart {
        return files_of(data.params.iter().map(part_of).collect());
    }
    // The names and values of a HAR are decoded; some tools leave them encoded.
    let fields = data.params.iter().map(|param| (param.name.as_str(), param.value.as_deref().unwrap_or_default()));
    (
        ImportedBody::Form(
            fields.map(|(name, value)| (ImportText::literal(name), ImportText::literal(value))).collect(),
        ),
        Vec::new(),
    )
}

fn part_of(param: &Param) -> FormPart {
    let value = ImportText::literal(param.value.clone().unwrap_or_default());
    FormPart {
        name: ImportText::literal(&*param.name),
        content: FormPartContent::Text(value),
        media_type: param.content_type.clone().filter(|media| !media.is_empty()),
        file_name: param.file_name.clone().filter(|name| !name.is_empty()).map(ImportText::literal),
    }
}

/// Notes which parts were files, because browsers do not record their content.
fn files_of(mut parts: Vec<FormPart>) -> (ImportedBody, Vec<ImportNote>) {
    let mut notes = Vec::new();
    for part in &mut parts {
        if let Some(file) = part.file_name.clone()
            && matches!(&part.content, FormPartContent::Text(text) if text.is_empty())
        {
            notes.push(ImportNote {
                location: String::new(),
                what: format!("the content of the file {file} is not recorded: put the file next to the scenario"),
            });
            part.content = FormPartContent::File(file);
        }
    }
    (ImportedBody::Multipart(parts), notes)
}

/// Splits a body of `multipart/form-data` into parts (RFC 7578).
fn parts_of(text: &str, media_type: &str) -> Option<Vec<FormPart>> {
    let boundary = media_type.split(';').find_map(|piece| piece.trim().strip_prefix("boundary="))?.trim_matches('"');
    let delimiter = format!("--{boundary}");
    let mut pieces = text.split(delimiter.as_str());
    pieces.next().filter(|before| before.is_empty())?;
    let mut parts = Vec::new();
    for piece in pieces {
        if piece.starts_with("--") {
            return Some(parts);
        }
        let (head, content) = piece.strip_prefix("\r\n")?.split_once("\r\n\r\n")?;
        let content = content.strip_suffix("\r\n")?;
        parts.push(part_with(head, content)?);
    }
    None
}

fn part_with(head: &str, content: &str) -> Option<FormPart> {
    let (mut disposition, mut media_type) = (None, None);
    for line in head.split("\r\n") {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "content-disposition" => disposition = Some(value.trim()),
            "content-type" => media_type = Some(value.trim().to_owned()),
            // Another header would be lost, so the body is better kept unchanged.
            _ => return None,
        }
    }
    let quoted = |key: &str| {
        let (_, rest) = disposition?.split_once(&format!(" {key}=\""))?;
        rest.split_once('"').map(|(value, _)| value)
    };
    Some(FormPart {
        name: ImportText::literal(quoted("name")?),
        content: FormPartContent::Text(ImportText::literal(content)),
        media_type,
        file_name: quoted("filename").map(ImportText::literal),
    })
}

/// Groups consecutive requests of one page into a transaction.
fn transactions(steps: Vec<HarStep>, pages: &[HarPage]) -> Vec<ImportAction> {
    let known: HashSet<&str> = pages.iter().map(|page| page.id.as_str()).collect();
    let mut acts: Vec<ImportAction> = Vec::new();
    let mut open: Option<String> = None;
    for step in steps {
        let page = step.page.filter(|id| known.contains(id.as_str()));
        let request = ImportAction::Request(Box::new(step.request));
        let think = step.pause.map(|pause| ImportAction::Think(ThinkTime::Fixed(pause)));
        match (acts.last_mut(), &page) {
            (Some(ImportAction::Transaction { acts, .. }), Some(id)) if open.as_ref() == Some(id) => {
                acts.extend(think);
                acts.push(request);
            }
            (_, Some(id)) => {
                acts.extend(think);
                acts.push(ImportAction::Transaction { name: title(pages, id), acts: vec![request] });
            }
            (_, None) => {
                acts.extend(think);
                acts.push(request);
            }
        }
        open = page;
    }
    acts
}

fn title(pages: &[HarPage], id: &str) -> String {
    let title = pages.iter().find(|page| page.id == id).map_or("", |page| page.title.trim());
    // Chromium uses the URL as the title of a page.
    let short = title.split_once("://").map(|(_, rest)| rest.find('/').map_or("/", |at| &rest[at..]));
    let name = short.unwrap_or(title);
    if name.is_empty() { id.to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests;
