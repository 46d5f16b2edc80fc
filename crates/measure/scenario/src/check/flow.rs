//! Checks values: follows each user from `setup` to `teardown`, where every hole must have a value when it is reached.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        ast::{
            ConditionExpr, Do, ExpectedValue, HeaderDef, Hole, HoleSource, Name, Scenario, Span, Statement, StepDef,
            Template, TestExpr, TestPredicate, UserDef,
        },
        diagnostic::{Diagnostic, nearest},
    },
    Diagnostics,
    files::Columns,
    for_each_statement,
    names::{known_names, part_order},
};

/// Nested parts multiply the visits; scenarios written by people stay far below.
const VISITS_MAX: usize = 100_000;

pub(super) fn check(scenario: &Scenario, columns: &Columns, found: &mut Diagnostics) {
    let mut read = ReadNames::default();
    let mut n_visits = 0;
    let parts = part_order(scenario);
    let sets: BTreeSet<&str> = scenario.data.iter().map(|set| set.name.text.as_str()).collect();
    let headers: Vec<&HeaderDef> = scenario.headers.iter().filter(|header| header.value.fixed().is_none()).collect();
    for user in &scenario.users {
        let who = user.name.as_ref().filter(|_| scenario.users.len() > 1);
        let mut flow = ValueFlow {
            user_name: who,
            parts: &parts,
            above: usize::MAX,
            sets: &sets,
            headers: &headers,
            scenario,
            columns,
            found,
            read: &mut read,
            n_visits,
            set: BTreeSet::new(),
            ever_set: BTreeMap::new(),
            n_loops: 0,
        };
        flow.follow(user);
        n_visits = flow.n_visits;
        if n_visits > VISITS_MAX {
            let fault = Diagnostic::error(user.span, "its parts unfold to more than a user could ever do");
            found.add(fault.fix("write `repeat` where parts do each other again and again"));
            return;
        }
    }
    unused(scenario, &read, found);
}

/// The names that holes read, for all users.
#[derive(Default)]
struct ReadNames<'a> {
    variables: BTreeSet<&'a str>,
    columns: BTreeSet<(&'a str, &'a str)>,
}

/// A user on the way through the script.
struct ValueFlow<'a, 'f> {
    scenario: &'a Scenario,
    /// The user's name, if there are others.
    user_name: Option<&'a Name>,
    columns: &'f Columns,
    found: &'f mut Diagnostics,
    read: &'f mut ReadNames<'a>,
    n_visits: usize,
    /// The variables that may have a value by now.
    set: BTreeSet<&'a str>,
    /// The variables that get a value at some time, with the first place.
    ever_set: BTreeMap<&'a str, Span>,
    /// The number of enclosing loops.
    n_loops: usize,
    /// The positions of the parts; only those before `above` may run here.
    parts: &'f BTreeMap<&'a str, usize>,
    above: usize,
    /// The names of the data sets.
    sets: &'f BTreeSet<&'a str>,
    /// The header fields of all requests that have holes.
    headers: &'f [&'a HeaderDef],
}

