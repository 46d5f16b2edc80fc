//! The statuses of the answers.

use std::str::FromStr;

use super::{
    InvalidText,
    fraction::{Fraction, WHOLE, sum_to_whole},
};

/// A longer list would contain nearly every status there is.
const STATUSES_MAX: usize = 32;

/// A mix of statuses with their shares. As text: `200:95%,404:4%,503:1%`, or a single one: `204`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusMix(Vec<(u16, Fraction)>);

impl Default for StatusMix {
    /// Every answer is 200.
    fn default() -> Self {
        Self(vec![(200, Fraction(WHOLE))])
    }
}

impl StatusMix {
    /// The statuses in the given order.
    pub(super) fn codes(&self) -> impl ExactSizeIterator<Item = u16> {
        self.0.iter().map(|(code, _)| *code)
    }

    /// The index of the status with the largest share among those whose answers have a body.
    pub(super) fn main_status(&self) -> usize {
        let with_body = self.0.iter().enumerate().rev().filter(|(_, (code, _))| has_body(*code));
        with_body.max_by_key(|(_, (_, share))| share.0).map_or(0, |(idx, _)| idx)
    }
}

/// Whether answers of this status have a body (RFC 9110 sections 15.3.5, 15.3.6 and 15.4.5).
pub(super) fn has_body(code: u16) -> bool {
    ![204, 205, 304].contains(&code)
}

impl FromStr for StatusMix {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        // 1xx announces a further answer, so it cannot be one (RFC 9110 section 15.2).
        let code = |text: &str| {
            let code = text.trim().parse().ok();
            code.filter(|code| (200..600).contains(code)).ok_or(InvalidText)
        };
        let statuses = match parts[..] {
            [one] if !one.contains(':') => vec![(code(one)?, Fraction(WHOLE))],
            _ => parts
                .into_iter()
                .map(|part| {
                    let (status, share) = part.split_once(':').ok_or(InvalidText)?;
                    Ok((code(status)?, share.parse()?))
                })
                .collect::<Result<_, InvalidText>>()?,
        };
        let is_sound = statuses.len() <= STATUSES_MAX && sum_to_whole(statuses.iter().map(|(_, share)| *share));
        if is_sound { Ok(Self(statuses)) } else { Err(InvalidText) }
    }
}

/// The order of the statuses of one worker: smooth weighted round robin.
///
/// The order is deterministic: after every answer, the count of each status is within one of its share. A client therefore counts
/// the exact mix and not a random sample of it.
#[derive(Debug)]
pub(super) struct StatusRotation {
    shares: Vec<i64>,
    owed: Vec<i64>,
    next: usize,
}

impl StatusRotation {
    pub(super) fn new(statuses: &StatusMix) -> Self {
        let shares: Vec<i64> = statuses.0.iter().map(|(_, share)| share.0.into()).collect();
        let mut rotation = Self { owed: vec![0; shares.len()], shares, next: 0 };
        rotation.advance();
        rotation
    }

    /// The index of the status of the next answer.
    pub(super) fn next(&self) -> usize {
        self.next
    }

    pub(super) fn advance(&mut self) {
        if self.shares.len() < 2 {
            return;
        }
        let mut total = 0;
        for (owed, share) in self.owed.iter_mut().zip(&self.shares) {
            *owed += share;
            total += share;
        }
        let most = self.owed.iter().enumerate().rev().max_by_key(|(_, owed)| **owed);
        self.next = most.map_or(0, |(idx, _)| idx);
        self.owed[self.next] -= total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_every_answer_each_status_has_its_share_within_one() {
        let statuses: StatusMix = "200:95%, 404:4%, 503:1%".parse().unwrap();
        let (mut rotation, mut counts) = (StatusRotation::new(&statuses), [0_i64; 3]);
        for n in 1..=10_000_i64 {
            counts[rotation.next()] += 1;
            rotation.advance();
            for (count, percent) in counts.iter().zip([95, 4, 1]) {
                assert!((count * 100 - n * percent).abs() <= 100, "{counts:?} of {n}");
            }
        }
        assert_eq!(counts, [9_500, 400, 100]);
    }

    #[test]
    fn statuses_are_given_evenly() {
        let mut rotation = StatusRotation::new(&"200:50%,500:50%".parse().unwrap());
        let given: Vec<usize> = (0..6)
            .map(|_| {
                let next = rotation.next();
                rotation.advance();
                next
            })
            .collect();
        assert_eq!(given, [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn what_is_no_mix_is_refused() {
        for text in ["", "100", "600", "200:90%", "200:50%,404", "200:95%,404:6%", "OK", "200=95%"] {
            assert_eq!(text.parse::<StatusMix>(), Err(InvalidText), "{text}");
        }
        assert_eq!("204".parse::<StatusMix>().unwrap().codes().collect::<Vec<_>>(), [204]);
        assert_eq!("404:10%,200:90%".parse::<StatusMix>().unwrap().main_status(), 1);
        assert_eq!("404:10%,204:90%".parse::<StatusMix>().unwrap().main_status(), 0);
    }
}
