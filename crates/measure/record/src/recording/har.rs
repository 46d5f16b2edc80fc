//! Writes the log: HAR 1.2, with the fields that browsers add to it.

use std::fmt::Write as _;

use data_encoding::BASE64;
use fathom_model::units::Nanos;
use fathom_scenario::execution::{BodyError, Unpacker};
use hyper::{
    HeaderMap, Version,
    header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION},
};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{
    captured::Keeping,
    facts::{AnswerHead, ExchangeFacts},
    pages::{PageBook, page_id},
};
use crate::verification::Verification;

/// Media types whose content is text, apart from `text/…` and those that end in `json` or `xml`.
const TEXT_MEDIA: &[&str] = &[
    "application/javascript",
    "application/ecmascript",
    "application/x-javascript",
    "application/x-www-form-urlencoded",
];

/// Whether a body of this media type is kept; one without a type may be text.
pub(super) fn is_text(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media.is_empty()
        || media.starts_with("text/")
        || (media.ends_with("json") || media.ends_with("xml")) && !media.starts_with("image/")
        || TEXT_MEDIA.contains(&media.as_str())
}

/// The whole document.
pub(super) fn log<'a>(
    pages: &PageBook,
    entries: impl Iterator<Item = &'a String>,
    verification: Verification,
) -> String {
    let pages: Vec<Value> = pages.pages.iter().enumerate().map(|(idx, page)| {
        json!({ "id": page_id(idx), "title": page.title, "startedDateTime": time(page.begin_wall), "pageTimings": {} })
    }).collect();
    let creator = json!({ "name": "fathom", "version": env!("CARGO_PKG_VERSION") });
    let mut text = format!(r#"{{"log":{{"version":"1.2","creator":{creator},"#);
    if verification == Verification::Skipped {
        text.push_str(r#""_insecure":true,"#);
    }
    let _ = write!(text, r#""pages":{},"entries":["#, Value::from(pages));
    for (idx, entry) in entries.enumerate() {
        text.push_str(if idx == 0 { "\n" } else { ",\n" });
        text.push_str(entry);
    }
    text.push_str("\n]}}\n");
    text
}

/// One exchange.
pub(super) fn entry(facts: &ExchangeFacts, content: Result<Vec<u8>, String>, now: Nanos) -> String {
    let end = facts.end.unwrap_or(now);
    let answer_begin = facts.answer.as_ref().map_or(end, |answer| answer.begin);
    let millis = |span: Nanos| f64::from(u32::try_from(span.0 / 1000).unwrap_or(u32::MAX)) / 1000.0;
    let (wait, receive) = (answer_begin.since(facts.begin), end.since(answer_begin));
    let mut entry = json!({
        "pageref": facts.page,
        "startedDateTime": time(facts.begin_wall),
        "time": millis(end.since(facts.begin)),
        "request": request(facts),
        "response": match &facts.answer {
            Some(answer) => response(answer, facts.answer_body.n_total, content),
            None => no_response(facts.failure.as_deref().unwrap_or("the browser gave it up")),
        },
        "cache": {},
        "timings": { "send": 0, "wait": millis(wait), "receive": millis(receive) },
    });
    if let Some(kind) = resource_type(&facts.head.headers) {
        entry["_resourceType"] = kind.into();
    }
    entry.to_string()
}

fn time(wall: Nanos) -> String {
    let millis = i64::try_from(wall.0 / 1_000_000).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).map(|time| format!("{time:.3}")).unwrap_or_default()
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

fn fields(headers: &HeaderMap) -> Vec<Value> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    headers.iter().map(|(name, value)| json!({ "name": name.as_str(), "value": text(value.as_bytes()) })).collect()
}

/// The parameters of a query, decoded where that is possible.
fn query(query: &str) -> Vec<Value> {
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| json!({ "name": decoded(name), "value": decoded(value) })).collect()
}

fn field<'a>(headers: &'a HeaderMap, name: &hyper::header::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What a browser asks for, in the words of Chromium's HAR files.
fn resource_type(headers: &HeaderMap) -> Option<&'static str> {
    Some(match headers.get("sec-fetch-dest")?.to_str().ok()? {
        "document" | "iframe" | "frame" => "document",
        "style" => "stylesheet",
        "script" | "worker" | "sharedworker" | "serviceworker" => "script",
        "image" => "image",
        "font" => "font",
        "audio" | "video" => "media",
        "track" => "texttrack",
        "manifest" => "manifest",
        "empty" => "fetch",
        _ => return None,
    })
}

