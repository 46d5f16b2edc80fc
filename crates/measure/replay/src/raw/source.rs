//! Reads the messages of a capture file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use fathom_capture::{
    ByteClass, CaptureFileError, ConnectionBegin, KeyLog, TlsFate, TlsObserver, TrafficLimits, TrafficReader,
    read_datagrams, read_traffic,
};
use fathom_engine::Error;
use fathom_model::{Settings, units::Nanos};
use fathom_sys::policy::Policy;

use super::{
    datagrams::DatagramObserver,
    message::RecordedMessage,
    recording::{RawRecording, RawRecordingBuilder},
    target::Transport,
    turns::{MessageSink, TurnObserver},
};
use crate::{keys::key_log, servers::FollowedServers};

/// What a capture has besides the messages that were given to a sink.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Messages that are not whole, by the reason.
    pub(super) left_out: BTreeMap<&'static str, u64>,
    /// Connections of which nothing is sent, by the reason.
    pub(super) connections: BTreeMap<String, u64>,
    /// Datagrams of servers that belong to no question.
    pub(super) n_unasked: u64,
    /// Bytes of connections that are in no turn, of both sides.
    pub(super) n_in_no_turn: u64,
    /// Why the file was not read to its end.
    pub(super) damage: Option<String>,
}

/// How much a capture holds.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawContents {
    /// The messages of clients.
    pub n_messages: u64,
    /// The first and the last time of one, since 1970.
    times: Option<(Nanos, Nanos)>,
}

impl RawContents {
    /// From the first message to the last.
    #[must_use]
    pub fn span(&self) -> Nanos {
        self.times.map_or(Nanos::ZERO, |(first, last)| last.since(first))
    }
}

impl MessageSink for RawContents {
    fn take(&mut self, message: RecordedMessage) {
        self.n_messages += 1;
        let (first, last) = self.times.unwrap_or((message.time, message.time));
        self.times = Some((first.min(message.time), last.max(message.time)));
    }

    fn end(&mut self, _: u64) {}
}

/// Returns how many messages a capture has that can be sent.
///
/// # Errors
/// The file is no capture, or its first frame cannot be read.
pub fn raw_contents(
    file: impl Read + Send,
    transport: Transport,
    keys: KeyLog,
) -> Result<RawContents, CaptureFileError> {
    let mut contents = RawContents::default();
    follow(file, transport, (FollowedServers::default(), keys), &mut contents)?;
    Ok(contents)
}

/// Gives the messages of a capture to a sink.
fn follow(
    file: impl Read + Send,
    transport: Transport,
    (servers, keys): (FollowedServers, KeyLog),
    sink: &mut impl MessageSink,
) -> Result<Rest, CaptureFileError> {
    match transport {
        Transport::Udp => {
            let is_chosen = |one, other| servers.has(one, other);
            let (observer, damage) = read_datagrams(file, DatagramObserver::new(sink), is_chosen)?;
            let (left_out, n_unasked) = observer.into_left_out();
            Ok(Rest { left_out, n_unasked, damage, ..Rest::default() })
        }
        Transport::Tcp => {
            let observer = TlsObserver::new(TurnObserver::new(sink), keys);
            let reader =
                TrafficReader::new(observer, TrafficLimits::USUAL).choosing(move |one, other| servers.has(one, other));
            let (observer, counts, damage) = read_traffic(file, reader)?;
            let (observer, tls) = observer.finish();
            let rest = observer.into_left_out();
            let open_before = counts.begins.get(&ConnectionBegin::Middle).map(|n| ("open before the capture", *n));
            let connections = rest.connections.into_iter().chain(open_before).map(|(why, n)| (why.to_owned(), n));
            // Its bytes mean nothing to a server with other keys.
            let undecrypted = tls.connections.into_iter().filter(|(fate, _)| *fate != TlsFate::Decrypted);
            let undecrypted = undecrypted.map(|(fate, n)| (format!("over TLS, {}", fate.words()), n));
            let connections = connections.chain(undecrypted).collect();
            let n_in_no_turn = counts.bytes.get(&ByteClass::Unattributed).copied().unwrap_or_default();
            Ok(Rest { left_out: rest.turns, connections, n_in_no_turn, damage, ..Rest::default() })
        }
    }
}

/// Reads the recording that the option `file` names.
///
/// # Errors
/// The file is no capture, or there is no place for its messages.
pub(super) fn read(
    settings: &Settings,
    policy: &Policy,
    transport: Transport,
    builder: io::Result<RawRecordingBuilder>,
) -> Result<(RawRecording, Rest), Error> {
    let path = PathBuf::from(settings.text("file").unwrap_or_default());
    let servers = FollowedServers::of(settings)?;
    let keys = key_log(settings, policy)?;
    let not_kept = |error: io::Error| {
        if error.kind() == io::ErrorKind::FileTooLarge {
            return unusable(&path, "it has more than 32 GiB of them", Some("divide it, or choose by --ports"));
        }
        let why = format!("they do not fit in {}: {error}", std::env::temp_dir().display());
        unusable(&path, &why, Some("set TMPDIR to a folder with more room"))
    };
    let mut builder = builder.map_err(not_kept)?;
    let file: File = policy.open(&path).map_err(|error| unusable(&path, &error.to_string(), None))?;
    let rest = follow(BufReader::new(file), transport, (servers, keys), &mut builder)
        .map_err(|error| unusable(&path, &error.to_string(), error.hint()))?;
    Ok((builder.finish().map_err(not_kept)?, rest))
}

fn unusable(path: &Path, why: &str, hint: Option<&str>) -> Error {
    let what = format!("cannot send what clients sent in {}: {why}", path.display());
    Error::Unsupported { what, hint: hint.map(str::to_owned) }
}
