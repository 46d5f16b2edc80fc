//! Parses a step: its request, the expectations, and the values to take.

use super::{
    super::{
        ast::{
            Between, BodyContent, BodyDef, ExpectClause, ExpectedValue, FormField, FormFieldValue, HeaderDef,
            MatchPick, Name, SearchArea, Span, StatusPattern, StepDef, TakeClause, TakeSource, Template, TemplatePiece,
            TestSubject, TimeoutLine,
        },
        blocks::LineNode,
        diagnostic::{BoxedDiagnostic, Diagnostic, nearest},
    },
    LineContext, Parser,
    cursor::Cursor,
    file::{clause, equals, variable_name},
    flow::test,
    is_method, json,
    template::{TextEnd, push_text},
    unknown,
};
use fathom_http::url::Url;

/// Methods that are often written in lower case by mistake.
const METHODS: [&str; 7] = ["get", "post", "put", "delete", "patch", "head", "options"];

impl Parser<'_> {
    pub(super) fn step(&mut self, node: &LineNode) -> Option<StepDef> {
        let name = self.line(node, |cursor| cursor.words("a name"));
        let Some((request, rest)) = node.children.split_first() else {
            let fault = Diagnostic::error(node.span, "this step asks nothing");
            self.fault(fault.fix("put its request below it, indented: `GET /`"));
            return None;
        };
        let request = self.request(request);
        let (method, url) = request.unzip();
        let mut step = StepDef {
            span: node.span,
            name: name.clone().unwrap_or_default(),
            method: method.clone().unwrap_or_default(),
            url: url.unwrap_or_default(),
            headers: Vec::new(),
            body: None,
            expects: Vec::new(),
            takes: Vec::new(),
            redirects: None,
            timeout: None,
            on_failure: None,
        };
        for child in rest {
            self.step_line(child, &mut step);
        }
        (name.is_some() && method.is_some()).then_some(step)
    }

    /// `GET /path`
    fn request(&mut self, node: &LineNode) -> Option<(Name, Template)> {
        let (word, _) = self.begin(node);
        if !is_method(&word.text) {
            let lower = METHODS.contains(&word.text.to_lowercase().as_str());
            let fault = if lower {
                let upper = word.text.to_uppercase();
                Diagnostic::error(word.span, "methods have capital letters").fix(format!("write `{upper}`"))
            } else {
                Diagnostic::error(word.span, "a step begins with its request").fix("such as `GET /` above this line")
            };
            self.fault(fault);
            return None;
        }
        let url = self.leaf(node, |cursor| {
            if cursor.is_done() {
                return Err(cursor.missing("a path or a URL"));
            }
            let url = cursor.template(TextEnd::Comment)?;
            check_url(&url)?;
            Ok(url)
        });
        url.map(|url| (word, url))
    }

    fn step_line(&mut self, node: &LineNode, step: &mut StepDef) {
        if let Some(header) = self.header(node) {
            step.headers.push(header);
            return;
        }
        let (word, _) = self.begin(node);
        match word.text.as_str() {
            "body" | "json" | "form" | "multipart" => {
                let content = match word.text.as_str() {
                    "form" | "multipart" => self.fields(node, &word),
                    _ => self.text_body(node, &word),
                };
                let body = content.map(|content| BodyDef { span: node.span, content });
                self.once(&mut step.body, body, |body| body.span);
            }
            "expect" => step.expects.extend(self.leaf(node, |cursor| expect(cursor, node.span))),
            "take" => step.takes.extend(self.leaf(node, |cursor| take(cursor, node.span))),
            "redirects" => {
                let redirects = self.redirects(node);
                self.once(&mut step.redirects, redirects, |redirects| redirects.span);
            }
            "timeout" => {
                let timeout =
                    self.leaf(node, |cursor| Ok(TimeoutLine { span: node.span, after: cursor.time("a time")? }));
                self.once(&mut step.timeout, timeout, |timeout| timeout.span);
            }
            "on" => {
                let on_failure = self.on_failure(node);
                self.once(&mut step.on_failure, on_failure, |way| way.span);
            }
            text if is_method(text) => {
                let fault = Diagnostic::error(word.span, "a step has one request");
                self.fault(fault.fix("begin another step with `step NAME`"));
            }
            _ => self.fault(*unknown(&word, LineContext::Step)),
        }
    }

    /// `Name: value`, to the end of the line; `None` if the line has another form.
    pub(super) fn header(&mut self, node: &LineNode) -> Option<HeaderDef> {
        const SIGNS: &[u8] = b"!#$%&'*+-.^_`|~";
        let text = &self.text[node.span.start..node.span.end];
        let colon = text.bytes().position(|byte| !byte.is_ascii_alphanumeric() && !SIGNS.contains(&byte))?;
        if colon == 0 || text.as_bytes()[colon] != b':' {
            return None;
        }
        self.childless(node);
        let name = Name { text: text[..colon].to_owned(), span: (node.span.start..node.span.start + colon).into() };
        let mut cursor = Cursor::new(self.text, node.span);
        cursor.at = node.span.end - text[colon + 1..].trim_start().len();
        match cursor.template(TextEnd::Line) {
            Ok(value) => Some(HeaderDef { span: node.span, name, value }),
            Err(fault) => {
                self.fault(*fault);
                // It has the form of a header field, so no other form is tried.
                Some(HeaderDef { span: node.span, name, value: Template::default() })
            }
        }
    }

    /// `body` and `json`
    fn text_body(&mut self, node: &LineNode, word: &Name) -> Option<BodyContent> {
        self.childless(node);
        let (_, mut cursor) = self.begin(node);
        cursor.at = cursor.end - cursor.rest().trim_start().len();
        if word.text == "body" && cursor.keyword("from").is_some() {
            let file = self.line(node, |cursor| {
                cursor.keyword("from");
                cursor.plain("a file")
            });
            return file.map(BodyContent::File);
        }
        let one = [Span { start: cursor.at, end: cursor.end }];
        let lines: &[Span] = if cursor.rest().is_empty() { &node.raw } else { &one };
        if lines.is_empty() {
            let fault = Diagnostic::error(node.span, format!("this {} is empty", word.text));
            self.fault(fault.fix("put its text after it, or below it on lines that are indented deeper"));
            return None;
        }
        let n_faults = self.faults.len();
        let mut whole = Template { span: (lines[0].start..lines[lines.len() - 1].end).into(), pieces: Vec::new() };
        for (idx, line) in lines.iter().enumerate() {
            if idx > 0 {
                push_text(&mut whole.pieces, "\n");
            }
            match Cursor::new(self.text, *line).template(TextEnd::Line) {
                Ok(line) => whole.append(line),
                Err(fault) => self.fault(*fault),
            }
        }
        if word.text == "body" {
            return Some(BodyContent::Text(whole));
        }
        if n_faults == self.faults.len() {
            json::check(self.text, lines).map_err(|fault| self.fault(*fault)).ok();
        }
        Some(BodyContent::Json(whole))
    }

    /// The lines of a form.
    fn fields(&mut self, node: &LineNode, word: &Name) -> Option<BodyContent> {
        self.line(node, |_| Ok(()))?;
        let mut fields = Vec::new();
        for child in &node.children {
            self.childless(child);
            let mut cursor = Cursor::new(self.text, child.span);
            match field(&mut cursor, child.span) {
                Ok(field) => {
                    if let (BodyContent::FORM, FormFieldValue::File { path, .. }) = (word.text.as_str(), &field.value) {
                        let fault = Diagnostic::error(path.span, "a form of this kind holds no files");
                        self.fault(fault.fix("write `multipart` instead of `form`"));
                    }
                    fields.push(field);
                    match cursor.finish() {
                        Ok(comment) => self.comments.extend(comment),
                        Err(fault) => self.fault(*fault),
                    }
                }
                Err(fault) => self.fault(*fault),
            }
        }
        if node.children.is_empty() {
            let fault = Diagnostic::error(node.span, "this form is empty");
            self.fault(fault.fix("put its fields below it, indented: `name = value`"));
        }
        Some(if word.text == BodyContent::FORM { BodyContent::Form(fields) } else { BodyContent::Multipart(fields) })
    }
}

