//! Scenarios from the user's point of view: examples, and the diagnostics of mistakes.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fathom_scenario as scenario;

fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path)
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

/// A text with its expected diagnostics.
struct Case<'a> {
    name: &'a str,
    text: &'a str,
    expected: &'a str,
}

/// `=== name`, the text, `---`, the expected diagnostics.
fn cases(file: &str) -> Vec<Case<'_>> {
    let cases = file.split("=== ").skip(1).map(|case| {
        let (name, rest) = case.split_once('\n').unwrap();
        let (text, expected) = rest.split_once("---\n").unwrap();
        Case { name, text, expected: expected.trim_end() }
    });
    cases.collect()
}

/// The diagnostics of a text: for each mistake a line with its place, and a line with the fix.
fn told(text: &str) -> String {
    let found = match scenario::parse(text) {
        Ok(parsed) => scenario::check(&parsed, &tree("crates/measure/scenario/tests/scenario")),
        Err(faults) => faults,
    };
    let lines = found.iter().map(|diagnostic| {
        let (line, column) = diagnostic.line_and_column(text);
        let severity = format!("{:?}", diagnostic.severity).to_lowercase();
        let label = if diagnostic.label.is_empty() { String::new() } else { format!(" ({})", diagnostic.label) };
        let folder = tree("crates/measure/scenario/tests/scenario").display().to_string();
        let fix =
            diagnostic.fix.as_ref().map_or(String::new(), |fix| format!("\n     {}", fix.replace(&folder, "FOLDER")));
        format!("{line}:{column} {severity}: {}{label}{fix}", diagnostic.message)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_mistake_is_told_with_its_place_and_its_fix() {
    let file = fs::read_to_string(tree("crates/measure/scenario/tests/scenario/mistakes.txt")).unwrap();
    let cases = cases(&file);
    assert!(cases.len() >= 30, "{}", cases.len());
    // The present diagnostics are written to one file, to be compared and, if better, kept.
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
    let expected = fs::read_to_string(tree("crates/measure/scenario/tests/scenario/formatted.scenario")).unwrap();
    assert!(formatted == expected, "compare {} with tests/scenario/formatted.scenario", path.display());
}

/// Texts half as long as the longest scenario, each made of one repeated piece.
#[test]
fn a_comment_stays_with_what_it_precedes_or_with_the_block_that_it_ends() {
    let text = "\
# of the file
user a 50%
  # of the first step
  step one
    # of the request
    GET /
    form
      a = b
      # at the end of the form
    # at the end of the step
  # at the end of the transaction's neighbours
  transaction t
    step two
      GET /
    # at the end of the transaction
  # at the end of the user

# of the second user
user b 50%
  step three
    GET /
    # at the end of the last step
  # at the end of the last user
# at the end of the file
";
    assert_eq!(scenario::format(text).unwrap(), text);
    // However deep blocks are indented, a comment keeps its place among them.
    let wide: String = text.lines().fold(String::new(), |all, line| {
        let indent = line.len() - line.trim_start().len();
        all + &" ".repeat(indent) + line + "\n"
    });
    assert_eq!(scenario::format(&wide).unwrap(), text);
    // Anything deeper than a line belongs to it, by any number of blanks.
    let between = "user a\n    step one\n        GET /\n      # of the step\n  # of the user\n";
    let formatted = "user a\n  step one\n    GET /\n    # of the step\n  # of the user\n";
    assert_eq!(scenario::format(between).unwrap(), formatted);
}

#[test]
fn the_longest_texts_are_read_in_time_that_grows_with_their_length_only() {
    const LENGTH: usize = 1 << 19;
    let head = "base http://a.test\nstep home\n  GET /\n";
    let pieces = [
        ("step a\n  GET /\n", "many steps of one name"),
        ("x\n", "many unknown words"),
        ("part a\n", "many parts"),
        ("do a\n", "many parts that are not there"),
        ("X: ${a}\n", "many header fields with holes"),
        ("  X: ${abc}\n", "many unknown variables"),
        ("  take a = json $.a\n", "many takes"),
        ("  take a = regex /a(b)/\n", "many regular expressions"),
        ("data a from b\n", "many data sets"),
        ("promise a p99 < 1s\n", "many promises"),
        ("promise p99 < 1s, ", "one long promise"),
        ("  expect json $.a == \"${b}\"\n", "many tests"),
        ("if \"${a}\" == 1\n", "many empty choices"),
        ("else if \"${a}\" == 1\n", "many other ways"),
        ("${", "many holes within each other"),
        ("[", "many brackets"),
        ("  json [[[[[\n", "many texts that are no JSON"),
        ("# x\n", "many comments"),
        ("\n", "many empty lines"),
        (" ", "many blanks"),
        ("\t", "many tabs"),
        ("user a 1%\n", "many users"),
        ("let a = \"${b}\"\n", "many variables"),
        ("\u{1}", "many control characters"),
        ("ä", "one long word"),
        ("$", "many dollars"),
        ("  body\n   x\n", "many bodies"),
    ];
    for (piece, name) in pieces {
        let text = format!("{head}{}", piece.repeat((LENGTH - head.len()) / piece.len()));
        let begin = Instant::now();
        let found = match scenario::parse(&text) {
            Ok(parsed) => {
                scenario::format(&text).unwrap();
                scenario::check(&parsed, Path::new("/proc/self/nowhere"))
            }
            Err(faults) => faults,
        };
        assert_eq!(scenario::render(&found, "a.scenario", &text).is_empty(), found.is_empty());
        // Quadratic growth would take minutes.
        assert!(begin.elapsed() < Duration::from_secs(20), "{name}: {:?}", begin.elapsed());
    }
}

#[test]
fn the_examples_of_the_guide_are_scenarios_or_lines_of_them() {
    let guide = fs::read_to_string(tree("docs/scenario.md")).unwrap();
    let blocks: Vec<&str> = guide.split("```\n").skip(1).step_by(2).collect();
    let is_example = |block: &&&str| ["base ", "user ", "step "].iter().any(|word| block.starts_with(word));
    let examples: Vec<&&str> = blocks.iter().filter(is_example).collect();
    assert_eq!(examples.len(), 3, "{blocks:?}");
    for example in examples {
        let formatted = scenario::format(example)
            .unwrap_or_else(|faults| panic!("{}", scenario::render(&faults, "guide", example)));
        assert_eq!(formatted, **example);
    }
    // Each line of a table that begins with code contains lines of a step, of a user or of the file.
    let lines = guide.lines().filter_map(|line| line.strip_prefix("| `"));
    let codes: Vec<&str> =
        lines.filter_map(|line| line.split("` |").next()).flat_map(|cell| cell.split("`, `")).collect();
    assert!(codes.len() > 60, "{}", codes.len());
    for code in codes.iter().filter(|code| !code.contains(['…', 'T']) && !code.starts_with("else")) {
        let placed = match *code {
            hole if hole.starts_with("${") => vec![format!("repeat 2\n  step x\n    GET /\n    X: {hole}\n")],
            code => vec![
                format!("{code}\nstep x\n  GET /\n"),
                format!("step x\n  GET /\n{code}\n"),
                format!("step x\n  GET /\n  {code}\n"),
                format!("{code}\n  step x\n    GET /\n"),
                format!("step x\n  GET /\n  {code}\n    a = b\n"),
                format!("data x from x {code}\nstep x\n  GET /\n"),
            ],
        };
        assert!(placed.iter().any(|text| scenario::parse(text).is_ok()), "{code}");
    }
}

#[test]
fn holes_within_strings_of_json_are_escaped_and_others_are_not() {
    use fathom_scenario::ast::{BodyContent, Filter, Statement};
    let text = "step a\n  POST /\n  json {\"a\\\"\": \"${x}\", \"b\": ${x}, \"c\": \"\\\\\", \"d\": [${x|hex}, \"${x|url}-${x}\"]}\n";
    let parsed = scenario::parse(text).unwrap();
    let Some(Statement::Step(step)) = parsed.users[0].body.first() else { panic!("{parsed:?}") };
    let Some(BodyContent::Json(template)) = step.body.as_ref().map(|body| &body.content) else { panic!("{step:?}") };
    let filters: Vec<Vec<Filter>> = template.escaped_json().holes().map(|hole| hole.filters.clone()).collect();
    let expected = [vec![Filter::Json], vec![], vec![Filter::Hex], vec![Filter::Url], vec![Filter::Json]];
    assert_eq!(filters, expected);
}

#[test]
fn what_is_told_is_shown_with_its_line_and_marked() {
    let text = "step home\n  GET /\n  take token = json $.token\nstep next\n  GET /${tokn}\n";
    let parsed = scenario::parse(text).unwrap();
    let found = scenario::check(&parsed, Path::new("/proc/self/nowhere"));
    let shown = scenario::render(&found, "shop.scenario", text);
    let expected = "\
error: there is no variable `tokn`
 --> shop.scenario:5:10
  |
5 |   GET /${tokn}
  |          ^^^^
  |
help: did you mean `token`?
";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn a_variable_that_is_taken_in_an_if_has_a_value_behind_it_and_none_before() {
    let (once, work) = (
        "if ${iteration} == 1\n  step in\n    GET /in\n    take token = json $.token\n",
        "step work\n  GET /work\n  Authorization: ${token}\n",
    );
    assert_eq!(told(&format!("base http://a.test\n{once}{work}")), "");
    let before = told(&format!("base http://a.test\n{work}{once}"));
    assert!(before.starts_with("4:20 error: `token` has no value yet"), "{before}");
}
