//! Checks requests: header fields, relative paths, and endless loops.

use super::{
    super::{
        ast::{
            BodyContent, HeaderDef, HoleSource, Scenario, Span, Statement, StepDef, Template, TemplatePiece, TestExpr,
        },
        diagnostic::{Diagnostic, nearest},
    },
    Diagnostics, for_each_statement, steps,
};

/// These follow from the body; a given value could contradict it.
const FRAMING: [&str; 2] = ["content-length", "transfer-encoding"];

/// The methods of RFC 9110, RFC 5789, RFC 4918, RFC 3253 and RFC 5323, and those that caches know.
const METHODS: [&str; 20] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
    "QUERY",
    "PURGE",
    "CONNECT",
];

pub(super) fn check(scenario: &Scenario, found: &mut Diagnostics) {
    if scenario.users.is_empty() {
        let fault = Diagnostic::error(Span::default(), "nobody does anything");
        found.add(fault.fix("write a step: `step home`, and `GET /` below it, indented"));
    }
    let steps = steps(scenario);
    for header in scenario.headers.iter().chain(steps.iter().flat_map(|step| &step.headers)) {
        field(header, found);
    }
    let is_relative =
        |url: &Template| matches!(url.pieces.first(), Some(TemplatePiece::Text(text)) if text.starts_with('/'));
    if let Some(step) = steps.iter().find(|step| scenario.base.is_none() && is_relative(&step.url)) {
        let warning = Diagnostic::warning(step.url.span, "a path, but no base that it is a path of");
        found.add(warning.fix("write `base http://host:port` above, or give a URL when it is run"));
    }
    for step in &steps {
        method(step, found);
        let body = step.body.as_ref();
        if let Some(BodyContent::Text(text) | BodyContent::Json(text)) = body.map(|body| &body.content) {
            remark(text, body.map_or(text.span, |body| body.span), found);
        }
    }
    for_each_statement(scenario.blocks(), &mut |statement| endless(statement, found));
}

/// A method outside the standards may be intended, but is more often a typing error.
fn method(step: &StepDef, found: &mut Diagnostics) {
    let method = step.method.text.as_str();
    if METHODS.contains(&method) {
        return;
    }
    let warning = Diagnostic::warning(step.method.span, format!("no standard has a method `{method}`"));
    let letters = |word: &str| {
        let mut letters = word.as_bytes().to_vec();
        letters.sort_unstable();
        letters
    };
    let mixed_up = METHODS.iter().find(|known| letters(known) == letters(method)).map(|known| (*known).to_owned());
    found.add(match mixed_up.or_else(|| nearest(method, METHODS.iter().copied())) {
        Some(near) => warning.fix(format!("did you mean `{near}`?")),
        None => warning,
    });
}

fn field(header: &HeaderDef, found: &mut Diagnostics) {
    if FRAMING.contains(&header.name.text.to_ascii_lowercase().as_str()) {
        let fault = Diagnostic::error(header.name.span, format!("`{}` follows from the body", header.name.text));
        found.add(fault.fix("leave it out: it is sent as it must be"));
    }
    let texts = header.value.pieces.iter().filter_map(|piece| match piece {
        TemplatePiece::Text(text) => Some(text.as_str()),
        TemplatePiece::Hole(_) => None,
    });
    if texts.clone().any(|text| text.contains(['\r', '\n'])) {
        let fault = Diagnostic::error(header.value.span, "the value of a header field has one line");
        found.add(fault.fix("leave the line feed out"));
    }
    remark(&header.value, header.span, found);
}

/// Reports text that looks like a comment where comments are not possible.
fn remark(text: &Template, span: Span, found: &mut Diagnostics) {
    let is_one_line =
        text.pieces.iter().all(|piece| !matches!(piece, TemplatePiece::Text(text) if text.contains('\n')));
    let is_remark = |piece: &TemplatePiece| matches!(piece, TemplatePiece::Text(text) if text.contains(" # ") || text.starts_with("# "));
    if is_one_line && text.pieces.iter().any(is_remark) {
        let warning = Diagnostic::warning(span, "the text after the `#` is sent");
        found.add(warning.fix("put a comment on a line of its own"));
    }
}

/// Reports loops that never end, and branches that are never taken.
fn endless(statement: &Statement, found: &mut Diagnostics) {
    match statement {
        Statement::While(looped) if looped.max.is_none() => {
            let (mut set, mut waits) = (Vec::new(), looped.pace.is_some());
            let mut does = false;
            for_each_statement([&looped.body[..]], &mut |statement| match statement {
                Statement::Step(step) => {
                    waits = true;
                    set.extend(step.takes.iter().map(|take| take.name.text.as_str()));
                }
                Statement::Let(variable) => set.push(variable.name.text.as_str()),
                Statement::Do(_) => does = true,
                Statement::Think(_) | Statement::Meet(_) => waits = true,
                _ => {}
            });
            if !waits && !does {
                let fault =
                    Diagnostic::error(looped.span, "this loop neither asks nor waits: it would take all of a core");
                found.add(fault.fix("put a step or `think` into it, or write `max` and a number"));
                return;
            }
            let texts = looped.condition.tests.iter().flat_map(TestExpr::texts);
            let changes = texts.flat_map(Template::holes).any(|hole| match &hole.source {
                HoleSource::Variable(name) => set.contains(&name.text.as_str()),
                HoleSource::Column(..) | HoleSource::Text(_) => false,
                _ => true,
            });
            if !changes && !does {
                let warning = Diagnostic::warning(looped.span, "nothing in this loop changes its condition");
                found.add(warning.fix("take the value again within it, or write `max` and a number"));
            }
        }
        Statement::Chance(chance) if chance.share.value >= 100.0 => {
            if let Some(otherwise) = &chance.otherwise {
                let warning = Diagnostic::warning(otherwise.span, "nobody comes here");
                found.add(warning.other(chance.span, "all go this way"));
            }
        }
        _ => {}
    }
}
