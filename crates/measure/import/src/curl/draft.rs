//! Collects the options of a command line, and builds the requests that it sends.

#![expect(clippy::needless_pass_by_value, reason = "the options of a table all take their value")]

use fathom_http::url::{Url, authority_at, split_origin, without_dots};
use fathom_model::units::Nanos;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::super::{
    encode::{basic, percent, split_once, strip_prefix},
    import_tree::{
        FormPart, FormPartContent, ImportNote, ImportPiece, ImportText, ImportedBody, ImportedExpect, ImportedRequest,
        RedirectHandling,
    },
};

/// The characters that are not encoded in a file name within a URL (RFC 3986 section 2.3).
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// How a data option is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataKind {
    /// `@` names a file, whose line ends are removed.
    Ascii,
    /// `@` names a file.
    Binary,
    /// Taken literally.
    Raw,
    /// Encoded, except for a name before it.
    Encoded,
    /// `@` names a file; the media type is JSON.
    Json,
}

/// The part of a command line up to its end or to `--next`.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of curl by itself")]
pub(super) struct CommandDraft {
    pub(super) line: usize,
    pub(super) method: Option<ImportText>,
    pub(super) urls: Vec<ImportText>,
    pub(super) get: bool,
    pub(super) head: bool,
    pub(super) upload: Option<ImportText>,
    pub(super) user: Option<ImportText>,
    pub(super) bearer: Option<ImportText>,
    pub(super) user_agent: Option<ImportText>,
    pub(super) range: Option<ImportText>,
    pub(super) compressed: bool,
    pub(super) glob_off: bool,
    /// Whether dots in a path are kept.
    pub(super) path_as_is: bool,
    waits_for_challenge: bool,
    pub(super) follow: bool,
    pub(super) insecure: bool,
    pub(super) fail: bool,
    /// The options that a scenario cannot express.
    pub(super) left_out: Vec<ImportNote>,
    headers: Vec<(String, ImportText)>,
    /// Headers that must not be sent.
    removed: Vec<String>,
    cookies: Vec<ImportText>,
    query: Vec<ImportText>,
    data: ImportText,
    data_from: Option<ImportText>,
    has_data: bool,
    json: bool,
    parts: Vec<FormPart>,
    timeout: Option<Nanos>,
    referer: Option<ImportText>,
}

impl CommandDraft {
    /// Creates an empty draft.
    pub(super) fn at(line: usize) -> Self {
        Self { line, ..Self::default() }
    }

    /// Notes that something was left out.
    pub(super) fn leave_out(&mut self, what: impl Into<String>) {
        self.left_out.push(ImportNote { location: format!("line {}", self.line), what: what.into() });
    }

    pub(super) fn header(&mut self, text: ImportText) {
        if let Some(file) = strip_prefix(&text, "@") {
            return self.leave_out(format!("-H @{file}: the headers of a file are not read"));
        }
        let Some((name, value)) = split_once(&text, ':') else {
            return match split_once(&text, ';') {
                Some((name, rest)) if rest.is_empty() => self.headers.push((name.to_string(), ImportText::default())),
                _ => self.leave_out(format!("-H '{text}': not a header")),
            };
        };
        let Some(name) = name.as_literal().map(str::trim) else {
            return self.leave_out(format!("-H '{text}': the name of a header cannot be a variable"));
        };
        let value = trimmed(value);
        if value.is_empty() {
            self.removed.push(name.to_ascii_lowercase());
        } else {
            self.headers.push((name.to_owned(), value));
        }
    }