impl BodyContent {
    const FORM: &'static str = "form";
}

impl Template {
    /// Appends another template.
    fn append(&mut self, other: Self) {
        for piece in other.pieces {
            match piece {
                TemplatePiece::Text(text) => push_text(&mut self.pieces, &text),
                hole @ TemplatePiece::Hole(_) => self.pieces.push(hole),
            }
        }
    }
}

/// Checks of a URL that are possible before its holes are filled.
fn check_url(url: &Template) -> Result<(), BoxedDiagnostic> {
    let fault = |what: &str, fix: &str| Err(Diagnostic::error(url.span, what).fix(fix).boxed());
    let mut texts = url.pieces.iter().filter_map(|piece| match piece {
        TemplatePiece::Text(text) => Some(text.as_str()),
        TemplatePiece::Hole(_) => None,
    });
    if texts.clone().any(|text| text.bytes().any(|byte| byte <= b' ' || byte > b'~')) {
        return fault("a URL has neither blanks nor other than ASCII letters", "percent-encode them: a blank is %20");
    }
    if texts.clone().any(|text| text.contains('#')) {
        return fault("the part after a # is never sent", "leave it out, or write %23");
    }
    let first = match url.pieces.first() {
        Some(TemplatePiece::Hole(_)) | None => return Ok(()),
        Some(TemplatePiece::Text(_)) => texts.next().unwrap_or_default(),
    };
    if first.starts_with('/') {
        return Ok(());
    }
    let Some((scheme, rest)) = first.split_once("://") else {
        return fault("this is neither a path nor a URL", "a path begins with /, a URL with http:// or https://");
    };
    let host = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    if host.len() == rest.len() && url.pieces.len() > 1 {
        return fault("a host cannot have holes", "hosts must be known before the start: put the hole after a /");
    }
    match format!("{scheme}://{host}/").parse::<Url>() {
        Ok(_) => Ok(()),
        Err(error) => fault(&error.to_string(), error.hint()),
    }
}

