//! What must hold for every body that users look for values in.
//!
//! Shared by the fuzz target and by the test of `app` that runs the corpus.

use fathom_scenario::execution::JsonPointer;

/// Paths that are walked, and paths that need the whole document.
const PATHS: [&str; 10] = [
    "$",
    ".a",
    "$.a.b",
    "$.a[1]",
    "$[0].a[0].b",
    "$['a b']",
    "$..a",
    "$[*]",
    "$.a[-1:].b",
    "$[?@.a == 'x' && @.b > 1].a",
];

/// Looks for values in a body: what is walked is also found in the document as a whole.
pub(crate) fn json(body: &[u8]) {
    let read = |path: &str| JsonPointer::parse(path).expect("the paths are constants");
    let query = |path: &str| JsonPointer::parse_query(path).expect("the paths are constants");
    let (mut one, mut other) = (b"of before".to_vec(), Vec::new());
    for path in PATHS {
        // A body that is broken behind the value may give one; twice the same.
        assert_eq!(read(path).find(body, &mut one), read(path).find(body, &mut other), "{path}");
        assert_eq!(one, other, "{path}");
    }
    let Ok(document) = query("$").find_all(body) else { return };
    let [document] = document.as_slice() else { panic!("{} documents", document.len()) };
    // A string is taken without its quotes, and is no document then. Others are written anew, without names that stand twice.
    if body.trim_ascii().starts_with(b"\"") {
        return;
    }
    for path in PATHS {
        let all = query(path).find_all(document);
        let Ok(all) = all else { panic!("{path}: it was written as JSON: {}", document.escape_ascii()) };
        let found = read(path).find(document, &mut one).expect("what the document gives all of is walked as well");
        assert_eq!(found, !all.is_empty(), "{path} in {}", document.escape_ascii());
        if found {
            assert_eq!(one, all[0], "{path} in {}", document.escape_ascii());
        }
    }
}
