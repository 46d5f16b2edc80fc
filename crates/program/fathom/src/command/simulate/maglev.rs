//! `fathom simulate maglev`: how Maglev tables spread, and what changes in them.

use clap::{ArgMatches, Command};
use fathom_balancer::{
    maglev::{TARGETS_MAX, TableSize},
    simulation::maglev::{MaglevSimulation, MaglevSimulationResult},
    targets::WEIGHT_MAX,
};
use fathom_model::units::{grouped, significant};
use serde::Serialize;

use super::{
    output::{SimulationDocument, table},
    runs::Progress,
    values,
};
use fathom_run::exit::{Exit, UserError};

const NOTES: &str = "\
Examples:
  fathom simulate maglev --targets 10,100,1000
  fathom simulate maglev --size 997,9973,65537 --targets 10 --removed 1,2,5
  fathom simulate maglev --weights 1,1,2,4

Shares are parts of all flows. Those of targets that go must move; the collateral ones move though their target stays.";

pub(super) fn define(command: Command) -> Command {
    let list = |name: &'static str, help: &'static str| values::value(name, "N,N,…", help).value_delimiter(',');
    command
        .arg(
            list("size", "places of the table, primes")
                .value_parser(|text: &str| text.parse::<TableSize>().map_err(|error| error.to_string()))
                .default_value("65537"),
        )
        .arg(list("targets", "numbers of targets").value_parser(values::positive).default_value("10,100"))
        .arg(
            list("weights", "weights of the targets, in place of a number of them")
                .value_parser(values::positive)
                .conflicts_with("targets"),
        )
        .arg(list("removed", "how many targets go at once").value_parser(values::count).default_value("1"))
        .arg(
            values::value("repeat", "N", "how many times others go").value_parser(values::positive).default_value("20"),
        )
        .args(values::common())
        .after_help(NOTES)
}

#[derive(Debug, Serialize)]
struct MaglevSettings {
    n_repeats: u32,
    seed: u64,
    /// Absent if all targets have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Vec<u32>>,
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let list = |name: &str| matches.get_many::<u32>(name).into_iter().flatten().copied().collect::<Vec<_>>();
    let (weights, removed) = (list("weights"), list("removed"));
    let settings = MaglevSettings {
        n_repeats: values::of(matches, "repeat"),
        seed: values::seed(matches),
        weights: (!weights.is_empty()).then_some(weights.clone()),
    };
    let weights = if weights.is_empty() { equal_weights(&list("targets"))? } else { vec![checked(weights)?] };
    let mut progress = Progress::begin();
    let mut results = Vec::new();
    for size in matches.get_many::<TableSize>("size").into_iter().flatten() {
        for weights in &weights {
            for n_removed in &removed {
                let simulation = MaglevSimulation {
                    size: *size,
                    weights: weights.clone(),
                    n_removed: usize::try_from(*n_removed)?,
                    n_repeats: settings.n_repeats,
                    seed: settings.seed,
                };
                results.push(simulation.run().map_err(|error| values::refused(&error))?);
                progress.step(|| format!("{} places, {} targets", grouped(size.get().into()), weights.len()));
            }
        }
    }
    let text = text(&settings, &results);
    SimulationDocument::new("maglev", settings, results).print(matches, &text)?;
    Ok(Exit::Pass)
}

/// The weights of numbers of targets that all have the same.
fn equal_weights(numbers: &[u32]) -> Result<Vec<Vec<u32>>, UserError> {
    let of = |number: &u32| checked(vec![1; usize::try_from(*number).unwrap_or(usize::MAX).min(TARGETS_MAX + 1)]);
    numbers.iter().map(of).collect()
}

fn checked(weights: Vec<u32>) -> Result<Vec<u32>, UserError> {
    if weights.len() > TARGETS_MAX {
        return Err(UserError::new(Exit::Usage, format!("a group has at most {TARGETS_MAX} targets")));
    }
    match weights.iter().find(|weight| **weight > WEIGHT_MAX) {
        Some(weight) => Err(UserError::new(Exit::Usage, format!("--weights {weight}: at most {WEIGHT_MAX}"))),
        None => Ok(weights),
    }
}

fn text(settings: &MaglevSettings, results: &[MaglevSimulationResult]) -> String {
    let n = settings.n_repeats;
    let mut text = format!("Maglev tables: other targets go {n} times, seed {}\n\n", settings.seed);
    let titles = [
        "places",
        "targets",
        "removed",
        "must move",
        "collateral",
        "most collateral",
        "fullest",
        "emptiest",
        "variation",
    ];
    let cells = |result: &MaglevSimulationResult| {
        let moves = |share: f64| if result.n_removed == 0 { String::new() } else { values::shown_share(share) };
        let places = if result.follows_rule { "" } else { "*" };
        vec![
            format!("{}{places}", grouped(result.size.into())),
            result.n_targets.to_string(),
            result.n_removed.to_string(),
            moves(result.moved_share),
            moves(result.collateral_share),
            moves(result.collateral_share_max),
            format!("×{}", three_places(result.most_by_expected)),
            format!("×{}", three_places(result.least_by_expected)),
            result.variation.map(values::shown_share).unwrap_or_default(),
        ]
    };
    text.push_str(&table(&titles, &results.iter().map(cells).collect::<Vec<_>>()));
    if results.iter().any(|result| !result.follows_rule) {
        text.push_str("\n  * fewer than 100 places for each target: the paper's rule for an imbalance below 1 %\n");
    }
    text
}

/// A ratio near 1 needs more digits than other numbers.
fn three_places(ratio: f64) -> String {
    if (0.5..2.0).contains(&ratio) { format!("{ratio:.3}") } else { significant(ratio) }
}
