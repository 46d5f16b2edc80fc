//! Values that the options of simulations have in common.

use clap::{Arg, ArgAction, ArgMatches, parser::ValueSource, value_parser};
use fathom_balancer::simulation::SimulatedArrivals;
use fathom_model::units::{Nanos, approximate, percent as percent_text, share_of_percent, significant, whole};
use fathom_run::exit::{Exit, UserError};

/// An option with a value.
pub(super) fn value(name: &'static str, of: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(of).help(help)
}

/// The options of every simulation.
pub(super) fn common() -> [Arg; 2] {
    [
        value("seed", "N", "seed of all draws; the same seed repeats them")
            .value_parser(value_parser!(u64))
            .default_value("1"),
        Arg::new("json").long("json").help("print one JSON document").action(ArgAction::SetTrue),
    ]
}

/// The options of simulations that are repeated.
pub(super) fn repeats() -> [Arg; 2] {
    [
        value("repeat", "N", "loads per row, each with the next seed").value_parser(positive).default_value("1"),
        value("parallel", "N", "loads that run at the same time").value_parser(positive).default_value("1"),
    ]
}

pub(super) fn arrivals() -> Arg {
    value("arrivals", "HOW", "gaps: uniform (0 to twice the mean), poisson, or burst=N at once")
        .value_parser(read_arrivals)
        .default_value("uniform")
}

pub(super) fn below() -> Arg {
    value("below", "PERCENT", "find the smallest size whose loss is below this, such as 0.1%").value_parser(percent)
}

pub(super) fn seed(matches: &ArgMatches) -> u64 {
    of(matches, "seed")
}

/// The value of an option that has a default.
pub(super) fn of<T: Copy + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> T {
    *matches.get_one::<T>(name).expect("the option has a default")
}

/// The sizes whose loads are played. A search for a size plays none of the default that nobody asked for.
pub(super) fn sizes(matches: &ArgMatches, name: &str) -> Vec<u32> {
    let is_left_out = matches.contains_id("below") && matches.value_source(name) == Some(ValueSource::DefaultValue);
    let sizes = matches.get_many::<u32>(name).into_iter().flatten().copied();
    sizes.filter(|_| !is_left_out).collect()
}

/// A count such as `20k`, in 32 bits.
pub(super) fn count(text: &str) -> Result<u32, String> {
    let count = whole(text).map_err(|error| error.to_string())?;
    u32::try_from(count).map_err(|_| format!("{count} is more than {}", u32::MAX))
}

pub(super) fn positive(text: &str) -> Result<u32, String> {
    count(text).and_then(|count| if count > 0 { Ok(count) } else { Err("it is at least 1".to_owned()) })
}

/// A rate such as `10k`, per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let text = text.trim().trim_end_matches("/s");
    whole(text).map(approximate).map_err(|error| error.to_string())
}

pub(super) fn span(text: &str) -> Result<Nanos, String> {
    let span: Nanos = text.parse().map_err(|error: fathom_model::units::UnitError| error.to_string())?;
    if span > Nanos::ZERO { Ok(span) } else { Err("it is longer than 0".to_owned()) }
}

/// A share between 0 and 1, written in percent.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let share = share_of_percent(text).filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a percentage from 0% to 100%, such as 0.1%".to_owned())
}

fn read_arrivals(text: &str) -> Result<SimulatedArrivals, String> {
    match text {
        "uniform" => Ok(SimulatedArrivals::Uniform),
        "poisson" => Ok(SimulatedArrivals::Poisson),
        _ => match text.strip_prefix("burst=").map(positive) {
            Some(Ok(n)) => Ok(SimulatedArrivals::Bursts(n)),
            _ => Err("write uniform, poisson or burst=N, such as burst=50".to_owned()),
        },
    }
}

/// A share with the digits in which sizes are compared.
pub(super) fn shown_share(share: f64) -> String {
    if share < 0.01 { percent_text(share) } else { format!("{} %", significant(share * 100.0)) }
}

/// The error of a load that is not possible.
pub(super) fn refused(error: &dyn std::error::Error) -> UserError {
    UserError::new(Exit::Usage, error.to_string())
}
