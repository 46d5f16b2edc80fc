//! Checks that names are unique, and known where they are used; checks the shares of users.

use std::collections::{BTreeMap, HashSet};

use super::{
    super::{
        ast::{Do, Name, Scenario, Span, Statement, UserDef, UserLoadModel},
        diagnostic::{Diagnostic, nearest},
    },
    Diagnostics, for_each_statement,
};

/// The rounding error allowed in the sum of shares: three times 33.3 %.
const SHARES_OFF_MAX: f64 = 0.15;

pub(super) fn check(scenario: &Scenario, found: &mut Diagnostics) {
    let mut measured = Vec::new();
    for_each_statement(scenario.blocks(), &mut |statement| match statement {
        Statement::Step(step) => measured.push(&step.name),
        Statement::Transaction(transaction) => measured.push(&transaction.name),
        _ => {}
    });
    let measured = unique("step or transaction", &measured, found);
    unique("part", &scenario.parts.iter().map(|part| &part.name).collect::<Vec<_>>(), found);
    unique("user", &scenario.users.iter().filter_map(|user| user.name.as_ref()).collect::<Vec<_>>(), found);
    unique("data set", &scenario.data.iter().map(|set| &set.name).collect::<Vec<_>>(), found);
    for set in &scenario.data {
        unique("column", &set.columns.iter().collect::<Vec<_>>(), found);
    }
    for of in scenario.promises.iter().filter_map(|promise| promise.of.as_ref()) {
        if !measured.contains_key(of.text.as_str()) && !found.is_full() {
            let known: Vec<&str> = measured.keys().copied().collect();
            let fault = Diagnostic::error(of.span, format!("there is no step or transaction `{}`", of.text));
            found.add(fault.fix(known_names(&known)).suggest(nearest(&of.text, known)));
        }
    }
    parts(scenario, found);
    shares(scenario, found);
    for user in &scenario.users {
        empty(user, found);
    }
    meetings(scenario, found);
}

/// The known names, as many as fit on a line.
pub(super) fn known_names(known: &[&str]) -> String {
    const SHOWN_MAX: usize = 8;
    match known {
        [] => "there is none".to_owned(),
        known if known.len() > SHOWN_MAX => {
            format!("there are {} and {} more", known[..SHOWN_MAX].join(", "), known.len() - SHOWN_MAX)
        }
        known => format!("there is {}", known.join(", ")),
    }
}

fn unique<'a>(what: &str, names: &[&'a Name], found: &mut Diagnostics) -> BTreeMap<&'a str, Span> {
    let mut known = BTreeMap::new();
    for name in names {
        if let Some(first) = known.get(name.text.as_str()) {
            let fault = Diagnostic::error(name.span, format!("`{}` is already the name of a {what}", name.text));
            found.add(fault.other(*first, "the first one").fix("give it another name"));
        } else {
            known.insert(name.text.as_str(), name.span);
        }
    }
    known
}

/// The position of each part among the others.
pub(super) fn part_order(scenario: &Scenario) -> BTreeMap<&str, usize> {
    // The first part of a name counts: the others are reported as duplicates.
    scenario.parts.iter().enumerate().rev().map(|(idx, part)| (part.name.text.as_str(), idx)).collect()
}

/// Checks that each part is used, and uses only parts above it.
fn parts(scenario: &Scenario, found: &mut Diagnostics) {
    let places = part_order(scenario);
    let mut done = HashSet::new();
    let mut look = |part: &Do, above: usize, found: &mut Diagnostics| {
        let Some(idx) = places.get(part.name.text.as_str()).copied() else {
            if found.is_full() {
                return;
            }
            let known: Vec<&str> = places.keys().copied().collect();
            let fault = Diagnostic::error(part.name.span, format!("there is no part `{}`", part.name.text));
            found.add(fault.fix(known_names(&known)).suggest(nearest(&part.name.text, known)));
            return;
        };
        if idx >= above {
            let fault = Diagnostic::error(part.name.span, "a part can only do parts above it");
            found.add(fault.other(scenario.parts[idx].span, "it is here").fix("move it up; a part cannot do itself"));
        }
        done.insert(idx);
    };
    for (idx, part) in scenario.parts.iter().enumerate() {
        for_each_statement([&part.body[..]], &mut |statement| {
            if let Statement::Do(part) = statement {
                look(part, idx, found);
            }
        });
    }
    for_each_statement(scenario.users.iter().flat_map(UserDef::blocks), &mut |statement| {
        if let Statement::Do(part) = statement {
            look(part, usize::MAX, found);
        }
    });
    let undone = scenario.parts.iter().enumerate().filter(|(idx, _)| !done.contains(idx));
    for (_, part) in undone {
        let warning = Diagnostic::warning(part.name.span, format!("unused part `{}`", part.name.text));
        found.add(warning.fix(format!("write `do {}` where it belongs, or leave it out", part.name.text)));
    }
}

fn shares(scenario: &Scenario, found: &mut Diagnostics) {
    let shares: Vec<f64> =
        scenario.users.iter().filter_map(|user| user.share.as_ref()).map(|share| share.value).collect();
    let Some(last) = scenario.users.last().filter(|_| !shares.is_empty()) else { return };
    for user in scenario.users.iter().filter(|user| user.share.is_none()) {
        let fault = Diagnostic::error(user.span, "this user has no share, but others have");
        found.add(fault.fix("give each a share, or none"));
    }
    let sum: f64 = shares.iter().sum();
    if shares.len() == scenario.users.len() && (sum - 100.0).abs() > SHARES_OFF_MAX {
        let span = last.share.as_ref().map_or(last.span, |share| share.span);
        let fault =
            Diagnostic::error(span, format!("the shares of the users are {}% together", (sum * 100.0).round() / 100.0));
        found.add(fault.fix("they must be 100% together"));
    }
}

fn empty(user: &UserDef, found: &mut Diagnostics) {
    let mut is_asking = false;
    for_each_statement([&user.body[..]], &mut |statement| {
        is_asking |= matches!(statement, Statement::Step(_) | Statement::Do(_));
    });
    if !is_asking {
        let span = user.name.as_ref().map_or(user.span, |name| name.span);
        let fault = Diagnostic::error(span, "this user never asks anything");
        found.add(fault.fix("put a step below it, or `do` a part"));
    }
}

/// A meeting of more users than exist would delay each of them for nothing.
fn meetings(scenario: &Scenario, found: &mut Diagnostics) {
    let Some(UserLoadModel::Closed { users, .. }) = scenario.load.as_ref().map(|arrivals| &arrivals.model) else {
        return;
    };
    for_each_statement(scenario.blocks(), &mut |statement| {
        if let Statement::Meet(meet) = statement
            && meet.users.value > users.value
        {
            let warning = Diagnostic::warning(
                meet.users.span,
                format!("there are only {} users, so the meeting never fills", users.value),
            );
            found.add(warning.other(users.span, "the number of users").fix("all users continue when the time is over"));
        }
    });
}
