//! Checks beyond the compiler's: layering of the crates, length of functions, existence of the pages that metrics cite.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::{circles::circles, option_reads::KnownOptions};

/// The allowed dependencies, as in ARCHITECTURE.md; the program crates and xtask may use all crates.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("statistics", &["model"]),
    ("sys", &["model"]),
    ("engine", &["model", "statistics", "sys"]),
    ("testkit", &[]),
    ("wire", &["model", "statistics"]),
    ("capture", &["model", "wire"]),
    ("pktgen", &["model", "sys", "engine", "wire"]),
    ("packet", &["model", "statistics", "sys", "engine", "wire", "capture", "pktgen"]),
    ("probe", &["model", "statistics", "sys", "engine", "wire"]),
    ("rfc2544", &["model", "statistics", "engine"]),
    ("transport", &["model", "statistics", "sys", "engine"]),
    ("interop", &["model", "statistics", "sys", "engine", "transport"]),
    ("targets", &["model", "sys", "engine", "transport"]),
    ("http", &["model", "statistics", "sys", "engine"]),
    ("http_xdp", &["model", "statistics", "sys", "engine", "wire", "http"]),
    ("scenario", &["model", "sys", "engine", "http"]),
    ("replay", &["model", "statistics", "sys", "engine", "capture", "http"]),
    ("lua", &["model", "sys", "engine", "http"]),
    ("import", &["model", "http", "scenario"]),
    ("record", &["model", "sys", "http", "scenario"]),
    ("correlate", &["http", "scenario", "import"]),
    ("monitor", &["model", "statistics", "sys", "engine"]),
    ("analyze", &["model", "statistics"]),
    ("report", &["model", "statistics"]),
    ("lab", &["model", "sys", "wire", "balancer"]),
    ("balancer", &["model", "statistics", "sys"]),
    ("fleet", &["model", "sys", "engine"]),
];
/// Crates whose tests also run for other users: everything they access must go through `sys::policy`.
const REMOTE_ROLE_CRATES: [&str; 10] =
    ["packet", "pktgen", "probe", "transport", "interop", "targets", "http", "http_xdp", "scenario", "lua"];
/// Calls that access the network, a file or a variable without a policy check.
const UNCHECKED_CALLS: [&str; 12] = [
    "TcpStream::connect",
    "to_socket_addrs()",
    "fs::read(",
    "fs::read_to_string(",
    "File::open(",
    "File::options(",
    "File::create",
    "env::var(",
    "bind_device(",
    ".accept4(",
    "accept_with(",
    "TcpListener::from",
];
/// Files in which such calls are allowed, and the reason.
const UNCHECKED_CALLS_ALLOWED: &[(&str, &str)] = &[
    (
        "lua/src/script.rs",
        "a script is refused to others, and every address that it looks up is judged before it is used",
    ),
    ("scenario/src/check/files.rs", "`fathom app check` is the user's own"),
    ("scenario/src/execution/data_rows.rs", "`fathom app check` is the user's own"),
    ("http/src/metrics/request_totals.rs", "an option of the kind File, which is refused to others"),
    ("packet/src/craft/settings.rs", "an option of the kind File, which is refused to others"),
    ("pktgen/src/directory.rs", "the files of the kernel's pktgen"),
    ("probe/src/raw.rs", "the interface is an option of hping3's face alone, which is the user's own"),
    ("packet/src/xdp/unrelated.rs", "counters of the kernel"),
    ("interop/src/netperf/cpu.rs", "the kernel's CPU times, which the protocol reports to the other side"),
    ("interop/src/iperf3/client.rs", "the interface is an option of iperf3's face alone, which is the user's own"),
    ("interop/src/iperf3/server/mod.rs", "a server sends to whoever came, and the user chose the interface"),
    ("interop/src/iperf3/server/acceptor.rs", "a server sends to whoever came, and the user chose the interface"),
];
/// Calls that panic if a thread cannot be created at the task limit; `sys::threads` returns an error instead.
const PANICKING_SPAWNS: [&str; 2] = ["thread::spawn(", "scope.spawn("];
/// The maximum number of crates in which a public type name may occur, so that a search finds its meaning.
const TYPE_CRATES_MAX: usize = 2;
/// Type names that may occur in any number of crates.
const COMMON_TYPES: [&str; 1] = ["Error"];
/// A function fits on a screen.
const FUNCTION_LINES_MAX: usize = 70;

