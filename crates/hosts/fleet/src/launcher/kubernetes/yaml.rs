//! Values as YAML that people read: blocks, with quotes only where a word could mean something else.

use serde_json::Value;

/// Returns the values as documents of one stream.
pub(super) fn documents(values: &[Value]) -> String {
    let text = |value: &Value| {
        let mut text = String::new();
        block(&mut text, value, 0);
        text
    };
    values.iter().map(text).collect::<Vec<_>>().join("---\n")
}

/// Writes a map or a list, each line behind `depth` double spaces.
fn block(text: &mut String, value: &Value, depth: usize) {
    let margin = "  ".repeat(depth);
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                text.push_str(&format!("{margin}{}:", word(key)));
                nested(text, value, depth);
            }
        }
        Value::Array(list) => {
            for value in list {
                // The first line of an item stands behind its dash.
                let mut item = String::new();
                if is_block(value) {
                    block(&mut item, value, depth + 1);
                } else {
                    item = format!("{margin}  {}\n", flat(value));
                }
                text.push_str(&format!("{margin}- {}", &item[margin.len() + 2..]));
            }
        }
        _ => text.push_str(&format!("{margin}{}\n", flat(value))),
    }
}

/// Writes the value of a key.
fn nested(text: &mut String, value: &Value, depth: usize) {
    if is_block(value) {
        text.push('\n');
        block(text, value, depth + 1);
    } else {
        text.push_str(&format!(" {}\n", flat(value)));
    }
}

/// Returns whether a value takes lines of its own.
fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    }
}

/// Returns a value that fits on a line. JSON is YAML, too.
fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => word(text),
        other => other.to_string(),
    }
}

/// Words that mean something else in one of the versions of YAML.
const RESERVED: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];

/// Returns a text without quotes if it can only be that text.
fn word(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c))
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_and_lists_become_blocks_and_doubtful_words_are_quoted() {
        let value = json!({
            "a": { "empty": {}, "flag": true, "list": [{ "k": "v", "l": ["x", "no"] }, 2], "n": "1" },
            "fathom.dev/run": "a: b # \"c\"\n",
        });
        let expected = "a:\n  empty: {}\n  flag: true\n  list:\n    - k: v\n      l:\n        - x\n        - \"no\"\n    - 2\n  \"n\": \"1\"\n\
                        fathom.dev/run: \"a: b # \\\"c\\\"\\n\"\n";
        assert_eq!(documents(&[value]), expected);
        assert_eq!(documents(&[json!({ "a": 1 }), json!({ "b": 2 })]), "a: 1\n---\nb: 2\n");
    }
}
