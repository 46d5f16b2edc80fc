//! Words as a POSIX shell reads them, for commands that people paste.

/// The characters, beside letters and digits, that mean nothing to a shell wherever they stand in a word.
const PLAIN: &str = "/._-:@%+,=";

/// Returns a word in quotes, unless no character of it means something to a shell.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let is_plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || PLAIN.contains(c));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Returns a command of these words on one line.
#[must_use]
pub fn shell_words<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> String {
    words.into_iter().map(|word| shell_word(word.as_ref())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_words_as_they_were() {
        let cases = [
            ("/opt/fathom-1.0", "/opt/fathom-1.0"),
            ("me@b1:22", "me@b1:22"),
            ("", "''"),
            ("two words", "'two words'"),
            ("it's", "'it'\\''s'"),
            ("b[1-8]", "'b[1-8]'"),
            ("p99<20ms", "'p99<20ms'"),
            ("$(id)", "'$(id)'"),
            ("DOMAIN\\me", "'DOMAIN\\me'"),
            ("~/key", "'~/key'"),
        ];
        for (word, expected) in cases {
            assert_eq!(shell_word(word), expected);
        }
        assert_eq!(shell_words(["sh", "-c", "echo hi"]), "sh -c 'echo hi'");
    }
}
