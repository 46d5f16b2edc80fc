//! Scenarios as people meet them: examples, and what is told of mistakes.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use fathom_app::scenario;

fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn plans() -> Vec<PathBuf> {
    let plans = fs::read_dir(tree("plans")).unwrap().map(|entry| entry.unwrap().path());
    plans.filter(|path| path.extension().is_some_and(|extension| extension == "scenario")).collect()
}

#[test]
fn example_plans_are_written_as_the_formatter_writes() {
    let plans = plans();
    assert!(plans.len() >= 3, "{plans:?}");
    for path in plans {
        let (name, text) = (path.display().to_string(), fs::read_to_string(&path).unwrap());
        let formatted =
            scenario::format(&text).unwrap_or_else(|faults| panic!("{}", scenario::render(&faults, &name, &text)));
        assert_eq!(formatted, text, "{name}");
    }
}

/// A text and what is to be told of it.
struct Case<'a> {
    name: &'a str,
    text: &'a str,
    expected: &'a str,
}

/// `=== name`, the text, `---`, what is told of it.
fn cases(file: &str) -> Vec<Case<'_>> {
    let cases = file.split("=== ").skip(1).map(|case| {
        let (name, rest) = case.split_once('\n').unwrap();
        let (text, expected) = rest.split_once("---\n").unwrap();
        Case { name, text, expected: expected.trim_end() }
    });
    cases.collect()
}

/// What is told of a text: a line for each mistake, with its place, and a line for what to do about it.
fn told(text: &str) -> String {
    let found = match scenario::parse(text) {
        Ok(parsed) => scenario::check(&parsed, &tree("crates/app/tests/scenario")),
        Err(faults) => faults,
    };
    let lines = found.iter().map(|diagnostic| {
        let (line, column) = diagnostic.place(text);
        let severity = format!("{:?}", diagnostic.severity).to_lowercase();
        let label = if diagnostic.label.is_empty() { String::new() } else { format!(" ({})", diagnostic.label) };
        let folder = tree("crates/app/tests/scenario").display().to_string();
        let fix =
            diagnostic.fix.as_ref().map_or(String::new(), |fix| format!("\n     {}", fix.replace(&folder, "FOLDER")));
        format!("{line}:{column} {severity}: {}{label}{fix}", diagnostic.message)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_mistake_is_told_with_its_place_and_its_fix() {
    let file = fs::read_to_string(tree("crates/app/tests/scenario/mistakes.txt")).unwrap();
    let cases = cases(&file);
    assert!(cases.len() >= 30, "{}", cases.len());
    // What is told now stands in one file, to be compared and, where it is better, to be kept.
    let now = cases.iter().map(|case| format!("=== {}\n{}---\n{}\n", case.name, case.text, told(case.text)));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes.txt");
    fs::write(&path, now.collect::<Vec<_>>().join("\n")).unwrap();
    for case in &cases {
        assert_eq!(told(case.text), case.expected, "{}; all of it is in {}", case.name, path.display());
        assert!(!case.expected.is_empty(), "{} is no mistake", case.name);
    }
}

#[test]
fn whatever_can_be_said_is_written_in_one_way() {
    let text = fs::read_to_string(tree("fuzz/corpus/scenario/everything")).unwrap();
    let formatted =
        scenario::format(&text).unwrap_or_else(|faults| panic!("{}", scenario::render(&faults, "everything", &text)));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("formatted.scenario");
    fs::write(&path, &formatted).unwrap();
    let expected = fs::read_to_string(tree("crates/app/tests/scenario/formatted.scenario")).unwrap();
    assert!(formatted == expected, "compare {} with tests/scenario/formatted.scenario", path.display());
}
