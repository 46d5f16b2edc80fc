//! `fathom replay FILE --to tcp://HOST:PORT` and `udp://HOST:PORT`: what the clients of a capture sent, whatever its protocol, becomes a test.

use std::{fs::File, io::BufReader, path::Path};

use clap::ArgMatches;
use fathom_model::Settings;
use fathom_replay::{Transport, raw_contents};
use fathom_run::exit::{Exit, UserError};

use super::{
    key_log,
    refusal::{no_capture, unusable},
    send::{self, RecordingSize},
};

/// Where bytes are sent.
pub(super) struct RawTarget {
    transport: Transport,
    /// The host with the port.
    to: String,
}

impl RawTarget {
    /// Reads the target; `None` if it is one for requests of HTTP.
    pub(super) fn of(text: &str) -> Option<Self> {
        let (transport, to) = match text.split_once("://")? {
            ("tcp", to) => (Transport::Tcp, to),
            ("udp", to) => (Transport::Udp, to),
            _ => return None,
        };
        Some(Self { transport, to: to.trim_end_matches('/').to_owned() })
    }

    const fn kind(&self) -> &'static str {
        match self.transport {
            Transport::Tcp => "tcp_replay",
            Transport::Udp => "udp_replay",
        }
    }

    const fn scheme(&self) -> &'static str {
        match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        }
    }
}

/// The target of bytes, if that is what the command line names.
pub(super) fn target(matches: &ArgMatches) -> Option<RawTarget> {
    send::target_text(matches).and_then(RawTarget::of)
}

/// Sends what the clients of a capture sent.
pub(super) fn run(matches: &ArgMatches, path: &Path, target: &RawTarget) -> anyhow::Result<Exit> {
    let settings = send::sending_settings(matches, path)?;
    let known = send::kind(target.kind()).options();
    if let Some(option) = settings.0.keys().find(|option| !known.iter().any(|known| known.name == option.as_str())) {
        let text = format!("--{option} is for requests of HTTP, not for --to {}://", target.scheme());
        return Err(UserError::new(Exit::Usage, text).into());
    }
    let size = size(matches, path, target.transport)?;
    let duration = send::duration(&settings, &size)?;
    let settings = Settings::with(settings, "target", target.to.clone());
    let title = format!("replay of {} to {}://{}", path.display(), target.scheme(), target.to);
    send::measure(matches, target.kind(), &settings, (duration, title))
}

/// How much of a capture can be sent.
fn size(matches: &ArgMatches, path: &Path, transport: Transport) -> Result<RecordingSize, UserError> {
    let file = File::open(path).map_err(|error| unusable(path, &error))?;
    let contents = raw_contents(BufReader::new(file), transport, key_log(matches)?);
    let contents = contents.map_err(|error| no_capture(path, &error))?;
    Ok(RecordingSize { n_requests: contents.n_messages, span: contents.span() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_targets_with_the_name_of_a_transport_take_bytes() {
        let target = RawTarget::of("udp://[::1]:53/").unwrap();
        assert_eq!((target.kind(), target.to.as_str()), ("udp_replay", "[::1]:53"));
        assert!(["a:53", "http://a", "udp:53"].iter().all(|text| RawTarget::of(text).is_none()));
    }
}
