//! Where values are in JSON.

use serde_json::Value;

/// Deeper values are not looked at; the parser of JSON stops at the same depth.
const DEPTH_MAX: usize = 128;

/// The way from the root to a value.
pub(crate) type JsonPlace = Vec<PathSegment>;

/// One level of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathSegment {
    Member(String),
    /// The index, and the length of the list.
    Element(usize, usize),
}

/// Passes each string and each number to `visit`, with its place.
pub(crate) fn each_value(value: &Value, place: &mut JsonPlace, visit: &mut dyn FnMut(&str, &JsonPlace)) {
    match value {
        _ if place.len() > DEPTH_MAX => {}
        Value::Object(members) => {
            for (name, member) in members {
                place.push(PathSegment::Member(name.clone()));
                each_value(member, place, visit);
                place.pop();
            }
        }
        Value::Array(elements) => {
            for (idx, element) in elements.iter().enumerate() {
                place.push(PathSegment::Element(idx, elements.len()));
                each_value(element, place, visit);
                place.pop();
            }
        }
        Value::String(text) => visit(text, place),
        Value::Number(number) => visit(&number.to_string(), place),
        Value::Bool(_) | Value::Null => {}
    }
}
