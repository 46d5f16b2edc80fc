//! The counters of a balancer as lines of text.

use std::io::{self, Write};

use serde_json::Value;

/// Writes each counter on a line, with the names that lead to it; those that are zero are left out.
pub(super) fn write_text(out: &mut impl Write, path: &str, value: &Value) -> io::Result<()> {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| write_text(out, &below(name), value)),
        Value::Array(rows) => rows.iter().try_for_each(|row| {
            let queue = row["queue"].as_u64().map(|queue| queue.to_string()).unwrap_or_default();
            write_text(out, &below(&queue), row)
        }),
        Value::Number(number) if number.as_u64() == Some(0) => Ok(()),
        Value::String(text) => writeln!(out, "{path:<48} {text}"),
        _ => writeln!(out, "{path:<48} {value}"),
    }
}
