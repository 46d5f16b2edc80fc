//! The table `summary` of `done`: the totals of the measured part, all threads together.

use fathom_http::{failures_by_stage::FailuresByStage, names::STATUS};
use fathom_model::{Record, names::count, units::Nanos};
use mlua::{Lua, Table};

const NANOS_PER_MICRO: u64 = 1000;

/// The growth of a counter in the measured part, and the length of that part.
///
/// Without a warm-up everything counts, including the last answers after the end, so the result equals the script's own counts.
fn within(record: &Record, counter: &str) -> (u64, Nanos) {
    let (from, to) = record.measured_ns;
    let total = || (record.totals.get(counter).copied().unwrap_or(0), to - from);
    let growth = if from == Nanos::ZERO { None } else { record.timeline.growth(counter, from, to) };
    growth.unwrap_or_else(total)
}

pub(super) fn table(lua: &Lua, record: &Record) -> mlua::Result<Table> {
    let failures = FailuresByStage::of(&record.errors);
    let errors = lua.create_table()?;
    errors.set("connect", failures.connect)?;
    errors.set("read", failures.receive)?;
    errors.set("write", failures.send)?;
    errors.set("timeout", failures.timeout)?;
    errors.set("status", STATUS[2..].iter().map(|name| within(record, name).0).sum::<u64>())?;
    let (requests, span) = within(record, count::REQUESTS);
    let summary = lua.create_table()?;
    summary.set("duration", span.0 / NANOS_PER_MICRO)?;
    summary.set("requests", requests)?;
    summary.set("bytes", within(record, count::BYTES_RECEIVED).0)?;
    summary.set("errors", errors)?;
    Ok(summary)
}
