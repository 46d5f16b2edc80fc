//! Texts of JMeter: variables and functions in `${…}`.

use super::super::{
    encode,
    import_tree::{ImportPiece, ImportText},
};

/// Remarks about a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TextRemarks(pub(super) Vec<String>);

/// The deepest nesting of expressions; nobody reads more.
const DEPTH_MAX: usize = 20;

/// Reads a text; unsupported parts stay unchanged, with a remark.
pub(super) fn text(source: &str, remarks: &mut TextRemarks) -> ImportText {
    parse(source, remarks, 0)
}

fn parse(source: &str, remarks: &mut TextRemarks, depth: usize) -> ImportText {
    let mut all = ImportText::default();
    let mut rest = source;
    while let Some(begin) = rest.find("${") {
        let (before, from) = rest.split_at(begin);
        let Some(len) = end_of(&from[2..]) else { break };
        let (inner, behind) = (&from[2..2 + len], &from[2 + len + 1..]);
        if let Some(before) = before.strip_suffix('\\') {
            // It was escaped, and is literal text.
            all.push_str(before);
            all.push_str("${");
            rest = &from[2..];
            continue;
        }
        all.push_str(&unescaped(before));
        let read = if depth < DEPTH_MAX { expression(inner, remarks, depth) } else { None };
        if let Some(read) = read {
            all.append(read);
        } else {
            remarks.0.push(format!("${{{inner}}} is not understood and is left as it is"));
            all.push_str(&from[..=2 + len]);
        }
        rest = behind;
    }
    all.push_str(&unescaped(rest));
    all
}

/// Removes a backslash before a character with a meaning in JMeter; keeps it before any other.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' => plain.push(chars.next_if(|next| "$,\\".contains(*next)).unwrap_or('\\')),
            char => plain.push(char),
        }
    }
    plain
}

/// Nobody reads a longer expression, and the search for its end must not take long.
const LEN_MAX: usize = 10_000;

/// The offset of the closing brace of an expression.
fn end_of(inner: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let bytes = inner.as_bytes();
    for (at, byte) in bytes.iter().enumerate().take(LEN_MAX) {
        match byte {
            b'{' if at > 0 && bytes[at - 1] == b'$' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// A variable, or a function with its arguments.
fn expression(inner: &str, remarks: &mut TextRemarks, depth: usize) -> Option<ImportText> {
    let one = |piece| Some(ImportText(vec![piece]));
    if !inner.starts_with("__") {
        let is_name = !inner.is_empty() && !inner.contains(['$', '{', '(', '\n', ' ']);
        return if is_name { one(ImportPiece::Variable(inner.to_owned())) } else { None };
    }
    let (name, arguments) = match inner.split_once('(') {
        Some((name, arguments)) => (name, arguments.strip_suffix(')')?),
        None => (inner, ""),
    };
    let arguments = split(arguments);
    let argument = |idx: usize| arguments.get(idx).map_or("", |argument| argument.trim());
    match name {
        "__P" | "__property" => {
            // `__property(name, variable, default)`, `__P(name, default)`: without a default the former returns its name, the latter 1.
            let (default, otherwise) = if name == "__P" { (1, "1") } else { (2, argument(0)) };
            let value = arguments.get(default).map_or(otherwise, String::as_str);
            remarks.0.push(format!("the property {} has its value from here: {value}", argument(0)));
            Some(parse(value, remarks, depth + 1))
        }
        "__Random" => {
            kept_in(argument(2), remarks);
            let (from, to) = (argument(0).parse().ok()?, argument(1).parse().ok()?);
            (from <= to).then(|| ImportText(vec![ImportPiece::Random(from, to, 0)]))
        }
        "__RandomString" if argument(1).is_empty() => {
            kept_in(argument(2), remarks);
            one(ImportPiece::Characters(argument(0).parse().ok().filter(|n| *n > 0)?))
        }
        "__time" => {
            kept_in(argument(1), remarks);
            match argument(0) {
                "" => one(ImportPiece::TimeMillis),
                "/1000" => one(ImportPiece::TimeSeconds),
                _ => None,
            }
        }
        "__UUID" => one(ImportPiece::Uuid),
        "__threadNum" => one(ImportPiece::UserNumber),
        "__counter" if argument(0).eq_ignore_ascii_case("true") => {
            remarks.0.push("a counter of a user counts the user's rounds, not its uses".to_owned());
            one(ImportPiece::Round)
        }
        "__counter" => one(ImportPiece::Counter(1, 0)),
        "__urlencode" => Some(encode::form(parse(arguments.first()?, remarks, depth + 1))),
        _ => None,
    }
}

fn kept_in(variable: &str, remarks: &mut TextRemarks) {
    if !variable.is_empty() {
        remarks.0.push(format!("the result of a function is not kept in the variable {variable}"));
    }
}

/// Splits arguments at commas that are neither escaped nor within an expression.
fn split(arguments: &str) -> Vec<String> {
    let (mut all, mut one, mut depth) = (Vec::new(), String::new(), 0_usize);
    if arguments.is_empty() {
        return all;
    }
    let mut chars = arguments.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' if depth == 0 => match chars.next_if(|next| ",$\\".contains(*next)) {
                Some(next) => one.push(next),
                None => one.push('\\'),
            },
            '$' if chars.peek() == Some(&'{') => {
                depth += 1;
                one.push_str("${");
                chars.next();
            }
            '}' if depth > 0 => {
                depth -= 1;
                one.push('}');
            }
            ',' if depth == 0 => all.push(std::mem::take(&mut one)),
            char => one.push(char),
        }
    }
    all.push(one);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_functions_become_pieces() {
        for (source, expected) in [
            ("a${b}c", "a${b}c"),
            ("${__Random(1,10)}", "${random 1..10}"),
            ("${__time}-${__time(/1000,)}", "${time in ms}-${time in s}"),
            ("${__UUID()}/${__threadNum}", "${uuid}/${number of the user}"),
            ("${__P(host,localhost)}:${__property(port,,80)}", "localhost:80"),
            ("${__P(n)}", "1"),
            ("${__P(a,${b})}", "${b}"),
            ("${__counter(FALSE,)}", "${counter from 1}"),
            ("${__RandomString(8,,)}", "${8 characters}"),
            ("${__urlencode(a b${c})}", "a+b${c}"),
            (r"\${a} \, {$} $", "${a} , {$} $"),
            ("${open", "${open"),
        ] {
            let mut remarks = TextRemarks::default();
            assert_eq!(text(source, &mut remarks).to_string(), expected, "{source}: {remarks:?}");
        }
    }

    #[test]
    fn what_is_not_understood_stays_and_is_remarked() {
        let deep = format!("{}x{}", "${__P(a,".repeat(100), ")}".repeat(100));
        for source in
            ["${__groovy(1+1)}", "${__time(yyyy)}", "${__Random(9,1)}", "${__Random(-3,1)}", "${a b}", "${}", &deep]
        {
            let mut remarks = TextRemarks::default();
            text(source, &mut remarks);
            assert!(remarks.0.iter().any(|remark| remark.contains("not understood")), "{source:.40}");
        }
    }
}
