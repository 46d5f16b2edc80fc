//! The tables of a document: rows of words with their numbers, under titles with the sums.

use std::fmt::Write as _;

use fathom_model::units::grouped;

/// The most frequent names and statuses that are shown.
const SHOWN_MAX: usize = 8;
/// The width of the words before a number.
const WORDS_WIDTH: usize = 56;

/// Adds a table to a text, unless all its numbers are zero.
pub(super) fn add_section(text: &mut String, title: &str, rows: Vec<(String, u64)>) {
    let total: u64 = rows.iter().map(|(_, n)| n).sum();
    if total > 0 {
        let _ = writeln!(text, "\n{title:<width$} {:>15}", grouped(total), width = WORDS_WIDTH + 2);
    }
    for (words, n) in rows.into_iter().filter(|(_, n)| *n > 0) {
        let _ = writeln!(text, "  {words:<WORDS_WIDTH$} {:>15}", grouped(n));
    }
}

/// Counts with the words for what they count.
pub(super) fn rows<'a, K: Copy + 'a>(
    counts: impl IntoIterator<Item = (&'a K, &'a u64)>,
    words: fn(K) -> &'static str,
) -> Vec<(String, u64)> {
    counts.into_iter().map(|(key, n)| (words(*key).to_owned(), *n)).collect()
}

/// The most frequent ones, and the rest together.
pub(super) fn most<'a, K: ToString + 'a>(counts: impl IntoIterator<Item = (&'a K, &'a u64)>) -> Vec<(String, u64)> {
    let name = |key: &K| Some(key.to_string()).filter(|name| !name.is_empty()).unwrap_or_else(|| "(none)".to_owned());
    let mut rows: Vec<_> = counts.into_iter().map(|(key, n)| (name(key), *n)).collect();
    rows.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let rest: u64 = rows.drain(rows.len().min(SHOWN_MAX)..).map(|(_, n)| n).sum();
    rows.push(("all others".to_owned(), rest));
    rows
}
