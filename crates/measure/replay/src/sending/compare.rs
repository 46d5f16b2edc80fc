//! Compares an answer with the recorded one.

use std::collections::HashMap;

use fathom_engine::Error;
use fathom_http::{
    h1::{Chunked, Framing, HeadReader, Method},
    users::UserAnswer,
};
use fathom_model::{
    Settings,
    replay::{AnswerDifference, ComparedAnswers, DifferenceExample},
    units::grouped,
};

use super::{request, spooled_exchange::SpooledAnswer};
use crate::digest::Digest;

/// The groups of differences that are told apart.
const GROUPS_MAX: usize = 256;
/// The bytes of a field that an example shows.
const SHOWN_MAX: usize = 80;
/// The word that ignores the contents, among the names of fields.
const CONTENT: &str = "content";
/// The word that ignores all fields.
const HEADERS: &str = "headers";
/// Words in the names of fields whose values may be secret.
const SECRET: [&str; 7] = ["auth", "cookie", "csrf", "key", "secret", "session", "token"];
/// Fields that differ from answer to answer, or that say how the connection is used and not what is answered.
const USUALLY_DIFFERENT: [&str; 16] = [
    "age",
    "alt-svc",
    "cf-ray",
    "connection",
    "content-length",
    "date",
    "expires",
    "keep-alive",
    "last-modified",
    "request-id",
    "server-timing",
    "set-cookie",
    "transfer-encoding",
    "x-correlation-id",
    "x-request-id",
    "x-runtime",
];

/// What is compared, as the option `ignore` says.
#[derive(Debug, Clone, Default)]
pub(super) struct Comparison {
    ignores_content: bool,
    ignores_headers: bool,
    /// Names of fields in lower case.
    ignored: Vec<String>,
}

impl Comparison {
    /// Reads the option `ignore`.
    ///
    /// # Errors
    /// Names a word that is neither known nor the name of a field.
    pub(super) fn of(settings: &Settings) -> Result<Self, Error> {
        let mut comparison = Self::default();
        let words = settings.text("ignore").unwrap_or_default().to_ascii_lowercase();
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                CONTENT => comparison.ignores_content = true,
                HEADERS => comparison.ignores_headers = true,
                name if name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') => {
                    comparison.ignored.push(name.to_owned());
                }
                _ => {
                    return Err(fathom_model::settings::SettingError::NotAllowed {
                        name: "ignore".to_owned(),
                        expected: "content, headers and names of fields, with commas between them".to_owned(),
                        given: word.to_owned(),
                    }
                    .into());
                }
            }
        }
        Ok(comparison)
    }

    fn ignores(&self, field: &str) -> bool {
        let is = |known: &str| known.eq_ignore_ascii_case(field);
        USUALLY_DIFFERENT.iter().any(|known| is(known)) || self.ignored.iter().any(|known| is(known))
    }
}

/// One way in which an answer differs, with both values.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    what: String,
    recorded: String,
    replayed: String,
}

/// Compares the answers of one worker.
#[derive(Debug)]
pub(super) struct AnswerComparer {
    comparison: Comparison,
    heads: HeadReader,
    result: ComparedAnswers,
    /// The place of each group among the differences.
    groups: HashMap<(String, String), usize>,
}

impl AnswerComparer {
    pub(super) fn new(comparison: Comparison) -> Self {
        let heads = HeadReader::new(Method::Get);
        Self { comparison, heads, result: ComparedAnswers::default(), groups: HashMap::new() }
    }

    pub(super) fn finish(self) -> ComparedAnswers {
        self.result
    }

    /// An answer cannot be compared.
    pub(super) fn skip(&mut self) {
        self.result.n_without_recorded += 1;
    }

    /// Compares an answer with the recorded one. `request` are the bytes that were sent.
    pub(super) fn compare(&mut self, request: &[u8], recorded: &SpooledAnswer<'_>, answer: &UserAnswer<'_>) {
        if let Some(before) = recorded.took {
            let took = answer.ended_at.since(answer.sent_at);
            match took.0.checked_sub(before.0) {
                Some(longer @ 1..) => self.result.slower.record(longer),
                _ => self.result.faster.record(before.0 - took.0),
            }
        }
        let differences = self.differences(recorded, answer);
        if differences.is_empty() {
            self.result.n_same += 1;
            return;
        }
        self.result.n_different += 1;
        for difference in differences {
            self.count(request, difference);
        }
    }

