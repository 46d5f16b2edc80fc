//! Draws the values of all pairs of hosts: senders as rows, receivers as columns.

use fathom_model::units::rounded;
use maud::html;

use super::{Plot, float, px};

/// The number of shades above the lightest one.
const LEVELS: f64 = 7.0;
const WIDTH: f64 = 510.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 22.0;

/// The values of all pairs.
pub(crate) struct Matrix {
    /// The senders.
    pub(crate) rows: Vec<String>,
    /// The receivers.
    pub(crate) columns: Vec<String>,
    /// One list per sender. `None` where there is no pair or no value.
    pub(crate) values: Vec<Vec<Option<f64>>>,
    /// Whether a larger value is better.
    pub(crate) is_more_better: bool,
}

impl Matrix {
    /// The shade of a value: 0 for the best of all, 7 for the worst possible. A rate is compared with the best, since half of it is bad; a
    /// time or a loss with the worst.
    fn level(&self, value: f64) -> u64 {
        let largest = self.values.iter().flatten().flatten().copied().fold(0.0, f64::max);
        let part = if largest > 0.0 { (value / largest).clamp(0.0, 1.0) } else { 0.0 };
        let bad = if self.is_more_better && largest > 0.0 { 1.0 - part } else { part };
        rounded(bad * LEVELS)
    }
}

/// Draws each pair as a cell, the darker the worse.
pub(crate) fn heat_map(matrix: &Matrix, show: impl Fn(f64) -> String) -> Plot {
    if matrix.values.iter().flatten().all(Option::is_none) {
        return Err("No pair of hosts has a value.");
    }
    let width = (WIDTH - LEFT) / float(matrix.columns.len().max(1));
    let height = width.clamp(14.0, 34.0);
    let bottom = TOP + height * float(matrix.rows.len());
    Ok(html! {
        svg.plot.heat viewBox={ "0 0 " (px(WIDTH)) " " (px(bottom + 6.0)) } role="img" aria-label="all pairs of hosts" {
            @for (place, name) in matrix.columns.iter().enumerate() {
                text.tick x=(px(LEFT + width * (float(place) + 0.5))) y=(px(TOP - 8.0)) text-anchor="middle" { (name) }
            }
            @for (place, (name, values)) in matrix.rows.iter().zip(&matrix.values).enumerate() {
                @let top = TOP + height * float(place);
                text.tick x=(px(LEFT - 8.0)) y=(px(top + height / 2.0 + 4.0)) text-anchor="end" { (name) }
                @for (column, value) in values.iter().enumerate() {
                    @if let Some(value) = value {
                        rect class={ "h" (matrix.level(*value)) } x=(px(LEFT + width * float(column))) y=(px(top)) width=(px(width - 1.5)) height=(px(height - 1.5)) {
                            title { (name) " → " (matrix.columns[column]) ": " (show(*value)) }
                        }
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(is_more_better: bool) -> Matrix {
        Matrix {
            rows: vec!["a".to_owned(), "b<".to_owned()],
            columns: vec!["a".to_owned(), "b<".to_owned()],
            values: vec![vec![None, Some(100.0)], vec![Some(50.0), None]],
            is_more_better,
        }
    }

    #[test]
    fn the_best_rate_is_light_and_the_worst_time_is_dark() {
        assert_eq!((matrix(true).level(100.0), matrix(true).level(0.0), matrix(true).level(50.0)), (0, 7, 4));
        assert_eq!((matrix(false).level(100.0), matrix(false).level(0.0)), (7, 0));
    }

    #[test]
    fn each_pair_is_a_cell_that_names_it_and_names_are_escaped() {
        let drawn = heat_map(&matrix(true), |value| format!("{value} ns")).unwrap().into_string();
        assert_eq!(drawn.matches("<rect").count(), 2);
        assert!(drawn.contains("a → b&lt;: 100 ns") && !drawn.contains("b<:"), "{drawn}");
        let none = Matrix { values: vec![vec![None; 2]; 2], ..matrix(true) };
        assert!(heat_map(&none, |value| value.to_string()).is_err());
    }
}
