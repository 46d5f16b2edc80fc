//! What users do, line by line.

use std::fmt::Write as _;

use fathom_model::units::Nanos;

use super::{
    super::story::{
        Act, Body, Condition, Expect, Field, Holds, Joined, Note, OnError, Part, PartContent, Piece, Redirects,
        Relation, Request, Source, Take, Test, Text, Think, Which,
    },
    Writer,
    text::{self, one_line, plain, quoted, regex, rest_of_line},
};

/// As many as the tools follow from which is imported, or nearly: browsers and JMeter 20, curl 50.
pub(super) const REDIRECTS: &str = "redirects 20";
/// The media types that bodies of a scenario say by themselves.
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";
/// With a boundary that only the engine knows.
const MULTIPART: &str = "multipart/form-data";
/// Who waits for others without end waits so long here.
const MEET_MAX: Nanos = Nanos::from_secs(60);

pub(super) fn on_failure(way: OnError) -> &'static str {
    match way {
        OnError::GoOn => "on failure continue",
        OnError::NextRound => "on failure restart",
        OnError::Leave => "on failure leave",
    }
}

/// A share with as many digits as it needs, four at most.
pub(super) fn percent(share: f64) -> String {
    let text = format!("{share:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn sign(relation: Relation) -> &'static str {
    match relation {
        Relation::Equal => "==",
        Relation::Unequal => "!=",
        Relation::Less => "<",
        Relation::AtMost => "<=",
        Relation::Greater => ">",
        Relation::AtLeast => ">=",
    }
}

impl Writer<'_> {
    /// A block; one without a statement would not be read.
    pub(super) fn inside(&mut self, acts: &[Act]) {
        self.depth += 1;
        self.acts(acts);
        self.depth -= 1;
    }

    fn block(&mut self, head: &str, acts: &[Act]) {
        if acts.iter().all(|act| matches!(act, Act::Left(_))) {
            return self.acts(acts);
        }
        self.line(head);
        self.inside(acts);
    }

    pub(super) fn acts(&mut self, acts: &[Act]) {
        for act in acts {
            self.act(act);
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Request(request) => self.step(request),
            Act::Transaction { name, acts } => {
                let name = self.names.fresh_step(name);
                self.block(&format!("transaction {name}"), acts);
            }
            Act::Think(think) => self.think(think),
            Act::Meet(meeting) => {
                let n_users = meeting.n_users.unwrap_or(self.n_users);
                if n_users < 2 {
                    return self.note("meeting", "one user has nobody to wait for");
                }
                if meeting.at_most.is_none() {
                    self.note("meeting", "users wait for the others for a minute, and not without end");
                }
                self.line(&format!("meet {n_users} within {}", meeting.at_most.unwrap_or(MEET_MAX).exact()));
            }
            Act::Repeat { n: Some(0), .. } => self.note("loop", "what is done no times is left out"),
            Act::Repeat { n: Some(1), acts } | Act::Share { per_myriad: 10_000, acts } => self.acts(acts),
            Act::Repeat { n: Some(n), acts } => self.block(&format!("repeat {n}"), acts),
            // A number is equal to itself for as long as the run goes on.
            Act::Repeat { n: None, acts } => self.block("while ${user} > 0", acts),
            Act::If { condition, acts } => {
                let condition = self.condition(condition);
                self.block(&format!("if {condition}"), acts);
            }
            Act::While { condition, acts } => {
                let condition = self.condition(condition);
                self.block(&format!("while {condition}"), acts);
            }
            Act::Once(acts) => self.block("if ${iteration} == 1", acts),
            Act::Share { per_myriad: 0, .. } => self.note("share", "what is done in no round is left out"),
            Act::Share { per_myriad, acts } => {
                self.block(&format!("chance {}%", percent(f64::from(*per_myriad) / 100.0)), acts);
            }
            Act::OneOf(branches) => self.one_of(branches),
            Act::Set { name, to } => {
                let line = format!("let {} = {}", self.names.of_variable(name), quoted(to, &self.names));
                self.line(&line);
            }
            Act::Left(note) => self.leave(note),
        }
    }

    /// The first one by its share, and else one of the rest.
    fn one_of(&mut self, branches: &[Vec<Act>]) {
        match branches {
            [] => {}
            [only] => self.acts(only),
            [first, rest @ ..] => {
                #[expect(clippy::cast_precision_loss, reason = "nobody writes so many branches")]
                let share = 100.0 / branches.len() as f64;
                self.line(&format!("chance {}%", percent(share)));
                self.inside(first);
                self.line("else");
                self.depth += 1;
                self.one_of(rest);
                self.depth -= 1;
            }
        }
    }

    fn think(&mut self, think: &Think) {
        let time = match think {
            Think::Fixed(Nanos::ZERO) => return,
            Think::Fixed(time) => time.exact(),
            Think::Uniform(times) if times.start() == times.end() => return self.think(&Think::Fixed(*times.start())),
            Think::Uniform(times) => format!("{}..{}", times.start().exact(), times.end().exact()),
            Think::Normal { mean, deviation: Nanos::ZERO } => return self.think(&Think::Fixed(*mean)),
            Think::Normal { mean, deviation } => format!("normal {} {}", mean.exact(), deviation.exact()),
        };
        self.line(&format!("think {time}"));
    }

    fn condition(&self, condition: &Condition) -> String {
        let operand = |text: &Text| match text.as_literal().map(str::parse::<f64>) {
            Some(Ok(number)) if number.is_finite() => text.as_literal().unwrap_or_default().to_owned(),
            _ => quoted(text, &self.names),
        };
        let tests = condition.tests.iter();
        let tests =
            tests.map(|test| format!("{} {} {}", operand(&test.left), sign(test.relation), operand(&test.right)));
        tests.collect::<Vec<_>>().join(if condition.joined == Joined::And { " and " } else { " or " })
    }

    fn step(&mut self, request: &Request) {
        request.left.iter().for_each(|note| self.leave(note));
        let Some((origin, path)) = self.origin_and_path(&request.url) else {
            let place = request.name.clone().unwrap_or_else(|| format!("{} {}", request.method, request.url));
            return self
                .note(&place, format!("the host of {} is not known before the start: it is left out", request.url));
        };
        let is_method =
            request.method.len() >= 2 && request.method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        if !is_method {
            return self.note(&request.url.to_string(), format!("{} is no method: it is left out", request.method));
        }
        let fixed_path = path.as_literal().map(|path| path.split('?').next().unwrap_or(path).to_owned());
        let told = request.name.clone().or_else(|| fixed_path.map(|path| format!("{} {path}", request.method)));
        let name = self.names.fresh_step(&told.unwrap_or_else(|| format!("{} {path}", request.method)));
        let path = rest_of_line(&path.map_literals(for_url), &self.names);
        let host = if self.base.as_ref() == Some(&origin) { "" } else { &origin };
        self.line(&format!("step {name}"));
        self.depth += 1;
        self.line(&format!("{} {host}{path}", request.method));
        self.headers_and_body(request, &name);
        request.expects.iter().for_each(|expect| self.expect(expect, &name));
        request.takes.iter().for_each(|take| self.take(take, &name));
        // None are followed where nothing is said.
        if self.redirects.is_none() && request.redirects == Redirects::Followed {
            self.line(REDIRECTS);
        }
        if let Some(timeout) = request.timeout {
            self.line(&format!("timeout {}", timeout.exact()));
        }
        if let Some(way) = request.on_error {
            self.line(on_failure(way));
        }
        self.depth -= 1;
    }

    fn headers_and_body(&mut self, request: &Request, name: &str) {
        let media = request.header("Content-Type").and_then(Text::as_literal).unwrap_or_default();
        let (body, said) = self.body(request, media, name);
        for (header, value) in &request.headers {
            let is_common = self.headers.iter().any(|(common, _)| common.eq_ignore_ascii_case(header));
            let is_said = header.eq_ignore_ascii_case("content-type")
                && said.is_some_and(|said| said == MULTIPART || value.to_string().eq_ignore_ascii_case(said));
            if is_common || is_said {
                continue;
            }
            if !text::is_header_name(header) || value.is_empty() {
                self.note(name, format!("the header {header}: {value} cannot be sent like that, and is left out"));
                continue;
            }
            let value = rest_of_line(value, &self.names);
            self.line(&format!("{header}: {value}"));
        }
        for line in body {
            self.line(&line);
        }
    }

    /// The lines of a body, and the media type that they say.
    fn body(&mut self, request: &Request, media: &str, name: &str) -> (Vec<String>, Option<&'static str>) {
        match &request.body {
            Body::None => (Vec::new(), None),
            Body::Bytes(bytes) => {
                self.note(
                    name,
                    format!("{} bytes that are no text: put them in a file, `body from FILE`", bytes.len()),
                );
                (Vec::new(), None)
            }
            Body::File(file) => {
                if let Some(file) = self.story.fixed(file) {
                    return (vec![format!("body from {}", plain(&file))], None);
                }
                let what = format!("the name of the file {file} is not known before the start: it is left out");
                self.note(name, what);
                (Vec::new(), None)
            }
            Body::Form(fields) => {
                let fields = fields.iter().map(|(name, value)| self.field(name, value));
                (std::iter::once("form".to_owned()).chain(fields).collect(), Some(FORM))
            }
            Body::Multipart(parts) if parts.is_empty() => (Vec::new(), None),
            Body::Multipart(parts) => {
                let mut lines = vec!["multipart".to_owned()];
                for part in parts {
                    let line = self.part(part, name);
                    lines.extend(line);
                }
                (lines, Some(MULTIPART))
            }
            Body::Text(text) if text.is_empty() => (Vec::new(), None),
            Body::Text(text) => {
                let is_json = media.eq_ignore_ascii_case(JSON) && is_json(text);
                if !is_json
                    && media.eq_ignore_ascii_case(FORM)
                    && let Some(fields) = simple_fields(text)
                {
                    let fields = fields.iter().map(|(name, value)| self.field(name, value));
                    return (std::iter::once("form".to_owned()).chain(fields).collect(), Some(FORM));
                }
                (self.text_body(if is_json { "json" } else { "body" }, text), is_json.then_some(JSON))
            }
        }
    }

    fn field(&self, name: &Text, value: &Text) -> String {
        let name = self.story.fixed(name).unwrap_or_else(|| name.to_string());
        // What is filled in is encoded with the rest.
        let value = Text(value.0.iter().cloned().map(unencoded).collect());
        format!("  {} = {}", field_name(&name), rest_of_line(&value, &self.names))
    }

    fn part(&mut self, part: &Part, step: &str) -> Option<String> {
        match &part.content {
            PartContent::Text(value) => {
                if part.media_type.is_some() || part.file_name.is_some() {
                    self.note(step, format!("the media type or the file name of the part {} is left out", part.name));
                }
                Some(self.field(&part.name, value))
            }
            PartContent::File(file) => {
                let (Some(file), Some(name)) = (self.story.fixed(file), self.story.fixed(&part.name)) else {
                    self.note(step, format!("the part {} has a name that is not known before the start", part.name));
                    return None;
                };
                let last = file.rsplit('/').next().unwrap_or(&file).to_owned();
                match &part.file_name {
                    None => {}
                    Some(told) if told.as_literal() == Some(&last) => {}
                    Some(told) => self.note(step, format!("the part {name} is said to be the file {last}, not {told}")),
                }
                let media = part.media_type.as_ref().filter(|media| !media.contains(char::is_whitespace));
                let media = media.map_or(String::new(), |media| format!(" type {media}"));
                Some(format!("  {} from {}{media}", field_name(&name), plain(&file)))
            }
        }
    }

    /// On its line, or on lines below it if it has several.
    fn text_body(&self, word: &str, text: &Text) -> Vec<String> {
        let mut lines: Vec<Text> = vec![Text::default()];
        for piece in &text.0 {
            let Piece::Literal(literal) = piece else {
                lines.last_mut().expect("it begins with one").push(piece.clone());
                continue;
            };
            for (idx, line) in literal.split('\n').enumerate() {
                if idx > 0 {
                    lines.push(Text::default());
                }
                lines.last_mut().expect("it begins with one").push_str(line);
            }
        }
        let is_even = |line: &Text| {
            let first = matches!(line.0.first(), Some(Piece::Literal(text)) if text.starts_with(['\t', '\u{a0}']));
            let last = matches!(line.0.last(), Some(Piece::Literal(text)) if text.ends_with(char::is_whitespace));
            let blank = line.as_literal().is_some_and(|text| text.trim().is_empty());
            !first && !last && !blank
        };
        let starts_at_left = !matches!(lines[0].0.first(), Some(Piece::Literal(text)) if text.starts_with(' '));
        if lines.len() == 1 || !starts_at_left || !lines.iter().all(is_even) {
            let line = rest_of_line(text, &self.names);
            // A text that begins as a file would is told apart by a hole.
            let line = if word == "body" && line.split_whitespace().next() == Some("from") {
                line.replacen('f', "${\"f\"}", 1)
            } else {
                line
            };
            return vec![format!("{word} {line}")];
        }
        let mut all = vec![word.to_owned()];
        for line in &lines {
            // What a line begins with is kept; only its end would be lost.
            let blanks = line.0.first().map_or(0, |piece| match piece {
                Piece::Literal(text) => text.len() - text.trim_start_matches(' ').len(),
                _ => 0,
            });
            let mut rest = line.clone();
            if let Some(Piece::Literal(first)) = rest.0.first_mut() {
                first.replace_range(..blanks, "");
            }
            all.push(format!("  {}{}", " ".repeat(blanks), rest_of_line(&rest, &self.names)));
        }
        all
    }

    fn expect(&mut self, expect: &Expect, step: &str) {
        let line = match expect {
            Expect::Status(codes) => codes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            // That holds without saying it.
            Expect::StatusClass(classes) if *classes == [2, 3] => return,
            Expect::StatusClass(classes) => {
                classes.iter().map(|class| format!("{class}xx")).collect::<Vec<_>>().join(", ")
            }
            Expect::Within(time) => format!("within {}", time.exact()),
            Expect::Json { path, equals, holds } => match (equals, holds) {
                (None, Holds::Yes) => format!("json {path} exists"),
                (None, Holds::No) => format!("json {path} not exists"),
                (Some(text), Holds::Yes) => format!("json {path} == {}", quoted(text, &self.names)),
                (Some(text), Holds::No) => format!("json {path} != {}", quoted(text, &self.names)),
            },
            Expect::Piece { of, test, text } => match self.piece(*of, *test, text) {
                Some(line) => line,
                None => return self.note(step, format!("a check of the {} for {text} is left out", place(*of))),
            },
        };
        self.line(&format!("expect {line}"));
    }

    fn piece(&self, of: Field, test: Test, text: &Text) -> Option<String> {
        let (subject, text) = match of {
            Field::Body => ("body".to_owned(), text.clone()),
            // Only a field that is named can be looked at.
            Field::Headers => {
                let literal = text.as_literal().filter(|_| matches!(test, Test::Contains | Test::Lacks))?;
                let (name, value) = literal.split_once(':').filter(|(name, _)| text::is_header_name(name))?;
                (format!("header {name}"), Text::literal(value.trim()))
            }
        };
        let value = || quoted(&text, &self.names);
        let pattern = |begin: &str, end: &str| regex(&format!("{begin}{}{end}", text.as_literal()?));
        Some(match test {
            Test::Contains if text.is_empty() => format!("{subject} exists"),
            Test::Contains => format!("{subject} contains {}", value()),
            Test::Lacks => format!("{subject} not contains {}", value()),
            Test::Equals => format!("{subject} == {}", value()),
            Test::Differs => format!("{subject} != {}", value()),
            Test::Finds => format!("{subject} matches {}", pattern("", "")?),
            Test::DoesNotFind => format!("{subject} not matches {}", pattern("", "")?),
            Test::Matches => format!("{subject} matches {}", pattern(r"\A(?:", r")\z")?),
            Test::DoesNotMatch => format!("{subject} not matches {}", pattern(r"\A(?:", r")\z")?),
        })
    }

    fn take(&mut self, take: &Take, step: &str) {
        let place = |of: Field| if of == Field::Headers { " in headers" } else { "" };
        let from = match &take.from {
            Source::Json(path) => Some(format!("json {path}")),
            Source::Regex { of, pattern } => regex(pattern).map(|regex| format!("regex {regex}{}", place(*of))),
            Source::Between { of, before, after } => {
                let (before, after) = (quoted(before, &self.names), quoted(after, &self.names));
                Some(format!("between {before} {after}{}", place(*of)))
            }
        };
        let Some(from) = from.filter(|_| !take.name.is_empty()) else {
            return self
                .leave(&Note { place: step.to_owned(), what: format!("the variable {} is not taken", take.name) });
        };
        let which = match take.which {
            Which::Nth(1) => String::new(),
            Which::Nth(n) => format!(" nth {n}"),
            Which::Random => " any".to_owned(),
        };
        let default = take.default.as_ref().map_or(String::new(), |text| format!(" or {}", quoted(text, &self.names)));
        let name = self.names.of_variable(&take.name);
        self.line(&format!("take {name} = {from}{which}{default}"));
    }
}

