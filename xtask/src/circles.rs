//! Detects dependency cycles among the files of a crate, which leave no order in which to read them. A parent and its own child may depend
//! on each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A module's path within its crate; the root is empty.
type Module = Vec<String>;
/// The modules that each module uses; a module is a file.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// Returns the shortest cycles among the files of a crate, given with their paths below `src`; each file is in at most one.
pub(crate) fn circles(files: &[(String, String)]) -> Vec<String> {
    let graph = graph(files);
    let mut found: Vec<Vec<&Module>> = Vec::new();
    for (from, used) in &graph {
        found.extend(used.iter().filter(|to| !is_parent_and_child(from, to)).filter_map(|to| path(&graph, to, from)));
    }
    for circle in &mut found {
        circle.rotate_right(1);
    }
    found.sort_by_key(Vec::len);
    let mut told = BTreeSet::new();
    found.retain(|circle| {
        circle.iter().all(|module| !told.contains(module)) && {
            told.extend(circle.clone());
            true
        }
    });
    let name = |module: &&Module| if module.is_empty() { "the root".to_owned() } else { module.join("::") };
    found.iter().map(|circle| circle.iter().chain(&circle[..1]).map(name).collect::<Vec<_>>().join(" → ")).collect()
}

fn is_parent_and_child(one: &Module, other: &Module) -> bool {
    let is_child = |parent: &Module, child: &Module| child.split_last().is_some_and(|(_, rest)| rest == parent);
    is_child(one, other) || is_child(other, one)
}

/// Returns the shortest path from one module to another.
fn path<'a>(graph: &'a Graph, from: &'a Module, to: &Module) -> Option<Vec<&'a Module>> {
    let mut ways = VecDeque::from([vec![from]]);
    let mut seen = BTreeSet::from([from]);
    while let Some(way) = ways.pop_front() {
        let last = way[way.len() - 1];
        if last == to {
            return Some(way);
        }
        let next = graph.get(last).into_iter().flatten().filter(|next| seen.insert(next));
        ways.extend(next.map(|next| [way.as_slice(), &[next]].concat()).collect::<Vec<_>>());
    }
    None
}

fn graph(files: &[(String, String)]) -> Graph {
    let mut sources: BTreeMap<Module, Vec<String>> =
        files.iter().map(|(file, text)| (module(file), code(text))).collect();
    let is_test = |module: &Module| (0..module.len()).any(|n| is_test_module(files, &module[..n], &module[n]));
    sources.retain(|module, _| !is_test(module));
    let uses: BTreeMap<_, _> =
        sources.iter().map(|(module, code)| (module, Uses::of(module, code, &sources))).collect();
    let known = |module: &Module| uses.get(module);
    let edges = |from: &Module, of: &Uses| {
        let all = of.paths.iter().filter_map(|path| declaring(path, &known, 8));
        all.filter(|to| to != from).collect::<BTreeSet<_>>()
    };
    uses.iter().map(|(module, of)| ((*module).clone(), edges(module, of))).collect()
}

/// Returns the module of a file below `src`.
fn module(file: &str) -> Module {
    let mut module: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// Returns whether a parent declares a child for tests only.
fn is_test_module(files: &[(String, String)], parent: &[String], child: &str) -> bool {
    let declaration = format!("mod {child};");
    let of_parent = files.iter().filter(|(file, _)| module(file) == parent);
    of_parent.flat_map(|(_, text)| text.split("#[cfg(test)]\n").skip(1)).any(|rest| {
        rest.lines().find(|line| !line.starts_with("#[")).is_some_and(|line| line.trim_start().ends_with(&declaration))
    })
}

/// Returns the lines of a file without comments and without test-only code.
fn code(text: &str) -> Vec<String> {
    let mut code = Vec::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim() == "#[cfg(test)]" {
            let is_end = |line: &&str| {
                line.len() - line.trim_start().len() == indent && [';', '}', ','].iter().any(|end| line.ends_with(*end))
            };
            lines.by_ref().find(is_end);
        } else {
            code.push(line.split(" // ").next().unwrap_or(line).to_owned());
        }
    }
    code
}

/// The names from its own crate that a file uses.
#[derive(Default)]
struct Uses {
    /// Paths of used items from the crate root.
    paths: Vec<Module>,
    /// Names imported from elsewhere in the crate; child modules see them too, and with `pub`, other modules as well.
    passed_on: BTreeMap<String, Module>,
}

impl Uses {
    fn of(module: &Module, code: &[String], files: &BTreeMap<Module, Vec<String>>) -> Self {
        let mut uses = Self::default();
        let mut rest = String::new();
        let mut lines = code.iter();
        while let Some(line) = lines.next() {
            let Some((visibility, tree)) = use_item(line) else {
                rest.push_str(without_visibility(line));
                rest.push('\n');
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                let Some(line) = lines.next() else { break };
                tree.push_str(line);
            }
            for path in flat(tree.split(';').next().unwrap_or_default()) {
                let (path, name) =
                    path.split_once(" as ").unwrap_or((&path, path.rsplit("::").next().unwrap_or(&path)));
                let Some(absolute) = absolute(module, path, files) else { continue };
                if visibility.is_empty() {
                    uses.paths.push(absolute.clone());
                }
                uses.passed_on.insert(name.trim().to_owned(), absolute);
            }
        }
        let words = rest.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':'));
        uses.paths.extend(words.filter(|word| word.contains("::")).filter_map(|word| absolute(module, word, files)));
        uses
    }
}

