//! Rows of data sets: read and checked before the run, kept in one buffer, assigned by a policy.
//!
//! This module knows CSV and JSON, and nothing of the use of the values.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde_json::Value;

use crate::ast::{DataEnd, DataSetDef, Name, RowPolicy};

/// Cell offsets have 32 bits, which halves the table of a file of many small cells.
const TEXT_BYTES_MAX: usize = u32::MAX as usize;

/// Why a data set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataRowsError {
    /// The file cannot be read.
    #[error("cannot read the data file {path}: {cause}")]
    File {
        /// The path that was tried.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The content does not match the format that the file name implies.
    #[error("{path}, line {line}: {what}")]
    Form {
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The problem.
        what: String,
    },
    /// It has no rows.
    #[error("{0} has no row of data")]
    Empty(PathBuf),
    /// It lacks a column that is used.
    #[error("{path} has no column `{column}`; it has {known}")]
    Column {
        path: PathBuf,
        /// The missing name.
        column: String,
        /// The existing names.
        known: String,
    },
    /// It is larger than its table can hold.
    #[error("{0} has more than 4 GiB of text")]
    TooLarge(PathBuf),
}

impl DataRowsError {
    /// A hint at the remedy.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::File { .. } => "paths are relative to the scenario's folder",
            Self::Form { .. } => {
                "CSV needs a first line with names and the same number of cells in each row; \
                 JSON needs an array of objects, or one object per line"
            }
            Self::Empty(_) => "a data set needs at least one row",
            Self::Column { .. } => "write the column as in the first line of the file",
            Self::TooLarge(_) => "split the file",
        }
    }
}

/// The properties of the format that the file itself does not show.
#[derive(Debug, Clone, Copy, Default)]
pub struct DataLayout<'a> {
    /// The names of the columns, if the first line does not have them.
    pub columns: &'a [Name],
    /// The separator between cells, if it is not a comma.
    pub separator: Option<char>,
}

impl<'a> DataLayout<'a> {
    /// The layout that a scenario declares for a data set.
    pub(crate) fn of(data: &'a DataSetDef) -> Self {
        Self { columns: &data.columns, separator: data.separator }
    }
}

/// All rows of a file: one text, and the end of each cell in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DataRows {
    columns: Vec<String>,
    text: Vec<u8>,
    ends: Vec<u32>,
}

impl DataRows {
    /// Reads a file: JSON if its name ends in `.json`, `.jsonl` or `.ndjson`, otherwise CSV.
    ///
    /// # Errors
    /// The file is invalid; the error names the problem and the line.
    pub(crate) fn read(path: &Path, layout: &DataLayout<'_>) -> Result<Self, DataRowsError> {
        let bytes = std::fs::read(path).map_err(|cause| DataRowsError::File { path: path.to_owned(), cause })?;
        Self::parse(path, &bytes, layout)
    }

