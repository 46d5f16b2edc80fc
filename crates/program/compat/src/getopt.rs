//! Parses command lines like `getopt`: bundled short options, `-c100` and `-c 100`, abbreviated long options.
//!
//! This module knows no tool. The options are data, and each tool defines their meaning.

/// A long option and the letter with the same meaning.
#[derive(Debug, Clone, Copy)]
pub(super) struct LongOption {
    pub(super) name: &'static str,
    pub(super) short: char,
}

/// The option syntax of a tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct GetoptSyntax {
    /// The letters. A letter with a value is followed by `:`.
    pub(super) shorts: &'static str,
    pub(super) longs: &'static [LongOption],
    pub(super) dialect: GetoptDialect,
}

/// The `getopt` implementation that the tool uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GetoptDialect {
    /// The C library's: operands may appear between options, and it has its own error messages.
    Gnu,
    /// The Apache Portable Runtime's: the first operand, or the first error, ends the options.
    Apache,
}

/// One parsed part of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParsedWord {
    /// An option with its letter, and its value if it takes one.
    Option(char, Option<String>),
    /// Anything else.
    Operand(String),
    /// An error message of the dialect, without the name of the tool.
    Error(String),
}

impl GetoptSyntax {
    /// Returns true if an option takes a value, or `None` if it does not exist.
    fn takes_value(&self, letter: char) -> Option<bool> {
        let at = self.shorts.find(letter).filter(|_| letter != ':')?;
        Some(self.shorts[at + letter.len_utf8()..].starts_with(':'))
    }

    fn invalid(&self, letter: char) -> ParsedWord {
        ParsedWord::Error(match self.dialect {
            GetoptDialect::Gnu => format!("invalid option -- '{letter}'"),
            GetoptDialect::Apache => format!("illegal option -- {letter}"),
        })
    }

    fn without_value(&self, letter: char) -> ParsedWord {
        ParsedWord::Error(match self.dialect {
            GetoptDialect::Gnu => format!("option requires an argument -- '{letter}'"),
            GetoptDialect::Apache => format!("option requires an argument -- {letter}"),
        })
    }

    /// Parses a command line. Parsing continues after an error; the tool decides when to stop.
    pub(super) fn parse(&self, words: &[String]) -> Vec<ParsedWord> {
        let mut items = Vec::new();
        let mut words = words.iter().cloned();
        while let Some(word) = words.next() {
            if word == "--" || (self.dialect == GetoptDialect::Apache && word.starts_with("--")) {
                items.extend(words.by_ref().map(ParsedWord::Operand));
            } else if let Some(long) = word.strip_prefix("--") {
                items.push(self.long(long, &mut words));
            } else if word.len() > 1 && word.starts_with('-') {
                self.bundle(&word, &mut words, &mut items);
            } else {
                items.push(ParsedWord::Operand(word));
                if self.dialect == GetoptDialect::Apache {
                    items.extend(words.by_ref().map(ParsedWord::Operand));
                }
            }
        }
        items
    }

