//! Options that code reads by name: each must exist, with a type that the reader expects.

use std::collections::BTreeMap;

/// The receivers whose methods read and set options.
const RECEIVERS: [&str; 4] = ["settings", "options", "given", "complete"];
/// The readers, with the kinds of value that they can read; any reader of text reads all.
const READERS: &[(&str, &[&str])] = &[
    ("count", &["Count", "CountOr"]),
    ("span", &["Span"]),
    ("size", &["Size"]),
    ("bit_rate", &["BitRate"]),
    ("rate", &["Rate"]),
    ("flag", &["Flag"]),
    ("text", &[]),
    ("set", &[]),
    ("with", &[]),
];

/// All options of the program: their names with the kinds of value that tables give them.
#[derive(Debug, Default)]
pub(crate) struct KnownOptions(BTreeMap<String, Vec<String>>);

impl KnownOptions {
    /// Adds the options that a source file defines: `OptionDoc { name: "flows", value: ValueKind::Count(…), … }`.
    pub(crate) fn add(&mut self, text: &str) {
        for definition in text.split("OptionDoc {").skip(1) {
            let (Some(name), Some(value)) =
                (between(definition, "name: ", ","), between(definition, "ValueKind::", ""))
            else {
                continue;
            };
            let name = constant_text(text, name);
            self.0.entry(name.to_owned()).or_default().push(value.to_owned());
        }
    }

    /// Returns the reads of options in the code of a file that no table explains, each with its line.
    pub(crate) fn unknown_reads(&self, text: &str) -> Vec<(usize, String)> {
        let code = text.split("\n#[cfg(test)]").next().unwrap_or_default();
        let mut faults = Vec::new();
        for (reader, kinds) in READERS {
            let call = format!(".{reader}(\"");
            for (at, _) in code.match_indices(&call) {
                let before = code[..at].trim_end();
                let name = code[at + call.len()..].split('"').next().unwrap_or_default();
                if !RECEIVERS.iter().any(|receiver| before.ends_with(receiver)) || self.is_read(name, kinds) {
                    continue;
                }
                let line = code[..at].matches('\n').count() + 1;
                faults.push((line, format!("no option is called `{name}` and read by `{reader}`")));
            }
        }
        faults
    }

    fn is_read(&self, name: &str, kinds: &[&str]) -> bool {
        let known = self.0.get(name);
        known.is_some_and(|values| kinds.is_empty() || values.iter().any(|value| kinds.contains(&value.as_str())))
    }
}

/// Returns the text between two marks; with an empty end, up to the first character that is not part of a name.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let rest = text.split_once(begin)?.1;
    let is_end = |c: char| !c.is_alphanumeric();
    if end.is_empty() { rest.split(is_end).next() } else { rest.split(end).next() }
}

/// The text of a literal or of a constant of the same file.
fn constant_text<'a>(file: &'a str, expression: &'a str) -> &'a str {
    let literal = |text: &'a str| text.trim().trim_matches('"');
    if expression.starts_with('"') {
        return literal(expression);
    }
    between(file, &format!("const {expression}: &str = "), ";").map_or(expression, literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_needs_an_option_of_its_name_and_type() {
        let mut known = KnownOptions::default();
        known.add("const SIZE: &str = \"size\";\nOptionDoc { name: \"flows\", value: ValueKind::Count(1, 2), }\nOptionDoc { name: SIZE, value: ValueKind::Size, }");
        assert_eq!(
            known.unknown_reads("settings.count(\"flows\"); role.settings.size(\"size\"); options.text(\"flows\")"),
            []
        );
        let wrong =
            known.unknown_reads("\nsettings.count(\"size\");\nelement.text(\"other\");\nsettings\n  .text(\"flow\")");
        assert_eq!(wrong.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 5]);
    }
}
