//! The table of a run with several tests.

use fathom_model::Run;

use super::screen::{
    Screen,
    Tone::{self, Bad, Faint, Good, Plain, Strong, Warn},
    fit, fitted, wrap,
};
use crate::view::{self, Mark, Row};

const TITLES: [&str; 7] = ["layer", "test", "result", "95 % interval", "limit", "used", ""];
/// What a column keeps when the screen is narrow: enough of a text to recognise it.
const MINIMUM: [usize; 7] = [6, 14, 8, 13, 12, 5, 8];
const INDENT: usize = 2;
const GAP: usize = 2;

type Cells = [String; 7];

pub(super) fn write(screen: &mut Screen, run: &Run) {
    let rows = view::rows(run);
    let mut layer = None;
    let mut lines: Vec<(Cells, Mark)> = Vec::new();
    for row in &rows {
        let begins = layer != Some(row.test.layer);
        layer = Some(row.test.layer);
        lines.push((cells(row, begins), row.mark));
    }
    let widths = widths(&lines, screen.width());
    let header = TITLES.map(str::to_owned);
    line(screen, &header, &widths, [Faint; 7]);
    for (cells, mark) in &lines {
        line(screen, cells, &widths, tones(*mark));
    }
}

fn cells(row: &Row<'_>, begins: bool) -> Cells {
    let layer = if begins { row.test.layer.name().to_owned() } else { String::new() };
    let marker = row.finding.map(|finding| format!("◂ {}", finding.short)).unwrap_or_default();
    let texts =
        [&row.label, &row.result, &row.interval, &row.limit, &row.used].map(|text| crate::clean::one_line(text));
    let [label, result, interval, limit, used] = texts;
    [layer, label, result, interval, limit, used, crate::clean::one_line(&marker)]
}

const fn tones(mark: Mark) -> [Tone; 7] {
    let used = match mark {
        Mark::Kept => Good,
        Mark::Broken => Bad,
        Mark::Open => Warn,
        Mark::Plain | Mark::Missing => Plain,
    };
    let result = if matches!(mark, Mark::Missing) { Warn } else { Strong };
    [Plain, Plain, result, Plain, Plain, used, Warn]
}

/// How many columns a cell may use: its own and the empty ones to its right.
fn reach(cells: &Cells, column: usize) -> usize {
    1 + cells[column + 1..].iter().take_while(|cell| cell.is_empty()).count()
}

fn widths(lines: &[(Cells, Mark)], room: usize) -> Vec<usize> {
    let mut natural = TITLES.map(|title| title.chars().count());
    for (cells, _) in lines {
        for (column, cell) in cells.iter().enumerate() {
            // A text that can run on into empty neighbours does not widen its column.
            if column + 1 == cells.len() || reach(cells, column) == 1 || column == 0 || column >= 3 {
                natural[column] = natural[column].max(cell.chars().count());
            }
        }
    }
    fit(&natural, &MINIMUM, room.saturating_sub(INDENT + GAP * (TITLES.len() - 1)))
}

/// One line of the table; a text that has no room to its right goes on below.
fn line(screen: &mut Screen, cells: &Cells, widths: &[usize], tones: [Tone; 7]) {
    let mut column = 0;
    let mut blocks = Vec::new();
    while column < cells.len() {
        let long = cells[column].chars().count() > widths[column];
        let n = if long { reach(cells, column) } else { 1 };
        let width = widths[column..column + n].iter().sum::<usize>() + GAP * (n - 1);
        let fits = cells[column].chars().count() <= width;
        let lines = if fits { vec![cells[column].clone()] } else { wrap(&cells[column], width) };
        blocks.push((tones[column], width, lines));
        column += n;
    }
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