fn request(facts: &ExchangeFacts) -> Value {
    let (head, body) = (&facts.head, &facts.request_body);
    let mut request = json!({
        "method": head.method.as_str(),
        "url": head.url.to_string(),
        "httpVersion": version(head.version),
        "cookies": [],
        "headers": fields(&head.headers),
        "queryString": query(head.url.query().unwrap_or_default()),
        "headersSize": -1,
        "bodySize": body.n_total,
    });
    if body.n_total > 0 && body.is_kept() {
        let (text, encoding) = text_or_base64(&body.bytes);
        request["postData"] = json!({ "mimeType": field(&head.headers, &CONTENT_TYPE), "text": text });
        if let Some(encoding) = encoding {
            request["postData"]["_encoding"] = encoding.into();
        }
    }
    request
}

fn response(answer: &AnswerHead, n_bytes: u64, content: Result<Vec<u8>, String>) -> Value {
    let media = field(&answer.headers, &CONTENT_TYPE);
    let content = match content {
        Ok(bytes) => {
            let (text, encoding) = text_or_base64(&bytes);
            let mut content = json!({ "size": bytes.len(), "mimeType": media, "text": text });
            if let Some(encoding) = encoding {
                content["encoding"] = encoding.into();
            }
            content
        }
        Err(why) => json!({ "size": n_bytes, "mimeType": media, "comment": why }),
    };
    json!({
        "status": answer.status.as_u16(),
        "statusText": answer.status.canonical_reason().unwrap_or_default(),
        "httpVersion": version(answer.version),
        "cookies": [],
        "headers": fields(&answer.headers),
        "content": content,
        "redirectURL": field(&answer.headers, &LOCATION),
        "headersSize": -1,
        "bodySize": n_bytes,
    })
}

/// The content of an answer without its coding, or why it is not in the log.
pub(super) fn content(facts: &ExchangeFacts) -> Result<Vec<u8>, String> {
    let body = &facts.answer_body;
    if body.keeping == Keeping::Length {
        return Err("not text: not kept".to_owned());
    }
    if !body.is_kept() {
        return Err("too long, or not complete: not kept".to_owned());
    }
    let coding = facts.answer.as_ref().map_or("", |answer| field(&answer.headers, &CONTENT_ENCODING)).trim();
    if coding.is_empty() || coding.eq_ignore_ascii_case("identity") || body.bytes.is_empty() {
        return Ok(body.bytes.clone());
    }
    let unpacked = Unpacker::default().decoded(coding.as_bytes(), &body.bytes).map(<[u8]>::to_vec);
    unpacked.map_err(|error: BodyError| error.to_string())
}

/// The content of a document that a page has its title from.
pub(super) fn document<'c>(facts: &ExchangeFacts, content: &'c [u8]) -> Option<&'c str> {
    let answer = facts.answer.as_ref().filter(|answer| answer.status.is_success())?;
    let is_document = field(&answer.headers, &CONTENT_TYPE).starts_with("text/html");
    str::from_utf8(content).ok().filter(|_| is_document)
}

fn no_response(why: &str) -> Value {
    json!({
        "status": 0, "statusText": "", "httpVersion": "", "cookies": [], "headers": [], "redirectURL": "",
        "content": { "size": 0, "mimeType": "" }, "headersSize": -1, "bodySize": -1, "_error": why,
    })
}

/// Text as it is, other bytes in the coding that HAR has for them.
fn text_or_base64(bytes: &[u8]) -> (String, Option<&'static str>) {
    match str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (BASE64.encode(bytes), Some("base64")),
    }
}
