//! Two recordings of Chromium, written by Playwright, of the same orders in an application of Express with a CSRF token.
//!
//! `BLESS=1` rewrites the expected files.

use std::{fs, path::Path};

use fathom_correlate::{CorrelateOptions, RecordingText, correlate};
use fathom_import::Assets;
use fathom_scenario as scenario;

#[test]
fn two_recordings_of_a_browser_are_a_scenario_without_mistakes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/orders");
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let (first, second) = (text("monday.har"), text("tuesday.har"));
    let correlation = correlate(
        RecordingText { name: "monday.har", text: &first },
        RecordingText { name: "tuesday.har", text: &second },
        CorrelateOptions { assets: Assets::Kept, data_file: "orders.csv" },
    )
    .unwrap();
    assert_eq!((correlation.notes.as_slice(), correlation.suspects.as_slice()), (&[][..], &[][..]));
    let typed = correlation.typed.unwrap();
    for (kept, text) in [("orders.scenario", &correlation.scenario), ("orders.csv", &typed.csv)] {
        if std::env::var_os("BLESS").is_some() {
            fs::write(folder.join(kept), text).unwrap();
        }
        assert_eq!(text, &fs::read_to_string(folder.join(kept)).unwrap(), "{kept}");
    }
    let tree = scenario::parse(&correlation.scenario).unwrap();
    let found = scenario::check(&tree, &folder);
    assert!(found.is_empty(), "{}", scenario::render(&found, "orders.scenario", &correlation.scenario));
}
