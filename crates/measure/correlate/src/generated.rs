//! Values that a client makes itself: the time, and random ones.

use fathom_import::import_tree::ImportPiece;
use jiff::{SignedDuration, Timestamp};

/// A time farther from its request is a date that somebody chose.
const NEAR: SignedDuration = SignedDuration::from_hours(24);
/// A shorter text may be a word.
const TOKEN_MIN: usize = 16;
/// A text that changes less often between small letters, capitals and digits is made of words.
const CHANGES_MIN: usize = 4;
/// The fewest digits of a random number.
const DIGITS_MIN: usize = 8;

/// What makes values like these two, which were sent at these times, and what they are.
pub(crate) fn generator(
    (one, two): (&str, &str),
    (at_one, at_two): (Option<Timestamp>, Option<Timestamp>),
) -> Option<(ImportPiece, &'static str)> {
    let are_near = |read: fn(&str) -> Option<Timestamp>| {
        let is_near = |text, at: Option<Timestamp>| {
            read(text).zip(at).is_some_and(|(time, at)| time.duration_since(at).abs() <= NEAR)
        };
        is_near(one, at_one) && is_near(two, at_two)
    };
    if are_near(millis) {
        return Some((ImportPiece::TimeMillis, "the time in milliseconds"));
    }
    if are_near(seconds) {
        return Some((ImportPiece::TimeSeconds, "the time in seconds"));
    }
    if are_near(iso) {
        return Some((ImportPiece::TimeIso, "the time"));
    }
    if is_uuid(one) && is_uuid(two) {
        return Some((ImportPiece::Uuid, "a random UUID"));
    }
    let all = |test: fn(&u8) -> bool| one.bytes().chain(two.bytes()).all(|byte| test(&byte));
    if one.len() != two.len() || all(u8::is_ascii_hexdigit) && !all(u8::is_ascii_digit) {
        // No generator makes hexadecimal digits alone.
        return None;
    }
    if all(u8::is_ascii_digit) && (DIGITS_MIN..=18).contains(&one.len()) && !one.starts_with('0') {
        let least = 10_u64.pow(u32::try_from(one.len()).ok()? - 1);
        return Some((ImportPiece::Random(least, least * 10 - 1, 0), "a random number"));
    }
    if is_token(one) && is_token(two) && all(u8::is_ascii_alphanumeric) {
        return Some((ImportPiece::Characters(u16::try_from(one.len()).ok()?), "random characters"));
    }
    None
}

/// Whether a text looks like random characters: a session, a signature, an identifier.
pub(crate) fn is_token(text: &str) -> bool {
    let class = |byte: u8| match byte {
        b'a'..=b'z' => 0,
        b'A'..=b'Z' => 1,
        b'0'..=b'9' => 2,
        _ => 3,
    };
    let classes: Vec<u8> = text.bytes().map(class).filter(|class| *class < 3).collect();
    let n_changes = classes.windows(2).filter(|two| two[0] != two[1]).count();
    text.len() >= TOKEN_MIN
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=_-.~|%".contains(&byte))
        && classes.contains(&2)
        && (classes.contains(&0) || classes.contains(&1))
        && n_changes >= CHANGES_MIN
}

fn digits(text: &str, n: usize) -> Option<i64> {
    let is_number = text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn millis(text: &str) -> Option<Timestamp> {
    Timestamp::from_millisecond(digits(text, 13)?).ok()
}

fn seconds(text: &str) -> Option<Timestamp> {
    Timestamp::from_second(digits(text, 10)?).ok()
}

/// Only the form that a scenario writes.
fn iso(text: &str) -> Option<Timestamp> {
    let has_form = text.len() == 24 && text.as_bytes()[19] == b'.' && text.ends_with('Z');
    text.parse().ok().filter(|_| has_form)
}

/// Version 4 (RFC 9562): the only one that is random throughout.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            14 => byte == b'4',
            19 => b"89ab".contains(&byte),
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(one: &str, two: &str) -> Option<ImportPiece> {
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let at = (at("2026-11-26T10:00:00Z"), at("2026-11-26T11:00:00Z"));
        generator((one, two), at).map(|(piece, _)| piece)
    }

    #[test]
    fn times_near_their_requests_are_the_time() {
        assert_eq!(generated("1795687200123", "1795690800456"), Some(ImportPiece::TimeMillis));
        assert_eq!(generated("1795687200", "1795690801"), Some(ImportPiece::TimeSeconds));
        assert_eq!(generated("2026-11-26T10:00:00.123Z", "2026-11-26T11:00:00.456Z"), Some(ImportPiece::TimeIso));
        // One of them is years away.
        assert_ne!(generated("1795687200123", "1595690800456"), Some(ImportPiece::TimeMillis));
        assert_eq!(generated("2026-11-26", "2026-11-27"), None);
    }

    #[test]
    fn random_values_are_known_by_their_form() {
        let uuids = ("3f2b8c1e-7d4a-4f6b-9a0c-1e2d3c4b5a69", "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d");
        assert_eq!(generated(uuids.0, uuids.1), Some(ImportPiece::Uuid));
        assert_eq!(generated("48213377", "90210044"), Some(ImportPiece::Random(10_000_000, 99_999_999, 0)));
        assert_eq!(generated("aB3dE5fG7hI9jK1l", "zY8xW6vU4tS2rQ0p"), Some(ImportPiece::Characters(16)));
        for (one, two) in [
            ("blue-shirt", "red-hat"),
            ("4f6b9a0c1e2d3c4b", "0a1b2c3d4e5f4a6b"),
            ("aB3dE5fG7hI9jK1l", "short"),
            ("internationalization", "institutionalization"),
            ("17", "23"),
            ("", "x"),
        ] {
            assert_eq!(generated(one, two), None, "{one} {two}");
        }
    }

    #[test]
    fn tokens_are_told_from_words() {
        for token in ["aB3dE5fG7hI9jK1l", "4f6b9a0c1e2d3c4b", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0"] {
            assert!(is_token(token), "{token}");
        }
        for word in
            ["application/json", "internationalization", "short1", "2026-11-26T10:00:00", "version-2-of-the-file"]
        {
            assert!(!is_token(word), "{word}");
        }
    }
}
