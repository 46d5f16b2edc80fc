//! Converts files of real tools to scenarios that parse, and that send the same requests as the tools.
//!
//! The plan was saved by JMeter 5.6.3 and the recording is one of Chromium, written by Playwright. `BLESS=1` rewrites the expected files.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use fathom_import::{Assets, ImportOptions, ImportResult, RecordingFilter, import};
use fathom_scenario as scenario;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

fn imported(file: &str, wanted: &ImportOptions) -> ImportResult {
    import(&fs::read(folder().join(file)).unwrap(), wanted, file).unwrap()
}

/// Imports a file and compares with what is kept beside it.
fn compare(file: &str, kept: &str, wanted: &ImportOptions) -> ImportResult {
    let imported = imported(file, wanted);
    let kept = folder().join(kept);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&kept, &imported.text).unwrap();
    }
    assert_eq!(imported.text, fs::read_to_string(&kept).unwrap(), "{}", kept.display());
    let tree = scenario::parse(&imported.text).unwrap();
    let found = scenario::check(&tree, &folder());
    assert!(scenario::is_sound(&found), "{}", scenario::render(&found, file, &imported.text));
    imported
}

#[path = "import/recorder.rs"]
mod recorder;
#[path = "import/replay.rs"]
mod replay;

#[test]
fn a_plan_of_jmeter_is_a_scenario_without_mistakes() {
    let imported = compare("shop.jmx", "shop.scenario", &ImportOptions::default());
    let notes: Vec<_> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "Shop: the property host has its value from here: 127.0.0.1",
            "Shop / Buyers / Switched off: HTTPSamplerProxy is disabled, and left out",
            "Shop / Buyers / Signed / Script: BeanShellPreProcessor is not supported, and left out",
        ]
    );
}

#[test]
fn a_recording_of_a_browser_is_a_scenario_without_mistakes() {
    compare("visit.har", "visit.scenario", &ImportOptions::default());
    let wanted = ImportOptions {
        filter: RecordingFilter { assets: Assets::LeftOut, ..RecordingFilter::default() },
        ..ImportOptions::default()
    };
    let steps = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("step ")).count();
    let (all, some) = (imported("visit.har", &ImportOptions::default()), imported("visit.har", &wanted));
    assert_eq!((steps(&all.text), steps(&some.text)), (10, 7), "a style, a script and a picture are left out");
}

#[test]
fn commands_of_curl_are_a_scenario_without_mistakes() {
    let imported = compare("commands.curl", "commands.scenario", &ImportOptions::default());
    assert_eq!(imported.notes, []);
}

#[test]
fn setup_and_teardown_of_a_plan_are_told_and_not_done() {
    let group = |tag: &str, name: &str, path: &str| {
        format!(
            "<{tag} testname=\"{name}\"/><hashTree><HTTPSamplerProxy testname=\"R\">\
             <stringProp name=\"HTTPSampler.domain\">a.test</stringProp>\
             <stringProp name=\"HTTPSampler.path\">{path}</stringProp></HTTPSamplerProxy><hashTree/></hashTree>"
        )
    };
    let groups =
        [("SetupThreadGroup", "Fill", "/fill"), ("ThreadGroup", "Users", "/x"), ("PostThreadGroup", "Wipe", "/wipe")];
    let groups: String = groups.iter().map(|(tag, name, path)| group(tag, name, path)).collect();
    let plan = format!(
        "<jmeterTestPlan><hashTree><TestPlan testname=\"Plan\"/><hashTree>{groups}</hashTree></hashTree></jmeterTestPlan>"
    );
    let imported = import(plan.as_bytes(), &ImportOptions::default(), "plan.jmx").unwrap();
    let notes: Vec<_> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "Plan / Fill: SetupThreadGroup is not supported, and left out with all that is in it",
            "Plan / Wipe: PostThreadGroup is not supported, and left out with all that is in it",
        ]
    );
    let requests: Vec<_> = imported.text.lines().filter(|line| line.trim_start().starts_with("GET ")).collect();
    assert_eq!(requests, ["    GET /x"]);
    let tree = scenario::parse(&imported.text).unwrap();
    assert_eq!(scenario::check(&tree, &folder()), [], "{}", imported.text);
}