/// Returns all faults, one line each.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut faults = layering(root)?;
    let mut types = BTreeMap::new();
    let mut options = KnownOptions::default();
    let mut files = BTreeMap::<String, Vec<(String, String)>>::new();
    for path in sources(&root.join("crates"))?.into_iter().chain(sources(&root.join("xtask"))?) {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        faults.extend(long_functions(&text).map(|(line, name, n)| {
            format!("{shown}:{line}: function {name} has {n} lines, the most is {FUNCTION_LINES_MAX}")
        }));
        faults.extend(missing_sources(root, &text).map(|source| format!("{shown}: there is no {source}")));
        faults.extend(unchecked_calls(&shown, &text).map(|(line, what)| {
            format!("{shown}:{line}: `{what}` asks no policy: what a role touches is judged where it is opened (sys::policy)")
        }));
        faults.extend(panicking_spawns(&shown, &text).map(|(line, what)| {
            format!("{shown}:{line}: `{what}` panics where a thread is refused: start it with sys::threads")
        }));
        if let Some((crate_name, file)) = source_of_crate(&shown) {
            options.add(&text);
            files.entry(crate_name.to_owned()).or_default().push((file.to_owned(), text.clone()));
            for name in public_types(&text) {
                types.entry(name.to_owned()).or_insert_with(BTreeSet::new).insert(crate_name.to_owned());
            }
        }
        faults.extend(unrun_examples(&text).map(|line| {
            format!("{shown}:{line}: `make test-quick` runs no examples of documentation: write it as a test")
        }));
        if shown.contains("/src/") && !text.starts_with("//!") {
            faults.push(format!("{shown}: a module begins with what it is for"));
        }
    }
    faults.extend(common_names(&types));
    for (crate_name, files) in &files {
        faults.extend(files.iter().flat_map(|(file, text)| {
            let reads = options.unknown_reads(text).into_iter();
            reads.map(move |(line, what)| format!("{crate_name}/src/{file}:{line}: {what}"))
        }));
        faults.extend(circles(files).iter().map(|circle| {
            format!("{crate_name}: files that need each other: {circle}; move what they share below both")
        }));
    }
    Ok(faults)
}

/// Returns the crate and the path within its `src` of `crates/GROUP/CRATE/src/PATH`.
fn source_of_crate(shown: &str) -> Option<(&str, &str)> {
    let (_, crate_and_path) = shown.strip_prefix("crates/")?.split_once('/')?;
    crate_and_path.split_once("/src/")
}

/// Returns the faults for public type names that occur in too many crates.
fn common_names(types: &BTreeMap<String, BTreeSet<String>>) -> impl Iterator<Item = String> {
    let is_common = |name: &&String| COMMON_TYPES.contains(&name.as_str());
    let common = types.iter().filter(move |(name, crates)| crates.len() > TYPE_CRATES_MAX && !is_common(name));
    common.map(|(name, crates)| {
        let crates = crates.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!("the public type {name} is in {crates}: give it a name that says what it is in each")
    })
}

