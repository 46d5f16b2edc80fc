//! What must hold for every text that claims to be a scenario.
//!
//! Shared by the fuzz target and by the test of `app` that runs the corpus.

use std::path::Path;

use fathom_scenario as scenario;

/// Either all that is wrong is told, or the text as it is formatted says the same, and formatting that changes nothing.
pub(crate) fn scenario(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let read = match scenario::parse(text) {
        Ok(read) => read,
        Err(faults) => {
            assert!(!faults.is_empty());
            tell(&faults, text);
            assert_eq!(scenario::format(text), Err(faults));
            return;
        }
    };
    let formatted = scenario::format(text).expect("what can be read can be formatted");
    assert_eq!(scenario::parse(&formatted).as_ref(), Ok(&read), "{formatted}");
    assert_eq!(scenario::format(&formatted).as_ref(), Ok(&formatted));
    // No file is there, so no more is read than the text.
    let found = scenario::check(&read, Path::new("/proc/self/nowhere"));
    tell(&found, text);
}

fn tell(diagnostics: &[scenario::Diagnostic], text: &str) {
    for diagnostic in diagnostics {
        assert!(diagnostic.span.start <= diagnostic.span.end && diagnostic.span.end <= text.len(), "{diagnostic:?}");
        let (line, column) = diagnostic.line_and_column(text);
        assert!(line >= 1 && column >= 1);
    }
    // The lines around a few are enough to see that they can be cut out.
    let few = &diagnostics[..diagnostics.len().min(3)];
    assert_eq!(scenario::render(few, "a.scenario", text).is_empty(), few.is_empty());
}
