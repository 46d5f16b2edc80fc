//! The smallest size whose loss is below a limit.

use serde::Serialize;

/// A size that was tried, and its loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TriedSize {
    /// The size.
    pub size: u32,
    /// The lost share.
    pub loss: f64,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SizeSearch {
    /// The smallest size whose loss is below the limit; absent if there is none up to the largest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smallest: Option<u32>,
    /// All sizes that were tried, in this order.
    pub tried: Vec<TriedSize>,
}

impl SizeSearch {
    /// Doubles the size until the loss is below the limit, and then halves the interval. It assumes that a larger table loses no more.
    ///
    /// `usable` turns a size into the next larger one that can be tried, such as a prime.
    ///
    /// # Errors
    /// What `loss` returns.
    pub fn run<E>(
        (first, most): (u32, u32),
        limit: f64,
        usable: impl Fn(u32) -> u32,
        mut loss: impl FnMut(u32) -> Result<f64, E>,
    ) -> Result<Self, E> {
        let mut tried: Vec<TriedSize> = Vec::new();
        let mut is_enough = |size: u32| -> Result<bool, E> {
            let known = tried.iter().find(|tried| tried.size == size).map(|tried| tried.loss);
            let found = match known {
                Some(found) => found,
                None => loss(size)?,
            };
            if known.is_none() {
                tried.push(TriedSize { size, loss: found });
            }
            Ok(found < limit)
        };
        let (mut too_small, mut enough) = (0, usable(first.max(1)).min(most));
        while !is_enough(enough)? {
            if enough >= most {
                return Ok(Self { smallest: None, tried });
            }
            too_small = enough;
            enough = usable(enough.saturating_mul(2)).min(most);
        }
        while enough - too_small > 1 {
            let middle = usable(too_small + (enough - too_small) / 2);
            if middle >= enough {
                // No usable size is between the middle and the one that is enough.
                let lower = usable(too_small + 1);
                if lower >= enough || !is_enough(lower)? {
                    break;
                }
                enough = lower;
            } else if is_enough(middle)? {
                enough = middle;
            } else {
                too_small = middle;
            }
        }
        Ok(Self { smallest: Some(enough), tried })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_size_below_the_limit_is_found() {
        for smallest in 1..300 {
            let loss = |size: u32| Ok::<_, ()>(if size >= smallest { 0.0 } else { 0.5 });
            let search = SizeSearch::run((1, 1000), 0.1, |size| size, loss).unwrap();
            assert_eq!(search.smallest, Some(smallest));
            assert!(search.tried.len() < 20, "{smallest}: {:?}", search.tried);
        }
    }

    #[test]
    fn only_usable_sizes_are_tried() {
        let even = |size: u32| size.next_multiple_of(10);
        for smallest in 1..200_u32 {
            let loss = |size: u32| {
                assert!(size.is_multiple_of(10));
                Ok::<_, ()>(if size >= smallest { 0.0 } else { 0.5 })
            };
            let search = SizeSearch::run((1, 1000), 0.1, even, loss).unwrap();
            assert_eq!(search.smallest, Some(smallest.next_multiple_of(10)), "{smallest}");
        }
    }

    #[test]
    fn without_a_size_that_is_enough_there_is_none() {
        let search = SizeSearch::run((1, 64), 0.1, |size| size, |_| Ok::<_, ()>(0.2)).unwrap();
        assert_eq!(search.smallest, None);
        assert_eq!(search.tried.last().map(|tried| tried.size), Some(64));
    }
}
