//! `--direction up|down|both`: selects the sending end, as seen from the host of the command.

use clap::{Arg, ArgMatches};
use fathom_engine::TestKind;
use fathom_model::{TestPlan, ValueKind};

use super::{benchmark, measurement::TestHosts};
use fathom_run::exit::{Exit, UserError};

/// The name of the option, also for kinds that have such an option themselves.
pub(super) const DIRECTION: &str = "direction";
const UP: &str = "up";
const DOWN: &str = "down";
const BOTH: &str = "both";
/// The directions, in the order of a test's kinds.
const DIRECTIONS: [&str; 3] = [UP, DOWN, BOTH];
/// Former values of `--test`, with the current value and the direction that they meant.
const FORMER_TESTS: &[(&str, &str, &str)] =
    &[("down", "stream", DOWN), ("both", "stream", BOTH), ("rfc6349-down", "rfc6349", DOWN)];

/// A test by its name on the command line, with its kinds: up, down, both.
pub(super) type TestChoice = (&'static str, &'static [&'static str]);

/// Returns the option, with the values that any of these kinds accepts.
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

/// Returns the former values of `--test` that mean one of these tests.
pub(super) fn former_test_words(tests: &[TestChoice]) -> impl Iterator<Item = &'static str> {
    FORMER_TESTS.iter().filter(|(_, now, _)| tests.iter().any(|(word, _)| word == now)).map(|(former, ..)| *former)
}

/// Returns the current name for a former one, and the direction that it meant.
pub(super) fn from_former_word(word: &str) -> Option<(&'static str, &'static str)> {
    FORMER_TESTS.iter().find(|(former, ..)| *former == word).map(|(_, now, direction)| (*now, *direction))
}

/// Returns the requested direction.
pub(super) fn chosen(matches: &ArgMatches) -> Option<&str> {
    matches.try_get_one::<String>(DIRECTION).ok().flatten().map(String::as_str)
}

/// Returns the kind of a test in a direction.
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

/// Returns true if a kind has its own option for the direction.
pub(super) fn has_direction(kind: &str) -> bool {
    let kind = fathom_run::registry::kind(kind);
    kind.is_ok_and(|kind| kind.options().iter().any(|option| option.name == DIRECTION))
}

/// Returns the hosts of a frame test in the direction of the frames.
pub(super) fn order_hosts(ends: TestHosts, kind: &str, matches: &ArgMatches) -> TestHosts {
    if kind == benchmark::KIND && chosen(matches) == Some(DOWN) { ends.swapped() } else { ends }
}

/// Adds the reverse direction to each frame test if both directions were requested.
pub(super) fn add_reverse_tests(tests: Vec<TestPlan>, matches: &ArgMatches) -> Result<Vec<TestPlan>, UserError> {
    if chosen(matches) != Some(BOTH) || tests.iter().any(|test| test.kind != benchmark::KIND) {
        return Ok(tests);
    }
    let with_back = |there: TestPlan| {
        let Some(to) = there.to.clone().filter(|_| there.search.is_none()) else {
            let what = format!("--{DIRECTION} {BOTH} is for a rate or a method, not for a search for a limit");
            return Err(UserError::new(Exit::Usage, what).with_line("use", "--method throughput"));
        };
        // A test named only by its kind needs no name except its direction.
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
