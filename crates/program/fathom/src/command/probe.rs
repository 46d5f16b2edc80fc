//! `fathom probe`: sends single packets to one host and shows the replies.

use clap::{Arg, ArgMatches, Command, parser::ValueSource};
use fathom_engine::{CommandDoc, TestKind};
use fathom_model::{Layer, Settings, TestPlan, TrialTimes, units::Nanos};
use jiff::{Zoned, civil};

use super::{
    many_hosts,
    measurement::{self, KeepResult, NamedSides, TestHosts},
};
use crate::options;
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};

const EXAMPLES: &str = "\
Examples:
  fathom probe 127.0.0.1
  fathom probe 192.0.2.7 --test rtt --protocol tcp --port 443 --count 100 --allow 192.0.2.7
  fathom probe 2001:db8::7 --test ports --ports 22,80,8000-8010 --allow 2001:db8::7
  fathom probe 192.0.2.7 --interval 200ms --until 18:00 --allow 192.0.2.7
  fathom probe 127.0.0.1 --flood --duration 5s
  fathom probe 127.0.0.1 --expect 'rtt_ns_p99<1ms' --expect 'loss_ratio<=0'
  fathom probe --lab star:4 --topology mesh --test mtu
  fathom probe --device router --test fragments

Exit codes: 0 the host answers · 1 it does not · 3 nothing was sent · 10 a promise is broken";

/// The value of `--test` for all tests that need no option.
const ALL: &str = "all";
/// The test that sends probes at an interval until a count or a time.
const SERIES: &str = "rtt";
/// The option of the kinds that names the host.
const HOST: &str = "host";
/// Enough probes to see whether a host answers.
const COUNT: u64 = 10;
/// Hosts report closed UDP ports about once per second. Faster probes get no reply although they are not lost.
const UDP_INTERVAL: Nanos = Nanos::from_millis(1100);
/// The default duration of a flood.
const FLOOD_DURATION: Nanos = Nanos::from_secs(2);
/// The time limit of a search, which normally ends earlier.
const SEARCH_DURATION_MAX: Nanos = Nanos::from_secs(120);

