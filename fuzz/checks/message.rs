//! What must hold for every answer that users look into.
//!
//! Shared by the fuzz target and by the test of `app` that runs the corpus.

use fathom_http::h1::{HeadReader, Method, ResponseProgress, ResponseReader};
use fathom_scenario::execution::HttpMessage;

/// Fields that users look for.
const FIELDS: [&str; 5] = ["Set-Cookie", "location", "Transfer-Encoding", "content-encoding", "X"];

/// Looks at the bytes as they are, and at the answer that the engine finds in them, of which both must say the same.
pub(crate) fn message(bytes: &[u8]) {
    look(bytes);
    let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Get));
    if let Ok(ResponseProgress::Complete { used, answer }) = reader.take(bytes, &mut heads)
        && answer.interim_bytes == 0
    {
        let mut scratch = Vec::new();
        let message = HttpMessage::read(&bytes[..used], &mut scratch);
        let on_wire = usize::try_from(answer.body_bytes).expect("it came from memory");
        assert_eq!(message.head().len() + on_wire, used, "where the head ends in {}", bytes.escape_ascii());
        // Chunks have sizes and ends.
        let is_whole = message.body().len() == on_wire || message.body().len() + b"0\r\n\r\n".len() <= on_wire;
        assert!(is_whole, "{} of {on_wire} bytes in {}", message.body().len(), bytes.escape_ascii());
    }
}

fn look(bytes: &[u8]) {
    let mut scratch = b"of before".to_vec();
    let message = HttpMessage::read(bytes, &mut scratch);
    assert!(bytes.starts_with(message.head()));
    assert!(message.head().len() + message.body().len() <= bytes.len());
    if message.field("transfer-encoding").is_none() {
        assert_eq!([message.head(), message.body()].concat(), bytes, "a body without chunks is as it came");
    }
    for name in FIELDS {
        for value in message.fields(name) {
            assert!(!value.contains(&b'\n') && value.trim_ascii() == value, "{name}: {}", value.escape_ascii());
        }
    }
    for coding in message.codings() {
        assert!(!coding.is_empty() && !coding.contains(&b','), "{}", coding.escape_ascii());
    }
}
