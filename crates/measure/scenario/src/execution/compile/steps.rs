//! Compiles steps: requests, expectations, and values to take.

use fathom_http::{
    url::{Url, split_origin},
    users::{AnswerDetail, BodyFraming},
};
use fathom_model::steps::StepKind;
use regex::bytes::Regex;

use super::{CompileError, Compiler, span_of, to_u16};
use crate::{
    ast::{self, ExpectedValue, MatchPick, StatusPattern, TakeSource, Template},
    execution::{
        checks::{self, CompiledPredicate, CompiledSubject, CompiledTake, CompiledTest, Expectation, Finder},
        json::JsonPointer,
        program::CompiledStep,
        request::{CompiledRequest, RequestDraft},
        text::{CompiledText, TextContext, sanitize},
    },
};

/// The accepted statuses of a step without an explicit one.
const DEFAULT_STATUSES: [StatusPattern; 2] = [StatusPattern::Class(2), StatusPattern::Class(3)];

impl Compiler<'_> {
    /// Compiles a step and returns its index.
    pub(super) fn step(&mut self, step: &ast::StepDef) -> Result<u16, CompileError> {
        let (server, target) = self.target(&step.url)?;
        let draft = self.draft(step, server, target)?;
        let expectations = self.expectations(step)?;
        let takes = step.takes.iter().map(|take| self.take(take)).collect::<Result<Vec<_>, _>>()?;
        let redirects = step.redirects.as_ref().or(self.scenario.redirects.as_ref());
        let redirects = redirects.and_then(|redirects| redirects.max).unwrap_or(0);
        let is_looked_at = self.has_cookies
            || redirects > 0
            || !takes.is_empty()
            || expectations.iter().any(|expectation| matches!(expectation, Expectation::Test(_)));
        let record = self.record(&step.name.text, StepKind::Step)?;
        let begins_with_hole = matches!(step.url.pieces.first(), Some(ast::TemplatePiece::Hole(_)));
        self.steps.push(CompiledStep {
            needed_slots: draft.slots().into_iter().collect(),
            dynamic_start: begins_with_hole.then(|| draft.target.clone()),
            request: CompiledRequest::compile(&draft),
            server,
            framing: if step.method.text == "HEAD" { BodyFraming::NoBody } else { BodyFraming::Body },
            detail: if is_looked_at { AnswerDetail::Message } else { AnswerDetail::Status },
            timeout: span_of(step.timeout.as_ref().map(|timeout| &timeout.after)),
            redirects,
            reads_body: expectations.iter().any(Expectation::reads_body) || takes.iter().any(CompiledTake::reads_body),
            expectations,
            takes,
            on_failure: step.on_failure.as_ref().map(|on_failure| on_failure.action),
            record,
            failure_cause: format!("step {} failed", step.name.text),
        });
        to_u16(self.steps.len() - 1, "65,535 steps")
    }

    /// The server of a URL, and its path and query.
    fn target(&mut self, url: &Template) -> Result<(u16, CompiledText), CompileError> {
        let first = match url.pieces.first() {
            Some(ast::TemplatePiece::Text(text)) => text.as_str(),
            _ => "",
        };
        let Some((origin, behind)) = split_origin(first) else {
            // A path taken from an answer is relative to its server, not to the path of the base.
            let is_taken = first.is_empty() && !url.pieces.is_empty();
            let base = self.servers.first().filter(|_| !is_taken).map(|server| server.url.target.clone());
            let base = base.unwrap_or_default();
            let mut target = CompiledText::from(base.split('?').next().unwrap_or_default().trim_end_matches('/'));
            target.append(self.plain(url)?);
            return Ok((0, encode_target(target)));
        };
        let server: Url = origin.parse().map_err(|error: fathom_http::url::UrlError| CompileError::Text {
            what: error.to_string(),
            span: url.span,
        })?;
        let place = self.servers.iter().position(|known| known.serves(&server));
        let place = place.ok_or_else(|| CompileError::UnknownServer(origin.to_owned()))?;
        let mut rest = url.clone();
        if let Some(ast::TemplatePiece::Text(text)) = rest.pieces.first_mut() {
            behind.clone_into(text);
        }
        let mut target = CompiledText::default();
        if !behind.starts_with('/') {
            target.push_filtered(b"/", &[]);
        }
        target.append(self.plain(&rest)?);
        Ok((to_u16(place, "65,535 servers")?, encode_target(target)))
    }

    /// The head: default fields first, then the fields of all steps, then those of this step. An empty value removes a field.
    fn draft(&mut self, step: &ast::StepDef, server: u16, target: CompiledText) -> Result<RequestDraft, CompileError> {
        let body = step.body.as_ref().map(|body| self.body(body)).transpose()?;
        let url = &self.servers[usize::from(server)].url;
        let mut fields: Vec<(String, CompiledText)> =
            vec![("Host".to_owned(), CompiledText::from(url.host_field().as_str()))];
        fields.push(("User-Agent".to_owned(), CompiledText::from("fathom")));
        if let Some(user) = &url.user {
            let basic = format!("Basic {}", data_encoding::BASE64.encode(user.as_bytes()));
            fields.push(("Authorization".to_owned(), CompiledText::from(basic.as_str())));
        }
        if let Some(media_type) = body.as_ref().and_then(|body| body.media_type.as_deref()) {
            fields.push(("Content-Type".to_owned(), CompiledText::from(media_type)));
        }
        for headers in [&self.scenario.headers, &step.headers] {
            // A field may occur several times in one place; together they replace those of the previous place.
            let is_given = |name: &str| headers.iter().any(|header| header.name.text.eq_ignore_ascii_case(name));
            let host = fields.iter().position(|(name, _)| name.eq_ignore_ascii_case("host") && is_given(name));
            fields.retain(|(name, _)| !is_given(name));
            for header in headers {
                let value = self.plain(&header.value)?;
                let is_host = header.name.text.eq_ignore_ascii_case("host");
                match host {
                    _ if value.0.is_empty() => {}
                    // The first field of a request (RFC 9110 section 7.2).
                    Some(_) if is_host => fields.insert(0, (header.name.text.clone(), value)),
                    _ => fields.push((header.name.text.clone(), value)),
                }
            }
        }
        // The compiler computes the length itself.
        fields.retain(|(name, _)| !name.eq_ignore_ascii_case("content-length"));
        let cookies = if self.has_cookies { own_cookies(&mut fields) } else { None };
        let method = step.method.text.clone();
        Ok(RequestDraft { method, target, fields, cookies, body: body.map(|body| body.text) })
    }

    fn expectations(&mut self, step: &ast::StepDef) -> Result<Vec<Expectation>, CompileError> {
        let says_status = |expect: &ast::ExpectClause| matches!(expect.what, Some(ExpectedValue::Status(_)));
        let mut all = Vec::new();
        if !step.expects.iter().any(says_status) {
            all.push(Expectation::Status(DEFAULT_STATUSES.to_vec()));
        }
        for expect in &step.expects {
            match &expect.what {
                Some(ExpectedValue::Status(wanted)) => all.push(Expectation::Status(wanted.clone())),
                Some(ExpectedValue::Test(test)) => all.push(Expectation::Test(self.test(test)?)),
                None => {}
            }
            if let Some(within) = &expect.within {
                let cause = format!("longer than {}", within.text);
                all.push(Expectation::Within { most: within.value, cause });
            }
        }
        Ok(all)
    }

    pub(super) fn test(&mut self, test: &ast::TestExpr) -> Result<CompiledTest, CompileError> {
        let subject = match &test.subject {
            ast::TestSubject::Header(name) => CompiledSubject::Header(name.text.clone()),
            ast::TestSubject::Body => CompiledSubject::Finder(Finder::Body),
            ast::TestSubject::Json(path) => CompiledSubject::Finder(Finder::Json(pointer(path, MatchPick::First)?)),
            ast::TestSubject::Cookie(name) => CompiledSubject::Finder(Finder::Cookie(name.text.clone())),
            ast::TestSubject::Text(text) => CompiledSubject::Text(self.plain(text)?),
        };
        let claim = match &test.predicate {
            ast::TestPredicate::Compare(comparison, text) => CompiledPredicate::Compare(*comparison, self.plain(text)?),
            ast::TestPredicate::Contains(text) => CompiledPredicate::Contains(self.plain(text)?),
            ast::TestPredicate::Matches(pattern) => CompiledPredicate::Matches(regex(pattern)?),
            ast::TestPredicate::Exists => CompiledPredicate::Exists,
        };
        Ok(CompiledTest { subject, is_negated: test.negated, predicate: claim, cause: checks::cause_of(test) })
    }

    fn take(&mut self, take: &ast::TakeClause) -> Result<CompiledTake, CompileError> {
        let (finder, what) = finder(take)?;
        let default = take.default.as_ref().map(|default| self.plain(default)).transpose()?;
        let cause = format!("take {}: {what} finds nothing", take.name.text);
        Ok(CompiledTake { slot: self.slot(&take.name.text)?, finder, pick: take.pick, default, cause })
    }
}