impl<'a> ValueFlow<'a, '_> {
    fn follow(&mut self, user: &'a UserDef) {
        for variable in &self.scenario.variables {
            self.ever_set.entry(&variable.name.text).or_insert(variable.name.span);
        }
        for block in user.blocks() {
            self.collect(block);
        }
        for variable in &self.scenario.variables {
            self.text(&variable.value);
            self.set.insert(&variable.name.text);
        }
        for block in user.blocks() {
            self.statements(block);
        }
    }

    /// Finds all variables that get a value.
    fn collect(&mut self, statements: &'a [Statement]) {
        for statement in statements {
            self.n_visits += 1;
            if self.n_visits > VISITS_MAX {
                return;
            }
            match statement {
                Statement::Step(step) => {
                    for take in &step.takes {
                        self.ever_set.entry(&take.name.text).or_insert(take.name.span);
                    }
                }
                Statement::Let(variable) => {
                    self.ever_set.entry(&variable.name.text).or_insert(variable.name.span);
                }
                Statement::Do(part) => {
                    self.within(part, Self::collect);
                }
                other => {
                    for block in other.blocks() {
                        self.collect(block);
                    }
                }
            }
        }
    }

    /// Enters a part. It can reach only parts above it, so there are no cycles.
    fn within(&mut self, part: &Do, go: impl FnOnce(&mut Self, &'a [Statement])) {
        if let Some(idx) = self.parts.get(part.name.text.as_str()).copied().filter(|idx| *idx < self.above) {
            let above = std::mem::replace(&mut self.above, idx);
            go(self, &self.scenario.parts[idx].body);
            self.above = above;
        }
    }

    fn statements(&mut self, statements: &'a [Statement]) {
        for statement in statements {
            self.n_visits += 1;
            if self.n_visits > VISITS_MAX {
                return;
            }
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &'a Statement) {
        match statement {
            Statement::Step(step) => self.step(step),
            Statement::Let(variable) => {
                self.text(&variable.value);
                self.set.insert(&variable.name.text);
            }
            Statement::Do(part) => {
                self.within(part, Self::statements);
            }
            Statement::Repeat(repeat) => {
                self.n_loops += 1;
                self.statements(&repeat.body);
                self.n_loops -= 1;
            }
            Statement::While(looped) => {
                self.condition(&looped.condition);
                self.n_loops += 1;
                self.statements(&looped.body);
                self.n_loops -= 1;
            }
            Statement::If(choice) => {
                for branch in &choice.branches {
                    self.condition(&branch.condition);
                    self.statements(&branch.body);
                }
                if let Some(otherwise) = &choice.otherwise {
                    self.statements(&otherwise.body);
                }
            }
            other => {
                for block in other.blocks() {
                    self.statements(block);
                }
            }
        }
    }

    fn step(&mut self, step: &'a StepDef) {
        self.n_visits += self.headers.len();
        let own: BTreeSet<String> = step.headers.iter().map(|own| own.name.text.to_ascii_lowercase()).collect();
        for header in self.headers.iter().filter(|header| !own.contains(&header.name.text.to_ascii_lowercase())) {
            self.text(&header.value);
        }
        for text in step.request_texts() {
            self.text(text);
        }
        for expect in &step.expects {
            if let Some(ExpectedValue::Test(test)) = &expect.what {
                self.test(test);
            }
        }
        for take in &step.takes {
            if let Some(default) = &take.default {
                self.text(default);
            }
            self.set.insert(&take.name.text);
        }
    }

    fn condition(&mut self, condition: &'a ConditionExpr) {
        for test in &condition.tests {
            self.test(test);
        }
    }

    fn test(&mut self, test: &'a TestExpr) {
        for text in test.texts() {
            for hole in text.holes() {
                // Testing whether a variable has a value is always allowed.
                if test.predicate == TestPredicate::Exists
                    && let HoleSource::Variable(name) = &hole.source
                    && self.ever_set.contains_key(name.text.as_str())
                {
                    self.read.variables.insert(&name.text);
                    continue;
                }
                self.hole(hole);
            }
        }
    }

    fn text(&mut self, text: &'a Template) {
        for hole in text.holes() {
            self.hole(hole);
        }
    }

    fn hole(&mut self, hole: &'a Hole) {
        match &hole.source {
            HoleSource::Variable(name) => self.variable(name),
            HoleSource::Column(set, column) => self.column(set, column),
            HoleSource::Round if self.n_loops == 0 => {
                let fault = Diagnostic::error(hole.span, "this is not in a loop, so there are no rounds");
                self.found.add(fault.fix("`${iteration}` is how many times the user has begun"));
            }
            _ => {}
        }
    }

    fn variable(&mut self, name: &'a Name) {
        self.read.variables.insert(&name.text);
        if self.set.contains(name.text.as_str()) || self.found.is_full() {
            return;
        }
        if let Some(span) = self.ever_set.get(name.text.as_str()) {
            let fault = Diagnostic::error(name.span, format!("`{}` has no value yet", name.text))
                .label(self.user_label())
                .other(*span, "it gets one here");
            self.found.add(fault.fix(format!("take it in an earlier step, or begin with `let {} = \"\"`", name.text)));
            return;
        }
        let fault =
            Diagnostic::error(name.span, format!("there is no variable `{}`", name.text)).label(self.user_label());
        let set = self.scenario.data.iter().find(|set| set.name.text == name.text);
        if let Some(set) = set {
            let fix = format!("name a column of it: ${{{}.…}}", name.text);
            self.found.add(fault.other(set.span, "this is a data set").fix(fix));
            return;
        }
        let fix = format!("`take {} = …` in a step before it, or `let {} = …`", name.text, name.text);
        self.found.add(fault.fix(fix).suggest(nearest(&name.text, self.ever_set.keys().copied())));
    }

    /// Names the user who lacks a value.
    fn user_label(&self) -> String {
        self.user_name.map_or(String::new(), |who| format!("for the user {}", who.text))
    }

    fn column(&mut self, set: &'a Name, column: &'a Name) {
        self.read.columns.insert((&set.text, &column.text));
        if self.found.is_full() {
            return;
        }
        if !self.sets.contains(set.text.as_str()) {
            let fault = Diagnostic::error(set.span, format!("there is no data set `{}`", set.text));
            let fix = format!("write `data {} from {}.csv` above", set.text, set.text);
            self.found.add(fault.fix(fix).suggest(nearest(&set.text, self.sets.iter().copied())));
        } else if let Some(columns) = self.columns.get(&set.text).filter(|columns| !columns.contains(&column.text)) {
            let known: Vec<&str> = columns.iter().map(String::as_str).collect();
            let fault = Diagnostic::error(column.span, format!("`{}` has no column `{}`", set.text, column.text));
            self.found.add(fault.fix(known_names(&known)).suggest(nearest(&column.text, known)));
        }
    }
}

/// Reports unused data sets, columns and variables.
fn unused(scenario: &Scenario, read: &ReadNames<'_>, found: &mut Diagnostics) {
    let used: BTreeSet<&str> = read.columns.iter().map(|(set, _)| *set).collect();
    for set in &scenario.data {
        if !used.contains(set.name.text.as_str()) {
            let warning = Diagnostic::warning(set.name.span, format!("unused data set `{}`", set.name.text));
            found.add(
                warning.fix(format!("write ${{{}.…}} where a value of it belongs, or leave it out", set.name.text)),
            );
            continue;
        }
        for column in &set.columns {
            if !read.columns.contains(&(set.name.text.as_str(), column.text.as_str())) {
                found.add(Diagnostic::warning(column.span, format!("unused column `{}`", column.text)));
            }
        }
    }
    let mut set: Vec<&Name> = scenario.variables.iter().map(|variable| &variable.name).collect();
    for_each_statement(scenario.blocks(), &mut |statement| match statement {
        Statement::Step(step) => set.extend(step.takes.iter().map(|take| &take.name)),
        Statement::Let(variable) => set.push(&variable.name),
        _ => {}
    });
    for name in set.into_iter().filter(|name| !read.variables.contains(name.text.as_str())) {
        let warning = Diagnostic::warning(name.span, format!("unused variable `{}`", name.text));
        found.add(warning.fix("leave it out; to see that something is in an answer, `expect` it"));
    }
}