fn place(of: Field) -> &'static str {
    match of {
        Field::Body => "body",
        Field::Headers => "headers",
    }
}

/// A name of a field, between quotes if it has more than a word.
fn field_name(name: &str) -> String {
    let name = one_line(name);
    if name == "=" { "\"=\"".to_owned() } else { plain(&name) }
}

fn unencoded(piece: Piece) -> Piece {
    match piece {
        Piece::UrlEncoded(inner) => *inner,
        piece => piece,
    }
}

/// What may not stand in a URL as it is; what is encoded already stays.
fn for_url(literal: &str) -> String {
    let mut all = String::with_capacity(literal.len());
    for char in literal.chars() {
        if char.is_ascii_graphic() && char != '#' {
            all.push(char);
        } else {
            let mut bytes = [0; 4];
            for byte in char.encode_utf8(&mut bytes).bytes() {
                let _ = write!(all, "%{byte:02X}");
            }
        }
    }
    all
}

/// Whether it is JSON once its holes are filled.
fn is_json(text: &Text) -> bool {
    let mut filled = String::new();
    for piece in &text.0 {
        match piece {
            Piece::Literal(literal) => filled.push_str(literal),
            // A number stands alone as well as within a text.
            _ => filled.push('1'),
        }
    }
    serde_json::from_str::<serde::de::IgnoredAny>(&filled).is_ok()
}

