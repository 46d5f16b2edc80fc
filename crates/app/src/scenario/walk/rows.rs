//! Rows of data sets: read and checked before the run, kept in one piece, dealt out by a policy.
//!
//! Knows CSV and JSON, and nothing of what the values are for.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde_json::Value;

/// The offsets of cells are 32 bits wide, which halves the table of a file of many small cells.
const TEXT_BYTES_MAX: usize = u32::MAX as usize;

/// Why a data set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The file cannot be read.
    #[error("cannot read the data file {path}: {cause}")]
    File {
        /// As it was looked for.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// What is in it is not what its name promises.
    #[error("{path}, line {line}: {what}")]
    Form {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong there.
        what: String,
    },
    /// There is nothing in it.
    #[error("{0} has no row of data")]
    Empty(PathBuf),
    /// It has no column of a name that is used.
    #[error("{path} has no column `{column}`; it has {known}")]
    Column {
        /// The file.
        path: PathBuf,
        /// The name that is used.
        column: String,
        /// Those there are.
        known: String,
    },
    /// It is larger than what its table can hold.
    #[error("{0} has more than 4 GiB of text")]
    TooLarge(PathBuf),
}

impl RowsError {
    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::File { .. } => "paths are relative to the scenario's folder",
            Self::Form { .. } => {
                "CSV needs a head line with names and as many cells in each row; JSON an array of objects, or an object a line"
            }
            Self::Empty(_) => "a data set needs at least one row",
            Self::Column { .. } => "write the column as it stands in the first line of the file",
            Self::TooLarge(_) => "split the file",
        }
    }
}

/// All rows of a file: one text, and where each cell of it ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rows {
    columns: Vec<String>,
    text: Vec<u8>,
    ends: Vec<u32>,
}

impl Rows {
    /// Reads a file: JSON if its name ends so (`.json`, `.jsonl`, `.ndjson`), else CSV.
    ///
    /// # Errors
    /// Says what is wrong, and on which line.
    pub fn read(path: &Path) -> Result<Self, RowsError> {
        let bytes = std::fs::read(path).map_err(|cause| RowsError::File { path: path.to_owned(), cause })?;
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let rows = match extension.to_ascii_lowercase().as_str() {
            "json" | "jsonl" | "ndjson" => Self::json(&bytes),
            _ => Self::csv(&bytes),
        };
        let rows = rows.map_err(|flaw| flaw.of(path))?;
        if rows.n() == 0 { Err(RowsError::Empty(path.to_owned())) } else { Ok(rows) }
    }

    /// How many rows there are.
    #[must_use]
    pub fn n(&self) -> u64 {
        (self.ends.len() / self.columns.len().max(1)) as u64
    }

    /// The names of the columns.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The place of a column.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// A cell; empty beyond the last row.
    #[must_use]
    pub fn cell(&self, row: u32, column: usize) -> &[u8] {
        let at = row as usize * self.columns.len() + column;
        let begin = at.checked_sub(1).map_or(0, |before| self.ends.get(before).copied().unwrap_or(0));
        let end = self.ends.get(at).copied().unwrap_or(begin);
        &self.text[begin as usize..end as usize]
    }

    fn push(&mut self, cell: &[u8]) -> Result<(), Flaw> {
        self.text.extend_from_slice(cell);
        match u32::try_from(self.text.len()) {
            Ok(end) if self.text.len() <= TEXT_BYTES_MAX => self.ends.push(end),
            _ => return Err(Flaw::TooLarge),
        }
        Ok(())
    }

