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