    pub(super) fn data(&mut self, kind: DataKind, text: ImportText) {
        self.json |= kind == DataKind::Json;
        let joined = self.has_data && kind != DataKind::Json;
        let file = if kind == DataKind::Raw { None } else { strip_prefix(&text, "@") };
        self.has_data = true;
        if file.as_ref().is_some_and(is_stdin) {
            return self.leave_out(format!("data '{text}': standard input is left out: put it into a file"));
        }
        if let Some(file) = file {
            if joined || !self.data.is_empty() || self.data_from.is_some() {
                return self.leave_out(format!("data of the file {file}: it cannot be joined with other data"));
            }
            match kind {
                DataKind::Encoded => {
                    self.leave_out(format!("--data-urlencode @{file}: the content of a file is not encoded"));
                }
                DataKind::Ascii => {
                    self.leave_out(format!(
                        "-d @{file}: curl takes the line ends out of the file, the scenario does not"
                    ));
                    self.data_from = Some(file);
                }
                _ => self.data_from = Some(file),
            }
            return;
        }
        if self.data_from.is_some() {
            return self.leave_out(format!("data '{text}': it cannot be joined with the content of a file"));
        }
        if joined {
            self.data.push_str("&");
        }
        let text = if kind == DataKind::Encoded { self.encoded(text) } else { text };
        self.data.append(text);
    }

    /// Reads `content`, `=content` and `name=content`; `name@file` is not supported.
    fn encoded(&mut self, text: ImportText) -> ImportText {
        let Some((name, content)) = split_once(&text, '=') else {
            if split_once(&text, '@').is_some() {
                self.leave_out(format!("--data-urlencode {text}: the content of a file is not encoded"));
                return ImportText::default();
            }
            return percent(text);
        };
        let mut encoded = name;
        if !encoded.is_empty() {
            encoded.push_str("=");
        }
        encoded.append(percent(content));
        encoded
    }

    pub(super) fn url_query(&mut self, text: ImportText) {
        let text = match strip_prefix(&text, "+") {
            Some(raw) => raw,
            None => self.encoded(text),
        };
        self.query.push(text);
    }

    pub(super) fn form(&mut self, text: ImportText) {
        let Some((name, content)) = split_once(&text, '=') else {
            return self.leave_out(format!("-F '{text}': it has no ="));
        };
        let mut fields = fields(&content).into_iter();
        let first = fields.next().unwrap_or_default();
        let (mut media_type, mut file_name) = (None, None);
        for field in fields {
            match split_once(&field, '=') {
                Some((key, value)) if key.as_literal() == Some("type") => media_type = Some(value.to_string()),
                Some((key, value)) if key.as_literal() == Some("filename") => file_name = Some(value),
                _ => self.leave_out(format!("-F '{text}': '{field}' is not brought over")),
            }
        }
        if ["@", "<"].iter().any(|sign| strip_prefix(&first, sign).as_ref().is_some_and(is_stdin)) {
            return self.leave_out(format!("-F '{text}': standard input is left out: put it into a file"));
        }
        let content = if let Some(file) = strip_prefix(&first, "@") {
            file_name = file_name.or_else(|| Some(base_name(&file)));
            // The default media type of curl for a file, by its extension.
            media_type = media_type.or_else(|| Some(media_type_of(&file.to_string()).to_owned()));
            FormPartContent::File(file)
        } else if let Some(file) = strip_prefix(&first, "<") {
            self.leave_out(format!("-F '{text}': the part is sent as a file, with its name and its media type"));
            FormPartContent::File(file)
        } else {
            FormPartContent::Text(first)
        };
        self.parts.push(FormPart { name, content, media_type, file_name });
    }

    pub(super) fn form_string(&mut self, text: ImportText) {
        match split_once(&text, '=') {
            Some((name, content)) => {
                self.parts.push(FormPart {
                    name,
                    content: FormPartContent::Text(content),
                    media_type: None,
                    file_name: None,
                });
            }
            None => self.leave_out(format!("--form-string '{text}': it has no =")),
        }
    }

    /// An authentication method that sends nothing before the server's challenge.
    pub(super) fn require_challenge(&mut self, option: &str) {
        self.waits_for_challenge = true;
        self.leave_out(format!("--{option}: a scenario has nothing like it: the name and the password are not sent"));
    }

    pub(super) fn cookie(&mut self, text: ImportText) {
        if split_once(&text, '=').is_some() {
            self.cookies.push(text);
        } else if !text.is_empty() {
            self.leave_out(format!("-b {text}: the cookies of a file are not read"));
        }
    }

