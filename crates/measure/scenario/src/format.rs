//! Formats a scenario: two blanks for each level, one between words, comments kept.

use super::{
    ast::{
        ArrivalSpacing, BodyContent, Comment, ConditionExpr, DataEnd, DataSetDef, ExpectClause, ExpectedValue,
        FailureAction, FormField, FormFieldValue, HeaderDef, If, MatchPick, OnFailure, PaceDef, PromiseDef,
        RedirectLimit, RowPolicy, Scenario, SearchArea, Section, Spanned, Statement, StatusPattern, StepDef,
        TakeClause, TakeSource, TestExpr, TestPredicate, TestSubject, UserArrivalRate, UserDef, UserLoadModel,
        WaitExpr,
    },
    diagnostic::Diagnostic,
    parse::{COMPARISONS, parse},
    write,
};

/// Formats a text; formatting it again changes nothing.
///
/// # Errors
/// All errors that keep the text from being a scenario.
pub fn format(text: &str) -> Result<String, Vec<Diagnostic>> {
    let scenario = parse(text)?;
    let mut lines = ScenarioFormatter::default();
    lines.file(&scenario);
    Ok(lines.with_comments(&scenario, text))
}

/// A line with its original place.
struct FormattedLine {
    start: usize,
    depth: usize,
    text: String,
    /// The lines of its text, one level deeper.
    raw: Vec<String>,
    is_comment: bool,
    /// Whether an empty line precedes it.
    is_apart: bool,
}

#[derive(Default)]
struct ScenarioFormatter {
    all: Vec<FormattedLine>,
    depth: usize,
}

impl ScenarioFormatter {
    fn put(&mut self, start: usize, text: impl Into<String>) {
        self.put_with(start, text, Vec::new());
    }

    fn put_with(&mut self, start: usize, text: impl Into<String>, raw: Vec<String>) {
        let (depth, text) = (self.depth, text.into());
        self.all.push(FormattedLine { start, depth, text, raw, is_comment: false, is_apart: false });
    }

    fn deeper(&mut self, put: impl FnOnce(&mut Self)) {
        self.depth += 1;
        put(self);
        self.depth -= 1;
    }

    /// Restores comments and empty lines, and sorts everything.
    fn with_comments(mut self, scenario: &Scenario, text: &str) -> String {
        self.all.sort_by_key(|line| line.start);
        let (mut behind, mut own) = (Vec::new(), Vec::new());
        for comment in &scenario.comments {
            let line_start = text[..comment.span.start].rfind('\n').map_or(0, |at| at + 1);
            let is_own = text[line_start..comment.span.start].trim().is_empty();
            if is_own { own.push(comment) } else { behind.push(comment) }
        }
        for comment in behind {
            let idx = self.all.partition_point(|line| line.start <= comment.span.start);
            if let Some(line) = idx.checked_sub(1).and_then(|idx| self.all.get_mut(idx)) {
                line.text = format!("{}  {}", line.text, written(&comment.text));
            }
        }
        own.sort_by_key(|comment| comment.span.start);
        let comments = self.own_lines(&own, text);
        self.all.extend(comments);
        self.all.sort_by_key(|line| line.start);
        self.set_apart(text);
        self.text()
    }