    /// Parses `-kc100`: letters, until one takes the rest or the next word as its value.
    fn bundle(&self, word: &str, words: &mut impl Iterator<Item = String>, items: &mut Vec<ParsedWord>) {
        let mut letters = word.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match self.takes_value(letter) {
                Some(false) => items.push(ParsedWord::Option(letter, None)),
                Some(true) => {
                    let rest = &word[at + letter.len_utf8()..];
                    let value = if rest.is_empty() { words.next() } else { Some(rest.to_owned()) };
                    return items.push(
                        value.map_or_else(|| self.without_value(letter), |v| ParsedWord::Option(letter, Some(v))),
                    );
                }
                None => {
                    items.push(self.invalid(letter));
                    if self.dialect == GetoptDialect::Apache {
                        // A word that was read to its end is consumed; otherwise the word counts as an operand.
                        items.extend(letters.next().map(|_| ParsedWord::Operand(word.to_owned())));
                        items.extend(words.by_ref().map(ParsedWord::Operand));
                        return;
                    }
                }
            }
        }
    }

    /// Parses the text after `--`: a name or its beginning, and a value after `=` or in the next word.
    fn long(&self, text: &str, words: &mut impl Iterator<Item = String>) -> ParsedWord {
        let (name, given) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
        let exact = self.longs.iter().find(|long| long.name == name);
        let alike: Vec<&LongOption> = self.longs.iter().filter(|long| long.name.starts_with(name)).collect();
        let long = match (exact, alike.as_slice()) {
            (Some(long), _) | (None, &[long]) => long,
            (None, []) => return ParsedWord::Error(format!("unrecognized option '--{name}'")),
            (None, many) => {
                let names: Vec<_> = many.iter().map(|long| format!("'--{}'", long.name)).collect();
                return ParsedWord::Error(format!(
                    "option '--{name}' is ambiguous; possibilities: {}",
                    names.join(" ")
                ));
            }
        };
        match (self.takes_value(long.short), given) {
            (Some(true), given) => match given.or_else(|| words.next()) {
                Some(value) => ParsedWord::Option(long.short, Some(value)),
                None => ParsedWord::Error(format!("option '--{}' requires an argument", long.name)),
            },
            (_, Some(_)) => ParsedWord::Error(format!("option '--{}' doesn't allow an argument", long.name)),
            (_, None) => ParsedWord::Option(long.short, None),
        }
    }
}

/// Reads a number like C's `atoi`: only the start of the text counts, and text without a number is 0.
pub(super) fn atoi(text: &str) -> i64 {
    let text = text.trim_start();
    let digits = text.trim_start_matches(['+', '-']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number = digits[..end].parse().unwrap_or(0);
    if text.starts_with('-') { -number } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GNU: GetoptSyntax = GetoptSyntax {
        shorts: "c:kL",
        longs: &[
            LongOption { name: "connections", short: 'c' },
            LongOption { name: "keep", short: 'k' },
            LongOption { name: "kept", short: 'L' },
        ],
        dialect: GetoptDialect::Gnu,
    };
    const APACHE: GetoptSyntax = GetoptSyntax { dialect: GetoptDialect::Apache, longs: &[], ..GNU };

    fn shown(syntax: &GetoptSyntax, line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let show = |item| match item {
            ParsedWord::Option(letter, Some(value)) => format!("{letter}={value}"),
            ParsedWord::Option(letter, None) => letter.to_string(),
            ParsedWord::Operand(word) => format!("<{word}>"),
            ParsedWord::Error(text) => format!("! {text}"),
        };
        syntax.parse(&words).into_iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_way_to_write_an_option_is_read() {
        let cases = [
            ("-c100 -c 5 -kLc7 -kc 8", "c=100 c=5 k L c=7 k c=8"),
            ("--connections=3 --connections 4 --conn 5 --keep", "c=3 c=4 c=5 k"),
            ("url -k -- -k -", "<url> k <-k> <->"),
            ("-x", "! invalid option -- 'x'"),
            ("-c", "! option requires an argument -- 'c'"),
            ("--foo", "! unrecognized option '--foo'"),
            ("--ke", "! option '--ke' is ambiguous; possibilities: '--keep' '--kept'"),
            ("--keep=1", "! option '--keep' doesn't allow an argument"),
            ("--connections", "! option '--connections' requires an argument"),
        ];
        for (line, items) in cases {
            assert_eq!(shown(&GNU, line), items, "{line}");
        }
    }

    #[test]
    fn the_runtime_of_apache_ends_its_options_at_the_first_operand_or_error() {
        let cases = [
            ("-kc 5 url -k", "k c=5 <url> <-k>"),
            ("-x url", "! illegal option -- x <url>"),
            ("-xk url", "! illegal option -- x <-xk> <url>"),
            ("--foo url", "<url>"),
            ("-c", "! option requires an argument -- c"),
        ];
        for (line, items) in cases {
            assert_eq!(shown(&APACHE, line), items, "{line}");
        }
    }

    #[test]
    fn a_number_is_what_it_begins_with() {
        let cases = [("100", 100), ("5x", 5), ("abc", 0), ("", 0), ("-3", -3), (" 7", 7), ("99999999999999999999", 0)];
        for (text, number) in cases {
            assert_eq!(atoi(text), number, "{text}");
        }
    }
}
