//! Header fields that requests of a recording get, or lose.

use fathom_engine::Error;
use fathom_model::{Settings, settings::SettingError};

use super::request;
use crate::{AnswerFate, RecordedExchange};

/// Fields that say where a request ends. With other values it would be another request, or none.
const FRAMING: [&str; 2] = ["content-length", "transfer-encoding"];

/// The field of live copies.
pub(super) const COPY: &str = "x-fathom-copy";

/// The fields to set, by their lines.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    /// The name and the whole line; no line for a field that is only removed.
    fields: Vec<(String, Option<String>)>,
    /// The host of requests of a log that lacks theirs.
    host: Option<String>,
}

impl Rewrite {
    /// Reads the option `header`: `Name: value` sets a field, and `Name:` removes it.
    ///
    /// # Errors
    /// Names the line that is wrong.
    pub(super) fn of(settings: &Settings) -> Result<Self, Error> {
        let lines = settings.text("header").unwrap_or_default();
        let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(Self { fields: lines.map(field).collect::<Result<_, _>>()?, host: None })
    }

    /// Gives requests of a log that lacks their host this one (RFC 9112 section 3.2).
    pub(super) fn with_host(self, host: Option<String>) -> Self {
        Self { host, ..self }
    }

    /// Marks each request by the field [`COPY`], so that copies that come back are known.
    pub(super) fn marking_copies(mut self) -> Self {
        self.fields.push((COPY.to_owned(), Some(format!("{COPY}: 1"))));
        self
    }

    /// Rewrites the head of a request.
    pub(super) fn apply(&self, exchange: &mut RecordedExchange) {
        let lacks_host = exchange.answer_fate == AnswerFate::Logged
            && !request::has_field(&exchange.request[..exchange.head_length], "host");
        let host = self.host.as_ref().filter(|_| lacks_host && !self.replaces(b"host:"));
        if self.fields.is_empty() && host.is_none() {
            return;
        }
        let (head, body) = exchange.request.split_at(exchange.head_length);
        let mut bytes = Vec::with_capacity(exchange.request.len() + 256);
        let mut lines = head.split_inclusive(|byte| *byte == b'\n');
        bytes.extend_from_slice(lines.next().unwrap_or_default());
        for line in lines.clone().filter(|line| !line.trim_ascii().is_empty() && !self.replaces(line)) {
            bytes.extend_from_slice(line);
        }
        let host = host.map(|host| format!("Host: {host}"));
        for line in host.iter().chain(self.fields.iter().filter_map(|(_, line)| line.as_ref())) {
            bytes.extend_from_slice(line.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        exchange.head_length = bytes.len();
        bytes.extend_from_slice(body);
        exchange.request = bytes;
    }

    fn replaces(&self, line: &[u8]) -> bool {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        self.fields.iter().any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
    }
}

fn field(line: &str) -> Result<(String, Option<String>), Error> {
    let wrong = |expected: &str| SettingError::NotAllowed {
        name: "header".to_owned(),
        expected: expected.to_owned(),
        given: line.to_owned(),
    };
    let is_token = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    let (name, value) =
        line.split_once(':').filter(|(name, _)| is_token(name)).ok_or_else(|| wrong("`Name: value`"))?;
    if FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
        return Err(wrong("fields that do not say where a request ends").into());
    }
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(wrong("values without control characters").into());
    }
    Ok((name.to_owned(), (!value.trim().is_empty()).then(|| line.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sending::spooled_exchange::tests::exchange;

    fn rewrite(lines: &str) -> Result<Rewrite, Error> {
        Rewrite::of(&Settings::default().with("header", lines))
    }

    #[test]
    fn fields_are_replaced_added_and_removed_and_the_rest_stays_as_it_was() {
        let mut request = exchange(0, 0, "POST /a HTTP/1.1\r\nhost: old\r\nCookie: a=1\r\nContent-Length: 2\r\n\r\nhi");
        rewrite("Host: new\nCookie:\nX-Copy: 1").unwrap().apply(&mut request);
        let wanted = "POST /a HTTP/1.1\r\nContent-Length: 2\r\nHost: new\r\nX-Copy: 1\r\n\r\nhi";
        assert_eq!(String::from_utf8_lossy(&request.request), wanted);
        assert_eq!(request.head_length, wanted.len() - 2);
        let before = request.clone();
        rewrite("").unwrap().apply(&mut request);
        assert_eq!(request, before);
    }

    #[test]
    fn a_request_of_a_log_without_its_host_gets_that_of_the_target() {
        let rewritten = |rewrite: &str, request: &str, answer_fate| {
            let mut request = RecordedExchange { answer_fate, ..exchange(0, 0, request) };
            self::rewrite(rewrite).unwrap().with_host(Some("target:80".to_owned())).apply(&mut request);
            String::from_utf8(request.request).unwrap()
        };
        let (bare, named) = ("GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHOST: a\r\n\r\n");
        assert_eq!(rewritten("", bare, AnswerFate::Logged), "GET / HTTP/1.1\r\nHost: target:80\r\n\r\n");
        assert_eq!(rewritten("Host: b", bare, AnswerFate::Logged), "GET / HTTP/1.1\r\nHost: b\r\n\r\n");
        assert_eq!(rewritten("", named, AnswerFate::Logged), named);
        assert_eq!(rewritten("", bare, AnswerFate::Absent), bare, "a capture has what was sent");
    }

    #[test]
    fn fields_that_would_make_it_another_request_are_refused() {
        for line in ["Content-Length: 3", "transfer-encoding:", "no colon", ": empty", "A b: c", "A: b\u{7}"] {
            assert!(rewrite(line).unwrap_err().to_string().contains("`header`"), "{line}");
        }
    }
}
