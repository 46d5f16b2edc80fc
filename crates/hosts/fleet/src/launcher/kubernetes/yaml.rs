//! Values as YAML that people read: blocks, with quotes only where a word could mean something else.

use serde_json::Value;

/// Returns the values as documents of one stream.
pub(super) fn documents(values: &[Value]) -> String {
    values.iter().map(|value| block(value, 0)).collect::<Vec<_>>().join("---\n")
}

/// Returns the lines of a map or a list, each behind `depth` double spaces.
fn block(value: &Value, depth: usize) -> String {
    let margin = "  ".repeat(depth);
    let of_key = |(key, value): (&String, &Value)| {
        let key = word(key);
        if is_block(value) {
            format!("{margin}{key}:\n{}", block(value, depth + 1))
        } else {
            format!("{margin}{key}: {}\n", flat(value))
        }
    };
    let of_item = |value: &Value| {
        if !is_block(value) {
            return format!("{margin}- {}\n", flat(value));
        }
        // The first line of an item stands behind its dash.
        let item = block(value, depth + 1);
        format!("{margin}- {}", &item[margin.len() + 2..])
    };
    match value {
        Value::Object(map) => map.iter().map(of_key).collect(),
        Value::Array(list) => list.iter().map(of_item).collect(),
        _ => format!("{margin}{}\n", flat(value)),
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