    /// Parses the content of a file.
    ///
    /// # Errors
    /// The content is invalid; the error names the problem and the line.
    pub fn parse(path: &Path, bytes: &[u8], layout: &DataLayout<'_>) -> Result<Self, DataRowsError> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let rows = match extension.to_ascii_lowercase().as_str() {
            extension if Self::is_json(extension) => Self::json(bytes),
            "tsv" if layout.separator.is_none() => Self::csv(bytes, &DataLayout { separator: Some('\t'), ..*layout }),
            _ => Self::csv(bytes, layout),
        };
        let rows = rows.map_err(|flaw| flaw.of(path))?;
        if rows.n() == 0 { Err(DataRowsError::Empty(path.to_owned())) } else { Ok(rows) }
    }

    /// Whether files with this extension, in lower case, hold JSON: a list of objects, or one object per line.
    pub(crate) fn is_json(extension: &str) -> bool {
        matches!(extension, "json" | "jsonl" | "ndjson")
    }

    /// The number of rows.
    #[must_use]
    pub fn n(&self) -> u64 {
        (self.ends.len() / self.columns.len().max(1)) as u64
    }

    /// The names of the columns.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The index of a column.
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
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

    fn push(&mut self, cell: &[u8]) -> Result<(), DataError> {
        self.text.extend_from_slice(cell);
        match u32::try_from(self.text.len()) {
            Ok(end) if self.text.len() <= TEXT_BYTES_MAX => self.ends.push(end),
            _ => return Err(DataError::TooLarge),
        }
        Ok(())
    }

    /// Parses comma-separated values (RFC 4180) whose first line has the names.
    pub(super) fn csv(bytes: &[u8], layout: &DataLayout<'_>) -> Result<Self, DataError> {
        // Spreadsheets begin their files with a byte order mark.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let separator = layout.separator.and_then(|separator| u8::try_from(separator).ok()).unwrap_or(b',');
        let has_names = layout.columns.is_empty();
        let mut reader = csv::ReaderBuilder::new().delimiter(separator).has_headers(has_names).from_reader(bytes);
        let flaw = |error: &csv::Error| DataError::Form {
            line: error.position().map_or(1, csv::Position::line),
            what: match error.kind() {
                csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                    format!("{len} cells, where the head has {expected_len}")
                }
                _ => error.to_string(),
            },
        };
        let columns: Vec<String> = if has_names {
            reader.headers().map_err(|error| flaw(&error))?.iter().map(|name| name.trim().to_owned()).collect()
        } else {
            layout.columns.iter().map(|name| name.text.clone()).collect()
        };
        let mut rows = Self { columns: distinct(columns)?, text: Vec::with_capacity(bytes.len()), ends: Vec::new() };
        let mut record = csv::ByteRecord::new();
        while reader.read_byte_record(&mut record).map_err(|error| flaw(&error))? {
            if record.len() != rows.columns.len() {
                let what = format!("{} cells, where there are {} columns", record.len(), rows.columns.len());
                return Err(DataError::Form { line: record.position().map_or(1, csv::Position::line), what });
            }
            for cell in &record {
                rows.push(cell)?;
            }
        }
        Ok(rows)
    }

    /// Parses an array of objects, or one object per line; the first object's keys are the columns.
    pub(super) fn json(bytes: &[u8]) -> Result<Self, DataError> {
        let mut rows = Self::default();
        let is_array = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        if is_array {
            let all: Vec<Value> = serde_json::from_slice(bytes).map_err(|error| DataError::json(&error, 0))?;
            for (idx, value) in (0..).zip(&all) {
                rows.push_object(value).map_err(|what| what.on(idx + 1, "row"))?;
            }
            return Ok(rows);
        }
        for (idx, line) in (0u64..).zip(bytes.split(|byte| *byte == b'\n')) {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let value: Value = serde_json::from_slice(line).map_err(|error| DataError::json(&error, idx))?;
            rows.push_object(&value).map_err(|what| what.on(idx + 1, "line"))?;
        }
        Ok(rows)
    }

    fn push_object(&mut self, value: &Value) -> Result<(), ObjectError> {
        let Value::Object(object) = value else { return Err(ObjectError::Message("this is not an object".to_owned())) };
        if self.columns.is_empty() {
            self.columns = object.keys().cloned().collect();
        }
        for idx in 0..self.columns.len() {
            let value = object.get(&self.columns[idx]);
            let value = value.ok_or_else(|| ObjectError::Message(format!("`{}` is missing", self.columns[idx])))?;
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            };
            self.push(text.as_bytes()).map_err(|_| ObjectError::TooLarge)?;
        }
        match object.keys().find(|key| !self.columns.contains(key)) {
            Some(key) => Err(ObjectError::Message(format!("`{key}` is not in the first object"))),
            None => Ok(()),
        }
    }
}

