//! Assertions and extractors: the requirements for an answer, and the values to take from it.

use fathom_model::units::Nanos;
use regex::Regex;
use serde_json_path::JsonPath;

use super::{
    super::import_tree::{
        AnswerField, ExtractSource, Extraction, ImportText, ImportedExpect, MatchIndex, Negation, TextTest,
    },
    element::Element,
};

type ExpectsResult = Result<Vec<ImportedExpect>, String>;

/// The comparison of a response assertion, as bits of a number.
#[derive(Debug, Clone, Copy)]
struct AssertionBits(u32);

impl AssertionBits {
    const MATCH: u32 = 1;
    const NOT: u32 = 1 << 2;
    const EQUALS: u32 = 1 << 3;
    const SUBSTRING: u32 = 1 << 4;
    const OR: u32 = 1 << 5;

    fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

pub(super) fn response(element: &Element, text: &mut dyn FnMut(&str) -> ImportText) -> ExpectsResult {
    // JMeter once misspelled this name, and has kept it.
    let texts = element.properties.members("Asserion.test_strings");
    let texts: Vec<&str> = texts.iter().map(|member| member.name.as_str()).collect();
    let kind = AssertionBits(element.text("Assertion.test_type").and_then(|bits| bits.parse().ok()).unwrap_or(2));
    let field = element.text("Assertion.test_field").unwrap_or("Assertion.response_data");
    let mut expects = match field {
        _ if texts.is_empty() => Vec::new(),
        "Assertion.response_code" => vec![statuses(&texts, kind)?],
        "Assertion.response_data" | "Assertion.response_data_as_document" => {
            pieces(AnswerField::Body, &texts, kind, text)?
        }
        "Assertion.response_headers" => pieces(AnswerField::Headers, &texts, kind, text)?,
        other => return Err(format!("it looks at {}", other.trim_start_matches("Assertion."))),
    };
    let has_status =
        expects.iter().any(|expect| matches!(expect, ImportedExpect::Status(_) | ImportedExpect::StatusClass(_)));
    if element.is_on("Assertion.assume_success") && !has_status {
        expects.push(ImportedExpect::StatusClass(vec![1, 2, 3, 4, 5]));
    }
    Ok(expects)
}

/// Codes as texts and as the simplest patterns: `200`, `2..`, `2\d\d`, `200|201`.
fn statuses(texts: &[&str], kind: AssertionBits) -> Result<ImportedExpect, String> {
    let unknown = || format!("it compares the code with {}", texts.join(", "));
    if kind.has(AssertionBits::NOT) || (texts.len() > 1 && !kind.has(AssertionBits::OR)) {
        return Err(unknown());
    }
    let (mut codes, mut classes) = (Vec::new(), Vec::new());
    for alternative in texts.iter().flat_map(|text| text.split('|')) {
        let plain = alternative.trim_start_matches(['^', '(']).trim_end_matches(['$', ')']);
        if let Ok(code @ 100..=599) = plain.parse::<u16>() {
            codes.push(code);
            continue;
        }
        let class = plain.chars().next().and_then(|digit| digit.to_digit(10)).filter(|digit| (1..=5).contains(digit));
        let rest = plain.get(1..).unwrap_or_default();
        match (class.and_then(|class| u16::try_from(class).ok()), rest) {
            (Some(class), ".." | r"\d\d" | ".*" | "[0-9][0-9]" | r"\d{2}" | ".+") => classes.push(class),
            _ => return Err(unknown()),
        }
    }
    match (codes.is_empty(), classes.is_empty()) {
        (false, true) => Ok(ImportedExpect::Status(codes)),
        (true, false) => Ok(ImportedExpect::StatusClass(classes)),
        _ => Err(unknown()),
    }
}

fn pieces(
    of: AnswerField,
    texts: &[&str],
    kind: AssertionBits,
    text: &mut dyn FnMut(&str) -> ImportText,
) -> ExpectsResult {
    let is_plain = kind.has(AssertionBits::SUBSTRING) || kind.has(AssertionBits::EQUALS);
    if kind.has(AssertionBits::OR) && texts.len() > 1 {
        if kind.has(AssertionBits::EQUALS)
            || kind.has(AssertionBits::NOT)
            || texts.iter().any(|text| text.contains("${"))
        {
            return Err("one of several texts is enough for it".to_owned());
        }
        let patterns: Vec<_> =
            texts.iter().map(|text| if is_plain { regex::escape(text) } else { format!("(?:{text})") }).collect();
        return Ok(vec![ImportedExpect::Piece {
            of,
            test: TextTest::Finds,
            text: ImportText::literal(pattern(&patterns.join("|"))?),
        }]);
    }
    let test = match (
        kind.has(AssertionBits::SUBSTRING),
        kind.has(AssertionBits::EQUALS),
        kind.has(AssertionBits::MATCH),
        kind.has(AssertionBits::NOT),
    ) {
        (true, _, _, false) => TextTest::Contains,
        (true, _, _, true) => TextTest::Lacks,
        (_, true, _, false) => TextTest::Equals,
        (_, true, _, true) => TextTest::Differs,
        (_, _, true, false) => TextTest::Matches,
        (_, _, true, true) => TextTest::DoesNotMatch,
        (_, _, _, false) => TextTest::Finds,
        (_, _, _, true) => TextTest::DoesNotFind,
    };
    let one = |source: &&str| {
        if is_plain {
            return Ok(ImportedExpect::Piece { of, test, text: text(source) });
        }
        Ok(ImportedExpect::Piece { of, test, text: ImportText::literal(pattern(source)?) })
    };
    texts.iter().map(one).collect()
}

/// A regular expression that both sides support.
fn pattern(source: &str) -> Result<String, String> {
    if source.contains("${") {
        return Err(format!("the regular expression {source} has a variable in it"));
    }
    match Regex::new(source) {
        Ok(_) => Ok(source.to_owned()),
        Err(_) => Err(format!("the regular expression {source} is only known to Java")),
    }
}

pub(super) fn duration(element: &Element, _: &mut dyn FnMut(&str) -> ImportText) -> ExpectsResult {
    let told = element.text("DurationAssertion.duration").unwrap_or("0");
    match told.parse::<u64>() {
        Ok(0) => Ok(Vec::new()),
        Ok(millis) => Ok(vec![ImportedExpect::Within(Nanos::from_millis(millis))]),
        Err(_) => Err(format!("its duration is {told}")),
    }
}

pub(super) fn json_path(element: &Element, text: &mut dyn FnMut(&str) -> ImportText) -> ExpectsResult {
    let path = path(element.text("JSON_PATH").unwrap_or_default())?;
    let holds = if element.is_on("INVERT") { Negation::No } else { Negation::Yes };
    if !element.is_on("JSONVALIDATION") {
        return Ok(vec![ImportedExpect::Json { path, equals: None, holds }]);
    }
    let expected = element.text("EXPECTED_VALUE").unwrap_or_default();
    if element.is_on("EXPECT_NULL") {
        return Ok(vec![ImportedExpect::Json { path, equals: Some("null".into()), holds }]);
    }
    // The expected value is a regular expression unless stated otherwise; most are plain text anyway.
    if element.text("ISREGEX") != Some("false") && regex::escape(expected) != expected {
        return Err(format!("it compares with the regular expression {expected}"));
    }
    Ok(vec![ImportedExpect::Json { path, equals: Some(text(expected)), holds }])
}

fn path(source: &str) -> Result<String, String> {
    // A scenario does not accept deeper paths either.
    const BRACKETS_MAX: usize = 8;
    let is_simple = source.matches(['[', '(']).count() <= BRACKETS_MAX && !source.contains(char::is_whitespace);
    match JsonPath::parse(if is_simple { source } else { "" }) {
        Ok(_) => Ok(source.to_owned()),
        Err(_) => Err(format!("the path {source} is not of RFC 9535, or not a simple one")),
    }
}

type TakesResult = Result<Vec<Extraction>, String>;

/// The part of the answer that a text extractor searches.
fn field(element: &Element, property: &str) -> Result<AnswerField, String> {
    if element.text("Sample.scope").is_some_and(|scope| scope != "parent") {
        return Err("it looks at something else than the answer".to_owned());
    }
    match element.text(property).unwrap_or("false") {
        "false" => Ok(AnswerField::Body),
        "true" => Ok(AnswerField::Headers),
        other => Err(format!("it looks at {other}")),
    }
}

/// 0 is random, and a negative number means all.
fn which(told: &str) -> Result<MatchIndex, String> {
    match told.trim().parse::<i64>() {
        Ok(0) => Ok(MatchIndex::Random),
        Ok(nth) => u32::try_from(nth).map(MatchIndex::Nth).map_err(|_| "it keeps all that it finds".to_owned()),
        Err(_) => Err(format!("it keeps number {told}")),
    }
}

pub(super) fn regex(element: &Element, text: &mut dyn FnMut(&str) -> ImportText) -> TakesResult {
    let of = field(element, "RegexExtractor.useHeaders")?;
    let template = element.text("RegexExtractor.template").unwrap_or("$1$");
    let group = template.strip_prefix('$').and_then(|rest| rest.strip_suffix('$')).and_then(|group| group.parse().ok());
    let group: u32 = group.ok_or_else(|| format!("its template {template} is more than one group"))?;
    let source = pattern(element.text("RegexExtractor.regex").unwrap_or_default())?;
    let pattern = only_group(&source, group).ok_or_else(|| format!("{source} has no group {group}"))?;
    Ok(vec![Extraction {
        note: None,
        name: element.text("RegexExtractor.refname").unwrap_or_default().to_owned(),
        from: ExtractSource::Regex { of, pattern },
        which: which(element.text("RegexExtractor.match_number").unwrap_or("1"))?,
        default: default(element, "RegexExtractor", text),
    }])
}

fn default(element: &Element, class: &str, text: &mut dyn FnMut(&str) -> ImportText) -> Option<ImportText> {
    let empty = element.is_on(&format!("{class}.default_empty_value"));
    element.text(&format!("{class}.default")).map(text).or_else(|| empty.then(ImportText::default))
}

/// The expression with only the given capturing group; group 0 is the whole match.
fn only_group(source: &str, group: u32) -> Option<String> {
    let (mut changed, mut n, mut found) = (String::with_capacity(source.len()), 0, group == 0);
    let (mut chars, mut in_class) = (source.chars().peekable(), false);
    while let Some(char) = chars.next() {
        changed.push(char);
        match char {
            '\\' => changed.extend(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class && chars.peek() != Some(&'?') => {
                n += 1;
                found |= n == group;
                if n != group {
                    changed.push_str("?:");
                }
            }
            _ => {}
        }
    }
    (found && Regex::new(&changed).is_ok()).then_some(changed)
}

pub(super) fn boundary(element: &Element, text: &mut dyn FnMut(&str) -> ImportText) -> TakesResult {
    let of = field(element, "BoundaryExtractor.useHeaders")?;
    let mut part = |name: &str| text(element.text(name).unwrap_or_default());
    let (before, after) = (part("BoundaryExtractor.lboundary"), part("BoundaryExtractor.rboundary"));
    if before.as_literal().is_none_or(str::is_empty) || after.as_literal().is_none_or(str::is_empty) {
        return Err("one of its boundaries is empty or has a variable in it".to_owned());
    }
    Ok(vec![Extraction {
        note: None,
        name: element.text("BoundaryExtractor.refname").unwrap_or_default().to_owned(),
        from: ExtractSource::Between { of, before, after },
        which: which(element.text("BoundaryExtractor.match_number").unwrap_or("0"))?,
        default: default(element, "BoundaryExtractor", text),
    }])
}

/// One extractor may have several variables, paths and numbers, separated by semicolons.
pub(super) fn json(element: &Element, text: &mut dyn FnMut(&str) -> ImportText) -> TakesResult {
    let list = |name: &str| -> Vec<&str> { element.text(name).map(|all| all.split(';').collect()).unwrap_or_default() };
    if element.text("Sample.scope").is_some_and(|scope| scope != "all" && scope != "parent") {
        return Err("it looks at something else than the answer".to_owned());
    }
    let (names, paths) = (list("JSONPostProcessor.referenceNames"), list("JSONPostProcessor.jsonPathExprs"));
    let (numbers, defaults) = (list("JSONPostProcessor.match_numbers"), list("JSONPostProcessor.defaultValues"));
    if names.is_empty() || names.len() != paths.len() {
        return Err(format!("it has {} names and {} paths", names.len(), paths.len()));
    }
    let mut takes = Vec::new();
    for (idx, (name, source)) in names.iter().zip(paths).enumerate() {
        takes.push(Extraction {
            note: None,
            name: name.trim().to_owned(),
            from: ExtractSource::Json(path(source.trim())?),
            which: which(numbers.get(idx).filter(|number| !number.is_empty()).unwrap_or(&"0"))?,
            default: defaults.get(idx).map(|default| text(default)),
        });
    }
    Ok(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_group_that_is_asked_for_captures() {
        for (source, group, expected) in [
            ("a(b)c", 1, Some("a(b)c")),
            ("a(b)(c)", 2, Some("a(?:b)(c)")),
            (r"\((a)[(](?:b)(c)", 0, Some(r"\((?:a)[(](?:b)(?:c)")),
            ("a(b)", 2, None),
        ] {
            assert_eq!(only_group(source, group).as_deref(), expected, "{source}");
        }
    }

    #[test]
    fn codes_are_numbers_or_classes() {
        for (texts, bits, expected) in [
            (vec!["200"], 8, Some(ImportedExpect::Status(vec![200]))),
            (vec!["200|201"], 1, Some(ImportedExpect::Status(vec![200, 201]))),
            (vec!["200", "302"], 8 | 32, Some(ImportedExpect::Status(vec![200, 302]))),
            (vec![r"2\d\d"], 1, Some(ImportedExpect::StatusClass(vec![2]))),
            (vec!["500"], 8 | 4, None),
            (vec!["200", "302"], 8, None),
            (vec!["${code}"], 8, None),
        ] {
            assert_eq!(statuses(&texts, AssertionBits(bits)).ok(), expected, "{texts:?}");
        }
    }
}