type ProbeKind = (CommandDoc, &'static dyn TestKind);

fn kinds() -> Vec<ProbeKind> {
    let of_path = registry::KINDS.iter().filter(|kind| kind.layer() == Layer::Path);
    of_path.filter_map(|kind| Some((kind.command()?, *kind))).collect()
}

/// Returns the kinds of a value of `--test`. A kind that is implied by an option of its own name cannot do without it.
fn tests_of(word: &str) -> Vec<ProbeKind> {
    let is_meant = |doc: &CommandDoc| doc.word == word || (word == ALL && !doc.implied_by.contains(&doc.word));
    kinds().into_iter().filter(|(doc, _)| is_meant(doc)).collect()
}

pub(super) fn define(command: Command) -> Command {
    let host = Arg::new("target").value_name("HOST").help(
        "an address or a name; with --key, a host that runs `fathom serve`; without it, the last host of a --lab",
    );
    let kinds: Vec<options::NamedKind> = kinds().into_iter().map(|(doc, kind)| (doc.word, kind)).collect();
    let words: Vec<&str> = [ALL].into_iter().chain(kinds.iter().map(|(word, _)| *word)).collect();
    let test = Arg::new("test").long("test").value_name("TEST").default_value(ALL).value_parser(words);
    let until = Arg::new("until")
        .long("until")
        .value_name("TIME")
        .help("probe until 18:00, 2027-01-31T18:00 or for a time such as 2h; reports start and length of outages")
        .help_heading("Test")
        .conflicts_with("duration");
    let options = options::arguments(&kinds).into_iter().filter(|option| option.get_id() != HOST);
    command
        .arg(host)
        .arg(test.help("test to run; all: rtt, mtu and route"))
        .args(options)
        .arg(until)
        .args(many_hosts::arguments())
        .args(measurement::arguments())
        .args(measurement::hosts_arguments())
        .after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let word = test_word(matches);
    let mut given = options::settings(matches, &self::kinds().into_iter().map(|(_, kind)| kind).collect::<Vec<_>>());
    let ends = many_hosts::chosen(test_hosts(matches, &mut given)?, matches)?;
    let mut used = Vec::new();
    let tests = tests_of(word).into_iter().map(|kind| test(kind, &given, &mut used, &ends, matches));
    let mut tests = tests.collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(unused) = given.0.keys().find(|name| !used.contains(*name)) {
        let user_error = UserError::new(Exit::Usage, format!("--{unused} has no effect on --test {word}"));
        return Err(user_error.with_line("see", "fathom probe --help        # the options of each test").into());
    }
    measurement::add_promises(&mut tests, matches)?;
    let title = format!("Probes to {}", matches.get_one::<String>("target").map_or(ends.to(), String::as_str));
    let plan = measurement::plan(title, 1, ends, tests, matches);
    measurement::run_and_report(plan, matches, KeepResult::IfRequested)
}

/// Returns the name of the selected test.
fn test_word(matches: &ArgMatches) -> &str {
    let is_given = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
    let is_implied = |doc: &CommandDoc| doc.implied_by.iter().any(|option| is_given(option));
    // A scan of ports has options of other tests too, so it is looked for first.
    let implied = kinds().into_iter().rev().find(|(doc, _)| is_implied(doc) && !is_given("test"));
    implied.map_or_else(|| matches.get_one::<String>("test").map_or(ALL, String::as_str), |(doc, _)| doc.word)
}

/// Returns the host that sends the probes and the host that they go to.
fn test_hosts(matches: &ArgMatches, given: &mut Settings) -> anyhow::Result<TestHosts> {
    let has_key = matches.contains_id("key");
    let device = matches.get_one::<String>("device").map(String::as_str);
    let target = matches.get_one::<String>("target");
    // With a target, no other host of the lab answers.
    let hosts = if target.is_some() { measurement::hosts_in_lab } else { measurement::pair_in_lab };
    let in_lab = |lab| hosts(lab, device);
    let sides = if target.is_some() { NamedSides::FromOnly } else { NamedSides::Both };
    if let Some(ends) = measurement::hosts_of_inventory(matches, sides)? {
        if let Some(target) = target {
            given.set(HOST, target.clone());
        }
        return Ok(ends);
    }
    match (target, measurement::lab_option(matches)) {
        (Some(target), None) if has_key => Ok(measurement::hosts_at_target(target, matches)?),
        (Some(target), lab) => {
            given.set(HOST, target.clone());
            Ok(lab.map_or_else(|| Ok(measurement::hosts_on_loopback()), in_lab)?)
        }
        (None, Some(lab)) => Ok(in_lab(lab)?),
        (None, None) => Err(UserError::new(Exit::Usage, "fathom probe needs a HOST")
            .with_line("use", "an address or a name")
            .with_line("try", "fathom probe --lab router")
            .into()),
    }
}

/// Creates a test with those given options that its kind has.
fn test(
    (doc, kind): ProbeKind,
    given: &Settings,
    used: &mut Vec<String>,
    ends: &TestHosts,
    matches: &ArgMatches,
) -> anyhow::Result<TestPlan> {
    let mut options = Settings::default();
    for option in kind.options() {
        if let Some(text) = given.text(option.name) {
            options.set(option.name, text);
            used.push(option.name.to_owned());
        }
    }
    let duration = match (time_until(matches)?, matches.contains_id("duration")) {
        (Some(left), _) => left,
        (None, true) => measurement::round_duration(matches, SEARCH_DURATION_MAX, 1)?,
        (None, false) if doc.word == SERIES => series_duration(kind, &mut options)?,
        (None, false) => SEARCH_DURATION_MAX,
    };
    let times = TrialTimes { warmup: Nanos::ZERO, duration };
    let common = ends.test(kind.name(), times);
    Ok(TestPlan {
        to: kind.is_two_sided(&options).then(|| ends.to().to_owned()),
        options,
        // A count of probes is that of each pair, as one of ping is that of each target.
        each: common.each || (doc.word == SERIES && !ends.groups.is_empty()),
        ..common
    })
}

/// Returns the duration of a series of probes.
fn series_duration(kind: &dyn TestKind, options: &mut Settings) -> anyhow::Result<Nanos> {
    if options.flag("flood") && options.text("count").is_none() {
        return Ok(FLOOD_DURATION);
    }
    if options.text("count").is_none() {
        options.set("count", COUNT.to_string());
    }
    let is_limited = options.text("protocol").as_deref() == Some("udp") && !options.flag("flood");
    if is_limited && options.text("interval").is_none() {
        options.set("interval", UDP_INTERVAL.exact());
    }
    let complete = options.complete(kind.options()).map_err(|error| UserError::new(Exit::Usage, error.to_string()))?;
    let count = complete.count("count").unwrap_or(COUNT);
    let interval = complete.span("interval").unwrap_or(Nanos::from_millis(100));
    // The reserve keeps a busy machine or a slow flood from cutting the series short.
    Ok(Nanos(interval.0.saturating_mul(count)) + FLOOD_DURATION)
}

/// Returns the time left until the time in `--until`.
fn time_until(matches: &ArgMatches) -> anyhow::Result<Option<Nanos>> {
    let Some(text) = matches.get_one::<String>("until") else { return Ok(None) };
    if let Ok(span) = text.parse::<Nanos>() {
        return Ok(Some(span));
    }
    let now = Zoned::now();
    let wrong = || {
        UserError::new(Exit::Usage, format!("--until {text} is not a time in the future"))
            .with_line("use", "--until 18:00, --until 2027-01-31T18:00, or a span: --until 2h")
    };
    let left = time_left(text, &now).ok_or_else(wrong)?;
    Ok(Some(left))
}

/// Returns the time left until a time of day, today or tomorrow, or until a date with a time.
fn time_left(text: &str, now: &Zoned) -> Option<Nanos> {
    let then = if let Ok(at) = text.parse::<jiff::Timestamp>() {
        at
    } else if let Some(time) = text.parse::<civil::Time>().ok().filter(|_| !text.contains('-')) {
        // Without this check, a date with a time would be read as the time alone.
        let at = |date: civil::Date| date.to_datetime(time).to_zoned(now.time_zone().clone()).ok();
        let today = at(now.date()).filter(|then| *then > *now);
        today.or_else(|| at(now.date().tomorrow().ok()?))?.timestamp()
    } else {
        text.parse::<civil::DateTime>().ok()?.to_zoned(now.time_zone().clone()).ok()?.timestamp()
    };
    let left = then.as_nanosecond() - now.timestamp().as_nanosecond();
    u64::try_from(left).ok().filter(|left| *left > 0).map(Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_the_next_one_and_a_date_in_the_past_is_none() {
        let now: Zoned = "2026-11-22T17:30:00+01:00[Europe/Berlin]".parse().unwrap();
        let minutes = |text| time_left(text, &now).map(|left| left.0 / 60_000_000_000);
        assert_eq!(minutes("18:00"), Some(30));
        assert_eq!(minutes("17:00:00"), Some(23 * 60 + 30));
        assert_eq!(minutes("2026-11-23T00:00"), Some(390));
        assert_eq!(minutes("2026-11-22T17:00:00Z"), Some(30));
        assert_eq!(minutes("2026-11-22T12:00"), None);
        assert_eq!(minutes("teatime"), None);
    }
}
