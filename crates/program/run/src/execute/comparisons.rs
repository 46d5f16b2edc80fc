//! The comparisons of a plan: what they need, and the order of their trials.

use std::{collections::BTreeSet, ops::Range};

use fathom_model::{Plan, ValueKind};
use fathom_statistics::splitmix;

use super::checked_plan::{CheckedPlan, CheckedTest, TestMethod};
use crate::exit::{Exit, UserError};

fn invalid(what: impl Into<String>) -> UserError {
    UserError::new(Exit::Usage, what)
}

/// Checks the paths and comparisons of a plan, and tells each test its comparison.
///
/// # Errors
/// Names the first path, comparison or test that is wrong.
pub(super) fn check(plan: &Plan, tests: &mut [CheckedTest]) -> Result<(), UserError> {
    check_paths(plan)?;
    check_commands(plan)?;
    let names = |of: Vec<&str>| of.join(", ");
    for (planned, test) in plan.tests.iter().zip(&mut *tests) {
        let in_test = |error: UserError| error.with_line("in", format!("test `{}`", planned.name));
        if let Some(path) = planned.path.as_ref().filter(|path| !plan.paths.iter().any(|known| known.name == **path)) {
            let known = names(plan.paths.iter().map(|path| path.name.as_str()).collect());
            return Err(in_test(invalid(format!("there is no path `{path}`"))).with_line("paths", known));
        }
        let Some(comparison) = &planned.comparison else { continue };
        test.comparison = plan.comparisons.iter().position(|known| known.name == *comparison);
        if test.comparison.is_none() {
            let known = names(plan.comparisons.iter().map(|known| known.name.as_str()).collect());
            return Err(in_test(invalid(format!("there is no comparison `{comparison}`"))).with_line("known", known));
        }
        if test.path.is_none() || !matches!(test.method, TestMethod::Rounds) || planned.paired_with.is_some() {
            let what = "a test of a comparison takes a path, at one rate and in one direction";
            return Err(
                in_test(invalid(what)).with_line("use", "path = \"NAME\", without search, benchmark and beside")
            );
        }
    }
    (0..plan.comparisons.len()).try_for_each(|idx| check_comparison(plan, tests, idx))
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

fn check_comparison(plan: &Plan, tests: &[CheckedTest], idx: usize) -> Result<(), UserError> {
    let name = &plan.comparisons[idx].name;
    let wrong = |what: String| invalid(format!("comparison `{name}`: {what}"));
    if plan.comparisons[..idx].iter().any(|other| other.name == *name) {
        return Err(wrong("another one has this name".to_owned()));
    }
    let places: Vec<usize> = (0..tests.len()).filter(|place| tests[*place].comparison == Some(idx)).collect();
    let [first, .., last] = places.as_slice() else {
        return Err(wrong("it needs two tests or more".to_owned()));
    };
    if last - first + 1 != places.len() {
        return Err(wrong("its tests stand together in the list of tests".to_owned()));
    }
    let (reference, others) = (&tests[*first], &tests[first + 1..=*last]);
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
fn difference(one: &CheckedTest, other: &CheckedTest) -> Option<String> {
    if one.kind.name() != other.kind.name() {
        return Some("their kind".to_owned());
    }
    if (&one.from, &one.to, one.phases) != (&other.from, &other.to, other.phases) {
        return Some("their hosts or times".to_owned());
    }
    let work = one.kind.options().iter().filter(|option| option.value != ValueKind::Destination);
    let differs = work.map(|option| option.name).find(|name| one.options.text(name) != other.options.text(name));
    differs.map(|name| format!("`{name}`"))
}

/// Returns true if two paths have the same addresses and their tests the same targets.
fn leads_the_same_way(plan: &Plan, one: &CheckedTest, other: &CheckedTest) -> bool {
    let at =
        |test: &CheckedTest| plan.paths.iter().find(|path| test.path.as_ref() == Some(&path.name)).map(|path| &path.at);
    one.options == other.options && at(one) == at(other)
}

impl CheckedPlan {
    /// Returns the tests with trials of their own in the order of a round.
    ///
    /// The tests of a comparison take turns: A B in one round and B A in the next, so that what changes steadily harms both alike. The
    /// comparisons of a sweep have a random order, which the seed decides.
    pub(super) fn order_of_round(&self, round: u32) -> Vec<&CheckedTest> {
        let leading: Vec<&CheckedTest> = self.leading_tests().collect();
        let mut blocks = blocks(&leading);
        let is_swept = |block: &Range<usize>| {
            leading[block.start].comparison.is_some_and(|idx| self.plan().comparisons[idx].at.is_some())
        };
        let places: Vec<usize> = (0..blocks.len()).filter(|place| is_swept(&blocks[*place])).collect();
        shuffle(&mut blocks, &places, splitmix(self.plan().seed, u64::from(round)));
        let is_turned = round % 2 == 1;
        let in_turn = |block: Range<usize>| {
            let mut tests = leading[block].to_vec();
            if is_turned && tests[0].comparison.is_some() {
                tests.reverse();
            }
            tests
        };
        blocks.into_iter().flat_map(in_turn).collect()
    }
}

/// Returns the tests of each comparison as one block, and each other test as its own.
fn blocks(tests: &[&CheckedTest]) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for (place, test) in tests.iter().enumerate() {
        match blocks.last_mut() {
            Some(last) if test.comparison.is_some() && tests[last.start].comparison == test.comparison => last.end += 1,
            _ => blocks.push(place..place + 1),
        }
    }
    blocks
}

/// Shuffles the blocks at these places among each other (Fisher and Yates).
fn shuffle(blocks: &mut [Range<usize>], places: &[usize], seed: u64) {
    for (n, place) in places.iter().enumerate().skip(1) {
        let n_choices = u64::try_from(n).unwrap_or(u64::MAX) + 1;
        let chosen = usize::try_from(splitmix(seed, n_choices) % n_choices).unwrap_or_default();
        blocks.swap(*place, places[chosen]);
    }
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

    fn order(plan: &CheckedPlan, round: u32) -> Vec<&str> {
        plan.order_of_round(round).into_iter().map(|test| test.name.as_str()).collect()
    }

    const TWO: [(&str, &str); 2] = [("a", "direct"), ("b", "via")];

    #[test]
    fn the_tests_of_a_comparison_take_turns_and_others_keep_their_place() {
        let alone = "[[tests]]\nname = \"z\"\nkind = \"tcp_rr\"\nfrom = \"here\"\nto = \"here\"\nwarmup = \"0s\"\nduration = \"1s\"\n";
        let plan = checked(&format!("{HEAD}{}{alone}", comparison("rr", "", &TWO))).unwrap();
        let rounds: Vec<Vec<&str>> = (0..4).map(|round| order(&plan, round)).collect();
        assert_eq!(rounds, [["a", "b", "z"], ["b", "a", "z"], ["a", "b", "z"], ["b", "a", "z"]]);
    }

    #[test]
    fn the_points_of_a_sweep_have_a_random_order_that_the_seed_repeats() {
        let points: String = (1..=8)
            .map(|n| {
                let at = format!("at = {{ parameter = \"rules\", value = \"{n}\" }}");
                let tests = [(format!("a{n}"), "direct"), (format!("b{n}"), "via")];
                comparison(&format!("rr {n}"), &at, &tests.each_ref().map(|(test, path)| (test.as_str(), *path)))
            })
            .collect();
        let text = format!("{HEAD}{points}");
        let (plan, again) = (checked(&text).unwrap(), checked(&text).unwrap());
        let other = checked(&text.replace("seed = 7", "seed = 8")).unwrap();
        assert_eq!(order(&plan, 0), order(&again, 0));
        assert!(order(&plan, 0) != order(&plan, 2) && order(&plan, 0) != order(&other, 0));
        for round in 0..4 {
            let tests = order(&plan, round);
            let mut sorted = tests.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 16, "every test has its trial");
            let first = if round % 2 == 0 { 'a' } else { 'b' };
            assert!(
                tests.chunks(2).all(|pair| pair[0].starts_with(first) && pair[0][1..] == pair[1][1..]),
                "{tests:?}"
            );
        }
    }

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