    /// Comments on lines of their own: each as deep as the line it precedes, or as the block at whose end it is.
    fn own_lines(&self, comments: &[&Comment], text: &str) -> Vec<FormattedLine> {
        let (mut lines, mut next) = (Vec::new(), 0);
        // The last line of each open block: its depth and its column.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for comment in comments {
            let start = comment.span.start;
            while let Some(line) = self.all.get(next).filter(|line| line.start <= start) {
                open.retain(|(depth, _)| *depth < line.depth);
                open.push((line.depth, column(text, line.start)));
                next += 1;
            }
            let own = column(text, start);
            let (depth, column_of_next) =
                self.all.get(next).map_or((0, 0), |next| (next.depth, column(text, next.start)));
            // A comment that is indented deeper than a line belongs to that line's block; the last line itself has no block, or
            // its block follows.
            let above = open.iter().rev().find(|(_, column)| *column < own).map_or(0, |(depth, _)| depth + 1);
            let ended = above.min(open.last().map_or(0, |(depth, _)| *depth));
            let depth = if own > column_of_next { depth.max(ended) } else { depth };
            let text = written(&comment.text);
            lines.push(FormattedLine { start, depth, text, raw: Vec::new(), is_comment: true, is_apart: false });
        }
        lines
    }

    /// Keeps one empty line where there were some, and puts one before each user and each part.
    fn set_apart(&mut self, text: &str) {
        for idx in 0..self.all.len() {
            let before = text[..self.all[idx].start].trim_end_matches([' ', '\t']);
            self.all[idx].is_apart = before.strip_suffix('\n').is_some_and(|before| {
                let line = before.rfind('\n').map_or(before, |at| &before[at + 1..]);
                line.trim().is_empty()
            });
        }
        for idx in 1..self.all.len() {
            let line = &self.all[idx];
            if line.depth > 0 || line.is_comment || !["user ", "part "].iter().any(|word| line.text.starts_with(word)) {
                continue;
            }
            // Comments directly above it belong to it.
            let above =
                |idx: usize| self.all[idx - 1].is_comment && !self.all[idx].is_apart && self.all[idx - 1].depth == 0;
            let mut first = idx;
            while first > 0 && above(first) {
                first -= 1;
            }
            self.all[first].is_apart = true;
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (idx, line) in self.all.iter().enumerate() {
            if line.is_apart && idx > 0 {
                text.push('\n');
            }
            indented(&mut text, line.depth, &line.text);
            for raw in &line.raw {
                indented(&mut text, line.depth + 1, raw);
            }
        }
        text
    }
}

fn written(comment: &str) -> String {
    match comment {
        "" => "#".to_owned(),
        text if text.starts_with('!') => format!("#{text}"),
        text => format!("# {text}"),
    }
}

fn indented(text: &mut String, depth: usize, line: &str) {
    if !line.is_empty() {
        text.extend(std::iter::repeat_n("  ", depth));
        text.push_str(line);
    }
    text.push('\n');
}