    /// Rows of a text of comma-separated values (RFC 4180) whose first line has the names.
    pub(super) fn csv(bytes: &[u8]) -> Result<Self, Flaw> {
        // Spreadsheets begin their files with a mark of the encoding.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let mut reader = csv::ReaderBuilder::new().from_reader(bytes);
        let flaw = |error: &csv::Error| Flaw::Form {
            line: error.position().map_or(1, csv::Position::line),
            what: match error.kind() {
                csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                    format!("{len} cells, where the head has {expected_len}")
                }
                _ => error.to_string(),
            },
        };
        let columns: Vec<String> =
            reader.headers().map_err(|error| flaw(&error))?.iter().map(|name| name.trim().to_owned()).collect();
        let mut rows = Self { columns: distinct(columns)?, text: Vec::with_capacity(bytes.len()), ends: Vec::new() };
        let mut record = csv::ByteRecord::new();
        while reader.read_byte_record(&mut record).map_err(|error| flaw(&error))? {
            for cell in &record {
                rows.push(cell)?;
            }
        }
        Ok(rows)
    }

    /// Rows of an array of objects, or of one object a line; the first object's keys are the columns.
    pub(super) fn json(bytes: &[u8]) -> Result<Self, Flaw> {
        let mut rows = Self::default();
        let is_array = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        if is_array {
            let all: Vec<Value> = serde_json::from_slice(bytes).map_err(|error| Flaw::json(&error, 0))?;
            for (idx, value) in (0..).zip(&all) {
                rows.push_object(value).map_err(|what| what.on(idx + 1, "row"))?;
            }
            return Ok(rows);
        }
        for (idx, line) in (0u64..).zip(bytes.split(|byte| *byte == b'\n')) {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let value: Value = serde_json::from_slice(line).map_err(|error| Flaw::json(&error, idx))?;
            rows.push_object(&value).map_err(|what| what.on(idx + 1, "line"))?;
        }
        Ok(rows)
    }

    fn push_object(&mut self, value: &Value) -> Result<(), Misfit> {
        let Value::Object(object) = value else { return Err(Misfit::Said("this is no object".to_owned())) };
        if self.columns.is_empty() {
            self.columns = object.keys().cloned().collect();
        }
        for idx in 0..self.columns.len() {
            let value = object.get(&self.columns[idx]);
            let value = value.ok_or_else(|| Misfit::Said(format!("`{}` is missing", self.columns[idx])))?;
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            self.push(text.as_bytes()).map_err(|_| Misfit::TooLarge)?;
        }
        match object.keys().find(|key| !self.columns.contains(key)) {
            Some(key) => Err(Misfit::Said(format!("`{key}` is not in the first object"))),
            None => Ok(()),
        }
    }
}

fn distinct(columns: Vec<String>) -> Result<Vec<String>, Flaw> {
    let form = |what: String| Flaw::Form { line: 1, what };
    for (idx, name) in columns.iter().enumerate() {
        if name.is_empty() {
            return Err(form(format!("column {} has no name", idx + 1)));
        }
        if columns[..idx].contains(name) {
            return Err(form(format!("two columns are called `{name}`")));
        }
    }
    Ok(columns)
}

/// What does not fit in one object.
enum Misfit {
    Said(String),
    TooLarge,
}

impl Misfit {
    fn on(self, number: u64, unit: &str) -> Flaw {
        match self {
            Self::TooLarge => Flaw::TooLarge,
            Self::Said(what) if unit == "line" => Flaw::Form { line: number, what },
            Self::Said(what) => Flaw::Form { line: 1, what: format!("{unit} {number}: {what}") },
        }
    }
}

/// What is wrong with a text, wherever it came from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    Form { line: u64, what: String },
    TooLarge,
}

impl Flaw {
    fn json(error: &serde_json::Error, lines_before: u64) -> Self {
        Self::Form { line: lines_before + error.line() as u64, what: error.to_string() }
    }

    fn of(self, path: &Path) -> RowsError {
        match self {
            Self::Form { line, what } => RowsError::Form { path: path.to_owned(), line, what },
            Self::TooLarge => RowsError::TooLarge(path.to_owned()),
        }
    }
}

/// In which order rows are given to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dealing {
    /// Each row once over all workers, in the order of the file.
    Unique(AtEnd),
    /// In the order of the file, over all workers, again and again.
    Sequential,
    /// Any row, at random.
    Random,
    /// The same row for the whole life of a user: users are numbered, and take theirs in the order of the file.
    PerUser,
}

/// What becomes of a user for whom no row is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// It leaves.
    Stop,
    /// The first row is next.
    Wrap,
    /// It gives up, which is counted as an error.
    Error,
}

/// Deals rows to the users of all workers.
#[derive(Debug)]
pub struct Dealer {
    policy: Dealing,
    n: u64,
    next: AtomicU64,
}

/// What a user gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dealt {
    /// The row of this number.
    Row(u32),
    /// Nothing is left: the user leaves.
    Stop,
    /// Nothing is left, which is an error.
    Error,
}

impl Dealer {
    /// Of so many rows, at least one.
    #[must_use]
    pub const fn new(policy: Dealing, n: u64) -> Self {
        Self { policy, n, next: AtomicU64::new(0) }
    }

    /// Whether a user has one row for its whole life.
    #[must_use]
    pub const fn is_per_user(&self) -> bool {
        matches!(self.policy, Dealing::PerUser)
    }