/// Returns the public types declared in a file.
fn public_types(text: &str) -> impl Iterator<Item = &str> {
    let of_line = |line: &'_ str| -> Option<usize> {
        let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
        kinds.iter().find(|kind| line.trim_start().starts_with(**kind)).map(|kind| kind.len())
    };
    text.lines().filter_map(move |line| {
        let name = &line.trim_start()[of_line(line)?..];
        name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

/// Returns unchecked accesses in code that roles run: line and call. Kernel files and tests are exempt.
fn unchecked_calls<'a>(shown: &str, text: &'a str) -> impl Iterator<Item = (usize, &'static str)> + use<'a> {
    let is_played = source_of_crate(shown).is_some_and(|(name, _)| REMOTE_ROLE_CRATES.contains(&name));
    let is_allowed =
        UNCHECKED_CALLS_ALLOWED.iter().any(|(file, _)| shown.ends_with(file)) || shown.ends_with("/tests.rs");
    let text = text.split("#[cfg(test)]").next().filter(|_| is_played && !is_allowed).unwrap_or_default();
    text.lines().enumerate().filter_map(|(idx, line)| {
        let call = UNCHECKED_CALLS.into_iter().find(|call| line.contains(call))?;
        (!["\"/proc/", "\"/sys/"].iter().any(|kernel| line.contains(kernel))).then_some((idx + 1, call))
    })
}

/// Returns thread creations that panic on failure: line and call. Tests are exempt.
fn panicking_spawns<'a>(shown: &str, text: &'a str) -> impl Iterator<Item = (usize, &'static str)> + use<'a> {
    let is_test = ["/tests.rs", "/suite.rs"].iter().any(|end| shown.ends_with(end))
        || !(shown.starts_with("crates/") && shown.contains("/src/"));
    let text = text.split("#[cfg(test)]").next().filter(|_| !is_test).unwrap_or_default();
    text.lines()
        .enumerate()
        .filter_map(|(idx, line)| Some((idx + 1, PANICKING_SPAWNS.into_iter().find(|call| line.contains(call))?)))
}

/// Returns the lines on which an example begins in the documentation of a crate.
fn unrun_examples(text: &str) -> impl Iterator<Item = usize> + use<'_> {
    let fences = text.lines().enumerate().filter_map(|(idx, line)| {
        let comment = line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!"))?;
        Some((idx + 1, comment.trim_start().strip_prefix("```")?))
    });
    // Every other fence ends a block; a block of another language, or of text, is no example.
    let begins = fences.step_by(2);
    begins
        .filter(|(_, language)| ["", "rust"].contains(language) || language.starts_with("should_panic"))
        .map(|(line, _)| line)
}

/// Returns the folders of all crates: `crates/GROUP/CRATE`.
fn crate_folders(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for group in fs::read_dir(root.join("crates"))? {
        for folder in fs::read_dir(group?.path())? {
            folders.push(folder?.path());
        }
    }
    folders.sort();
    Ok(folders)
}

fn layering(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut faults = Vec::new();
    for folder in crate_folders(root)? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if folder.parent().is_some_and(|group| group.ends_with("program")) {
            continue;
        }
        let manifest: toml::Table = fs::read_to_string(folder.join("Cargo.toml"))?.parse()?;
        let Some((_, allowed)) = MAY_USE.iter().find(|(crate_name, _)| *crate_name == name) else {
            faults.push(format!("the crate {name} stands in no row of the layering table"));
            continue;
        };
        let Some(used) = manifest.get("dependencies").and_then(toml::Value::as_table) else { continue };
        let ours = used.keys().filter_map(|dependency| dependency.strip_prefix("fathom-"));
        let wrong = ours.filter(|dependency| !allowed.contains(dependency));
        faults.extend(wrong.map(|dependency| format!("the crate {name} must not know {dependency}")));
    }
    Ok(faults)
}

fn sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns functions that are too long: line, name, length. A function ends at the closing brace with its own indentation.
fn long_functions(text: &str) -> impl Iterator<Item = (usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (begin, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let end = lines[begin..].iter().position(|other| other.trim_end() == format!("{}}}", " ".repeat(indent(line))));
        if let Some(n) = end.map(|end| end + 1).filter(|n| *n > FUNCTION_LINES_MAX) {
            found.push((begin + 1, name.to_owned(), n));
        }
    }
    found.into_iter()
}

