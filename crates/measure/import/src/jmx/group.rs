//! Thread groups: the users, their number, and their duration.

use fathom_model::units::Nanos;

use super::{
    super::import_tree::{CookieHandling, ImportAction, ImportedUser, OnError},
    configuration,
    element::Element,
    reader::JmxReader,
    scope::JmxScope,
};

/// Reads the arrivals of a group, for each class of group.
type ReadArrivals = fn(&mut JmxReader, &Element, &mut ImportedUser);

/// Groups for setUp and tearDown are not included: they run once per plan, with their own variables and cookies.
const GROUPS: &[(&str, ReadArrivals)] = &[
    ("ThreadGroup", usual),
    ("kg.apc.jmeter.threads.SteppingThreadGroup", stepping),
    ("kg.apc.jmeter.threads.UltimateThreadGroup", ultimate),
    ("com.blazemeter.jmeter.threads.concurrency.ConcurrencyThreadGroup", concurrency),
];

pub(super) fn is_one(element: &Element) -> bool {
    GROUPS.iter().any(|(tag, _)| *tag == element.tag)
}

/// Reads a thread group.
pub(super) fn read(
    reader: &mut JmxReader,
    element: &Element,
    scope: &JmxScope<'_>,
    prelude: &[ImportAction],
) -> ImportedUser {
    reader.path.push(element.title());
    let (of_plan, cookies) = (reader.throughput, reader.cookies);
    let mut kind = ImportedUser { name: element.title(), ..ImportedUser::default() };
    if let Some((_, come)) = GROUPS.iter().find(|(tag, _)| *tag == element.tag) {
        come(reader, element, &mut kind);
    }
    kind.on_error = Some(on_error(reader, element));
    let left = reader.take_remarks();
    kind.acts = prelude.to_vec();
    let acts = reader.acts(&element.children, scope);
    kind.acts.extend(acts);
    kind.cookies = reader.cookies;
    if kind.cookies == CookieHandling::Kept && element.text("ThreadGroup.same_user_on_next_iteration") == Some("false")
    {
        reader.remarks.0.push(configuration::KEPT_COOKIES.to_owned());
    }
    kind.pace = pace(reader, &kind);
    let left: Vec<_> = left.into_iter().chain(reader.take_remarks()).map(ImportAction::LeftOut).collect();
    kind.acts.splice(..0, left);
    (reader.throughput, reader.cookies) = (of_plan, cookies);
    reader.path.pop();
    kind
}

fn usual(reader: &mut JmxReader, element: &Element, kind: &mut ImportedUser) {
    kind.n_users = reader.number(element.text("ThreadGroup.num_threads").unwrap_or("1"));
    kind.ramp = seconds(reader, element, "ThreadGroup.ramp_time");
    if element.is_on("ThreadGroup.scheduler") {
        kind.duration = seconds(reader, element, "ThreadGroup.duration");
        kind.delay = seconds(reader, element, "ThreadGroup.delay");
    }
    let rounds = element.properties.members("ThreadGroup.main_controller").first();
    let told = rounds.and_then(|rounds| rounds.text("LoopController.loops")).unwrap_or("1");
    if told.trim() != "-1" {
        kind.n_rounds = reader.number(told);
        if kind.n_rounds.is_none() {
            reader.remarks.0.push(format!("its number of loops is not a number: {told}"));
        }
    }
    if kind.n_users.is_none() {
        reader.remarks.0.push("the number of its threads is not a number".to_owned());
    }
}

/// The plug-in whose threads arrive in steps: here they arrive evenly, in the same time.
fn stepping(reader: &mut JmxReader, element: &Element, kind: &mut ImportedUser) {
    let mut number = |property: &str| reader.number(element.text(property).unwrap_or("0"));
    let n_users = number("ThreadGroup.num_threads");
    let (step, period) = (number("Start users count"), number("Start users period"));
    let (delay, hold) = (number("Threads initial delay"), number("flighttime"));
    kind.n_users = n_users;
    let steps = n_users.zip(step).filter(|(_, step)| *step > 0).map(|(n_users, step)| n_users.div_ceil(step));
    let ramp = steps.zip(period).map(|(steps, period)| steps.saturating_sub(1).saturating_mul(period));
    kind.ramp = ramp.filter(|ramp| *ramp > 0).map(Nanos::from_secs);
    kind.delay = delay.filter(|delay| *delay > 0).map(Nanos::from_secs);
    kind.duration = hold.map(|hold| Nanos::from_secs(hold.saturating_add(ramp.unwrap_or(0))));
    reader.remarks.0.push("its users come evenly and not in steps, and leave all at once".to_owned());
}

