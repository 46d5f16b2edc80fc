//! `fathom app try`: sends one user through a scenario once and shows everything.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_engine::TrialContext;
use fathom_http::users::OPTIONS;
use fathom_model::{Phases, Role, Settings, Side, units::Nanos};
use fathom_scenario::execution::{self, Exchange};

use super::scenario::{PreparedScenario, prepare};
use crate::{command::measurement, options};
use fathom_run::{
    allow::AllowList,
    exit::{Exit, UserError},
    registry, target,
    terminal::sanitized,
};

const NOTES: &str = "\
Examples:
  fathom app try plans/shop.scenario
  fathom app try plans/shop.scenario http://127.0.0.1:8080/ --secrets

The user does not think, keeps no pace and waits for nobody. The exit code is 1 when a step failed.";

/// The time limit for a scenario that loops forever.
const DURATION_MAX: Nanos = Nanos::from_secs(120);
/// Nothing is measured, so the interval has no effect on the output.
const INTERVAL: Nanos = Nanos::from_millis(50);

pub(super) fn define(command: Command) -> Command {
    let kinds: Vec<options::NamedKind> =
        registry::kind("app_scenario").into_iter().map(|kind| ("scenarios", kind)).collect();
    let is_of_connections = |option: &Arg| {
        let id = option.get_id().as_str();
        id != "url" && id != "threads" && OPTIONS.iter().any(|known| known.name == id)
    };
    command
        .arg(Arg::new("file").value_name("FILE").required(true).help("a scenario"))
        .arg(Arg::new("url").value_name("URL").help("send requests here instead of the scenario's base URL"))
        .arg(
            Arg::new("secrets")
                .long("secrets")
                .help("show passwords, tokens and cookies too")
                .action(ArgAction::SetTrue),
        )
        .arg(measurement::allow())
        .args(options::arguments(&kinds).into_iter().filter(is_of_connections))
        .after_help(NOTES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let file = matches.get_one::<String>("file").expect("clap requires the file");
    let PreparedScenario { settings, .. } = prepare(matches, file)?;
    let allowed = measurement::allowed(matches)?;
    check_targets(&settings, &allowed)?;
    let phases =
        Phases { warmup_max_ns: Nanos::ZERO, is_warmup_whole: false, measure_ns: DURATION_MAX, interval_ns: INTERVAL };
    let role = Role {
        test: "try".to_owned(),
        kind: "app_scenario".to_owned(),
        side: Side::Initiator,
        settings,
        phases,
        address: None,
        interface: None,
        peer: fathom_model::Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: fathom_sys::clock::wall().0 & 0xffff_ffff,
    };
    let session = TrialContext::new(fathom_sys::clock::now(), phases);
    let exchanges = execution::trace_once(&role, &allowed.policy(), &session).map_err(|error| {
        let user_error = UserError::new(Exit::Preflight, error.to_string());
        let user_error = std::error::Error::source(&error).into_iter().fold(user_error, UserError::with_causes);
        error.hint().into_iter().fold(user_error, |user_error, hint| user_error.with_line("use", hint))
    })?;
    let is_secret = !matches.get_flag("secrets");
    let mut out = io::stdout().lock();
    for exchange in &exchanges {
        out.write_all(exchange_text(exchange, is_secret).as_bytes())?;
    }
    let n_failed = exchanges.iter().filter(|exchange| exchange.is_failed()).count();
    let n = exchanges.len();
    let requests = if n == 1 { "request" } else { "requests" };
    let summary = match (n, n_failed) {
        (0, _) => "nothing was asked".to_owned(),
        (_, 0) => format!("{n} {requests}, everything as expected"),
        _ => format!("{n} {requests}, {n_failed} of them failed"),
    };
    writeln!(out, "{summary}")?;
    Ok(if n_failed == 0 && n > 0 { Exit::Pass } else { Exit::Failed })
}

/// Refuses targets that are neither on this machine nor allowed.
fn check_targets(settings: &Settings, allowed: &AllowList) -> Result<(), UserError> {
    let names =
        fathom_http::target::destinations(settings).map_err(|error| UserError::new(Exit::Usage, error.to_string()))?;
    for name in names {
        allowed.check(&name.host, &target::resolve(&name.host)?)?;
    }
    Ok(())
}

/// Describes the expectation and the reason for its failure. Words at the start of both appear once.
fn failure_text(what: &str, why: &str) -> String {
    let shared = what.split(' ').zip(why.split(' ')).take_while(|(one, other)| one == other);
    let n_bytes: usize = shared.map(|(word, _)| word.len() + 1).sum();
    match why.split_at_checked(n_bytes) {
        Some((subject, rest)) if n_bytes > 0 => format!("{}: {rest}", subject.trim_end()),
        _ => format!("{what}: {why}"),
    }
}

/// Formats an exchange for people: the request and the response, line by line, and the result.
fn exchange_text(exchange: &Exchange, is_secret: bool) -> String {
    let text = |message: &[u8]| {
        if is_secret { execution::without_secrets(message) } else { String::from_utf8_lossy(message).into_owned() }
    };
    let mut all = format!("── {} ", exchange.step);
    let width = all.chars().count();
    all.extend(std::iter::repeat_n('─', 72usize.saturating_sub(width)));
    let _ = writeln!(all, " {}", exchange.took);
    for (sign, message) in [('>', &exchange.request), ('<', &exchange.answer)] {
        for line in text(message).lines() {
            let _ = writeln!(all, "{}", format!("{sign} {line}").trim_end());
        }
    }
    if let Some(failure) = &exchange.failure {
        let _ = writeln!(all, "FAILED    {failure}");
    }
    for (what, why) in &exchange.expectations {
        let _ = match why {
            None => writeln!(all, "ok        {what}"),
            Some(why) => writeln!(all, "FAILED    {}", failure_text(what, why)),
        };
    }
    for (name, value) in &exchange.values {
        let value = String::from_utf8_lossy(value);
        let value = if is_secret && execution::is_secret(name) { "***".into() } else { value };
        let _ = writeln!(all, "took      {name} = {value}");
    }
    all.push('\n');
    sanitized(&all)
}
