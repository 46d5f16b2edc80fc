//! Runs a `take` on an answer that was recorded, exactly as users would run it on one that they receive.

use fathom_model::units::Nanos;

use super::{
    checks::{AnswerView, Finder},
    compile::finder,
    message::HttpMessage,
};
use crate::{
    ast::{MatchPick, Statement},
    parse,
};

/// The source of a `take`, ready to run.
#[derive(Debug)]
pub struct TakeProbe {
    finder: Finder,
    pick: MatchPick,
}

impl TakeProbe {
    /// Parses what follows `take NAME =`, without a default; `None` if it is invalid.
    #[must_use]
    pub fn parse(source: &str) -> Option<Self> {
        let scenario = parse(&format!("step probe\n  GET /\n  take value = {source}\n")).ok()?;
        let Some(Statement::Step(step)) = scenario.users.first()?.body.first() else { return None };
        let [take] = step.takes.as_slice() else { return None };
        let (finder, _) = finder(take).ok().filter(|_| take.default.is_none())?;
        Some(Self { finder, pick: take.pick })
    }

    /// What it takes from an answer with a decoded body.
    pub fn find(&mut self, status: u16, head: &[u8], body: &[u8]) -> Option<Vec<u8>> {
        let message = HttpMessage::decoded(head, body);
        let answer = AnswerView { status, message, body: Ok(body), took: Nanos::ZERO };
        let mut found = Vec::new();
        let mut chance = fastrand::Rng::with_seed(0);
        let is_found = self.finder.find(&answer, self.pick, &mut chance, &mut found).unwrap_or(false);
        is_found.then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_finds_what_a_step_would_take() {
        let head = b"HTTP/1.1 201 Created\r\nLocation: /cart/7\r\nSet-Cookie: sid=abc; Path=/\r\nTransfer-Encoding: chunked\r\n\r\n";
        let body = br#"{"token": "a\/b", "items": [{"id": 1}, {"id": 2}]}"#;
        let cases = [
            ("json $.token", Some("a/b")),
            ("json $.items[*].id last", Some("2")),
            ("header Location", Some("/cart/7")),
            ("cookie sid", Some("abc")),
            ("status", Some("201")),
            (r#"regex /"id": (\d)/ nth 2"#, Some("2")),
            (r"regex /(?im)^location: \/cart\/(\d+)/ in headers", Some("7")),
            (r#"between "\"id\": " "}""#, Some("1")),
            ("json $.none", None),
        ];
        for (source, expected) in cases {
            let found = TakeProbe::parse(source).unwrap().find(201, head, body);
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{source}");
        }
        for source in ["", "json", "json $.a or \"b\"", "regex /(/", "json $.a\n  take b = body"] {
            assert!(TakeProbe::parse(source).is_none(), "{source}");
        }
    }
}
