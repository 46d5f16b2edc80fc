//! How a simulation is printed: a table for people, or one document.

use std::io::{self, Write as _};

use clap::ArgMatches;
use serde::Serialize;

/// The format of the documents.
const FORMAT: &str = "fathom.simulation/1";

/// A document: what was simulated, with which settings, and the results.
#[derive(Debug, Serialize)]
pub(super) struct SimulationDocument<S, R> {
    format: &'static str,
    simulation: &'static str,
    settings: S,
    results: R,
}

impl<S: Serialize, R: Serialize> SimulationDocument<S, R> {
    pub(super) const fn new(simulation: &'static str, settings: S, results: R) -> Self {
        Self { format: FORMAT, simulation, settings, results }
    }

    /// Prints the document, or the text for people.
    pub(super) fn print(&self, matches: &ArgMatches, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if matches.get_flag("json") {
            serde_json::to_writer_pretty(&mut out, self)?;
            out.write_all(b"\n")?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        Ok(out.flush()?)
    }
}

/// Lays out rows under titles, each column as wide as its widest cell, to the right. Columns without any text are left out.
pub(super) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
    let columns: Vec<usize> =
        (0..titles.len()).filter(|column| rows.iter().any(|row| !cell(row, *column).is_empty())).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| cell(row, column)).chain([titles[column].to_owned()]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let titles: Vec<String> = titles.iter().map(|title| (*title).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        for column in &columns {
            let cell = cell(row, *column);
            text.push_str(&" ".repeat(2 + width(*column) - cell.chars().count()));
            text.push_str(&cell);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells_and_empty_ones_are_left_out() {
        let rows = [vec!["1".to_owned(), String::new(), "20 %".to_owned()], vec!["100".to_owned()]];
        assert_eq!(table(&["size", "note", "loss"], &rows), "  size  loss\n     1  20 %\n   100      \n");
    }
}
