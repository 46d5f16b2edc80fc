//! `--direction up|down|both`: selects the sending end, as seen from the host of the command.

use clap::{Arg, ArgMatches};
use fathom_engine::{CommandDoc, DataDirection, TestKind};
use fathom_model::{TestPlan, ValueKind};

use super::measurement::TestHosts;
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};

/// The name of the option, also for kinds that have such an option themselves.
pub(super) const DIRECTION: &str = "direction";
const UP: &str = "up";
const DOWN: &str = "down";
const BOTH: &str = "both";
const DIRECTIONS: [(&str, DataDirection); 3] =
    [(UP, DataDirection::Up), (DOWN, DataDirection::Down), (BOTH, DataDirection::Both)];
/// Words of `--test` of once, with the word of today and the direction that they meant.
const FORMER_TESTS: &[(&str, &str, &str)] =
    &[("down", "stream", DOWN), ("both", "stream", BOTH), ("rfc6349-down", "rfc6349", DOWN)];

/// A word of `--test` with its kinds by their direction.
pub(super) type TestChoice = (&'static str, Vec<(DataDirection, &'static dyn TestKind)>);

/// Returns the option, with the values that any of these kinds accepts.
pub(super) fn argument(kinds: &[&dyn TestKind]) -> Arg {
    let own = kinds.iter().flat_map(|kind| kind.options()).filter(|option| option.name == DIRECTION);
    let own = own.flat_map(|option| if let ValueKind::Choice(words) = option.value { words } else { &[] });
    let mut words: Vec<&str> = DIRECTIONS.iter().map(|(word, _)| *word).collect();
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
pub(super) fn former_test_words(tests: &[&str]) -> impl Iterator<Item = &'static str> {
    FORMER_TESTS.iter().filter(|(_, now, _)| tests.contains(now)).map(|(former, ..)| *former)
}

/// Returns the current name for a former one, and the direction that it meant.
pub(super) fn from_former_word(word: &str) -> Option<(&'static str, &'static str)> {
    FORMER_TESTS.iter().find(|(former, ..)| *former == word).map(|(_, now, direction)| (*now, *direction))
}

/// Returns the requested direction.
pub(super) fn chosen(matches: &ArgMatches) -> Option<&str> {
    matches.try_get_one::<String>(DIRECTION).ok().flatten().map(String::as_str)
}

/// The kind of a test in a direction.
pub(super) fn kind((word, kinds): &TestChoice, direction: Option<&str>) -> Result<&'static dyn TestKind, UserError> {
    let (by, first) = kinds[0];
    let Some(direction) = direction.filter(|_| by != DataDirection::ByHosts && !has_direction(first)) else {
        return Ok(first);
    };
    let meant = DIRECTIONS.iter().find(|(word, _)| *word == direction).map(|(_, meant)| *meant);
    let found = kinds.iter().find(|(of, _)| Some(*of) == meant).map(|(_, kind)| *kind);
    found.ok_or_else(|| {
        let named = DIRECTIONS.iter().filter(|(_, known)| kinds.iter().any(|(of, _)| of == known));
        let words: Vec<&str> = named.map(|(word, _)| *word).collect();
        UserError::new(Exit::Usage, format!("--test {word} has no --{DIRECTION} {direction}"))
            .with_line("use", format!("--{DIRECTION} {}", words.join(" or ")))
    })
}

/// Whether a kind takes the direction as an option of its own.
pub(super) fn has_direction(kind: &dyn TestKind) -> bool {
    kind.options().iter().any(|option| option.name == DIRECTION)
}

/// The ends of a test in the order in which frames go.
pub(super) fn order_hosts(ends: TestHosts, doc: CommandDoc, matches: &ArgMatches) -> TestHosts {
    let is_turned = doc.direction == DataDirection::ByHosts && chosen(matches) == Some(DOWN);
    if is_turned { ends.swapped() } else { ends }
}

/// Checks that a test goes in one direction, where each direction would be a test of its own.
///
/// # Errors
/// If both directions were requested.
pub(super) fn check_single(doc: CommandDoc, matches: &ArgMatches) -> Result<(), UserError> {
    if doc.direction != DataDirection::ByHosts || chosen(matches) != Some(BOTH) {
        return Ok(());
    }
    let what = format!("--{DIRECTION} {BOTH} is two tests at once, and paths are compared by one");
    Err(UserError::new(Exit::Usage, what).with_line("use", format!("--{DIRECTION} {UP} or {DOWN}")))
}

/// Adds the reverse direction to each frame test if both directions were requested.
pub(super) fn add_reverse_tests(tests: Vec<TestPlan>, matches: &ArgMatches) -> Result<Vec<TestPlan>, UserError> {
    let is_by_hosts = |test: &TestPlan| {
        let doc = registry::kind(&test.kind).ok().and_then(TestKind::command);
        doc.is_some_and(|doc| doc.direction == DataDirection::ByHosts)
    };
    if chosen(matches) != Some(BOTH) || !tests.iter().all(is_by_hosts) {
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
            paired_with: Some(up.clone()),
            benchmark: None,
            ..there.clone()
        };
        Ok([TestPlan { name: up, ..there }, back])
    };
    Ok(tests.into_iter().map(with_back).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}