    pub(super) fn referer(&mut self, text: ImportText) {
        if let Some((referer, rest)) = split_once(&text, ';')
            && rest.as_literal() == Some("auto")
        {
            self.leave_out("-e ';auto': the referer after a redirect is not set");
            self.referer = (!referer.is_empty()).then_some(referer);
        } else {
            self.referer = Some(text);
        }
    }

    pub(super) fn max_time(&mut self, text: ImportText) {
        match text.as_literal().and_then(|seconds| seconds.parse::<f64>().ok()) {
            Some(seconds) if seconds > 0.0 => self.timeout = Some(Nanos::from_secs_f64(seconds)),
            // Zero means no limit.
            Some(_) => self.timeout = None,
            None => self.leave_out(format!("-m {text}: not a time")),
        }
    }

    /// The requests to all URLs, identical otherwise.
    pub(super) fn requests(mut self) -> Vec<ImportedRequest> {
        let urls = std::mem::take(&mut self.urls);
        if self.upload.as_ref().is_some_and(is_stdin) {
            self.leave_out("-T: standard input is left out: put it into a file");
        }
        if urls.is_empty() {
            self.leave_out("a command without a URL");
        }
        urls.into_iter().map(|url| self.request(url)).collect()
    }

    fn request(&mut self, url: ImportText) -> ImportedRequest {
        let mut headers = Vec::new();
        let (url, user) = self.url(url);
        let authorization = self.authorization(user);
        self.default_header(&mut headers, "Authorization", authorization);
        self.default_header(&mut headers, "Range", self.range.as_ref().map(range));
        self.default_header(&mut headers, "User-Agent", self.user_agent.clone().filter(|agent| !agent.is_empty()));
        let accept = if self.json { "application/json" } else { "*/*" };
        self.default_header(&mut headers, "Accept", Some(accept.into()));
        // The header of curl with zlib, brotli and zstd built in, as in distributions.
        self.default_header(&mut headers, "Accept-Encoding", self.compressed.then(|| "deflate, gzip, br, zstd".into()));
        self.default_header(&mut headers, "Referer", self.referer.clone());
        self.default_header(&mut headers, "Cookie", joined(&self.cookies));
        let body = self.body();
        let media_type = match &body {
            ImportedBody::Text(_) | ImportedBody::File(_) if self.upload.is_some() => None,
            ImportedBody::Text(_) | ImportedBody::File(_) if self.json => Some("application/json".into()),
            ImportedBody::Text(_) | ImportedBody::File(_) => Some("application/x-www-form-urlencoded".into()),
            _ => None,
        };
        headers.extend(self.headers.iter().filter(|(name, _)| !made_by_the_engine(name)).cloned());
        self.default_header(&mut headers, "Content-Type", media_type);
        let method = match (&self.method, &body) {
            (Some(method), _) => method.to_string(),
            (None, _) if self.head => "HEAD".to_owned(),
            (None, ImportedBody::None) => "GET".to_owned(),
            (None, _) if self.upload.is_some() => "PUT".to_owned(),
            (None, _) => "POST".to_owned(),
        };
        ImportedRequest {
            method,
            url,
            headers,
            body,
            redirects: if self.follow { RedirectHandling::Followed } else { RedirectHandling::Taken },
            timeout: self.timeout,
            expects: if self.fail { vec![ImportedExpect::StatusClass(vec![2, 3])] } else { Vec::new() },
            left_out: std::mem::take(&mut self.left_out),
            ..ImportedRequest::default()
        }
    }

    /// Sets a header that curl adds by default, unless the command line sets or removes it.
    fn default_header(&self, headers: &mut Vec<(String, ImportText)>, name: &str, value: Option<ImportText>) {
        let told = self.headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        let removed = self.removed.iter().any(|removed| removed.eq_ignore_ascii_case(name));
        if let Some(value) = value
            && !told
            && !removed
        {
            headers.push((name.to_owned(), value));
        }
    }

    fn authorization(&mut self, of_url: Option<ImportText>) -> Option<ImportText> {
        if let Some(token) = &self.bearer {
            return Some(prefixed("Bearer ", token));
        }
        let user = self.user.clone().or(of_url).filter(|_| !self.waits_for_challenge)?;
        let (name, password) = split_once(&user, ':').unwrap_or_else(|| (user.clone(), ImportText::default()));
        let header = basic(&name, &password);
        if header.is_none() {
            self.leave_out(format!("-u {user}: a name and a password with a variable cannot be encoded"));
        }
        header
    }

