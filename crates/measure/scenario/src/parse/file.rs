//! Parses the statements of a file: arrivals, settings, data sets, promises, parts and users.

use fathom_engine::pace::Profile;
use fathom_http::{url::Url, users::OPTIONS};
use fathom_model::{OptionDoc, ValueKind};

use super::{
    super::{
        ast::{
            ArrivalSpacing, DataEnd, DataSetDef, FailureAction, Name, OnFailure, OnOffLine, PartDef, PromiseDef,
            RedirectLimit, RowPolicy, Scenario, Section, SettingLine, Spanned, Statement, UserArrivalRate, UserDef,
            UserLoad, UserLoadModel, VariableDef,
        },
        blocks::LineNode,
        diagnostic::{BoxedDiagnostic, Diagnostic, nearest},
    },
    LineContext, Parser,
    cursor::{Cursor, has_unit, quantity},
    hole::{GENERATORS, is_name},
    unknown,
};

/// The options that a file may set: all options of connections, but not the URL.
pub(in super::super) fn settings() -> impl Iterator<Item = &'static OptionDoc> {
    OPTIONS.iter().filter(|option| option.name != "url")
}

impl Parser<'_> {
    pub(super) fn file(&mut self, nodes: &[LineNode]) -> Scenario {
        let mut scenario = Scenario::default();
        // Steps outside of any user belong to the only kind of user.
        let mut alone = UserDef::default();
        for node in nodes {
            if self.is_full() {
                break;
            }
            if let Some(header) = self.header(node) {
                scenario.headers.push(header);
                continue;
            }
            let (word, _) = self.begin(node);
            match word.text.as_str() {
                "base" => {
                    let base = self.leaf(node, base);
                    self.once(&mut scenario.base, base, |base| base.span);
                }
                "open" | "closed" => {
                    let model = self.leaf(node, if word.text == "open" { open } else { closed });
                    let arrivals = model.map(|model| UserLoad { span: node.span, model });
                    self.once(&mut scenario.load, arrivals, |arrivals| arrivals.span);
                }
                "cookies" => {
                    let switch = self.leaf(node, on_off).map(|on| OnOffLine { span: node.span, on });
                    self.once(&mut scenario.cookies, switch, |switch| switch.span);
                }
                "redirects" => {
                    let redirects = self.redirects(node);
                    self.once(&mut scenario.redirects, redirects, |redirects| redirects.span);
                }
                "on" => {
                    let on_failure = self.on_failure(node);
                    self.once(&mut scenario.on_failure, on_failure, |way| way.span);
                }
                "let" if alone.body.is_empty() => scenario.variables.extend(self.variable(node)),
                "data" => scenario.data.extend(self.leaf(node, |cursor| data(cursor, node))),
                "promise" => scenario.promises.extend(self.leaf(node, |cursor| promise(cursor, node))),
                "part" => {
                    let name = self.line(node, |cursor| cursor.words("a name"));
                    let body = self.statements(&node.children, LineContext::Block);
                    scenario.parts.extend(name.map(|name| PartDef { span: node.span, name, body }));
                }
                "user" => scenario.users.extend(self.user(node)),
                "setup" | "teardown" | "pace" => self.user_line(node, &word, &mut alone),
                _ if settings().any(|option| option.name == word.text) => {
                    scenario.settings.extend(self.leaf(node, |cursor| setting(cursor, &word, node)));
                }
                _ => self.statement(node, LineContext::File, &mut alone.body),
            }
            if alone.has_content() && alone.span.end == 0 {
                alone.span = node.span;
            }
        }
        if alone.has_content() {
            self.add_implicit_user(&mut scenario, alone);
        }
        scenario
    }

    /// Steps outside of any user form a user, unless there are others.
    fn add_implicit_user(&mut self, scenario: &mut Scenario, alone: UserDef) {
        match scenario.users.first() {
            None => scenario.users.push(alone),
            Some(user) => {
                let fault =
                    Diagnostic::error(alone.span, "this is outside of the users").other(user.span, "the first user");
                self.fault(fault.fix("indent it below a user, or below a `part` that users `do`"));
            }
        }
    }

    fn user(&mut self, node: &LineNode) -> Option<UserDef> {
        let head = self.line(node, |cursor| {
            let mut name = cursor.words("a name")?;
            let Some((before, share)) = name.text.rsplit_once(' ').filter(|(_, share)| share.ends_with('%')) else {
                return Ok((name, None));
            };
            let span = (name.span.end - share.len()..name.span.end).into();
            let share = percent(&Name { text: share.to_owned(), span })?;
            let length = before.len();
            name.text.truncate(length);
            name.span.end = share.span.start - 1;
            Ok((name, Some(share)))
        });
        let mut user = UserDef { span: node.span, ..UserDef::default() };
        for child in &node.children {
            let (word, _) = self.begin(child);
            if ["setup", "teardown", "pace", "on"].contains(&word.text.as_str()) {
                self.user_line(child, &word, &mut user);
            } else {
                self.statement(child, LineContext::User, &mut user.body);
            }
        }
        let (name, share) = head?;
        Some(UserDef { name: Some(name), share, ..user })
    }

    /// Parses the statements of a user other than those of its iterations.
    fn user_line(&mut self, node: &LineNode, word: &Name, user: &mut UserDef) {
        match word.text.as_str() {
            "pace" => {
                let pace = self.pace(node);
                self.once(&mut user.pace, pace, |pace| pace.span);
            }
            "on" => {
                let on_failure = self.on_failure(node);
                self.once(&mut user.on_failure, on_failure, |way| way.span);
            }
            _ => {
                self.line(node, |_| Ok(()));
                let section = Section { span: node.span, body: self.statements(&node.children, LineContext::Block) };
                let slot = if word.text == "setup" { &mut user.setup } else { &mut user.teardown };
                self.once(slot, Some(section), |section| section.span);
            }
        }
    }

    pub(super) fn redirects(&mut self, node: &LineNode) -> Option<RedirectLimit> {
        self.leaf(node, |cursor| {
            let word = cursor.need("`off`, or a number")?;
            let max = if word.text == "off" {
                None
            } else {
                Some(word.text.parse().ok().filter(|max| (1..=100).contains(max)))
            };
            match max {
                Some(None) => {
                    Err(Diagnostic::error(word.span, format!("`{}` is not a number of redirects", word.text))
                        .fix("write `redirects off`, or a number from 1 to 100")
                        .boxed())
                }
                max => Ok(RedirectLimit { span: node.span, max: max.flatten() }),
            }
        })
    }

    pub(super) fn on_failure(&mut self, node: &LineNode) -> Option<OnFailure> {
        self.leaf(node, |cursor| {
            let ways = [
                ("continue", FailureAction::Continue),
                ("restart", FailureAction::Restart),
                ("leave", FailureAction::Leave),
            ];
            if cursor.keyword("failure").is_none() {
                return Err(cursor.missing("`failure`"));
            }
            let word = cursor.need("continue, restart or leave")?;
            let way = ways.iter().find(|(name, _)| *name == word.text);
            way.map(|(_, way)| OnFailure { span: node.span, action: *way }).ok_or_else(|| {
                Diagnostic::error(word.span, format!("`{}` is not an action on failure", word.text))
                    .fix("write continue, restart or leave")
                    .suggest(nearest(&word.text, ways.map(|(name, _)| name)))
                    .boxed()
            })
        })
    }

    pub(super) fn variable(&mut self, node: &LineNode) -> Option<VariableDef> {
        self.leaf(node, |cursor| {
            let name = variable_name(cursor)?;
            equals(cursor, &format!("let {} = \"…\"", name.text))?;
            Ok(VariableDef { span: node.span, name, value: cursor.operand("a value")? })
        })
    }
}

