//! Names of variables and columns.

use std::collections::{HashMap, HashSet};

/// Longer names come from values, not from people.
const LEN_MAX: usize = 40;

/// Names that are given already.
#[derive(Debug, Default)]
pub(crate) struct UniqueNames {
    names: HashSet<String>,
    /// The next number to try for a name: a recording sends the same field many times.
    numbers: HashMap<String, usize>,
}

impl UniqueNames {
    /// The name in letters, digits and underscores, with a number if it is given already.
    pub(crate) fn unique(&mut self, wanted: &str) -> String {
        let plain: String =
            wanted.chars().map(|char| if char.is_alphanumeric() { char } else { '_' }).take(LEN_MAX).collect();
        let plain = plain.trim_matches('_');
        let base = match plain.chars().next() {
            None => "value".to_owned(),
            Some(first) if first.is_alphabetic() => plain.to_owned(),
            Some(_) => format!("value_{plain}"),
        };
        let mut name = base.clone();
        let number = self.numbers.entry(base.clone()).or_insert(2);
        while !self.names.insert(name.clone()) {
            name = format!("{base}_{number}");
            *number += 1;
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_no_two_are_the_same() {
        let mut names = UniqueNames::default();
        let cases = [
            ("csrf_token", "csrf_token"),
            ("csrf_token", "csrf_token_2"),
            ("X-CSRFToken", "X_CSRFToken"),
            ("user[email]", "user_email"),
            ("", "value"),
            ("7", "value_7"),
            ("_", "value_2"),
        ];
        for (wanted, expected) in cases {
            assert_eq!(names.unique(wanted), expected);
        }
    }
}
