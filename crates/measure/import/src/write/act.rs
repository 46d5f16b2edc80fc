//! Writes the actions of users, line by line.

use std::fmt::Write as _;

use fathom_model::units::Nanos;

use super::{
    super::import_tree::{
        AnswerField, Conjunction, ExtractSource, Extraction, FormPart, FormPartContent, ImportAction, ImportNote,
        ImportPiece, ImportText, ImportedBody, ImportedCondition, ImportedExpect, ImportedRequest, MatchIndex,
        Negation, OnError, RedirectHandling, Relation, TextCoding, TextTest, ThinkTime,
    },
    Writer,
    names::NameTable,
    pieces::one_line,
    text::{self, operand, plain, regex, rest_of_line},
};

/// About as many as the imported tools follow: browsers and JMeter 20, curl 50.
pub(super) const REDIRECTS: &str = "redirects 20";
/// The media types that bodies of a scenario set themselves.
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";
/// Its boundary is known only to the engine.
const MULTIPART: &str = "multipart/form-data";
/// The limit of a wait for others that is unlimited in the input.
const MEET_MAX: Nanos = Nanos::from_secs(60);

pub(super) fn on_failure(way: OnError) -> &'static str {
    match way {
        OnError::Continue => "on failure continue",
        OnError::NextRound => "on failure restart",
        OnError::Leave => "on failure leave",
    }
}

