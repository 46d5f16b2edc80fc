//! The columns of the data file that secrets are moved to, with the row of the recording.

use std::{collections::HashSet, fmt::Write as _};

use super::{super::import_tree::ImportPiece, names::ValueRole};

/// A secret of the recording, or the person it belongs to.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) role: ValueRole,
}

pub(super) struct Columns {
    pub(super) columns: Vec<Column>,
    /// Names of other variables.
    taken: HashSet<String>,
}

impl Columns {
    /// No column yet; `taken` are the names of other variables.
    pub(super) fn new(taken: HashSet<String>) -> Self {
        Self { columns: Vec::new(), taken }
    }

    /// The column of a value: one for all places that have it.
    pub(super) fn of(&mut self, name: &str, value: &str) -> ImportPiece {
        if let Some(known) = self.columns.iter().find(|column| column.value == value) {
            return ImportPiece::Variable(known.name.clone());
        }
        let role = ValueRole::of(name).unwrap_or(ValueRole::Secret);
        let word = name.to_lowercase().replace(|char: char| !char.is_alphanumeric(), "_");
        let word = word.trim_matches('_');
        let base = if word.is_empty() { "secret" } else { word };
        let is_free =
            |name: &String| !self.taken.contains(name) && self.columns.iter().all(|column| column.name != *name);
        let mut names = std::iter::once(base.to_owned()).chain((2..).map(|n| format!("{base}_{n}")));
        let name = names.find(is_free).expect("the numbers have no end");
        self.columns.push(Column { name: name.clone(), value: value.to_owned(), role });
        ImportPiece::Variable(name)
    }

    /// A row of names and a row of values.
    pub(super) fn file(&self) -> String {
        let mut text = String::new();
        for of in [(|column| &column.name) as fn(&Column) -> &String, |column| &column.value] {
            let cells: Vec<String> = self.columns.iter().map(|column| cell(of(column))).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

/// A value as CSV has it (RFC 4180).
fn cell(value: &str) -> String {
    let is_plain = !value.contains([',', '"', '\n', '\r', ' ', '\t']);
    if is_plain { value.to_owned() } else { format!("\"{}\"", value.replace('"', "\"\"")) }
}