/// The plug-in whose threads arrive and leave by a schedule of rows: here the number of users is its maximum.
fn ultimate(reader: &mut JmxReader, element: &Element, kind: &mut ImportedUser) {
    let rows = element.properties.members("ultimatethreadgroupdata");
    let rows: Option<Vec<[u64; 4]>> = rows
        .iter()
        .map(|row| match row.texts().as_slice() {
            [users, delay, startup, hold, ..] => {
                let mut number = |text: &str| reader.number(text);
                Some([number(users)?, number(delay)?, number(startup)?, number(hold)?])
            }
            _ => None,
        })
        .collect();
    let rows = rows.unwrap_or_default();
    let full_at = |[_, delay, startup, _]: &[u64; 4]| delay.saturating_add(*startup);
    let ends_at = |row: &[u64; 4]| full_at(row).saturating_add(row[3]);
    let users_at = |at: u64| {
        let there = rows.iter().filter(|row| full_at(row) <= at && at < ends_at(row).max(full_at(row) + 1));
        there.fold(0_u64, |sum, [users, ..]| sum.saturating_add(*users))
    };
    // The first of the times with the maximum.
    let peaks = rows.iter().map(|row| (users_at(full_at(row)), full_at(row)));
    let peak = peaks.max_by_key(|&(users, at)| (users, std::cmp::Reverse(at)));
    let Some(((n_users, at), (begin, end))) =
        peak.zip(rows.iter().map(|row| row[1]).min().zip(rows.iter().map(ends_at).max()))
    else {
        return reader.remarks.0.push("its schedule is not understood".to_owned());
    };
    let seconds = |seconds: u64| Some(Nanos::from_secs(seconds)).filter(|time| *time > Nanos::ZERO);
    (kind.n_users, kind.ramp) = (Some(n_users), seconds(at - begin));
    (kind.delay, kind.duration) = (seconds(begin), seconds(end - begin));
    if rows.len() > 1 {
        reader.remarks.0.push("its users come evenly and not row by row".to_owned());
    }
    reader.remarks.0.push("its users leave all at once".to_owned());
}

/// The plug-in that keeps a number of threads busy.
fn concurrency(reader: &mut JmxReader, element: &Element, kind: &mut ImportedUser) {
    let unit = if element.text("Unit") == Some("M") { 60 } else { 1 };
    let mut time = |property: &str| seconds(reader, element, property).map(|time| Nanos(time.0.saturating_mul(unit)));
    let (ramp, hold) = (time("RampUp"), time("Hold"));
    kind.n_users = reader.number(element.text("TargetLevel").unwrap_or("0"));
    kind.ramp = ramp;
    kind.duration = hold.map(|hold| hold + ramp.unwrap_or_default());
    kind.n_rounds = element.text("Iterations").and_then(|rounds| reader.number(rounds));
    if element.text("Steps").is_some_and(|steps| steps != "0" && steps != "1") {
        reader.remarks.0.push("its users come evenly and not in steps".to_owned());
    }
}

/// A time of an element in seconds, if it is valid and not zero.
fn seconds(reader: &mut JmxReader, element: &Element, property: &str) -> Option<Nanos> {
    let told = reader.text(element.text(property)?);
    let seconds: f64 = reader.tree.fixed(&told)?.trim().parse().ok()?;
    (seconds > 0.0).then(|| Nanos::from_secs_f64(seconds))
}

fn on_error(reader: &mut JmxReader, element: &Element) -> OnError {
    match element.text("ThreadGroup.on_sample_error").unwrap_or("continue") {
        "startnextloop" => OnError::NextRound,
        "stopthread" => OnError::Leave,
        "stoptest" | "stoptestnow" => {
            reader.remarks.0.push("after an error the user leaves, where JMeter ends the test".to_owned());
            OnError::Leave
        }
        _ => OnError::Continue,
    }
}

/// The time from one round to the next that keeps the rate of a throughput timer.
fn pace(reader: &mut JmxReader, kind: &ImportedUser) -> Option<Nanos> {
    let throughput = reader.throughput?;
    let n_users = if throughput.is_shared { kind.n_users } else { Some(1) };
    let Some((n_requests, n_users)) = n_requests(&kind.acts).zip(n_users) else {
        reader.remarks.0.push("its rate is left out, for the requests of a round cannot be counted".to_owned());
        return None;
    };
    #[expect(clippy::cast_precision_loss, reason = "plans have fewer requests and users than that")]
    let per_round = (n_requests * n_users) as f64;
    Some(Nanos::from_secs_f64(per_round * 60.0 / throughput.per_minute))
}

/// The number of requests in a round, if it is constant.
fn n_requests(acts: &[ImportAction]) -> Option<u64> {
    acts.iter().try_fold(0_u64, |sum, act| {
        let n = match act {
            ImportAction::Request(_) => 1,
            ImportAction::Transaction { acts, .. } => n_requests(acts)?,
            ImportAction::Repeat { n, acts } => (*n)?.checked_mul(n_requests(acts)?)?,
            ImportAction::Think(_) | ImportAction::Meet(_) | ImportAction::Set { .. } | ImportAction::LeftOut(_) => 0,
            ImportAction::If { .. }
            | ImportAction::While { .. }
            | ImportAction::Once(_)
            | ImportAction::Share { .. }
            | ImportAction::OneOf(_) => return None,
        };
        sum.checked_add(n)
    })
}