/// What finds a value, and its name in messages.
pub(in super::super) fn finder(take: &ast::TakeClause) -> Result<(Finder, String), CompileError> {
    Ok(match &take.source {
        TakeSource::Json(path) => (Finder::Json(pointer(path, take.pick)?), format!("json {}", path.text)),
        TakeSource::Header(name) => (Finder::Header(name.text.clone()), format!("header {}", name.text)),
        TakeSource::Regex(pattern, place) => {
            let regex = regex(pattern)?;
            let groups = regex.capture_locations();
            let is_in_head = *place == ast::SearchArea::Headers;
            (Finder::Regex { regex, groups, is_in_head }, format!("regex /{}/", pattern.text))
        }
        TakeSource::Between(between) => {
            let finder = Finder::Between {
                before: between.before.as_bytes().into(),
                after: between.after.as_bytes().into(),
                is_in_head: between.area == ast::SearchArea::Headers,
            };
            (finder, format!("between \"{}\" \"{}\"", between.before, between.after))
        }
        TakeSource::Cookie(name) => (Finder::Cookie(name.text.clone()), format!("cookie {}", name.text)),
        TakeSource::Status => (Finder::Status, "status".to_owned()),
        TakeSource::Body => (Finder::Body, "body".to_owned()),
    })
}

