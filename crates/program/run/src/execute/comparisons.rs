//! The comparisons of a plan, and what they need.

use std::collections::BTreeSet;

use fathom_engine::TestKind;
use fathom_model::{Plan, TestPlan, ValueKind};

use crate::{
    exit::{Exit, UserError},
    registry,
};

fn invalid(what: impl Into<String>) -> UserError {
    UserError::new(Exit::Usage, what)
}

/// Checks the paths and comparisons of a plan whose tests are complete. Returns the index of the comparison of each test.
///
/// # Errors
/// Names the first path, comparison or test that is wrong.
pub(super) fn check(plan: &Plan) -> Result<Vec<Option<usize>>, UserError> {
    check_paths(plan)?;
    check_commands(plan)?;
    let of_tests = plan.tests.iter().map(|test| comparison_of(plan, test)).collect::<Result<Vec<_>, _>>()?;
    (0..plan.comparisons.len()).try_for_each(|idx| check_comparison(plan, &of_tests, idx))?;
    Ok(of_tests)
}

/// Returns the index of the comparison of a test.
fn comparison_of(plan: &Plan, test: &TestPlan) -> Result<Option<usize>, UserError> {
    let names = |of: Vec<&str>| of.join(", ");
    let in_test = |error: UserError| error.with_line("in", format!("test `{}`", test.name));
    if let Some(path) = test.path.as_ref().filter(|path| !plan.paths.iter().any(|known| known.name == **path)) {
        let known = names(plan.paths.iter().map(|path| path.name.as_str()).collect());
        return Err(in_test(invalid(format!("there is no path `{path}`"))).with_line("paths", known));
    }
    let Some(comparison) = &test.comparison else { return Ok(None) };
    let Some(idx) = plan.comparisons.iter().position(|known| known.name == *comparison) else {
        let known = names(plan.comparisons.iter().map(|known| known.name.as_str()).collect());
        return Err(in_test(invalid(format!("there is no comparison `{comparison}`"))).with_line("known", known));
    };
    let has_rounds = test.search.is_none() && test.benchmark.is_none() && test.paired_with.is_none();
    if test.path.is_none() || !has_rounds {
        let what = "a test of a comparison takes a path, at one rate and in one direction";
        return Err(in_test(invalid(what)).with_line("use", "path = \"NAME\", without search, benchmark and beside"));
    }
    Ok(Some(idx))
}

fn check_paths(plan: &Plan) -> Result<(), UserError> {
    let mut known = BTreeSet::new();
    for path in &plan.paths {
        let wrong = |what: String| invalid(format!("path `{}`: {what}", path.name));
        if !known.insert(&path.name) {
            return Err(wrong("another path has this name".to_owned()));
        }
        if let Some(host) = path.at.keys().find(|host| !plan.hosts.contains_key(*host)) {
            let hosts: Vec<&str> = plan.hosts.keys().map(String::as_str).collect();
            return Err(wrong(format!("there is no host `{host}`")).with_line("hosts", hosts.join(", ")));
        }
        if path.via.is_some() && path.via != plan.via {
            return Err(wrong("its device is not the host `via` of the plan".to_owned())
                .with_line("use", format!("via = \"{}\" in the plan", path.via.as_deref().unwrap_or_default())));
        }
    }
    Ok(())
}

fn check_commands(plan: &Plan) -> Result<(), UserError> {
    let is_lab = |host: &String| {
        use fathom_model::plan::HostReach::{Lab, LabUp};
        matches!(plan.hosts.get(host), Some(Lab(_) | LabUp(..)))
    };
    match plan.device.on.as_ref().filter(|host| !is_lab(host)) {
        Some(host) => {
            Err(invalid(format!("the commands of the device cannot run on `{host}`: it is no host of a lab"))
                .with_line("use", "a command that goes there, such as 'ssh HOST COMMAND'"))
        }
        None => Ok(()),
    }
}

fn check_comparison(plan: &Plan, of_tests: &[Option<usize>], idx: usize) -> Result<(), UserError> {
    let name = &plan.comparisons[idx].name;
    let wrong = |what: String| invalid(format!("comparison `{name}`: {what}"));
    if plan.comparisons[..idx].iter().any(|other| other.name == *name) {
        return Err(wrong("another one has this name".to_owned()));
    }
    let places: Vec<usize> = (0..of_tests.len()).filter(|place| of_tests[*place] == Some(idx)).collect();
    let [first, .., last] = places.as_slice() else {
        return Err(wrong("it needs two tests or more".to_owned()));
    };
    if last - first + 1 != places.len() {
        return Err(wrong("its tests stand together in the list of tests".to_owned()));
    }
    let (reference, others) = (&plan.tests[*first], &plan.tests[first + 1..=*last]);
    for other in others {
        if let Some(what) = difference(reference, other) {
            return Err(wrong(format!(
                "`{}` and `{}` differ in {what}, and not only in their path",
                reference.name, other.name
            )));
        }
    }
    if others.iter().all(|other| other.path == reference.path) {
        return Err(wrong("all of its tests take the same path".to_owned()));
    }
    let same = others.iter().find(|other| other.path != reference.path && leads_the_same_way(plan, reference, other));
    match same {
        Some(other) => {
            let paths = [reference, other].map(|test| format!("`{}`", test.path.as_deref().unwrap_or_default()));
            Err(wrong(format!("{} are the same path", paths.join(" and ")))
                .with_line("fix", "another address or URL for one of them"))
        }
        None => Ok(()),
    }
}