    fn differences(&mut self, recorded: &SpooledAnswer<'_>, answer: &UserAnswer<'_>) -> Vec<Difference> {
        if answer.status != recorded.status {
            return vec![Difference {
                what: format!("status {} is now {}", recorded.status, answer.status),
                recorded: recorded.status.to_string(),
                replayed: answer.status.to_string(),
            }];
        }
        // Whoever got the answer has parsed its head.
        let Ok(Some((head, length))) = self.heads.read(answer.message) else { return Vec::new() };
        let (head_bytes, body) = answer.message.split_at(length);
        let mut found = Vec::new();
        if let Some((before, digest)) = recorded.content.filter(|_| !self.comparison.ignores_content) {
            // What was not kept whole is longer than any content that is compared.
            let is_whole = body.len() as u64 == answer.body_bytes;
            let (now, digest_now) = if is_whole { content(body, head.framing) } else { (answer.body_bytes, !digest) };
            if (now, digest_now) != (before, digest) {
                let what = if now == before { "other content of the same length" } else { "other content" };
                found.push(Difference {
                    what: what.to_owned(),
                    recorded: format!("{} B", grouped(before)),
                    replayed: format!("{} B", grouped(now)),
                });
            }
        }
        if !recorded.head.is_empty()
            && !self.comparison.ignores_headers
            && !self.has_same_lines(recorded.head, head_bytes)
        {
            self.compare_fields(recorded.head, head_bytes, &mut found);
        }
        found
    }

    /// Whether two heads have the same lines, apart from the values of fields that are not compared. This is how most answers are, and
    /// what is usually different is a date.
    fn has_same_lines(&self, recorded: &[u8], replayed: &[u8]) -> bool {
        let lines = |head| <[u8]>::split(head, |byte| *byte == b'\n').skip(1);
        let (mut recorded, mut replayed) = (lines(recorded), lines(replayed));
        loop {
            let (before, now) = match (recorded.next(), replayed.next()) {
                (None, None) => return true,
                (Some(before), Some(now)) if before == now => continue,
                (before, now) => (before.and_then(name), now.and_then(name)),
            };
            let is_ignored = |name: &str| self.comparison.ignores(name);
            if !before.zip(now).is_some_and(|(before, now)| before.eq_ignore_ascii_case(now) && is_ignored(before)) {
                return false;
            }
        }
    }

    fn compare_fields(&self, recorded: &[u8], replayed: &[u8], found: &mut Vec<Difference>) {
        let is_compared = |(name, _): &(&str, &str)| !self.comparison.ignores(name);
        let (recorded, replayed) = (String::from_utf8_lossy(recorded), String::from_utf8_lossy(replayed));
        let mut unmatched: Vec<(&str, &str)> = fields(&replayed).filter(is_compared).collect();
        for (name, value) in fields(&recorded).filter(is_compared) {
            let is_same_name = |(other, _): &(&str, &str)| other.eq_ignore_ascii_case(name);
            let name = name.to_ascii_lowercase();
            let shown = |value: &str| shown_field(&name, value);
            match unmatched.iter().position(is_same_name) {
                None => found.push(Difference {
                    what: format!("no field {name}"),
                    recorded: shown(value),
                    replayed: "none".to_owned(),
                }),
                Some(place) => {
                    let (_, now) = unmatched.remove(place);
                    if now != value {
                        let what = format!("other {name}");
                        found.push(Difference { what, recorded: shown(value), replayed: shown(now) });
                    }
                }
            }
        }
        for (name, value) in unmatched {
            let name = name.to_ascii_lowercase();
            let replayed = shown_field(&name, value);
            found.push(Difference { what: format!("a new field {name}"), recorded: "none".to_owned(), replayed });
        }
    }

    fn count(&mut self, request: &[u8], difference: Difference) {
        let line = request_line(request);
        let key = (difference.what, form_of(&line));
        if let Some(place) = self.groups.get(&key) {
            self.result.differences[*place].n += 1;
            return;
        }
        if self.groups.len() == GROUPS_MAX {
            self.result.n_further += 1;
            return;
        }
        self.groups.insert(key.clone(), self.result.differences.len());
        let Difference { recorded, replayed, .. } = Difference { what: String::new(), ..difference };
        let example = DifferenceExample { request: line, recorded, replayed };
        self.result.differences.push(AnswerDifference { what: key.0, requests: key.1, n: 1, example });
    }
}

/// The length and the digest of the content of a body.
fn content(body: &[u8], framing: Framing) -> (u64, u64) {
    let (mut n, mut digest) = (0, Digest::EMPTY);
    let mut take = |content: &[u8]| {
        n += content.len() as u64;
        digest.add(content);
    };
    match framing {
        // Whoever got the answer has followed its chunks.
        Framing::Chunked => drop(Chunked::SizeBegin.follow_content(body, take)),
        Framing::Length(_) | Framing::UntilClose => take(body),
    }
    (n, digest.value())
}

/// The name of the field in a line.
fn name(line: &[u8]) -> Option<&str> {
    let end = memchr::memchr(b':', line)?;
    str::from_utf8(&line[..end]).ok()
}

