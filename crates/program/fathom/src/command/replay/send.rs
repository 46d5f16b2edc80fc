//! `fathom replay FILE --to URL` and `--live DEVICE --to URL`: the requests of a recording, or those that a device carries, become a test.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches};
use fathom_engine::TestKind;
use fathom_http::url::Url;
use fathom_model::{Settings, TestPlan, TrialTimes, units::Nanos};
use fathom_replay::Timing;
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};

use crate::{
    command::measurement::{self, KeepResult},
    options,
};

/// The kinds for recordings and for live traffic.
const RECORDED: &str = "http_replay";
const LIVE: &str = "http_replay_live";
/// The options that say how a recording is read, whether its requests are sent or not.
const READING: [&str; 3] = ["log-format", "empty-bodies", "keys"];
/// The argument of `--to`. Other commands name hosts by an argument `to`.
const TARGET: &str = "target";
/// One round by default: a recording is sent once.
const ROUNDS: u32 = 1;
/// Beyond the time of the last request, for the answers and for connections that were late.
const GRACE: Nanos = Nanos::from_secs(10);
/// A replay that only the server paces ends by itself; this time only limits it.
const PACED_BY_ANSWERS_MAX: Nanos = Nanos::from_secs(3600);

/// The measured time of a live replay, unless the command line says otherwise.
const LIVE_DURATION: Nanos = Nanos::from_secs(60);
/// The option with the device to follow.
pub(super) const LIVE_OPTION: &str = "live";

pub(super) const EXAMPLES: &[&str] = &[
    "fathom replay day.pcap --to http://127.0.0.1:8080 --compare",
    "fathom replay day.pcap --to 10.0.0.3 --allow 10.0.0.3 --header 'Host: shop.example'",
    "fathom replay day.pcap --to 127.0.0.1:8080 --speed max --methods GET,HEAD",
    "fathom replay day.pcap --lab pair --rate 5k",
    "fathom replay day.pcap --keys keys.log --to 127.0.0.1:8080",
    "fathom replay dns.pcap --to udp://127.0.0.1:53 --ports 53 --speed 10x --compare",
    "fathom replay redis.pcap --to tcp://127.0.0.1:6379 --ports 6379",
    "fathom replay --live eth0 --ports 80 --to 10.0.0.3 --allow 10.0.0.3",
];

pub(super) fn kind(name: &str) -> &'static dyn TestKind {
    registry::kind(name).expect("the program has this kind")
}

/// Returns the options of sending.
pub(super) fn arguments() -> Vec<Arg> {
    let is_own = |option: &Arg| !["file", "url"].contains(&option.get_id().as_str());
    let to = Arg::new(TARGET)
        .long("to")
        .value_name("URL")
        .help(
            "send the requests there: URL, HOST or HOST:PORT; tcp://HOST:PORT or udp://HOST:PORT: what clients sent, byte by byte, of any \
             protocol; without it and without a --lab nothing is sent",
        );
    let mut arguments = vec![to];
    arguments
        .extend(options::arguments(&[("FILE", kind(RECORDED)), (LIVE_OPTION, kind(LIVE))]).into_iter().filter(is_own));
    arguments.extend(measurement::arguments());
    arguments
}

/// Returns true if the requests are to be sent, and not only shown.
///
/// # Errors
/// If the command line says how to send them and not where.
pub(super) fn is_asked(matches: &ArgMatches) -> Result<bool, UserError> {
    let is_asked = matches.contains_id(TARGET) || measurement::lab_option(matches).is_some();
    let given = options::settings(matches, &[kind(RECORDED), kind(LIVE)]).0;
    match given.keys().find(|option| !READING.contains(&option.as_str())) {
        Some(option) if !is_asked => {
            let user_error = UserError::new(Exit::Usage, format!("--{option} has no meaning without a target"));
            Err(user_error.with_line("add", "--to URL, or --lab pair for our own responder"))
        }
        _ => Ok(is_asked),
    }
}

/// How much a recording holds.
pub(super) struct RecordingSize {
    /// Whole requests.
    pub(super) n_requests: u64,
    /// From the first to the last.
    pub(super) span: Nanos,
}

/// Sends the requests of a recording.
pub(super) fn run(matches: &ArgMatches, path: &Path, size: &RecordingSize) -> anyhow::Result<Exit> {
    let settings = sending_settings(matches, path)?;
    let duration = duration(&settings, size)?;
    measure_http(matches, RECORDED, settings, duration, &format!("replay of {}", path.display()))
}

