//! Values in JSON bodies: a path of names and indices is followed without building the document.
//!
//! Any other path of RFC 9535 uses the whole document.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json_path::JsonPath;

/// The most visits of values in a body: the target chooses the body, and a path may visit a value many times.
pub(super) const VISITS_MAX: u64 = 1_000_000;
/// The most bytes written for the values of one body, which may be nested.
const WRITTEN_MAX: usize = 64 << 20;

/// The location of values in a document.
#[derive(Debug, Clone)]
pub struct JsonPointer(PathKind);

#[derive(Debug, Clone)]
enum PathKind {
    /// Names and indices, one level each.
    Simple(Vec<PathStep>),
    /// Any path of RFC 9535; the first selected node is the value.
    Query(Box<JsonPathQuery>),
}

/// A path of RFC 9535, with the numbers that determine how often it may visit a value.
#[derive(Debug, Clone)]
struct JsonPathQuery {
    path: JsonPath,
    /// The number of its `..` segments, each of which visits everything below.
    n_descents: u64,
    /// The number of ways in which its lists of selectors lead to the same value.
    n_ways: u64,
    /// How often its filters begin at the root again.
    n_roots: u32,
}

impl JsonPathQuery {
    fn parse(text: &str) -> Result<Self, String> {
        let path = JsonPath::parse(text).map_err(|error| error.to_string())?;
        let mut query = Self { path, n_descents: 0, n_ways: 1, n_roots: 0 };
        let (mut quote, mut before, mut n_selectors) = (None, ' ', 1_u64);
        let mut chars = text.chars().skip(1);
        while let Some(char) = chars.next() {
            match (quote, char) {
                (Some(_), '\\') => drop(chars.next()),
                (Some(open), _) if open == char => quote = None,
                (None, '\'' | '"') => quote = Some(char),
                (None, '.') if before == '.' => query.n_descents += 1,
                (None, ',') => n_selectors += 1,
                (None, ']') => query.n_ways = query.n_ways.saturating_mul(std::mem::replace(&mut n_selectors, 1)),
                (None, '$') => query.n_roots += 1,
                _ => {}
            }
            before = char;
        }
        Ok(query)
    }

    /// Parses the document, if the path does not visit it too often.
    fn document(&self, body: &[u8]) -> Result<Value, JsonReadError> {
        let document: Value = serde_json::from_slice(body).map_err(|_| JsonReadError::NotJson)?;
        let mut n_left = VISITS_MAX;
        self.visit(&document, 0, &mut n_left).ok_or(JsonReadError::TooMuch)?;
        let visits = VISITS_MAX - n_left;
        let again = visits.saturating_pow(self.n_roots + 1);
        if again > VISITS_MAX { Err(JsonReadError::TooMuch) } else { Ok(document) }
    }

    /// Subtracts the visits of a value and everything below from the budget; `None` if it is exceeded.
    fn visit(&self, value: &Value, depth: u64, left: &mut u64) -> Option<()> {
        // Each further descent may begin at any value above: combinations with repetition.
        let further = self.n_descents.saturating_sub(1);
        let choices = (1..=further).fold(1_u64, |choices, n| choices.saturating_mul(depth + n) / n);
        *left = left.checked_sub(choices.saturating_mul(self.n_ways))?;
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| self.visit(value, depth + 1, left)),
            Value::Object(fields) => fields.values().try_for_each(|value| self.visit(value, depth + 1, left)),
            _ => Some(()),
        }
    }
}

/// One level of a plain path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Name(String),
    Index(usize),
}

impl JsonPointer {
    /// Parses `.a.b[0]`, `a.b`, `$.a['b']` and every path of RFC 9535.
    ///
    /// # Errors
    /// The path violates the grammar.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.trim();
        let query = match rest.chars().next() {
            Some('$') => rest.to_owned(),
            Some('.' | '[') => format!("${rest}"),
            _ => format!("$.{rest}"),
        };
        if let Some(steps) = plain(&query[1..]) {
            return Ok(Self(PathKind::Simple(steps)));
        }
        JsonPathQuery::parse(&query).map(|query| Self(PathKind::Query(Box::new(query))))
    }

    /// Writes the value to `text`: a string without quotes, everything else as JSON. Returns whether there was one.
    ///
    /// The text after the value is not examined.
    ///
    /// # Errors
    /// The body up to there is not JSON.
    pub fn find(&self, body: &[u8], text: &mut Vec<u8>) -> Result<bool, JsonReadError> {
        text.clear();
        match &self.0 {
            PathKind::Simple(steps) => {
                let mut found = false;
                let mut deserializer = serde_json::Deserializer::from_slice(body);
                match (PathVisitor { steps, text, found: &mut found }).deserialize(&mut deserializer) {
                    Err(_) if !found => Err(JsonReadError::NotJson),
                    _ => Ok(found),
                }
            }
            PathKind::Query(path) => {
                let document = path.document(body)?;
                let Some(value) = path.path.query(&document).first() else { return Ok(false) };
                write(value, text);
                Ok(true)
            }
        }
    }
}

