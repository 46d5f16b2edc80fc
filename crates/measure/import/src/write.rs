//! Writes an import tree as the text of a scenario.
//!
//! Everything that a scenario cannot express becomes a comment at its place and a note in the list.

mod act;
mod names;
mod pieces;
mod text;

use std::{cmp::Reverse, collections::HashMap, fmt::Write as _};

use fathom_http::url::Url;
use fathom_model::units::Nanos;

use self::names::NameTable;
use super::{
    Error,
    import_tree::{
        CookieHandling, DataSet, Extraction, FirstRow, ImportNote, ImportText, ImportTree, ImportedRequest,
        ImportedRowPolicy, ImportedUser, RedirectHandling, TextCoding,
    },
};
use fathom_scenario as scenario;

/// The text of a scenario, and notes on the parts left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportResult {
    /// In the standard format.
    pub text: String,
    /// The parts left out, in the order of the text.
    pub notes: Vec<ImportNote>,
    /// The steps that the text has.
    pub n_steps: usize,
    /// The content of the data file with the secrets, if there are any.
    pub secrets: Option<String>,
}

/// Writes a scenario; the title is its first comment.
///
/// # Errors
/// The result cannot be parsed, which is a bug of the writer.
pub fn write(story: &ImportTree, title: &str) -> Result<ImportResult, Error> {
    let mut writer = Writer::new(story);
    writer.comment(title);
    writer.write_head();
    writer.write_users();
    let (notes, n_steps) = (writer.notes, writer.n_steps);
    match scenario::format(&writer.out) {
        Ok(text) => Ok(ImportResult { text, notes, n_steps, secrets: None }),
        Err(faults) => {
            let fault = faults.first().map(|fault| fault.message.clone()).unwrap_or_default();
            Err(Error::Unwritten { fault })
        }
    }
}

/// What follows `take NAME =` for a value; `None` if it cannot be written.
#[must_use]
pub fn take_source(take: &Extraction) -> Option<String> {
    act::source(take, &NameTable::default())
}

/// The text as users code it when they fill it in; `None` if the result is not text.
#[must_use]
pub fn coded(text: &str, coding: TextCoding) -> Option<String> {
    text::coded(text, coding)
}

pub(super) use act::is_json_line;

struct Writer<'a> {
    tree: &'a ImportTree,
    out: String,
    depth: usize,
    names: NameTable,
    notes: Vec<ImportNote>,
    n_steps: usize,
    /// The base of paths: the scheme, the host and the port of most requests.
    base: Option<String>,
    /// Headers of all requests.
    headers: Vec<(String, ImportText)>,
    redirects: Option<RedirectHandling>,
    /// The number of users of the kind that is being written.
    n_users: u64,
}

