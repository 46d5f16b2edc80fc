//! The Maglev table: from a hash to a target (Eisenbud et al.: Maglev, NSDI 2016, section 3.4).

use serde::{Deserialize, Serialize};

use crate::targets::Target;

/// The number of places in a table: a prime, so that each target's permutation reaches every place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct TableSize(u32);

impl TableSize {
    /// The size of the paper's small table: below 1 % of imbalance up to 655 targets.
    pub const USUAL: Self = Self(65_537);

    /// Checks a size.
    ///
    /// # Errors
    /// If it is not a prime from 2 to Envoy's maximum, 5000011.
    pub fn new(size: u32) -> Result<Self, TableSizeError> { todo!() }
}

/// A table that is full, or empty if there are no targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaglevTable { places: Box<[u16]> }

impl MaglevTable {
    /// Builds the table of these targets. The order of the targets does not matter.
    #[must_use]
    pub fn build(targets: &[Target], size: TableSize) -> Self { todo!() }

    /// Returns the index of the target for a hash; `None` without targets.
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Option<usize> { todo!() }
}
