//! Messages without secrets, and shortened, so that they may be kept and shown.
//!
//! A secret is recognized by its place (credential and cookie fields), by its name (`password` in a query, a form or JSON), or
//! because its value was declared secret.

use std::sync::LazyLock;

use regex::bytes::Regex;

/// The most bytes kept of a message.
const KEPT_BYTES: usize = 4096;
/// The most bytes examined: a secret that begins within the kept part must be seen whole.
const SEEN_BYTES: usize = 4 * KEPT_BYTES;
/// The replacement of a secret.
pub(crate) const REDACTED: &str = "***";
/// A shorter value would match everywhere by chance; a value with a telling name is hidden by its name anyway.
const VALUE_BYTES_MIN: usize = 4;

/// Words in the names of secrets.
const WORDS: &str =
    "pass(?:word|wd|phrase|code)|pwd|secret|token|api[_-]?key|credential|authori[sz]ation|csrf|xsrf|session|jwt|otp";

struct Patterns {
    rules: Vec<(Regex, &'static str)>,
    name: Regex,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let compile = |pattern: String| Regex::new(&pattern).expect("the patterns are constants, and tested");
    let rules = [
        (format!(r"(?im)^([a-z0-9_-]*(?:authorization|authenticate|cookie|{WORDS})[a-z0-9_-]*:)[^\r\n]*"), "${1} ***"),
        (
            format!(r#"(?i)("(?:[^"\\]*(?:{WORDS})[^"\\]*|pass|pin)"\s*:\s*)(?:"(?:[^"\\]|\\.)*"?|[^\s,}}\]"\[{{]+)"#),
            "${1}\"***\"",
        ),
        (
            format!(r#"(?i)(\bname="(?:[^"]*(?:{WORDS})[^"]*|pass|pin)"[^\r\n]*(?:\r\n[^\r\n]+)*\r\n\r\n)[^\r\n]*"#),
            "${1}***",
        ),
        (format!(r#"(?i)((?:[?&;\s]|^)(?:[^=&?;\s"<>]*(?:{WORDS})[^=&?;\s"<>]*|pass|pin)=)[^&;\s"<>]*"#), "${1}***"),
        (r"(://)[^/\s@]*@".to_owned(), "${1}***@"),
    ];
    Patterns {
        rules: rules.into_iter().map(|(pattern, mark)| (compile(pattern), mark)).collect(),
        name: compile(format!(r"(?i)(?:{WORDS}|^pass$|^pin$)")),
    }
});

/// Whether a name suggests a secret.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    PATTERNS.name.is_match(name.as_bytes())
}

/// A message without the secrets that its places and names show, truncated after 4 KiB.
#[must_use]
pub fn without_secrets(message: &[u8]) -> String {
    redacted(message, std::iter::empty())
}

/// A message without the secrets that its places and names show, and without these values, truncated after 4 KiB.
pub(crate) fn redacted<'s>(message: &[u8], secrets: impl Iterator<Item = &'s [u8]>) -> String {
    let mut bytes = message[..message.len().min(SEEN_BYTES)].to_vec();
    let mut secrets: Vec<&[u8]> = secrets.filter(|secret| secret.len() >= VALUE_BYTES_MIN).collect();
    // One may be the beginning of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in secrets {
        bytes = without(&bytes, secret);
    }
    for (pattern, mark) in &PATTERNS.rules {
        bytes = pattern.replace_all(&bytes, mark.as_bytes()).into_owned();
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    text.truncate(text.floor_char_boundary(KEPT_BYTES));
    text
}

fn without(bytes: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut rest = bytes;
    let mut kept = Vec::with_capacity(bytes.len());
    while let Some(at) = memchr::memmem::find(rest, secret) {
        kept.extend_from_slice(&rest[..at]);
        kept.extend_from_slice(REDACTED.as_bytes());
        rest = &rest[at + secret.len()..];
    }
    kept.extend_from_slice(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(message: &str) -> String {
        redacted(message.as_bytes(), std::iter::empty())
    }

    #[test]
    fn credentials_and_cookies_are_blacked_out_in_the_head() {
        let message = "GET /a?x=1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer abc\r\ncookie: sid=1; b=2\r\nX-Api-Key: k\r\nX-CSRF-Token: t\r\nAccept: */*\r\n\r\n";
        assert_eq!(
            shown(message),
            "GET /a?x=1 HTTP/1.1\r\nHost: h\r\nAuthorization: ***\r\ncookie: ***\r\nX-Api-Key: ***\r\nX-CSRF-Token: ***\r\nAccept: */*\r\n\r\n"
        );
        assert_eq!(
            shown("HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nSet-Cookie: ***\r\n\r\n"
        );
    }

    #[test]
    fn secrets_are_known_by_their_name_in_a_query_a_form_and_json() {
        let cases = [
            ("GET /l?user=ann&password=hush&x=1 HTTP/1.1", "GET /l?user=ann&password=***&x=1 HTTP/1.1"),
            ("\r\n\r\nuser=ann&Pass=hush", "\r\n\r\nuser=ann&Pass=***"),
            ("access_token=abc", "access_token=***"),
            (r#"{"user":"ann","pass": "hu\"sh","age":7}"#, r#"{"user":"ann","pass": "***","age":7}"#),
            (r#"{"refreshToken":"abc"}"#, r#"{"refreshToken":"***"}"#),
            (r#"{"pin":1234,"pins":5}"#, r#"{"pin":"***","pins":5}"#),
            (r#"{"token":"cut off"#, r#"{"token":"***""#),
            ("name=\"password\"\r\n\r\nhush\r\n--b", "name=\"password\"\r\n\r\n***\r\n--b"),
            ("Location: http://ann:hush@h/", "Location: http://***@h/"),
            ("compass=north&user=ann", "compass=north&user=ann"),
        ];
        for (message, expected) in cases {
            assert_eq!(shown(message), expected);
        }
    }

    #[test]
    fn values_that_were_given_as_secrets_are_found_anywhere() {
        let secrets: [&[u8]; 3] = [b"hush", b"hush-hush", b"1"];
        let text = redacted(b"GET /s/hush-hush/1 HTTP/1.1\r\n\r\nhush", secrets.into_iter());
        assert_eq!(text, "GET /s/***/1 HTTP/1.1\r\n\r\n***");
    }

    #[test]
    fn what_is_kept_is_bounded_and_text() {
        let text = shown(&format!("{}{}", "a".repeat(4095), "ö".repeat(10_000)));
        assert_eq!(text.len(), 4095, "the next letter has two bytes");
        assert!(redacted(&[0xff; 9], std::iter::empty()).starts_with('\u{fffd}'));
        let cut = shown(&format!("{}&token={}", "a".repeat(4080), "s".repeat(9_000)));
        assert!(cut.ends_with("&token=***"), "{}", &cut[4070..]);
    }

    #[test]
    fn names_of_secrets_are_known() {
        for name in ["password", "auth_token", "pass", "sessionId", "API-KEY"] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["user", "compass", "id"] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
