//! The Maglev table: how evenly it spreads, and what changes when targets go.

use serde::Serialize;

use fathom_model::units::{approximate, ratio};
use fathom_statistics::{mean, stdev};

use super::Draws;
use crate::{
    maglev::{MaglevTable, TableSize},
    targets::Target,
};

/// Tables of one size and one number of targets, of which some go.
#[derive(Debug, Clone)]
pub struct MaglevSimulation {
    /// The size of the table.
    pub size: TableSize,
    /// The weights of the targets, of which there are as many as weights.
    pub weights: Vec<u32>,
    /// How many targets go at once.
    pub n_removed: usize,
    /// How many times other targets go.
    pub n_repeats: u32,
    /// The seed of who goes.
    pub seed: u64,
}

/// The spread of a table, and what changed in it. Shares are parts of all places, and so of all flows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MaglevSimulationResult {
    /// The size of the table.
    pub size: u32,
    /// The number of targets.
    pub n_targets: usize,
    /// How many of them went.
    pub n_removed: usize,
    /// The places of the fullest target by those that its weight gives it; absent if a target has no place.
    pub most_by_expected: f64,
    /// The places of the emptiest target by those that its weight gives it.
    pub least_by_expected: f64,
    /// The coefficient of variation of places by expected places; absent with one target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variation: Option<f64>,
    /// The mean share of places that had to move, as their target went.
    pub moved_share: f64,
    /// The mean share of places that moved from a target that stayed.
    pub collateral_share: f64,
    /// The largest such share of all repetitions.
    pub collateral_share_max: f64,
    /// Whether the size is at least a hundred times the number of targets, the paper's rule.
    pub follows_rule: bool,
}

/// Targets that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaglevSimulationError {
    /// All targets, or more, would go.
    #[error("{n_removed} of {n_targets} targets go: at least one must stay")]
    NoneLeft {
        /// How many targets go.
        n_removed: usize,
        /// How many there are.
        n_targets: usize,
    },
    /// No repetition.
    #[error("targets go at least once")]
    NoRepeats,
}

impl MaglevSimulation {
    /// Builds the table, and again without the targets that go.
    ///
    /// # Errors
    /// If no target would be left.
    pub fn run(&self) -> Result<MaglevSimulationResult, MaglevSimulationError> {
        let n_targets = self.weights.len();
        if self.n_removed >= n_targets {
            return Err(MaglevSimulationError::NoneLeft { n_removed: self.n_removed, n_targets });
        }
        if self.n_repeats == 0 {
            return Err(MaglevSimulationError::NoRepeats);
        }
        let target =
            |(number, weight): (u32, &u32)| Target { name: format!("t{number}"), mark: number, weight: *weight };
        let targets: Vec<Target> = (1..).zip(&self.weights).map(target).collect();
        let before = MaglevTable::build(&targets, self.size);
        let filled = self.filled(&before);
        let mut draws = Draws::new(self.seed);
        let changes: Vec<(f64, f64)> =
            (0..self.n_repeats).map(|_| self.change(&before, &targets, &mut draws)).collect();
        let of = |part: fn(&(f64, f64)) -> f64| changes.iter().map(part).collect::<Vec<_>>();
        let collateral = of(|change| change.1);
        Ok(MaglevSimulationResult {
            size: self.size.get(),
            n_targets,
            n_removed: self.n_removed,
            most_by_expected: filled.iter().copied().fold(0.0, f64::max),
            least_by_expected: filled.iter().copied().fold(f64::INFINITY, f64::min),
            variation: stdev(&filled).zip(mean(&filled)).map(|(stdev, mean)| stdev / mean),
            moved_share: mean(&of(|change| change.0)).unwrap_or_default(),
            collateral_share: mean(&collateral).unwrap_or_default(),
            collateral_share_max: collateral.iter().copied().fold(0.0, f64::max),
            follows_rule: usize::try_from(self.size.get()).is_ok_and(|size| size >= 100 * n_targets),
        })
    }

    /// The places of each target by those that its weight gives it.
    fn filled(&self, table: &MaglevTable) -> Vec<f64> {
        let mut n_places = vec![0_u64; self.weights.len()];
        for idx in table.places() {
            n_places[usize::from(*idx)] += 1;
        }
        let all: u64 = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        let expected = |weight: u32| f64::from(weight) / approximate(all) * f64::from(self.size.get());
        n_places.iter().zip(&self.weights).map(|(n, weight)| approximate(*n) / expected(*weight)).collect()
    }

    /// The share of places whose target goes, and of those that move though their target stays.
    fn change(&self, before: &MaglevTable, targets: &[Target], draws: &mut Draws) -> (f64, f64) {
        let mut order: Vec<usize> = (0..targets.len()).collect();
        draws.shuffle(&mut order);
        let gone = &mut order[..self.n_removed];
        gone.sort_unstable();
        let stays = |idx: &usize| gone.binary_search(idx).is_err();
        let left: Vec<usize> = (0..targets.len()).filter(stays).collect();
        let after = MaglevTable::build(&left.iter().map(|idx| targets[*idx].clone()).collect::<Vec<_>>(), self.size);
        let (mut n_moved, mut n_collateral) = (0, 0);
        for (before, after) in before.places().iter().zip(after.places()) {
            let before = usize::from(*before);
            if !stays(&before) {
                n_moved += 1;
            } else if left[usize::from(*after)] != before {
                n_collateral += 1;
            }
        }
        let share = |n: u64| ratio(n, u64::from(self.size.get())).unwrap_or_default();
        (share(n_moved), share(n_collateral))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(size: u32, n_targets: usize, n_removed: usize) -> MaglevSimulationResult {
        let size = TableSize::new(size).unwrap();
        MaglevSimulation { size, weights: vec![1; n_targets], n_removed, n_repeats: 5, seed: 1 }.run().unwrap()
    }

    #[test]
    fn what_must_move_is_the_share_of_those_that_go_and_the_rest_is_small() {
        // The table of the founding measurements: a size, targets, how many go, and how much of the others may move.
        for (size, n_targets, n_removed, most) in
            [(997, 10, 1, 0.06), (997, 10, 2, 0.08), (9973, 10, 1, 0.02), (65_537, 100, 1, 0.01), (65_537, 10, 3, 0.02)]
        {
            let result = run(size, n_targets, n_removed);
            let must = approximate(u64::try_from(n_removed).unwrap()) / approximate(u64::try_from(n_targets).unwrap());
            assert!((result.moved_share - must).abs() < 0.005, "{result:?}");
            assert!(result.collateral_share < most, "{result:?}");
            assert!(result.most_by_expected < 1.02 && result.least_by_expected > 0.98, "{result:?}");
        }
    }

    #[test]
    fn without_targets_that_go_nothing_changes() {
        let result = run(997, 10, 0);
        assert_eq!((result.moved_share, result.collateral_share_max), (0.0, 0.0));
    }

    #[test]
    fn a_table_below_the_rule_of_a_hundred_places_is_named() {
        assert!(run(65_537, 655, 1).follows_rule && !run(65_537, 656, 1).follows_rule);
    }

    #[test]
    fn targets_that_all_go_are_refused() {
        let simulation =
            MaglevSimulation { size: TableSize::USUAL, weights: vec![1; 3], n_removed: 3, n_repeats: 1, seed: 0 };
        assert_eq!(simulation.run(), Err(MaglevSimulationError::NoneLeft { n_removed: 3, n_targets: 3 }));
    }
}