impl UserDef {
    /// Whether the user has any content.
    fn has_content(&self) -> bool {
        !self.body.is_empty() || self.setup.is_some() || self.teardown.is_some() || self.pace.is_some()
    }
}

impl Default for UserDef {
    fn default() -> Self {
        Self {
            span: (0..0).into(),
            name: None,
            share: None,
            on_failure: None,
            pace: None,
            setup: None,
            body: Vec::<Statement>::new(),
            teardown: None,
        }
    }
}

/// A name that a hole can have.
pub(super) fn variable_name(cursor: &mut Cursor<'_>) -> Result<Name, BoxedDiagnostic> {
    let name = cursor.need("a name")?;
    if GENERATORS.iter().any(|(generator, _)| *generator == name.text) {
        let fault = Diagnostic::error(name.span, format!("`{}` is a name of fathom's own", name.text));
        return Err(fault.fix(format!("choose another, such as `my-{}`", name.text)).boxed());
    }
    if is_name(&name.text) {
        return Ok(name);
    }
    Err(Diagnostic::error(name.span, format!("`{}` is not a name", name.text))
        .fix("names are letters, digits, `_` and `-`, and begin with a letter")
        .boxed())
}

/// The sign between a name and its value.
pub(super) fn equals(cursor: &mut Cursor<'_>, usage: &str) -> Result<(), BoxedDiagnostic> {
    match cursor.keyword("=") {
        Some(_) => Ok(()),
        None => Err(cursor.missing("`=`").fix(format!("such as `{usage}`")).boxed()),
    }
}

