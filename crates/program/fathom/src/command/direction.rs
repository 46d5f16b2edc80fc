//! `--direction up|down|both`: which end sends, as seen from the host of the command.

use clap::{Arg, ArgMatches};
use fathom_engine::TestKind;
use fathom_model::{TestPlan, ValueKind};

use super::{benchmark, measurement::TestHosts};
use fathom_run::exit::{Exit, UserError};

/// The word of the option, also where a kind has one of its own.
pub(super) const DIRECTION: &str = "direction";
const UP: &str = "up";
const DOWN: &str = "down";
const BOTH: &str = "both";
/// The directions, in the order in which a test names its kinds for them.
const DIRECTIONS: [&str; 3] = [UP, DOWN, BOTH];
/// Words of `--test` of once, with the word of today and the direction that they meant.
const FORMER_TESTS: &[(&str, &str, &str)] =
    &[("down", "stream", DOWN), ("both", "stream", BOTH), ("rfc6349-down", "rfc6349", DOWN)];

/// A test as the command line names it, with its kinds: up, down, both.
pub(super) type TestChoice = (&'static str, &'static [&'static str]);

/// The option, with the words that any of these kinds takes.
pub(super) fn argument(kinds: &[&dyn TestKind]) -> Arg {
    let own = kinds.iter().flat_map(|kind| kind.options()).filter(|option| option.name == DIRECTION);
    let own = own.flat_map(|option| if let ValueKind::Choice(words) = option.value { words } else { &[] });
    let mut words: Vec<&str> = DIRECTIONS.to_vec();
    own.for_each(|word| words.extend((!words.contains(word)).then_some(word)));
    Arg::new(DIRECTION)
        .long(DIRECTION)
        .value_name("DIRECTION")
        .help("which end sends: up is from here to the target, down is from the target [default: up; loaded: all in turn]")
        .help_heading("Test")
        .aliases(["way", "load"])
        .value_parser(words)
}

/// The former words of `--test` that mean one of these tests.
pub(super) fn former_test_words(tests: &[TestChoice]) -> impl Iterator<Item = &'static str> {
    FORMER_TESTS.iter().filter(|(_, now, _)| tests.iter().any(|(word, _)| word == now)).map(|(former, ..)| *former)
}

/// The word of today for a test, and the direction that its word meant.
pub(super) fn from_former_word(word: &str) -> Option<(&'static str, &'static str)> {
    FORMER_TESTS.iter().find(|(former, ..)| *former == word).map(|(_, now, direction)| (*now, *direction))
}

/// The direction that was asked for.
pub(super) fn chosen(matches: &ArgMatches) -> Option<&str> {
    matches.try_get_one::<String>(DIRECTION).ok().flatten().map(String::as_str)
}

/// The kind of a test in a direction.
pub(super) fn kind((word, kinds): TestChoice, direction: Option<&str>) -> Result<&'static str, UserError> {
    let has_own = kinds[0] == benchmark::KIND || has_direction(kinds[0]);
    let idx = match direction {
        Some(direction) if !has_own => DIRECTIONS.iter().position(|word| *word == direction),
        _ => Some(0),
    };
    idx.and_then(|idx| kinds.get(idx).copied()).ok_or_else(|| {
        let what = format!("--test {word} has no --{DIRECTION} {}", direction.unwrap_or_default());
        UserError::new(Exit::Usage, what)
            .with_line("use", format!("--{DIRECTION} {}", DIRECTIONS[..kinds.len()].join(" or ")))
    })
}

/// Whether a kind takes the direction as an option of its own.
pub(super) fn has_direction(kind: &str) -> bool {
    let kind = fathom_run::registry::kind(kind);
    kind.is_ok_and(|kind| kind.options().iter().any(|option| option.name == DIRECTION))
}

/// The ends of a test of frames in the order in which frames go.
pub(super) fn order_hosts(ends: TestHosts, kind: &str, matches: &ArgMatches) -> TestHosts {
    if kind == benchmark::KIND && chosen(matches) == Some(DOWN) { ends.swapped() } else { ends }
}

/// Pairs each test of frames with the same one the other way, where both ways are asked for.
pub(super) fn add_reverse_tests(tests: Vec<TestPlan>, matches: &ArgMatches) -> Result<Vec<TestPlan>, UserError> {
    if chosen(matches) != Some(BOTH) || tests.iter().any(|test| test.kind != benchmark::KIND) {
        return Ok(tests);
    }
    let with_back = |there: TestPlan| {
        let Some(to) = there.to.clone().filter(|_| there.search.is_none()) else {
            let what = format!("--{DIRECTION} {BOTH} is for a rate or a method, not for a search for a limit");
            return Err(UserError::new(Exit::Usage, what).with_line("use", "--method throughput"));
        };
        // A test that is named by nothing but its kind needs no more than its direction.
        let named = |direction: &str| {
            if there.name == there.kind { direction.to_owned() } else { format!("{}, {direction}", there.name) }
        };
        let (up, down) = (named(UP), named(DOWN));
        let back = TestPlan {
            name: down,
            from: to,
            to: Some(there.from.clone()),
            beside: Some(up.clone()),
            benchmark: None,
            ..there.clone()
        };
        Ok([TestPlan { name: up, ..there }, back])
    };
    Ok(tests.into_iter().map(with_back).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}
