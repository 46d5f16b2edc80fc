//! The counters of a balancer as lines of text.

use std::io::{self, Write};

use serde_json::Value;

/// Writes each counter on a line, with the names that lead to it; those that are zero are left out.
pub(super) fn write_text(out: &mut impl Write, path: &str, value: &Value) -> io::Result<()> {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
    match value {
        Value::Object(fields) => {
            // The number of a queue is among the names that lead to its counters.
            let mut told = fields.iter().filter(|(name, _)| *name != "queue");
            told.try_for_each(|(name, value)| write_text(out, &below(name), value))
        }
        Value::Array(rows) => rows.iter().try_for_each(|row| {
            let queue = row["queue"].as_u64().map(|queue| queue.to_string()).unwrap_or_default();
            write_text(out, &below(&queue), row)
        }),
        Value::Number(number) if number.as_u64() == Some(0) => Ok(()),
        Value::String(text) => writeln!(out, "{path:<48} {text}"),
        _ => writeln!(out, "{path:<48} {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_queue_leads_to_its_counters_and_is_none_of_them() {
        let counters = serde_json::json!({ "queues": [{ "queue": 1, "n_packets": 7, "n_cut": 0 }], "fast_path": { "detached": ["v0"] } });
        let mut out = Vec::new();
        write_text(&mut out, "", &counters).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, [vec!["fast_path", "detached", "v0"], vec!["queues", "1", "n_packets", "7"]]);
    }
}