    fn body(&self) -> ImportedBody {
        if let Some(file) = &self.upload {
            return if is_stdin(file) {
                ImportedBody::Text(ImportText::default())
            } else {
                ImportedBody::File(file.clone())
            };
        }
        if !self.parts.is_empty() {
            return ImportedBody::Multipart(self.parts.clone());
        }
        match &self.data_from {
            _ if !self.has_data || self.get || (self.head && self.method.is_none()) => ImportedBody::None,
            Some(file) => ImportedBody::File(file.clone()),
            None => ImportedBody::Text(self.data.clone()),
        }
    }

    /// Completes a URL as curl does, and removes a name and a password from it.
    fn url(&mut self, url: ImportText) -> (ImportText, Option<ImportText>) {
        let url = if self.glob_off { url } else { self.unglobbed(url) };
        let url = split_once(&url, '#').map_or(url, |(url, _)| url);
        let mut url = match url.0.first() {
            Some(ImportPiece::Literal(first)) if authority_at(first).is_none() => prefixed("http://", &url),
            _ => url,
        };
        if let Some(file) = self.upload.as_ref().filter(|file| !is_stdin(file)) {
            name_upload(&mut url, file);
        }
        if !self.path_as_is
            && let Some(plain) = url.as_literal().and_then(|url| url.parse().ok().map(|_: Url| without_dots_in(url)))
        {
            url = ImportText::literal(plain);
        }
        let user = Self::take_user(&mut url);
        let mut query = self.query.clone();
        if self.get && self.has_data {
            query.push(self.data.clone());
        }
        if let Some(query) = query.into_iter().reduce(|mut all, next| {
            all.push_str("&");
            all.append(next);
            all
        }) {
            url.push_str(if split_once(&url, '?').is_some() { "&" } else { "?" });
            url.append(query);
        }
        (url, user)
    }

    /// Removes `user:password@` from a URL.
    fn take_user(url: &mut ImportText) -> Option<ImportText> {
        let Some(ImportPiece::Literal(first)) = url.0.first_mut() else { return None };
        let begin = authority_at(first)?;
        let end = first[begin..].find(['/', '?']).map_or(first.len(), |end| begin + end);
        let at = begin + first[begin..end].rfind('@')?;
        let user = percent_encoding::percent_decode_str(&first[begin..at]).decode_utf8_lossy().into_owned();
        first.replace_range(begin..=at, "");
        Some(ImportText::literal(user))
    }

    /// Resolves escaped brackets to literal ones; unescaped ones mean several URLs.
    fn unglobbed(&mut self, url: ImportText) -> ImportText {
        let mut globbed = false;
        let url = url.map_literals(|literal| {
            let mut plain = String::with_capacity(literal.len());
            let mut chars = literal.chars().peekable();
            while let Some(char) = chars.next() {
                match char {
                    '\\' => plain.push(chars.next_if(|next| "[]{}".contains(*next)).unwrap_or('\\')),
                    char => plain.push(char),
                }
            }
            plain
        });
        // Only patterns that curl would expand: a range in brackets or alternatives in braces.
        if let Some(text) = url.as_literal() {
            let between = |open, close| {
                text.split_once(open).and_then(|(_, rest): (&str, &str)| rest.split_once(close)).map(|(inner, _)| inner)
            };
            let range = between('[', ']').is_some_and(|inner| inner.contains('-') && !inner.contains(':'));
            globbed = range || between('{', '}').is_some_and(|inner| inner.contains(','));
        }
        if globbed {
            self.leave_out(format!("{url}: several URLs in one are not brought over"));
        }
        url
    }
}

/// Whether the engine creates this header itself, from the URL and the body.
fn made_by_the_engine(name: &str) -> bool {
    ["content-length", "connection", "transfer-encoding", "expect"].iter().any(|made| name.eq_ignore_ascii_case(made))
}

