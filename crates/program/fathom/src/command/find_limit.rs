//! The options of a search for the highest rate that keeps an objective.

use clap::{Arg, ArgMatches};
use fathom_model::{TrialTimes, plan::SearchPlan, units::Nanos};

/// The maximum length of the warm-up, and the measured time of a trial. They are short because a search needs dozens of trials.
pub(super) const TIMES: TrialTimes = TrialTimes { warmup: Nanos::from_millis(500), duration: Nanos::from_secs(1) };

/// The option that starts a search.
pub(super) const OBJECTIVE: &str = "find-limit";

/// Returns the options, for commands whose tests can have a rate.
pub(super) fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("Search for a limit")
    };
    let bound = |name, value, help| text(name, value, help).requires(OBJECTIVE);
    vec![
        text(OBJECTIVE, "OBJECTIVE", "find the highest rate that keeps this: 'p99<20ms, errors<1%', 'lost<0.1%'"),
        bound("find-low", "RATE", "the lowest rate that may be offered, where the search begins"),
        bound("find-high", "RATE", "the highest rate that may be offered"),
        bound("find-precision", "PERCENT", "how far apart the ends of the interval may be [default: 2.5%]"),
        bound("find-confidence", "PERCENT", "how sure the interval is to be [default: 95%]"),
        bound("find-trials", "N", "the most trials [default: 200]")
            .value_parser(clap::value_parser!(u32).range(1..=10_000)),
        bound(
            "find-option",
            "NAME",
            "the option that sets the rate [default: rate; with a bound such as 1kpps, packets per second]",
        ),
    ]
}

/// Returns the requested search.
pub(super) fn search(matches: &ArgMatches) -> Option<SearchPlan> {
    let text = |name: &str| matches.try_get_one::<String>(name).ok().flatten().cloned();
    Some(SearchPlan {
        objective: text(OBJECTIVE)?,
        option: text("find-option"),
        low: text("find-low"),
        high: text("find-high"),
        precision: text("find-precision"),
        confidence: text("find-confidence"),
        trials: matches.try_get_one::<u32>("find-trials").ok().flatten().copied(),
    })
}
