//! Decides, while votes come in, whether most trials would vote one way; independent of the question.

use fathom_model::units::approximate;

/// Votes of independent trials on one question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Votes {
    pub n_yes: u32,
    pub n_no: u32,
}

/// The bets of [`Votes::evidence`]: the assumed share of yes votes, and the stake on each.
///
/// One bet assumes that all trials agree, as they do at some distance from a limit; one allows for a stray vote in ten; one is for a
/// question on which a quarter disagrees.
const BETS: [(f64, f64); 3] = [(1.0, 0.5), (0.9, 0.3), (0.75, 0.2)];

impl Votes {
    #[must_use]
    pub const fn total(self) -> u32 {
        self.n_yes + self.n_no
    }

    /// Adds other votes to these.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self { n_yes: self.n_yes + others.n_yes, n_no: self.n_no + others.n_no }
    }

    /// Swaps yes and no.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { n_yes: self.n_no, n_no: self.n_yes }
    }

    /// The evidence that most trials would vote yes: the gain of bets against the opposite.
    ///
    /// If at most half of all trials say yes, each bet is fair or worse, so the gain is a non-negative supermartingale that starts at 1:
    /// the probability that it *ever* reaches 1/α, over any number of votes, is at most α (Ville 1939; Waudby-Smith and Ramdas, "Estimating
    /// means of bounded random variables by betting", JRSS B 86, 2024). It is therefore valid to stop at any vote.
    #[must_use]
    pub fn evidence(self) -> f64 {
        let (yes, no) = (approximate(self.n_yes.into()), approximate(self.n_no.into()));
        BETS.iter().map(|(share, stake)| stake * (2.0 * share).powf(yes) * (2.0 * (1.0 - share)).powf(no)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    fn votes(n_yes: u32, n_no: u32) -> Votes {
        Votes { n_yes, n_no }
    }

    #[test]
    fn six_trials_that_agree_are_enough_for_an_error_of_one_in_forty() {
        assert!(votes(5, 0).evidence() < 40.0 && votes(6, 0).evidence() >= 40.0);
        assert!(votes(10, 1).evidence() < 40.0 && votes(11, 1).evidence() >= 40.0, "a stray vote costs five more");
        assert!((votes(0, 0).evidence() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn evidence_for_one_way_is_none_for_the_other() {
        assert!(votes(9, 1).reversed().evidence() < 0.01);
        assert_eq!(votes(3, 5).reversed(), votes(5, 3));
    }

    #[test]
    fn a_coin_is_rarely_taken_for_a_majority_however_long_one_looks() {
        let deceived = (0..4000).filter(|seed| {
            let mut noise = Noise::seeded(seed + 1);
            let mut seen = Votes::default();
            (0..200).any(|_| {
                if noise.uniform() < 0.5 {
                    seen.n_yes += 1;
                } else {
                    seen.n_no += 1;
                }
                seen.evidence() >= 20.0
            })
        });
        let share = deceived.count();
        assert!(share <= 4000 / 20, "{share} of 4000 at an error of 5 %");
        assert!(share >= 40, "a test that never errs decides too late: {share}");
    }
}
