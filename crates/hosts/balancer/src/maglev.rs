//! The Maglev table: from a hash to a target (Eisenbud et al.: Maglev, NSDI 2016, section 3.4).
//!
//! Each target has a permutation of all places, which its name alone decides. The targets take turns, and each takes the first place of its
//! permutation that is free, until all are taken. A target of weight w has w turns where a target of the highest weight W has W.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use fathom_statistics::splitmix;

use crate::targets::Target;

/// The number of places in a table: a prime, so that each target's permutation reaches every place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct TableSize(u32);

/// Envoy's largest table; a larger one does not fit the caches and spreads no better.
const SIZE_MAX: u32 = 5_000_011;

/// A number that is no size of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableSizeError {
    /// The size is not a prime.
    #[error("a table of {size} places: the size must be a prime, such as {nearest}")]
    NotPrime {
        /// The asked size.
        size: u32,
        /// The next lower prime, or the lowest one.
        nearest: u32,
    },
    /// The size is out of range.
    #[error("a table of {0} places: the size is a prime from 2 to {SIZE_MAX}")]
    Range(u32),
    /// The text is no number.
    #[error("a table of `{0}` places: the size is a prime from 2 to {SIZE_MAX}, such as 65537")]
    NoNumber(String),
}

impl TableSize {
    /// The size of the paper's small table: with up to 655 targets no target has 1 % more places than another.
    pub const USUAL: Self = Self(65_537);

    /// Checks a size.
    ///
    /// # Errors
    /// If it is not a prime from 2 to 5000011, the largest table of Envoy.
    pub fn new(size: u32) -> Result<Self, TableSizeError> {
        if !(2..=SIZE_MAX).contains(&size) {
            return Err(TableSizeError::Range(size));
        }
        if !is_prime(size) {
            let nearest = (2..size).rev().find(|size| is_prime(*size)).unwrap_or(2);
            return Err(TableSizeError::NotPrime { size, nearest });
        }
        Ok(Self(size))
    }

    /// The number of places.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for TableSize {
    type Error = TableSizeError;
    fn try_from(size: u32) -> Result<Self, TableSizeError> {
        Self::new(size)
    }
}

impl From<TableSize> for u32 {
    fn from(size: TableSize) -> Self {
        size.0
    }
}

impl FromStr for TableSize {
    type Err = TableSizeError;
    fn from_str(text: &str) -> Result<Self, TableSizeError> {
        Self::new(text.trim().parse().map_err(|_| TableSizeError::NoNumber(text.to_owned()))?)
    }
}

/// Returns whether a number is a prime, by division: at most 2236 of them for a size of a table.
#[must_use]
pub fn is_prime(number: u32) -> bool {
    number >= 2 && (2..=number.isqrt()).all(|divisor| !number.is_multiple_of(divisor))
}

/// The most targets of a group: the paper's large table is for a thousand, and a place holds 16 bits.
pub const TARGETS_MAX: usize = 10_000;

/// A table that is full, or empty if there are no targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaglevTable {
    /// For each place the index of its target.
    places: Box<[u16]>,
}

/// The mark of a place that no target has taken.
const FREE: u16 = u16::MAX;

/// A target while the table is built.
struct Turn {
    idx: u16,
    /// The place of its permutation that it tries next.
    place: u32,
    /// The distance between two places of its permutation.
    skip: u32,
    weight: u32,
    /// What it has saved for its next turn.
    credit: u32,
}

impl MaglevTable {
    /// Builds the table of these targets. Their order does not matter: the places of a name are the same in each order.
    ///
    /// # Panics
    /// With more than [`TARGETS_MAX`] targets.
    #[must_use]
    pub fn build(targets: &[Target], size: TableSize) -> Self {
        assert!(targets.len() <= TARGETS_MAX, "a group has at most {TARGETS_MAX} targets");
        if targets.is_empty() {
            return Self::default();
        }
        let mut turns: Vec<Turn> = (0..).zip(targets).map(|(idx, target)| Turn::new(idx, target, size)).collect();
        turns.sort_by(|one, other| targets[usize::from(one.idx)].name.cmp(&targets[usize::from(other.idx)].name));
        let most = targets.iter().map(|target| target.weight).max().unwrap_or(1);
        let size = size.0;
        let mut places = vec![FREE; index(size)].into_boxed_slice();
        let mut n_taken = 0;
        loop {
            for turn in &mut turns {
                turn.credit += turn.weight;
                if turn.credit < most {
                    continue;
                }
                turn.credit -= most;
                turn.take_place(&mut places, size);
                n_taken += 1;
                if n_taken == size {
                    return Self { places };
                }
            }
        }
    }

    /// Returns the index of the target for a hash, in the order in which the targets were given; `None` without targets.
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Option<usize> {
        let place = hash.checked_rem(u64::try_from(self.places.len()).ok()?)?;
        self.places.get(usize::try_from(place).ok()?).copied().map(usize::from)
    }