/// The options of sending a recording.
///
/// # Errors
/// A file cannot be read twice.
pub(super) fn sending_settings(matches: &ArgMatches, path: &Path) -> Result<Settings, UserError> {
    let file = read_twice(path)?;
    let mut settings = options::settings(matches, &[kind(RECORDED), kind(LIVE)]).with("file", file);
    if let Some(keys) = settings.text("keys") {
        settings.set("keys", read_twice(Path::new(&keys))?);
    }
    Ok(settings)
}

/// How long a recording takes, unless the command line says otherwise.
///
/// # Errors
/// The options of its timing are wrong.
pub(super) fn duration(settings: &Settings, size: &RecordingSize) -> Result<Nanos, UserError> {
    let timing = Timing::of(settings).map_err(|error| UserError::new(Exit::Usage, error.to_string()))?;
    let n_copies = settings.count("copies").unwrap_or(1);
    let length = timing.length(size.n_requests * n_copies, size.span);
    Ok(length.map_or(PACED_BY_ANSWERS_MAX, |length| length + GRACE))
}

/// Returns the absolute path of a file that is shown first and sent then.
///
/// # Errors
/// It is a pipe, for example, which can be read once only.
fn read_twice(path: &Path) -> Result<String, UserError> {
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        let text = format!("{} is no regular file, and it is read twice: shown, then sent", path.display());
        return Err(UserError::new(Exit::Usage, text).with_line("fix", "write it to a file first"));
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    Ok(absolute.display().to_string())
}

/// Copies the requests that a device carries.
pub(super) fn run_live(matches: &ArgMatches, device: &str) -> anyhow::Result<Exit> {
    let settings = options::settings(matches, &[kind(RECORDED), kind(LIVE)]);
    measure_http(matches, LIVE, settings, LIVE_DURATION, &format!("copies of requests on {device}"))
}

/// Measures a test with requests of HTTP.
fn measure_http(
    matches: &ArgMatches,
    name: &str,
    mut settings: Settings,
    duration: Nanos,
    title: &str,
) -> anyhow::Result<Exit> {
    let url = matches.get_one::<String>(TARGET).map(|text| target(text)).transpose()?;
    if let Some(url) = &url {
        settings.set("url", url.to_string());
    }
    let other = if name == LIVE { RECORDED } else { LIVE };
    let is_option = |name: &str, option: &str| kind(name).options().iter().any(|known| known.name == option);
    if let Some(option) = settings.0.keys().find(|option| !is_option(name, option) && is_option(other, option)) {
        let words = if name == LIVE { "for a recording, not for --live" } else { "for --live, not for a recording" };
        return Err(UserError::new(Exit::Usage, format!("--{option} is {words}")).into());
    }
    let to = url.map(|url| format!(" to {url}")).unwrap_or_default();
    measure(matches, name, &settings, (duration, format!("{title}{to}")))
}

/// Measures a test of one of the kinds, for so long and under this title.
pub(super) fn measure(
    matches: &ArgMatches,
    name: &str,
    settings: &Settings,
    (duration, title): (Nanos, String),
) -> anyhow::Result<Exit> {
    let settings = settings
        .complete(kind(name).options())
        .map_err(|error| UserError::new(Exit::Usage, format!("replay: {error}")))?;
    let times = measurement::trial_times(matches, TrialTimes { warmup: Nanos::ZERO, duration }, ROUNDS)?;
    let ends = measurement::initiators(matches)?;
    let to = kind(name).is_two_sided(&settings).then(|| ends.to().to_owned());
    let mut tests = vec![TestPlan { to, options: settings, ..ends.test(name, times) }];
    measurement::add_promises(&mut tests, matches)?;
    let plan = measurement::plan(title, ROUNDS, ends, tests, matches);
    measurement::run_and_report(plan, matches, KeepResult::IfRequested)
}

/// The target as it was given.
pub(super) fn target_text(matches: &ArgMatches) -> Option<&str> {
    matches.get_one::<String>(TARGET).map(String::as_str)
}

/// Reads the target: a URL without a path, or a host with or without a port.
fn target(text: &str) -> Result<Url, UserError> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url: Url = whole.parse().map_err(|error: fathom_http::url::UrlError| {
        UserError::new(Exit::Usage, format!("--to {text}: {error}")).with_line("use", "--to http://HOST:PORT")
    })?;
    if url.target != "/" {
        let user_error = UserError::new(Exit::Usage, format!("--to {text}: the recording has the paths"));
        let without_path = Url { target: "/".to_owned(), ..url };
        return Err(user_error.with_line("use", format!("--to {without_path}")));
    }
    Ok(url)
}
