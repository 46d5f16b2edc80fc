//! Conditions of If and While controllers, as far as they only compare texts and numbers.
//!
//! JMeter evaluates them in one of several languages; the supported subset has the same meaning in all of them.

use super::{
    super::import_tree::{Conjunction, ImportPiece, ImportText, ImportedComparison, ImportedCondition, Relation},
    function::{TextRemarks, text},
};

/// Reads a condition; `None` if it is more than comparisons.
pub(super) fn read(source: &str, remarks: &mut TextRemarks) -> Option<ImportedCondition> {
    let inner = unwrapped(source.trim());
    let joined = if inner.contains("||") { Conjunction::Or } else { Conjunction::And };
    let separator = if joined == Conjunction::Or { "||" } else { "&&" };
    let other = if joined == Conjunction::Or { "&&" } else { "||" };
    if inner.is_empty() || inner.contains(other) {
        return None;
    }
    let tests = inner.split(separator).map(|test| comparison(test.trim(), remarks)).collect::<Option<Vec<_>>>()?;
    Some(ImportedCondition { joined, tests })
}

/// Removes the function that evaluates an expression: `${__jexl3(…,)}`, `${__groovy(…)}`, `${__javaScript(…)}`.
fn unwrapped(source: &str) -> String {
    for function in ["${__jexl3(", "${__jexl2(", "${__groovy(", "${__javaScript("] {
        if let Some(inner) = source.strip_prefix(function).and_then(|rest| rest.strip_suffix(")}")) {
            // A second argument is a variable for the result, which is not needed here.
            let inner = inner.trim_end().strip_suffix(',').unwrap_or(inner);
            return inner.replace("\\,", ",").trim().to_owned();
        }
    }
    source.to_owned()
}

/// The longer operators come first, because one may be the beginning of another.
const RELATIONS: &[(&str, Relation)] = &[
    ("!=", Relation::Unequal),
    ("==", Relation::Equal),
    ("<=", Relation::AtMost),
    (">=", Relation::AtLeast),
    ("<", Relation::Less),
    (">", Relation::Greater),
];

fn comparison(source: &str, remarks: &mut TextRemarks) -> Option<ImportedComparison> {
    let source = without_parentheses(source);
    if let Some(test) = equals(source, remarks) {
        return Some(test);
    }
    // The first operator in the text counts, and at one position the longest.
    let found = RELATIONS.iter().filter_map(|(sign, relation)| source.find(sign).map(|at| (at, *sign, *relation)));
    let Some((at, sign, relation)) = found.min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len()))) else {
        // A variable alone is compared with `true`.
        let left = text(source, remarks);
        let alone = matches!(left.0.as_slice(), [ImportPiece::Variable(name)] if !name.starts_with("JMeterThread."));
        return alone.then(|| ImportedComparison { left, relation: Relation::Equal, right: "true".into() });
    };
    let (left, right) = (operand(&source[..at], remarks)?, operand(&source[at + sign.len()..], remarks)?);
    Some(ImportedComparison { left, relation, right })
}

fn without_parentheses(source: &str) -> &str {
    match source.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) if !inner.contains(['(', ')']) => inner.trim(),
        _ => source,
    }
}

/// `"a".equals("b")`, optionally with `!` before it.
fn equals(source: &str, remarks: &mut TextRemarks) -> Option<ImportedComparison> {
    let (relation, rest) = match source.strip_prefix('!') {
        Some(rest) => (Relation::Unequal, rest),
        None => (Relation::Equal, source),
    };
    let (left, right) = rest.strip_suffix(')')?.split_once(".equals(")?;
    Some(ImportedComparison { left: operand(left, remarks)?, relation, right: operand(right, remarks)? })
}

/// A quoted text, a number, a variable, or `vars.get("name")`.
fn operand(source: &str, remarks: &mut TextRemarks) -> Option<ImportText> {
    let source = source.trim();
    if let Some(name) = source.strip_prefix("vars.get(").and_then(|rest| rest.strip_suffix(')')) {
        let name = quoted(name.trim())?;
        return (!name.contains("${")).then(|| ImportText(vec![ImportPiece::Variable(name.to_owned())]));
    }
    if let Some(inner) = quoted(source) {
        let read = text(inner, remarks);
        return is_plain(&read).then_some(read);
    }
    if source.parse::<f64>().is_ok() {
        return Some(ImportText::literal(source));
    }
    let read = text(source, remarks);
    (matches!(read.0.as_slice(), [piece] if !matches!(piece, ImportPiece::Literal(_))) && is_plain(&read))
        .then_some(read)
}

/// Whether it contains no internal variables of JMeter.
fn is_plain(text: &ImportText) -> bool {
    text.0.iter().all(|piece| match piece {
        ImportPiece::Variable(name) => !name.starts_with("JMeterThread."),
        ImportPiece::Literal(literal) => !literal.contains("${"),
        _ => true,
    })
}

fn quoted(source: &str) -> Option<&str> {
    ['"', '\''].into_iter().find_map(|quote| {
        let inner = source.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inner.contains(quote)).then_some(inner)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str) -> Option<String> {
        let condition = read(source, &mut TextRemarks::default())?;
        let tests = condition.tests.iter().map(|test| format!("{} {:?} {}", test.left, test.relation, test.right));
        Some(tests.collect::<Vec<_>>().join(if condition.joined == Conjunction::Or { " or " } else { " and " }))
    }

    #[test]
    fn comparisons_are_understood_in_every_language() {
        for (source, expected) in [
            (r#""${a}" == "b""#, "${a} Equal b"),
            (r#"${__jexl3("${a}" != "b",)}"#, "${a} Unequal b"),
            (r#"${__groovy("${a}" == 'b' && ${n} >= 3)}"#, "${a} Equal b and ${n} AtLeast 3"),
            (r#"${__groovy(vars.get("a") == "b")}"#, "${a} Equal b"),
            (r#"("${a}" == "b") || ${n}<10"#, "${a} Equal b or ${n} Less 10"),
            (r#"!"${a}".equals("b")"#, "${a} Unequal b"),
            ("${flag}", "${flag} Equal true"),
        ] {
            assert_eq!(shown(source).as_deref(), Some(expected), "{source}");
        }
    }

    #[test]
    fn anything_else_is_not_guessed() {
        for source in [
            "",
            "${JMeterThread.last_sample_ok}",
            r#""${a}" == "b" && "${c}" == "d" || ${n} < 10"#,
            "${__groovy(vars.get('a').toInteger() > 3)}",
            r#""${a}".contains("b")"#,
            "${__jexl3(${a} + 1 == 3)}",
            "true",
        ] {
            assert_eq!(shown(source), None, "{source}");
        }
    }
}
