//! A table whose columns are as wide as their content: the first is left-aligned, the others are right-aligned.

use super::{
    cell_tone,
    screen::{
        TextScreen,
        Tone::{self, Faint, Plain},
        fitted,
    },
};
use crate::{
    document::{Medium, Row, Table},
    sanitize::one_line,
};

/// The minimum width of names in the first column before other columns are removed.
const NAME_MIN: usize = 20;
/// The minimum width of the first column on a narrow screen.
const FIRST_MIN: usize = 10;

/// Writes a table. Empty columns are omitted.
pub(super) fn write(screen: &mut TextScreen, table: &Table) {
    let is_shown = |only: Option<Medium>| only != Some(Medium::Page);
    let rows: Vec<&Row> = table.rows.iter().filter(|row| is_shown(row.only)).collect();
    let stands = |column: &usize| *column == 0 || rows.iter().any(|row| !text(row, *column).is_empty());
    let mut shown: Vec<usize> =
        (0..table.columns.len()).filter(|c| is_shown(table.columns[*c].only)).filter(stands).collect();
    let title = |column: usize| one_line(&table.columns[column].title);
    let width = |column: usize| {
        let texts = rows.iter().map(|row| text(row, column)).chain([title(column)]);
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let mut first = width(0);
    let others = |shown: &[usize]| -> usize { shown[1..].iter().map(|column| width(*column) + 2).sum() };
    let gives_way = |column: &&usize| table.columns[**column].gives_way;
    while others(&shown) + first.min(NAME_MIN) + 2 > screen.width() {
        let Some(column) = shown.iter().filter(|c| gives_way(c) > 0).max_by_key(gives_way).copied() else { break };
        shown.retain(|other| *other != column);
    }
    // If that is not enough, names in the first column are shortened, then columns at the right are removed.
    let are_names = !rows.iter().any(|row| text(row, 0).starts_with(|c: char| c.is_ascii_digit()));
    let least = if are_names { first.min(FIRST_MIN) } else { first };
    let n_all = shown.len();
    let beside = |n: usize| if n < n_all { 4 } else { 2 };
    while shown.len() > 2 && others(&shown) + least + beside(shown.len()) > screen.width() {
        shown.pop();
    }
    first = first.min(screen.width().saturating_sub(others(&shown) + beside(shown.len())).max(least));
    let widths: Vec<usize> = std::iter::once(first).chain(shown[1..].iter().map(|column| width(*column))).collect();
    let titles: Vec<(Tone, String)> = shown.iter().map(|column| (Faint, title(*column))).collect();
    line(screen, &titles, &widths, if shown.len() < n_all { " …" } else { "" });
    for row in rows {
        let tone = |column: usize| row.cells.get(column).map_or(Plain, cell_tone);
        let cells: Vec<(Tone, String)> = shown.iter().map(|column| (tone(*column), text(row, *column))).collect();
        line(screen, &cells, &widths, "");
    }
}

/// Returns the text of a cell, or an empty text if the row is shorter.
fn text(row: &Row, column: usize) -> String {
    row.cells.get(column).map(|cell| one_line(&cell.text)).unwrap_or_default()
}

fn line(screen: &mut TextScreen, cells: &[(Tone, String)], widths: &[usize], end: &str) {
    let mut texts = Vec::new();
    for (column, ((tone, text), width)) in cells.iter().zip(widths).enumerate() {
        let n = text.chars().count();
        let aligned = if column == 0 { fitted(text, *width) } else { text.clone() };
        texts.push((Plain, " ".repeat(2 + if column == 0 { 0 } else { width.saturating_sub(n) })));
        texts.push((*tone, aligned));
    }
    texts.push((Faint, end.to_owned()));
    screen.line(&texts.iter().map(|(tone, text)| (*tone, text.as_str())).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        document::columns,
        formats::text::{Colour, TextStyle},
    };

    #[test]
    fn a_table_of_which_one_column_is_left_is_drawn() {
        let mut screen = TextScreen::new(TextStyle { colour: Colour::Never, width: 80 });
        // A route without any answer.
        let rows = ["1", "2"].map(|hop| Row::new([hop, "", ""])).into();
        write(&mut screen, &Table { columns: columns(["hop", "address", "RTT"]), rows, ..Table::default() });
        assert_eq!(screen.into_text(), "  hop\n  1\n  2\n");
    }
}
