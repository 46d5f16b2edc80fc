//! Messages to the user while a command runs. Standard error may be closed, full, or a terminal that obeys escape sequences.

use std::{fmt, io::Write as _};

use fathom_report::sanitize::is_unsafe_to_print;

/// Prints a line to standard error like the macro of std, but never panics and removes escape sequences.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::terminal::tell(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints to standard error like the macro of std, but never panics and removes escape sequences.
#[macro_export]
macro_rules! eprint {
    ($($text:tt)*) => { $crate::terminal::tell(format_args!($($text)*)) };
}

/// Removes the characters from a text that move the cursor, set a title or change the text direction.
pub fn sanitized(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !is_unsafe_to_print(*c)).collect()
}

/// Writes to standard error. A failed write does not end the program.
pub fn tell(text: fmt::Arguments<'_>) {
    // There is no way left to report this error.
    let _ = std::io::stderr().lock().write_all(sanitized(&text.to_string()).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_moves_no_cursor_and_keeps_its_lines() {
        let hostile = "host `b`: \u{1b}]0;owned\u{7}\u{1b}[2J\n\tfix\u{9b}1A \u{202e}drowssap\r\u{7f}ö";
        assert_eq!(sanitized(hostile), "host `b`: ]0;owned[2J\n\tfix1A drowssapö");
    }
}