/// Removes a step's own cookies from its fields: a request has only one such field (RFC 6265 section 5.4).
fn own_cookies(fields: &mut Vec<(String, CompiledText)>) -> Option<CompiledText> {
    let own = fields.extract_if(.., |(name, _)| name.eq_ignore_ascii_case("cookie"));
    own.map(|(_, text)| text).reduce(|mut all, next| {
        all.push_filtered(b"; ", &[]);
        all.append(next);
        all
    })
}

fn pointer(path: &ast::Name, pick: MatchPick) -> Result<JsonPointer, CompileError> {
    let read = if pick == MatchPick::First { JsonPointer::parse } else { JsonPointer::parse_query };
    read(&path.text).map_err(|what| CompileError::Text { what, span: path.span })
}

fn regex(pattern: &ast::Name) -> Result<Regex, CompileError> {
    Regex::new(&pattern.text).map_err(|error| CompileError::Text { what: error.to_string(), span: pattern.span })
}

/// Literal text is encoded for a request line before the run.
fn encode_target(mut target: CompiledText) -> CompiledText {
    use crate::execution::text::TextPiece;
    for piece in &mut target.0 {
        if let TextPiece::Literal(literal) = piece {
            let mut bytes = literal.to_vec();
            sanitize(&mut bytes, 0, TextContext::Target);
            *literal = bytes.into();
        }
    }
    target
}
