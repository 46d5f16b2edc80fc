//! Mistakes in the form of an inventory, in the words of one who writes it: the parser of TOML has those of its programmers.

use std::ops::Range;

use super::text::SourceText;
use crate::exit::UserError;

/// What the parser says for a value that is neither of the forms of a group or of a launcher.
const NO_VARIANT: &str = "data did not match any variant of untagged enum ";
/// The types of the parser, and what they are called in an inventory.
const TYPES: [(&str, &str); 8] = [
    ("a string", "a text in quotes"),
    ("a boolean", "true or false"),
    ("a sequence", "a list: [\"…\", \"…\"]"),
    ("string or table", "a text in quotes"),
    ("u16", "a whole number from 1 to 65535"),
    ("u8", "a whole number"),
    ("a map", "a table"),
    ("struct ", "a table"),
];

/// Returns the error of a text that is not TOML, or has a key or a value that an inventory has not.
pub(super) fn error(source: &SourceText<'_>, span: &Range<usize>, message: &str) -> UserError {
    let place = key_at(source.text, span.start);
    let at = |what: String| {
        let place = place.as_ref().map_or_else(String::new, |place| format!("{place}: "));
        source.error(span, format!("{place}{what}"))
    };
    let expected = message.split_once(", expected ").map_or("", |(_, expected)| expected);
    if let Some(name) = message.strip_prefix("unknown field ").and_then(first_name) {
        let table = table_at(source.text, span.start).filter(|table| !table.is_empty());
        let what = match table.filter(|_| !is_header(source.text, span.start)) {
            Some(table) => format!("{table}: there is no key `{name}`"),
            None => format!("there is no key `{name}`"),
        };
        return source.error(span, what).with_line("keys", names(expected).join(", "));
    }
    if let Some(name) = message.strip_prefix("unknown variant ").and_then(first_name) {
        return at(format!("`{name}` is not known")).with_line("use", names(expected).join(", "));
    }
    if let Some(name) = message.strip_prefix("missing field ").and_then(first_name) {
        let table = table_at(source.text, span.start).unwrap_or_default();
        return source.error(span, format!("{table}: the key `{name}` is missing"));
    }
    if let Some(what) = message.strip_prefix(NO_VARIANT) {
        let form = if what.starts_with("Group") {
            "a group is a text in quotes, or a list of texts: [\"b[1-8]\", \"sut\"]"
        } else {
            "a launcher is a word in quotes, or a command as a list of words"
        };
        return at(form.to_owned());
    }
    let found = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let wanted = if found.is_some() { expected } else { message.strip_prefix("wanted ").unwrap_or_default() };
    match TYPES.into_iter().find(|(word, _)| !wanted.is_empty() && wanted.starts_with(word)) {
        Some((_, plain)) => at(format!("it is {plain}")),
        None => source.error(span, message),
    }
}

/// Returns the first name in backticks.
fn first_name(text: &str) -> Option<&str> {
    names(text).into_iter().next()
}