/// Parses a share such as `30%`.
pub(super) fn percent(word: &Name) -> Result<Spanned<f64>, BoxedDiagnostic> {
    let number = word.text.strip_suffix('%').filter(|number| number.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
    match number.and_then(|number| number.parse().ok()) {
        Some(value) if value > 0.0 && value <= 100.0 => Ok(Spanned { value, text: word.text.clone(), span: word.span }),
        _ => Err(Diagnostic::error(word.span, format!("`{}` is not a share", word.text))
            .fix("write it as 30%; it is above 0% and at most 100%")
            .boxed()),
    }
}

fn base(cursor: &mut Cursor<'_>) -> Result<Name, BoxedDiagnostic> {
    let word = cursor.need("a URL")?;
    match word.text.parse::<Url>() {
        Ok(_) if !word.text.contains(['?', '#']) => Ok(word),
        Ok(_) => Err(Diagnostic::error(word.span, "the base has a query or a fragment")
            .fix("paths of steps are appended to it")
            .boxed()),
        Err(error) => Err(Diagnostic::error(word.span, error.to_string()).fix(error.hint()).boxed()),
    }
}

fn on_off(cursor: &mut Cursor<'_>) -> Result<bool, BoxedDiagnostic> {
    let word = cursor.need("on or off")?;
    match word.text.as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Diagnostic::error(word.span, format!("`{}` is neither on nor off", word.text)).boxed()),
    }
}

/// `200/s poisson for 5m max 5000`
fn open(cursor: &mut Cursor<'_>) -> Result<UserLoadModel, BoxedDiagnostic> {
    const USAGE: &str = "such as `open 200/s for 5m`, or steps and ramps: `open 0-200:1m, 200:5m`";
    const CLAUSES: [&str; 4] = ["poisson", "constant", "for", "max"];
    let mut rate = cursor.need("a rate").map_err(|fault| fault.fix(USAGE).boxed())?;
    let is_clause = |mut ahead: Cursor<'_>| ahead.word().is_none_or(|word| CLAUSES.contains(&word.text.as_str()));
    while !is_clause(*cursor) {
        let more = cursor.need("a rate")?;
        rate = Name { text: format!("{} {}", rate.text, more.text), span: (rate.span.start..more.span.end).into() };
    }
    let (mut arrivals, mut length, mut max) = (ArrivalSpacing::Constant, None, None);
    while let Some(word) = cursor.word() {
        match word.text.as_str() {
            "poisson" => arrivals = ArrivalSpacing::Poisson,
            "constant" => arrivals = ArrivalSpacing::Constant,
            "for" => length = Some(cursor.time("a time")?),
            "max" => max = Some(cursor.count("a number of users", 1)?),
            _ => return Err(clause(&word, &CLAUSES)),
        }
    }
    let rate = if rate.text.contains(':') {
        if let Some(length) = length {
            return Err(Diagnostic::error(length.span, "the parts already define how long it takes")
                .fix("leave `for` out")
                .boxed());
        }
        for length in rate.text.split(',').filter_map(|part| part.split_once(':')).map(|(_, length)| length.trim()) {
            has_unit(length, rate.span)?;
        }
        match rate.text.parse::<Profile>() {
            Ok(value) => UserArrivalRate::Profile(Spanned { value, text: rate.text, span: rate.span }),
            Err(error) => return Err(Diagnostic::error(rate.span, error.to_string()).fix(USAGE).boxed()),
        }
    } else {
        let rate = quantity::<fathom_model::units::PerSec>(&rate).map_err(|fault| fault.fix(USAGE).boxed())?;
        if rate.value.get() <= 0.0 {
            return Err(Diagnostic::error(rate.span, "nobody would ever come").boxed());
        }
        UserArrivalRate::Steady { rate, length }
    };
    Ok(UserLoadModel::Open { rate, arrivals, max })
}

