//! Header fields that requests of a recording get, or lose.

use fathom_engine::Error;
use fathom_model::{Settings, settings::SettingError};

use crate::RecordedExchange;

/// Fields that say where a request ends. With other values it would be another request, or none.
const FRAMING: [&str; 2] = ["content-length", "transfer-encoding"];

/// The fields to set, by their lines.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    /// The name and the whole line; no line for a field that is only removed.
    fields: Vec<(String, Option<String>)>,
}

impl Rewrite {
    /// Reads the option `header`: `Name: value` sets a field, and `Name:` removes it.
    ///
    /// # Errors
    /// Names the line that is wrong.
    pub(super) fn of(settings: &Settings) -> Result<Self, Error> {
        let lines = settings.text("header").unwrap_or_default();
        let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(Self { fields: lines.map(field).collect::<Result<_, _>>()? })
    }

    /// Rewrites the head of a request.
    pub(super) fn apply(&self, exchange: &mut RecordedExchange) {
        if self.fields.is_empty() {
            return;
        }
        let (head, body) = exchange.request.split_at(exchange.head_length);
        let mut bytes = Vec::with_capacity(exchange.request.len() + 256);
        let mut lines = head.split_inclusive(|byte| *byte == b'\n');
        bytes.extend_from_slice(lines.next().unwrap_or_default());
        for line in lines.clone().filter(|line| !line.trim_ascii().is_empty() && !self.replaces(line)) {
            bytes.extend_from_slice(line);
        }
        for line in self.fields.iter().filter_map(|(_, line)| line.as_ref()) {
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
    use crate::sending::spool::tests::exchange;

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
    fn fields_that_would_make_it_another_request_are_refused() {
        for line in ["Content-Length: 3", "transfer-encoding:", "no colon", ": empty", "A b: c", "A: b\u{7}"] {
            assert!(rewrite(line).unwrap_err().to_string().contains("`header`"), "{line}");
        }
    }
}
