//! Help for authors of scenarios: errors are reported, and texts are formatted.

use std::fs;

use crate::test_bed::{TestBed, tree};

#[test]
fn example_scenarios_are_sound_and_formatted() {
    let stage = TestBed::beside_others();
    let plans = fs::read_dir(tree().join("plans")).unwrap().map(|entry| entry.unwrap().path());
    let plans: Vec<String> = plans
        .filter(|path| path.extension().is_some_and(|extension| extension == "scenario"))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    assert!(plans.len() >= 3, "{plans:?}");
    let words = |first: &[&str]| first.iter().map(|word| (*word).to_owned()).chain(plans.clone()).collect::<Vec<_>>();
    let checked = stage.fathom(words(&["app", "check"])).succeeded();
    assert_eq!(checked.stdout.matches("nothing is wrong").count(), plans.len(), "{}", checked.stdout);
    stage.fathom(words(&["app", "format", "--check"])).succeeded();
}

#[test]
fn mistakes_are_shown_where_they_are_and_warnings_let_it_pass() {
    let stage = TestBed::beside_others();
    let path = stage.path("a.scenario");
    let file = path.to_str().unwrap();
    fs::write(&path, "base http://a.test\npromise fast p99 < 1s\nstep a\n  GET /${tokn}\n  expext 200\n").unwrap();
    let told = stage.fathom(["app", "check", file]).code(2);
    for part in ["a.scenario:5:3", "did you mean `expect`?", "1 error\n"] {
        assert!(told.stdout.contains(part), "{part}: {}", told.stdout);
    }
    fs::write(&path, "base http://a.test\npromise p99 < 1s, speed < 2\npromise a p99 < 5G\nstep a\n  GET /\n").unwrap();
    let told = stage.fathom(["app", "check", file]).code(2);
    for part in ["no metric `speed`", "cannot be read", "2 errors\n"] {
        assert!(told.stdout.contains(part), "{part}: {}", told.stdout);
    }
    fs::write(&path, "base http://a.test\nstep a\n  GET /\n  take x = status\n").unwrap();
    let told = stage.fathom(["app", "check", file]).succeeded();
    assert!(told.stdout.contains("1 warning\n"), "{}", told.stdout);
}

#[test]
fn a_scenario_is_formatted_in_its_place_unless_it_is_wrong() {
    let stage = TestBed::beside_others();
    let path = stage.path("a.scenario");
    let file = path.to_str().unwrap();
    let (written, formatted) = ("step   a # one\n      GET    /\n", "step a  # one\n  GET /\n");
    fs::write(&path, written).unwrap();
    let told = stage.fathom(["app", "format", "--check", file]).code(1);
    assert_eq!((told.stdout.trim(), fs::read_to_string(&path).unwrap().as_str()), (file, written));
    stage.fathom(["app", "format", file]).succeeded();
    assert_eq!(fs::read_to_string(&path).unwrap(), formatted);
    stage.fathom(["app", "format", "--check", file]).succeeded();
    fs::write(&path, "step\n").unwrap();
    stage.fathom(["app", "format", file]).code(2);
    assert_eq!(fs::read_to_string(&path).unwrap(), "step\n");
}

#[test]
fn an_import_is_written_beside_what_was_there_and_only_if_it_may() {
    let stage = TestBed::beside_others();
    let [path, kept] = ["out.scenario", "kept"].map(|name| stage.path(name));
    fs::write(stage.path("in.sh"), "curl http://a.test/x\n").unwrap();
    fs::write(&path, "before\n").unwrap();
    // A hard link shows whether the file was written in place.
    fs::hard_link(&path, &kept).unwrap();
    let words = ["app", "import", "in.sh", "-o", "out.scenario"];
    let refused = stage.fathom(words).code(2);
    assert!(refused.stderr.contains("there already") && refused.stderr.contains("--force"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(&path).unwrap(), "before\n");
    stage.fathom(words.into_iter().chain(["--force"])).succeeded();
    assert!(fs::read_to_string(&path).unwrap().contains("GET /x"));
    assert_eq!(fs::read_to_string(&kept).unwrap(), "before\n");
}