/// The fields of a head, with their values.
fn fields(head: &str) -> impl Iterator<Item = (&str, &str)> {
    head.lines().skip(1).filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim()))
}

/// The value of a field as it is shown: without what its name says is secret, and without queries.
fn shown_field(name: &str, value: &str) -> String {
    if SECRET.iter().any(|word| name.contains(word)) {
        return "(hidden)".to_owned();
    }
    match value.split_once('?') {
        Some((before, _)) => format!("{}?…", shown(before)),
        None => shown(value),
    }
}

/// A text as it is shown.
fn shown(value: &str) -> String {
    let visible = value.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char });
    let mut text: String = visible.take(SHOWN_MAX + 1).collect();
    if text.chars().count() > SHOWN_MAX {
        text.pop();
        text.push('…');
    }
    text
}

/// The method and the path of a request, without its query, its parameters and the user of a whole URL, which may hold secrets.
fn request_line(request: &[u8]) -> String {
    let (method, target) = request::line(request);
    let (method, target) = (String::from_utf8_lossy(method), String::from_utf8_lossy(target));
    format!("{method} {}", shown(&without_user(target.split(['?', ';']).next().unwrap_or_default())))
}

/// A target without the user and the password of a whole URL, as proxies get it.
fn without_user(target: &str) -> String {
    let Some((scheme, rest)) = target.split_once("://").filter(|_| !target.starts_with('/')) else {
        return target.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

/// The same with `*` for each part of the path that has a digit, so that requests of one form are one group.
fn form_of(line: &str) -> String {
    let form =
        |part: &str| if part.bytes().any(|byte| byte.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() };
    line.split('/').map(form).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use fathom_http::users::BatchPosition;
    use fathom_model::units::Nanos;

    use super::*;
    use crate::{
        RecordedExchange,
        sending::spooled_exchange::tests::{answered, exchange},
    };

    const REQUEST: &str = "GET /orders/17?token=abc HTTP/1.1\r\nHost: a\r\n\r\n";

    fn recorded(head: &str, content: &str) -> RecordedExchange {
        answered(exchange(0, 0, REQUEST), head, content)
    }

    fn compared(ignore: &str, recorded: &RecordedExchange, message: &str) -> ComparedAnswers {
        let body_bytes = message.split_once("\r\n\r\n").unwrap().1.len() as u64;
        compared_of(ignore, recorded, message, body_bytes)
    }

    /// The comparison with an answer whose body had so many bytes, of which some may not have been kept.
    fn compared_of(ignore: &str, recorded: &RecordedExchange, message: &str, body_bytes: u64) -> ComparedAnswers {
        let comparison = Comparison::of(&Settings::default().with("ignore", ignore)).unwrap();
        let mut comparer = AnswerComparer::new(comparison);
        let answer = recorded.answer.as_ref().unwrap();
        let answer = SpooledAnswer {
            status: answer.status,
            head: &answer.head,
            content: answer.content_digest.map(|digest| (answer.content_bytes, digest)),
            took: Some(Nanos::from_millis(1)),
        };
        let replayed = UserAnswer {
            status: message.split(' ').nth(1).unwrap().parse().unwrap(),
            message: message.as_bytes(),
            body_bytes,
            sent_at: Nanos::ZERO,
            first_byte_at: Nanos::ZERO,
            ended_at: Nanos::from_micros(1400),
            position: BatchPosition::Last,
            connection_number: 0,
        };
        comparer.compare(&recorded.request, &answer, &replayed);
        comparer.finish()
    }

    fn whats(compared: &ComparedAnswers) -> Vec<&str> {
        compared.differences.iter().map(|difference| difference.what.as_str()).collect()
    }

    #[test]
    fn an_answer_that_says_the_same_is_the_same_however_it_is_framed_and_dated() {
        let recorded =
            recorded("HTTP/1.1 200 OK\r\nDate: then\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\n", "hello");
        let message = "HTTP/1.1 200 Fine\r\nDate: now\r\ncontent-type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n\
                       2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
        let result = compared("", &recorded, message);
        assert_eq!((result.n_same, result.n_different, whats(&result)), (1, 0, vec![]));
        assert_eq!((result.slower.count(), result.faster.count()), (1, 0));
        assert_eq!(result.slower.max(), Some(400_000));
    }

    #[test]
    fn each_way_to_differ_is_told_with_an_example_and_without_secrets() {
        let recorded =
            recorded("HTTP/1.1 200 OK\r\nETag: \"1\"\r\nCache-Control: no-store\r\nContent-Length: 5\r\n\r\n", "hello");
        let other = "HTTP/1.1 200 OK\r\nETag: \"2\"\r\nServer: new\r\nContent-Length: 5\r\n\r\nhallo";
        let result = compared("", &recorded, other);
        let wanted = ["other content of the same length", "other etag", "no field cache-control", "a new field server"];
        assert_eq!((result.n_different, whats(&result)), (1, wanted.to_vec()));
        let etag = &result.differences[1];
        assert_eq!((etag.requests.as_str(), etag.example.request.as_str()), ("GET /orders/*", "GET /orders/17"));
        assert_eq!((etag.example.recorded.as_str(), etag.example.replayed.as_str()), ("\"1\"", "\"2\""));
        assert_eq!(whats(&compared("headers,content", &recorded, other)), [""; 0]);
        assert_eq!(whats(&compared("ETag, server, cache-control", &recorded, other)), [wanted[0]]);
        let failed = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(whats(&compared("", &recorded, failed)), ["status 200 is now 503"], "the rest follows from that");
    }

    #[test]
    fn a_request_is_shown_without_what_may_be_secret() {
        let shown = |target: &str| request_line(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(shown("/a/17?token=abc"), "GET /a/17");
        assert_eq!(shown("http://bob:hunter2@h/x@y?z"), "GET http://h/x@y");
        assert_eq!(shown("http://bob:hunter2@h"), "GET http://h");
        assert_eq!(shown("/x://a@b"), "GET /x://a@b");
    }

    #[test]
    fn heads_with_the_same_lines_have_no_field_that_differs() {
        const LINES: [&str; 6] = ["Date: then", "date: now", "Age", "ETag: 1", "etag: 2", ": \u{e9}"];
        let head = |lines: &[usize]| {
            let lines: Vec<&str> = lines.iter().filter_map(|n| LINES.get(*n)).copied().collect();
            format!("HTTP/1.1 200 OK\r\n{}\r\n\r\n", lines.join("\r\n"))
        };
        let n = LINES.len() + 1;
        let heads: Vec<String> = (0..n * n * n).map(|code| head(&[code % n, code / n % n, code / n / n])).collect();
        let comparer = AnswerComparer::new(Comparison::default());
        let mut n_same = 0;
        for (before, now) in heads.iter().flat_map(|before| heads.iter().map(move |now| (before, now))) {
            if comparer.has_same_lines(before.as_bytes(), now.as_bytes()) {
                let mut found = Vec::new();
                comparer.compare_fields(before.as_bytes(), now.as_bytes(), &mut found);
                assert_eq!(found, [], "{before}{now}");
                n_same += usize::from(before != now);
            }
        }
        assert!(n_same > 100, "{n_same}");
    }

    #[test]
    fn an_answer_that_grew_too_long_to_be_kept_has_other_content() {
        let recorded = recorded("HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 5\r\n\r\n", "hello");
        let grown = "HTTP/1.1 200 OK\r\nETag: \"2\"\r\nContent-Length: 20000000\r\n\r\nhello";
        let result = compared_of("", &recorded, grown, 20_000_000);
        assert_eq!((result.n_different, whats(&result)), (1, vec!["other content", "other etag"]));
        let DifferenceExample { recorded: before, replayed, .. } = &result.differences[0].example;
        assert_eq!((before.as_str(), replayed.as_str()), ("5 B", "20,000,000 B"));
        assert_eq!(whats(&compared_of("content", &recorded, grown, 20_000_000)), ["other etag"]);
    }

    #[test]
    fn examples_hide_what_may_be_secret() {
        let values = [("location", "/cb?code=SECRET"), ("x-auth-token", "SECRET"), ("server", "nginx")];
        assert_eq!(values.map(|(name, value)| shown_field(name, value)), ["/cb?…", "(hidden)", "nginx"]);
        assert_eq!(request_line(b"GET /cart;jsessionid=SECRET?a=1 HTTP/1.1\r\n"), "GET /cart");
    }

    #[test]
    fn groups_have_a_limit_and_workers_add_up() {
        let mut comparer = AnswerComparer::new(Comparison::default());
        let difference =
            |what: &str| Difference { what: what.to_owned(), recorded: String::new(), replayed: String::new() };
        for number in 0..GROUPS_MAX + 10 {
            comparer.count(REQUEST.as_bytes(), difference(&number.to_string()));
            comparer.count(REQUEST.as_bytes(), difference("0"));
        }
        let mut all = comparer.finish();
        assert_eq!((all.differences.len(), all.n_further), (GROUPS_MAX, 10));
        all.merge(&all.clone());
        assert_eq!((all.differences.len(), all.n_further), (GROUPS_MAX, 20));
        assert_eq!((all.differences[0].what.as_str(), all.differences[0].n), ("0", 2 * (GROUPS_MAX as u64 + 11)));
    }

    #[test]
    fn a_word_that_is_no_field_is_refused() {
        assert!(Comparison::of(&Settings::default().with("ignore", "x y")).unwrap_err().to_string().contains("ignore"));
    }
}
