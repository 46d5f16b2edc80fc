//! The table of all tests. Its texts may continue into empty cells next to them.

use super::{
    cell_tone,
    screen::{
        TextScreen,
        Tone::{self, Faint, Plain},
        fit, fitted, wrap,
    },
};
use crate::{
    document::{Row, Table},
    sanitize::one_line,
};

/// Columns that shrink on a narrow screen, with their minimum width, which keeps a text recognizable.
const MINIMUM: [(usize, usize); 2] = [(1, 17), (4, 12)];
/// If that is not enough, these columns move below their row, each with this label.
const LOWERED: [(usize, &str); 2] = [(6, ""), (4, "limit: ")];
/// If that is still not enough, the minimum width of the other columns.
const COLUMN_MIN: usize = 8;
/// The maximum width that a title requests if it can push its neighbor.
const PUSHED_MAX: usize = 20;
const INDENT: usize = 2;
const GAP: usize = 2;

/// The number of columns.
const N: usize = 7;

type Cells = [String; N];
type Line = (Cells, [Tone; N]);

pub(super) fn write(screen: &mut TextScreen, table: &Table) {
    let texts = |row: &Row| -> Cells { std::array::from_fn(|column| one_line(&row.cells[column].text)) };
    let tones = |row: &Row| std::array::from_fn(|column| cell_tone(&row.cells[column]));
    let mut lines: Vec<Line> = table.rows.iter().map(|row| (texts(row), tones(row))).collect();
    let titles: Cells = std::array::from_fn(|column| table.columns[column].title.clone());
    let natural = widths(&titles, &lines, usize::MAX).0;
    if widths(&titles, &lines, screen.width()).0[1] < natural[1] {
        for (cells, _) in &mut lines {
            cells[1] = shorter(&cells[1]);
        }
    }
    for (column, label) in LOWERED {
        if widths(&titles, &lines, screen.width()).1 {
            lines = lines.into_iter().flat_map(|line| lowered(line, column, label)).collect();
        }
    }
    let (widths, _) = widths(&titles, &lines, screen.width());
    line(screen, &titles, &widths, [Faint; N]);
    for (cells, tones) in &lines {
        line(screen, cells, &widths, *tones);
    }
}

/// Splits a line into the line without one cell and a second line with that cell.
fn lowered((mut cells, tones): Line, column: usize, label: &str) -> Vec<Line> {
    let text = std::mem::take(&mut cells[column]);
    let mut below = Cells::default();
    below[1] = format!("{label}{text}");
    let n = if text.is_empty() { 1 } else { 2 };
    [(cells, tones), (below, [tones[column]; N])].into_iter().take(n).collect()
}

/// Returns a title without self-evident parts.
fn shorter(title: &str) -> String {
    let title = title.strip_suffix(", 1 flow").unwrap_or(title);
    title.replace(" connections", " conn.").replace("request/response", "rr")
}

fn n_chars(text: &str) -> usize {
    text.chars().count()
}

/// Returns the number of columns that a cell may use: its own and the empty ones to its right.
fn reach(cells: &Cells, column: usize) -> usize {
    1 + cells[column + 1..].iter().take_while(|cell| cell.is_empty()).count()
}

/// Returns the width of each column, and whether it is too small for some of them. Empty columns have width 0.
fn widths(titles: &Cells, lines: &[Line], room: usize) -> (Vec<usize>, bool) {
    let stands = |column: usize| lines.iter().any(|(cells, _)| !cells[column].is_empty());
    let mut natural: Vec<usize> =
        (0..N).map(|column| if stands(column) { n_chars(&titles[column]) } else { 0 }).collect();
    for (cells, _) in lines {
        for (column, cell) in cells.iter().enumerate() {
            // A text does not widen its column if it can continue into empty neighbors or push a neighbor that can.
            let runs_on = column > 0 && column < 3 && reach(cells, column) > 1;
            let pushes = column == 1 && !cells[2].is_empty() && reach(cells, 2) > 1;
            let wanted = if pushes { n_chars(cell).min(PUSHED_MAX) } else { n_chars(cell) };
            if !runs_on || pushes {
                natural[column] = natural[column].max(wanted);
            }
        }
    }
    let shown = natural.iter().filter(|width| **width > 0).count();
    let room = room.saturating_sub(INDENT + GAP * shown.saturating_sub(1));
    let mut minimum = natural.clone();
    for (column, least) in MINIMUM {
        minimum[column] = minimum[column].min(least);
    }
    let widths = fit(&natural, &minimum, room);
    let is_crowded = widths.iter().sum::<usize>() > room;
    (fit(&widths, &[COLUMN_MIN; N], room), is_crowded)
}

/// Returns the total width of columns, including the gaps between them.
fn span(widths: &[usize]) -> usize {
    let shown = widths.iter().filter(|width| **width > 0);
    shown.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// Returns the cells of a line as blocks: the start and end column of each.
///
/// A text that is too long for its column continues into empty ones, or pushes a neighbor that has space on its right.
fn blocks(cells: &Cells, widths: &[usize], room: usize) -> Vec<(usize, usize)> {
    // A block that reaches the last column may extend to the edge of the screen.
    let span = |from: usize, to: usize| match to {
        to if to == cells.len() => room.saturating_sub(span(&widths[..from]) + GAP * usize::from(from > 0)),
        to => span(&widths[from..to]),
    };
    let mut blocks = Vec::new();
    let mut column = 0;
    while column < cells.len() {
        let long = n_chars(&cells[column]) > widths[column];
        let n = if long { reach(cells, column) } else { 1 };
        let next = column + n;
        let beyond = cells.get(next).map_or(0, |_| reach(cells, next));
        if long && n == 1 && beyond > 1 {
            let both = span(column, next + beyond);
            let pushed = n_chars(&cells[column]) + GAP;
            if pushed + n_chars(&cells[next]) <= both {
                blocks.extend([(column, pushed - GAP), (next, both - pushed)]);
                column = next + beyond;
                continue;
            }
        }
        blocks.push((column, span(column, next)));
        column = next;
    }
    blocks.retain(|(_, width)| *width > 0);
    blocks
}

/// Writes one line of the table. A text without enough space on its right wraps to the next line.
fn line(screen: &mut TextScreen, cells: &Cells, widths: &[usize], tones: [Tone; N]) {
    let blocks: Vec<(Tone, usize, Vec<String>)> = blocks(cells, widths, screen.width().saturating_sub(INDENT))
        .into_iter()
        .map(|(column, width)| {
            let text = &cells[column];
            let fits = n_chars(text) <= width;
            (tones[column], width, if fits { vec![text.clone()] } else { wrap(text, width) })
        })
        .collect();
    let height = blocks.iter().map(|(.., lines)| lines.len()).max().unwrap_or(1);
    for row in 0..height {
        let mut texts = vec![(Plain, " ".repeat(INDENT))];
        for (tone, width, lines) in &blocks {
            texts.push((*tone, fitted(lines.get(row).map_or("", String::as_str), *width)));
            texts.push((Plain, " ".repeat(GAP)));
        }
        let pieces: Vec<(Tone, &str)> = texts.iter().map(|(tone, text)| (*tone, text.as_str())).collect();
        screen.line(&pieces);
    }
}
