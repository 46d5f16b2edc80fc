//! The options of what is sent, the same for recordings and for live traffic.

use fathom_engine::Error;
use fathom_model::{OptionDoc, Settings, ValueKind, settings::SettingError};

use super::{choice::Choice, compare::Comparison, rewrite::Rewrite};
use crate::{
    options::{COPIES, PORTS, SESSIONS},
    servers::FollowedServers,
};

/// Which requests are sent, how often, with which fields, and what is compared.
pub(super) const WHAT_IS_SENT: [OptionDoc; 9] = [
    COPIES,
    PORTS,
    SESSIONS,
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
        help: "a header field to set, `Name: value`; repeatable; `Name:` alone removes it",
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

/// What is compared; `None` unless answers are.
///
/// # Errors
/// As [`check`].
pub(super) fn comparison(settings: &Settings) -> Result<Option<Comparison>, Error> {
    settings.flag("compare").then(|| Comparison::of(settings)).transpose()
}