/// `500 ramp 1m for 5m`
fn closed(cursor: &mut Cursor<'_>) -> Result<UserLoadModel, BoxedDiagnostic> {
    const CLAUSES: [&str; 3] = ["ramp", "for", "repeat"];
    let users = cursor
        .count("a number of users", 1)
        .map_err(|fault| fault.fix("such as `closed 500 ramp 1m for 5m`").boxed())?;
    let (mut ramp, mut length, mut repeat) = (None, None, None);
    while let Some(word) = cursor.word() {
        match word.text.as_str() {
            "ramp" => ramp = Some(cursor.time("a time")?),
            "for" => length = Some(cursor.time("a time")?),
            "repeat" => repeat = Some(cursor.count("a number", 1)?),
            _ => return Err(clause(&word, &CLAUSES)),
        }
    }
    Ok(UserLoadModel::Closed { users, ramp, length, repeat })
}

/// The error of a word without meaning in its place.
pub(super) fn clause(word: &Name, known: &[&str]) -> BoxedDiagnostic {
    Diagnostic::error(word.span, format!("unexpected word `{}`", word.text))
        .fix(format!("there is {} here", known.join(", ")))
        .suggest(nearest(&word.text, known.iter().copied()))
        .boxed()
}

fn setting(cursor: &mut Cursor<'_>, word: &Name, node: &LineNode) -> Result<SettingLine, BoxedDiagnostic> {
    let option = settings().find(|option| option.name == word.text);
    let Some(option) = option else { return Err(unknown(word, LineContext::File)) };
    if option.value == ValueKind::Flag {
        return Ok(SettingLine { span: node.span, name: word.clone(), value: None });
    }
    let value = cursor.words("a value")?;
    if option.value == ValueKind::Span {
        has_unit(&value.text, value.span)?;
    }
    match option.exact(&value.text) {
        Ok(_) => Ok(SettingLine { span: node.span, name: word.clone(), value: Some(value) }),
        Err(error) => Err(Diagnostic::error(value.span, error.to_string())
            .fix(format!("{}: {}", option.name, option.help))
            .boxed()),
    }
}

/// `accounts from accounts.csv unique then stop`
fn data(cursor: &mut Cursor<'_>, node: &LineNode) -> Result<DataSetDef, BoxedDiagnostic> {
    const USAGE: &str = "such as `data accounts from accounts.csv unique then stop`";
    const CLAUSES: [&str; 7] = ["columns", "separator", "sequential", "random", "unique", "per", "then"];
    let name = variable_name(cursor)?;
    if cursor.keyword("from").is_none() {
        return Err(cursor.missing("`from`").fix(USAGE).boxed());
    }
    let file = cursor.plain("a file")?;
    let mut data = DataSetDef {
        span: node.span,
        name,
        file,
        columns: Vec::new(),
        separator: None,
        policy: RowPolicy::default(),
        end: None,
    };
    while let Some(word) = cursor.word() {
        match word.text.as_str() {
            "columns" => data.columns = list(cursor, "a column")?,
            "separator" => data.separator = Some(separator(cursor)?),
            "sequential" => data.policy = RowPolicy::Sequential,
            "random" => data.policy = RowPolicy::Random,
            "unique" => data.policy = RowPolicy::Unique,
            "per" => {
                cursor.keyword("user").ok_or_else(|| cursor.missing("`user`"))?;
                data.policy = RowPolicy::PerUser;
            }
            "then" => {
                let ends = [("stop", DataEnd::Stop), ("wrap", DataEnd::Wrap), ("error", DataEnd::Error)];
                let word = cursor.need("stop, wrap or error")?;
                let end = ends.iter().find(|(name, _)| *name == word.text);
                data.end = Some(end.ok_or_else(|| clause(&word, &ends.map(|(name, _)| name)))?.1);
                if data.policy == RowPolicy::Unique && data.end == Some(DataEnd::Wrap) {
                    let fault = Diagnostic::error(word.span, "rows that come again are not unique");
                    return Err(fault.fix("write `unique then stop` or `unique then error`, or `sequential`").boxed());
                }
            }
            _ => return Err(clause(&word, &CLAUSES)),
        }
    }
    Ok(data)
}