impl<'a> Writer<'a> {
    fn new(story: &'a ImportTree) -> Self {
        let requests = story.requests();
        let mut writer = Self {
            tree: story,
            out: String::new(),
            depth: 0,
            names: NameTable::of(story, &requests),
            notes: Vec::new(),
            n_steps: 0,
            base: None,
            headers: common_headers(&requests),
            redirects: common(requests.iter().map(|request| request.redirects)),
            n_users: 1,
        };
        writer.base = writer.most_frequent_origin(&requests);
        writer
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.out, "{:width$}{line}", "", width = 2 * self.depth);
    }

    fn blank(&mut self) {
        self.out.push('\n');
    }

    fn comment(&mut self, text: &str) {
        self.line(&format!("# {}", pieces::one_line(text)));
    }

    /// Reports a part that was left out, here and in the list.
    fn write_left_out(&mut self, note: &ImportNote) {
        self.comment(&format!("import: {note}"));
        self.notes.push(note.clone());
    }

    fn note(&mut self, place: &str, what: impl Into<String>) {
        self.write_left_out(&ImportNote { location: place.to_owned(), what: what.into() });
    }

    fn most_frequent_origin(&self, requests: &[&ImportedRequest]) -> Option<String> {
        let origins = requests.iter().filter_map(|request| self.origin_and_path(&request.url));
        let mut counts: HashMap<String, (usize, Reverse<usize>)> = HashMap::new();
        for (idx, (origin, _)) in origins.enumerate() {
            counts.entry(origin).or_insert((0, Reverse(idx))).0 += 1;
        }
        // Among equally frequent ones, the first one counts.
        counts.into_iter().max_by_key(|(_, rank)| *rank).map(|(origin, _)| origin)
    }

    /// Scheme, host and port with the values of variables, and the rest unchanged.
    fn origin_and_path(&self, url: &ImportText) -> Option<(String, ImportText)> {
        let (origin, path) = pieces::cut_origin(url, |piece| self.tree.fixed(&ImportText(vec![piece.clone()])))?;
        format!("{origin}/").parse::<Url>().ok()?;
        Some((origin, path))
    }

    fn write_head(&mut self) {
        for note in &self.tree.notes {
            self.write_left_out(note);
        }
        self.blank();
        if let Some(base) = self.base.clone() {
            self.line(&format!("base {base}"));
        }
        self.write_arrivals();
        let kinds = &self.tree.kinds;
        if kinds.iter().any(|kind| kind.insecure) {
            self.line("insecure");
        }
        if kinds.iter().all(|kind| kind.cookies == CookieHandling::Ignored) {
            self.line("cookies off");
        }
        if self.redirects == Some(RedirectHandling::Followed) {
            self.line(act::REDIRECTS);
        }
        if let Some(way) = common(kinds.iter().map(|kind| kind.on_error)).flatten() {
            self.line(act::on_failure(way));
        }
        self.blank();
        for (name, value) in self.headers.clone() {
            let value = text::rest_of_line(&value, &self.names);
            self.line(&format!("{name}: {value}"));
        }
        self.blank();
        self.write_data();
        self.write_variables();
    }

    /// Writes how users arrive: all groups together, as far as they arrive alike.
    fn write_arrivals(&mut self) {
        let kinds = &self.tree.kinds;
        if kinds.iter().all(|kind| kind.n_users.is_none() && kind.n_rounds.is_none() && kind.duration.is_none()) {
            self.comment("One user, once: raise it, or let users arrive on a schedule with `open 10/s for 1m`.");
            self.line("closed 1 repeat 1");
            return;
        }
        let n_users = kinds.iter().fold(0_u64, |sum, kind| sum.saturating_add(kind.n_users.unwrap_or(1)));
        let mut line = format!("closed {n_users}");
        let longest = |of: fn(&ImportedUser) -> Option<Nanos>| kinds.iter().filter_map(of).max();
        let (ramp, duration) = (longest(|kind| kind.ramp), longest(|kind| kind.duration));
        if let Some(ramp) = ramp {
            let _ = write!(line, " ramp {}", ramp.exact());
        }
        if let Some(duration) = duration {
            let _ = write!(line, " for {}", duration.exact());
        }
        let rounds = kinds.iter().map(|kind| kind.n_rounds).max().flatten();
        if let Some(rounds) = rounds.filter(|rounds| *rounds > 0 && kinds.iter().all(|kind| kind.n_rounds.is_some())) {
            let _ = write!(line, " repeat {rounds}");
        }
        self.line(&line);
        for kind in kinds {
            let place = kind.name.clone();
            if let Some(delay) = kind.delay {
                self.note(&place, format!("its users do not wait {} before they begin", delay.exact()));
            }
            if kind.n_rounds.is_some_and(|own| Some(own) != rounds) {
                self.note(&place, "its users do not do as many rounds as the users of the other groups");
            }
            if kind.duration.is_some() && kind.duration != duration {
                self.note(&place, "its users stay as long as the users of the other groups");
            }
            if kind.ramp != ramp {
                self.note(&place, "its users arrive over the same time as the users of the other groups");
            }
        }
    }

    fn write_data(&mut self) {
        for (idx, set) in self.tree.data.iter().enumerate() {
            let name = self.names.of_set(idx).to_owned();
            let line = data_line(set, &name);
            self.line(&line);
        }
    }

    fn write_variables(&mut self) {
        let mut written: Vec<&str> = Vec::new();
        for (name, _) in self.tree.variables.iter().rev() {
            // The last definition counts, and unused ones are not written.
            if !written.contains(&name.as_str()) && self.names.is_used(name) {
                written.push(name);
            }
        }
        for name in written.into_iter().rev() {
            let Some((_, value)) = self.tree.variables.iter().rev().find(|(known, _)| known == name) else { continue };
            let line = format!("let {} = {}", self.names.of_variable(name), text::operand(value, &self.names));
            self.line(&line);
        }
        for name in self.names.unknown().to_vec() {
            self.note(&format!("variable {name}"), "nothing gives it a value: it is empty here");
            let line = format!("let {} = \"\"", self.names.of_variable(&name));
            self.line(&line);
        }
    }

    fn write_users(&mut self) {
        let story = self.tree;
        let n_all = story.kinds.len();
        let sum = story.kinds.iter().fold(0_u64, |sum, kind| sum.saturating_add(kind.n_users.unwrap_or(1)));
        let one_way = common(story.kinds.iter().map(|kind| kind.on_error)).is_some();
        for kind in &story.kinds {
            self.blank();
            self.n_users = kind.n_users.unwrap_or(1);
            let is_alone = n_all == 1 && kind.pace.is_none() && one_way;
            if is_alone && kind.n_users.is_none() {
                self.acts(&kind.acts);
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
            let share = self.n_users as f64 * 100.0 / sum.max(1) as f64;
            let name = self.names.unique_user(&kind.name);
            let share = if n_all == 1 { String::new() } else { format!(" {}%", act::percent(share)) };
            self.line(&format!("user {name}{share}"));
            self.depth += 1;
            if let Some(way) = kind.on_error.filter(|_| !one_way) {
                self.line(act::on_failure(way));
            }
            if let Some(pace) = kind.pace {
                self.line(&format!("pace {}", pace.exact()));
            }
            self.acts(&kind.acts);
            self.depth -= 1;
        }
    }
}

