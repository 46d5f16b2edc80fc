//! The settings of a responder, and their rows of the option tables.

use std::{path::PathBuf, str::FromStr};

use fathom_engine::Error;
use fathom_model::{
    OptionDoc, Settings, ValueKind,
    settings::SettingError,
    units::{Bytes, Nanos},
};

use super::{Delay, InvalidText, StallPattern, StatusMix};

/// Each worker holds the whole answer, so this must fit in memory on a machine with many cores.
const SIZE_MAX: Bytes = Bytes(16 << 20);

pub const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    // The size of the nginx welcome page, the body of most published HTTP benchmarks.
    default: Some("612"),
    help: "body size of our responder's answers",
};

pub const DELAY: OptionDoc = OptionDoc {
    name: "delay",
    value: ValueKind::Text,
    default: None,
    help: "delay of our responder's answers: 5ms, uniform 1ms..5ms, exponential 2ms, normal 5ms 1ms, 90% 1ms,10% 20ms",
};

pub const STALL: OptionDoc = OptionDoc {
    name: "stall",
    value: ValueKind::Text,
    default: None,
    help: "our responder stalls for a time in each period: 200ms/1s",
};

pub const STATUSES: OptionDoc = OptionDoc {
    name: "statuses",
    value: ValueKind::Text,
    default: None,
    help: "status codes of our responder with their shares: 200:95%,404:4%,503:1%",
};

pub const KEEP_ALIVE: OptionDoc = OptionDoc {
    name: "keep-alive",
    value: ValueKind::Text,
    default: None,
    help: "keep-alive of our responder: on, off, or the number of answers per connection",
};

pub const SCHEME: OptionDoc = OptionDoc {
    name: "scheme",
    value: ValueKind::Choice(&["http", "https"]),
    default: Some("http"),
    help: "scheme of our responder; its certificate is self-signed",
};

pub const PORT: OptionDoc = OptionDoc {
    name: "port",
    value: ValueKind::Count(0, 65_535),
    default: Some("0"),
    help: "port that our responder listens on; 0: the kernel chooses",
};

/// All options of the responder.
pub const OPTIONS: [OptionDoc; 7] = [SIZE, DELAY, STALL, STATUSES, KEEP_ALIVE, SCHEME, PORT];

/// The port that the settings of a responder ask for; 0 if it does not matter.
#[must_use]
pub fn port(settings: &Settings) -> u16 {
    settings.count(PORT.name).and_then(|port| u16::try_from(port).ok()).unwrap_or(0)
}

/// How many answers a connection gets before the responder closes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeepAliveLimit {
    /// No limit.
    #[default]
    On,
    /// This many, at least one; the last one announces the close.
    Answers(u64),
}

impl KeepAliveLimit {
    /// Whether the answer after `n_answers` is the last one.
    pub(super) fn ends_after(self, n_answers: u64) -> bool {
        matches!(self, Self::Answers(n) if n_answers + 1 >= n)
    }
}

impl FromStr for KeepAliveLimit {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        match text.trim() {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Answers(1)),
            number => number.parse().ok().filter(|n| *n > 0).map(Self::Answers).ok_or(InvalidText),
        }
    }
}

/// The source of the certificate of an https responder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// Generated at the start for the host's addresses and `localhost`, and never stored; clients must not verify it.
    SelfMade,
    /// PEM files.
    Files {
        /// The certificate, followed by its intermediates.
        chain: PathBuf,
        /// Its private key; it may be in the same file.
        key: PathBuf,
    },
}

