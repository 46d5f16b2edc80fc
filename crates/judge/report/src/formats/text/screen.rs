//! Lines of a terminal. This is the one place that removes hostile characters and adds colors.

use std::fmt::Write as _;

use crate::sanitize::one_line;

/// Whether text is colored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Never,
    /// ANSI colors. They only repeat what the text says.
    Ansi,
}

/// The layout of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextStyle {
    pub colour: Colour,
    /// The width of the terminal in columns. Smaller values count as 60.
    pub width: usize,
}

impl TextStyle {
    /// 100 columns without color.
    pub const PLAIN: Self = Self { colour: Colour::Never, width: 100 };
}

/// The tone of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Warn,
}

impl Tone {
    const fn escape(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "\u{1b}[1m",
            Self::Faint => "\u{1b}[2m",
            Self::Good => "\u{1b}[32m",
            Self::Bad => "\u{1b}[1;31m",
            Self::Warn => "\u{1b}[33m",
        }
    }
}

/// A screen that is written from top to bottom.
pub(super) struct TextScreen {
    style: TextStyle,
    text: String,
}

impl TextScreen {
    pub(super) const fn new(style: TextStyle) -> Self {
        Self { style, text: String::new() }
    }

    pub(super) fn width(&self) -> usize {
        self.style.width.max(60)
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Adds an empty line, unless the last line is already empty.
    pub(super) fn blank_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    /// Adds a line of pieces. Spaces at its end are removed.
    pub(super) fn line(&mut self, pieces: &[(Tone, &str)]) {
        let mut pieces: Vec<(Tone, String)> = pieces.iter().map(|(tone, piece)| (*tone, one_line(piece))).collect();
        // Blanks at the end go before the colors, behind which they would not be at the end.
        while let Some((_, last)) = pieces.last_mut() {
            last.truncate(last.trim_end_matches(' ').len());
            if !last.is_empty() {
                break;
            }
            pieces.pop();
        }
        for (tone, piece) in &pieces {
            if self.style.colour == Colour::Never || *tone == Tone::Plain || piece.trim().is_empty() {
                self.text.push_str(piece);
            } else {
                write!(self.text, "{}{piece}\u{1b}[0m", tone.escape()).expect("a string takes all that is written");
            }
        }
        self.text.push('\n');
    }

    /// Adds the pieces on one line if they fit. Returns whether they did.
    pub(super) fn fits_on_line(&mut self, pieces: &[(Tone, &str)]) -> bool {
        let fits = pieces.iter().map(|(_, piece)| piece.chars().count()).sum::<usize>() <= self.width();
        if fits {
            self.line(pieces);
        }
        fits
    }

    /// Adds a text after a label, wrapped at spaces. Further lines are indented by the width of the label.
    pub(super) fn wrapped(&mut self, label: (Tone, &str), text: (Tone, &str)) {
        let indent = label.1.chars().count();
        let room = self.width().saturating_sub(indent).max(20);
        for (index, line) in wrap(&one_line(text.1), room).iter().enumerate() {
            let blank = " ".repeat(indent);
            let before = if index == 0 { label } else { (Tone::Plain, blank.as_str()) };
            self.line(&[before, (text.0, line)]);
        }
    }
}

/// Wraps a text at spaces into lines of at most `room` characters. A longer word gets a line of its own.
pub(super) fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let pieces = pieces(text);
    // A number stays with its unit if both fit on a line.
    let fits = |piece: &String| piece.chars().count() <= room;
    let words =
        pieces.iter().flat_map(|piece| if fits(piece) { vec![piece.as_str()] } else { piece.split(' ').collect() });
    for word in words {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// Splits a text into words. A number and its unit count as one, and a number and the sign `±` or `×` before it.
fn pieces(text: &str) -> Vec<String> {
    const UNITS: [&str; 10] = ["bit/s", "pps", "req/s", "/s", "B", "iB", "s", "ns", "µs", "%"];
    let is_unit = |word: &str| {
        let word = word.trim_end_matches([',', ';', ':', '.', ')']);
        let bare = word.strip_prefix(['k', 'K', 'M', 'G', 'T', 'm']).unwrap_or(word);
        bare.is_empty() || UNITS.contains(&bare)
    };
    let mut pieces: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let begins_with_digit = |piece: &&mut String| {
            piece.trim_start_matches(['(', '±', '×', ' ']).starts_with(|c: char| c.is_ascii_digit())
        };
        let is_joined =
            |piece: &&mut String| (begins_with_digit(piece) && is_unit(word)) || piece.ends_with(['±', '×']);
        match pieces.last_mut().filter(is_joined) {
            Some(number) => *number = format!("{number} {word}"),
            None => pieces.push(word.to_owned()),
        }
    }
    pieces
}

/// Returns the text in exactly `width` columns: cut with an ellipsis, or padded with spaces.
pub(super) fn fitted(text: &str, width: usize) -> String {
    let n = text.chars().count();
    if n <= width {
        return format!("{text}{}", " ".repeat(width - n));
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Shrinks column widths to fit into `room`, always the column that exceeds its minimum by the most.
pub(super) fn fit(natural: &[usize], minimum: &[usize], room: usize) -> Vec<usize> {
    let mut widths = natural.to_vec();
    while widths.iter().sum::<usize>() > room {
        let spare = |column: &usize| widths[*column].saturating_sub(minimum[*column]);
        let Some(widest) = (0..widths.len()).max_by_key(spare).filter(|column| spare(column) > 0) else { break };
        widths[widest] -= 1;
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_wide_gives_up_what_hurts_least() {
        assert_eq!(fit(&[10, 30, 12], &[8, 10, 12], 40), [10, 18, 12]);
        assert_eq!(fit(&[10, 30], &[10, 30], 20), [10, 30], "below its minimum no column is cut");
    }

    #[test]
    fn text_is_broken_at_blanks_only() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!(wrap("ceiling 3.95 Mpps", 14), ["ceiling", "3.95 Mpps"]);
        assert_eq!(wrap("adds 456 ± 129 µs (× 3.38)", 15), ["adds 456", "± 129 µs", "(× 3.38)"]);
        assert_eq!(wrap("ceiling of 68.3 k req/s", 16), ["ceiling of", "68.3 k req/s"]);
        assert_eq!(wrap("of rr 111 k/s; more", 12), ["of rr", "111 k/s;", "more"]);
        assert_eq!(wrap("ceiling 3.95 Mpps", 4), ["ceiling", "3.95", "Mpps"], "where there is no room for both");
        assert_eq!(fitted("softirq", 5), "softi".chars().take(4).collect::<String>() + "…");
    }

    #[test]
    fn an_escape_from_elsewhere_is_gone_and_ours_stays() {
        let mut user_error = TextScreen::new(TextStyle { colour: Colour::Ansi, width: 80 });
        user_error.line(&[(Tone::Good, "ok\u{1b}[31m  "), (Tone::Plain, "  ")]);
        assert_eq!(user_error.into_text(), "\u{1b}[32mok[31m\u{1b}[0m\n");
    }
}
