//! Makes foreign text safe to print.

/// Returns true if a character can change the display of the text around it: terminal escapes, other controls, direction marks.
#[must_use]
pub fn is_unsafe_to_print(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Returns the text on one line. Line ends and tabs become spaces; other unsafe characters are removed.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .filter_map(|c| match c {
            '\n' | '\r' | '\t' => Some(' '),
            c if is_unsafe_to_print(c) => None,
            c => Some(c),
        })
        .collect()
}

/// Returns the text with its line ends, without other unsafe characters.
pub(crate) fn lines(text: &str) -> String {
    text.chars().filter(|c| *c == '\n' || !is_unsafe_to_print(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_escape_loses_its_power() {
        assert_eq!(one_line("web\u{1b}[2J-1\r\nnext\u{202e}\u{9b}x"), "web[2J-1  nextx");
        assert_eq!(lines("a\nb\u{1b}\0\tc"), "a\nbc");
    }
}
