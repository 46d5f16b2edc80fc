//! `fathom balancer counters`: what a balancer that runs has counted.

use std::io::{self, Write};

use clap::{ArgMatches, Command};
use fathom_balancer::device::ControlRequest;
use serde_json::Value;

use super::{ask, json, name};
use fathom_run::exit::Exit;

pub(super) fn define(command: Command) -> Command {
    command.args([name(), json()])
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let counters = ask(matches, &ControlRequest::Counters)?;
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        writeln!(out, "{counters:#}")?;
    } else {
        write_text(&mut out, "", &counters)?;
    }
    Ok(Exit::Pass)
}

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