fn function_name(line: &str) -> Option<&str> {
    const WORDS: [&str; 7] = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern \"C\""];
    let mut rest = line.trim_start();
    while let Some(word) = WORDS.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = word.strip_prefix(' ')?;
    }
    let name = rest.strip_prefix("fn ")?;
    (!line.trim_end().ends_with(';')).then(|| name.split(['(', '<']).next().unwrap_or(name))
}

/// Returns pages of docs/methods that a metric cites as its source but that do not exist.
fn missing_sources<'a>(root: &'a Path, text: &'a str) -> impl Iterator<Item = &'a str> {
    let pages = text.match_indices("docs/methods/").filter_map(move |(at, _)| {
        let rest = &text[at..];
        Some(&rest[..rest.find(".md")? + 3])
    });
    pages.filter(move |page| !page.contains(char::is_whitespace) && !page.contains('<') && !root.join(page).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_type_of_many_crates_is_found() {
        let text = "pub struct Part;\npub(crate) enum Way {}\n    pub type Error = ();\npub trait Look<T> {";
        assert_eq!(public_types(text).collect::<Vec<_>>(), ["Part", "Error", "Look"]);
        let crates = |n| ["app", "http", "sys"][..n].iter().map(|name| (*name).to_owned()).collect();
        let types = [("Part", 3), ("Error", 3), ("Look", 2)].map(|(name, n)| (name.to_owned(), crates(n)));
        let faults: Vec<_> = common_names(&types.into()).collect();
        let expected = "the public type Part is in app, http, sys: give it a name that says what it is in each";
        assert_eq!(faults, [expected]);
    }

    #[test]
    fn a_function_that_does_not_fit_on_a_screen_is_found() {
        let body = "    step();\n".repeat(FUNCTION_LINES_MAX);
        let text = format!("pub(crate) fn short() {{\n    step();\n}}\n\npub fn long<T>(t: T) {{\n{body}}}\n");
        let found: Vec<_> = long_functions(&text).collect();
        assert_eq!(found, [(5, "long".to_owned(), FUNCTION_LINES_MAX + 2)]);
    }

    #[test]
    fn what_a_role_would_touch_without_being_judged_is_found() {
        let text = "fn f() {\n    fs::read(path);\n    fs::read_to_string(\"/proc/stat\");\n}\n#[cfg(test)]\nmod tests { fs::read(path) }";
        let found = |shown: &str| unchecked_calls(shown, text).collect::<Vec<_>>();
        assert_eq!(found("crates/measure/http/src/new.rs"), [(2, "fs::read(")]);
        assert!(
            found("crates/measure/monitor/src/new.rs").is_empty()
                && found("crates/measure/http/src/metrics/request_totals.rs").is_empty()
        );
    }

    #[test]
    fn a_thread_that_would_panic_where_it_is_refused_is_found() {
        let text = "fn f() {\n    std::thread::spawn(work);\n    threads::start(name, work);\n    scope.spawn(work);\n}\n\
                    #[cfg(test)]\nmod tests { thread::spawn(work) }";
        let found = |shown: &str| panicking_spawns(shown, text).collect::<Vec<_>>();
        assert_eq!(found("crates/measure/http/src/new.rs"), [(2, "thread::spawn("), (4, "scope.spawn(")]);
        for test in ["crates/measure/http/src/tests.rs", "crates/measure/http/tests/new.rs", "bench/src/new.rs"] {
            assert!(found(test).is_empty(), "{test}");
        }
    }

    #[test]
    fn an_example_that_no_test_runs_is_found() {
        let text = "//! Text.\n//! ```text\n//! a\n//! ```\n/// ```\n/// assert!(true);\n/// ```\nfn f() {}\n";
        assert_eq!(unrun_examples(text).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn a_declaration_is_not_a_function() {
        assert_eq!(function_name("    fn name(&self) -> &'static str;"), None);
        assert_eq!(function_name("    pub const fn since(self, earlier: Self) -> Self {"), Some("since"));
    }
}
