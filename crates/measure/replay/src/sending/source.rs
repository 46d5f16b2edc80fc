//! Where the requests of a recording come from: a capture, or the access log of a server.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
};

use fathom_capture::{KeyLog, TlsFate, TlsObserver, TrafficLimits, TrafficReader, is_capture, read_traffic};
use fathom_engine::Error;
use fathom_model::{Settings, settings::SettingError};
use fathom_sys::policy::Policy;

use super::recording::{Recording, RecordingBuilder};
use crate::{
    BodiesNotLogged, HttpObserver, LineFate, LogError, LogFormat, LogOptions, RequestFate, keys::key_log, read_log,
    servers::FollowedServers,
};

/// What was read.
struct Contents {
    /// The requests that are not whole, by the reason.
    left_out: Vec<(&'static str, u64)>,
    /// The connections of which a part was not decrypted, by the reason.
    undecrypted: BTreeMap<&'static str, u64>,
    /// Why the file was not read to its end.
    damage: Option<String>,
}

/// How a log is read, by the options `log-format` and `empty-bodies`.
///
/// # Errors
/// The format is wrong.
pub(super) fn log_options(settings: &Settings) -> Result<LogOptions, Error> {
    let format = settings.text("log-format").map(|text| {
        text.parse::<LogFormat>().map_err(|error| SettingError::NotAllowed {
            name: "log-format".to_owned(),
            expected: format!("a format as nginx's log_format says it ({error})"),
            given: text,
        })
    });
    let bodies = if settings.flag("empty-bodies") { BodiesNotLogged::Empty } else { BodiesNotLogged::LeaveOut };
    Ok(LogOptions { format: format.transpose()?, bodies, now: fathom_sys::clock::wall() })
}

/// Reads the recording that the option `file` names. Returns what is to be sent, and why the file was not read to its end.
///
/// # Errors
/// The file is no recording, or there is no place for its requests.
pub(super) fn read(
    settings: &Settings,
    policy: &Policy,
    builder: io::Result<RecordingBuilder>,
) -> Result<(Recording, Option<String>), Error> {
    let path = PathBuf::from(settings.text("file").unwrap_or_default());
    let options = log_options(settings)?;
    let servers = FollowedServers::of(settings)?;
    let not_kept = |error: io::Error| {
        if error.kind() == io::ErrorKind::FileTooLarge {
            return unusable(&path, "they are longer than 32 GiB", Some("divide it, or choose requests by --only"));
        }
        let why = format!("they do not fit in {}: {error}", std::env::temp_dir().display());
        unusable(&path, &why, Some("set TMPDIR to a folder with more room"))
    };
    let mut builder = builder.map_err(not_kept)?;
    let file = policy.open(&path).map_err(|error| unusable(&path, &error.to_string(), None))?;
    let mut file = BufReader::new(file);
    let begin = file.fill_buf().map_err(|error| unusable(&path, &error.to_string(), None))?;
    let has_keys = settings.text("keys").is_some();
    let contents = match (is_capture(begin), servers.is_all()) {
        (true, _) => capture(&path, file, (servers, key_log(settings, policy)?), &mut builder)?,
        (false, _) if has_keys => return Err(unusable(&path, "it is no capture, and --keys decrypts captures", None)),
        (false, true) => log(&path, file, &options, &mut builder)?,
        (false, false) => {
            let hint = Some("name a capture, or leave out --ports: --only and --skip choose by the path");
            return Err(unusable(&path, "it is no capture, and an access log has no ports of servers", hint));
        }
    };
    let mut recording = builder.finish(contents.left_out).map_err(not_kept)?;
    recording.undecrypted = contents.undecrypted;
    Ok((recording, contents.damage))
}

fn unusable(path: &Path, why: &str, hint: Option<&str>) -> Error {
    let what = format!("cannot send the requests of {}: {why}", path.display());
    Error::Unsupported { what, hint: hint.map(str::to_owned) }
}

fn capture(
    path: &Path,
    file: BufReader<File>,
    (servers, keys): (FollowedServers, KeyLog),
    builder: &mut RecordingBuilder,
) -> Result<Contents, Error> {
    let builder = RefCell::new(builder);
    let observer = TlsObserver::new(HttpObserver::new(|exchange| builder.borrow_mut().add(exchange)), keys);
    let reader = TrafficReader::new(observer, TrafficLimits::USUAL).choosing(move |one, other| servers.has(one, other));
    let (observer, _, damage) =
        read_traffic(file, reader).map_err(|error| unusable(path, &error.to_string(), error.hint()))?;
    let (observer, tls) = observer.finish();
    let left_out = observer.into_counts().requests.into_iter().filter(|(fate, _)| *fate != RequestFate::Whole);
    let undecrypted = tls.connections.into_iter().filter(|(fate, _)| *fate != TlsFate::Decrypted);
    Ok(Contents {
        left_out: left_out.map(|(fate, n)| (fate.words(), n)).collect(),
        undecrypted: undecrypted.map(|(fate, n)| (fate.words(), n)).collect(),
        damage,
    })
}

fn log(
    path: &Path,
    file: BufReader<File>,
    options: &LogOptions,
    builder: &mut RecordingBuilder,
) -> Result<Contents, Error> {
    let take = |exchange| {
        builder.add(exchange);
        Ok::<_, LogError>(())
    };
    let contents = read_log(file, options, take).map_err(|error| unusable(path, &error.to_string(), None))?;
    let left_out =
        contents.counts.lines.into_iter().filter(|(fate, _)| !matches!(fate, LineFate::Whole | LineFate::Part));
    let left_out = left_out.map(|(fate, n)| (fate.words(), n)).collect();
    Ok(Contents { left_out, undecrypted: BTreeMap::new(), damage: contents.damage })
}
