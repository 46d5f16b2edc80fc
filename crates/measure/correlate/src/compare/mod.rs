//! Goes through two requests side by side: each place that has a value, with the value of both.

mod body;
mod json;
mod pairs;
mod value;

use fathom_http::url::split_origin;
use fathom_import::import_tree::{ImportText, ImportedRequest};

pub(crate) use self::value::{ComparedValue, Part, Place, Visitor};

/// Fields that say nothing about the user's session: they belong to the program, or the engine writes them.
const IGNORED_HEADERS: [&str; 10] = [
    "date",
    "user-agent",
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "pragma",
    "priority",
    "content-type",
    "upgrade-insecure-requests",
];

/// Visits all values of two requests; returns what only one of them has.
pub(crate) fn compare(request: &mut ImportedRequest, other: &ImportedRequest, visit: &mut Visitor<'_>) -> Vec<String> {
    let mut alone = Vec::new();
    compare_url(request, other, visit, &mut alone);
    compare_headers(request, other, visit, &mut alone);
    body::compare(request, other, visit, &mut alone);
    alone
}

fn compare_url(
    request: &mut ImportedRequest,
    other: &ImportedRequest,
    visit: &mut Visitor<'_>,
    alone: &mut Vec<String>,
) {
    let (Some(one), Some(two)) = (request.url.as_literal(), other.url.as_literal()) else { return };
    let (Some((origin, one)), Some((_, two))) = (split_origin(one), split_origin(two)) else { return };
    let (path_one, query_one) = one.split_once('?').unwrap_or((one, ""));
    let (path_two, query_two) = two.split_once('?').unwrap_or((two, ""));
    // A value cannot have the slash, which ends the host.
    let relative = |path: &'_ str| path.strip_prefix('/').unwrap_or(path).to_owned();
    let (path_one, path_two) = (relative(path_one), relative(path_two));
    let mut url = ImportText::literal(format!("{origin}/"));
    let place = Place { part: Part::Path, name: String::new() };
    let path = ComparedValue { place, one: &path_one, two: &path_two, before: "/", is_raw: true };
    url.append(visit(&path).unwrap_or_else(|| path_one.as_str().into()));
    if one.contains('?') {
        url.push_str("?");
        url.append(pairs::compare((query_one, query_two), Part::Query, visit, alone));
    }
    request.url = url;
}

fn compare_headers(
    request: &mut ImportedRequest,
    other: &ImportedRequest,
    visit: &mut Visitor<'_>,
    alone: &mut Vec<String>,
) {
    let is_compared = |name: &str| {
        let name = name.to_ascii_lowercase();
        !IGNORED_HEADERS.contains(&name.as_str()) && !name.starts_with("sec-")
    };
    for (name, value) in request.headers.iter_mut().filter(|(name, _)| is_compared(name)) {
        let (Some(one), Some(two)) = (value.as_literal(), other.header(name).map(ImportText::as_literal)) else {
            alone.push(format!("the header {name} is only in the first recording"));
            continue;
        };
        let place = Place { part: Part::Header, name: name.clone() };
        let compared = ComparedValue { place, one, two: two.unwrap_or_default(), before: "", is_raw: true };
        if let Some(text) = visit(&compared) {
            *value = text;
        }
    }
    for (name, _) in other.headers.iter().filter(|(name, _)| is_compared(name) && request.header(name).is_none()) {
        alone.push(format!("the header {name} is only in the second recording"));
    }
}
