//! The order of the trials of a round: paths that are compared take turns.

use std::ops::Range;

use fathom_statistics::splitmix;

use super::checked_plan::{CheckedPlan, CheckedTest};

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
}