fn column(text: &str, at: usize) -> usize {
    at - text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

impl ScenarioFormatter {
    fn file(&mut self, scenario: &Scenario) {
        if let Some(base) = &scenario.base {
            self.put(base.span.start, format!("base {}", base.text));
        }
        if let Some(arrivals) = &scenario.load {
            self.put(arrivals.span.start, model(&arrivals.model));
        }
        for setting in &scenario.settings {
            let value = setting.value.as_ref().map_or(String::new(), |value| format!(" {}", value.text));
            self.put(setting.span.start, format!("{}{value}", setting.name.text));
        }
        if let Some(cookies) = &scenario.cookies {
            self.put(cookies.span.start, if cookies.on { "cookies on" } else { "cookies off" });
        }
        self.redirects(scenario.redirects.as_ref());
        self.on_failure(scenario.on_failure.as_ref());
        self.headers(&scenario.headers);
        for variable in &scenario.variables {
            self.put(variable.span.start, format!("let {} = {}", variable.name.text, write::operand(&variable.value)));
        }
        for set in &scenario.data {
            self.put(set.span.start, data(set));
        }
        for promise in &scenario.promises {
            self.put(promise.span.start, promised(promise));
        }
        for part in &scenario.parts {
            self.put(part.span.start, format!("part {}", part.name.text));
            self.deeper(|lines| lines.statements(&part.body));
        }
        for user in &scenario.users {
            match &user.name {
                None => self.user(user),
                Some(name) => {
                    let share = user.share.as_ref().map_or(String::new(), |share| format!(" {}", share.text));
                    self.put(user.span.start, format!("user {}{share}", name.text));
                    self.deeper(|lines| lines.user(user));
                }
            }
        }
    }

    fn user(&mut self, user: &UserDef) {
        self.on_failure(user.on_failure.as_ref());
        self.pace(user.pace.as_ref());
        self.section("setup", user.setup.as_ref());
        self.statements(&user.body);
        self.section("teardown", user.teardown.as_ref());
    }

    fn section(&mut self, word: &str, section: Option<&Section>) {
        if let Some(section) = section {
            self.put(section.span.start, word);
            self.deeper(|lines| lines.statements(&section.body));
        }
    }

    fn pace(&mut self, pace: Option<&PaceDef>) {
        if let Some(pace) = pace {
            self.put(pace.span.start, format!("pace {}", wait(&pace.time)));
        }
    }

    fn redirects(&mut self, redirects: Option<&RedirectLimit>) {
        if let Some(redirects) = redirects {
            let max = redirects.max.map_or("off".to_owned(), |max| max.to_string());
            self.put(redirects.span.start, format!("redirects {max}"));
        }
    }

    fn on_failure(&mut self, on_failure: Option<&OnFailure>) {
        if let Some(on_failure) = on_failure {
            let way = match on_failure.action {
                FailureAction::Continue => "continue",
                FailureAction::Restart => "restart",
                FailureAction::Leave => "leave",
            };
            self.put(on_failure.span.start, format!("on failure {way}"));
        }
    }

    fn headers(&mut self, headers: &[HeaderDef]) {
        for header in headers {
            let value = write::line(&header.value);
            let blank = if value.is_empty() { "" } else { " " };
            self.put(header.span.start, format!("{}:{blank}{value}", header.name.text));
        }
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    fn block(&mut self, start: usize, text: String, body: &[Statement]) {
        self.put(start, text);
        self.deeper(|lines| lines.statements(body));
    }

    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Step(step) => {
                self.put(step.span.start, format!("step {}", step.name.text));
                self.deeper(|lines| lines.step(step));
            }
            Statement::Transaction(transaction) => {
                let text = format!("transaction {}", transaction.name.text);
                self.block(transaction.span.start, text, &transaction.body);
            }
            Statement::Think(think) => self.put(think.span.start, format!("think {}", wait(&think.time))),
            Statement::Meet(meet) => {
                self.put(meet.span.start, format!("meet {} within {}", meet.users.text, meet.within.text));
            }
            Statement::Repeat(repeat) => {
                let max = repeat.max.as_ref().map_or(String::new(), |max| format!("..{}", max.text));
                self.put(repeat.span.start, format!("repeat {}{max}", repeat.min.text));
                self.looped(repeat.pace.as_ref(), &repeat.body);
            }
            Statement::While(looped) => {
                let max = looped.max.as_ref().map_or(String::new(), |max| format!(" max {}", max.text));
                self.put(looped.span.start, format!("while {}{max}", condition(&looped.condition)));
                self.looped(looped.pace.as_ref(), &looped.body);
            }
            Statement::If(choice) => self.choice(choice),
            Statement::Chance(chance) => {
                self.block(chance.span.start, format!("chance {}", chance.share.text), &chance.body);
                self.section("else", chance.otherwise.as_ref());
            }
            Statement::Do(part) => self.put(part.span.start, format!("do {}", part.name.text)),
            Statement::Let(variable) => {
                let value = write::operand(&variable.value);
                self.put(variable.span.start, format!("let {} = {value}", variable.name.text));
            }
        }
    }

    fn looped(&mut self, pace: Option<&PaceDef>, body: &[Statement]) {
        self.deeper(|lines| {
            lines.pace(pace);
            lines.statements(body);
        });
    }

    fn choice(&mut self, choice: &If) {
        for (idx, branch) in choice.branches.iter().enumerate() {
            let word = if idx == 0 { "if" } else { "else if" };
            self.block(branch.span.start, format!("{word} {}", condition(&branch.condition)), &branch.body);
        }
        self.section("else", choice.otherwise.as_ref());
    }

    fn step(&mut self, step: &StepDef) {
        self.put(step.method.span.start, format!("{} {}", step.method.text, write::line(&step.url)));
        self.headers(&step.headers);
        if let Some(body) = &step.body {
            self.body(body.span.start, &body.content);
        }
        for each in &step.expects {
            self.put(each.span.start, expect(each));
        }
        for each in &step.takes {
            self.put(each.span.start, take(each));
        }
        self.redirects(step.redirects.as_ref());
        if let Some(timeout) = &step.timeout {
            self.put(timeout.span.start, format!("timeout {}", timeout.after.text));
        }
        self.on_failure(step.on_failure.as_ref());
    }

    fn body(&mut self, start: usize, content: &BodyContent) {
        match content {
            BodyContent::Text(template) => self.text_body(start, "body", write::block(template)),
            BodyContent::Json(template) => self.text_body(start, "json", write::block(template)),
            BodyContent::File(file) => self.put(start, format!("body from {}", write::plain(file))),
            BodyContent::Form(fields) => self.fields(start, "form", fields),
            BodyContent::Multipart(fields) => self.fields(start, "multipart", fields),
        }
    }

    /// A single line of text follows the keyword, several are put below it.
    fn text_body(&mut self, start: usize, word: &str, lines: Vec<String>) {
        match &lines[..] {
            [one] if one.is_empty() => self.put(start, format!("{word} ${{\"\"}}")),
            [one] if !one.starts_with("from") && !one.starts_with('#') => self.put(start, format!("{word} {one}")),
            _ => self.put_with(start, word, lines),
        }
    }

    fn fields(&mut self, start: usize, word: &str, fields: &[FormField]) {
        self.put(start, word);
        self.deeper(|lines| {
            for field in fields {
                let name = write::plain(&field.name);
                let text = match &field.value {
                    FormFieldValue::Text(value) => format!("{name} = {}", write::line(value)).trim_end().to_owned(),
                    FormFieldValue::File { path, media_type } => {
                        let media_type =
                            media_type.as_ref().map_or(String::new(), |name| format!(" type {}", name.text));
                        format!("{name} from {}{media_type}", write::plain(path))
                    }
                };
                lines.put(field.span.start, text);
            }
        });
    }
}

