//! A table whose columns are as wide as their content: the first is left-aligned, the others are right-aligned.

use super::{
    cell_tone,
    screen::{
        TextScreen,
        Tone::{self, Faint, Plain},
        fitted, wrap,
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

/// The minimum width of a column whose texts may wrap.
const WRAP_MIN: usize = 24;

/// Writes a table. Empty columns are omitted.
pub(super) fn write(screen: &mut TextScreen, table: &Table) {
    let is_shown = |only: Option<Medium>| only != Some(Medium::Page);
    let rows: Vec<&Row> = table.rows.iter().filter(|row| is_shown(row.only)).collect();
    let stands = |column: &usize| *column == 0 || rows.iter().any(|row| !text(row, *column).is_empty());
    let all: Vec<usize> =
        (0..table.columns.len()).filter(|c| is_shown(table.columns[*c].only)).filter(stands).collect();
    let Layout { shown, widths, is_cut } = layout(table, &rows, all, screen.width());
    let titles: Vec<(Tone, String)> =
        shown.iter().map(|column| (Faint, one_line(&table.columns[*column].title))).collect();
    lines(screen, &titles, &widths, if is_cut { " …" } else { "" });
    for row in rows {
        let tone = |column: usize| row.cells.get(column).map_or(Plain, cell_tone);
        let cells: Vec<(Tone, String)> = shown.iter().map(|column| (tone(*column), text(row, *column))).collect();
        lines(screen, &cells, &widths, "");
    }
}

/// The columns that a screen has room for.
struct Layout {
    shown: Vec<usize>,
    widths: Vec<usize>,
    /// Whether others at the right had to go.
    is_cut: bool,
}

/// Fits the columns into a width: some give way, texts wrap, names are shortened, and at last the columns at the right go.
fn layout(table: &Table, rows: &[&Row], mut shown: Vec<usize>, room: usize) -> Layout {
    let natural = |column: usize| {
        let texts = rows.iter().map(|row| text(row, column)).chain([one_line(&table.columns[column].title)]);
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let wraps = |column: usize| table.columns[column].wraps;
    let least = |column: usize| if wraps(column) { natural(column).min(WRAP_MIN) } else { natural(column) };
    let others = |shown: &[usize]| -> usize { shown[1..].iter().map(|column| least(*column) + 2).sum() };
    let first = natural(0);
    let gives_way = |column: &&usize| table.columns[**column].gives_way;
    while others(&shown) + first.min(NAME_MIN) + 2 > room {
        let Some(column) = shown.iter().filter(|c| gives_way(c) > 0).max_by_key(gives_way).copied() else { break };
        shown.retain(|other| *other != column);
    }
    let are_names = !rows.iter().any(|row| text(row, 0).starts_with(|c: char| c.is_ascii_digit()));
    let first_min = if are_names { first.min(FIRST_MIN) } else { first };
    let n_all = shown.len();
    let beside = |n: usize| if n < n_all { 4 } else { 2 };
    while shown.len() > 2 && others(&shown) + first_min + beside(shown.len()) > room {
        shown.pop();
    }
    let spare = |used: usize| room.saturating_sub(used + beside(shown.len()));
    let first = first.min(spare(others(&shown)).max(first_min));
    let mut more = spare(others(&shown) + first);
    let widened = |column: &usize| {
        let width = natural(*column).min(least(*column) + more);
        more -= width - least(*column);
        width
    };
    let widths = std::iter::once(first).chain(shown[1..].iter().map(widened)).collect();
    Layout { is_cut: shown.len() < n_all, shown, widths }
}

/// Returns the text of a cell, or an empty text if the row is shorter.
fn text(row: &Row, column: usize) -> String {
    row.cells.get(column).map(|cell| one_line(&cell.text)).unwrap_or_default()
}

/// Writes a row, in several lines if a text is wider than its column.
fn lines(screen: &mut TextScreen, cells: &[(Tone, String)], widths: &[usize], end: &str) {
    let wrapped = |(column, (_, text)): (usize, &(Tone, String))| {
        if column == 0 { vec![fitted(text, widths[0])] } else { wrap_kept(text, widths[column]) }
    };
    let wrapped: Vec<Vec<String>> = cells.iter().enumerate().map(wrapped).collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(1);
    for index in 0..height {
        let mut texts = Vec::new();
        for (column, (lines, width)) in wrapped.iter().zip(widths).enumerate() {
            let line = lines.get(index).map_or("", String::as_str);
            let before = 2 + if column == 0 { 0 } else { width.saturating_sub(line.chars().count()) };
            let line = if column == 0 { fitted(line, *width) } else { line.to_owned() };
            texts.extend([(Plain, " ".repeat(before)), (cells[column].0, line)]);
        }
        texts.push((Faint, if index == 0 { end.to_owned() } else { String::new() }));
        screen.line(&texts.iter().map(|(tone, text)| (*tone, text.as_str())).collect::<Vec<_>>());
    }
}

/// Wraps a text that is too wide. One that fits keeps its spaces.
fn wrap_kept(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width { vec![text.to_owned()] } else { wrap(text, width) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        document::{Column, columns},
        formats::text::{Colour, TextStyle},
    };

    #[test]
    fn the_answer_of_a_table_stays_on_a_narrow_screen() {
        let answer = Column { wraps: true, ..Column::text("what via does") };
        let value = |title, gives_way| Column { gives_way, ..Column::number(title) };
        let table = Table {
            columns: vec![Column::text(""), value("direct", 1), value("via", 2), answer],
            rows: vec![Row::new(["RTT under load p99", "1.98 ms", "984 µs", "inconclusive: from −78 % to +151 %"])],
            ..Table::default()
        };
        let shown = |width| {
            let mut screen = TextScreen::new(TextStyle { colour: Colour::Never, width });
            write(&mut screen, &table);
            screen.into_text()
        };
        assert_eq!(shown(80).lines().count(), 2, "{}", shown(80));
        let narrow = "                       direct     via             what via does
  RTT under load p99  1.98 ms  984 µs  inconclusive: from −78 %
                                                      to +151 %\n";
        assert_eq!(shown(63), narrow, "{}", shown(63));
        let narrowest = shown(60);
        assert!(narrowest.contains("1.98 ms") && narrowest.contains("+151 %"), "{narrowest}");
        assert!(!narrowest.contains("984 µs"), "{narrowest}");
    }

    #[test]
    fn a_table_of_which_one_column_is_left_is_drawn() {
        let mut screen = TextScreen::new(TextStyle { colour: Colour::Never, width: 80 });
        // A route without any answer.
        let rows = ["1", "2"].map(|hop| Row::new([hop, "", ""])).into();
        write(&mut screen, &Table { columns: columns(["hop", "address", "RTT"]), rows, ..Table::default() });
        assert_eq!(screen.into_text(), "  hop\n  1\n  2\n");
    }
}