/// The fields of a form whose names and values stand there as they are.
fn simple_fields(text: &Text) -> Option<Vec<(Text, Text)>> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let mut fields: Vec<(Text, Option<Text>)> = vec![(Text::default(), None)];
    for piece in &text.0 {
        match piece {
            Piece::Literal(literal) => {
                for (idx, field) in literal.split('&').enumerate() {
                    if idx > 0 {
                        fields.push((Text::default(), None));
                    }
                    let (name, value) = fields.last_mut()?;
                    let rest = match (value.is_some(), field.split_once('=')) {
                        (false, Some((before, rest))) if is_plain(before) => {
                            name.push_str(before);
                            value.get_or_insert_default();
                            rest
                        }
                        (true, _) => field,
                        _ if field.is_empty() => field,
                        _ => return None,
                    };
                    if !is_plain(rest) {
                        return None;
                    }
                    if let Some(value) = value {
                        value.push_str(rest);
                    }
                }
            }
            // What is not encoded now may need none, and would be encoded by a form.
            Piece::Variable(_) => return None,
            piece => fields.last_mut()?.1.as_mut()?.push(piece.clone()),
        }
    }
    let complete = fields.into_iter().map(|(name, value)| Some((Some(name).filter(|name| !name.is_empty())?, value?)));
    complete.collect()
}
