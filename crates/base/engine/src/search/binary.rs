//! Binary search with loss verification (ETSI GS NFV-TST 009 section 12.3), over whole numbers.

/// The range and the resolution of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinarySearch {
    /// The smallest number to try.
    pub min: u64,
    /// The largest number to try.
    pub max: u64,
    /// The maximum distance between the two ends at the end of the search; at least one.
    pub step: u64,
    /// A number counts as lossy after this many lossy trials in a row; 1 is the plain binary search.
    pub max_repeat: u32,
}

/// The current knowledge of a binary search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinarySearchState {
    /// The largest number without loss; `None` if the smallest one has loss.
    pub kept: Option<u64>,
    /// The smallest number with loss; `None` if the largest one has no loss.
    pub broken: Option<u64>,
}

impl BinarySearch {
    /// Searches for the largest number whose trial has no loss.
    ///
    /// # Errors
    /// The first error of a trial, with the state of the search up to it.
    ///
    /// # Panics
    /// If the step or the number of repeats is zero.
    pub fn run<E>(
        &self,
        mut is_lossless: impl FnMut(u64, u32) -> Result<bool, E>,
    ) -> Result<BinarySearchState, (BinarySearchState, E)> {
        assert!(self.step > 0 && self.max_repeat > 0, "{self:?} has no end");
        let mut known = BinarySearchState { kept: None, broken: None };
        let mut next = Some(self.max);
        while let Some(number) = next {
            let left = self.n_left(&known);
            let mut is_kept = false;
            for _ in 0..self.max_repeat {
                is_kept = is_lossless(number, left).map_err(|error| (known, error))?;
                if is_kept {
                    break;
                }
            }
            *if is_kept { &mut known.kept } else { &mut known.broken } = Some(number);
            next = self.next(&known);
        }
        Ok(known)
    }

    /// Returns the midpoint of the two ends, which default to the smallest and the largest number.
    fn next(&self, known: &BinarySearchState) -> Option<u64> {
        let broken = known.broken?;
        match known.kept {
            Some(kept) if broken - kept <= self.step => None,
            Some(kept) => Some(u64::midpoint(kept, broken)),
            None if broken <= self.min => None,
            // Try the smallest number itself once the ends are this close to it.
            None if broken - self.min <= self.step => Some(self.min),
            None => Some(u64::midpoint(self.min, broken)),
        }
    }

    /// The number of values still to try, including the next one, if each is decided by its first trial.
    fn n_left(&self, known: &BinarySearchState) -> u32 {
        let width = known.broken.unwrap_or(self.max).saturating_sub(known.kept.unwrap_or(self.min));
        (width / self.step).checked_ilog2().map_or(1, |halvings| halvings + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: BinarySearch = BinarySearch { min: 1, max: 1000, step: 1, max_repeat: 1 };

    #[test]
    fn every_limit_is_found_to_the_step() {
        for limit in 0..=1001 {
            for step in [1, 7] {
                let found = BinarySearch { step, ..PLAIN }.run(|n, _| Ok::<_, ()>(n <= limit)).unwrap();
                assert!(found.kept.is_none_or(|kept| kept <= limit), "{limit}: {found:?}");
                assert!(found.broken.is_none_or(|broken| broken > limit), "{limit}: {found:?}");
                assert_eq!(found.kept.is_none(), limit == 0, "{limit}: {found:?}");
                assert_eq!(found.broken.is_none(), limit >= 1000, "{limit}: {found:?}");
                if let (Some(kept), Some(broken)) = (found.kept, found.broken) {
                    assert!(broken - kept <= step, "{limit}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn loss_that_is_not_seen_again_decides_nothing() {
        let mut n_trials = 0;
        let verified = BinarySearch { max_repeat: 2, ..PLAIN };
        let stray = verified.run(|n, _| {
            n_trials += 1;
            Ok::<_, ()>(n <= 400 && n_trials % 5 != 0)
        });
        assert_eq!(stray, Ok(BinarySearchState { kept: Some(400), broken: Some(401) }));
    }

    #[test]
    fn a_search_that_is_interrupted_tells_what_it_knows() {
        let mut n_trials = 0;
        let stopped = PLAIN.run(|n, _| {
            n_trials += 1;
            if n_trials > 3 { Err("ctrl-C") } else { Ok(n <= 400) }
        });
        assert_eq!(stopped, Err((BinarySearchState { kept: Some(250), broken: Some(500) }, "ctrl-C")));
    }

    #[test]
    fn what_is_left_is_told_and_shrinks() {
        let mut left = Vec::new();
        let _ = PLAIN.run(|n, n_left| {
            left.push(n_left);
            Ok::<_, ()>(n <= 400)
        });
        assert!(left.windows(2).all(|two| two[1] <= two[0]), "{left:?}");
        assert!(left[0] >= 10 && *left.last().unwrap() <= 2, "{left:?}");
    }
}
