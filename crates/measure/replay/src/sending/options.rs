//! The options of what is sent, the same for recordings and for live traffic.

use fathom_engine::Error;
use fathom_model::{OptionDoc, Settings, ValueKind, settings::SettingError};

use super::{choice::Choice, compare::Comparison, rewrite::Rewrite, servers::FollowedServers};

/// Which requests are sent, how often, with which fields, and what is compared.
pub(super) const WHAT_IS_SENT: [OptionDoc; 9] = [
    OptionDoc {
        name: "copies",
        value: ValueKind::Count(1, 10_000),
        default: Some("1"),
        help: "send each connection so many times, each on connections of its own",
    },
    OptionDoc {
        name: "ports",
        value: ValueKind::Text,
        default: None,
        help: "send only what went to these ports, such as 80,8080, or to a port of an address: 192.0.2.9:80",
    },
    OptionDoc {
        name: "sessions",
        value: ValueKind::Text,
        default: None,
        help: "share of the recorded connections to send, chosen at random by the seed, such as 10%",
    },
    OptionDoc {
        name: "methods",
        value: ValueKind::Text,
        default: None,
        help: "send only requests of these methods, such as GET,HEAD",
    },
    OptionDoc {
        name: "only",
        value: ValueKind::Text,
        default: None,
        help: "send only requests whose path and query match this regular expression",
    },
    OptionDoc {
        name: "skip",
        value: ValueKind::Text,
        default: None,
        help: "leave out requests whose path and query match this regular expression",
    },
    OptionDoc {
        name: "header",
        value: ValueKind::Fields,
        default: None,
        help: "header fields to set, one `Name: value` per line; `Name:` alone removes it",
    },
    OptionDoc {
        name: "compare",
        value: ValueKind::Flag,
        default: None,
        help: "compare status, header fields, content and time of each answer with the recorded one",
    },
    OptionDoc {
        name: "ignore",
        value: ValueKind::Text,
        default: None,
        help: "not compared: `content`, `headers` or names of fields, with commas between them",
    },
];

/// Checks the texts of these options.
///
/// # Errors
/// Names the option that is wrong.
pub(super) fn check(settings: &Settings) -> Result<(), Error> {
    Choice::of(settings, 0)?;
    FollowedServers::of(settings)?;
    Rewrite::of(settings)?;
    match settings.text("ignore") {
        Some(given) if !settings.flag("compare") => {
            let expected = "no value without --compare, since nothing is compared".to_owned();
            Err(SettingError::NotAllowed { name: "ignore".to_owned(), expected, given }.into())
        }
        _ => Comparison::of(settings).map(drop),
    }
}

/// How often each request is sent.
pub(super) fn n_copies(settings: &Settings) -> usize {
    usize::try_from(settings.count("copies").unwrap_or(1)).unwrap_or(usize::MAX)
}

/// What is compared; `None` unless answers are.
///
/// # Errors
/// As [`check`].
pub(super) fn comparison(settings: &Settings) -> Result<Option<Comparison>, Error> {
    settings.flag("compare").then(|| Comparison::of(settings)).transpose()
}
