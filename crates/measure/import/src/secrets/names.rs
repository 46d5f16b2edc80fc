//! Which names say that a value is a secret, or the person that a secret belongs to.

use std::sync::LazyLock;

use regex::Regex;

/// Fields of a request with credentials.
const CREDENTIALS: &[&str] =
    &["authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"];
/// The names of what only one person knows.
static SECRET: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"(?i)pass(?:word|wd|phrase|code)|(?:^|[\W_])(?:pass|pwd|pin|otp)\]?$|secret|api[_-]?key")
});
/// The names of what tells the person, next to a secret.
static PERSON: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)(?:^|[\W_])(?:user|user_?name|login|e-?mail|email_?address|account)\]?$"));
/// A choice between such values is no secret, whatever its name.
const SWITCHES: &[&str] = &["true", "false", "on", "off", "yes", "no", "0", "1"];
/// The names of header fields with keys and tokens of one user; those of forms are made by servers.
static KEY_FIELD: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)(?:^|[_-])token$|api[_-]?key|subscription-key|secret"));
static FORM_TOKEN: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)csrf|xsrf"));

/// Compiles a pattern that is constant, and tested.
pub(super) fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the patterns are constant, and tested")
}

/// What a value is to its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueRole {
    Secret,
    /// Whom the secret next to it belongs to.
    Person,
}

impl ValueRole {
    /// The role of values of this name, if they have one.
    pub(super) fn of(name: &str) -> Option<Self> {
        if SECRET.is_match(name) {
            return Some(Self::Secret);
        }
        PERSON.is_match(name).then_some(Self::Person)
    }
}

/// Whether a header field has credentials, keys or tokens of one user.
pub(super) fn has_credentials(name: &str) -> bool {
    let is_key = KEY_FIELD.is_match(name) && !FORM_TOKEN.is_match(name);
    CREDENTIALS.contains(&name.to_lowercase().as_str()) || is_key
}

/// Whether a value may be one that nobody else should read.
pub(super) fn is_value(text: &str) -> bool {
    !text.is_empty() && !SWITCHES.contains(&text.to_lowercase().as_str())
}