/// `name = value` or `name from FILE type image/png`
fn field(cursor: &mut Cursor<'_>, span: Span) -> Result<FormField, BoxedDiagnostic> {
    let name = cursor.plain("a name")?;
    if cursor.keyword("from").is_some() {
        let path = cursor.plain("a file")?;
        let media_type = cursor.keyword("type").map(|_| cursor.need("a media type")).transpose()?;
        return Ok(FormField { span, name, value: FormFieldValue::File { path, media_type } });
    }
    if cursor.keyword("=").is_none() {
        let fault = cursor.missing("`=` or `from`");
        return Err(fault.fix("such as `title = A picture`, or `picture from holiday.jpg`").boxed());
    }
    cursor.at = cursor.end - cursor.rest().trim_start().len();
    Ok(FormField { span, name, value: FormFieldValue::Text(cursor.template(TextEnd::Line)?) })
}

fn expect(cursor: &mut Cursor<'_>, span: Span) -> Result<ExpectClause, BoxedDiagnostic> {
    const USAGE: &str =
        "such as `expect 200`, `expect body contains \"x\"`, `expect json $.n == 1`, `expect within 1s`";
    const SUBJECTS: [&str; 5] = ["header", "body", "json", "cookie", "within"];
    let mut ahead = *cursor;
    let word = ahead.need("an expectation").map_err(|fault| fault.fix(USAGE).boxed())?;
    let what = match word.text.as_str() {
        "within" => None,
        text if text.starts_with(|c: char| c.is_ascii_digit()) => Some(ExpectedValue::Status(statuses(cursor)?)),
        text => {
            let subject = if text.starts_with(['"', '$']) {
                TestSubject::Text(cursor.operand("a text")?)
            } else {
                *cursor = ahead;
                match text {
                    "header" => TestSubject::Header(header_name(cursor)?),
                    "body" => TestSubject::Body,
                    "json" => TestSubject::Json(cursor.json_path()?),
                    "cookie" => TestSubject::Cookie(cursor.need("the name of a cookie")?),
                    _ => {
                        let fault = Diagnostic::error(word.span, format!("unknown expectation `{text}`"));
                        return Err(fault.fix(USAGE).suggest(nearest(text, SUBJECTS)).boxed());
                    }
                }
            };
            Some(ExpectedValue::Test(test(cursor, subject)?))
        }
    };
    let within = cursor.keyword("within").map(|_| cursor.time("a time")).transpose()?;
    Ok(ExpectClause { span, what, within })
}