    /// The index of the target of each place.
    #[must_use]
    pub fn places(&self) -> &[u16] {
        &self.places
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("addresses have at least 32 bits")
}

impl Turn {
    fn new(idx: u16, target: &Target, size: TableSize) -> Self {
        // Two independent numbers from a name, as the paper's h1 and h2.
        let below = |number: u64, limit: u32| u32::try_from(number % u64::from(limit)).expect("it is below the limit");
        let (offset, skip) = (name_hash(&target.name, 1), name_hash(&target.name, 2));
        let skip = below(skip, size.0 - 1) + 1;
        Self { idx, place: below(offset, size.0), skip, weight: target.weight, credit: 0 }
    }

    fn take_place(&mut self, places: &mut [u16], size: u32) {
        while places[index(self.place)] != FREE {
            self.place += self.skip;
            if self.place >= size {
                self.place -= size;
            }
        }
        places[index(self.place)] = self.idx;
    }
}

fn name_hash(name: &str, seed: u64) -> u64 {
    name.bytes().fold(splitmix(seed, 0), |hash, byte| splitmix(hash, u64::from(byte) + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn targets(n: u32) -> Vec<Target> {
        (1..=n).map(|number| Target { name: format!("t{number}"), mark: number, weight: 1 }).collect()
    }

    /// The number of places of each target.
    fn shares(table: &MaglevTable, n_targets: usize) -> Vec<u32> {
        let mut shares = vec![0; n_targets];
        for idx in table.places() {
            shares[usize::from(*idx)] += 1;
        }
        shares
    }

    fn size(number: u32) -> TableSize {
        TableSize::new(number).unwrap()
    }

    #[test]
    fn a_size_is_a_prime_and_the_error_names_one() {
        for prime in [2, 3, 7, 997, 65_537, 655_373, 5_000_011] {
            assert_eq!(TableSize::new(prime).map(TableSize::get), Ok(prime));
        }
        assert_eq!(TableSize::new(65_536), Err(TableSizeError::NotPrime { size: 65_536, nearest: 65_521 }));
        for wrong in [0, 1, 5_000_012] {
            assert_eq!(TableSize::new(wrong), Err(TableSizeError::Range(wrong)));
        }
        assert_eq!("x".parse::<TableSize>(), Err(TableSizeError::NoNumber("x".to_owned())));
    }

    #[test]
    fn targets_of_one_weight_have_almost_the_same_number_of_places() {
        for n in [1, 2, 10, 100, 655] {
            let shares = shares(&MaglevTable::build(&targets(n), TableSize::USUAL), usize::try_from(n).unwrap());
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{n} targets: {least} to {most}");
        }
    }

    #[test]
    fn places_follow_the_weights() {
        let mut weighted = targets(4);
        for (target, weight) in weighted.iter_mut().zip([1, 2, 3, 10]) {
            target.weight = weight;
        }
        let shares = shares(&MaglevTable::build(&weighted, TableSize::USUAL), 4);
        for (share, weight) in shares.iter().zip([1.0, 2.0, 3.0, 10.0]) {
            let expected = 65_537.0 * weight / 16.0;
            assert!((f64::from(*share) - expected).abs() <= 2.0, "{share} places, {expected} expected");
        }
    }

    #[test]
    fn without_targets_no_hash_has_one() {
        assert_eq!(MaglevTable::build(&[], TableSize::USUAL).lookup(7), None);
    }

    /// The collateral change when one target goes: places of the others that change hands.
    fn collateral(n: u32, table: u32) -> f64 {
        let all = targets(n);
        let (before, after) =
            (MaglevTable::build(&all, size(table)), MaglevTable::build(&all[..all.len() - 1], size(table)));
        let last = u16::try_from(n - 1).unwrap();
        let pairs = before.places().iter().zip(after.places());
        let n_changed = pairs.filter(|(before, after)| **before != last && before != after).count();
        f64::from(u32::try_from(n_changed).unwrap()) / f64::from(table)
    }

    #[test]
    fn when_a_target_goes_few_flows_of_the_others_change() {
        // The paper's rule: above a hundred places for each target less than 1 % of the others change.
        for (n, table, most) in [(10, 65_537, 0.01), (100, 65_537, 0.01), (600, 65_537, 0.01), (10, 9973, 0.02)] {
            let share = collateral(n, table);
            assert!(share < most, "{n} targets, {table} places: {share}");
        }
    }

    #[test]
    fn a_table_that_is_kept_is_what_other_balancers_build() {
        // Two versions of this program must agree on the places of names: a change of the hash would break flows.
        let table = MaglevTable::build(&targets(3), size(17));
        assert_eq!(table.places(), [1, 2, 0, 0, 2, 2, 1, 0, 2, 2, 0, 1, 0, 1, 1, 1, 0]);
    }

    proptest! {
        #[test]
        fn the_order_of_targets_does_not_matter(n in 1_u32..30, seed in any::<u64>(), number in 0_usize..3) {
            let table = [7, 211, 997][number];
            let all = targets(n);
            let mut shuffled = all.clone();
            shuffled.sort_by_key(|target| splitmix(seed, u64::from(target.mark)));
            let (one, other) = (MaglevTable::build(&all, size(table)), MaglevTable::build(&shuffled, size(table)));
            for hash in 0..u64::from(table) {
                prop_assert_eq!(&all[one.lookup(hash).unwrap()], &shuffled[other.lookup(hash).unwrap()]);
            }
        }
    }
}
