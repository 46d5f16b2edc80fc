//! A scenario on the command line: its text, its servers and its options become a test of a plan.

use std::path::Path;

use clap::ArgMatches;
use fathom_model::{Settings, TestPlan, TrialTimes, units::Nanos};
use fathom_scenario::execution::LoadedScenario;

use crate::{
    command::measurement::{self, KeepResult},
    options,
};
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};

const KIND: &str = "app_scenario";
/// The maximum length of the warm-up and the measured time, if neither the scenario nor the command line sets them.
const TIMES: TrialTimes = TrialTimes { warmup: Nanos::from_secs(1), duration: Nanos::from_secs(10) };
/// A run ends when all users have left, or after this time.
const DURATION_MAX: Nanos = Nanos::from_secs(600);
/// One round by default, because a scenario sets its own duration.
const ROUNDS: u32 = 1;

/// A scenario with the options of its test.
pub(super) struct PreparedScenario {
    pub(super) script: LoadedScenario,
    pub(super) settings: Settings,
}

/// Reads a scenario and completes its options. Errors in the scenario are printed.
pub(super) fn prepare(matches: &ArgMatches, file: &str) -> anyhow::Result<PreparedScenario> {
    let path = Path::new(file);
    let text = super::input::read(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let script = LoadedScenario::read(text, file.to_owned(), Some(folder.to_owned())).map_err(|unsound| {
        eprint!("{}", unsound.shown);
        UserError::new(Exit::Usage, unsound.to_string()).with_line("see", format!("fathom app check {file}"))
    })?;
    let url = matches.get_one::<String>("url").map(String::as_str);
    let user_error = |error: &fathom_engine::Error| {
        let user_error = UserError::new(Exit::Usage, error.to_string());
        error.hint().into_iter().fold(user_error, |user_error, hint| user_error.with_line("use", hint))
    };
    let urls = script.urls(url).map_err(|error| user_error(&error))?;
    if url.is_none() && script.scenario.base.is_none() && script.needs_base() {
        return Err(UserError::new(Exit::Usage, format!("{file} names no target"))
            .with_line("use", format!("fathom app run {file} http://127.0.0.1:8080/"))
            .with_line("or", "a line in it such as: base http://127.0.0.1:8080")
            .into());
    }
    let kind = registry::kind(KIND)?;
    let mut settings = options::settings(matches, &[kind]);
    // The file name replaces this option on the command line.
    settings.0.remove("script");
    if file == "-" {
        settings.set("script", script.text.clone());
    } else {
        settings.set("file", file);
    }
    for setting in &script.scenario.settings {
        if settings.text(&setting.name.text).is_none() {
            settings.set(&setting.name.text, setting.value.as_ref().map_or("true", |value| value.text.as_str()));
        }
    }
    settings.set("url", url_lines(&urls));
    let settings =
        settings.complete(kind.options()).map_err(|error| UserError::new(Exit::Usage, format!("{file}: {error}")))?;
    Ok(PreparedScenario { script, settings })
}

/// Returns the URLs with their users, one per line.
fn url_lines(urls: &[fathom_http::url::Url]) -> String {
    let line = |url: &fathom_http::url::Url| match &url.user {
        Some(user) => {
            let encoded = |part: &str| percent_encoded(part);
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            url.to_string().replacen("://", &format!("://{}:{}@", encoded(name), encoded(password)), 1)
        }
        None => url.to_string(),
    };
    urls.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Percent-encodes a text for use in a URL.
fn percent_encoded(text: &str) -> String {
    let encoded = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(encoded).collect()
}

/// Runs a scenario with the settings of its text and of the command line.
pub(super) fn run(matches: &ArgMatches, file: &str) -> anyhow::Result<Exit> {
    let PreparedScenario { script, settings } = prepare(matches, file)?;
    let says_who = settings.count("users").is_some() || settings.rate("rate").is_some();
    let ends = says_who && settings.count("iterations").is_some() || !says_who && script.ends_by_itself();
    let times = match script.times().filter(|_| !says_who) {
        Some(times) => times,
        None if ends => TrialTimes { warmup: Nanos::ZERO, duration: DURATION_MAX },
        None => TIMES,
    };
    let times = measurement::trial_times(matches, times, ROUNDS)?;
    let ends = measurement::initiators(matches)?;
    let mut settings = settings;
    if ends.are_elsewhere() {
        // The file is on this machine, and its text goes to the hosts.
        settings.0.remove("file");
        settings.set("script", script.text.clone());
    }
    let mut tests = vec![TestPlan { options: settings, ..ends.test(KIND, times) }];
    measurement::add_promises(&mut tests, matches)?;
    let title = matches.get_one::<String>("url").map_or_else(|| file.to_owned(), |url| format!("{file} {url}"));
    measurement::run_and_report(
        measurement::plan(title, ROUNDS, ends, tests, matches),
        matches,
        KeepResult::IfRequested,
    )
}