fn distinct(columns: Vec<String>) -> Result<Vec<String>, DataError> {
    let form = |what: String| DataError::Form { line: 1, what };
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

/// An error within one object.
enum ObjectError {
    Message(String),
    TooLarge,
}

impl ObjectError {
    fn on(self, number: u64, unit: &str) -> DataError {
        match self {
            Self::TooLarge => DataError::TooLarge,
            Self::Message(what) if unit == "line" => DataError::Form { line: number, what },
            Self::Message(what) => DataError::Form { line: 1, what: format!("{unit} {number}: {what}") },
        }
    }
}

/// An error within a text, whatever its source.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DataError {
    Form { line: u64, what: String },
    TooLarge,
}

impl DataError {
    fn json(error: &serde_json::Error, lines_before: u64) -> Self {
        Self::Form { line: lines_before + error.line() as u64, what: error.to_string() }
    }

    fn of(self, path: &Path) -> DataRowsError {
        match self {
            Self::Form { line, what } => DataRowsError::Form { path: path.to_owned(), line, what },
            Self::TooLarge => DataRowsError::TooLarge(path.to_owned()),
        }
    }
}

/// Assigns rows to the users of all workers.
#[derive(Debug)]
pub(crate) struct RowSource {
    policy: RowPolicy,
    at_end: DataEnd,
    n: u64,
    next: AtomicU64,
}

/// The row assigned to a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowResult {
    /// The row of this number.
    Row(u32),
    /// No row is left: the user leaves.
    Stop,
    /// No row is left, which ends the run.
    Error,
}

impl RowSource {
    /// A source of `n` rows, at least one.
    pub(super) const fn new(policy: RowPolicy, at_end: DataEnd, n: u64) -> Self {
        Self { policy, at_end, n, next: AtomicU64::new(0) }
    }

    /// Whether a user keeps one row for its whole life.
    pub(super) const fn is_per_user(&self) -> bool {
        matches!(self.policy, RowPolicy::PerUser)
    }