/// Strips `pub(in crate::a)` from a line, because its path only states the visibility.
fn without_visibility(line: &str) -> &str {
    line.split_once("pub(in ").and_then(|(_, rest)| rest.split_once(')')).map_or(line, |(_, rest)| rest)
}

/// Returns the visibility and the tree of a line that starts a `use` item.
fn use_item(line: &str) -> Option<(&str, &str)> {
    let (visibility, tree) = line.trim_start().split_once("use ")?;
    let visibility = visibility.trim_end();
    let is_visibility = visibility.is_empty() || (visibility.starts_with("pub") && !visibility.contains("fn "));
    is_visibility.then_some((visibility, tree))
}

/// Returns the paths of a `use` tree.
fn flat(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let (mut depth, mut parts) = (0_usize, vec![String::new()]);
    for c in rest.rsplit_once('}').map_or(rest, |(inner, _)| inner).chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is a part from the start").push(c);
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(flat).map(|part| format!("{}{part}", prefix.trim())).collect()
}

/// Returns a path from the crate root; `None` for a path in another crate.
fn absolute(module: &Module, path: &str, files: &BTreeMap<Module, Vec<String>>) -> Option<Module> {
    let mut words = path.split("::").peekable();
    let mut base = module.clone();
    match *words.peek()? {
        "crate" => base.clear(),
        "self" | "super" => {}
        child => {
            files.get(&[module.as_slice(), &[child.to_owned()]].concat())?;
        }
    }
    while let Some(word) = words.next_if(|word| matches!(*word, "crate" | "self" | "super")) {
        if word == "super" {
            base.pop();
        }
    }
    base.extend(words.filter(|word| !word.is_empty() && *word != "self").map(str::to_owned));
    Some(base)
}

/// Returns the module (a file) that declares the item of a path; follows re-exports to their origin.
fn declaring<'a>(path: &Module, known: &impl Fn(&Module) -> Option<&'a Uses>, n_follow: usize) -> Option<Module> {
    let n = (0..=path.len()).rev().find(|n| known(&path[..*n].to_vec()).is_some())?;
    let (module, rest) = path.split_at(n);
    let module = module.to_vec();
    let passed = rest.first().and_then(|name| known(&module)?.passed_on.get(name));
    match passed.filter(|_| n_follow > 0) {
        Some(origin) => declaring(&[origin.as_slice(), &rest[1..]].concat(), known, n_follow - 1),
        None => Some(module),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        circles(&files)
    }

    #[test]
    fn files_that_need_each_other_are_a_circle_however_they_say_it() {
        for text in ["use crate::a::f;", "use super::{\n    a::{self, f},\n};", "fn g() {\n    crate::a::f();\n}"] {
            let files = [("lib.rs", "mod a;\nmod b;"), ("a.rs", "use crate::b;"), ("b.rs", text)];
            assert_eq!(found(&files), ["a → b → a"], "{text}");
        }
    }

    #[test]
    fn a_parent_and_its_child_may_know_each_other() {
        let files = [("lib.rs", "mod a;\nfn f() {\n    a::g();\n}"), ("a.rs", "use super::f;")];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn a_way_back_through_the_parent_is_a_circle() {
        let root = "mod a;\nmod b;\nfn f() {\n    b::g();\n}";
        assert_eq!(
            found(&[("lib.rs", root), ("a.rs", "use crate::f;"), ("b.rs", "use crate::a;")]),
            ["b → a → the root → b"]
        );
    }

    #[test]
    fn a_parent_that_only_passes_names_on_is_in_no_circle() {
        let root = "mod a;\nmod b;\npub use a::{f, h as k};\npub(crate) use b::g;";
        assert!(found(&[("lib.rs", root), ("a.rs", "fn f() {}"), ("b.rs", "use crate::{f, k};")]).is_empty());
        assert_eq!(found(&[("lib.rs", root), ("a.rs", "use crate::g;"), ("b.rs", "use crate::k;")]), ["a → b → a"]);
    }

    #[test]
    fn tests_and_comments_may_use_everything() {
        let test =
            "/// See [`crate::b`].\npub(in crate::b) fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n";
        let root = "mod a;\nmod b;\n#[cfg(test)]\nmod builder;";
        let files =
            [("lib.rs", root), ("a.rs", test), ("b.rs", "use crate::a;"), ("builder.rs", "use crate::a::builder;")];
        assert!(found(&files).is_empty());
    }
}