/// `200, 3xx`
fn statuses(cursor: &mut Cursor<'_>) -> Result<Vec<StatusPattern>, BoxedDiagnostic> {
    let mut all = Vec::new();
    loop {
        let word = cursor.need("a status")?;
        for text in word.text.trim_end_matches(',').split(',') {
            let class =
                text.strip_suffix("xx").and_then(|digit| digit.parse().ok()).filter(|digit| (1..=5).contains(digit));
            let one = text.parse().ok().filter(|status| text.len() == 3 && (100..=599).contains(status));
            all.push(class.map(StatusPattern::Class).or(one.map(StatusPattern::One)).ok_or_else(|| {
                Diagnostic::error(word.span, format!("`{text}` is not a status"))
                    .fix("write 200, a class such as 2xx, or several: 200, 3xx")
                    .boxed()
            })?);
        }
        if !word.text.ends_with(',') {
            return Ok(all);
        }
    }
}

fn header_name(cursor: &mut Cursor<'_>) -> Result<Name, BoxedDiagnostic> {
    let name = cursor.need("the name of a header field")?;
    match http::HeaderName::from_bytes(name.text.as_bytes()) {
        Ok(_) => Ok(name),
        Err(_) => Err(Diagnostic::error(name.span, format!("`{}` is not a name of a header field", name.text))
            .fix("write it without a colon: `header Location`")
            .boxed()),
    }
}

/// `token = json $.token or "none"`
fn take(cursor: &mut Cursor<'_>, span: Span) -> Result<TakeClause, BoxedDiagnostic> {
    const SOURCES: [&str; 7] = ["json", "header", "regex", "between", "cookie", "status", "body"];
    const USAGE: &str =
        "such as `take token = json $.token`; there are json, header, regex, between, cookie, status and body";
    let name = variable_name(cursor)?;
    equals(cursor, &format!("take {} = json $.{}", name.text, name.text))?;
    let word = cursor.need("a source").map_err(|fault| fault.fix(USAGE).boxed())?;
    let source = match word.text.as_str() {
        "json" => TakeSource::Json(cursor.json_path()?),
        "header" => TakeSource::Header(header_name(cursor)?),
        "regex" => {
            let regex = cursor.regex()?;
            TakeSource::Regex(regex, place(cursor)?)
        }
        "between" => {
            let before = cursor.plain("the text before it")?.text;
            let after = cursor.plain("the text after it")?.text;
            TakeSource::Between(Between { before, after, area: place(cursor)? })
        }
        "cookie" => TakeSource::Cookie(cursor.need("the name of a cookie")?),
        "status" => TakeSource::Status,
        "body" => TakeSource::Body,
        text => {
            let fault = Diagnostic::error(word.span, format!("nothing can be taken from `{text}`"));
            return Err(fault.fix(USAGE).suggest(nearest(text, SOURCES)).boxed());
        }
    };
    let one = matches!(source, TakeSource::Status | TakeSource::Body | TakeSource::Cookie(_));
    let pick = pick(cursor, one)?;
    let default = cursor.keyword("or").map(|_| cursor.operand("a value")).transpose()?;
    Ok(TakeClause { span, name, source, pick, default })
}

fn place(cursor: &mut Cursor<'_>) -> Result<SearchArea, BoxedDiagnostic> {
    if cursor.keyword("in").is_none() {
        return Ok(SearchArea::Body);
    }
    let word = cursor.need("headers")?;
    if word.text == "headers" { Ok(SearchArea::Headers) } else { Err(clause(&word, &["headers"])) }
}

/// `last`, `any` or `nth 3`; `one` if there is never more than one.
fn pick(cursor: &mut Cursor<'_>, one: bool) -> Result<MatchPick, BoxedDiagnostic> {
    let mut ahead = *cursor;
    let Some(word) = ahead.word().filter(|word| ["first", "last", "any", "nth"].contains(&word.text.as_str())) else {
        return Ok(MatchPick::First);
    };
    if one {
        return Err(Diagnostic::error(word.span, "there is only one of it")
            .fix(format!("leave `{}` out", word.text))
            .boxed());
    }
    *cursor = ahead;
    Ok(match word.text.as_str() {
        "first" => MatchPick::First,
        "last" => MatchPick::Last,
        "any" => MatchPick::Any,
        _ => {
            let n = cursor.count("a number", 1)?;
            let n =
                u32::try_from(n.value).map_err(|_| Diagnostic::error(n.span, "there are never that many").boxed())?;
            if n == 1 { MatchPick::First } else { MatchPick::Nth(n) }
        }
    })
}