fn data_line(set: &DataSet, name: &str) -> String {
    let mut line = format!("data {name} from {}", text::plain(&set.file));
    if let (Some(columns), FirstRow::Row) = (&set.columns, set.first_row) {
        let _ = write!(
            line,
            " columns {}",
            columns.iter().map(|column| names::word(column)).collect::<Vec<_>>().join(", ")
        );
    }
    match set.delimiter {
        ',' => {}
        '\t' => line.push_str(" separator tab"),
        other => {
            let _ = write!(line, " separator {other}");
        }
    }
    line.push_str(match set.policy {
        ImportedRowPolicy::Sequential => " sequential",
        ImportedRowPolicy::Unique => " unique then stop",
        ImportedRowPolicy::PerUser => " per user",
    });
    line
}

/// The common value; `None` if there are no values or they differ.
fn common<T: PartialEq>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Headers that are the same in all requests; those of a single request are all its own.
fn common_headers(requests: &[&ImportedRequest]) -> Vec<(String, ImportText)> {
    let [first, rest @ ..] = requests else { return Vec::new() };
    if rest.is_empty() {
        return Vec::new();
    }
    // A repeated header has an order, and a header that fits one body need not fit another.
    let is_single = |request: &&ImportedRequest, name: &str| {
        request.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).count() == 1
    };
    let is_common = |(name, value): &&(String, ImportText)| {
        !name.eq_ignore_ascii_case("content-type")
            && is_single(first, name)
            && text::is_header_name(name)
            && !value.is_empty()
            && rest.iter().all(|request| is_single(request, name) && request.header(name) == Some(value))
    };
    first.headers.iter().filter(is_common).cloned().collect()
}

#[cfg(test)]
mod tests;