/// Returns the names in backticks.
fn names(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn line_of(text: &str, at: usize) -> &str {
    let begin = text[..at.min(text.len())].rfind('\n').map_or(0, |end| end + 1);
    text[begin..].lines().next().unwrap_or_default()
}

fn is_header(text: &str, at: usize) -> bool {
    line_of(text, at).trim_start().starts_with('[')
}

/// Returns the table that a byte is in, as its header has it.
fn table_at(text: &str, at: usize) -> Option<&str> {
    let end = text[at.min(text.len())..].find('\n').map_or(text.len(), |end| at + end);
    let header = text[..end].lines().rev().map(str::trim).find(|line| line.starts_with('['))?;
    // A name in it may have brackets.
    Some(header[1..].rsplit_once(']').map_or(&header[1..], |(table, _)| table))
}

/// Returns the key of the value at a byte, with its table.
fn key_at(text: &str, at: usize) -> Option<String> {
    let line = line_of(text, at);
    let begin = text[..at.min(text.len())].rfind('\n').map_or(0, |end| end + 1);
    let before = line.get(..at - begin).unwrap_or(line);
    let key = before.rsplit_once('=').map(|(key, _)| key.rsplit(['{', ',']).next().unwrap_or(key).trim())?;
    Some(table_at(text, at).map_or_else(|| key.to_owned(), |table| format!("{table}.{key}")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;

    fn check(cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            let error = parse(text, Path::new("rack/hosts.toml")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}\n{error}");
            let rust = ["untagged", "expected u16", "a sequence", "string or table", "struct"];
            assert!(rust.iter().all(|word| !error.contains(word)), "{error}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_meant_is_refused_with_what_can() {
        check(&[
            ("[hosts.a]\nport = 70000\n", "rack/hosts.toml:2: hosts.a.port: it is a whole number from 1 to 65535"),
            ("[hosts.a]\nport = 0\n", "rack/hosts.toml:1: hosts.a: port 0 is no port\n  fix    port = 22"),
            (
                "[hosts.a]\ncontrol = \"10.0.0.3:22\"\n",
                "rack/hosts.toml:1: hosts.a: control `10.0.0.3:22` has a port, which is a key of its own\n  fix    control = \"10.0.0.3\" and port = 22",
            ),
            ("[hosts.a]\n[groups]\ng = []\n", "rack/hosts.toml:3: groups.g: it has no hosts"),
            ("[hosts.a]\n[groups]\ng = \"\"\n", "rack/hosts.toml:3: groups.g: it has no hosts"),
            (
                "[hosts.\"b[1-2]\"]\n[groups]\nall = [\"b1\"]\n",
                "rack/hosts.toml:3: groups.all: `all` is the group of all 2 hosts, and this one has 1",
            ),
            (
                "[groups]\ng = \"10.0.0.[250-260]\"\n",
                "rack/hosts.toml:2: groups.g: `10.0.0.[250-260]` leaves 0–255, the numbers of an address: `10.0.0.256`",
            ),
            (
                "[hosts.\"b[1-2]\"]\ndata = \"10.0.0.[255-256]\"\n",
                "rack/hosts.toml:2: hosts.\"b[1-2]\".data: `10.0.0.[255-256]` leaves 0–255",
            ),
            (
                "[hosts.\"h[1-1000000000]\"]\n",
                "rack/hosts.toml:1: hosts.\"h[1-1000000000]\": `h[1-1000000000]` is not a range of names: it stands for more than 4096",
            ),
        ]);
    }

    #[test]
    fn mistakes_of_form_are_told_in_words_of_an_inventory() {
        check(&[
            ("[hosts.a]\nroles = \"sut\"\n", "rack/hosts.toml:2: hosts.a.roles: it is a list: [\"…\", \"…\"]"),
            ("[hosts.a]\nroles = [1]\n", "rack/hosts.toml:2: hosts.a.roles: it is a text in quotes"),
            (
                "[hosts.a]\nroles = [\"x\"]\n",
                "rack/hosts.toml:2: hosts.a.roles: `x` is not known\n  use    sut, companion",
            ),
            ("[hosts.a]\nsudo = \"yes\"\n", "rack/hosts.toml:2: hosts.a.sudo: it is true or false"),
            ("[hosts.a]\npush = true\n", "rack/hosts.toml:2: hosts.a.push: it is a text in quotes"),
            ("[hosts.a]\ncontrol = 5\n", "rack/hosts.toml:2: hosts.a.control: it is a text in quotes"),
            ("[hosts]\na = { user = 5 }\n", "rack/hosts.toml:2: hosts.user: it is a text in quotes"),
            ("[hosts]\na = 5\n", "rack/hosts.toml:2: hosts.a: it is a table"),
            ("[groups]\ng = 5\n", "rack/hosts.toml:2: groups.g: a group is a text in quotes, or a list of texts"),
            (
                "[hosts.a]\nlauncher = 5\n",
                "rack/hosts.toml:2: hosts.a.launcher: a launcher is a word in quotes, or a command",
            ),
            (
                "[host.a]\n",
                "rack/hosts.toml:1: there is no key `host`\n  keys   schema, defaults, hosts, groups, kubernetes",
            ),
            (
                "[kubernetes]\nimag = \"x\"\n",
                "rack/hosts.toml:2: kubernetes: there is no key `imag`\n  keys   image, program, ",
            ),
            ("[kubernetes]\nnetwork = \"pod\"\n", "rack/hosts.toml:1: kubernetes: the key `image` is missing"),
        ]);
        let syntax = parse("[hosts.a\nuser = 1\n", Path::new("hosts.toml")).unwrap_err().to_string();
        assert!(!syntax.contains("keys"), "no keys of a table help with TOML itself: {syntax}");
    }
}