/// An optional clause.
fn clause<T>(word: &str, written: Option<&Spanned<T>>) -> String {
    written.map_or(String::new(), |written| format!(" {word} {}", written.text))
}

fn model(model: &UserLoadModel) -> String {
    match model {
        UserLoadModel::Open { rate, arrivals, max } => {
            let arrivals = if *arrivals == ArrivalSpacing::Poisson { " poisson" } else { "" };
            let (rate, length) = match rate {
                UserArrivalRate::Steady { rate, length } => (&rate.text, clause("for", length.as_ref())),
                UserArrivalRate::Profile(profile) => (&profile.text, String::new()),
            };
            format!("open {rate}{arrivals}{length}{}", clause("max", max.as_ref()))
        }
        UserLoadModel::Closed { users, ramp, length, repeat } => {
            let (ramp, length) = (clause("ramp", ramp.as_ref()), clause("for", length.as_ref()));
            format!("closed {}{ramp}{length}{}", users.text, clause("repeat", repeat.as_ref()))
        }
    }
}

fn data(set: &DataSetDef) -> String {
    let columns: Vec<&str> = set.columns.iter().map(|column| column.text.as_str()).collect();
    let columns = if columns.is_empty() { String::new() } else { format!(" columns {}", columns.join(", ")) };
    let separator = match set.separator {
        None => String::new(),
        Some('\t') => " separator tab".to_owned(),
        Some(other) => format!(" separator {other}"),
    };
    let policy = match set.policy {
        RowPolicy::Sequential => "sequential",
        RowPolicy::Random => "random",
        RowPolicy::Unique => "unique",
        RowPolicy::PerUser => "per user",
    };
    let end = match set.end {
        None => "",
        Some(DataEnd::Stop) => " then stop",
        Some(DataEnd::Wrap) => " then wrap",
        Some(DataEnd::Error) => " then error",
    };
    format!("data {} from {}{columns}{separator} {policy}{end}", set.name.text, write::plain(&set.file))
}