/// A share with as many digits as needed, at most four.
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
    /// A block; one without a statement would not parse.
    pub(super) fn inside(&mut self, acts: &[ImportAction]) {
        self.depth += 1;
        self.acts(acts);
        self.depth -= 1;
    }

    fn block(&mut self, head: &str, acts: &[ImportAction]) {
        if acts.iter().all(|act| matches!(act, ImportAction::LeftOut(_))) {
            return self.acts(acts);
        }
        self.line(head);
        self.inside(acts);
    }

    pub(super) fn acts(&mut self, acts: &[ImportAction]) {
        for act in acts {
            self.act(act);
        }
    }

    fn act(&mut self, act: &ImportAction) {
        match act {
            ImportAction::Request(request) => self.step(request),
            ImportAction::Transaction { name, acts } => {
                let name = self.names.unique_step(name);
                self.block(&format!("transaction {name}"), acts);
            }
            ImportAction::Think(think) => self.think(think),
            ImportAction::Meet(meeting) => {
                let n_users = meeting.n_users.unwrap_or(self.n_users);
                if n_users < 2 {
                    return self.note("meeting", "a single user has no one to wait for");
                }
                if meeting.at_most.is_none() {
                    self.note("meeting", "users wait for the others for a minute, and not without end");
                }
                self.line(&format!("meet {n_users} within {}", meeting.at_most.unwrap_or(MEET_MAX).exact()));
            }
            ImportAction::Repeat { n: Some(0), .. } => self.note("loop", "an action with a count of zero is left out"),
            ImportAction::Repeat { n: Some(1), acts } | ImportAction::Share { per_myriad: 10_000, acts } => {
                self.acts(acts);
            }
            ImportAction::Repeat { n: Some(n), acts } => self.block(&format!("repeat {n}"), acts),
            // The user number is always positive, so the loop runs until the end of the run.
            ImportAction::Repeat { n: None, acts } => self.block("while ${user} > 0", acts),
            ImportAction::If { condition, acts } => {
                let condition = self.condition(condition);
                self.block(&format!("if {condition}"), acts);
            }
            ImportAction::While { condition, acts } => {
                let condition = self.condition(condition);
                self.block(&format!("while {condition}"), acts);
            }
            ImportAction::Once(acts) => self.block("if ${iteration} == 1", acts),
            ImportAction::Share { per_myriad: 0, .. } => {
                self.note("share", "an action that runs in no iteration is left out");
            }
            ImportAction::Share { per_myriad, acts } => {
                self.block(&format!("chance {}%", percent(f64::from(*per_myriad) / 100.0)), acts);
            }
            ImportAction::OneOf(branches) => self.one_of(branches),
            ImportAction::Set { name, to } => {
                let line = format!("let {} = {}", self.names.of_variable(name), operand(to, &self.names));
                self.line(&line);
            }
            ImportAction::LeftOut(note) => self.write_left_out(note),
        }
    }

    /// Chooses the first branch by its share, otherwise one of the rest.
    fn one_of(&mut self, branches: &[Vec<ImportAction>]) {
        match branches {
            [] => {}
            [only] => self.acts(only),
            [first, rest @ ..] => {
                #[expect(clippy::cast_precision_loss, reason = "nobody writes that many branches")]
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

    fn think(&mut self, think: &ThinkTime) {
        let time = match think {
            ThinkTime::Fixed(Nanos::ZERO) => return,
            ThinkTime::Fixed(time) => time.exact(),
            ThinkTime::Uniform(times) if times.start() == times.end() => {
                return self.think(&ThinkTime::Fixed(*times.start()));
            }
            ThinkTime::Uniform(times) => format!("{}..{}", times.start().exact(), times.end().exact()),
            ThinkTime::Normal { mean, deviation: Nanos::ZERO } => return self.think(&ThinkTime::Fixed(*mean)),
            ThinkTime::Normal { mean, deviation } => format!("normal {} {}", mean.exact(), deviation.exact()),
        };
        self.line(&format!("think {time}"));
    }

    fn condition(&self, condition: &ImportedCondition) -> String {
        let operand = |text: &ImportText| match text.as_literal().map(str::parse::<f64>) {
            Some(Ok(number)) if number.is_finite() => text.as_literal().unwrap_or_default().to_owned(),
            _ => operand(text, &self.names),
        };
        let tests = condition.tests.iter();
        let tests =
            tests.map(|test| format!("{} {} {}", operand(&test.left), sign(test.relation), operand(&test.right)));
        tests.collect::<Vec<_>>().join(if condition.joined == Conjunction::And { " and " } else { " or " })
    }

    fn step(&mut self, request: &ImportedRequest) {
        request.left_out.iter().for_each(|note| self.write_left_out(note));
        let Some((origin, path)) = self.origin_and_path(&request.url) else {
            let place = request.name.clone().unwrap_or_else(|| format!("{} {}", request.method, request.url));
            return self
                .note(&place, format!("the host of {} is not known before the start: it is left out", request.url));
        };
        let is_method =
            request.method.len() >= 2 && request.method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        if !is_method {
            return self.note(&request.url.to_string(), format!("{} is not a method: it is left out", request.method));
        }
        let path_alone = path.to_string().split('?').next().unwrap_or_default().to_owned();
        let told = request.name.clone().unwrap_or_else(|| format!("{} {path_alone}", request.method));
        let name = self.names.unique_step(&told);
        let path = rest_of_line(&path.map_literals(for_url), &self.names);
        let host = if self.base.as_ref() == Some(&origin) { "" } else { &origin };
        self.line(&format!("step {name}"));
        self.n_steps += 1;
        self.depth += 1;
        self.line(&format!("{} {host}{path}", request.method));
        self.headers_and_body(request, &name);
        request.expects.iter().for_each(|expect| self.expect(expect, &name));
        request.takes.iter().for_each(|take| self.take(take, &name));
        // By default none are followed.
        if self.redirects.is_none() && request.redirects == RedirectHandling::Followed {
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

    fn headers_and_body(&mut self, request: &ImportedRequest, name: &str) {
        let media = request.header("Content-Type").and_then(ImportText::as_literal).unwrap_or_default();
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

    /// The lines of a body, and the media type that they set.
    fn body(&mut self, request: &ImportedRequest, media: &str, name: &str) -> (Vec<String>, Option<&'static str>) {
        match &request.body {
            ImportedBody::None => (Vec::new(), None),
            ImportedBody::Bytes(bytes) => {
                self.note(
                    name,
                    format!("{} bytes that are not text: put them in a file, `body from FILE`", bytes.len()),
                );
                (Vec::new(), None)
            }
            ImportedBody::File(file) => {
                if let Some(file) = self.tree.fixed(file) {
                    return (vec![format!("body from {}", plain(&file))], None);
                }
                let what = format!("the name of the file {file} is not known before the start: it is left out");
                self.note(name, what);
                (Vec::new(), None)
            }
            ImportedBody::Form(fields) => {
                let fields = fields.iter().map(|(name, value)| self.field(name, value));
                (std::iter::once("form".to_owned()).chain(fields).collect(), Some(FORM))
            }
            ImportedBody::Multipart(parts) if parts.is_empty() => (Vec::new(), None),
            ImportedBody::Multipart(parts) => {
                let mut lines = vec!["multipart".to_owned()];
                for part in parts {
                    let line = self.part(part, name);
                    lines.extend(line);
                }
                (lines, Some(MULTIPART))
            }
            ImportedBody::Text(text) if text.is_empty() => (Vec::new(), None),
            ImportedBody::Text(text) => {
                let is_json = is_json_line(request, text);
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

    fn field(&self, name: &ImportText, value: &ImportText) -> String {
        let name = self.tree.fixed(name).unwrap_or_else(|| name.to_string());
        // Placeholders are encoded with the rest.
        let value = ImportText(value.0.iter().cloned().map(unencoded).collect());
        format!("  {} = {}", field_name(&name), rest_of_line(&value, &self.names))
    }

    fn part(&mut self, part: &FormPart, step: &str) -> Option<String> {
        match &part.content {
            FormPartContent::Text(value) => {
                if part.media_type.is_some() || part.file_name.is_some() {
                    self.note(step, format!("the media type or the file name of the part {} is left out", part.name));
                }
                Some(self.field(&part.name, value))
            }
            FormPartContent::File(file) => {
                let (Some(file), Some(name)) = (self.tree.fixed(file), self.tree.fixed(&part.name)) else {
                    self.note(step, format!("the part {} has a name that is not known before the start", part.name));
                    return None;
                };
                let last = file.rsplit('/').next().unwrap_or(&file).to_owned();
                match &part.file_name {
                    None => {}
                    Some(told) if told.as_literal() == Some(&last) => {}
                    Some(told) => self.note(step, format!("the part {name} is sent as the file {last}, not {told}")),
                }
                let media = part.media_type.as_ref().filter(|media| !media.contains(char::is_whitespace));
                let media = media.map_or(String::new(), |media| format!(" type {media}"));
                Some(format!("  {} from {}{media}", field_name(&name), plain(&file)))
            }
        }
    }

    /// On the line of the keyword, or on lines below it if the text has several.
    fn text_body(&self, word: &str, text: &ImportText) -> Vec<String> {
        let mut lines: Vec<ImportText> = vec![ImportText::default()];
        for piece in &text.0 {
            let ImportPiece::Literal(literal) = piece else {
                lines.last_mut().expect("it begins with one").push(piece.clone());
                continue;
            };
            for (idx, line) in literal.split('\n').enumerate() {
                if idx > 0 {
                    lines.push(ImportText::default());
                }
                lines.last_mut().expect("it begins with one").push_str(line);
            }
        }
        let is_even = |line: &ImportText| {
            let first =
                matches!(line.0.first(), Some(ImportPiece::Literal(text)) if text.starts_with(['\t', '\u{a0}']));
            let last = matches!(line.0.last(), Some(ImportPiece::Literal(text)) if text.ends_with(char::is_whitespace));
            let blank = line.as_literal().is_some_and(|text| text.trim().is_empty());
            !first && !last && !blank
        };
        let starts_at_left = !matches!(lines[0].0.first(), Some(ImportPiece::Literal(text)) if text.starts_with(' '));
        if lines.len() == 1 || !starts_at_left || !lines.iter().all(is_even) {
            let line = rest_of_line(text, &self.names);
            // A hole distinguishes a text that begins like a file name.
            let line = if word == "body" && line.split_whitespace().next() == Some("from") {
                line.replacen('f', "${\"f\"}", 1)
            } else {
                line
            };
            return vec![format!("{word} {line}")];
        }
        let mut all = vec![word.to_owned()];
        for line in &lines {
            // The beginning of a line is kept; only its end would be lost.
            let blanks = line.0.first().map_or(0, |piece| match piece {
                ImportPiece::Literal(text) => text.len() - text.trim_start_matches(' ').len(),
                _ => 0,
            });
            let mut rest = line.clone();
            if let Some(ImportPiece::Literal(first)) = rest.0.first_mut() {
                first.replace_range(..blanks, "");
            }
            all.push(format!("  {}{}", " ".repeat(blanks), rest_of_line(&rest, &self.names)));
        }
        all
    }

    fn expect(&mut self, expect: &ImportedExpect, step: &str) {
        let line = match expect {
            ImportedExpect::Status(codes) => codes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            // This is the default.
            ImportedExpect::StatusClass(classes) if *classes == [2, 3] => return,
            ImportedExpect::StatusClass(classes) => {
                classes.iter().map(|class| format!("{class}xx")).collect::<Vec<_>>().join(", ")
            }
            ImportedExpect::Within(time) => format!("within {}", time.exact()),
            ImportedExpect::Json { path, equals, holds } => match (equals, holds) {
                (None, Negation::Yes) => format!("json {path} exists"),
                (None, Negation::No) => format!("json {path} not exists"),
                (Some(text), Negation::Yes) => format!("json {path} == {}", operand(text, &self.names)),
                (Some(text), Negation::No) => format!("json {path} != {}", operand(text, &self.names)),
            },
            ImportedExpect::Piece { of, test, text } => match self.piece(*of, *test, text) {
                Some(line) => line,
                None => return self.note(step, format!("a check of the {} for {text} is left out", place(*of))),
            },
        };
        self.line(&format!("expect {line}"));
    }

    fn piece(&self, of: AnswerField, test: TextTest, text: &ImportText) -> Option<String> {
        let (subject, text) = match of {
            AnswerField::Body => ("body".to_owned(), text.clone()),
            // Only a named field can be tested.
            AnswerField::Headers => {
                let literal = text.as_literal().filter(|_| matches!(test, TextTest::Contains | TextTest::Lacks))?;
                let (name, value) = literal.split_once(':').filter(|(name, _)| text::is_header_name(name))?;
                (format!("header {name}"), ImportText::literal(value.trim()))
            }
        };
        let value = || operand(&text, &self.names);
        let pattern = |begin: &str, end: &str| regex(&format!("{begin}{}{end}", text.as_literal()?));
        Some(match test {
            TextTest::Contains if text.is_empty() => format!("{subject} exists"),
            TextTest::Contains => format!("{subject} contains {}", value()),
            TextTest::Lacks => format!("{subject} not contains {}", value()),
            TextTest::Equals => format!("{subject} == {}", value()),
            TextTest::Differs => format!("{subject} != {}", value()),
            TextTest::Finds => format!("{subject} matches {}", pattern("", "")?),
            TextTest::DoesNotFind => format!("{subject} not matches {}", pattern("", "")?),
            TextTest::Matches => format!("{subject} matches {}", pattern(r"\A(?:", r")\z")?),
            TextTest::DoesNotMatch => format!("{subject} not matches {}", pattern(r"\A(?:", r")\z")?),
        })
    }

    fn take(&mut self, take: &Extraction, step: &str) {
        let Some(source) = source(take, &self.names).filter(|_| !take.name.is_empty()) else {
            return self.write_left_out(&ImportNote {
                location: step.to_owned(),
                what: format!("the variable {} is not taken", take.name),
            });
        };
        if let Some(note) = &take.note {
            self.comment(note);
        }
        let default = take.default.as_ref().map_or(String::new(), |text| format!(" or {}", operand(text, &self.names)));
        let name = self.names.of_variable(&take.name);
        self.line(&format!("take {name} = {source}{default}"));
    }
}

/// Where a value is taken from, and which of several; `None` if it cannot be written.
pub(super) fn source(take: &Extraction, names: &NameTable) -> Option<String> {
    let place = |of: AnswerField| if of == AnswerField::Headers { " in headers" } else { "" };
    let from = match &take.from {
        ExtractSource::Json(path) => format!("json {path}"),
        ExtractSource::Header(name) => format!("header {name}"),
        ExtractSource::Cookie(name) => format!("cookie {name}"),
        ExtractSource::Regex { of, pattern } => format!("regex {}{}", regex(pattern)?, place(*of)),
        ExtractSource::Between { of, before, after } => {
            format!("between {} {}{}", operand(before, names), operand(after, names), place(*of))
        }
    };
    Some(match take.which {
        MatchIndex::Nth(1) => from,
        MatchIndex::Nth(n) => format!("{from} nth {n}"),
        MatchIndex::Last => format!("{from} last"),
        MatchIndex::Random => format!("{from} any"),
    })
}

fn place(of: AnswerField) -> &'static str {
    match of {
        AnswerField::Body => "body",
        AnswerField::Headers => "headers",
    }
}

/// The name of a field, between quotes if it has more than one word.
fn field_name(name: &str) -> String {
    let name = one_line(name);
    if name == "=" { "\"=\"".to_owned() } else { plain(&name) }
}

fn unencoded(piece: ImportPiece) -> ImportPiece {
    match piece {
        ImportPiece::Coded(inner, TextCoding::Form) => *inner,
        piece => piece,
    }
}

/// Encodes characters that are not allowed in a URL; encoded ones stay.
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

/// Whether a body is written as `json`, which escapes what it fills in.
pub(in super::super) fn is_json_line(request: &ImportedRequest, text: &ImportText) -> bool {
    let media = request.header("Content-Type").and_then(ImportText::as_literal).unwrap_or_default();
    media.eq_ignore_ascii_case(JSON) && is_json(text)
}

/// Whether it is JSON once its holes are filled.
fn is_json(text: &ImportText) -> bool {
    let mut filled = String::new();
    for piece in &text.0 {
        match piece {
            ImportPiece::Literal(literal) => filled.push_str(literal),
            // A number is valid alone as well as within a string.
            _ => filled.push('1'),
        }
    }
    serde_json::from_str::<serde::de::IgnoredAny>(&filled).is_ok()
}

/// The fields of a form whose names and values are not encoded.
fn simple_fields(text: &ImportText) -> Option<Vec<(ImportText, ImportText)>> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let mut fields: Vec<(ImportText, Option<ImportText>)> = vec![(ImportText::default(), None)];
    for piece in &text.0 {
        match piece {
            ImportPiece::Literal(literal) => {
                for (idx, field) in literal.split('&').enumerate() {
                    if idx > 0 {
                        fields.push((ImportText::default(), None));
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
            // A value that is not encoded now may need no encoding, but a form would encode it.
            ImportPiece::Variable(_) => return None,
            piece => fields.last_mut()?.1.as_mut()?.push(piece.clone()),
        }
    }
    let complete = fields.into_iter().map(|(name, value)| Some((Some(name).filter(|name| !name.is_empty())?, value?)));
    complete.collect()
}
