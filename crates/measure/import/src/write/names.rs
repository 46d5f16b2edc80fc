//! Names of steps, variables and data sets: the names of the inputs, made valid for a scenario.

use std::collections::{HashMap, HashSet};

use super::{
    super::import_tree::{ImportAction, ImportText, ImportTree, ImportedComparison, ImportedRequest},
    pieces::{cut_origin, one_line},
};

/// The names of generators.
const OWN: &[&str] = &["rand", "seq", "chars", "uuid", "now", "user", "iteration", "round", "env"];
/// The longest name of a step: it appears in tables.
const LEN_MAX: usize = 60;

/// All names of one scenario.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    /// The text by which a hole names a variable or a column.
    variables: HashMap<String, String>,
    sets: Vec<String>,
    steps: UsedNames,
    users: UsedNames,
    used: Vec<String>,
    unknown: Vec<String>,
}

/// Names that are already used.
#[derive(Debug, Default)]
struct UsedNames {
    names: HashSet<String>,
    /// The next number to try for a name: recordings repeat the same request many times.
    numbers: HashMap<String, u64>,
}

impl UsedNames {
    /// Returns the name, with the first number appended that makes it unique if necessary.
    fn unique(&mut self, base: &str, between: &str) -> String {
        let mut name = base.to_owned();
        let mut number = self.numbers.get(base).copied().unwrap_or(2);
        while !self.names.insert(name.clone()) {
            name = format!("{base}{between}{number}");
            number += 1;
        }
        self.numbers.insert(base.to_owned(), number);
        name
    }
}

/// A word of letters, digits, underscores and dashes.
pub(super) fn word(name: &str) -> String {
    let mut word: String = name
        .trim()
        .chars()
        .map(|char| if char.is_alphanumeric() || "_-".contains(char) { char } else { '_' })
        .collect();
    if !word.starts_with(|first: char| first.is_alphabetic() || first == '_') {
        word.insert(0, '_');
    }
    word
}

impl NameTable {
    pub(super) fn of(story: &ImportTree, requests: &[&ImportedRequest]) -> Self {
        let mut names = Self::default();
        let own = OWN.iter().map(|own| (*own).to_owned());
        let mut taken = UsedNames { names: own.collect(), ..UsedNames::default() };
        let mut fresh = |name: &str, or: &str| {
            let base = if taken.names.contains(name) { or } else { name };
            taken.unique(base, "_")
        };
        let mut known: Vec<String> = story.variables.iter().map(|(name, _)| name.clone()).collect();
        known.extend(requests.iter().flat_map(|request| &request.takes).map(|take| take.name.clone()));
        story.each_act(&mut |act| {
            if let ImportAction::Set { name, .. } = act {
                known.push(name.clone());
            }
        });
        for name in &known {
            if !names.variables.contains_key(name) {
                let plain = word(name);
                let name_here = fresh(&plain, &format!("my-{plain}"));
                names.variables.insert(name.clone(), name_here);
            }
        }
        for set in &story.data {
            let file = set.file.rsplit(['/', '\\']).next().unwrap_or_default();
            let plain = word(file.split('.').next().unwrap_or(file)).to_lowercase();
            names.sets.push(fresh(&plain, &format!("my-{plain}")));
            for column in set.columns.iter().flatten() {
                let set = names.sets.last().map_or("", String::as_str);
                names.variables.entry(column.clone()).or_insert_with(|| format!("{set}.{}", word(column)));
            }
        }
        names.used = used_variables(story, requests);
        // If the columns are unnamed, the first row of the file names them, and JMeter knows them all.
        let open: Vec<usize> = (0..story.data.len()).filter(|idx| story.data[*idx].columns.is_none()).collect();
        for name in names.used.clone() {
            if names.variables.contains_key(&name) {
                continue;
            }
            if let [only] = open.as_slice() {
                names.variables.insert(name.clone(), format!("{}.{}", names.sets[*only], word(&name)));
            } else {
                let plain = word(&name);
                names.variables.insert(name.clone(), fresh(&plain, &format!("my-{plain}")));
                names.unknown.push(name);
            }
        }
        names
    }

    pub(super) fn of_variable(&self, name: &str) -> String {
        self.variables.get(name).cloned().unwrap_or_else(|| word(name))
    }

    pub(super) fn of_set(&self, idx: usize) -> &str {
        self.sets.get(idx).map_or("", String::as_str)
    }

    pub(super) fn is_used(&self, name: &str) -> bool {
        self.used.iter().any(|used| used == name)
    }

    /// The variables that are used but never set.
    pub(super) fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// A name that no step and no transaction has.
    pub(super) fn unique_step(&mut self, told: &str) -> String {
        self.steps.unique(&several_words(told, "step"), " ")
    }

    /// A name that no user has; a share at its end would be parsed as one.
    pub(super) fn unique_user(&mut self, told: &str) -> String {
        let plain = several_words(told, "user").replace('%', "");
        self.users.unique(&plain, " ")
    }
}

/// Words with one blank between them; a name must not begin a comment.
fn several_words(told: &str, otherwise: &str) -> String {
    let line = one_line(told);
    let words: Vec<_> =
        line.split(' ').map(|word| word.trim_start_matches('#')).filter(|word| !word.is_empty()).collect();
    let name = words.join(" ");
    let end = name.char_indices().nth(LEN_MAX).map_or(name.len(), |(end, _)| end);
    let name = name[..end].trim();
    if name.is_empty() { otherwise.to_owned() } else { name.to_owned() }
}

/// All variables in use, including those that others contain.
fn used_variables(story: &ImportTree, requests: &[&ImportedRequest]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for request in requests {
        // The host is known before the run; the rest is filled in.
        let mut request = (*request).clone();
        let cut = cut_origin(&request.url, |piece| story.fixed(&ImportText(vec![piece.clone()])));
        request.url = cut.map_or(ImportText::default(), |(_, path)| path);
        for name in request.variables() {
            if !all.contains(&name) {
                all.push(name);
            }
        }
    }
    story.each_act(&mut |act| match act {
        ImportAction::Set { to, .. } => to.add_variables(&mut all),
        ImportAction::If { condition, .. } | ImportAction::While { condition, .. } => {
            for ImportedComparison { left, right, .. } in &condition.tests {
                left.add_variables(&mut all);
                right.add_variables(&mut all);
            }
        }
        _ => {}
    });
    let mut idx = 0;
    while let Some(name) = all.get(idx).cloned() {
        if let Some((_, value)) = story.variables.iter().rev().find(|(known, _)| *known == name) {
            value.add_variables(&mut all);
        }
        idx += 1;
    }
    all
}