/// Returns what two tests differ in beside where they send.
fn difference(one: &TestPlan, other: &TestPlan) -> Option<String> {
    if one.kind != other.kind {
        return Some("their kind".to_owned());
    }
    let frame = |test: &TestPlan| [test.warmup.clone(), test.duration.clone(), test.from.clone()];
    if frame(one) != frame(other) || one.to != other.to {
        return Some("their hosts or times".to_owned());
    }
    let options = registry::kind(&one.kind).map(TestKind::options).unwrap_or_default();
    let work = options.iter().filter(|option| option.value != ValueKind::Destination);
    let differs = work.map(|option| option.name).find(|name| one.options.text(name) != other.options.text(name));
    differs.map(|name| format!("`{name}`"))
}

/// Returns true if two paths have the same addresses and their tests the same targets.
fn leads_the_same_way(plan: &Plan, one: &TestPlan, other: &TestPlan) -> bool {
    let at =
        |test: &TestPlan| plan.paths.iter().find(|path| test.path.as_ref() == Some(&path.name)).map(|path| &path.at);
    one.options == other.options && at(one) == at(other)
}

#[cfg(test)]
mod tests {
    use crate::execute::{CheckedPlan, read_plan};

    const HEAD: &str = r#"
        schema = "fathom.plan/1"
        title = "two ways"
        rounds = 4
        seed = 7
        [hosts]
        here = "self"
        [[paths]]
        name = "direct"
        at = { here = "127.0.0.1" }
        [[paths]]
        name = "via"
        at = { here = "127.0.0.2" }
    "#;

    fn comparison(name: &str, at: &str, tests: &[(&str, &str)]) -> String {
        let tests = tests.iter().map(|(test, path)| {
            format!(
                "[[tests]]\nname = \"{test}\"\nkind = \"tcp_rr\"\nfrom = \"here\"\nto = \"here\"\nwarmup = \"0s\"\nduration = \"1s\"\npath = \"{path}\"\ncomparison = \"{name}\"\n"
            )
        });
        format!("[[comparisons]]\nname = \"{name}\"\n{at}\n{}", tests.collect::<String>())
    }

    fn checked(text: &str) -> Result<CheckedPlan, String> {
        CheckedPlan::new(read_plan(text).unwrap()).map_err(|error| error.to_string())
    }

    const TWO: [(&str, &str); 2] = [("a", "direct"), ("b", "via")];

    #[test]
    fn what_cannot_be_compared_is_refused_by_name() {
        let with = |tests: &[(&str, &str)]| format!("{HEAD}{}", comparison("rr", "", tests));
        let two = with(&TWO);
        let cases = [
            (with(&TWO[..1]), "it needs two tests"),
            (with(&[("a", "direct"), ("b", "direct")]), "all of its tests take the same path"),
            (with(&[("a", "direct"), ("b", "detour")]), "there is no path `detour`"),
            (two.replace("127.0.0.2", "127.0.0.1"), "`direct` and `via` are the same path"),
            (two.replace("{ here = \"127.0.0.2\" }", "{ there = \"127.0.0.2\" }"), "there is no host `there`"),
            (two.replace("name = \"via\"\n", "name = \"direct\"\n"), "another path has this name"),
            (two.replace("name = \"via\"\n", "name = \"via\"\nvia = \"dut\"\n"), "its device is not the host `via`"),
            (two.replacen("duration = \"1s\"", "duration = \"2s\"", 1), "differ in their hosts or times"),
            (two.replacen("kind = \"tcp_rr\"", "kind = \"tcp_crr\"", 1), "differ in their kind"),
            (two.replacen("path = \"direct\"", "options = { flows = 2 }\npath = \"direct\"", 1), "differ in `flows`"),
            (two.replace("comparison = \"rr\"", "comparison = \"stream\""), "there is no comparison `stream`"),
            (format!("{two}[device]\non = \"here\""), "cannot run on `here`"),
        ];
        for (text, named) in cases {
            let error = checked(&text).map(|_| ()).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
    }
}