impl JsonPointer {
    /// Parses a path that may select several values.
    ///
    /// # Errors
    /// The path violates the grammar.
    pub fn parse_query(text: &str) -> Result<Self, String> {
        let query = match Self::parse(text)?.0 {
            PathKind::Simple(steps) => steps.iter().fold("$".to_owned(), |query, step| match step {
                PathStep::Name(name) => format!("{query}['{name}']"),
                PathStep::Index(place) => format!("{query}[{place}]"),
            }),
            query @ PathKind::Query(_) => return Ok(Self(query)),
        };
        JsonPathQuery::parse(&query).map(|query| Self(PathKind::Query(Box::new(query))))
    }

    /// All values, each as it is written.
    ///
    /// # Errors
    /// The body is not JSON.
    pub fn find_all(&self, body: &[u8]) -> Result<Vec<Vec<u8>>, JsonReadError> {
        let mut one = Vec::new();
        let PathKind::Query(path) = &self.0 else {
            return Ok(if self.find(body, &mut one)? { vec![one] } else { Vec::new() });
        };
        let document = path.document(body)?;
        let mut n_left = WRITTEN_MAX;
        let mut written = |value: &Value| {
            let mut text = Vec::new();
            write(value, &mut text);
            n_left = n_left.checked_sub(text.len()).ok_or(JsonReadError::TooMuch)?;
            Ok(text)
        };
        path.path.query(&document).iter().map(|value| written(value)).collect()
    }
}

/// Why a body cannot be examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonReadError {
    /// It is not JSON, up to the place of the value.
    NotJson,
    /// The path would visit it too often.
    TooMuch,
}

/// The levels of a path without wildcards, slices and filters.
fn plain(mut rest: &str) -> Option<Vec<PathStep>> {
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, after) = inner.split_once(']')?;
            let quoted = |quote: char| inside.strip_prefix(quote).and_then(|inside| inside.strip_suffix(quote));
            steps.push(match quoted('\'').or_else(|| quoted('"')) {
                Some(name) if !name.contains(['\\', '\'', '"']) => PathStep::Name(name.to_owned()),
                Some(_) => return None,
                None => PathStep::Index(inside.parse().ok()?),
            });
            rest = after;
        } else {
            let name = rest.strip_prefix('.')?;
            let end = name.find(['.', '[']).unwrap_or(name.len());
            let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            if end == 0 || !name[..end].chars().all(is_name) {
                return None;
            }
            steps.push(PathStep::Name(name[..end].to_owned()));
            rest = &name[end..];
        }
    }
    Some(steps)
}

fn write(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::String(string) => text.extend_from_slice(string.as_bytes()),
        // Writing JSON to memory cannot fail.
        other => drop(serde_json::to_writer(text, other)),
    }
}