fn trimmed(text: ImportText) -> ImportText {
    let mut trimmed = text;
    if let Some(ImportPiece::Literal(first)) = trimmed.0.first_mut() {
        *first = first.trim_start().to_owned();
    }
    if let Some(ImportPiece::Literal(last)) = trimmed.0.last_mut() {
        *last = last.trim_end().to_owned();
    }
    trimmed.0.retain(|piece| !matches!(piece, ImportPiece::Literal(text) if text.is_empty()));
    trimmed
}

/// Whether curl reads standard input for this name.
fn is_stdin(file: &ImportText) -> bool {
    matches!(file.as_literal(), Some("-" | "."))
}

/// A range as in curl: a number alone is its start.
fn range(told: &ImportText) -> ImportText {
    let mut range = prefixed("bytes=", told);
    if told.as_literal().is_some_and(|told| told.parse::<u64>().is_ok()) {
        range.push_str("-");
    }
    range
}

/// Appends the name of an uploaded file if the path ends without one.
fn name_upload(url: &mut ImportText, file: &ImportText) {
    let ends_without = match url.0.last() {
        Some(ImportPiece::Literal(last)) if last.contains('?') => return,
        Some(ImportPiece::Literal(last)) if last.ends_with('/') => "",
        Some(ImportPiece::Literal(last)) if split_origin(last).is_some_and(|(_, path)| path.is_empty()) => "/",
        _ => return,
    };
    url.push_str(ends_without);
    url.append(base_name(file).map_literals(|name| utf8_percent_encode(name, NAME).to_string()));
}

/// An absolute URL without `.` and `..` in its path.
fn without_dots_in(url: &str) -> String {
    match split_origin(url) {
        Some((origin, path)) if path.starts_with('/') => format!("{origin}{}", without_dots(path)),
        _ => url.to_owned(),
    }
}

fn prefixed(prefix: &str, text: &ImportText) -> ImportText {
    let mut all = ImportText::literal(prefix);
    all.append(text.clone());
    all
}

fn joined(cookies: &[ImportText]) -> Option<ImportText> {
    cookies.iter().cloned().reduce(|mut all, next| {
        all.push_str(";");
        all.append(next);
        all
    })
}

/// Splits at semicolons outside of quotes; curl removes the quotes.
fn fields(content: &ImportText) -> Vec<ImportText> {
    let mut fields = vec![ImportText::default()];
    let mut quoted = false;
    for piece in &content.0 {
        let ImportPiece::Literal(literal) = piece else {
            fields.last_mut().expect("it begins with one").push(piece.clone());
            continue;
        };
        let mut chars = literal.chars();
        while let Some(char) = chars.next() {
            let field = fields.last_mut().expect("it begins with one");
            match char {
                '"' if quoted || field.is_empty() || matches!(field.as_literal(), Some("@" | "<" | "filename=")) => {
                    quoted = !quoted;
                }
                '\\' if quoted => field.push_str(chars.next().unwrap_or('\\').encode_utf8(&mut [0; 4])),
                ';' if !quoted => fields.push(ImportText::default()),
                char => field.push_str(char.encode_utf8(&mut [0; 4])),
            }
        }
    }
    fields
}

fn base_name(file: &ImportText) -> ImportText {
    match file.as_literal() {
        Some(path) => ImportText::literal(path.rsplit('/').next().unwrap_or(path)),
        None => file.clone(),
    }
}

/// The media types that curl knows by the file extension.
fn media_type_of(file: &str) -> &'static str {
    const KNOWN: &[(&str, &str)] = &[
        (".gif", "image/gif"),
        (".jpg", "image/jpeg"),
        (".jpeg", "image/jpeg"),
        (".png", "image/png"),
        (".svg", "image/svg+xml"),
        (".txt", "text/plain"),
        (".htm", "text/html"),
        (".html", "text/html"),
        (".pdf", "application/pdf"),
        (".xml", "application/xml"),
    ];
    let lower = file.to_ascii_lowercase();
    KNOWN.iter().find(|(ending, _)| lower.ends_with(ending)).map_or("application/octet-stream", |(_, known)| known)
}