/// Names separated by commas.
fn list(cursor: &mut Cursor<'_>, what: &str) -> Result<Vec<Name>, BoxedDiagnostic> {
    let mut all = Vec::new();
    loop {
        let word = cursor.need(what)?;
        let (mut at, goes_on) = (word.span.start, word.text.ends_with(','));
        for part in word.text.trim_end_matches(',').split(',') {
            if part.is_empty() || part.starts_with('#') {
                return Err(Diagnostic::error(word.span, format!("`{part}` is not a name of {what}")).boxed());
            }
            all.push(Name { text: part.to_owned(), span: (at..at + part.len()).into() });
            at += part.len() + 1;
        }
        if !goes_on {
            return Ok(all);
        }
    }
}

fn separator(cursor: &mut Cursor<'_>) -> Result<char, BoxedDiagnostic> {
    let word = cursor.need("a character, or `tab`")?;
    let mut chars = word.text.chars();
    match (word.text.as_str(), chars.next(), chars.next()) {
        ("tab", ..) => Ok('\t'),
        (_, Some(one), None) if one.is_ascii_punctuation() && one != '"' && one != '#' => Ok(one),
        _ => Err(Diagnostic::error(word.span, format!("`{}` separates no values", word.text))
            .fix("write one sign such as ; or |, or `tab`")
            .boxed()),
    }
}

/// `checkout p99 < 300ms, errors < 0.1%`
fn promise(cursor: &mut Cursor<'_>, node: &LineNode) -> Result<PromiseDef, BoxedDiagnostic> {
    const USAGE: &str =
        "such as `promise p99 < 300ms, errors < 0.1%`, or with a step before it: `promise login p99 < 1s`";
    let whole = cursor.words("a promise")?;
    let wrong = |text: &str| Diagnostic::error(whole.span, format!("`{text}` promises nothing")).fix(USAGE).boxed();
    let mut promise = PromiseDef { span: node.span, of: None, terms: Vec::new() };
    let mut begin = whole.span.start;
    for (idx, part) in whole.text.split(',').enumerate() {
        let term = part.trim();
        let start = begin + (part.len() - part.trim_start().len());
        begin += part.len() + 1;
        // The parsed text has one blank where the file may have several: then the error marks the whole line.
        let is_as_written = whole.text.len() == whole.span.end - whole.span.start;
        let span = if is_as_written { (start..start + term.len()).into() } else { whole.span };
        let at = term.find(['<', '>', '≤', '≥']).ok_or_else(|| wrong(term))?;
        let value = term[at..].trim_start_matches(['<', '>', '≤', '≥', '=']);
        let relation = term[at..at + (term.len() - at - value.len())].trim();
        let (value, before) = (value.trim(), term[..at].trim());
        let (of, metric) = before.rsplit_once(' ').map_or((None, before), |(of, metric)| (Some(of), metric));
        let is_metric =
            !metric.is_empty() && metric.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        let is_value = value.starts_with(|c: char| c.is_ascii_digit());
        if !is_value || !is_metric || !["<", "<=", ">", ">=", "≤", "≥"].contains(&relation) {
            return Err(wrong(term));
        }
        // The other metrics are shares and rates.
        if metric == "max" || metric.strip_prefix('p').is_some_and(|q| q.starts_with(|c: char| c.is_ascii_digit())) {
            has_unit(value, span)?;
        }
        match of {
            Some(of) if idx == 0 => {
                // The name is where the promise begins, unless it contains several blanks.
                let end = whole.span.end.min(whole.span.start + of.len());
                promise.of = Some(Name { text: of.to_owned(), span: (whole.span.start..end).into() });
            }
            Some(_) => return Err(wrong(term)),
            None => {}
        }
        let relation = relation.replace('≤', "<=").replace('≥', ">=");
        promise.terms.push(Name { text: format!("{metric} {relation} {value}"), span });
    }
    Ok(promise)
}