/// How a responder answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponderOptions {
    /// The size of the body; at most 16 MiB.
    pub size: Bytes,
    /// The delay of each answer.
    ///
    /// A connection is served in order: a pipelined request waits until the one before it is answered.
    pub delay: Option<Delay>,
    /// When no answers are sent at all.
    pub stall: Option<StallPattern>,
    /// The statuses of the answers.
    pub statuses: StatusMix,
    /// The number of answers per connection.
    pub keep_alive: KeepAliveLimit,
    /// The certificate for https; without one the responder speaks http.
    pub certificate: Option<Certificate>,
    /// The seed of random delays.
    pub seed: u64,
    /// The number of worker threads, each with its own listener; at least one.
    pub workers: usize,
    /// The cores to pin the workers to, in turn; empty means no pinning.
    pub cores: Vec<usize>,
    /// How long a request may take to arrive, and an answer to be read by the client.
    pub transfer_timeout: Nanos,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Nanos,
    /// The most connections per worker; further ones wait in the kernel's queue.
    pub connections_max: usize,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        Self {
            // The default of the option.
            size: Bytes(612),
            delay: None,
            stall: None,
            statuses: StatusMix::default(),
            keep_alive: KeepAliveLimit::On,
            certificate: None,
            seed: 0,
            workers: 1,
            cores: Vec::new(),
            transfer_timeout: Nanos::from_secs(10),
            idle_timeout: Nanos::from_secs(60),
            connections_max: 10_000,
        }
    }
}

impl ResponderOptions {
    /// Reads the settings of [`OPTIONS`]; missing ones have their default.
    ///
    /// # Errors
    /// A setting cannot be parsed; the error names the first one.
    pub fn read(settings: &Settings, seed: u64) -> Result<Self, SettingError> {
        let default = Self::default();
        let delay: Option<Delay> = parse_option(
            settings,
            &DELAY,
            "5ms, uniform 1ms..5ms, exponential 2ms, normal 5ms 1ms or a mix such as 90% 1ms,10% 20ms, at most 60s",
        )?;
        Ok(Self {
            size: settings.size(SIZE.name).unwrap_or(default.size),
            delay: delay.filter(|delay| !delay.is_none()),
            stall: parse_option(settings, &STALL, "a span per longer period, such as 200ms/1s")?,
            statuses: parse_option(
                settings,
                &STATUSES,
                "statuses from 200 to 599 whose shares make 100%, such as 200:95%,404:5%",
            )?
            .unwrap_or(default.statuses),
            keep_alive: parse_option(settings, &KEEP_ALIVE, "on, off, or a number from 1")?
                .unwrap_or(default.keep_alive),
            certificate: (settings.text(SCHEME.name).as_deref() == Some("https")).then_some(Certificate::SelfMade),
            seed,
            ..default
        })
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.size > SIZE_MAX {
            return Err(Error::Unsupported {
                what: format!("a body of {} is more than the responder holds", self.size),
                hint: Some(format!("ask for at most {SIZE_MAX}")),
            });
        }
        Ok(())
    }
}

fn parse_option<T: FromStr>(
    settings: &Settings,
    option: &OptionDoc,
    expected: &str,
) -> Result<Option<T>, SettingError> {
    let Some(given) = settings.text(option.name) else { return Ok(None) };
    match given.parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(SettingError::NotAllowed { name: option.name.to_owned(), expected: expected.to_owned(), given }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_say_how_a_responder_answers() {
        let settings = Settings::default()
            .with("size", "1KiB")
            .with("delay", "exponential 2ms")
            .with("stall", "200ms/1s")
            .with("statuses", "503")
            .with("keep-alive", "off")
            .with("scheme", "https");
        let options = ResponderOptions::read(&settings.complete(&OPTIONS).unwrap(), 7).unwrap();
        let expected = ResponderOptions {
            size: Bytes(1024),
            delay: "exponential 2ms".parse().ok(),
            stall: "200ms/1s".parse().ok(),
            statuses: "503".parse().unwrap(),
            keep_alive: KeepAliveLimit::Answers(1),
            certificate: Some(Certificate::SelfMade),
            seed: 7,
            ..ResponderOptions::default()
        };
        assert_eq!(options, expected);
        let none = Settings::default().with("delay", "0s").complete(&OPTIONS).unwrap();
        assert_eq!(ResponderOptions::read(&none, 0), Ok(ResponderOptions::default()));
    }

    #[test]
    fn a_setting_that_is_not_understood_is_named_with_what_would_be() {
        for (name, given) in [("delay", "pareto 1ms"), ("stall", "1s"), ("statuses", "200:1%"), ("keep-alive", "0")] {
            let error = ResponderOptions::read(&Settings::default().with(name, given), 0).unwrap_err().to_string();
            assert!(error.starts_with(&format!("option `{name}` takes ")), "{error}");
            assert!(error.ends_with(&format!("not `{given}`")), "{error}");
        }
    }
}