    /// The next row of a user.
    ///
    /// # Panics
    /// Never: there are fewer rows than 2³², because each has a cell in a table of 32-bit offsets.
    pub fn deal(&self, chance: &mut fastrand::Rng) -> Dealt {
        let row = match self.policy {
            Dealing::Random => chance.u64(..self.n),
            Dealing::Sequential | Dealing::PerUser | Dealing::Unique(AtEnd::Wrap) => {
                self.next.fetch_add(1, Relaxed) % self.n
            }
            Dealing::Unique(at_end) => match self.next.fetch_add(1, Relaxed) {
                row if row < self.n => row,
                _ if at_end == AtEnd::Stop => return Dealt::Stop,
                _ => return Dealt::Error,
            },
        };
        Dealt::Row(u32::try_from(row).expect("rows are fewer than 32-bit offsets"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(rows: &Rows) -> Vec<Vec<&str>> {
        let cell = |row, column| std::str::from_utf8(rows.cell(row, column)).unwrap();
        let n = u32::try_from(rows.n()).unwrap();
        (0..n).map(|row| (0..rows.columns().len()).map(|column| cell(row, column)).collect()).collect()
    }

    #[test]
    fn csv_has_names_in_its_first_line_and_quotes_where_needed() {
        let rows = Rows::csv(b"\xef\xbb\xbfuser, pass\nann,\"a,\"\"b\"\r\n,2\n").unwrap();
        assert_eq!(rows.columns(), ["user", "pass"]);
        assert_eq!(cells(&rows), [["ann", "a,\"b"], ["", "2"]]);
        assert_eq!((rows.column("pass"), rows.column("x")), (Some(1), None));
        assert_eq!(rows.cell(2, 1), b"", "beyond the end");
    }

    #[test]
    fn json_comes_as_an_array_or_as_lines() {
        for text in [r#"[{"a":"x","n":7},{"n":null,"a":"y"}]"#, "{\"a\":\"x\",\"n\":7}\n\n{\"a\":\"y\",\"n\":null}\n"] {
            let rows = Rows::json(text.as_bytes()).unwrap();
            assert_eq!(cells(&rows), [["x", "7"], ["y", ""]], "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_line() {
        let form = |line, what: &str| Err(Flaw::Form { line, what: what.to_owned() });
        assert_eq!(Rows::csv(b"a,b\n1,2\n3\n"), form(3, "1 cells, where the head has 2"));
        assert_eq!(Rows::csv(b"a,a\n1,2\n"), form(1, "two columns are called `a`"));
        assert_eq!(Rows::csv(b"a,\n1,2\n"), form(1, "column 2 has no name"));
        assert_eq!(Rows::json(b"{\"a\":1}\n{\"b\":1}"), form(2, "`a` is missing"));
        assert_eq!(Rows::json(b"[{\"a\":1},7]"), form(1, "row 2: this is no object"));
        assert_eq!(Rows::json(b"{\"a\":1}\n{\"a\":1,\"c\":2}"), form(2, "`c` is not in the first object"));
        assert!(matches!(Rows::json(b"{\"a\":1}\n{\"a\":"), Err(Flaw::Form { line: 2, .. })));
    }

    #[test]
    fn a_file_without_rows_and_one_that_is_not_there_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.csv");
        assert!(matches!(Rows::read(&path), Err(RowsError::File { .. })));
        std::fs::write(&path, "user,pass\n").unwrap();
        assert!(matches!(Rows::read(&path), Err(RowsError::Empty(_))));
        std::fs::write(&path, "user\nann\n").unwrap();
        assert_eq!(Rows::read(&path).unwrap().n(), 1);
    }

    #[test]
    fn unique_rows_are_dealt_once_and_then_the_policy_decides() {
        let mut chance = fastrand::Rng::with_seed(1);
        for (at_end, last) in [(AtEnd::Stop, Dealt::Stop), (AtEnd::Error, Dealt::Error), (AtEnd::Wrap, Dealt::Row(0))] {
            let dealer = Dealer::new(Dealing::Unique(at_end), 2);
            let dealt: Vec<Dealt> = (0..3).map(|_| dealer.deal(&mut chance)).collect();
            assert_eq!(dealt, [Dealt::Row(0), Dealt::Row(1), last]);
        }
    }

    #[test]
    fn workers_together_deal_each_row_once() {
        let dealer = Dealer::new(Dealing::Unique(AtEnd::Stop), 1_000);
        let worker = || {
            let mut chance = fastrand::Rng::with_seed(1);
            let rows = std::iter::from_fn(|| match dealer.deal(&mut chance) {
                Dealt::Row(row) => Some(row),
                _ => None,
            });
            rows.collect::<Vec<u32>>()
        };
        let mut all: Vec<u32> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..1_000).collect::<Vec<u32>>());
    }

    #[test]
    fn random_rows_stay_within_the_file_and_reach_all_of_it() {
        let mut chance = fastrand::Rng::with_seed(7);
        let dealer = Dealer::new(Dealing::Random, 3);
        let mut seen = [false; 3];
        for _ in 0..100 {
            let Dealt::Row(row) = dealer.deal(&mut chance) else { panic!("a random row is always there") };
            seen[row as usize] = true;
        }
        assert_eq!(seen, [true; 3]);
    }
}