/// Follows a path while the body is parsed.
struct PathVisitor<'a> {
    steps: &'a [PathStep],
    text: &'a mut Vec<u8>,
    found: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for PathVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.steps.first() {
            None => deserializer.deserialize_any(ValueWriter { text: self.text, found: self.found }),
            Some(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for PathVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some(PathStep::Name(wanted)) = self.steps.first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while let Some(is_wanted) = map.next_key_seed(KeyMatcher(wanted))? {
            if is_wanted {
                let walk = PathVisitor { steps: &self.steps[1..], text: &mut *self.text, found: &mut *self.found };
                map.next_value_seed(walk)?;
                if *self.found {
                    return Ok(());
                }
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let wanted = match self.steps.first() {
            Some(PathStep::Index(place)) => *place,
            _ => usize::MAX,
        };
        for _ in 0..wanted {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        let walk = PathVisitor { steps: &self.steps[1..], text: self.text, found: &mut *self.found };
        let is_there = seq.next_element_seed(walk)?.is_some();
        // A list is left before its end only after the value was found.
        while is_there && !*self.found && seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Compares a key with the wanted one, without copying it.
struct KeyMatcher<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for KeyMatcher<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyMatcher<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// Writes the value at the end of a path.
struct ValueWriter<'a> {
    text: &'a mut Vec<u8>,
    found: &'a mut bool,
}

impl ValueWriter<'_> {
    fn take(self, value: impl fmt::Display) {
        use std::io::Write as _;
        // Writing to memory cannot fail.
        drop(write!(self.text, "{value}"));
        *self.found = true;
    }
}

impl<'de> Visitor<'de> for ValueWriter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.text.extend_from_slice(text.as_bytes());
        *self.found = true;
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        write(&Value::from(value), self.text);
        *self.found = true;
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.take("null");
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let object: serde_json::Map<String, Value> =
            serde::Deserialize::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
        write(&Value::Object(object), self.text);
        *self.found = true;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        let array: Vec<Value> = serde::Deserialize::deserialize(serde::de::value::SeqAccessDeserializer::new(seq))?;
        write(&Value::Array(array), self.text);
        *self.found = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"skip":[{"token":1}, {"a":{}}], "token":"a\"b", "n":-3, "f":1.5, "ok":true, "none":null,
        "list":[{"id":7},{"id":"x"}], "with space":{"deep":[[1,[2,{"k":"v"}]]]}}"#;

    fn find(path: &str, body: &str) -> Result<Option<String>, JsonReadError> {
        let mut text = b"of before".to_vec();
        let found = JsonPointer::parse(path).unwrap().find(body.as_bytes(), &mut text)?;
        Ok(found.then(|| String::from_utf8(text).unwrap()))
    }

    fn is_plain(path: &str) -> bool {
        matches!(JsonPointer::parse(path), Ok(JsonPointer(PathKind::Simple(_))))
    }

    #[test]
    fn plain_paths_are_walked_and_others_are_queried_with_the_same_result() {
        let cases = [
            (".token", Some("a\"b")),
            ("token", Some("a\"b")),
            ("$.n", Some("-3")),
            ("$['f']", Some("1.5")),
            (".ok", Some("true")),
            (".none", Some("null")),
            (".list[1].id", Some("x")),
            (".list[0]", Some(r#"{"id":7}"#)),
            (".skip[1]", Some(r#"{"a":{}}"#)),
            ("$[\"with space\"].deep[0][1]", Some(r#"[2,{"k":"v"}]"#)),
            (".list[2].id", None),
            (".list[0].nothing", None),
            (".nothing", None),
            (".token.deeper", None),
            (".n[0]", None),
            (".list.id", None),
        ];
        for (path, expected) in cases {
            assert!(is_plain(path), "{path}");
            assert_eq!(find(path, BODY), Ok(expected.map(str::to_owned)), "{path}");
            let text = path.trim_start_matches('$');
            let text = if text.starts_with(['.', '[']) { text.to_owned() } else { format!(".{text}") };
            let query = JsonPointer(PathKind::Query(Box::new(JsonPathQuery::parse(&format!("${text}")).unwrap())));
            let mut queried = Vec::new();
            let found = query.find(BODY.as_bytes(), &mut queried).unwrap();
            assert_eq!(found.then(|| String::from_utf8(queried).unwrap()).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn filters_and_wildcards_are_json_path() {
        for (path, expected) in
            [("$.list[?@.id == 'x'].id", Some("x")), ("$..k", Some("v")), ("$.list[-1].id", Some("x"))]
        {
            assert!(!is_plain(path), "{path}");
            assert_eq!(find(path, BODY), Ok(expected.map(str::to_owned)), "{path}");
        }
        assert!(JsonPointer::parse("$.list[").is_err());
        assert!(JsonPointer::parse(".a b").is_err());
    }

    #[test]
    fn what_is_no_json_is_told_and_what_lies_behind_the_value_does_not_matter() {
        assert_eq!(find(".a", "<html>"), Err(JsonReadError::NotJson));
        assert_eq!(find("$..a", "<html>"), Err(JsonReadError::NotJson));
        assert_eq!(find(".a", ""), Err(JsonReadError::NotJson));
        assert_eq!(find(".a", r#"{"a":1, "b" broken"#), Ok(Some("1".to_owned())));
        assert_eq!(find(".b", r#"{"a":1, "b" broken"#), Err(JsonReadError::NotJson));
        assert_eq!(find("$", "[1, 2]"), Ok(Some("[1,2]".to_owned())));
    }

    #[test]
    fn a_path_that_goes_through_a_body_too_often_is_not_followed() {
        let nested = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        assert_eq!(find("$..a..a..a..a..a", &nested(100)), Err(JsonReadError::TooMuch));
        assert_eq!(find("$..a..a..a..a..a", &nested(6)), Ok(Some(nested(1))));
        assert_eq!(find("$..a", &nested(100)), Ok(Some(nested(99))));
        let many = format!("[{}1]", "1,".repeat(100_000));
        assert_eq!(find("$[?$[0] == 1]", &many), Err(JsonReadError::TooMuch));
        assert_eq!(find("$[*,*,*,*,*][*,*,*,*,*]", &many), Err(JsonReadError::TooMuch));
        assert_eq!(find("$[?@ == 1]", &many), Ok(Some("1".to_owned())));
        assert_eq!(find("$['..', ',,,,']", r#"{"..":"quoted"}"#), Ok(Some("quoted".to_owned())));
    }
}