    /// The next row of a user, from an atomic counter that all workers share and that is used once per iteration.
    ///
    /// # Panics
    /// Never: there are fewer rows than 2³², because each has a cell in a table of 32-bit offsets.
    pub(super) fn next_row(&self, chance: &mut fastrand::Rng) -> RowResult {
        let row = match self.policy {
            RowPolicy::Random => chance.u64(..self.n),
            RowPolicy::Sequential | RowPolicy::Unique | RowPolicy::PerUser => {
                let next = self.next.fetch_add(1, Relaxed);
                match self.at_end {
                    _ if next < self.n => next,
                    DataEnd::Wrap => next % self.n,
                    DataEnd::Stop => return RowResult::Stop,
                    DataEnd::Error => return RowResult::Error,
                }
            }
        };
        RowResult::Row(u32::try_from(row).expect("rows are fewer than 32-bit offsets"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(rows: &DataRows) -> Vec<Vec<&str>> {
        let cell = |row, column| std::str::from_utf8(rows.cell(row, column)).unwrap();
        let n = u32::try_from(rows.n()).unwrap();
        (0..n).map(|row| (0..rows.columns().len()).map(|column| cell(row, column)).collect()).collect()
    }

    #[test]
    fn csv_has_names_in_its_first_line_and_quotes_where_needed() {
        let rows = DataRows::csv(b"\xef\xbb\xbfuser, pass\nann,\"a,\"\"b\"\r\n,2\n", &DataLayout::default()).unwrap();
        assert_eq!(rows.columns(), ["user", "pass"]);
        assert_eq!(cells(&rows), [["ann", "a,\"b"], ["", "2"]]);
        assert_eq!((rows.column("pass"), rows.column("x")), (Some(1), None));
        assert_eq!(rows.cell(2, 1), b"", "beyond the end");
    }

    #[test]
    fn names_and_the_separator_may_come_from_the_scenario() {
        let columns = ["a", "b"].map(|text| Name { text: text.to_owned(), ..Name::default() });
        let layout = DataLayout { columns: &columns, separator: Some(';') };
        let rows = DataRows::csv(b"1;2\n3;4,5\n", &layout).unwrap();
        assert_eq!((rows.columns().len(), cells(&rows)), (2, vec![vec!["1", "2"], vec!["3", "4,5"]]));
        let what = "3 cells, where there are 2 columns".to_owned();
        assert_eq!(DataRows::csv(b"1;2;3\n", &layout), Err(DataError::Form { line: 1, what }));
    }

    #[test]
    fn json_comes_as_an_array_or_as_lines() {
        for text in [r#"[{"a":"x","n":7},{"n":null,"a":"y"}]"#, "{\"a\":\"x\",\"n\":7}\n\n{\"a\":\"y\",\"n\":null}\n"] {
            let rows = DataRows::json(text.as_bytes()).unwrap();
            assert_eq!(cells(&rows), [["x", "7"], ["y", ""]], "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_line() {
        let form = |line, what: &str| Err(DataError::Form { line, what: what.to_owned() });
        assert_eq!(DataRows::csv(b"a,b\n1,2\n3\n", &DataLayout::default()), form(3, "1 cells, where the head has 2"));
        assert_eq!(DataRows::csv(b"a,a\n1,2\n", &DataLayout::default()), form(1, "two columns are called `a`"));
        assert_eq!(DataRows::csv(b"a,\n1,2\n", &DataLayout::default()), form(1, "column 2 has no name"));
        assert_eq!(DataRows::json(b"{\"a\":1}\n{\"b\":1}"), form(2, "`a` is missing"));
        assert_eq!(DataRows::json(b"[{\"a\":1},7]"), form(1, "row 2: this is not an object"));
        assert_eq!(DataRows::json(b"{\"a\":1}\n{\"a\":1,\"c\":2}"), form(2, "`c` is not in the first object"));
        assert!(matches!(DataRows::json(b"{\"a\":1}\n{\"a\":"), Err(DataError::Form { line: 2, .. })));
    }

    #[test]
    fn a_file_without_rows_and_one_that_is_not_there_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.csv");
        assert!(matches!(DataRows::read(&path, &DataLayout::default()), Err(DataRowsError::File { .. })));
        std::fs::write(&path, "user,pass\n").unwrap();
        assert!(matches!(DataRows::read(&path, &DataLayout::default()), Err(DataRowsError::Empty(_))));
        std::fs::write(&path, "user\nann\n").unwrap();
        assert_eq!(DataRows::read(&path, &DataLayout::default()).unwrap().n(), 1);
    }

    #[test]
    fn rows_are_dealt_once_and_then_the_end_decides() {
        let mut chance = fastrand::Rng::with_seed(1);
        for policy in [RowPolicy::Sequential, RowPolicy::Unique, RowPolicy::PerUser] {
            for (at_end, last) in [
                (DataEnd::Stop, RowResult::Stop),
                (DataEnd::Error, RowResult::Error),
                (DataEnd::Wrap, RowResult::Row(0)),
            ] {
                let dealer = RowSource::new(policy, at_end, 2);
                let dealt: Vec<RowResult> = (0..3).map(|_| dealer.next_row(&mut chance)).collect();
                assert_eq!(dealt, [RowResult::Row(0), RowResult::Row(1), last]);
            }
        }
    }

    #[test]
    fn workers_together_deal_each_row_once() {
        let dealer = RowSource::new(RowPolicy::Unique, DataEnd::Stop, 1_000);
        let worker = || {
            let mut chance = fastrand::Rng::with_seed(1);
            let rows = std::iter::from_fn(|| match dealer.next_row(&mut chance) {
                RowResult::Row(row) => Some(row),
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
        let dealer = RowSource::new(RowPolicy::Random, DataEnd::Wrap, 3);
        let mut seen = [false; 3];
        for _ in 0..100 {
            let RowResult::Row(row) = dealer.next_row(&mut chance) else { panic!("a random row is always there") };
            seen[row as usize] = true;
        }
        assert_eq!(seen, [true; 3]);
    }
}