fn promised(promise: &PromiseDef) -> String {
    let of = promise.of.as_ref().map_or(String::new(), |of| format!("{} ", of.text));
    let terms: Vec<&str> = promise.terms.iter().map(|term| term.text.as_str()).collect();
    format!("promise {of}{}", terms.join(", "))
}

fn wait(wait: &WaitExpr) -> String {
    match wait {
        WaitExpr::Fixed(time) => time.text.clone(),
        WaitExpr::Uniform(min, max) => format!("{}..{}", min.text, max.text),
        WaitExpr::Exponential(mean) => format!("exponential {}", mean.text),
        WaitExpr::Normal(mean, deviation) => format!("normal {} {}", mean.text, deviation.text),
    }
}

fn condition(condition: &ConditionExpr) -> String {
    let tests: Vec<String> = condition.tests.iter().map(test).collect();
    tests.join(if condition.any { " or " } else { " and " })
}

fn test(test: &TestExpr) -> String {
    let subject = match &test.subject {
        TestSubject::Header(name) => format!("header {}", name.text),
        TestSubject::Body => "body".to_owned(),
        TestSubject::Json(path) => format!("json {}", path.text),
        TestSubject::Cookie(name) => format!("cookie {}", name.text),
        // A tested number must not look like a status.
        TestSubject::Text(template) => match template.fixed() {
            Some(text) => write::quoted(text),
            None => write::operand(template),
        },
    };
    let claim = match &test.predicate {
        TestPredicate::Compare(comparison, value) => {
            let sign = COMPARISONS.iter().find(|(_, known)| known == comparison).map_or("==", |(sign, _)| sign);
            format!("{sign} {}", write::operand(value))
        }
        TestPredicate::Contains(text) => format!("contains {}", write::operand(text)),
        TestPredicate::Matches(pattern) => format!("matches {}", write::regex(pattern)),
        TestPredicate::Exists => "exists".to_owned(),
    };
    let negated = if test.negated { "not " } else { "" };
    format!("{subject} {negated}{claim}")
}

fn expect(expect: &ExpectClause) -> String {
    let what = match &expect.what {
        None => String::new(),
        Some(ExpectedValue::Test(expected)) => format!(" {}", test(expected)),
        Some(ExpectedValue::Status(statuses)) => {
            let statuses = statuses.iter().map(|status| match status {
                StatusPattern::One(one) => one.to_string(),
                StatusPattern::Class(digit) => format!("{digit}xx"),
            });
            format!(" {}", statuses.collect::<Vec<_>>().join(", "))
        }
    };
    format!("expect{what}{}", clause("within", expect.within.as_ref()))
}

fn take(take: &TakeClause) -> String {
    let place = |place: SearchArea| if place == SearchArea::Headers { " in headers" } else { "" };
    let source = match &take.source {
        TakeSource::Json(path) => format!("json {}", path.text),
        TakeSource::Header(name) => format!("header {}", name.text),
        TakeSource::Regex(pattern, at) => format!("regex {}{}", write::regex(pattern), place(*at)),
        TakeSource::Between(between) => {
            let (before, after) = (write::quoted(&between.before), write::quoted(&between.after));
            format!("between {before} {after}{}", place(between.area))
        }
        TakeSource::Cookie(name) => format!("cookie {}", name.text),
        TakeSource::Status => "status".to_owned(),
        TakeSource::Body => "body".to_owned(),
    };
    let pick = match take.pick {
        MatchPick::First => String::new(),
        MatchPick::Last => " last".to_owned(),
        MatchPick::Any => " any".to_owned(),
        MatchPick::Nth(n) => format!(" nth {n}"),
    };
    let default = take.default.as_ref().map_or(String::new(), |default| format!(" or {}", write::operand(default)));
    format!("take {} = {source}{pick}{default}", take.name.text)
}
